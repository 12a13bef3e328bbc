"""A streamed reply of Anthropic Messages with recall calls in it: what the client gets, and what is remembered.

The judge of streams is the official SDK's own accumulation, fed with what the client got.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest

from policies.dialects import DIALECTS
from policies.model.edits import RecallRound
from policies.money.prices import Usage
from policies.tools import RECALL
from tests.kit.messages import (
    PING,
    STOP,
    Json,
    asks,
    data_of,
    ends,
    event,
    exchange,
    feed,
    message_of,
    play,
    starts,
    stream,
    streams,
    text,
    thinks,
    uses,
)

dialect = DIALECTS["anthropic_messages"]

ASKS = stream(thinks("hm"), text("Let me look. "), asks(), reason="tool_use")
SAYS = stream(thinks("so"), text("found 🙂"), name="two", output=9)
SEARCH = {"type": "server_tool_use", "id": "s0", "name": "web_search", "input": {"query": "x"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "s0", "content": [{"encrypted_content": "abc=="}]}


def kinds(events: list[bytes]) -> list[str]:
    return [said["type"] for said in data_of(events)]


def test_r3_a_recall_call_and_the_seam_are_not_seen() -> None:
    reader, got = play(ASKS, SAYS)
    whole = message_of(got)
    assert (whole["id"], whole["model"], whole["stop_reason"]) == ("msg_one", "m-one", "end_turn")
    assert whole["content"] == [thinks("hm"), text("Let me look. "), thinks("so"), text("found 🙂")]
    assert RECALL.encode() not in b"".join(got)
    assert (kinds(got).count("message_start"), kinds(got).count("message_stop"), got[-1]) == (1, 1, STOP)
    assert kinds(got).count("ping") == 2
    assert (list(reader.pending), list(reader.over)) == ([], [0])
    assert reader.result(0).text == "Let me look. found 🙂"
    fields = json.dumps([thinks("hm"), {"type": "text", "text": 13}], separators=(",", ":"))
    call = json.dumps(asks(), separators=(",", ":"))
    assert reader.result(0).rounds == (RecallRound(13, (call,), fields=fields),)
    assert reader.result(1).rounds == ()


def test_r3_nothing_is_held_back_that_need_not_be() -> None:
    reader = dialect.reply(2)
    for given in ASKS[:-2]:
        ours = given in streams(asks(), 2)
        assert reader.feed(given) == ([] if ours else [given])
    assert feed(reader, ASKS[-2:]) == []
    assert list(reader.pending) == [0]
    assert list(reader.over) == []
    reader.resume(0)
    assert reader.feed(SAYS[0]) == []
    for given in SAYS[1:-2]:
        (shown,) = reader.feed(given)
        assert shown == given.replace(b'"index":0', b'"index":2').replace(b'"index":1', b'"index":3') or shown == PING


def test_law_1_without_a_recall_all_is_the_very_bytes_that_came() -> None:
    for events in (stream(thinks("hm"), text("a"), uses(), SEARCH, FOUND, reason="tool_use"), SAYS):
        reader = dialect.reply(4)
        assert all(a is b for a, b in zip(feed(reader, events), events, strict=True))
        assert (list(reader.over), reader.result(0).rounds) == ([0], ())
    assert feed(reader := dialect.reply(), ASKS) == ASKS
    assert (list(reader.pending), reader.result(0).rounds) == ([], ())


ERROR = event({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})


@pytest.mark.parametrize(
    "odd",
    [
        b"",
        b"\n",
        b": keep-alive\n\n",
        b"data: nonsense\n\n",
        b"event: x\ndata: \xff\n\n",
        b"data: 7\n\n",
        PING,
        ERROR,
        event({"type": "content_block_start", "index": "x", "content_block": asks()}),
        event({"type": "content_block_start", "index": 0, "content_block": 7}),
        event({"type": "content_block_delta", "index": None, "delta": {}}),
        event({"type": "content_block_delta", "index": 5, "delta": 7}),
        event({"type": "content_block_stop"}),
        event({"type": "message_delta"}),
        event({"type": "message_delta", "delta": 7, "usage": 7}),
        event({"type": "message_start", "message": 7}),
        event({"type": "message_start", "message": {"usage": {"input_tokens": "many"}}}),
        event({"type": "vellum_event", "index": 0}),
        b'data: {"a":' + b"[" * 5000 + b"]" * 5000 + b"}\n\n",
        b"[1]",
        b"{",
        b'{"type":"error","error":{"message":"no"}}',
        b'{"content":"text"}',
        b'\xef\xbb\xbf{"content":[]}',
        b'{"content":[],"content":[]}',
        STOP,
    ],
)
def test_r3_what_is_no_recall_passes_as_the_very_bytes(odd: bytes) -> None:
    for reader in (dialect.reply(4), dialect.reply()):
        (got,) = reader.feed(odd)
        assert got is odd


@pytest.mark.parametrize("style", ["crlf", "bom", "comment", "no space", "lines"])
def test_t2_an_event_is_read_however_it_is_framed(style: str) -> None:
    styles: dict[str, Callable[[bytes], bytes]] = {
        "crlf": lambda given: given.replace(b"\n", b"\r\n"),
        "bom": lambda given: b"\xef\xbb\xbf" + given,
        "comment": lambda given: b": keep-alive\nid: 7\n" + given,
        "no space": lambda given: given.replace(b"data: ", b"data:"),
        "lines": lambda given: given.replace(b',"', b',\ndata: "'),
    }
    styled = styles[style]
    reader, got = play([styled(given) for given in ASKS], [styled(given) for given in SAYS])
    assert RECALL.encode() not in b"".join(got)
    assert exchange(reader).calls
    assert got[0] == styled(ASKS[0])


def test_r3_usage_is_summed_and_the_prompt_is_the_last_rounds() -> None:
    details: Json = {"server_tool_use": {"web_search_requests": 1}, "output_tokens_details": {"thinking_tokens": 3}}
    first = [*ASKS[:-2], *ends("tool_use", 7, **details, iterations=[{"type": "message"}])]
    first[0] = starts(cache_creation_input_tokens=90)
    second = [*SAYS[:-2], *ends("end_turn", 9, **details, iterations=[{"type": "other"}], input_tokens=None)]
    second[0] = starts("two", cache_read_input_tokens=90, cache_creation_input_tokens=4)
    reader = dialect.reply(4)
    feed(reader, first)
    assert (reader.usage, reader.completion) == (Usage(100, 0, 90, 7), 7)
    reader.resume(0)
    assert (reader.usage, reader.completion) == (None, 7)
    got = feed(reader, second)
    assert (reader.usage, reader.completion) == (Usage(104, 90, 4, 9), 16)
    assert data_of(got)[-2]["usage"] == {
        "output_tokens": 16,
        "server_tool_use": {"web_search_requests": 2},
        "output_tokens_details": {"thinking_tokens": 6},
        "iterations": [{"type": "message"}, {"type": "other"}],
        "input_tokens": 10,
        "cache_read_input_tokens": 90,
        "cache_creation_input_tokens": 4,
    }


def test_t8_usage_is_read_where_nothing_else_is() -> None:
    reader = dialect.reply()
    written = {"ephemeral_1h_input_tokens": 1, "ephemeral_5m_input_tokens": 1}
    feed(reader, stream(text("a"), cache_read_input_tokens=5, cache_creation_input_tokens=2, cache_creation=written))
    assert reader.usage == Usage(17, 5, 2, 7, 1)


MIXED = [text("Both."), uses("a"), asks("b"), uses("c", "ls")]


def test_r4_in_a_mixed_turn_the_clients_calls_go_out_without_a_gap() -> None:
    reader, got = play(stream(thinks("hm"), *MIXED, reason="tool_use"), allowed=0)
    whole = message_of(got)
    assert (whole["stop_reason"], whole["content"]) == ("tool_use", [thinks("hm"), *MIXED[:2], MIXED[3]])
    assert (list(reader.pending), list(reader.over)) == ([], [0])
    said = reader.result(0)
    assert (said.text, said.call_ids) == ("Both.", ("a", "c"))
    assert said.rounds == (RecallRound(5, (json.dumps(asks("b"), separators=(",", ":")),), (1,)),)


def test_r4_a_call_cut_off_in_a_mixed_turn_goes_as_a_whole() -> None:
    cut = [*stream(*MIXED)[:-2], *streams(asks("d"), 4)[:4], *ends("max_tokens")]
    reader, got = play(cut)
    assert message_of(got)["stop_reason"] == "max_tokens"
    assert [json.loads(call)["id"] for call in exchange(reader).calls] == ["b"]
    alone, got = play([*stream(text("a"), uses("a"))[:-2], *streams(asks("d"), 2)[:4], *ends("max_tokens")])
    assert alone.result(0).rounds == ()


@pytest.mark.parametrize(
    "reason", ["max_tokens", "stop_sequence", "refusal", "pause_turn", "model_context_window_exceeded"]
)
def test_r6_what_the_provider_ended_for_its_own_reason_is_over(reason: str) -> None:
    reader, got = play(stream(text("I look."), asks(), reason=reason))
    whole = message_of(got)
    assert (whole["stop_reason"], whole["content"]) == (reason, [text("I look.")])
    assert (list(reader.pending), list(reader.over), reader.result(0).rounds) == ([], [0], ())


def test_r6_the_last_round_says_so_and_a_further_call_ends_the_reply() -> None:
    reader, got = play(ASKS, stream(asks("r1"), reason="tool_use", name="two"), ASKS, allowed=2)
    assert [one.last for one in reader.result(0).rounds] == [False, True]
    assert (message_of(got)["stop_reason"], got[-1]) == ("max_tokens", STOP)
    assert message_of(got)["usage"]["output_tokens"] == 21
    assert (list(reader.over), len(reader.result(0).rounds)) == ([0], 2)
    assert reader.result(0).text == "Let me look. Let me look. "


@pytest.mark.parametrize("reason", ["end_turn", None])
def test_r3_a_server_that_names_another_reason_or_none_is_asked_on(reason: str | None) -> None:
    reader, got = play([*stream(asks())[:-2], *ends(reason)], SAYS)
    assert message_of(got)["content"] == [thinks("so"), text("found 🙂")]
    assert len(reader.result(0).rounds) == 1


def test_r3_an_error_in_the_stream_passes_and_ends_nothing() -> None:
    reader, got = play([*ASKS[:-2], ERROR])
    assert got[-1] is ERROR
    assert (list(reader.pending), list(reader.over)) == ([], [])
    reader, got = play(ASKS, [*SAYS[:5], ERROR])
    assert (got[-1], list(reader.over)) == (ERROR, [])


def rounds_of(*blocks: Json) -> Any:
    return json.loads(exchange(play(stream(*blocks, reason="tool_use"))[0]).fields or "null")


def test_r3_what_else_a_round_says_is_kept_in_order() -> None:
    cited = text("quoted", citations=[{"type": "char_location", "cited_text": "q"}])
    begun = [*streams({**cited, "citations": []}, 0)[:-1]]
    begun.append(
        event({"type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta", "citation": "c"}})
    )
    reader, _ = play([starts(), *begun, *streams(asks(), 1), *ends("tool_use")])
    assert json.loads(exchange(reader).fields) == [{"type": "text", "text": 6, "citations": ["c"]}]
    sealed = {"type": "redacted_thinking", "data": "abc=="}
    assert rounds_of(sealed, text("a"), SEARCH, FOUND, text("bc"), asks()) == [
        sealed,
        {"type": "text", "text": 1},
        SEARCH,
        FOUND,
        {"type": "text", "text": 2},
    ]
    assert rounds_of({"type": "odd", "text": "a"}, asks()) == [{"type": "odd", "text": "a"}]
    assert rounds_of(asks(), text("a"), asks("r1")) == [{"type": "tool_use"}, {"type": "text", "text": 1}]
    assert (rounds_of(text(""), asks()), rounds_of(text("a"), asks(), asks("r1")), rounds_of(asks())) == (None,) * 3


def test_a_block_of_any_kind_is_put_together_from_its_deltas() -> None:
    deltas: list[Json] = [{"type": "compaction_delta", "content": "sum", "encrypted_content": "e"}]
    deltas += [{"type": "odd_delta", "more": "a"}, {"type": "odd_delta", "more": "b", "count": 7}]
    begun = event({"type": "content_block_start", "index": 0, "content_block": {"type": "compaction", "content": None}})
    said = [event({"type": "content_block_delta", "index": 0, "delta": delta}) for delta in deltas]
    reader, _ = play([starts(), begun, *said, *streams(asks(), 1), *ends("tool_use")])
    kept = {"type": "compaction", "content": "sum", "encrypted_content": "e", "more": "ab", "count": 7}
    assert json.loads(exchange(reader).fields) == [kept]


@pytest.mark.parametrize("pieces", [[], ['{"ref":'], ["7"], ['{"ref":"482913"}'], ['{"ref":', '"482913"', "}"]])
def test_r6_a_call_with_input_that_is_none_gets_an_empty_one(pieces: list[str]) -> None:
    begun, *_, end = streams(asks(caller={"type": "direct"}), 0)
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    said = [event({"type": "content_block_delta", "index": 0, "delta": delta}) for delta in deltas]
    reader, _ = play([starts(), begun, *said, end, *ends("tool_use")])
    good = pieces and pieces[-1].endswith("}")
    call = asks(caller={"type": "direct"})
    assert json.loads(exchange(reader).calls[0]) == {**call, "input": call["input"] if good else {}}
    assert json.loads(dialect.recall.called(exchange(reader).calls[0])[1]) == (call["input"] if good else {})


def test_t2_the_halves_of_a_character_may_come_apart() -> None:
    halves = [b'{"type":"text_delta","text":"\\ud83d"}', b'{"type":"text_delta","text":"\\ude42"}']
    events = [b'data: {"type":"content_block_delta","index":0,"delta":' + half + b"}\n\n" for half in halves]
    begun, *_, end = streams(text(""), 0)
    reader, _ = play([starts(), begun, *events, end, *streams(asks(), 1), *ends("tool_use")])
    assert (reader.result(0).text, exchange(reader).text) == ("🙂", 1)
