"""A streamed reply of OpenAI chat completions with recall calls in it: what the client gets, and what is remembered.

The judge of streams is the official SDK's own accumulation, fed with what the client got.
"""

import json
import sys
from collections.abc import Callable

import pytest

from policies.dialects.openai_chat.reply import ChatReply
from policies.model.edits import RecallRound
from tests.kit.replies import (
    ASKS,
    DONE,
    ENDS,
    NAME,
    REF,
    SAYS,
    Json,
    accumulated,
    chunk,
    entry,
    exchange,
    feed,
    made,
    message_of,
    parsed,
    play,
    recalled,
    usage,
)


def test_r3_a_recall_call_and_the_seam_are_not_seen() -> None:
    reader, got = play([*ASKS, *ENDS], SAYS)
    whole = accumulated(got)
    assert (whole["id"], whole["created"], whole["model"]) == ("one", 3, "m-one")
    assert whole["choices"][0]["message"]["content"] == "found"
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert got[0] is ASKS[0]
    assert [said["choices"][0]["delta"] for said in parsed(got)[1:]] == [{"content": "found"}, {}]
    assert (got[-1], got.count(DONE), list(reader.pending), recalled(reader)) == (DONE, 1, [], [0])
    assert reader.over
    call = {"id": "c0", "type": "function", "function": {"name": NAME, "arguments": REF}}
    assert json.loads(exchange(reader).calls[0]) == call
    assert exchange(reader) == RecallRound(0, (json.dumps(call, separators=(",", ":")).replace('{\\"', '{\\"'),))


def test_r3_text_flows_at_once_and_is_counted_by_round() -> None:
    first = [chunk({"role": "assistant", "content": "Let me "}), chunk({"content": "look 🙂."})]
    reader = ChatReply(2)
    assert [reader.feed(given) for given in first] == [[given] for given in first]
    assert feed(reader, [*ASKS[1:], *ENDS]) == []
    reader.resume(0)
    got = feed(reader, SAYS)
    assert message_of([*first, *got])["message"]["content"] == "Let me look 🙂.found"
    assert reader.result(0).text == "Let me look 🙂.found"
    assert exchange(reader).text == len("Let me look 🙂.")


@pytest.mark.parametrize(
    "odd",
    [
        b"",
        b"\n",
        b"\r\n",
        b": keep-alive\n\n",
        b"data: nonsense\n\n",
        b"data: {\n\n",
        b"data: \xff\n\n",
        b"data: 7\n\n",
        b'data: {"choices":{}}\n\n',
        b'data: {"choices":[7]}\n\n',
        b'data: {"choices":[{"index":"x","delta":{}}]}\n\n',
        b'data: {"choices":[{"index":null,"delta":{}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":[]}]}\n\n',
        b'data: {"choices":[{"index":0}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":7,"tool_calls":{}}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"tool_calls":[7]}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":7}]}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":{},"function":{"name":"a"}}]}}]}\n\n',
        b'data: {"error":{"message":"no"}}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":"\\ud83d"}}]}\n\n',
        b'data: {"choices":[],"prompt_filter_results":[]}\n\n',
        b'data: {"usage":[]}\n\n',
        b'data: {"a":' + b"[" * 5000 + b"]" * 5000 + b"}\n\n",
        b"[1]",
        b"{",
        b'{"error":{"message":"no"}}',
        b'{"choices":[{"message":7}]}',
        b'{"choices":[{"index":0,"message":{"content":"a"}},{"index":0,"message":{"content":"b"}}]}',
        b'{"choices":[{"index":0,"message":{"tool_calls":7}}]}',
        b'\xef\xbb\xbf{"choices":[]}',
        DONE,
    ],
)
def test_r3_what_is_no_recall_passes_as_the_very_bytes(odd: bytes) -> None:
    (got,) = ChatReply(4).feed(odd)
    assert got is odd
    (got,) = ChatReply().feed(odd)
    assert got is odd


def test_without_the_tool_every_call_is_the_clients() -> None:
    reader = ChatReply()
    stream = [*ASKS, *ENDS]
    assert feed(reader, stream) == stream
    assert (list(reader.pending), recalled(reader)) == ([], [])


@pytest.mark.parametrize("style", ["crlf", "lines", "bom", "comment", "no space"])
def test_an_event_is_read_however_it_is_framed(style: str) -> None:
    styles: dict[str, Callable[[bytes], bytes]] = {
        "crlf": lambda given: given.replace(b"\n", b"\r\n"),
        "lines": lambda given: given.replace(b', "choices"', b',\ndata: "choices"'),
        "bom": lambda given: b"\xef\xbb\xbf" + given,
        "comment": lambda given: b": keep-alive\nevent: chunk\nid: 7\n" + given,
        "no space": lambda given: given.replace(b"data: ", b"data:"),
    }
    styled = styles[style]
    reader, got = play([styled(given) for given in [*ASKS, *ENDS]], [styled(given) for given in SAYS])
    assert NAME.encode() not in b"".join(got)
    assert exchange(reader).calls
    assert styled(ASKS[0]) == got[0]


@pytest.mark.parametrize("pieces", [["", NAME], [None, NAME], ["narr", "ows_", "recall"], [NAME, "", NAME]])
def test_r3_a_name_that_comes_late_or_in_pieces_is_held(pieces: list[str | None]) -> None:
    stream = [chunk(made(entry(piece, "", call_id="c0" if i == 0 else None))) for i, piece in enumerate(pieces)]
    stream.append(chunk(made(entry(None, REF, call_id=None))))
    reader, got = play([*stream, *ENDS])
    assert (got, list(reader.pending)) == ([], [0])
    assert json.loads(exchange(reader).calls[0])["function"] == {"name": NAME, "arguments": REF}


def test_r3_a_name_that_becomes_another_is_let_go_in_order() -> None:
    reader = ChatReply(4)
    assert reader.feed(chunk(made(entry("narrows_", "", 0)))) == []
    assert reader.feed(chunk(made(entry("bash", "{}", 1, "c1")))) == []
    got = reader.feed(chunk(made(entry("other", "{}", 0, None))))
    got += reader.feed(chunk({}, "tool_calls"))
    assert [call["index"] for call in parsed(got)[0]["choices"][0]["delta"]["tool_calls"]] == [0, 1]
    calls = message_of(got)["message"]["tool_calls"]
    assert [(call["id"], call["function"]["name"]) for call in calls] == [("c0", "narrows_other"), ("c1", "bash")]
    assert reader.result(0).call_ids == ("c0", "c1")


@pytest.mark.parametrize("end", [chunk({}, "tool_calls"), DONE])
def test_r3_a_name_that_ends_where_ours_goes_on_is_the_clients(end: bytes) -> None:
    reader, got = play([chunk(made(entry("narrows", "{}"), role="assistant")), end])
    assert message_of(got)["message"]["tool_calls"][0]["function"]["name"] == "narrows"
    assert message_of(got)["finish_reason"] == "tool_calls"
    assert recalled(reader) == []


def test_a_custom_call_is_not_held() -> None:
    given = chunk(made({"index": 0, "id": "c0", "type": "custom", "custom": {"name": "x", "input": ""}}))
    assert ChatReply(4).feed(given)[0] is given


MIXED = [
    chunk({"role": "assistant", "content": "Both."}),
    chunk(made(entry("bash", "", 0, "a"))),
    chunk(made(entry(None, '{"x":1}', 0, None))),
    chunk(made(entry(NAME, "", 1, "b"))),
    chunk(made(entry(None, REF, 1, None))),
    chunk(made(entry("ls", "", 2, "c"))),
    chunk(made(entry(None, "{}", 2, None))),
]


def test_r4_in_a_mixed_turn_the_clients_calls_go_out_without_a_gap() -> None:
    reader, got = play([*MIXED, *ENDS])
    found = message_of(got)
    assert found["finish_reason"] == "tool_calls"
    assert [(call["index"], call["id"], call["function"]["arguments"]) for call in found["message"]["tool_calls"]] == [
        (0, "a", '{"x":1}'),
        (1, "c", "{}"),
    ]
    assert all(a is b for a, b in zip(got[:3], MIXED[:3], strict=True))
    assert (len(got), got[-1]) == (7, DONE)
    assert (list(reader.pending), recalled(reader)) == ([], [0])
    said = reader.result(0)
    assert (said.text, said.call_ids, exchange(reader).places, exchange(reader).text) == ("Both.", ("a", "c"), (1,), 5)
    assert not exchange(reader).last


def test_r4_a_mixed_turn_uses_no_round() -> None:
    reader, got = play([*MIXED, *ENDS], allowed=0)
    assert message_of(got)["finish_reason"] == "tool_calls"
    assert [one.last for one in reader.result(0).rounds] == [False]


def test_r4_a_call_cut_off_in_a_mixed_turn_goes_as_a_whole() -> None:
    cut = [*MIXED, chunk(made(entry(NAME, '{"ref":"48', 3, "d"))), chunk({}, "length"), DONE]
    reader, got = play(cut)
    assert message_of(got)["finish_reason"] == "length"
    assert [json.loads(call)["id"] for call in exchange(reader).calls] == ["b"]
    early = [chunk(made(entry(NAME, "{", 0, "x"), entry("bash", "{}", 1, "y"), entry(NAME, REF, 2, "z")), "length")]
    assert exchange(play(early)[0]).places == (1,)
    assert exchange(play([given.replace(b'"length"', b'"stop"') for given in early])[0]).places == (0, 2)
    reader, got = play([MIXED[1], MIXED[3], chunk({}, "length")])
    assert recalled(reader) == []


@pytest.mark.parametrize("finish", ["tool_calls", "stop", "function_call"])
def test_r3_ours_alone_waits_whatever_the_server_calls_the_end(finish: str) -> None:
    reader, got = play([*ASKS, chunk({}, finish), *ENDS[1:]])
    assert got == [ASKS[0]]
    assert list(reader.pending) == [0]


@pytest.mark.parametrize("finish", ["length", "content_filter", "error"])
def test_r6_a_call_that_the_provider_cut_off_is_dropped(finish: str) -> None:
    reader, got = play([*ASKS, chunk({}, finish), DONE])
    assert parsed(got)[-1]["choices"] == [{"index": 0, "delta": {}, "finish_reason": finish}]
    assert (len(got), list(reader.pending), recalled(reader), got[-1]) == (3, [], [], DONE)


def test_r6_beyond_the_last_round_the_call_is_dropped_for_length() -> None:
    again = [*(given.replace(b"one", b"two") for given in ASKS), *ENDS]
    reader, got = play([*ASKS, *ENDS], again, [chunk({"content": "hm"}), *again], allowed=2)
    found = message_of(got)
    assert (found["finish_reason"], found["message"]["content"]) == ("length", "hm")
    assert [one.last for one in reader.result(0).rounds] == [False, True]
    assert (list(reader.pending), got[-1]) == ([], DONE)
    assert message_of(play([*ASKS, *ENDS], allowed=0)[1])["finish_reason"] == "length"


@pytest.mark.parametrize("arguments", ["", "[1]", '{"ref"', "null", "7", '{"ref":"\\ud8'])
def test_r6_arguments_that_are_no_object_are_remembered_as_none(arguments: str) -> None:
    reader, _ = play([chunk(made(entry(arguments=arguments))), *ENDS])
    assert json.loads(exchange(reader).calls[0])["function"]["arguments"] == "{}"


def test_every_field_of_a_call_is_kept_and_nothing_is_random() -> None:
    signed = {"google": {"thought_signature": "abc"}}
    one = entry(call_id=None) | {"extra_content": signed}
    two = entry(arguments='{"ref":"7"}', index=1, call_id=None)
    calls = [[json.loads(c) for c in exchange(play([chunk(made(one, two)), *ENDS])[0]).calls] for _ in range(2)]
    assert calls[0] == calls[1]
    assert calls[0][0]["extra_content"] == signed
    assert all(call["id"].startswith("call_") and "index" not in call for call in calls[0])
    assert calls[0][0]["id"] != calls[0][1]["id"]


@pytest.mark.parametrize("index", [{"index": 0}, {}])
def test_calls_that_come_whole_under_one_index_are_told_apart(index: Json) -> None:
    ours, theirs = (
        {k: v for k, v in e.items() if k != "index"} | index for e in (entry(), entry("bash", "{}", 0, "z"))
    )
    reader, got = play([chunk(made(ours)), chunk(made(theirs)), chunk({}, "stop")])
    assert parsed(got)[0]["choices"][0]["delta"]["tool_calls"] == [theirs]
    assert (exchange(reader).places, reader.result(0).call_ids) == ((0,), ("z",))


def test_what_else_a_message_carries_is_kept_by_round() -> None:
    details = [{"index": 0, "type": "reasoning.text", "text": text, "format": "f"} for text in ("think", "ing")]
    stream = [
        chunk({"role": "assistant", "content": "", "reasoning_content": "Hm", "refusal": None}),
        *(chunk({"reasoning_content": "m", "reasoning_details": [detail]}) for detail in details),
        chunk({"extra": {"a": "x", "n": 1}, "list": [1]}),
        chunk({"extra": {"a": "y", "n": 2}, "list": [2], "none": []}),
    ]
    reader, got = play([*stream, *ASKS[1:], *ENDS], SAYS)
    assert got[:5] == stream
    assert json.loads(exchange(reader).fields) == {
        "reasoning_content": "Hmmm",
        "reasoning_details": [{"index": 0, "type": "reasoning.text", "text": "thinking", "format": "f"}],
        "extra": {"a": "xy", "n": 2},
        "list": [1, 2],
    }


def test_r3_the_first_role_is_kept_with_our_call_in_it_and_no_other() -> None:
    stream = [chunk(made(entry(arguments=""), role="assistant", content=None))]
    stream.append(chunk(made(entry(None, REF, call_id=None), role="assistant")))
    _, got = play([*stream, *ENDS], SAYS)
    deltas = [said["choices"][0]["delta"] for said in parsed(got)]
    assert deltas == [{"role": "assistant", "content": None}, {"content": "found"}, {}]


def test_r3_a_call_with_text_in_its_piece_leaves_the_text() -> None:
    reader, got = play([chunk(made(entry(), content="see "), "tool_calls", **usage(1, 1)), DONE], SAYS)
    assert parsed(got)[0]["choices"][0] == {"index": 0, "delta": {"content": "see "}, "finish_reason": None}
    assert parsed(got)[0]["usage"] is None
    assert (reader.result(0).text, exchange(reader).text) == ("see found", 4)


def test_r3_with_several_choices_each_goes_on_by_itself() -> None:
    first = [
        chunk({"role": "assistant", "content": "A"}, at=0),
        chunk({"role": "assistant", "content": "B"}, at=1),
        chunk(made(entry(call_id="a")), "tool_calls", at=0),
        chunk(made(entry(call_id="b")), "tool_calls", at=2),
        chunk({}, "stop", at=1),
        chunk(None, **usage(10, 5)),
        DONE,
    ]
    reader = ChatReply(2)
    got = feed(reader, first)
    assert list(reader.pending) == [0, 2]
    assert got == [*first[:2], first[4]]
    (late,) = reader.feed(chunk({}, at=1, **usage(10, 5)))
    assert parsed([late])[0]["usage"] is None
    reader.resume(2)
    got += feed(reader, [*SAYS[:-1], chunk({"content": "stray"}, at=1), chunk(None, **usage(20, 1)), DONE])
    assert (list(reader.pending), DONE in got) == ([0], False)
    reader.resume(0)
    got += feed(reader, [*ASKS, ENDS[0], chunk(None, **usage(30, 2)), DONE])
    whole = accumulated(got)
    ends = [(c["index"], c["message"]["content"], c["finish_reason"]) for c in whole["choices"]]
    assert sorted(ends) == [(0, "A", "length"), (1, "B", "stop"), (2, "found", "stop")]
    assert whole["usage"] == usage(30, 8)["usage"]
    assert [reader.result(i).rounds[0].last for i in (0, 2)] == [False, True]
    assert recalled(reader) == [0, 2]


def test_r3_a_round_of_a_later_choice_ends_with_done() -> None:
    reader = ChatReply(2)
    got = feed(reader, [chunk({"role": "assistant"}, at=1), chunk(made(entry()), "stop", at=1), DONE])
    reader.resume(1)
    got += feed(reader, [chunk({"content": "hm"}), *ASKS[1:], DONE])
    assert list(reader.pending) == [1]
    reader.resume(1)
    got += feed(reader, [*ASKS[1:], DONE])
    ends = [(c["index"], c["finish_reason"]) for said in parsed(got) for c in said["choices"]]
    assert ends == [(1, None), (1, None), (1, "length")]
    assert got[-1] is DONE


def test_r3_a_stream_that_breaks_off_waits_for_nothing() -> None:
    reader, got = play(ASKS)
    assert (got, list(reader.pending), list(reader.over)) == ([ASKS[0]], [], [])
    broken = b'data: {"error":{"message":"overloaded"}}\n\n'
    reader, got = play([*ASKS, broken, DONE])
    assert (got, list(reader.pending)) == ([ASKS[0], broken, DONE], [])


def test_r3_a_stream_without_a_finish_reason_ends_with_done() -> None:
    _, got = play([*ASKS, DONE], SAYS)
    assert message_of(got)["message"]["content"] == "found"
    _, got = play([*MIXED, DONE])
    assert (message_of(got)["finish_reason"], got[-1]) == ("tool_calls", DONE)


def test_r3_an_end_that_is_said_twice_ends_once() -> None:
    again = chunk({"role": "assistant", "content": ""}, "stop", **usage(1, 1))
    reader, got = play([*ASKS, ENDS[0], again, DONE], SAYS)
    assert (len(reader.result(0).rounds), len(got)) == (1, 4)
    reader, got = play([*ASKS, ENDS[0], again, DONE], allowed=0)
    assert [said["choices"][0]["finish_reason"] for said in parsed(got)] == [None, "length", "length"]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="newer Pythons bound nesting by the stack")
def test_r3_what_is_nested_too_deep_to_join_passes() -> None:
    deep = b'"arguments": ' + b'{"a":' * 700 + b"0" + b"}" * 700
    pieces = [chunk(made(entry(name, "", 0, None))).replace(b'"arguments": ""', deep) for name in ("narr", "x")]
    assert feed(ChatReply(4), pieces) == pieces[1:]


def test_comments_pass_in_every_round() -> None:
    _, got = play([*ASKS, *ENDS, b": wait\n\n"], [b": on\n\n", *SAYS])
    assert [given for given in got if given[:1] == b":"] == [b": wait\n\n", b": on\n\n"]


def test_a_character_parted_between_events_is_one() -> None:
    halves = [b'data: {"choices":[{"index":0,"delta":{"content":"\\ud83d"}}]}\n\n']
    halves.append(halves[0].replace(b"\\ud83d", b"\\ude42!"))
    reader, got = play([*halves, *ASKS[1:], *ENDS], SAYS)
    assert got[:2] == halves
    assert (reader.result(0).text, exchange(reader).text) == ("🙂!found", 2)


def test_half_a_character_is_written_as_it_came() -> None:
    half = b'data: {"choices":[{"index":0,"delta":{"content":"\\ud83d"}}]}\n\n'
    _, got = play([*ASKS, *ENDS], [half, *SAYS])
    assert b'"\\ud83d"' in got[1]
