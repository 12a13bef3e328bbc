"""When planning is to stop, between steps and inside them; and steps at which nothing new was decided because there was
no time to plan.

Law: at such a step only what its record says is repeated, by every later plan too. So what was sent without planning is
what later requests begin with, and what was given up there is decided at a later step, as any other rewrite.
"""

from collections.abc import Callable, Container

from policies.context import TokenCounter
from policies.model.conversation import Conversation
from policies.model.memory import Memory

AT_ONCE = 128
"""Items that are worked on between two looks inside a step: some milliseconds. Hardly any step has so many."""


class OverdueError(Exception):
    """Planning is to stop inside a step."""


class Watch:
    """Looks whether planning is to stop: before each step, and inside of one once in so many items."""

    def __init__(self, stop: Callable[[], bool], count: TokenCounter) -> None:
        self._stop = stop
        self._count = count
        self.has_ended = False
        """Whether planning was stopped: then no policy is asked any more, and nothing new is decided."""
        self._left = AT_ONCE
        self._is_long = self.was_long = False
        """Whether this step has many items, and whether the one before had."""

    def is_over(self) -> bool:
        """Whether planning is to stop before the next step; never once it was stopped."""
        self.was_long, self._is_long, self._left = self._is_long, False, AT_ONCE
        return not self.has_ended and self._stop()

    def pause(self, items: int = 1) -> None:
        """So many items of a step were worked on. Raises OverdueError where planning is to stop."""
        self._left -= items
        if self._left <= 0:
            self._is_long, self._left = True, AT_ONCE
            if not self.has_ended and self._stop():
                raise OverdueError

    def count(self, text: str) -> int:
        """The tokens of a text, which is an item."""
        self.pause()
        return self._count(text)


def undecided_steps(conversation: Conversation, memory: Memory, first: int) -> Container[int]:
    """These steps, from `first` on."""
    if not any(record.shed for record in memory.steps.values()):
        return ()
    low, steps = conversation.steps, set[int]()
    for step in reversed(range(first, conversation.steps)):
        record = memory.steps.get(conversation.end_anchor(step))
        low = min(low, step + 1 - record.shed) if record and record.shed else low
        if step >= low:
            steps.add(step)
    return steps
