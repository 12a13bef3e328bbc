"""Finished work: what lies before a person's newer message, once the model has turned to something else.

A newer message alone says little: harnesses nudge, and people say "go on". The work before it is finished when the
first file that the model names after it is one that no call before it named.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from policies.context import Context
from policies.model.conversation import Block, Conversation
from policies.model.windows import Keep, begin_of
from policies.tools import path_of


@dataclass(frozen=True, slots=True)
class CurrentTask:
    """Where in a history the work at hand begins."""

    start: int = 0
    """The block of the message that began it."""
    candidate: int = -1
    """The newest message of a person after that, while no call since has named a file; -1 for none."""
    paths: frozenset[str] = frozenset()
    """The files that calls have named so far."""

    def after(self, blocks: Sequence[Block], first: int) -> "CurrentTask":
        """The task once these blocks have arrived, which begin at index `first`."""
        start, candidate, paths = self.start, self.candidate, self.paths
        for at, block in enumerate(blocks, first):
            if block.from_person:
                candidate = at
            elif block.kind == "call" and (path := path_of(block.tool, block.text)):
                # a file may have been named before relative to another directory
                if candidate >= 0 and not any(f"/{p}".endswith(f"/{path}") or path.endswith(f"/{p}") for p in paths):
                    start = candidate
                candidate, paths = -1, paths if path in paths else paths | {path}
        return CurrentTask(start, candidate, paths)


def finished(conversation: Conversation, context: Context, keep: Keep | None) -> range:
    """The blocks outside the window `keep` that belong to finished work with this very step; none without `keep`."""
    if keep is None or context.step == 0:
        return range(0)
    steps, room = (context.step - 1, context.step), context.budget.window
    before, now = (
        max(conversation.ends[0], min(start, begin_of(conversation, keep, step, room)))
        for start, step in zip(context.task_starts, steps, strict=True)
    )
    return range(before, now)
