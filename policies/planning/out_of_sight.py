"""Tells whether the newest actions of the model used something that Narrows had hidden from it.

It is a watch, not a judge: it reads calls alone, in which a name counts wherever its letters stand. proxy.lab.needs
judges recordings, with prose and patches.
"""

import json
from collections.abc import Iterable, Iterator, Sequence

from policies.model.conversation import Block, Conversation
from policies.model.edits import Fold
from policies.planning.state import Plan
from policies.sight import names_reached, steps_recalled
from policies.tools.arguments import old_texts

_MOST_SOUGHT = 4
_SHORTEST, _LONGEST = 12, 200
"""Characters of the shortest such line, and of the longest: of a longer one the beginning."""
_LOOKED_AT, _LONGEST_CALL = 400_000, 400_000
"""Characters that are looked at, the newest first; and of the longest call. What is not found counts as in sight."""


def was_out_of_sight(conversation: Conversation, plan: Plan) -> bool | None:
    """True where the newest calls use a name, or replace a line, that the client had sent, and that stood nowhere in
    the request which they answer; None where no call came, or nobody knows. A recall of what is there is such a call.
    What this very plan has hidden stood there."""
    step, newest = conversation.steps - 1, conversation.arrived(conversation.steps - 1)
    calls = [conversation.blocks[at] for at in newest if conversation.blocks[at].kind == "call"]
    reached, state, changed = names_reached(conversation), plan.state, frozenset(_changed(conversation, plan))
    if not calls or reached is None or len(plan.new) == len(plan.edits):
        return None
    if any(steps_recalled(conversation, step)):
        return True

    def is_hidden(at: int) -> bool:
        edit = state.edits.get(at)
        return at not in changed and (at in state.folded or (edit is not None and not edit.lossless))

    names = sorted(name for name, since in reached.items() if any(map(is_hidden, conversation.arrived(since))))
    wanted = [*names[:_MOST_SOUGHT], *_lines_replaced(calls)]
    if not wanted:
        return False
    visible, hidden = [edit.text for edit in plan.edits], list[str]()
    for at in reversed(range(newest.start)):
        (hidden if is_hidden(at) else visible).append(conversation.blocks[at].text)
    seen, behind = _joined(visible), _joined(hidden)
    # a text as it is, and as it stands inside the arguments of a call
    spellings = [(text, json.dumps(text, ensure_ascii=False)[1:-1]) for text in wanted]
    missing = [each for each in spellings if not any(spelling in seen for spelling in each)]
    return any(spelling in behind for each in missing for spelling in each)


def _changed(conversation: Conversation, plan: Plan) -> Iterator[int]:
    for edit in plan.new:
        if isinstance(edit, Fold):
            yield from range(conversation.index[edit.first], conversation.index[edit.last] + 1)
        else:
            yield conversation.index[edit.at]


def _lines_replaced(calls: Sequence[Block]) -> Sequence[str]:
    lines = {
        line.strip()[:_LONGEST]
        for call in calls
        if len(call.text) <= _LONGEST_CALL
        for text in old_texts(call.text)
        for line in text.split("\n")
    }
    return sorted((line for line in lines if len(line) >= _SHORTEST), key=lambda line: (-len(line), line))[
        :_MOST_SOUGHT
    ]


def _joined(texts: Iterable[str]) -> str:
    """These texts as one, as far as they are looked at: to search a long one takes linear time, whatever it holds."""
    some, room = list[str](), _LOOKED_AT
    for text in texts:
        some.append(text[:room])
        room -= len(text)
        if room <= 0:
            break
    return "\0".join(some)
