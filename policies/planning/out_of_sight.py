"""Whether what the model has just done used something that Narrows had hidden from it."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from policies.model.conversation import Block, Conversation
from policies.model.edits import Fold
from policies.planning.state import Plan
from policies.sight import names_reached
from policies.tools import RECALL
from policies.tools.arguments import old_texts

_MOST = 8
"""Names of one action, and lines that it replaces, that are looked for in what was sent."""
_SHORTEST = 12
"""Characters of the shortest such line."""


def was_out_of_sight(conversation: Conversation, plan: Plan) -> bool | None:
    """Whether the newest calls use a name, or replace a line, that the client had sent, and that stood nowhere in the
    request which they answer; None where no call came. A recall counts as such a call. What this very plan has hidden
    stood there."""
    newest = conversation.arrived(conversation.steps - 1)
    calls = [conversation.blocks[at] for at in newest if conversation.blocks[at].kind == "call"]
    if not calls or any(call.tool == RECALL for call in calls):
        return True if calls else None
    state, new = plan.state, frozenset(_changed(conversation, plan))

    def is_hidden(at: int) -> bool:
        edit = state.edits.get(at)
        return at not in new and (at in state.folded or (edit is not None and not edit.lossless))

    def texts(*, hidden: bool) -> Iterator[str]:
        """The newest first, in which nearly all is found."""
        before = (at for at in reversed(range(newest.start)) if is_hidden(at) == hidden)
        return (conversation.blocks[at].text for at in before)

    reached = names_reached(conversation).items()
    names = sorted(name for name, step in reached if any(map(is_hidden, conversation.arrived(step))))[:_MOST]
    lines = _lines_replaced(calls) if state.edits or state.folded else []
    missing = [each for each in (*names, *lines) if not _holds(texts(hidden=False), each)]
    missing = [each for each in missing if not _holds((edit.text for edit in plan.edits), each)]
    return any(_holds(texts(hidden=True), each) for each in missing)


def _changed(conversation: Conversation, plan: Plan) -> Iterator[int]:
    """The blocks that this plan changed."""
    for edit in plan.new:
        if isinstance(edit, Fold):
            yield from range(conversation.index[edit.first], conversation.index[edit.last] + 1)
        else:
            yield conversation.index[edit.at]


def _lines_replaced(calls: Sequence[Block]) -> Sequence[str]:
    """The longest lines that edits among these calls replace."""
    lines = {line.strip() for call in calls for text in old_texts(call.text) for line in text.split("\n")}
    return sorted((line for line in lines if len(line) >= _SHORTEST), key=lambda line: (-len(line), line))[:_MOST]


def _holds(texts: Iterable[str], line: str) -> bool:
    """Whether one of these texts holds a line, as it is or as JSON."""
    escaped = msgspec.json.encode(line).decode("utf-8", "replace")[1:-1]
    return any(line in text or (escaped != line and escaped in text) for text in texts)
