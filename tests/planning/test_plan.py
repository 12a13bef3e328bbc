"""plan(): resuming, remembering, pointers, hard marks."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from policies.context import NO_EXCEPTIONS, Aim, Context, Exceptions, Policy, Want
from policies.model.conversation import Conversation
from policies.model.edits import Edit, Fold, Replace
from policies.model.memory import CacheLife, Memory, StepRecord
from policies.money.prices import Budget, BudgetLimits
from policies.planning.plan import plan
from policies.planning.state import Plan, PlanState
from policies.rules.dedupe import Dedupe
from policies.rules.trim import Trim
from tests import examples
from tests.kit.histories import CHEAP, EAGER, ROOMY, TIGHT, Json, requests, sessions
from tests.kit.talk import PREFIX_PRICES, calls, conversation_of, gives, runs, says, setup, user

quick = settings(
    deadline=None,
    max_examples=examples(25),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
BUDGETS = st.sampled_from([ROOMY, TIGHT])
AIMS = st.sampled_from(get_args(Aim))
LONG = "one line of output\n" * 600
FREE = replace(PREFIX_PRICES, read=1.0)
"""Under these prices every rewrite that shortens pays at once."""


def at_step(step: int, *edits: Edit | Want) -> Policy:
    """A policy that offers these edits once."""

    def offered(_: Conversation, context: Context) -> Iterable[Edit | Want]:
        return edits if context.step == step and not context.excess else ()

    return offered


def replaced(planned: Plan) -> list[str]:
    return [edit.at for edit in planned.edits if isinstance(edit, Replace)]


def steps_of(messages: list[Json]) -> list[Conversation]:
    return [conversation_of(*request) for request in requests(messages)]


def outcome(planned: Plan) -> tuple[Any, ...]:
    ledger = planned.state.ledger
    state = (ledger.sent, ledger.saving, ledger.paid, ledger.baseline)
    return (planned.edits, planned.new, planned.reason, planned.marks, planned.before, planned.after, *state)


@quick
@given(sessions(most=8), BUDGETS, AIMS)
def test_s1_resuming_from_books_is_replaying_from_the_start(session: list[Json], budget: Budget, aim: Aim) -> None:
    eager = setup(*EAGER, prices=CHEAP, budget=budget, aim=aim)
    plan_state: PlanState | None = None
    for conversation in steps_of(session):
        resumed = plan(conversation, eager, None, plan_state)
        assert outcome(resumed) == outcome(plan(conversation, eager))
        plan_state = resumed.state


@quick
@given(sessions(most=6), sessions(most=4), BUDGETS, st.data())
def test_s5_a_fork_resumes_from_the_books_of_what_it_shares(
    session: list[Json], other: list[Json], budget: Budget, data: st.DataObject
) -> None:
    eager = setup(*EAGER, prices=CHEAP, budget=budget)
    shared = data.draw(st.sampled_from(requests(session)))
    plan_state = plan(conversation_of(*shared), eager).state
    before = outcome(plan(conversation_of(*shared), eager))
    tail = [message for message in other if message["role"] not in ("system", "developer", "user")]
    fork = conversation_of(*shared, *tail)
    assert outcome(plan(fork, eager, None, plan_state)) == outcome(plan(fork, eager))
    # the state that was continued is still that of the shared part
    assert outcome(plan(conversation_of(*shared), eager)) == before
    assert plan_state.step == conversation_of(*shared).steps


@quick
@given(sessions(most=8), BUDGETS, AIMS)
def test_s1_memory_of_every_step_changes_nothing(session: list[Json], budget: Budget, aim: Aim) -> None:
    eager = setup(*EAGER, prices=CHEAP, budget=budget, aim=aim)
    known: dict[str, StepRecord] = {}
    for conversation in steps_of(session):
        fresh = plan(conversation, eager)
        remembered = plan(conversation, eager, Memory(known))
        assert (remembered.edits, remembered.after) == (fresh.edits, fresh.after)
        anchor = conversation.end_anchor(conversation.steps - 1)
        known[anchor] = StepRecord(anchor, fresh.new, fresh.reason, recall=True)


TALK = [user("go"), *runs("ls", LONG), *runs("pwd", "short"), *runs("date", "today"), says("done")]


def anchor_of(conversation: Conversation, at: int) -> str:
    return conversation.blocks[at].anchor


def test_a_record_wins_over_a_fresh_decision() -> None:
    conversation = conversation_of(*TALK[:5])
    fresh = Replace(anchor_of(conversation, 2), "fresh", "test")
    kept = Replace(anchor_of(conversation, 2), "remembered", "test")
    policy = at_step(2, fresh)
    assert plan(conversation, setup(policy)).edits == (fresh,)
    anchor = conversation.end_anchor(2)
    memory = Memory({anchor: StepRecord(anchor, (kept,), "checkpoint:cold", recall=True)})
    planned = plan(conversation, setup(policy), memory)
    assert (planned.edits, planned.new, planned.reason) == ((kept,), (kept,), "checkpoint:cold")


def test_k1_an_exchange_is_not_repeated_where_the_request_takes_none_any_more() -> None:
    conversation = conversation_of(user("go"), *runs("a", "x" * 400), *runs("b", "y" * 400), *runs("c", "z"))
    fold = Fold(anchor_of(conversation, 1), anchor_of(conversation, 2), "x of a tool", "test", ref="123456+2")
    anchor = conversation.end_anchor(2)
    memory = Memory({anchor: StepRecord(anchor, (fold,), "checkpoint:paid", recall=True)})
    assert plan(conversation, setup(at_step(9), recall=True, exchanges=True), memory).edits == (fold,)
    assert plan(conversation, setup(at_step(9), recall=True, exchanges=False), memory).edits == ()


def test_a_record_of_nothing_is_a_decision_too() -> None:
    conversation = conversation_of(*TALK[:5])
    policy = at_step(2, Replace(anchor_of(conversation, 2), "fresh", "test"))
    anchor = conversation.end_anchor(2)
    assert plan(conversation, setup(policy), Memory({anchor: StepRecord(anchor, recall=True)})).edits == ()


@pytest.mark.parametrize(
    "stray",
    [
        Replace("0" * 32, "x", "test"),
        Fold("0" * 32, "1" * 32, "x", "test"),
    ],
)
def test_x7_an_edit_of_an_unknown_anchor_is_passed_over(stray: Edit) -> None:
    conversation = conversation_of(*TALK[:5])
    anchor = conversation.end_anchor(1)
    planned = plan(conversation, setup(), Memory({anchor: StepRecord(anchor, (stray,), recall=True)}))
    assert planned.edits == ()


def test_x7_half_an_unknown_edit_is_passed_over() -> None:
    conversation = conversation_of(*TALK[:5])
    first = anchor_of(conversation, 1)
    anchor = conversation.end_anchor(1)
    fold = StepRecord(anchor, (Fold(first, "1" * 32, "x", "test"),), recall=True)
    assert plan(conversation, setup(), Memory({anchor: fold})).edits == ()
    pointer = Replace(anchor_of(conversation, 2), "as there", "test", needs="1" * 32, otherwise="gone")
    planned = plan(conversation, setup(), Memory({anchor: StepRecord(anchor, (pointer,), recall=True)}))
    assert [edit.text for edit in planned.edits] == ["gone"]


def test_a_pointer_is_rewritten_in_the_checkpoint_that_takes_its_copy() -> None:
    conversation = conversation_of(user("go"), *runs("a", LONG), *runs("b", LONG), *runs("c", "x"), *runs("d", "y"))
    copy, pointer = anchor_of(conversation, 2), anchor_of(conversation, 4)
    points = Replace(pointer, "as above", "test", needs=copy, otherwise="run b again")
    takes = Replace(copy, "run a again", "test")
    before = plan(conversation, setup(at_step(3, points), prices=FREE))
    assert before.edits == (points,)
    after = plan(conversation, setup(at_step(3, points), at_step(4, takes), prices=FREE))
    assert [edit.text for edit in after.new] == ["run a again", "run b again"]
    assert after.state.edits[4].needs == ""


def test_pointers_to_a_copy_stand_as_long_as_it_does() -> None:
    turns = [user("go"), *runs("a", LONG), *runs("b", LONG), *runs("c", LONG), *runs("d", "x"), *runs("e", "y")]
    conversation = conversation_of(*turns)
    planned = plan(conversation, setup(Dedupe(over=10)))
    assert [edit.text for edit in planned.edits] == 2 * ["[narrows: same output as above, bash `a`]"]
    takes = at_step(5, Replace(anchor_of(conversation, 2), "gone", "test"))
    after = plan(conversation, setup(Dedupe(over=10), takes, prices=FREE))
    assert after.reason == "checkpoint:paid"
    assert all("same output" not in edit.text for edit in after.edits)


def test_a_pointer_to_a_pointer_stands_as_long_as_the_copy_does() -> None:
    turns = [user("go"), *runs("a", LONG), *runs("b", LONG), *runs("c", LONG), *runs("d", "x"), *runs("e", "y")]
    conversation = conversation_of(*turns)
    copy, first, second = (anchor_of(conversation, at) for at in (2, 4, 6))
    offers = (
        Replace(first, "as a", "test", needs=copy, otherwise="run b"),
        Replace(second, "as b", "test", needs=first, otherwise="run c"),
    )
    assert plan(conversation, setup(at_step(4, *offers), prices=FREE)).edits == offers
    takes = at_step(5, Replace(copy, "gone", "test"))
    after = plan(conversation, setup(at_step(4, *offers), takes, prices=FREE))
    assert [edit.text for edit in after.edits] == ["gone", "run b", "run c"]


def test_pointers_inside_a_fold_weigh_nothing() -> None:
    turns = [user("go"), *runs("a", LONG), *runs("b", LONG), *runs("c", "x"), *runs("d", "y")]
    conversation = conversation_of(*turns)
    fold = Fold(anchor_of(conversation, 1), anchor_of(conversation, 4), "left out", "test")
    planned = plan(conversation, setup(Dedupe(over=10), at_step(4, fold), prices=FREE))
    assert planned.edits == (fold,)
    assert planned.after == plan(conversation, setup(at_step(4, fold), prices=FREE)).after
    assert planned.state.ledger.sent[2:5] == [0, 0, 0]


def test_a_fold_that_stands_already_changes_nothing() -> None:
    turns = [user("go"), *runs("a", LONG), *runs("b", LONG), *runs("c", "x"), *runs("d", "y")]
    conversation = conversation_of(*turns)
    fold = Fold(anchor_of(conversation, 1), anchor_of(conversation, 2), "left out", "test")
    planned = plan(conversation, setup(at_step(3, fold), at_step(4, fold), prices=FREE))
    assert (planned.edits, planned.new, planned.reason) == ((fold,), (), "")


def test_a_wider_fold_takes_the_place_of_those_inside() -> None:
    turns = [user("go"), *runs("a", LONG), *runs("b", LONG), *runs("c", "x"), *runs("d", LONG * 3)]
    conversation = conversation_of(*turns)
    inner = Fold(anchor_of(conversation, 3), anchor_of(conversation, 4), "inner", "test")
    outer = Fold(anchor_of(conversation, 1), anchor_of(conversation, 4), "outer", "test")

    def last_resort(_: Conversation, context: Context) -> Iterable[Edit]:
        return [inner] if context.step == 3 else [outer] if context.excess else []

    assert plan(conversation, setup(last_resort, prices=FREE)).edits == (inner,)
    full = Budget(20_000, 0, 6_000, 3_000, floor=0)
    assert plan(conversation, setup(last_resort, prices=FREE, budget=full)).edits == (outer,)


def test_an_edit_inside_a_fold_is_neither_offered_nor_sent() -> None:
    turns = [user("go"), *runs("a", LONG), *runs("b", LONG), *runs("c", "x"), *runs("d", "y")]
    conversation = conversation_of(*turns)
    fold = Fold(anchor_of(conversation, 1), anchor_of(conversation, 2), "left out", "test")
    late = Replace(anchor_of(conversation, 2), "late", "test")
    assert plan(conversation, setup(at_step(3, fold), at_step(4, late), prices=FREE)).edits == (fold,)


DEAR = [user("go"), *runs("a", LONG), *runs("b", LONG * 20), *runs("c", "x")]


def test_a_cold_cache_is_a_checkpoint_for_whatever_is_on_offer() -> None:
    conversation = conversation_of(*DEAR)
    late = at_step(3, Replace(anchor_of(conversation, 2), LONG[: len(LONG) // 2], "test"))
    assert plan(conversation, setup(late)).edits == ()
    cold = plan(conversation, setup(late, life=CacheLife(is_cold=True)))
    assert (cold.reason, len(cold.edits)) == ("checkpoint:cold", 1)
    assert plan(conversation, setup(life=CacheLife(is_cold=True))).reason == ""


def test_c5_the_window_is_a_hard_mark_above_the_rule() -> None:
    conversation = conversation_of(*DEAR)
    late = at_step(3, Replace(anchor_of(conversation, 2), LONG[: len(LONG) // 2], "test"))
    total = plan(conversation, setup()).after
    for high, reason in ((total, ""), (total - 1, "checkpoint:window")):
        budget = Budget(total * 2, 0, high, high - 100, floor=0)
        assert plan(conversation, setup(late, budget=budget)).reason == reason


def test_c5_what_is_still_in_excess_goes_by_whole_turns() -> None:
    conversation = conversation_of(user("go"), *(m for i in range(7) for m in runs(f"cat {i}", LONG)))
    size = plan(conversation, setup()).after
    budget = Budget(size * 2, 0, size - 1, size // 2, floor=0)
    planned = plan(conversation, setup(Trim(keep=1), budget=budget))
    assert planned.reason == "checkpoint:window"
    (fold,) = planned.edits
    assert isinstance(fold, Fold)
    assert (conversation.index[fold.first], conversation.index[fold.last]) == (1, 8)
    assert size // 4 < planned.after <= size // 2 + 100


def test_c5_a_price_tier_is_a_hard_mark_like_the_window() -> None:
    prices = replace(CHEAP, tiers=((10_000, 2.0),), window=1_000_000)
    budget = BudgetLimits(unknown_window=1, floor=0).budget(prices)
    assert budget.high == 9_700
    conversation = conversation_of(user("go"), *(m for i in range(4) for m in runs(f"cat {i}", LONG)))
    planned = plan(conversation, setup(Trim(keep=1), prices=prices, budget=budget))
    assert planned.reason == "checkpoint:window"
    assert planned.after < 10_000 < planned.before


def test_c3_calibration_moves_the_mark_of_the_newest_step_only() -> None:
    conversation = conversation_of(*DEAR, *runs("d", "y"))
    offers = [at_step(step, Replace(anchor_of(conversation, 2), f"short {step}", "test")) for step in (3, 4)]
    total = plan(conversation, setup()).after
    budget = Budget(total * 9, 0, total * 2, total, floor=0)
    plain = plan(conversation, setup(*offers, budget=budget))
    doubled = plan(conversation, setup(*offers, budget=budget, factor=2.5))
    assert (plain.reason, plain.edits) == ("", ())
    # step 3 comes out as it did before the factor was known, so its offer is carried out one step later
    assert doubled.reason == "checkpoint:window"
    assert [edit.text for edit in doubled.new] == ["short 3"]
    assert plan(conversation, setup(*offers, budget=budget, factor=1.5)).edits == ()


def test_nothing_happens_below_the_floor() -> None:
    conversation = conversation_of(*TALK[:5])
    policy = at_step(2, Replace(anchor_of(conversation, 2), "short", "test"))
    total = plan(conversation, setup()).after
    assert plan(conversation, setup(policy, budget=replace(ROOMY, floor=total))).edits
    assert not plan(conversation, setup(policy, budget=replace(ROOMY, floor=total + 1))).edits
    assert plan(conversation, setup(policy, budget=replace(ROOMY, floor=total + 1), head=1)).edits


def test_an_offer_of_a_few_tokens_is_not_worth_a_word() -> None:
    conversation = conversation_of(user("go"), *runs("a", "x" * 400), *runs("b", "y"))
    for left, edits in ((400 - 4 * 14, 0), (400 - 4 * 15, 1)):
        policy = at_step(2, Replace(anchor_of(conversation, 2), "x" * left, "test"))
        assert len(plan(conversation, setup(policy, prices=FREE)).edits) == edits


def test_law_5_protected_blocks_are_not_edited_whatever_is_offered() -> None:
    conversation = conversation_of(user(LONG), *runs("a", LONG), user(LONG), *runs("b", LONG))

    def everything(talk: Conversation, _: Context) -> Iterator[Edit]:
        return (Replace(block.anchor, "short", "test") for block in talk.blocks)

    assert replaced(plan(conversation, setup(everything, prices=FREE))) == [anchor_of(conversation, 2)]


def test_wants_are_those_of_the_newest_step() -> None:
    conversation = conversation_of(*TALK[:5])
    want = Want(anchor_of(conversation, 1), anchor_of(conversation, 2), "long")
    assert plan(conversation, setup(at_step(2, want))).wants == (want,)
    assert plan(conversation, setup(at_step(1, want))).wants == ()


def test_a_summary_is_asked_for_by_what_is_sent() -> None:
    """A new output that is cut before it is first sent brings no hard mark nearer."""
    conversation = conversation_of(*TALK[:5], *runs("b", LONG))
    want = Want(anchor_of(conversation, 1), anchor_of(conversation, 2), "long")

    def near_the_mark(_: Conversation, context: Context) -> Iterator[Want]:
        return iter([want] if context.pressed else [])

    cut = at_step(conversation.steps - 1, Replace(conversation.blocks[-1].anchor, "short", "test"))
    for exceptions, wants in ((Exceptions(first_sight=True), ()), (NO_EXCEPTIONS, (want,))):
        planned = plan(
            conversation,
            setup(cut, near_the_mark, budget=replace(ROOMY, high=len(LONG)), aim="context", exceptions=exceptions),
        )
        assert planned.wants == wants


def test_parallel_results_are_cut_one_by_one() -> None:
    batch = [calls("a", "b"), gives(LONG, "call_0"), gives(LONG, "call_1")]
    conversation = conversation_of(user("go"), *batch, *runs("c", "x"))
    edit = Replace(anchor_of(conversation, 4), "short", "test")
    assert plan(conversation, setup(at_step(2, edit))).edits == (edit,)


def test_law_5_trim_leaves_what_people_wrote_whole_images_and_all() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:,"}}
    shown = {"role": "user", "content": [{"type": "text", "text": "look"}, picture]}
    only = {"role": "user", "content": [picture]}
    turns = [user("go"), *runs("a", LONG), shown, *runs("b", LONG), only, *runs("c", LONG), *runs("d", LONG)]
    conversation = conversation_of(*turns)
    tight = Budget(50_000, 0, 8_000, 1_000, floor=0)
    folds = [edit for edit in plan(conversation, setup(Trim(keep=1), budget=tight)).edits if edit.by == "trim"]
    spans = [
        (
            conversation.blocks[conversation.index[edit.first]].message,
            conversation.blocks[conversation.index[edit.last]].message,
        )
        for edit in folds
        if isinstance(edit, Fold)
    ]
    assert spans == [(1, 2), (4, 5)]


def test_text_protocol_output_repeated_word_for_word_becomes_a_pointer() -> None:
    asks = says("Let me look.\n```bash\ncat a\n```")
    output = user("<returncode>0</returncode>\n" + LONG)
    conversation = conversation_of(user("go"), asks, output, asks, output, asks, user("<returncode>1</returncode>"))
    policy = Dedupe(over=10)
    assert replaced(plan(conversation, setup(policy))) == [anchor_of(conversation, 4)]
