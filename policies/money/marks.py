"""Where an added cache mark helps, on caches that match only at marks.

There are three places. Before the newest result: the entry written there survives when the result is cut one step
later. At the end of what was recalled, where the client has no mark. And where a rewrite begins, at the end of the
newest entry that it leaves: a provider looks back only so far from a mark.
"""

from collections.abc import Mapping
from typing import Literal

from policies.model.conversation import Conversation

MarkStyle = Literal["", "cache_control", "prompt_cache_breakpoint"]

_MARKABLE: Mapping[MarkStyle, frozenset[str]] = {
    "cache_control": frozenset({"user", "result", "assistant"}),
    # OpenAI takes breakpoints on system, user and tool content only
    "prompt_cache_breakpoint": frozenset({"user", "result"}),
}


def own_marks(
    conversation: Conversation,
    step: int,
    standing: int | None,
    style: MarkStyle,
    slots: int,
    recalled: bool = False,
    tail: bool = False,
) -> tuple[int, ...]:
    """The blocks at whose end a mark is to be added in the request of `step`. `standing` is the end of the newest cache
    entry that a rewrite leaves (None: nothing is rewritten), `slots` how many marks are free: a single one goes where a
    rewrite begins, except in a `tail` cut, whose own tail is soon cut again. `recalled`: the request ends with what was
    recalled."""
    if not style or slots <= 0:
        return ()
    fresh = conversation.ends[step]
    while fresh and not recalled and conversation.blocks[fresh - 1].kind in ("user", "result", "system"):
        fresh -= 1
    places = set[int]()
    for end in (standing or 0, fresh):
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
