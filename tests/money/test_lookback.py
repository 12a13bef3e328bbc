"""How far back entries of the prompt cache are found, counted by hand."""

from typing import Any

import pytest

from policies.money.caches import ANTHROPIC, OPENAI, PREFIX, rule_for
from policies.money.catalog import prices_for
from policies.planning.step import oldest_in_reach
from tests.kit.talk import call, conversation_of, gives, user


def working(steps: int, parallel: int = 1) -> list[dict[str, Any]]:
    """A task, and steps of so many parallel calls, each with its result."""
    calls = [call(f"call_{n}", "bash", {}) for n in range(parallel)]
    step = [{"role": "assistant", "tool_calls": calls}, *(gives("x", each["id"]) for each in calls)]
    return [user("go"), *(message for _ in range(steps) for message in step)]


def test_a_cache_that_matches_any_prefix_finds_every_entry() -> None:
    conversation = conversation_of(*working(50))
    assert oldest_in_reach(conversation, conversation.ends[50], PREFIX) == 0


@pytest.mark.parametrize("parallel", [1, 3])
def test_openai_finds_the_newest_21_endings_and_a_group_of_results_has_one(parallel: int) -> None:
    conversation = conversation_of(*working(30, parallel))
    assert oldest_in_reach(conversation, conversation.ends[30], OPENAI) == conversation.ends[30 - (OPENAI.endings - 1)]
    assert oldest_in_reach(conversation, conversation.ends[20], OPENAI) == conversation.ends[0]  # the task is the 21st
    assert oldest_in_reach(conversation, conversation.ends[19], OPENAI) == 0


@pytest.mark.parametrize("parallel", [1, 3])
def test_anthropic_finds_20_positions_and_parallel_calls_are_one(parallel: int) -> None:
    conversation = conversation_of(*working(30, parallel))
    blocks_of_ten_steps = 10 * 2 * parallel  # calls and results: two positions for each step
    assert (
        oldest_in_reach(conversation, conversation.ends[30], ANTHROPIC)
        == conversation.ends[30] - blocks_of_ten_steps + 1
    )
    assert oldest_in_reach(conversation, conversation.ends[9], ANTHROPIC) == 0


def test_where_nobody_says_that_parallel_calls_are_one_position_each_is_its_own() -> None:
    """The dearer reading, of Claude on other platforms than Anthropic's own."""
    conversation = conversation_of(*working(30, 3))
    end = conversation.ends[30]
    elsewhere = [
        rule_for(name, prices_for(name)) for name in ("us.anthropic.claude-opus-5-5-v1:0", "a/claude-opus-5.5")
    ]
    assert [oldest_in_reach(conversation, end, rule) for rule in elsewhere] == [end - 19, end - 19]
    at_home = rule_for("claude-opus-5-5", prices_for("claude-opus-5-5"))
    assert oldest_in_reach(conversation, end, at_home) == oldest_in_reach(conversation, end, ANTHROPIC)
