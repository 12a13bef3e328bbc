"""What is settled: work that lies before a person's newer message, once the model has turned to something else.

A newer message alone says little: harnesses nudge, and people say "go on". Where the first file that the model names
after it is one that no call before it named, what was read and written before is done with.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from policies.context import Context
from policies.model.conversation import Block, Conversation
from policies.model.windows import Keep, begin_of
from policies.tools import path_of


@dataclass(frozen=True, slots=True)
class Topic:
    """Where in a history the work at hand begins: `mark` is the newest message of a person since which the model has
    turned to something else, `asked` the newest of which that is not known yet (-1 for none)."""

    mark: int = 0
    asked: int = -1
    paths: frozenset[str] = frozenset()

    def after(self, blocks: Sequence[Block], start: int) -> "Topic":
        """The topic once these blocks have been said, the first of which is that of index `start`."""
        mark, asked, paths = self.mark, self.asked, self.paths
        for at, block in enumerate(blocks, start):
            if block.from_person:
                asked = at
            elif block.kind == "call" and (path := path_of(block.tool, block.text)):
                mark = asked if asked >= 0 and not _is_known(path, paths) else mark
                asked, paths = -1, paths if path in paths else paths | {path}
        return Topic(mark, asked, paths)


def _is_known(path: str, paths: frozenset[str]) -> bool:
    """Whether a file was named before, from here or from further up."""
    return path in paths or any(each.endswith("/" + path) or path.endswith("/" + each) for each in paths)


def settled(conversation: Conversation, context: Context, keep: Keep | None) -> range:
    """The blocks outside a window that are settled with this very step; none where there is no window."""
    if keep is None or context.step == 0:
        return range(0)
    steps, room = (context.step - 1, context.step), context.budget.window
    before, now = (
        max(conversation.ends[0], min(mark, begin_of(conversation, keep, step, room)))
        for mark, step in zip(context.topics, steps, strict=True)
    )
    return range(before, now)
