"""The whole of a reply with recall calls in it: its bill, replies that are not streamed, and any script of rounds."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.dialects.openai_chat.reply import ChatReply
from policies.money.prices import Usage
from tests import examples
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
    event,
    exchange,
    feed,
    made,
    message_of,
    parsed,
    play,
    recalled,
    usage,
)


def test_r3_completion_tokens_are_summed_and_the_prompt_is_the_last_rounds() -> None:
    first = [*ASKS, ENDS[0], chunk(None, **usage(100, 10, reasoning_tokens=4)), DONE]
    last = [*SAYS[:-1], chunk(None, name="two", **usage(150, 7, reasoning_tokens=1, audio_tokens=0)), DONE]
    reader = ChatReply(4)
    assert feed(reader, first) == [ASKS[0]]
    assert reader.usage == Usage(100, 0, 0, 10)
    reader.resume(0)
    assert reader.usage is None
    got = feed(reader, last)
    assert reader.usage == Usage(150, 0, 0, 7)
    assert parsed(got)[-1]["usage"] == usage(150, 17, reasoning_tokens=5, audio_tokens=0)["usage"]
    assert parsed(got)[-1]["id"] == "one"


def test_r3_usage_that_is_null_stays_and_what_grows_is_added_to() -> None:
    first = [chunk({"role": "assistant"}, **usage(9, 1)), chunk(made(entry()), "tool_calls", **usage(9, 5)), DONE]
    last = [
        chunk({"content": "a"}, name="two", usage=None),
        chunk({"content": "b"}, name="two", **usage(20, 1)),
        chunk({}, "stop", name="two", **usage(20, 2)),
    ]
    _, got = play(first, last)
    shown = [said["usage"] and said["usage"]["completion_tokens"] for said in parsed(got)]
    assert shown == [1, None, 6, 7]


def test_r3_no_usage_is_invented_and_a_late_one_is_not_lost() -> None:
    first = [*ASKS, ENDS[0], chunk({"role": "assistant", "content": ""}, **usage(9, 5)), DONE]
    _, got = play(first, SAYS)
    assert all("usage" not in said for said in parsed(got))
    _, got = play(first, [*SAYS[:-1], chunk({"role": "assistant", "content": ""}, name="two", **usage(20, 2)), DONE])
    assert parsed(got)[-1]["usage"]["completion_tokens"] == 7


def body(message: Json, finish: str | None = "stop", name: str = "one", **more: Any) -> bytes:
    choices = [{"index": 0, "message": {"role": "assistant"} | message, "finish_reason": finish}]
    return json.dumps({"id": name, "created": len(name), "choices": choices, **more}, indent=1).encode()


def whole(name: str = NAME, arguments: str = REF, call_id: str = "c0") -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_r3_a_plain_reply_is_joined_over_its_rounds() -> None:
    first = body({"content": "Let me look. ", **made(whole())}, "tool_calls", service_tier="x", **usage(10, 5))
    reader = ChatReply(4)
    assert (reader.feed(first), list(reader.pending), list(reader.over)) == ([], [0], [])
    assert reader.usage == Usage(10, 0, 0, 5)
    reader.resume(0)
    (got,) = reader.feed(body({"content": "found", **made(whole("bash"))}, "tool_calls", "two", **usage(20, 2)))
    message = {"role": "assistant", "content": "Let me look. found", **made(whole("bash"))}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    assert json.loads(got) == {"id": "one", "created": 3, "choices": [choice], "service_tier": "x", **usage(20, 7)}
    assert (reader.result(0).text, reader.result(0).call_ids) == ("Let me look. found", ("c0",))
    assert exchange(reader).text == len("Let me look. ")


@pytest.mark.parametrize(("first", "last", "joined"), [(None, None, None), (None, "a", "a"), ("a", None, "a")])
def test_r3_the_content_of_a_plain_reply_is_null_only_where_all_is(first: Any, last: Any, joined: Any) -> None:
    _, got = play([body({"content": first, **made(whole())}, **usage(1, 1))], [body({"content": last})])
    assert json.loads(got[0])["choices"][0]["message"] == {"role": "assistant", "content": joined}
    assert "usage" not in json.loads(got[0])


def test_r4_a_plain_mixed_turn() -> None:
    _, got = play([body({"content": None, **made(whole(call_id="a"), whole("bash"))}, "tool_calls")])
    message = json.loads(got[0])["choices"][0]["message"]
    assert message == {"role": "assistant", "content": None, **made(whole("bash"))}
    same = body(made(whole("narrows"), whole("bash")))
    assert ChatReply(4).feed(same)[0] is same


def test_r6_a_plain_reply_beyond_the_last_round() -> None:
    asks = body({"content": None, **made(whole())}, "tool_calls")
    reader, got = play([asks], [asks], allowed=1)
    choice = json.loads(got[0])["choices"][0]
    assert choice == {"index": 0, "message": {"role": "assistant", "content": None}, "finish_reason": "length"}
    assert [one.last for one in reader.result(0).rounds] == [True]


def test_r3_the_other_choices_of_a_plain_reply_are_left() -> None:
    given = json.loads(body(made(whole()), "stop"))
    given["choices"] += [{"index": 1, "message": {"content": "B", "x": [1]}, "finish_reason": "stop", "y": 1}]
    _, got = play([json.dumps(given).encode()], [body({"content": "A"})])
    first, second = json.loads(got[0])["choices"]
    assert (first["index"], first["message"]["content"]) == (0, "A")
    assert second == given["choices"][1]


WORDS = st.text('ab 🙂漢\n"\\', min_size=1, max_size=6)
PIECES = st.lists(st.text('{}ab"\\', max_size=4), min_size=1, max_size=3)
OTHERS = st.sampled_from(["bash", "n", "narrows_recal", "narrows_recall_x", "narrows"])


@st.composite
def a_call(draw: st.DrawFn, index: int, ours: bool, call_id: str) -> list[Json]:
    """The deltas of one call, its name and arguments in pieces."""
    name = NAME if ours else draw(OTHERS)
    cut = draw(st.integers(0, len(name)).filter(lambda at: ours or name[:at] != NAME))
    names = [name] if draw(st.booleans()) else [name[:cut], name[cut:]]
    head, *rest = (entry(piece, "", index, call_id if i == 0 else None) for i, piece in enumerate(names))
    arguments = ['{"ref":', '"1"}'] if ours else draw(PIECES)
    return [made(part) for part in (head, *rest, *(entry(None, piece, index, None) for piece in arguments))]


@st.composite
def a_round(draw: st.DrawFn, number: int, sides: Sequence[bool]) -> list[bytes]:
    """The events of one round: some text, and a call for each side (true: ours)."""
    deltas: list[Json] = [{"content": word} for word in draw(st.lists(WORDS, max_size=3))]
    for index, ours in enumerate(sides):
        deltas += draw(a_call(index, ours, f"r{number}c{index}"))
    if draw(st.booleans()):
        deltas = [{"role": "assistant", "content": ""}, *deltas]
    elif deltas:
        deltas[0] = {"role": "assistant", **deltas[0]}
    finish = draw(st.sampled_from(["stop", "tool_calls"])) if any(sides) else "tool_calls" if sides else "stop"
    name = f"round-{number}"
    if draw(st.booleans()) and deltas:
        events = [chunk(delta, name=name) for delta in deltas[:-1]] + [chunk(deltas[-1], finish, name=name)]
    else:
        events = [*(chunk(delta, name=name) for delta in deltas), chunk({}, finish, name=name)]
    return [*events, chunk(None, name=name, **usage(100 + number, number + 1)), DONE]


@st.composite
def scripts(draw: st.DrawFn) -> list[list[bytes]]:
    """Rounds in which the model recalls, and a last one with any calls but ours alone."""
    before = [draw(st.lists(st.just(True), min_size=1, max_size=3)) for _ in range(draw(st.integers(0, 3)))]
    last = draw(st.lists(st.booleans(), max_size=4).filter(lambda sides: not sides or not all(sides)))
    return [draw(a_round(number, sides)) for number, sides in enumerate([*before, last])]


@settings(deadline=None, max_examples=examples(200))
@given(scripts())
def test_r3_whatever_is_recalled_the_client_gets_one_sound_reply(rounds: list[list[bytes]]) -> None:
    reader, got = play(*rounds)
    sent = [message_of(events)["message"] for events in rounds]
    whole = accumulated(got)
    choice, calls = whole["choices"][0], whole["choices"][0]["message"].get("tool_calls") or []
    theirs = [call for call in sent[-1].get("tool_calls") or [] if call["function"]["name"] != NAME]
    assert (choice["message"].get("content") or "") == "".join(message.get("content") or "" for message in sent)
    assert list(map(essence, calls)) == list(map(essence, theirs))
    assert [call["index"] for call in calls] == list(range(len(theirs)))
    assert choice["finish_reason"] == message_of(rounds[-1])["finish_reason"]
    assert {said["id"] for said in parsed(got)} == {"round-0"}
    assert sum("role" in c["delta"] for said in parsed(got) for c in said["choices"]) <= 1
    assert whole["usage"]["completion_tokens"] == sum(range(1, len(rounds) + 1))
    assert whole["usage"]["prompt_tokens"] == 99 + len(rounds)
    assert (got[-1], got.count(DONE)) == (DONE, 1)
    assert NAME not in [call["function"]["name"] for call in calls]
    assert (list(reader.pending), list(reader.over)) == ([], [0])
    kept(reader, sent)


def essence(call: Json) -> tuple[str, str, str]:
    return call["id"], call["function"]["name"], call["function"]["arguments"]


def kept(reader: ChatReply, sent: list[Json]) -> None:
    """What is remembered is what the model asked, round by round."""
    said = reader.result(0)
    asked = [message for message in sent if any(c["function"]["name"] == NAME for c in message.get("tool_calls") or [])]
    assert said.text == "".join(message.get("content") or "" for message in sent)
    assert [len(message.get("content") or "") for message in asked] == [one.text for one in said.rounds]
    for message, one in zip(asked, said.rounds, strict=True):
        ours = [at for at, call in enumerate(message["tool_calls"]) if call["function"]["name"] == NAME]
        assert [json.loads(call)["id"] for call in one.calls] == [message["tool_calls"][at]["id"] for at in ours]
        assert one.places in ((), tuple(ours))
        assert (one.places == ()) == (len(ours) == len(message["tool_calls"]))


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(st.sampled_from(["bash", "grep", "narrow_down", "recall"]), max_size=3), st.data())
def test_r3_a_stream_without_our_calls_is_untouched(names: list[str], data: st.DataObject) -> None:
    deltas: list[Json] = [{"content": word} for word in data.draw(st.lists(WORDS, max_size=3))]
    for index, name in enumerate(names):
        deltas += [made(entry(name, "", index)), *(made(entry(None, p, index, None)) for p in data.draw(PIECES))]
    events = [*(chunk(delta, usage=None) for delta in deltas), chunk({}, "stop", **usage(1, 1)), DONE]
    reader = ChatReply(4)
    assert all(reader.feed(given)[0] is given for given in events)
    assert recalled(reader) == []


@settings(deadline=None, max_examples=examples(200))
@given(
    st.recursive(
        st.none() | st.integers(-2, 3) | st.sampled_from(["", NAME, "stop"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "index",
                        "delta",
                        "message",
                        "tool_calls",
                        "function",
                        "name",
                        "arguments",
                        "content",
                        "id",
                        "finish_reason",
                        "type",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    ),
    st.booleans(),
)
def test_whatever_comes_nothing_is_raised(odd: Any, plain: bool) -> None:
    reader = ChatReply(4)
    for said in ({"choices": odd}, {"choices": [odd]}, {"choices": [{"delta": odd, "message": odd}]}, {"usage": odd}):
        reader.feed(json.dumps(said).encode() if plain else event(said))
    reader.feed(DONE)
    for index in reader.pending:
        reader.resume(index)
        reader.feed(json.dumps({"choices": [odd]}).encode() if plain else event({"choices": [odd]}))
    assert all(reader.result(index).rounds for index in recalled(reader))
