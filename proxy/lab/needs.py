"""Needs of the next step of a recorded session that are out of its sight, judged without a model.

An action is what the model answers a request with. It needs the paths, names and numbers that it uses, in its calls and
in its prose, and the old text that its edits quote. What of that the client had sent, and what stands nowhere in the
request as Narrows sent it, is out of sight: the model would have to recall it, or guess.

Laws
  A name counts as a whole word; a number from four digits on, unless it is round: nobody looks up a timeout of 120000;
  a line of old text from `SHORTEST` characters on.
  Arguments are read as what they mean: neither their JSON nor an escape before a name is part of it.
  What the model recalled is in sight, and no part of the history that is needed.
  A stub connects where it, or the call whose output it stands for, holds the path or the first 40 characters of the
  command of what is hidden, or else the function's name and the beginning of what it was asked; of the model's own
  prose, its first 40 characters. Then the model could know what to recall.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from posixpath import normpath
from statistics import median
from typing import ClassVar

from policies.model.conversation import Block, Conversation, Part
from policies.model.edits import Edit, Fold
from policies.model.identifiers import identifiers_in
from policies.tools import OURS, arguments_of, path_of, shell_command
from proxy.lab.breakdown import span
from proxy.lab.quality import SHORTEST, quoted

_DIGITS = 4
_COMMAND = 40
"""Characters of a command by which it is known again."""
_STUB = 300
"""Characters of a stub that a person is shown."""
_APART = "\0"
_NO_NAME = re.compile(r"\\[ntr]|</")
"""An escape in a string of code or JSON whose letter is no part of the word behind; an element's end, no path."""
_ESCAPES = ("\\n", "\\t", "\\r")
_PATCHED = re.compile(r"\*\*\* (?:Add|Update|Delete) File: ([^\s\\\"]+)")
_FOLDERS, _LONGEST_PATH = re.compile(r"[\w./~-]*\Z"), 300
_CHANGES_FOLDER = re.compile(r"\A\s*cd [^\s;&|]+\s*?(?:&&|;|\n)\s*")
"""The beginning of many commands, so that it tells none from another."""


@dataclass(frozen=True, slots=True)
class HiddenNeed:
    """A hidden text that an action needs: one place, whatever is needed of it."""

    JSON: ClassVar = ("request", "items", "in_calls", "quoted", "place", "turns_ago", "connects", "stub")

    request: int
    items: tuple[str, ...]
    in_calls: bool
    """True where a call needs it, and not prose alone."""
    quoted: bool
    place: str
    """The call that it is the output of, or the kind of text."""
    turns_ago: int
    stub: str
    """The first 300 characters of what stands in its place."""
    connects: bool


@dataclass(slots=True)
class Needs:
    JSON: ClassVar = (
        *("actions", "out_of_sight", "out_of_sight_in_calls", "edits", "edits_out_of_sight"),
        *("share_out_of_sight", "share_out_of_sight_in_calls", "share_edits_out_of_sight"),
        *("hidden_texts", "connected", "share_connected", "median_turns_ago"),
    )

    actions: int = 0
    out_of_sight: int = 0
    out_of_sight_in_calls: int = 0
    edits: int = 0
    """Calls that quote old text which the history holds."""
    edits_out_of_sight: int = 0
    """Those of which a line was out of sight."""
    each: list[HiddenNeed] = field(default_factory=list)

    @property
    def hidden_texts(self) -> int:
        return len(self.each)

    @property
    def connected(self) -> int:
        """Hidden texts that were needed and whose stub says what they are."""
        return sum(need.connects for need in self.each)

    @property
    def share_out_of_sight(self) -> float:
        return self.out_of_sight / self.actions if self.actions else 0.0

    @property
    def share_out_of_sight_in_calls(self) -> float:
        return self.out_of_sight_in_calls / self.actions if self.actions else 0.0

    @property
    def share_edits_out_of_sight(self) -> float | None:
        return self.edits_out_of_sight / self.edits if self.edits else None

    @property
    def share_connected(self) -> float | None:
        return self.connected / len(self.each) if self.each else None

    @property
    def median_turns_ago(self) -> float | None:
        return median(need.turns_ago for need in self.each) if self.each else None

    def add(self, conversation: Conversation, edits: Sequence[Edit], answer: Sequence[Part]) -> None:
        """Judge one action by the request that it answers, with the edits with which that was sent."""
        request = _Request(conversation, edits)
        names, in_calls, lines = set[str](), set[str](), set[str]()
        for part in answer:
            if part.kind not in ("call", "assistant"):
                continue  # what the model thought is no action
            new = request.missing(_names_in(part))
            names |= new
            if part.kind == "call":
                in_calls |= new
                old = [
                    line for text in quoted(part.tool, part.text, context=True) for line in request.known_lines(text)
                ]
                hidden = {line for line in old if not request.shows(line)}
                self.edits += bool(old)
                self.edits_out_of_sight += bool(hidden)
                lines |= hidden
        self.actions += 1
        self.out_of_sight += bool(names | lines)
        self.out_of_sight_in_calls += bool(in_calls | lines)
        self.each += request.places(names, in_calls, lines)


class _Request:
    """A request as the client wrote it and as the model read it."""

    def __init__(self, conversation: Conversation, edits: Sequence[Edit]) -> None:
        self._blocks = conversation.blocks
        self._step = conversation.steps - 1
        self._seen_by_block = [_readable(block.kind, block.text) for block in conversation.blocks]
        self._stubs: dict[int, str] = {}
        self._hidden: dict[int, str] = {}
        self._folded = set[int]()
        # a summary may stand for several runs: all have its origin, and one has its text
        summaries = {
            edit.origin.id: edit.text for edit in edits if isinstance(edit, Fold) and edit.origin and edit.text
        }
        for edit in edits:
            origin = edit.origin if isinstance(edit, Fold) else None
            text = edit.text or (summaries.get(origin.id, "") if origin else "")
            for at in (places := span(conversation, edit)):
                if self._blocks[at].tool not in OURS:
                    self._hidden[at] = _readable(self._blocks[at].kind, self._blocks[at].text)
                self._stubs[at], self._seen_by_block[at] = text, ""
            kind = self._blocks[places[0]].kind
            if isinstance(edit, Fold):
                kind = "user"
                self._folded.update(places)
            self._seen_by_block[places[0]] = _readable(kind, edit.text)
        self._seen = _APART.join(self._seen_by_block)
        # whatever the client had sent and is not in sight stands in one of these
        self._behind = _APART.join(self._hidden.values())

    def missing(self, names: frozenset[str]) -> set[str]:
        """The names that the history holds, and that stand nowhere in what the model read."""
        return {name for name in names if not _holds(self._seen, name) and _holds(self._behind, name)}

    def known_lines(self, text: str) -> Iterator[str]:
        """The lines of a quoted text that the history holds."""
        lines = (line.strip() for line in text.split("\n"))
        return (line for line in lines if len(line) >= SHORTEST and (self.shows(line) or _quotes(self._behind, line)))

    def shows(self, line: str) -> bool:
        return _quotes(self._seen, line)

    def places(self, names: set[str], in_calls: set[str], lines: set[str]) -> Iterator[HiddenNeed]:
        """The hidden texts that hold what is needed, each item in the newest."""
        by_block: dict[int, set[str]] = {}
        newest = sorted(self._hidden, reverse=True)
        for items, holds in ((names, _holds), (lines, _quotes)):
            for item in items:
                at = next(at for at in newest if holds(self._hidden[at], item))
                by_block.setdefault(at, set()).add(item)
        for at, those in sorted(by_block.items()):
            yield HiddenNeed(
                request=self._step + 1,
                items=tuple(sorted(those)),
                in_calls=bool(those & (in_calls | lines)),
                quoted=bool(those & lines),
                place=self._place(at),
                turns_ago=self._step - self._blocks[at].turn,
                stub=self._stubs[at][:_STUB],
                connects=self._connects(at),
            )

    def _call(self, at: int) -> int | None:
        return at if self._blocks[at].kind == "call" else self._blocks[at].answers

    def _place(self, at: int) -> str:
        call = self._call(at)
        if call is None:
            return self._blocks[at].kind
        command, paths = _known_by(self._blocks[call])
        words = command or ", ".join(paths) or self._blocks[call].text
        return " ".join(f"{self._blocks[call].tool} {words}".split())[:160]

    def _connects(self, at: int) -> bool:
        call = self._call(at)
        texts = [self._stubs[at]]
        if call is None:
            return _flat(self._blocks[at].text)[:_COMMAND] in _flat(texts[0])
        if call not in self._folded:
            texts.append(f"{self._blocks[call].tool}{_APART}{self._seen_by_block[call]}")
        return any(_names_call(text, self._blocks[call]) for text in texts)


def _names_in(part: Part) -> frozenset[str]:
    """The names in an action, as `identifiers_in`, but for short and round numbers."""
    names = identifiers_in(_NO_NAME.sub(" ", _readable(part.kind, part.text)))
    return frozenset(name for name in names if not name.isdigit() or (len(name) >= _DIGITS and name[-3:] != "000"))


def _known_by(call: Block) -> tuple[str, Sequence[str]]:
    """The command line on one line and the paths by which a call is known; empty where it has none. In a text protocol
    the whole text is the command."""
    command = shell_command(call.text) if call.kind == "call" else call.text
    path = path_of(call.tool, call.text)
    paths = [path] if path else [] if command else _PATCHED.findall(call.text)
    return _flat(_CHANGES_FOLDER.sub("", command)), paths


def _flat(text: str) -> str:
    return " ".join(text.split())


def _names_call(text: str, call: Block) -> bool:
    """True where a text names a call so that a model knows which one it was."""
    command, paths = _known_by(call)
    if any(_names_path(text, path) for path in paths):
        return True
    flat = _flat(text)
    if command or paths:
        return bool(command) and command[:_COMMAND] in flat
    first = next(_leaves(arguments_of(call.text)), "")
    return _holds(text, call.tool) and _flat(first)[:_COMMAND] in flat


def _names_path(text: str, path: str) -> bool:
    """True where a text names a path, or the end of it that is known."""
    last = path.rstrip("/").rpartition("/")[2]
    for match in re.finditer(rf"(?<![\w-]){re.escape(last)}(?![\w-])", text) if last and last in text else ():
        folders = _FOLDERS.search(text[max(0, match.start() - _LONGEST_PATH) : match.start()])
        name = normpath(f"{folders[0] if folders else ''}{last}").lstrip("./~")
        if name and (path.endswith(name) or name.endswith(path)):
            return True
    return False


@lru_cache(maxsize=8_192)
def _decoded(text: str) -> str:
    values = arguments_of(text)
    return _APART.join(_leaves(values)) if values else text


def _readable(kind: str, text: str) -> str:
    return _decoded(text) if kind == "call" else text


def _leaves(value: object) -> Iterator[str]:
    if isinstance(value, Mapping | list):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(each)
    else:
        yield str(value)


def _holds(text: str, name: str) -> bool:
    """True where a name stands in a text as a whole word."""
    at = text.find(name)
    while at >= 0:
        end = at + len(name)
        is_begun = at > 0 and _is_word(text[at - 1]) and text[max(0, at - 2) : at] not in _ESCAPES
        if not is_begun and not _is_word(text[end : end + 1]):
            return True
        at = text.find(name, at + 1)
    return False


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _quotes(text: str, line: str) -> bool:
    """True where a line stands in a text, as it is or as JSON."""
    return line in text or ((escaped := json.dumps(line, ensure_ascii=False)[1:-1]) != line and escaped in text)
