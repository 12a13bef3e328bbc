"""X9: the work of planning grows with the history, whatever stands in it: counted in calls, which are the same on each
run."""

import sys
from collections.abc import Callable
from typing import Any

import pytest

from policies.model.conversation import Conversation, converse
from policies.planning.plan import plan
from policies.presets import PRESETS
from tests.kit.talk import Json, conversation_of, recalls, runs, says, setup, user

PAGE = "\n".join(f"line {i} of the page" for i in range(12))


def recalled(count: int) -> list[Json]:
    """Answers of the recall tool to many different calls."""
    return [message for i in range(count) for message in recalls("123456", PAGE, f"lines {i}-{i + 9}")]


def repeated(count: int) -> list[Json]:
    """The same output again and again: each is a pointer to one above."""
    return [message for i in range(count) for message in [*runs(f"cat {i}.py", PAGE), says(f"I saw page_{i}.")]]


def long_talk(count: int) -> list[Json]:
    return [message for i in range(count) for message in (user(f"And {i}?"), says(f"The value_{i} " + "is so. " * 60))]


def steps(count: int) -> list[Json]:
    return [message for i in range(count) for message in runs(f"pytest {i}", f"{i} passed\n" * 40)]


def work(conversation: Conversation) -> int:
    """Calls, and resumptions of generators, that planning this history from its beginning takes."""
    preset, count = PRESETS["coding-agent"], 0

    def counted(_: Any, event: str, __: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    fresh = converse(conversation.messages)
    sys.setprofile(counted)
    try:
        plan(fresh, setup(*preset.policies, exceptions=preset.exceptions))
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("shape", [recalled, repeated, long_talk, steps])
def test_x9_twice_the_history_is_twice_the_work(shape: Callable[[int], list[Json]]) -> None:
    small, large = (conversation_of(user("go"), *shape(count), user("on")) for count in (60, 120))
    work(large)  # texts that are remembered by the process are so in both
    assert work(large) < 2.3 * work(small)
