"""Where an added cache mark helps, on caches that match only at marks.

There are three places. At the end of what will stay as it is: where the client marks the end of its requests itself,
that is before the newest result, whose entry survives when the result is cut one step later; where it does not, before
the first block that will be cut, or at the very end. And where a rewrite begins, or nothing was found for a while: at
the end of the newest entry that stands, because a provider looks back only so far from a mark.
"""

from collections.abc import Mapping
from typing import Literal

from policies.model.conversation import Conversation

MarkStyle = Literal["", "cache_control", "prompt_cache_breakpoint"]
OwnMarks = Literal["auto", "beside", "never"]
"""Where cache marks of ours are set: wherever the model's cache matches only at marks, only beside marks of the
client's, or nowhere."""

_MARKABLE: Mapping[MarkStyle, frozenset[str]] = {
    "cache_control": frozenset({"user", "result", "assistant"}),
    # OpenAI takes breakpoints on system, user and tool content only
    "prompt_cache_breakpoint": frozenset({"user", "result"}),
}


def newest_input(conversation: Conversation, step: int) -> int:
    """Where the newest input of the model begins: what came after its last words and calls."""
    at = conversation.ends[step]
    while at and conversation.blocks[at - 1].kind in ("user", "result", "system"):
        at -= 1
    return at


def own_marks(
    conversation: Conversation, *, entry: int, stays: int, style: MarkStyle, slots: int, tail: bool = False
) -> tuple[int, ...]:
    """The blocks at whose end a mark is to be added. `entry` is the end of the newest cache entry where a mark is
    needed to find it (0: none is), `stays` that of the blocks that will stay as they are. `slots` is how many marks are
    free: a single one goes to the entry, except in a `tail` cut, whose own tail is soon cut again."""
    if not style or slots <= 0:
        return ()
    places = set[int]()
    for end in (entry, stays):
        # the last block before it that can carry a mark and ends its message's content
        for at in range(end - 1, conversation.head - 1, -1):
            block = conversation.blocks[at]
            following = conversation.blocks[at + 1] if at + 1 < len(conversation.blocks) else None
            ends_content = following is None or following.message != block.message or following.kind == "call"
            if block.kind in _MARKABLE[style] and block.text and ends_content:
                places.add(at)
                break
    marks = sorted(places)
    return tuple(marks[-slots:] if tail else marks[:slots])
