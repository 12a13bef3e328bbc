"""What is settled: work that lies before a person's newer message, once the model has turned to something else.

A newer message alone says little: harnesses nudge, and people say "go on". Where the first file that the model names
after it is one that no call before it named, what was read and written before is done with.
"""

from bisect import bisect_left

from policies.context import Context
from policies.conversation import Conversation
from policies.measures import Keep, begin_of
from policies.tools import path_of


def settled(conversation: Conversation, context: Context, keep: Keep | None) -> range:
    """The blocks outside a window that are settled with this very step; none where there is no window."""
    if keep is None or context.step == 0:
        return range(0)
    step, room = context.step, context.budget.window
    before, now = (begin_of(conversation, keep, each, room) for each in (step - 1, step))
    marks = [_mark(conversation, before, conversation.ends[each]) for each in (step - 1, step)]
    if not marks[1]:
        return range(0)
    start = before if marks[0] == marks[1] else conversation.ends[0]
    return range(start, max(start, min(marks[1], now)))


def _mark(conversation: Conversation, after: int, end: int) -> int:
    """The newest message of a person, beyond the block `after`, since which the model has turned to something else; 0
    where there is none. What lies before an older one has been settled."""
    words = conversation.words
    known = range(bisect_left(words, end) - 1, bisect_left(words, after) - 1, -1)
    return next((words[at] for at in known if _turned(conversation, words[at], end)), 0)


def _turned(conversation: Conversation, words: int, end: int) -> bool:
    """Whether the first file named between the block `words` and `end` is a new one."""
    calls = (conversation.blocks[i] for i in range(words, end) if conversation.blocks[i].kind == "call")
    path = next((path for call in calls if (path := path_of(call.tool, call.text))), "")
    before = conversation.blocks[:words]
    return bool(path) and not any(path in block.text for block in before if block.kind == "call")
