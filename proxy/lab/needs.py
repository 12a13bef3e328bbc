"""What the next step of a recorded session needs and does not have before it, judged without a model.

An action is what the model answers a request with. It needs the paths, names and numbers that it uses, in its calls and
in its prose, and the old text that its edits quote. What of that the client had sent, and what stands nowhere in the
request as Narrows sent it, is out of sight: the model would have to recall it, or guess.

Laws
  A name counts as a whole word; a number from four digits on; a line of old text from `SHORTEST` characters on.
  What the model recalled is in sight, and no part of the history that is needed.
  A stub connects where it, or the call whose output it stands for, holds the path, the function's name or the first 40
  characters of the command of what is hidden: then the model could know what to recall.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import median
from typing import ClassVar

from policies.model.conversation import Block, Conversation, Part
from policies.model.edits import Edit
from policies.model.identifiers import identifiers_in
from policies.tools import RECALL, arguments_of, path_of, shell_command
from proxy.lab.breakdown import span
from proxy.lab.quality import SHORTEST, quoted, strings_in

_DIGITS = 4
_COMMAND = 40
"""Characters of a command by which it is known again."""
_APART = "\0"


@dataclass(frozen=True, slots=True)
class HiddenNeed:
    """A hidden text that an action needs: one place, whatever is needed of it."""

    JSON: ClassVar = ("request", "items", "in_calls", "quoted", "place", "turns_ago", "connects", "stub")

    request: int
    items: tuple[str, ...]
    """Names, numbers and lines of old text."""
    in_calls: bool
    """Whether a call needs it, and not prose alone."""
    quoted: bool
    """Whether an edit quotes it."""
    place: str
    """The call that it is the output of, or the kind of text."""
    turns_ago: int
    stub: str
    """What stands in its place."""
    connects: bool


@dataclass(slots=True)
class Needs:
    """What the actions of a session needed and had not before them."""

    JSON: ClassVar = (
        *("actions", "out_of_sight", "out_of_sight_in_calls", "edits", "edits_out_of_sight"),
        *("share_out_of_sight", "share_out_of_sight_in_calls", "share_edits_out_of_sight"),
        *("hidden_texts", "connected", "share_connected", "median_turns_ago"),
    )

    actions: int = 0
    out_of_sight: int = 0
    """Actions that need something out of sight."""
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
        """None where nothing was edited."""
        return self.edits_out_of_sight / self.edits if self.edits else None

    @property
    def share_connected(self) -> float | None:
        """None where nothing was needed that was out of sight."""
        return self.connected / len(self.each) if self.each else None

    @property
    def median_turns_ago(self) -> float | None:
        return median(need.turns_ago for need in self.each) if self.each else None

    def add(self, conversation: Conversation, edits: Sequence[Edit], answer: Sequence[Part]) -> None:
        """Judge one action by the request that it answers, with the edits with which that was sent."""
        request = _Request(conversation, edits)
        names, in_calls, lines = set[str](), set[str](), set[str]()
        for part in answer:
            new = {name for name in identifiers_in(part.text) if not name.isdigit() or len(name) >= _DIGITS}
            names |= new
            if part.kind == "call":
                in_calls |= new
                old = {line for text in quoted(part.tool, part.text) for line in request.known_lines(text)}
                self.edits += bool(old)
                hidden = {line for line in old if not request.shows(line)}
                self.edits_out_of_sight += bool(hidden)
                lines |= hidden
        missing = {name for name in names if request.had(name) and not request.shows_name(name)}
        self.actions += 1
        self.out_of_sight += bool(missing | lines)
        self.out_of_sight_in_calls += bool(missing & in_calls or lines)
        self.each += request.places(missing, missing & in_calls, lines)


class _Request:
    """A request as the client wrote it and as the model read it."""

    def __init__(self, conversation: Conversation, edits: Sequence[Edit]) -> None:
        self._blocks = conversation.blocks
        self._step = conversation.steps - 1
        self._stubs: dict[int, str] = {}
        seen = {i: _readable(block.kind, block.text) for i, block in enumerate(conversation.blocks)}
        for edit in edits:
            places = span(conversation, edit)
            self._stubs |= dict.fromkeys(places, edit.text)
            seen |= {places[0]: _readable(self._blocks[places[0]].kind, edit.text), **dict.fromkeys(places[1:], "")}
        self._seen_by_block: Mapping[int, str] = seen
        self._seen = _APART.join(seen.values())
        self._written = {i: _readable(b.kind, b.text) for i, b in enumerate(self._blocks) if b.tool != RECALL}
        self._history = _APART.join(self._written.values())

    def known_lines(self, text: str) -> Iterator[str]:
        """The lines of a quoted text that the history holds."""
        lines = (line.strip() for line in text.split("\n"))
        return (line for line in lines if len(line) >= SHORTEST and line in self._history)

    def had(self, name: str) -> bool:
        return _holds(self._history, name)

    def shows(self, line: str) -> bool:
        return line in self._seen

    def shows_name(self, name: str) -> bool:
        return _holds(self._seen, name)

    def places(self, names: set[str], in_calls: set[str], lines: set[str]) -> Iterator[HiddenNeed]:
        """The hidden texts that hold what is needed, each item in the newest."""
        by_block: dict[int, set[str]] = {}
        for item in sorted(names | lines):
            holding = (i for i in reversed(self._written) if i in self._stubs and self._has(i, item, item in lines))
            if (at := next(holding, None)) is not None:
                by_block.setdefault(at, set()).add(item)
        for at, items in sorted(by_block.items()):
            yield HiddenNeed(
                request=self._step + 1,
                items=tuple(sorted(items)),
                in_calls=bool(items & (in_calls | lines)),
                quoted=bool(items & lines),
                place=self._place(at),
                turns_ago=self._step - self._blocks[at].turn,
                stub=self._stubs[at],
                connects=self._connects(at),
            )

    def _has(self, at: int, item: str, is_line: bool) -> bool:
        return item in self._written[at] if is_line else _holds(self._written[at], item)

    def _call(self, at: int) -> Block | None:
        block = self._blocks[at]
        if block.kind == "call":
            return block
        return self._blocks[block.answers] if block.answers is not None else None

    def _place(self, at: int) -> str:
        call = self._call(at)
        if call is None:
            return self._blocks[at].kind
        arguments = shell_command(call.text) or path_of(call.tool, call.text) or call.text
        return f"{call.tool} {' '.join(arguments.split())[:120]}"

    def _connects(self, at: int) -> bool:
        call, stub = self._call(at), self._stubs[at]
        if call is None:
            return False
        words = shell_command(call.text).strip()[:_COMMAND] or path_of(call.tool, call.text) or call.tool
        answered = self._blocks[at].answers
        beside = self._seen_by_block[answered] if answered is not None else ""
        name = words.rpartition("/")[2] if "/" in words and " " not in words else words
        return name in stub or name in beside


@lru_cache(maxsize=8_192)
def _readable(kind: str, text: str) -> str:
    """A text as the model means it: arguments with their strings decoded, too."""
    if kind != "call":
        return text
    return _APART.join([text, *(value for _, value in strings_in(arguments_of(text)))])


def _holds(text: str, name: str) -> bool:
    """Whether a name stands in a text as a whole word."""
    return name in text and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None
