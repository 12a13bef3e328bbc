"""How far back entries of the prompt cache are found, counted by hand."""

from typing import Any

import pytest

from policies.money.caches import ANTHROPIC, OPENAI, PREFIX
from policies.money.lookback import oldest_in_reach
from tests.kit.talk import call, conversation_of, gives, user


def working(steps: int, parallel: int = 1) -> list[dict[str, Any]]:
    """A task, and steps of so many parallel calls, each with its result."""
    calls = [call(f"call_{n}", "bash", {}) for n in range(parallel)]
    step = [{"role": "assistant", "tool_calls": calls}, *(gives("x", each["id"]) for each in calls)]
    return [user("go"), *(message for _ in range(steps) for message in step)]


def test_a_cache_that_matches_any_prefix_finds_every_entry() -> None:
    conversation = conversation_of(*working(50))
    assert oldest_in_reach(conversation, 50, PREFIX) == 0


@pytest.mark.parametrize("parallel", [1, 3])
def test_openai_finds_the_newest_21_endings_and_a_group_of_results_has_one(parallel: int) -> None:
    conversation = conversation_of(*working(30, parallel))
    assert oldest_in_reach(conversation, 30, OPENAI) == conversation.ends[30 - (OPENAI.endings - 1)]
    assert oldest_in_reach(conversation, 20, OPENAI) == conversation.ends[0]  # the task is the 21st
    assert oldest_in_reach(conversation, 19, OPENAI) == 0


@pytest.mark.parametrize("parallel", [1, 3])
def test_anthropic_finds_20_positions_and_parallel_calls_are_one(parallel: int) -> None:
    conversation = conversation_of(*working(30, parallel))
    blocks_of_ten_steps = 10 * 2 * parallel  # calls and results: two positions for each step
    assert oldest_in_reach(conversation, 30, ANTHROPIC) == conversation.ends[30] - blocks_of_ten_steps + 1
    assert oldest_in_reach(conversation, 9, ANTHROPIC) == 0
