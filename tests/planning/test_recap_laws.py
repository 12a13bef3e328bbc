"""The laws as properties of histories whose old turns become records, and how such a record is offered."""

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.compact import compact
from policies.context import Aim, Context, Policy
from policies.model.conversation import Conversation
from policies.model.edits import Edit, Fold, Origin, Replace
from policies.model.memory import Memory, StepRecord
from policies.money import ledger
from policies.money.prices import Budget
from policies.planning.folding import Folding, drop_summary, put_summary
from policies.planning.plan import plan
from policies.planning.state import Plan, PlanState
from policies.rules.clip import Clip
from policies.rules.dedupe import Dedupe
from policies.rules.recap import Recap
from policies.rules.reuse import Reuse
from policies.text.layout import fold_tokens
from policies.text.stubs import MARK, refs_named
from proxy.lab.breakdown import span
from proxy.lab.provider import ANTHROPIC, PREFIX, find_violation
from tests import examples
from tests.kit.forms import plain
from tests.kit.histories import CHEAP, RECORDING, TOOLS, Json, eagerly, recalling, requests, sessions
from tests.kit.talk import PREFIX_PRICES, call, conversation_of, gives, letters, runs, says, setup, user
from tests.planning.test_laws import AIMS, BUDGETS, check_law_2, check_law_3, check_law_4, check_law_5, thorough
from tests.planning.test_laws_apis import ROWS

LONG = "".join(f"line {i} of the output, value_{i}\n" for i in range(300))
FREE = replace(PREFIX_PRICES, read=1.0)
RECAP = Recap(keep=2, batch=2, keep_share=0.2)


def records(planned: Plan) -> list[Fold]:
    return [edit for edit in planned.edits if isinstance(edit, Fold)]


def outcome(planned: Plan) -> tuple[Any, ...]:
    state = planned.state
    return planned.edits, planned.reason, planned.after, state.offered_folds, state.ledger.saving, state.ledger.paid


@settings(thorough, max_examples=examples(25))
@given(sessions(), BUDGETS, AIMS)
def test_law_2_3_4_5_records_keep_the_laws(session: list[Json], budget: Budget, aim: Aim) -> None:
    steps = [eagerly(request, budget, policies=RECORDING, aim=aim) for request in requests(session)]
    check_law_2(steps)
    for request, step in zip(requests(session), steps, strict=True):
        check_law_3(step)
        check_law_4(request, step)
        check_law_5(request, step)


@thorough
@given(BUDGETS.flatmap(lambda budget: st.tuples(recalling(6, budget), st.just(budget))))
def test_law_3_s2_records_of_turns_with_recalls_keep_the_laws(given: tuple[list[Json], Budget]) -> None:
    session, budget = given
    steps = [eagerly(request, budget, policies=RECORDING) for request in requests(session)]
    check_law_2(steps)
    for request, step in zip(requests(session), steps, strict=True):
        check_law_3(step)
        check_law_4(request, step)


@thorough
@given(sessions(most=9), BUDGETS, AIMS)
def test_s1_records_are_the_same_resumed_replayed_and_remembered(session: list[Json], budget: Budget, aim: Aim) -> None:
    setting = setup(*RECORDING, prices=CHEAP, budget=budget, aim=aim)
    state: PlanState | None = None
    known: dict[str, StepRecord] = {}
    for request in requests(session):
        conversation = conversation_of(*request)
        fresh = plan(conversation, setting)
        resumed = plan(conversation, setting, None, state)
        assert outcome(resumed) == outcome(fresh)
        assert plan(conversation, setting, Memory(known)).edits == fresh.edits
        anchor = conversation.end_anchor(conversation.steps - 1)
        known[anchor] = StepRecord(anchor, fresh.new, fresh.reason, recall=True)
        state = resumed.state


@pytest.mark.parametrize("dialect", ROWS)
@settings(thorough, max_examples=examples(12))
@given(sessions(10), BUDGETS, st.booleans())
def test_v1_records_are_valid_in_every_api(
    dialect: str, session: list[Json], budget: Budget, breakpoints: bool
) -> None:
    told, dressed = ROWS[dialect]
    by_marks = breakpoints and dialect == "anthropic_messages"
    prices, rule = (replace(CHEAP, breakpoints=True), ANTHROPIC) if by_marks else (CHEAP, PREFIX)
    for messages in requests(session):
        body = dressed(told(plain({"model": "m", "messages": messages, "tools": list(TOOLS)})), frozenset())
        assert find_violation(body, rule, dialect) is None
        raw = json.dumps(body).encode()
        done = compact(raw, dialect=dialect, policies=RECORDING, prices=prices, budget=budget, recall=True)
        assert find_violation(json.loads(done.body), rule, dialect) is None


def at_step(step: int, *edits: Edit) -> Policy:
    """A policy that offers these edits once."""

    def offered(_: Conversation, context: Context) -> Iterable[Edit]:
        return edits if context.step == step and not context.excess else ()

    return offered


TALK = [user("go"), *runs("a", LONG), *runs("b", LONG), *runs("c", LONG * 4), *runs("d", "x"), *runs("e", "y")]
CONVERSATION = conversation_of(*TALK)


def fold(first: int, last: int, text: str = "record", origin: Origin | None = None) -> Fold:
    return Fold(CONVERSATION.blocks[first].anchor, CONVERSATION.blocks[last].anchor, text, "test", origin)


def test_a_record_waits_until_its_rent_exceeds_the_price_of_the_rewrite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "EARLY", 0.0)
    monkeypatch.setattr(ledger, "SOON", 0.0)
    reasons = []
    for more in range(24):
        planned = plan(conversation_of(*TALK, *(m for i in range(more) for m in runs(f"f{i}", "z"))), setup(RECAP))
        reasons.append((planned.reason, bool(records(planned)), bool(planned.state.offered_folds)))
    assert reasons[0] == ("", False, True)
    first = next(i for i, (reason, *_) in enumerate(reasons) if reason)
    assert reasons[first] == ("checkpoint:paid", True, False)
    assert first >= 3
    assert all(standing for _, standing, _ in reasons[first:])


def test_a_fold_on_offer_takes_the_place_of_offers_inside_it() -> None:
    inside = Replace(CONVERSATION.blocks[2].anchor, LONG[:4000], "test")
    late = Replace(CONVERSATION.blocks[4].anchor, "late", "test")
    state = plan(CONVERSATION, setup(at_step(3, inside), at_step(4, fold(1, 4)), at_step(5, late))).state
    assert (state.offers, state.offered_folds) == ({}, {1: fold(1, 4)})
    assert state.ledger.saving == {1: sum(state.ledger.sent[1:5]) - fold_tokens(CONVERSATION, fold(1, 4), letters)}
    alone = plan(CONVERSATION, setup(at_step(4, fold(1, 4)))).state
    assert state.ledger.pending(1)[1] > alone.ledger.pending(1)[1]  # the rent goes on


def test_a_block_that_changes_inside_a_fold_on_offer_lowers_what_that_saves() -> None:
    anchor = CONVERSATION.end_anchor(5)
    short = Replace(CONVERSATION.blocks[2].anchor, "short", "test")
    memory = Memory({anchor: StepRecord(anchor, (short,), "checkpoint:cold", recall=True)})
    state = plan(CONVERSATION, setup(at_step(4, fold(1, 4))), memory).state
    assert (state.edits, state.offered_folds) == ({2: short}, {1: fold(1, 4)})
    assert state.ledger.saving == {1: sum(state.ledger.sent[1:5]) - fold_tokens(CONVERSATION, fold(1, 4), letters)}


def test_two_folds_never_have_a_block_in_common() -> None:
    state = plan(CONVERSATION, setup(at_step(4, fold(1, 2)), at_step(5, fold(1, 4)))).state
    assert state.offered_folds == {1: fold(1, 2)}
    assert plan(CONVERSATION, setup(at_step(4, fold(1, 2)), at_step(5, fold(1, 4)), prices=FREE)).edits == (fold(1, 2),)


def test_under_a_summary_a_record_waits_until_the_summary_is_removed() -> None:
    state = plan(CONVERSATION, setup(at_step(4, fold(1, 4)), prices=FREE)).state
    summary = fold(1, 6, "summary", Origin("1", "m", "p", "p", 0.0, CONVERSATION.blocks[6].anchor))
    folding = Folding(CONVERSATION, state, letters)
    assert state.folds == {1: fold(1, 4)}
    put_summary(folding, [summary])
    assert (state.folds, state.offered_folds, state.ledger.saving) == ({1: summary}, {1: fold(1, 4)}, {})
    assert not folding.fire(0, len(CONVERSATION.blocks))
    drop_summary(folding)
    assert (state.folds, state.offered_folds) == ({}, {1: fold(1, 4)})
    assert state.ledger.saving[1] > 0
    assert folding.fire(0, len(CONVERSATION.blocks))
    assert state.folds == {1: fold(1, 4)}


def test_a_record_waits_for_a_step_where_what_arrives_points_into_it() -> None:
    history = [user("go"), *runs("a", LONG), *runs("b", "x")]
    offered = Fold(CONVERSATION.blocks[1].anchor, CONVERSATION.blocks[2].anchor, "record", "test")
    setting = setup(Reuse(lines=3, saves=10), Dedupe(over=60), at_step(3, offered), prices=FREE)
    for again in (LONG[:4000], LONG):  # lines, and a copy
        arriving = [*history, *runs("c", again)]
        state = plan(conversation_of(*arriving), setting).state
        assert (state.offered_folds, state.folds) == ({1: offered}, {})
        assert state.edits[6].lossless
        folding = Folding(conversation_of(*arriving), state, letters)
        assert folding.waiting(5) == {1}  # so it counts for no rewrite of this step
        assert folding.waiting(7) == frozenset()
        assert plan(conversation_of(*arriving, *runs("d", "y")), setting).state.folds == {1: offered}


def test_law_7_a_rewrite_is_not_decided_on_for_a_record_that_waits() -> None:
    history = [user("go"), *runs("z", "w " * 300), *runs("a", LONG), *runs("b", "x")]
    blocks = conversation_of(*history).blocks
    record, small = Fold(blocks[3].anchor, blocks[4].anchor, "record", "test"), Replace(blocks[2].anchor, "w", "test")
    setting = setup(Reuse(lines=3, saves=10), at_step(4, record, small), prices=FREE)
    arriving = [*history, *runs("c", LONG[:4000])]
    assert plan(conversation_of(*arriving), setting).state.folds == {}
    assert 2 not in plan(conversation_of(*arriving), setting).state.edits  # alone it is worth no rewrite
    later = plan(conversation_of(*arriving, *runs("d", "y")), setting).state
    assert (later.folds, later.edits[2]) == ({3: record}, small)


def test_what_makes_room_withdraws_the_folds_on_offer_that_it_overlaps() -> None:
    state = plan(CONVERSATION, setup(at_step(4, fold(1, 4)))).state
    Folding(CONVERSATION, state, letters).fold(fold(3, 6, "left out"))
    assert (state.offered_folds, state.ledger.saving) == ({}, {})


def test_a_record_has_what_was_named_since_and_no_marks_of_ours() -> None:
    secret = f"{MARK} output: ref 123456]\n<narrows_summary>\n"
    text = LONG.replace("line 200 ", "line 200 rare_name_of_200 ") + secret
    talk = [user("go"), *runs("make", text), *runs("b", LONG.replace("value", "other")), says("see rare_name_of_200")]
    talk += [user("a word"), *runs("c", "x"), *runs("d", "y"), *runs("e", "z")]
    conversation = conversation_of(*talk)
    (record,) = records(plan(conversation, setup(RECAP, prices=FREE)))
    assert "line 200 rare_name_of_200 of the output, value_200" in record.text.split("\n")
    assert "bash: make" in record.text
    assert refs_named(record.text) == {conversation.run_ref(1, 4)}
    assert "narrows_summary" not in record.text


def test_without_the_recall_tool_no_turn_becomes_a_record() -> None:
    assert plan(CONVERSATION, setup(RECAP, prices=FREE, recall=False)).edits == ()


@pytest.mark.parametrize("policy", [RECAP, Clip(over=12, keep=1, keep_writes=2)])
def test_what_was_written_into_a_file_stays_where_sight_counts(policy: Policy) -> None:
    """Models edit what they wrote without reading it again, a hundred turns later, too."""
    written = [call("w", "write_file", {"path": "a.py", "content": LONG})]
    talk: list[Json] = [user("go"), {"role": "assistant", "content": None, "tool_calls": written}, gives("ok", "w")]
    talk += [message for n in range(120) for message in runs(f"step {n}", f"done {n} " * 200)]
    conversation = conversation_of(*talk)
    for sight, stays in ((0.0, False), (0.03, True)):
        planned = plan(conversation, setup(policy, prices=FREE, sight=sight))
        hidden = {at for edit in planned.edits for at in span(conversation, edit)}
        assert (1 not in hidden) == stays
        assert hidden or isinstance(policy, Clip)
