"""Whether what the model has just done used something that Narrows had hidden from it.

It is a watch, not a judge: it reads calls alone, in which a name counts wherever its letters stand. proxy.lab.needs
judges recordings, with prose and patches.
"""

from collections.abc import Iterator, Sequence

import msgspec

from policies.model.conversation import Block, Conversation
from policies.model.edits import Fold
from policies.planning.state import Plan
from policies.sight import names_reached
from policies.tools import RECALL
from policies.tools.arguments import old_texts

_MOST = 8
"""Names of one action, and lines that it replaces, that are looked for in what was sent."""
_SHORTEST, _LONGEST = 12, 200
"""Characters of the shortest such line, and of the longest: of a longer one the beginning."""
_LOOKED_AT = 3_000_000
"""Characters that are looked at for one action, each as often as something is looked for in it. What was not found by
then counts as in sight."""


def was_out_of_sight(conversation: Conversation, plan: Plan) -> bool | None:
    """Whether the newest calls use a name, or replace a line, that the client had sent, and that stood nowhere in the
    request which they answer; None where no call came, or nobody knows. A recall counts as such a call. What this very
    plan has hidden stood there."""
    newest = conversation.arrived(conversation.steps - 1)
    calls = [conversation.blocks[at] for at in newest if conversation.blocks[at].kind == "call"]
    if not calls or any(call.tool == RECALL for call in calls):
        return True if calls else None
    state, changed = plan.state, frozenset(_changed(conversation, plan))

    def is_hidden(at: int) -> bool:
        edit = state.edits.get(at)
        return at not in changed and (at in state.folded or (edit is not None and not edit.lossless))

    if (reached := names_reached(conversation)) is None:
        return None
    names = sorted(name for name, step in reached.items() if any(map(is_hidden, conversation.arrived(step))))
    lines = _lines_replaced(calls) if state.edits or state.folded else []
    missing, hidden, work = [_spellings(each) for each in (*names[:_MOST], *lines)], list[str](), 0
    for at in reversed(range(newest.start)):  # nearly all is found in the newest
        text = conversation.blocks[at].text
        if not missing or (work := work + len(missing) * len(text)) > _LOOKED_AT:
            return False
        if is_hidden(at):
            hidden.append(text)
        else:
            missing = [each for each in missing if not _holds(text, each)]
    missing = [each for each in missing if not any(_holds(edit.text, each) for edit in plan.edits)]
    return any(_holds(text, each) for each in missing for text in hidden)


def _changed(conversation: Conversation, plan: Plan) -> Iterator[int]:
    """The blocks that this plan changed."""
    for edit in plan.new:
        if isinstance(edit, Fold):
            yield from range(conversation.index[edit.first], conversation.index[edit.last] + 1)
        else:
            yield conversation.index[edit.at]


def _lines_replaced(calls: Sequence[Block]) -> Sequence[str]:
    """The longest lines that edits among these calls replace."""
    lines = {line.strip()[:_LONGEST] for call in calls for text in old_texts(call.text) for line in text.split("\n")}
    return sorted((line for line in lines if len(line) >= _SHORTEST), key=lambda line: (-len(line), line))[:_MOST]


def _spellings(text: str) -> Sequence[str]:
    """A text as it is, and as it stands inside the arguments of a call where that differs."""
    return tuple(dict.fromkeys((text, msgspec.json.encode(text).decode()[1:-1])))


def _holds(text: str, spellings: Sequence[str]) -> bool:
    return any(each in text for each in spellings)
