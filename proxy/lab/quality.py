"""How much of what a model uses is still visible after shortening, measured without a model.

The items are the paths, identifiers and numbers that an assistant turn of a recorded session uses, and the old text
that its edits quote. Each was visible in the request that the turn answers, recallable (it stood in a text whose stub
names the reference that gives it back), recoverable by running a tool again (which the stub names), behind a stub that
names no way back, or lost.

Laws
  An item counts only where the history held it before, recalls apart; "visible" means verbatim; a stub counts as naming
  a reference only where that is the reference of the very text that it hides.
  An item is at risk where it last stood more than `RECENT` turns ago: hardly anything newer is shortened. A name at
  risk is visible only where a line of the history that holds it stands: a name in the list of a stub is not sight.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import ClassVar, Literal, get_args

import msgspec

from policies.model.conversation import Conversation, Part
from policies.model.edits import Edit, Fold
from policies.model.identifiers import identifiers_in
from policies.text.stubs import MARK, names_way_back, refs_named
from policies.tools import OURS, arguments_of, shell_command, writes
from policies.tools.arguments import OLD, spelled
from proxy.lab.breakdown import span

RARE = 3
"""Earlier occurrences of a rare item, at most."""
RECENT = 5
"""Turns in which an item that stood is not at risk."""
SHORTEST = 12
"""Characters that quoted text has at least where it is not an argument of its own."""

Where = Literal[
    "visible", "recoverable_by_recall", "recoverable_by_running_again", "behind_a_stub_without_way_back", "lost"
]
_APART = "\0"
"""Between texts, so that no match begins in one of them and ends in the next."""
_BEHIND: Sequence[Where] = get_args(Where)[1:-1]

_OLD = OLD | {"search", "find"}
_EDITS = ("edits", "replacements", "replacementchunks")
_PATCH = re.compile(r"^(?:\*\*\* Begin Patch|--- \S.*\n\+\+\+ \S|@@ -\d)", re.M)
_PATCH_IN_CODE = re.compile(r'(?<!\\)"\*\*\* Begin Patch(?:\\.|[^"\\])*"')
_SEARCH, _DIVIDER = re.compile(r"(?:<{5,9}|-{5,9}) SEARCH>?[ \t]*"), re.compile(r"={5,9}[ \t]*")
_REPLACED = re.compile(r"replace\(\s*(?P<q>'''|\"\"\"|'|\")(?P<old>.{1,8000}?)(?P=q)\s*,", re.S)
_LITERAL = re.compile(r"""(?<=[\s(\[=,{])(?P<q>["'])(?P<old>(?:(?!(?P=q))[^\n]){20,400})(?P=q)(?=[\s)\],:}])""")
_SED = re.compile(r"(?<![\w])s(?P<d>[/|#@])(?P<old>(?:\\.|(?!(?P=d))[^\\\n])+)(?P=d)")


@dataclass(slots=True)
class Tally:
    JSON: ClassVar = ("used", *get_args(Where), "share_visible")

    used: int = 0
    visible: int = 0
    recoverable_by_recall: int = 0
    recoverable_by_running_again: int = 0
    """The stub says which tool to run."""
    behind_a_stub_without_way_back: int = 0
    """The stub says that something was left out, but not how to see it."""
    lost: int = 0

    def add(self, where: Where) -> None:
        self.used += 1
        setattr(self, where, getattr(self, where) + 1)

    @property
    def recoverable(self) -> int:
        """Items out of sight that the model could get back."""
        return self.recoverable_by_recall + self.recoverable_by_running_again

    @property
    def share_visible(self) -> float:
        """Visible items per item used; 1 where nothing was used."""
        return self.visible / self.used if self.used else 1.0


@dataclass(slots=True)
class Visibility:
    JSON: ClassVar = ("all", "rare", "at_risk_rare", "quoted", "quoted_lines", "at_risk_quoted_lines")

    all: Tally = field(default_factory=Tally)
    rare: Tally = field(default_factory=Tally)
    at_risk_rare: Tally = field(default_factory=Tally)
    quoted: Tally = field(default_factory=Tally)
    """Old texts of edits that the history held as a whole."""
    quoted_lines: Tally = field(default_factory=Tally)
    """Lines of all old texts, each where the history held it: behind line numbers, say, no text stands as a whole."""
    at_risk_quoted_lines: Tally = field(default_factory=Tally)
    hidden: int = 0
    """Uses of hidden text: a turn and a recallable text that it would need count once, however many items it uses."""


@dataclass(frozen=True, slots=True)
class _Hidden:
    text: str
    ref: str
    where: Where
    """Where an item stands that only this text holds."""


@dataclass(frozen=True, slots=True)
class Need:
    """A hidden text by its reference, and the items of it that are needed."""

    ref: str
    items: tuple[str, ...]


class _View:
    """A request as the model reads it: what stands there, what stands behind its stubs, and what the answer uses."""

    def __init__(self, conversation: Conversation, edits: Sequence[Edit], answer: Sequence[Part]) -> None:
        texts = {i: block.text for i, block in enumerate(conversation.blocks)}
        self._hidden: list[_Hidden] = []
        for edit in edits:
            blocks = span(conversation, edit)
            is_fold = isinstance(edit, Fold)
            ref = conversation.run_ref(blocks[0], blocks[-1]) if is_fold else conversation.ref(blocks[0])
            hidden = _APART.join(conversation.blocks[i].text for i in blocks)
            where: Where = "behind_a_stub_without_way_back" if MARK in edit.text else "lost"
            if ref in refs_named(edit.text):
                where = "recoverable_by_recall"
            elif names_way_back(edit.text):
                where = "recoverable_by_running_again"
            self._hidden.append(_Hidden(hidden, ref if where == "recoverable_by_recall" else "", where))
            texts |= {blocks[0]: edit.text, **dict.fromkeys(blocks[1:], "")}
        self._texts = texts
        in_calls = (texts[i] for i, block in enumerate(conversation.blocks) if block.kind == "call")
        arguments = (text for call in in_calls for _, text in strings_in(arguments_of(call)))
        self._visible = _APART.join([*texts.values(), *arguments])
        self._behind = {
            where: _APART.join(hidden.text for hidden in self._hidden if hidden.where == where) for where in _BEHIND
        }
        self._own = [(i, block.text) for i, block in enumerate(conversation.blocks) if block.tool not in OURS]
        self.history = _APART.join(text for _, text in self._own)
        start = conversation.ends[max(0, conversation.steps - 1 - RECENT)]
        self._recent = _APART.join(text for i, text in self._own if i >= start)
        names = frozenset[str]().union(*(identifiers_in(part.text) for part in answer))
        self.names = [name for name in sorted(names) if name in self.history]
        old = [text for part in answer if part.kind == "call" for text in quoted(part.tool, part.text)]
        self.old_texts = [text for text in old if text in self.history]
        lines = (line.strip() for text in old for line in text.split("\n"))
        self.old_lines = [line for line in lines if len(line) >= SHORTEST and line in self.history]

    def is_at_risk(self, item: str) -> bool:
        """True where an item of the history last stood more than `RECENT` turns ago."""
        return item not in self._recent

    def where_by_line(self, name: str) -> Where:
        """Where a name of the history stands, visible only where a line that holds it does: a line of the history, or
        of a text in arguments."""
        holding = [(i, text) for i, text in self._own if name in text]
        if any(self._texts[i] == text for i, text in holding):
            return "visible"
        written = [
            text for _, whole in holding for text in (whole, *(text for _, text in strings_in(arguments_of(whole))))
        ]
        lines = {line.strip() for text in written for line in text.split("\n") if name in line}
        # a line that is hardly more than the name may stand in a list of names
        long = (line for line in lines if len(line) >= len(name) + SHORTEST)
        if not lines.isdisjoint(self._visible_lines) or any(line in self._visible for line in long):
            return "visible"
        return self._out_of_sight(name)

    @cached_property
    def _visible_lines(self) -> frozenset[str]:
        return frozenset(line.strip() for text in self._texts.values() for line in text.split("\n"))

    def where(self, item: str) -> Where:
        if item in self._visible:
            return "visible"
        return self._out_of_sight(item)

    def _out_of_sight(self, item: str) -> Where:
        return next((where for where in _BEHIND if item in self._behind[where]), "lost")

    def needed(self) -> Iterator[Need]:
        """Recallable texts that hold what the answer uses: each time the one with most items, the newest of equals."""
        away = {item for item in (*self.names, *self.old_texts) if self.where(item) == "recoverable_by_recall"}
        brings = {
            at: {item for item in away if item in hidden.text} for at, hidden in enumerate(self._hidden) if hidden.ref
        }
        missing = set[str]().union(*brings.values())
        while missing:
            best = max(brings, key=lambda at: (len(brings[at] & missing), at))
            yield Need(self._hidden[best].ref, tuple(sorted(brings[best] & missing)))
            missing -= brings[best]


def tally(conversation: Conversation, edits: Sequence[Edit], answer: Sequence[Part], visibility: Visibility) -> None:
    """Count what an answer goes on to use by where it stood in the request under these edits."""
    view = _View(conversation, edits, answer)
    for name in view.names:
        visibility.all.add(where := view.where(name))
        if view.history.count(name) <= RARE:
            visibility.rare.add(where)
            if view.is_at_risk(name):
                visibility.at_risk_rare.add(view.where_by_line(name))
    for text in view.old_texts:
        visibility.quoted.add(view.where(text))
    for line in view.old_lines:
        visibility.quoted_lines.add(where := view.where(line))
        if view.is_at_risk(line):
            visibility.at_risk_quoted_lines.add(where)
    visibility.hidden += sum(1 for _ in view.needed())


def needed(conversation: Conversation, edits: Sequence[Edit], answer: Sequence[Part]) -> list[Need]:
    """The hidden texts that a model has to recall to see all that it goes on to use in this answer."""
    return list(_View(conversation, edits, answer).needed())


def quoted(tool: str, arguments: str, *, context: bool = False) -> Iterator[str]:
    """The old text that an edit may quote: `old_string` and its like, in lists of edits too; SEARCH blocks; the lines
    that a patch takes out, and with `context` those that it finds its place by; in shell edits every text to be
    replaced, and every string of 20 characters or more. What the history did not hold before is left to `tally`.
    """
    values = arguments_of(arguments)
    for name, text in strings_in(values or arguments):
        if name in _OLD and text.strip():
            yield text
        elif blocks := [*_searched(text)]:
            yield from blocks
        elif patch := _PATCH.search(text):
            yield from _taken_out(text[patch.start() :], context)
        else:
            for literal in _PATCH_IN_CODE.findall(text):
                yield from _taken_out(str(_from_json(literal) or ""), context)
    command = shell_command(arguments)
    if command and writes(tool, arguments):
        for pattern in (_REPLACED, _SED, _LITERAL):
            for match in pattern.finditer(command):
                old = match["old"].replace("\\n", "\n").replace("\\/", "/").replace("\\'", "'").replace('\\"', '"')
                if len(old) >= SHORTEST:
                    yield old


def strings_in(value: object) -> Iterator[tuple[str, str]]:
    """The strings in arguments, each with the name that it has in one spelling; a list of edits may be JSON itself."""
    pending = [("", value)]
    while pending:
        name, value = pending.pop()
        if isinstance(value, dict):
            pending += reversed([(spelled(key), each) for key, each in value.items()])
        elif isinstance(value, list):
            pending += reversed([(name, each) for each in value])
        elif isinstance(value, str) and name in _EDITS and isinstance(edits := _from_json(value), list) and edits:
            pending.append((name, edits))
        elif isinstance(value, str):
            yield name, value


def _from_json(text: str) -> object:
    """What a text is as JSON; None where it is none."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _searched(text: str) -> Iterator[str]:
    """The texts that SEARCH blocks look for, each up to its divider."""
    lines: list[str] | None = None
    for line in text.split("\n") if " SEARCH" in text else ():
        if _SEARCH.fullmatch(line):
            lines = []
        elif lines is not None and _DIVIDER.fullmatch(line):
            yield "\n".join(lines)
            lines = None
        elif lines is not None:
            lines.append(line)


def _taken_out(patch: str, context: bool) -> Iterator[str]:
    """The lines that a patch takes out, and with `context` those around them, each run of them as one text."""
    marks = ("-", " ") if context else ("-",)
    lines: list[str] = []
    for line, following in pairwise([*patch.split("\n"), "", ""]):
        is_header = line.startswith("--- ") and following.startswith("+++ ")
        if line.startswith(marks) and not is_header:
            lines.append(line[1:])
        elif lines:
            if len("\n".join(lines).strip()) >= SHORTEST:
                yield "\n".join(lines)
            lines = []
