"""What shortening costs in sight, measured without a model.

At each assistant turn of a recorded session, look at what that turn goes on to use: paths, identifiers, numbers, and
the old text that its edits quote. Was it visible in the request that the turn answers, recallable (it stood in a text
whose stub names the reference that gives it back), to be had again (the stub names a tool to run), behind a stub that
names no way back, or lost?

Laws: an item counts only where the history held it before, recalls apart; "visible" means verbatim; a stub counts as
naming a reference where it is the one of the very text that it hides.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from policies.model.conversation import Conversation, Part
from policies.model.edits import Edit, Fold, Replace
from policies.model.identifiers import identifiers_in
from policies.text.stubs import MARK, names_way_back, refs_named
from policies.tools import RECALL, arguments_of, shell_command, writes

RARE = 3
"""An item with at most so many earlier occurrences is rare."""

Where = Literal["visible", "recallable", "again", "stubbed", "lost"]
_APART = "\0"
"""Between texts, so that nothing is found that begins in one of them and ends in the next."""
_BEHIND: Sequence[Where] = ("recallable", "again", "stubbed")

_OLD = ("old_string", "old_str", "search", "old_text", "find")
_REPLACED = re.compile(r"replace\(\s*(?P<q>'''|\"\"\"|'|\")(?P<old>.{1,8000}?)(?P=q)\s*,", re.S)
_LITERAL = re.compile(r"""(?<=[\s(\[=,{])(?P<q>["'])(?P<old>(?:(?!(?P=q))[^\n]){20,400})(?P=q)(?=[\s)\],:}])""")
_SED = re.compile(r"(?<![\w])s(?P<d>[/|#@])(?P<old>(?:\\.|(?!(?P=d))[^\\\n])+)(?P=d)")


@dataclass(slots=True)
class Tally:
    """Where the items stood that turns used."""

    used: int = 0
    visible: int = 0
    recallable: int = 0
    """In a text that the recall tool gives back."""
    again: int = 0
    """Behind a stub that says which tool to run again."""
    stubbed: int = 0
    """Behind a stub that says something was left out, but not how to see it."""
    lost: int = 0

    def add(self, where: Where) -> None:
        """Count one item."""
        self.used += 1
        setattr(self, where, getattr(self, where) + 1)

    @property
    def share(self) -> float:
        """Visible items per item used; 1 where nothing was used."""
        return self.visible / self.used if self.used else 1.0


@dataclass(slots=True)
class Sight:
    """The three tallies of a session."""

    all: Tally
    rare: Tally
    quoted: Tally
    hidden: int = 0
    """Uses of hidden text: a turn and a recallable text that it would need count once, whatever it uses of it."""


def sight() -> Sight:
    """Tallies with nothing in them."""
    return Sight(Tally(), Tally(), Tally())


@dataclass(frozen=True, slots=True)
class _Hidden:
    """What one edit took out of sight; `ref` is empty where the stub does not name its reference."""

    text: str
    stub: str
    ref: str

    @property
    def where(self) -> Where:
        """Where an item stands that only this text holds."""
        if self.ref:
            return "recallable"
        return "again" if names_way_back(self.stub) else "stubbed" if MARK in self.stub else "lost"


@dataclass(frozen=True, slots=True)
class Need:
    """A hidden text by its reference, and what of it is needed."""

    ref: str
    items: tuple[str, ...]


class _View:
    """A request as the model reads it: what stands there, and what stands behind its stubs."""

    def __init__(self, conversation: Conversation, edits: Sequence[Edit]) -> None:
        self.history = _APART.join(block.text for block in conversation.blocks if block.tool != RECALL)
        self._shown = _APART.join(_shown(conversation, edits))
        self._hidden = [_hidden(conversation, edit) for edit in edits]
        self._behind = {
            where: _APART.join(hidden.text for hidden in self._hidden if hidden.where == where) for where in _BEHIND
        }

    def where(self, item: str) -> Where:
        """Where an item of the history stands."""
        if item in self._shown:
            return "visible"
        return next((where for where in _BEHIND if item in self._behind[where]), "lost")

    def needed(self, items: Iterable[str]) -> Iterator[Need]:
        """Recallable texts that bring these items, each time the one that brings most, the newest of equals."""
        away = {item for item in items if self.where(item) == "recallable"}
        held = {
            at: {item for item in away if item in hidden.text} for at, hidden in enumerate(self._hidden) if hidden.ref
        }
        left = set[str]().union(*held.values())
        while left:
            best = max(held, key=lambda at: (len(held[at] & left), at))
            yield Need(self._hidden[best].ref, tuple(sorted(held[best] & left)))
            left -= held[best]


def look(conversation: Conversation, edits: Sequence[Edit], said: Sequence[Part], found: Sight) -> None:
    """Tally what an answer goes on to use against what the request that it answers carried under these edits."""
    view = _View(conversation, edits)
    names, old = _used(view, said)
    for item in names:
        found.all.add(where := view.where(item))
        if view.history.count(item) <= RARE:
            found.rare.add(where)
    for item in old:
        found.quoted.add(view.where(item))
    found.hidden += sum(1 for _ in view.needed([*names, *old]))


def needed(conversation: Conversation, edits: Sequence[Edit], said: Sequence[Part]) -> list[Need]:
    """The hidden texts that a model has to recall to see all that it goes on to use in this answer."""
    view = _View(conversation, edits)
    names, old = _used(view, said)
    return list(view.needed([*names, *old]))


def _used(view: _View, said: Sequence[Part]) -> tuple[list[str], list[str]]:
    """What an answer uses of what the history held: names, and old text that its edits quote."""
    names = sorted(frozenset[str]().union(*(identifiers_in(part.text) for part in said)))
    old = [text for part in said if part.kind == "call" for text in quoted(part.tool, part.text)]
    return [item for item in names if item in view.history], [item for item in old if item in view.history]


def quoted(tool: str, arguments: str) -> Iterable[str]:
    """The old text that an edit may quote: `old_string` and its like; in shell edits every text to be replaced, and
    every string of 20 characters or more. What the history did not hold before is no old text: `look` leaves it out.
    """
    found = arguments_of(arguments)
    for key in _OLD:
        value = found.get(key)
        if isinstance(value, str) and value.strip():
            yield value
    command = shell_command(arguments)
    if command and writes(tool, arguments):
        for pattern in (_REPLACED, _SED, _LITERAL):
            for match in pattern.finditer(command):
                old = match["old"].replace("\\n", "\n").replace("\\/", "/").replace("\\'", "'").replace('\\"', '"')
                if len(old) >= 12:
                    yield old


def _shown(conversation: Conversation, edits: Sequence[Edit]) -> Iterator[str]:
    """The texts of the request."""
    stubs: dict[int, str] = {}
    gone = set[int]()
    for edit in edits:
        span = _span(conversation, edit)
        stubs[span.start] = edit.text
        gone.update(span)
    for i, block in enumerate(conversation.blocks):
        if i in stubs or i not in gone:
            yield stubs.get(i, block.text)


def _hidden(conversation: Conversation, edit: Edit) -> _Hidden:
    span = _span(conversation, edit)
    ref = conversation.run_ref(span.start, span.stop - 1) if isinstance(edit, Fold) else conversation.ref(span.start)
    hidden = _APART.join(conversation.blocks[i].text for i in span)
    return _Hidden(hidden, edit.text, ref if ref in refs_named(edit.text) else "")


def _span(conversation: Conversation, edit: Edit) -> range:
    """The blocks in whose place the edit puts its text."""
    first, last = (edit.at, edit.at) if isinstance(edit, Replace) else (edit.first, edit.last)
    return range(conversation.index[first], conversation.index[last] + 1)
