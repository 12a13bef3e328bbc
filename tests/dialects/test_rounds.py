"""plan() where the recall tool is in the request, and where it is not."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from policies.model.edits import Replace
from policies.model.memory import CacheLife, Memory, StepRecord
from policies.money.prices import Budget
from policies.planning.plan import plan
from tests import examples
from tests.kit.histories import CHEAP, EAGER, Json, recalling, requests
from tests.kit.talk import PREFIX_PRICES, calls, conversation_of, gives, recalls, runs, says, setup, user
from tests.planning.test_plan import LONG, anchor_of, at_step

FREE = replace(PREFIX_PRICES, read=1.0)
START = [user("go"), *runs("a", LONG), *runs("b", "x")]
ROUND = [*START, *recalls("482913", LONG)]
NEXT = [*ROUND, says("I see"), user("on")]


def test_a_recall_round_decides_nothing_and_the_next_request_does() -> None:
    conversation = conversation_of(*NEXT)
    offers = at_step(3, Replace(anchor_of(conversation, 2), "short", "test"))
    for cold in (False, True):
        planned = plan(conversation_of(*ROUND), setup(offers, prices=FREE, life=CacheLife(is_cold=cold)))
        assert (planned.edits, planned.reason) == ((), "")
    after = plan(conversation, setup(offers, prices=FREE, life=CacheLife(is_cold=True)))
    assert [edit.text for edit in after.new] == ["short"]
    # a result of the client's own in the place of what was recalled: then the step decides
    other = conversation_of(*START, *runs("c", LONG))
    assert plan(other, setup(offers, prices=FREE)).edits == after.new


@pytest.mark.parametrize("rounds", [0, 1, 2, 4])
def test_what_came_before_recall_rounds_is_cut_behind_them_however_many(rounds: int) -> None:
    """It came of age in the first of them, and none of them decides: it is still new, however little it saves."""
    output = LONG[:1600]
    recalled = [message for i in range(rounds) for message in recalls("482913", f"page {i}")]
    messages = [user("go"), *runs("b", "x"), *runs("a", output), *recalled, says("I see"), user("on")]
    conversation = conversation_of(*messages)
    newest = next(block for block in conversation.blocks if block.text == output)
    offers = at_step(3, Replace(newest.anchor, "short", "test"))
    planned = plan(conversation, setup(offers, prices=replace(PREFIX_PRICES, read=0.5)))
    assert [edit.text for edit in planned.edits] == ["short"]


def test_a_recall_round_that_does_not_fit_is_made_to_fit() -> None:
    conversation = conversation_of(*ROUND)
    offers = at_step(3, Replace(anchor_of(conversation, 2), "short", "test"))
    total = plan(conversation, setup()).after
    tight = Budget(total * 2, 0, total - 1, total - 100, floor=0)
    assert plan(conversation, setup(offers, budget=tight)).reason == "checkpoint:window"


def test_a_mixed_turn_is_a_request_of_the_clients_and_decides() -> None:
    mixed = calls("c")
    mixed["tool_calls"] += recalls("482913", "")[0]["tool_calls"]
    conversation = conversation_of(*START, mixed, gives("y", "call_0"), gives(LONG, "call_r"))
    offers = at_step(3, Replace(anchor_of(conversation, 2), "short", "test"))
    assert [edit.text for edit in plan(conversation, setup(offers, prices=FREE)).edits] == ["short"]


def without_recalls(messages: list[Json]) -> list[Json]:
    """The session as its client knows it."""
    kept = [m for m in messages if m.get("tool_call_id") != "call_r"]
    return [m for m in kept if [call["id"] for call in m.get("tool_calls") or ()] != ["call_r"]]


def test_law_7_recalls_are_no_part_of_the_bill_of_doing_nothing() -> None:
    sent, asked = (plan(conversation_of(*messages), setup()) for messages in (NEXT, without_recalls(NEXT)))
    assert sent.state.ledger.baseline == pytest.approx(asked.state.ledger.baseline)
    assert (sent.before, asked.before) == (asked.after, asked.after)
    # nor of the bill that the guard compares with it, but of the whole bill
    assert sent.state.ledger.paid == pytest.approx(asked.state.ledger.paid)
    assert sent.state.ledger.outside > asked.state.ledger.outside == 0
    assert sent.after > asked.after


@settings(
    deadline=None,
    max_examples=examples(40),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(recalling(most=6))
def test_law_7_whatever_is_recalled_the_bill_of_doing_nothing_is_the_clients(session: list[Json]) -> None:
    for request in requests(session):
        bare = [m if m.get("content") else {**m, "content": None} for m in request]
        spoken = [
            m for m in bare if not (m.get("tool_calls") and m["tool_calls"][0]["id"] == "call_r" and m["content"])
        ]
        if len(spoken) == len(bare):  # text said before a call is the client's as well: it has it in another place
            sent = plan(conversation_of(*request), setup(*EAGER, prices=CHEAP)).state.ledger
            asked = plan(conversation_of(*without_recalls(request)), setup(*EAGER, prices=CHEAP)).state.ledger
            assert sent.original == asked.original
            if request[-1].get("tool_call_id") != "call_r":
                assert sent.baseline == pytest.approx(asked.baseline)


@pytest.mark.parametrize(
    ("ways", "edited"),
    [
        ({"recall": False}, False),
        ({"recall": True}, True),
        ({"recall": False, "text_protocol": True}, True),
    ],
)
def test_law_3_prose_and_arguments_are_edited_only_where_they_can_be_had_again(
    ways: dict[str, Any], edited: bool
) -> None:
    conversation = conversation_of(user("go"), *runs(LONG, "ok"), says(LONG), user("on"), *runs("b", "x"))
    prose = Replace(anchor_of(conversation, 3), "short", "test")
    arguments = Replace(anchor_of(conversation, 1), '{"command": "short"}', "test")
    planned = plan(conversation, setup(at_step(3, arguments, prose), prices=FREE, **ways))
    assert planned.edits == ((arguments, prose) if edited else ())


def test_r7_a_request_without_tools_is_changed_only_to_fit() -> None:
    conversation = conversation_of(*START)
    offers = at_step(2, Replace(anchor_of(conversation, 2), "short", "test"))
    bare = setup(offers, prices=FREE, recall=False, only_to_fit=True, life=CacheLife(is_cold=True))
    assert plan(conversation, bare).edits == ()
    total = plan(conversation, setup()).after
    tight = Budget(total * 2, 0, total - 1, total - 100, floor=0)
    assert plan(conversation, replace(bare, budget=tight)).reason == "checkpoint:window"


@pytest.mark.parametrize("recall", [True, False])
def test_r7_what_was_decided_with_the_other_way_back_is_not_repeated(recall: bool) -> None:
    conversation = conversation_of(*START)
    anchor = conversation.end_anchor(2)
    known = Replace(anchor_of(conversation, 2), "remembered", "test")
    for kind in (True, False):
        memory = Memory({anchor: StepRecord(anchor, (known,), "tail-cut", recall=kind)})
        planned = plan(conversation, setup(recall=recall), memory)
        assert planned.edits == ((known,) if kind == recall else ())
