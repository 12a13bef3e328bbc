"""S1, S2: planning that is stopped at any step keeps what stands, and later plans go on from what was sent."""

import json
from dataclasses import replace
from random import Random
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.dialects import DIALECTS
from policies.model.conversation import Conversation
from policies.model.memory import Memory, StepRecord
from policies.money.prices import Budget
from policies.planning import step as steps
from policies.planning.plan import plan
from policies.planning.prefix import SHED, sent_record
from policies.planning.prefix import outcome as compared
from policies.planning.state import Plan, PlanSettings, PlanState
from policies.presets import PRESETS, Preset
from policies.render import render
from tests import examples
from tests.kit.histories import EAGER, requests
from tests.kit.talk import calls, conversation_of, gives, runs, setup, user
from tests.planning.test_laws import thorough
from tests.planning.test_same_plans import BUDGETS, CACHES, TIGHT, carried, working
from tests.planning.test_same_plans import outcome as all_of

openai_chat = DIALECTS["openai_chat"]


class Never:
    """Time is never up, or from the first question on after so many."""

    def __init__(self, after: int | None = None) -> None:
        self.left = after

    def __call__(self) -> bool:
        if self.left is None:
            return False
        self.left -= 1
        return self.left < 0


def word(memory: Memory, conversation: Conversation, planned: Plan, body: bytes) -> tuple[str, StepRecord]:
    """What becomes of the prefix, and the record of the step."""
    request = openai_chat.split(body)
    assert request is not None
    chains = render("openai_chat", request, conversation, planned).chains
    sent = sent_record(conversation, chains, "", "")
    anchor = conversation.end_anchor(conversation.steps - 1)
    old = memory.steps.get(anchor)
    shed = planned.shed or (old.shed if old else 0)
    record = StepRecord(anchor, planned.new, planned.reason, sent, recall=True, shed=shed)
    before = memory.steps.get(conversation.previous_anchor)
    return compared(before, before, sent, chains, planned.reason) if before else "first", record


@pytest.mark.parametrize("name", ["coding-agent", "eager", "structural"])
@settings(thorough, max_examples=examples(4))
@given(st.randoms(use_true_random=False), st.sampled_from(CACHES), st.sampled_from([*BUDGETS, TIGHT]))
def test_s2_what_stands_is_put_back_whenever_planning_is_stopped_and_later_plans_keep_to_that(
    name: str, random: Random, cache: dict[str, object], budget: Budget
) -> None:
    preset = PRESETS.get(name, Preset(EAGER))
    setting: PlanSettings = setup(*preset.policies, budget=budget, exceptions=preset.exceptions, **cache)
    state: PlanState | None = None
    before: Conversation | None = None
    records: dict[str, StepRecord] = {}
    read: dict[str, object] = {}
    standing: tuple[object, ...] = ()
    for request in requests(working(random)):
        if random.random() < 0.15:  # its client sent it elsewhere
            continue
        conversation, memory = carried(request, before, read), Memory(records)
        is_inside = random.random() < 0.5  # it is looked at each item, too
        never = Never(random.choice([None, 5, 20, 60] if is_inside else [None, 0, 0, 1, 3]))
        with patch.object(steps, "AT_ONCE", 1 if is_inside else steps.AT_ONCE):
            planned = plan(conversation, setting, memory, state, never)
        outcome, record = word(memory, conversation, planned, json.dumps({"model": "m", "messages": request}).encode())
        if planned.shed:
            assert set(standing) <= set(planned.edits)
            assert outcome in ("first", "extended")
            state = planned.reached or state
        else:
            assert outcome in ("first", "extended", "tail-cut", planned.reason)
            assert outcome != SHED
            state = planned.state
        records[record.anchor] = record
        assert plan(carried(request, None, read), setting, Memory(records)).edits == planned.edits
        before, standing = conversation, planned.edits


def test_s1_what_was_planned_before_the_stop_is_not_planned_again() -> None:
    setting = setup(*EAGER)
    conversation = conversation_of(user("go"), *(each for i in range(30) for each in runs(f"make {i}", f"{i}\n" * 200)))
    stopped = plan(conversation, setting, None, None, Never(5))
    assert (stopped.reached is not None and stopped.reached.step, stopped.shed) == (5, conversation.steps - 5)
    again = plan(conversation, setting, None, stopped.reached)
    assert all_of(again) == all_of(plan(conversation, setting))


@pytest.mark.parametrize("name", ["coding-agent", "eager"])
def test_x9_a_long_step_is_left_soon_after_the_stop_and_what_was_planned_before_is_kept(name: str) -> None:
    few = [each for i in range(70) for each in runs(f"make {i}", f"{i} is done\n" * 40)]
    texts = ["\n".join(f"value_{i}_{line} is built" for line in range(120)) for i in range(300)]
    many = [calls(*(f"make {i}" for i in range(300))), *(gives(text, f"call_{i}") for i, text in enumerate(texts))]
    preset, work = PRESETS.get(name, Preset(EAGER)), 0

    def count(text: str) -> int:
        nonlocal work
        work += 1
        return len(text) // 4

    conversation = conversation_of(user("go"), *few, *many, *runs("make", "done"), user("on"))
    setting = replace(setup(*preset.policies, exceptions=preset.exceptions), count=count)
    plan(conversation_of(user("go"), *few), setting)
    up, work = work + 200, 0  # time is up inside the long step
    stopped = plan(conversation, setting, None, None, lambda: work > up)
    assert up < work < up + 2 * steps.AT_ONCE
    assert stopped.shed
    assert stopped.reached is not None
    assert stopped.reached.step == 71
    assert all_of(plan(conversation, setting, None, stopped.reached)) == all_of(plan(conversation, setting))


def test_planning_ends_with_what_the_stop_raises() -> None:
    def left() -> bool:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        plan(carried(requests(working(Random(3)))[-1], None, {}), setup(*EAGER), stop=left)
