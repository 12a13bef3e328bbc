"""Requests that need no plan: planning them would change nothing, and leave nothing behind for later requests."""

from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.context import Aim, Summarizing
from policies.model.conversation import Conversation
from policies.model.edits import Replace
from policies.model.memory import CacheLife
from policies.model.summary_record import Criteria
from policies.money.prices import Budget, Prices
from policies.planning.plan import is_quiet, plan
from policies.planning.state import Plan, PlanState
from policies.presets import PRESETS
from tests import examples
from tests.kit.histories import Json, requests
from tests.kit.talk import MARK_PRICES, PREFIX_PRICES, conversation_of, runs, says, setup, system, user
from tests.planning.test_laws import AIMS, thorough
from tests.planning.test_plan import LONG, at_step
from tests.planning.test_same_plans import BELOW, CACHES, TIGHT, carried, outcome, words, working

BUDGETS = [TIGHT, BELOW, *(Budget(20_000, 1_000, 16_000, 9_000, floor=floor) for floor in (0, 600, 5_000))]
ROOM = setup().budget.high
WRITERS = [None, Summarizing(Criteria("p", "q"), Prices("s", 0.1, 0.1), 100, 0.0)]


def talking(random: Random) -> list[Json]:
    """A chat without tools."""
    messages = [system("Be brief.")] * random.randrange(2)
    for _ in range(random.randint(2, 25)):
        messages += [user(words(random, 60)), says(words(random, 150))]
    return messages


def decided(planned: Plan) -> list[object]:
    """What is not nothing of a plan."""
    parts = planned.edits, planned.new, planned.wants, planned.digests, planned.marks, planned.reason
    return [part for part in parts if part]


@settings(thorough, max_examples=examples(60))
@given(
    st.randoms(use_true_random=False),
    st.sampled_from([talking, working]),
    st.sampled_from(sorted(PRESETS)),
    st.sampled_from(CACHES),
    st.sampled_from(BUDGETS),
    AIMS,
    st.booleans(),
    st.sampled_from(WRITERS),
)
def test_s3_a_request_without_a_plan_would_have_had_an_empty_one_and_later_plans_are_the_same(
    random: Random, session: Any, name: str, cache: Json, budget: Budget, aim: Aim, recall: bool, writer: Any
) -> None:
    preset, read = PRESETS[name], dict[str, Any]()
    usual = setup(
        *preset.policies,
        budget=budget,
        aim=aim,
        exceptions=preset.exceptions,
        summarizing=writer if preset.summarizes else None,
        recall=recall,
        is_chat=session is talking,
        head=random.choice([0, 100]),
        factor=random.choice([0.6, 1.0, 1.8]),
        **cache,
    )
    before: Conversation | None = None
    always: PlanState | None = None
    skipping: PlanState | None = None
    for request in requests(session(random)):
        conversation = before = carried(request, before, read)
        learned = random.choice([None, None, replace(budget, high=budget.high // 2, low=budget.low // 2)])
        now = replace(usual, learned=learned)
        if not is_quiet(conversation, now):  # elsewhere nobody looks how long the pause was
            now = replace(now, life=CacheLife(is_cold=random.random() < 0.1))
        planned = plan(conversation, now, None, always)
        always = planned.state
        if is_quiet(conversation, now):
            assert not decided(planned)
        else:
            assert outcome(plan(conversation, now, None, skipping)) == outcome(planned)
            skipping = planned.state


def test_s3_most_short_requests_and_chats_without_tools_are_quiet() -> None:
    chat, read = talking(Random(1)), dict[str, Any]()
    conversation = carried([*chat, user("And?")], None, read)
    usual = setup(*PRESETS["adaptive"].policies, recall=False, is_chat=True)
    assert is_quiet(conversation, usual)
    assert not is_quiet(conversation, replace(usual, recall=True))
    assert not is_quiet(conversation, replace(usual, text_protocol=True))
    assert not is_quiet(conversation, replace(usual, policies=(*usual.policies, lambda *_: ())))
    marked = replace(usual, prices=MARK_PRICES, **{key: CACHES[2][key] for key in ("cache", "marks", "slots")})
    assert not is_quiet(conversation, marked)
    size = plan(conversation, usual).after
    assert not is_quiet(conversation, replace(usual, head=ROOM // 2 - size + 1))
    floor = replace(usual, recall=True, budget=replace(usual.budget, floor=size + 11), head=10)
    assert is_quiet(conversation, floor)
    assert not is_quiet(conversation, replace(floor, head=11))


def test_an_offer_that_an_edit_before_it_withdraws_is_not_carried_out() -> None:
    conversation = conversation_of(user("go"), *runs("a", LONG), *runs("b", LONG), *runs("c", "x"))
    older, newer = (conversation.blocks[at].anchor for at in (2, 4))
    offers = Replace(newer, "as above", "test", uses=(older,)), Replace(older, "short", "test")
    planned = plan(conversation, setup(at_step(3, *offers), prices=replace(PREFIX_PRICES, read=1.0)))
    assert [edit.at for edit in planned.edits] == [newer]
