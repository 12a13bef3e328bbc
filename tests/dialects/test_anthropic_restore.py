"""Recall exchanges of Anthropic Messages put back: what the model was sent is what it is sent again."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from policies.dialects import DIALECTS
from policies.model.edits import Insert, RecallRound
from policies.model.rawjson import UnreadableError
from policies.recall import RecallAnswer
from policies.restore import DialectRequest, ReplyInProgress, RestoredBody, digest_of, reply_digest, restore
from proxy.lab.provider import find_violation
from tests import examples
from tests.kit.messages import (
    MARK,
    Json,
    asks,
    body_of,
    play,
    raws,
    result,
    says,
    split,
    stream,
    talk_of,
    text,
    thinks,
    user,
    uses,
)
from tests.kit.talk import letters

NAME = "anthropic_messages"
dialect = DIALECTS[NAME]

LONG = "\n".join(f"{i} lines of output" for i in range(50))
START = [user("go"), says(uses()), user(result(LONG))]


def reading(body: bytes) -> DialectRequest:
    return DialectRequest(DIALECTS["anthropic_messages"], split(body), talk_of(body), letters)


REF = talk_of(body_of(START)).ref(2)
AFTER = talk_of(body_of(START)).end_anchor(1)


def ours(call_id: str = "r0", **more: Any) -> Json:
    return asks(call_id, REF, **more)


def restored(reply: Json, rounds: Sequence[RecallRound], *then: Json, digest: str = "") -> RestoredBody:
    message = dialect.read(json.dumps(reply).encode(), letters)
    insert = Insert(AFTER, digest or digest_of([message]), tuple(rounds), NAME)
    return restore(reading(body_of([*START, reply, *then])), {AFTER: (insert,)}, {})


def put_back(reply: Json, rounds: Sequence[RecallRound], *then: Json) -> list[Json]:
    """What stands for the reply, and what the client says then."""
    whole = restored(reply, rounds, *(then or (user("on"),)))
    assert not whole.lost
    assert raws(whole.body)[: len(START)] == raws(body_of(START))
    found: list[Json] = json.loads(whole.body)["messages"][len(START) :]
    return found


def rounds_of(*rounds: Sequence[Json]) -> tuple[tuple[RecallRound, ...], Json]:
    """What is remembered of rounds in which the model said these blocks, and the reply that the client has."""
    streams = [stream(*blocks, reason="tool_use") for blocks in rounds]
    reader, _ = play(*streams)
    kept = [block for blocks in rounds for block in blocks if block.get("name") != "narrows_recall"]
    return reader.result(0).rounds, says(*kept)


FIRST = (thinks("hm"), text("Let me look. "), ours())
SECOND = (thinks("more"), ours("r1"), ours("r2"))
LAST = (thinks("so"), text("It is done."))


def sent(*rounds: Sequence[Json], last: bool = False) -> list[Json]:
    """The messages of rounds, as the model saw them."""
    found = []
    for blocks in rounds:
        calls = [block for block in blocks if block.get("name") == "narrows_recall"]
        found += [says(*blocks), user(*(result(LONG, call["id"]) for call in calls))]
    return found


def test_v6_every_round_comes_back_as_it_was_with_its_signed_thinking() -> None:
    rounds, reply = rounds_of(FIRST, SECOND, LAST)
    assert put_back(reply, rounds) == [*sent(FIRST, SECOND), says(*LAST), user("on")]


def test_v6_a_client_may_strip_thinking_the_model_gets_its_own_again() -> None:
    rounds, reply = rounds_of(FIRST, SECOND, LAST)
    stripped = says(*(block for block in reply["content"] if block["type"] != "thinking"))
    assert put_back(stripped, rounds)[:-2] == sent(FIRST, SECOND)
    assert put_back(stripped, rounds)[-2] == says(text("It is done."))


def test_v6_a_client_may_write_the_text_of_a_thought_otherwise_what_is_signed_is_there_once() -> None:
    sealed = {"type": "redacted_thinking", "data": "abc=="}
    rounds, reply = rounds_of((thinks("hm"), sealed, text("Let me look. "), ours()), LAST)
    first, second, *rest = reply["content"]
    other = says({**first, "thinking": ""}, {**second, "index": 1}, *rest)
    assert put_back(other, rounds)[2:] == [says(*LAST), user("on")]


def test_r4_a_client_may_merge_the_texts() -> None:
    rounds, _ = rounds_of(FIRST, SECOND, LAST)
    merged = text("Let me look. It is done.", extra=1.50)
    assert put_back(says(merged), rounds)[4] == says(text("It is done.", extra=1.50))
    assert put_back(says(merged["text"]), rounds)[4] == says("It is done.")


def test_r4_a_reply_that_ends_with_its_rounds_is_no_message() -> None:
    rounds, reply = rounds_of(FIRST, ())
    assert put_back(reply, rounds) == [*sent(FIRST), user("on")]
    assert put_back(says("Let me look. "), rounds) == [*sent(FIRST), user("on")]
    silent, _ = rounds_of((ours(),), ())
    for nothing in (says(), says(""), says(text(""))):
        assert put_back({"role": "assistant", "content": [], **nothing}, silent) == [*sent((ours(),)), user("on")]
    stripped = restored(says("Let me look."), rounds, user("on"), digest=reply_digest("Let me look. ", ()))
    assert json.loads(stripped.body)["messages"][3] == says(thinks("hm"), text("Let me look."), ours())


def test_law_1_what_is_left_is_what_the_client_wrote() -> None:
    rounds, reply = rounds_of(FIRST, LAST)
    reply["content"] = [dict(reversed(block.items())) | {"none": None} for block in reply["content"]]
    before = json.dumps(reply).encode()
    after = raws(restored(reply, rounds, user("on")).body)[5]
    dropped = b", ".join(json.dumps(block).encode() for block in reply["content"][:2])
    assert after == before.replace(dropped + b", ", b"")


@pytest.mark.parametrize("place", [0, 1, 2])
def test_r4_a_mixed_turn_has_our_call_in_its_place_and_its_answer_first(place: int) -> None:
    blocks = [uses("a"), uses("b")]
    blocks.insert(place, ours())
    rounds, reply = rounds_of(FIRST, (thinks("so"), *blocks))
    results = user(result("made", "a"), result("done", "b"), text("and now?"), extra := {"type": "odd", "n": 1})
    found = put_back(reply, rounds, results, says("ok"), user("on"))
    assert found == [
        *sent(FIRST),
        says(thinks("so"), *blocks),
        user(result(LONG, "r0"), *results["content"][:3], extra),
        says("ok"),
        user("on"),
    ]


def test_r4_several_calls_of_ours_among_the_clients() -> None:
    mixed = (ours("r0"), uses("a"), ours("r1"), ours("r2"))
    rounds, reply = rounds_of(mixed)
    message, answers = put_back(reply, rounds, user(result("made", "a")))
    assert message == says(*mixed)
    assert [block["tool_use_id"] for block in answers["content"]] == ["r0", "r1", "r2", "a"]
    alone = put_back(reply, rounds, says("no results"), user("on"))
    assert [block["tool_use_id"] for block in alone[1]["content"]] == ["r0", "r1", "r2"]


def test_r4_after_a_mixed_turn_the_next_one_is_asked_with_all_that_was_put_back() -> None:
    rounds, reply = rounds_of((uses("a"), ours()))
    body = body_of([*START, reply, user(result("made", "a"))])
    inserts = {AFTER: (Insert(AFTER, reply_digest("", ["a"]), rounds, NAME),)}
    flight = ReplyInProgress("", (RecallRound(0, (json.dumps(asks("r9", "999999")),)),))
    whole = restore(reading(body), inserts, {}, flight)
    found = json.loads(whole.body)["messages"]
    assert found[3:5] == [says(uses("a"), ours()), user(result(LONG, "r0"), result("made", "a"))]
    assert (found[5], found[6]["content"][0]["tool_use_id"]) == (says(asks("r9", "999999")), "r9")


@pytest.mark.parametrize("begun", ["The answer is (", "Let me see. "])
def test_r4_a_reply_that_the_client_began_goes_on_behind_its_beginning(begun: str) -> None:
    """Prefill, or a turn that was paused: neighbours of one role are one message to the model."""
    rounds, reply = rounds_of(FIRST, LAST)
    asked = [*START, says(begun)]
    whole = restore(reading(body_of(asked)), {}, {}, ReplyInProgress("Let me look. ", rounds))
    assert json.loads(whole.body)["messages"] == [*asked, *sent(FIRST)]
    assert find_violation(json.loads(whole.body), dialect="anthropic_messages") is None
    after = talk_of(body_of(asked)).end_anchor(-1)
    inserts = {after: (Insert(after, reply_digest("Let me look. It is done.", ()), rounds, NAME),)}
    returned = restore(reading(body_of([*asked, reply, user("on")])), inserts, {})
    assert json.loads(returned.body)["messages"] == [*asked, *sent(FIRST), says(*LAST), user("on")]


@pytest.mark.parametrize(
    "reply",
    [
        says({"type": "odd"}, text("Let me look. It is done.")),
        {"role": "assistant"},
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": ["odd", text("Let me look. It is done.")]},
    ],
)
def test_s5_what_cannot_be_taken_apart_is_lost(reply: Json) -> None:
    rounds, _ = rounds_of(FIRST, LAST)
    assert restored(reply, rounds, user("on")).lost
    mixed, _ = rounds_of((uses("a"), ours()))
    with pytest.raises(UnreadableError):
        dialect.recall.put_back(mixed, [[RecallAnswer(LONG, True)]], "", [json.dumps(reply).encode()])


def test_v7_a_mark_on_what_is_left_stays() -> None:
    rounds, _ = rounds_of(FIRST, LAST)
    reply = says(thinks("hm"), text("Let me look. "), text("It is done.", cache_control=MARK))
    assert put_back(reply, rounds)[2] == says(text("It is done.", cache_control=MARK))


def test_a_blank_text_is_not_sent_again() -> None:
    rounds, reply = rounds_of((text("\n\n"), ours()), (text(""), text("done")))
    assert put_back(reply, rounds)[:1] == [says(ours())]
    assert put_back(reply, rounds)[2]["content"][-1] == text("done")


_SAID = st.one_of(
    st.text("ab \n🙂", min_size=1, max_size=8).map(text),
    st.text("xy", max_size=5).map(thinks),
    st.just({"type": "redacted_thinking", "data": "abc=="}),
)
_ROUND = st.lists(_SAID, max_size=4)


@settings(deadline=None, max_examples=examples(30), phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.lists(_ROUND, min_size=1, max_size=3), _ROUND, st.booleans(), st.booleans())
def test_s2_whatever_is_recalled_the_prompt_extends_byte_for_byte(
    rounds: list[list[Json]], last: list[Json], mixed: bool, strips: bool
) -> None:
    """In flight, and on the next request: whatever the client keeps of the thinking."""
    asked = [[*blocks, ours(f"r{i}")] for i, blocks in enumerate(rounds)]
    end = [*last, text("end"), *([uses("a"), ours("rm")] if mixed else [])]
    reader, _ = play(*(stream(*blocks, reason="tool_use") for blocks in [*asked, end]))
    said = reader.result(0)
    before = raws(body_of(START))
    for i in range(len(asked)):
        flight = ReplyInProgress("".join(map(text_of, asked[: i + 1])), said.rounds[: i + 1])
        now = raws(restore(reading(body_of(START)), {}, {}, flight).body)
        assert now[: len(before)] == before
        before = now
    kept = [b for blocks in [*asked, end] for b in blocks if b.get("name") != "narrows_recall"]
    reply = says(*(b for b in kept if not strips or b["type"] in ("text", "tool_use")))
    then = user(result("made", "a")) if mixed else user("on")
    inserts = {AFTER: (Insert(AFTER, reply_digest(said.text, said.call_ids), said.rounds, NAME),)}
    whole = restore(reading(body_of([*START, reply, then])), inserts, {})
    assert not whole.lost
    assert raws(whole.body)[: len(before)] == before
    assert find_violation(json.loads(whole.body), dialect="anthropic_messages") is None


def text_of(blocks: Sequence[Json]) -> str:
    return "".join(block["text"] for block in blocks if block["type"] == "text")


@pytest.mark.parametrize(
    ("fields", "spent", "expected"),
    [
        ({"max_tokens": 100}, 10, {"max_tokens": 90}),
        ({"max_tokens": 5}, 10**9, {"max_tokens": 1}),
        ({"max_tokens": None}, 10, {"max_tokens": None}),
        ({"max_tokens": 9000, "thinking": {"budget_tokens": 2000}}, 1000, {"max_tokens": 8000}),
        (
            {"max_tokens": 3000, "thinking": {"budget_tokens": 2000}},
            1500,
            {"max_tokens": 1500, "thinking": {"budget_tokens": 1499}},
        ),
        (
            {"max_tokens": 3000, "thinking": {"budget_tokens": 2000}},
            10**9,
            {"max_tokens": 1025, "thinking": {"budget_tokens": 1024}},
        ),
        ({"max_tokens": 3000, "thinking": {"budget_tokens": 9000}}, 1500, {"max_tokens": 1500}),
        ({"max_tokens": 3000, "thinking": {"type": "adaptive"}}, 1500, {"max_tokens": 1500}),
        ({"max_tokens": 3000, "thinking": None}, 1500, {"max_tokens": 1500}),
    ],
)
def test_r3_the_next_round_is_for_what_is_left(fields: Json, spent: int, expected: Json) -> None:
    body = body_of(START, temperature=0.70, **fields, stream=True)
    after = dialect.recall.next_round(body, spent)
    assert json.loads(after) == {**json.loads(body), **expected}
    if "thinking" not in expected:
        written = (
            f'"max_tokens": {json.dumps(value)}'.encode() for value in (fields["max_tokens"], *expected.values())
        )
        assert after == body.replace(next(written), next(written))
