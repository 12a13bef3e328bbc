"""Recall exchanges put back: what the model was sent is what it is sent again."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from policies.dialects import DIALECTS
from policies.dialects.common import Request
from policies.model.conversation import Conversation, converse
from policies.model.edits import Insert, RecallRound
from policies.recall import answer
from policies.restore import DialectRequest, ReplyInProgress, RestoredBody, RestoredMessages, reply_digest, restore
from policies.tools import RECALL
from proxy.lab.provider import PREFIX, find_violation
from tests import examples
from tests.kit.histories import Json, body_of, requests, sessions
from tests.kit.talk import call, calls, conversation_of, gives, letters, runs, says, user

openai_chat = DIALECTS["openai_chat"]

LONG = "\n".join(f"{i} lines of output" for i in range(50))
START = [user("go"), *runs("cat a", LONG), *runs("cat b", "short")]
REF = conversation_of(*START).ref(2)
AFTER = conversation_of(*START).end_anchor(2)


def reading(body: bytes) -> DialectRequest:
    request = openai_chat.split(body)
    assert request is not None
    messages = [openai_chat.read(request.raw(i), letters) for i in range(len(request.spans))]
    return DialectRequest(DIALECTS["openai_chat"], request, converse(messages), letters)


def raws(body: bytes) -> list[bytes]:
    """The messages of a body, each as it is written."""
    request = openai_chat.split(body)
    assert isinstance(request, Request)
    return [request.raw(i) for i in range(len(request.spans))]


def wants(ref: str = REF, part: str = "", call_id: str = "r0", **more: Any) -> str:
    """A call of the recall tool, as a model makes it."""
    arguments = json.dumps({"ref": ref, "part": part} if part else {"ref": ref})
    return json.dumps({"id": call_id, "type": "function", **more, "function": {"name": RECALL, "arguments": arguments}})


def inserted(reply: Json, *rounds: RecallRound, after: str = AFTER) -> Mapping[str, tuple[Insert, ...]]:
    """What is remembered of the rounds behind this reply."""
    content = reply.get("content") or ""
    text = content if isinstance(content, str) else "".join(part["text"] for part in content)
    ids = [call["id"] for call in reply.get("tool_calls") or ()]
    return {after: (Insert(after, reply_digest(text, ids), rounds, "openai_chat"),)}


def put_back(reply: Json, *rounds: RecallRound, then: Sequence[Json] = (user("on"),)) -> list[Json]:
    """What stands for the reply once the client has returned it."""
    body = body_of([*START, reply, *then])
    whole = restore(reading(body), inserted(reply, *rounds), {})
    found: Json = json.loads(whole.body)
    assert not whole.lost
    assert find_violation(found, PREFIX) is None
    assert raws(whole.body)[: len(START)] == raws(body)[: len(START)]
    assert raws(whole.body)[len(found["messages"]) - len(then) :] == raws(body)[len(START) + 1 :]
    assert {**found, "messages": 0} == {**json.loads(body), "messages": 0}
    between: list[Json] = found["messages"][len(START) : len(found["messages"]) - len(then)]
    return between


def asks(text: str | None, *calls: str, **fields: Any) -> Json:
    return {"role": "assistant", "content": text, **fields, "tool_calls": [json.loads(call) for call in calls]}


def test_r4_a_call_without_text_stands_before_the_reply() -> None:
    reply = says("It is done.")
    assert put_back(reply, RecallRound(0, (wants(),))) == [asks(None, wants()), gives(LONG, "r0"), reply]


def test_r4_text_that_was_said_before_the_call_goes_before_it() -> None:
    reply = says("Let me look. It is done.")
    assert put_back(reply, RecallRound(13, (wants(),))) == [
        asks("Let me look. ", wants()),
        gives(LONG, "r0"),
        says("It is done."),
    ]


def test_r4_all_of_the_text_may_have_been_said_before() -> None:
    assert put_back(says("Let me look."), RecallRound(12, (wants(),)))[-1] == says("")
    with_calls = {**calls("ls"), "content": "Let me look."}
    assert put_back(with_calls, RecallRound(12, (wants(),)), then=[gives("a")])[-1] == {**with_calls, "content": None}


def test_r4_several_rounds_each_with_its_answers() -> None:
    first, second = wants(part="lines 1-2", call_id="r0"), wants(part="find 17", call_id="r1")
    nothing = wants("999999", call_id="r2")
    rounds = (
        RecallRound(4, (first,)),
        RecallRound(0, (second, nothing)),
        RecallRound(4, (wants(call_id="r3"),), last=True),
    )
    refused = (
        "[narrows: nothing in this conversation has the ref 999999; do not retry, another command or range may show it]"
    )
    assert put_back(says("one two and"), *rounds) == [
        asks("one ", first),
        gives("0 lines of output\n1 lines of output\n", "r0"),
        asks(None, second, nothing),
        gives("18: 17 lines of output", "r1"),
        gives(refused, "r2"),
        asks("two ", wants(call_id="r3")),
        gives(f"{LONG}\n[narrows: this was the last recall in this reply]", "r3"),
        says("and"),
    ]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_r4_a_mixed_turn_has_our_call_in_its_place_and_its_answer_behind(place: int) -> None:
    reply = {**calls("make", "ls"), "content": "both"}
    results = [gives("made", "call_0"), gives("a", "call_1")]
    message, ours = put_back(reply, RecallRound(4, (wants(),), (place,)), then=results)
    made = [*reply["tool_calls"]]
    made.insert(place, json.loads(wants()))
    assert message == {**reply, "tool_calls": made}
    assert ours == gives(LONG, "r0")


def test_r4_several_calls_of_ours_among_the_clients() -> None:
    reply = calls("make", "ls")
    results = [gives("made", "call_0"), gives("a", "call_1")]
    first, second = wants(call_id="r0"), wants(part="lines 1", call_id="r1")
    found = put_back(reply, RecallRound(0, (first, second), (0, 2)), then=results)
    assert [call["id"] for call in found[0]["tool_calls"]] == ["r0", "call_0", "r1", "call_1"]
    assert found[1:] == [gives(LONG, "r0"), gives("0 lines of output\n", "r1")]


def test_r4_a_round_of_its_own_and_then_a_mixed_one() -> None:
    reply = {**calls("make"), "content": "I look. I make."}
    rounds = RecallRound(8, (wants(call_id="r0"),)), RecallRound(7, (wants(call_id="r1"),), (1,))
    found = put_back(reply, *rounds, then=[gives("made")])
    assert found == [
        asks("I look. ", wants(call_id="r0")),
        gives(LONG, "r0"),
        {**reply, "content": "I make.", "tool_calls": [*reply["tool_calls"], json.loads(wants(call_id="r1"))]},
        gives(LONG, "r1"),
    ]


def test_r4_what_else_the_messages_carried_is_kept() -> None:
    reply = {"name": "bot", "role": "assistant", "content": "one two", "refusal": None, "custom": {"a": [1.50]}}
    signed = RecallRound(4, (wants(index_of="x"),), fields='{"reasoning_content":"hm","signature":"abc"}')
    first, _, rest = put_back(reply, signed)
    assert first == asks("one ", wants(index_of="x"), reasoning_content="hm", signature="abc")
    assert (rest, [*rest]) == ({**reply, "content": "two"}, [*reply])


@pytest.mark.parametrize(
    "reply", [calls("ls"), {**calls("ls"), "content": ""}, {k: v for k, v in calls("ls").items() if k != "content"}]
)
def test_r4_a_reply_without_text_comes_back_as_it_is(reply: Json) -> None:
    *_, rest = put_back(reply, RecallRound(0, (wants(),)), then=[gives("a")])
    assert rest == reply


def test_r4_a_reply_of_one_text_part_stays_one() -> None:
    reply = {"role": "assistant", "content": [{"type": "text", "text": "one two", "extra": 1}]}
    *_, rest = put_back(reply, RecallRound(4, (wants(),)))
    assert rest == {"role": "assistant", "content": [{"type": "text", "text": "two", "extra": 1}]}


def test_r4_clients_may_strip_the_end_of_a_text() -> None:
    said, returned = "one two \n", "one two"
    inserts = inserted(says(said), RecallRound(4, (wants(),)))
    whole = restore(reading(body_of([*START, says(returned), user("on")])), inserts, {})
    assert (whole.lost, json.loads(whole.body)["messages"][-2]) == (False, says("two"))


PARTS = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]


@pytest.mark.parametrize(
    "returned",
    [says("one  two"), says("two"), says(""), {**calls("ls"), "content": "one two"}],
    ids=["altered", "cut", "emptied", "calls-added"],
)
def test_r4_where_the_reply_came_back_as_another_it_is_left_out_and_said(returned: Json) -> None:
    inserts = inserted(says("one two"), RecallRound(4, (wants(),)))
    results = [gives("a")] if "tool_calls" in returned else [user("on")]
    body = body_of([*START, returned, *results])
    assert restore(reading(body), inserts, {}) == RestoredBody(body, True)
    later = body_of([*START, returned, *results, says("and now?"), user("on")])
    assert restore(reading(later), inserts, {}) == RestoredBody(later, False)


def test_r4_a_reply_that_cannot_be_taken_apart_is_left_out_and_said() -> None:
    reply = {"role": "assistant", "content": PARTS}
    body = body_of([*START, reply, user("on")])
    assert restore(reading(body), inserted(reply, RecallRound(4, (wants(),))), {}) == RestoredBody(body, True)


def test_s5_an_exchange_of_another_history_is_not_applied() -> None:
    inserts = inserted(says("one two"), RecallRound(4, (wants(),)))
    other = [user("go"), *runs("cat a", LONG + "."), *runs("cat b", "short"), says("one two"), user("on")]
    for messages in (other, START, START[:3], [*START, user("wait"), says("one two"), user("on")]):
        body = body_of(messages)
        assert restore(reading(body), inserts, {}) == RestoredBody(body, False)


def test_s5_of_two_replies_to_the_same_history_each_has_its_own_exchange() -> None:
    first, second = says("one two"), says("three")
    found = (
        inserted(first, RecallRound(4, (wants(),)))[AFTER]
        + inserted(second, RecallRound(0, (wants(part="lines 1"),)))[AFTER]
    )
    for reply, answered in ((first, LONG), (second, "0 lines of output\n")):
        whole = restore(reading(body_of([*START, reply, user("on")])), {AFTER: found}, {})
        assert json.loads(whole.body)["messages"][-3] == gives(answered, "r0")


def test_what_was_made_once_is_not_made_again() -> None:
    known: dict[tuple[object, ...], RestoredMessages] = {}
    inserts = inserted(says("one two"), RecallRound(4, (wants(),)))
    body = body_of([*START, says("one two"), user("on")])
    first = restore(reading(body), inserts, known)
    assert len(known) == 1
    assert restore(reading(body), inserts, known) == first
    assert len(known) == 1


@pytest.mark.parametrize("remembered", [False, True])
def test_what_was_put_back_is_read_once_however_many_exchanges_follow(remembered: bool) -> None:
    inserts: dict[str, tuple[Insert, ...]] = {}
    messages = [*START]
    for i in range(12):
        reply = says(f"reply {i}")
        after = reading(body_of(messages)).conversation.end_anchor(-1)
        inserts |= inserted(reply, RecallRound(0, (wants(call_id=f"r{i}"),)), after=after)
        messages += [reply, user(f"on {i}")]
    counted: list[str] = []

    def count(text: str, /) -> int:
        counted.append(text)
        return letters(text)

    known: dict[tuple[object, ...], RestoredMessages] = {}
    sent = replace(reading(body_of(messages)), count=count)
    if remembered:
        restore(sent, inserts, known)
        counted.clear()
    found = restore(sent, inserts, known, ReplyInProgress("", (RecallRound(0, (wants(call_id="r"),)),)))
    assert [answer.text for answer in found.answers] == [LONG]
    assert counted.count(LONG) == (0 if remembered else 12)


def test_r2_what_was_recalled_is_in_reach_of_the_next_recall() -> None:
    """The answer to a call that was put back is a block of its own, and may have been hidden meanwhile."""
    reply, then = says("one two"), user("on")
    first = restore(
        reading(body_of([*START, reply, then])), inserted(reply, RecallRound(4, (wants(part="lines 1-9"),))), {}
    )
    restored = reading(first.body).conversation
    at = next(i for i, block in enumerate(restored.blocks) if block.tool == RECALL and block.kind == "result")
    again = ReplyInProgress("", (RecallRound(0, (wants(restored.ref(at)),)),))
    flying = restore(
        reading(body_of([*START, reply, then])), inserted(reply, RecallRound(4, (wants(part="lines 1-9"),))), {}, again
    )
    assert [answer.text for answer in flying.answers] == [restored.blocks[at].text]


@dataclass
class Session:
    """A client and what stands between it and the model, request by request."""

    inserts: dict[str, tuple[Insert, ...]] = field(default_factory=dict)
    sent: list[bytes] = field(default_factory=list)
    """The messages that the model saw last."""

    def asks(self, messages: list[Json], flight: ReplyInProgress | None = None) -> RestoredBody:
        """A request, or a round of the reply to it: it extends what was sent before, byte for byte."""
        whole = restore(reading(body_of(messages)), self.inserts, {}, flight)
        assert find_violation(json.loads(whole.body), PREFIX) is None
        assert not whole.lost
        now = raws(whole.body)
        assert now[: len(self.sent)] == self.sent
        self.sent = now
        return whole

    def keeps(self, messages: list[Json], reply: Json, rounds: Sequence[RecallRound]) -> None:
        after = self.history(messages).end_anchor(-1)
        ids = [call["id"] for call in reply.get("tool_calls") or ()]
        self.inserts[after] = (Insert(after, reply_digest(reply["content"] or "", ids), tuple(rounds), "openai_chat"),)

    def history(self, messages: list[Json]) -> Conversation:
        return reading(body_of(messages)).conversation


@settings(
    deadline=None,
    max_examples=examples(60),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(sessions(most=6), st.data())
def test_r4_whatever_is_recalled_the_prompt_extends_byte_for_byte(messages: list[Json], data: st.DataObject) -> None:
    session = Session()
    for request in requests(messages):
        session.asks(request)
        reply = messages[len(request)]
        if reply is messages[-1] or not data.draw(st.booleans()):
            continue
        rounds: list[RecallRound] = []
        for exchange in data.draw(exchanges(session.history(request), str(reply["content"] or ""))):
            rounds.append(exchange)
            said = str(reply["content"] or "")[: sum(made.text for made in rounds)]
            check_answers(session.asks(request, ReplyInProgress(said, tuple(rounds))), exchange)
        if reply.get("tool_calls") and data.draw(st.booleans()):
            place = data.draw(st.integers(0, len(reply["tool_calls"])))
            rounds.append(RecallRound(0, (wants(call_id="mixed"),), (place,)))
        session.keeps(request, reply, rounds)


@st.composite
def exchanges(draw: st.DrawFn, history: Conversation, text: str) -> list[RecallRound]:
    """Rounds before a reply with this text, asking for what stands in the history and for what does not."""
    stripped = len(text.rstrip())  # the end of a text is the reply's own
    cuts = sorted(draw(st.lists(st.integers(0, max(0, stripped - 1)), max_size=3)))
    refs = [history.ref(i) for i, block in enumerate(history.blocks) if block.kind != "system"]
    ids = iter(range(100))
    made = []
    for before, cut in zip([0, *cuts], cuts, strict=False):
        asked = draw(st.lists(st.sampled_from([*refs, "999999"]), min_size=1, max_size=2))
        calls = tuple(wants(ref, draw(st.sampled_from(["", "lines 1"])), f"r{next(ids)}") for ref in asked)
        fields = draw(st.sampled_from(["", '{"reasoning_content":"hm \\u00e9"}']))
        made.append(RecallRound(cut - before, calls, fields=fields, last=draw(st.booleans())))
    return made


def check_answers(whole: RestoredBody, exchange: RecallRound) -> None:
    """The answers of the last round are those that its messages bring."""
    shown = [json.loads(raw)["content"] for raw in raws(whole.body)[-len(exchange.calls) :]]
    assert [answer.text for answer in whole.answers] == shown
    assert [answer.succeeded for answer in whole.answers].count(False) <= len(exchange.calls)


def test_r4_in_flight_the_answers_are_those_of_the_history_with_all_exchanges_back() -> None:
    conversation = conversation_of(*START)
    flight = ReplyInProgress(
        "one ", (RecallRound(4, (wants(),)), RecallRound(0, (wants("999999", call_id="r1"),), last=True))
    )
    whole = restore(reading(body_of(START)), {}, {}, flight)
    refused = answer(conversation, '{"ref": "999999"}', True)
    assert whole.answers == (refused,)
    assert json.loads(whole.body)["messages"] == [
        *START,
        asks("one ", wants()),
        gives(LONG, "r0"),
        asks(None, wants("999999", call_id="r1")),
        gives(refused.text, "r1"),
    ]


@pytest.mark.parametrize(
    ("fields", "spent", "expected"),
    [
        ({}, 10, {}),
        ({"n": 3}, 10, {"n": 1}),
        ({"n": None}, 10, {"n": 1}),
        ({"max_tokens": 100}, 10, {"max_tokens": 90}),
        ({"max_completion_tokens": 100}, 10, {"max_completion_tokens": 90}),
        (
            {"max_tokens": 100, "max_completion_tokens": 50, "n": 2},
            60,
            {"max_tokens": 40, "max_completion_tokens": 1, "n": 1},
        ),
        ({"max_tokens": 5}, 5, {"max_tokens": 1}),
        ({"max_tokens": 5}, 10**9, {"max_tokens": 1}),
        ({"max_tokens": None}, 10, {"max_tokens": None}),
        ({"max_tokens": "many"}, 10, {"max_tokens": "many"}),
    ],
)
def test_r3_the_next_round_is_for_one_choice_and_for_what_is_left(fields: Json, spent: int, expected: Json) -> None:
    body = body_of(START, temperature=0.70, **fields, stream=True)
    after = openai_chat.recall.next_round(body, spent)
    assert json.loads(after) == json.loads(body_of(START, temperature=0.70, **expected, stream=True))
    # all other bytes are the client's
    written = body
    for name, value in expected.items():
        written = written.replace(
            f'"{name}": {json.dumps(fields[name])}'.encode(), f'"{name}": {json.dumps(value)}'.encode()
        )
    assert after == written


def test_r1_what_a_round_was_given_can_be_fetched_in_the_next_one_of_the_same_reply() -> None:
    text = "\n".join(f"line {n}" for n in range(200))
    history = [user("go"), *runs("./r", text), *runs("true", "ok")]
    client = conversation_of(*history)
    part = answer(client, json.dumps({"ref": client.ref(2), "part": "lines 2-90"})).text
    said = conversation_of(*history, gives(part))
    ref = said.ref(len(said.blocks) - 1)
    made = [json.dumps(call(f"r{i}", RECALL, {"ref": name})) for i, name in enumerate((client.ref(2), ref))]
    made[0] = json.dumps(call("r0", RECALL, {"ref": client.ref(2), "part": "lines 2-90"}))
    whole = restore(
        reading(body_of(history)), {}, {}, ReplyInProgress("", (RecallRound(0, (made[0],)), RecallRound(0, (made[1],))))
    )
    assert [found.text for found in whole.answers] == [part]
