"""The recall tool: what it is called, how a call of it is read, and what it is answered.

Laws
  The answer follows from the conversation and the call alone: no store, no clock; the same again and for ever.
  What is shown is shown as it was said; what is said about it stands on a line of ours behind it.
  Bounded: a page is at most PAGE characters, and a search is linear in the text, whatever the pattern.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import re2  # type: ignore[import-untyped]  # it ships no types

from policies.model.conversation import Conversation
from policies.text.stubs import MARK
from policies.tools import RECALL, arguments_of

DESCRIPTION = "Text left out at [narrows: ref N]"
PARAMETERS = '{"type":"object","properties":{"ref":{"type":"string"},"part":{"type":"string"}},"required":["ref"]}'
"""What `part` may be is said where it is needed: under a page that is not the whole."""

PAGE = 20_000
"""Characters that one answer shows at most."""
_PATTERN = 300
"""Characters of a pattern that are looked at."""
_SPELLED = 60
"""Characters of a part that may name a range: matching it takes more than linear time."""
_MOST_WORK = 250_000_000
"""Bytes of text times size of pattern. The worst patterns take two seconds of that, those that people write some
milliseconds; which is which cannot be told before."""
_WINDOW = 150
"""Characters shown on either side of a match in a line too long to be shown."""
_PARTS = 'part may be "lines 9-80", "chars 0-999" or "find REGEX"'
_LAST = f"\n{MARK} this was the last recall in this reply]"

_REF = re.compile(r"\d{6,24}(\+\d{1,9})?")
_RANGE = re.compile(
    r"(?P<unit>line|char)?s?\s*(?P<first>\d{1,12})?\s*(?P<to>-|–|:|to|\.\.)?\s*(?P<last>\d{1,12})?", re.I
)


@dataclass(frozen=True, slots=True)
class Call:
    """A call as it was meant: a reference, and a part of what it stands for ("" for the beginning)."""

    ref: str
    part: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model gets, and whether it is what it asked for."""

    text: str
    found: bool


def read(arguments: str) -> Call:
    """The call that these arguments make; the reference is empty where there is none."""
    said = arguments_of(arguments)
    given = said.get("ref", "")
    ref = _REF.search(f"{given:06}" if type(given) is int else str(given))  # a number has no leading zeros
    part = str(said.get("part") or "")
    for unit in ("lines", "chars", "find"):  # models make them fields of their own
        if said.get(unit) and not part:
            given = said[unit]
            part = f"{unit} {'-'.join(map(str, given)) if isinstance(given, list) else given}"
    return Call(ref[0] if ref else "", part.strip())


def asked(conversation: Conversation, at: int) -> Call | None:
    """What a block is the answer to; None where it is no answer of the recall tool."""
    block = conversation.blocks[at]
    if block.tool != RECALL or block.answers is None:
        return None
    return read(conversation.blocks[block.answers].text)


def answer(conversation: Conversation, arguments: str, last: bool = False) -> Answer:
    """What the model gets for a call. `last` says that no more are answered in this reply."""
    call = read(arguments)
    text = original(conversation, call.ref)
    if text is None:
        said = f"nothing in this conversation has the ref {call.ref or 'given'}; do not retry, run the tool again"
        found = Answer(f"{MARK} {said}]", False)
    else:
        found = _part(text, call.part)
    return Answer(found.text + _LAST, found.found) if last else found


def original(conversation: Conversation, ref: str) -> str | None:
    """The text that a reference stands for; None where it stands for nothing."""
    at = conversation.find(ref)
    if at is not None:
        return conversation.blocks[at].text
    run = conversation.find_run(ref)
    if run is None:
        return None
    blocks = (conversation.blocks[i] for i in run)
    return "\n".join(f"== {' '.join(filter(None, (b.kind, b.tool)))} ==\n{b.text}" for b in blocks)


def _part(text: str, part: str) -> Answer:
    if part[:4].lower() == "find":
        return _found(text, part[4:].strip().strip('"')[:_PATTERN])
    spelled = _RANGE.fullmatch(part) if len(part) <= _SPELLED else None
    if spelled is None:
        return Answer(f"{MARK} {_PARTS}]", False)
    by_chars = (spelled["unit"] or "").lower() == "char"
    first, last = int(spelled["first"] or 0), int(spelled["last"]) if spelled["last"] else None
    if spelled["to"] is None and part:
        last = first + 1 if by_chars else first
    span = (first, len(text) if last is None else last) if by_chars else _lines(text, first, last)
    return _page(text, min(span[0], len(text)), min(span[1], len(text)), part)


def _lines(text: str, first: int, last: int | None) -> tuple[int, int]:
    """Where the lines from `first` to `last` stand; the first line is 1."""
    start = _after_lines(text, 0, max(0, first - 1))
    return start, len(text) if last is None else _after_lines(text, start, max(0, last - max(1, first) + 1))


def _after_lines(text: str, start: int, count: int) -> int:
    """The position after so many more lines."""
    for _ in range(count):
        end = text.find("\n", start)
        if end < 0:
            return len(text)
        start = end + 1
    return start


def _page(text: str, start: int, end: int, part: str) -> Answer:
    """text[start:end] as it is, up to a page, and how to go on where that is not all of it."""
    if start >= end and text:
        lines = text.count("\n") + 1
        return Answer(f"{MARK} nothing at {part!r}: there are {lines} lines, {len(text)} chars]", False)
    stop = min(end, start + PAGE)
    if stop < end:
        stop = text.rfind("\n", start + PAGE // 2, stop) + 1 or stop
        said = f'chars {start}-{stop} of {len(text)}; go on with part "chars {stop}-{end}"; {_PARTS}'
        return Answer(f"{text[start:stop]}\n{MARK} {said}]", True)
    return Answer(text[start:end], True)


def _found(text: str, pattern: str) -> Answer:
    """The lines that match, each with its number, until a page is full."""
    said, wanted = text.encode("utf-8", "surrogatepass"), _pattern(pattern)
    if wanted.programsize * len(said) > _MOST_WORK:
        return Answer(f"{MARK} the pattern is too much for {len(text)} chars; find plain words]", False)
    shown: list[str] = []
    room = PAGE
    for line in _matches(said, wanted):
        room -= len(line) + 1
        if room < 0:  # each further search may take as long as the text is
            shown.append(f"{MARK} more match; {_PARTS}]")
            break
        shown.append(line)
    if not shown:
        lines = text.count("\n") + 1
        return Answer(f"{MARK} no match for {pattern!r} in {lines} lines, {len(text)} chars]", False)
    return Answer("\n".join(shown), True)


def _matches(said: bytes, wanted: re2._Regexp) -> Iterator[str]:
    """Each line with a match, once; of a line too long to be shown, the surroundings of each match."""
    number, first, last, at = 1, 0, -1, 0
    while at <= len(said) and (match := wanted.search(said, at)):
        start = match.start()
        if start > last:
            number += said.count(b"\n", first, start)
            first, last = said.rfind(b"\n", 0, start) + 1, said.find(b"\n", start)
            last = len(said) if last < 0 else last
        if last - first <= 4 * _WINDOW:
            begin, end, at = first, last, last + 1
        else:
            begin, end = max(first, start - _WINDOW), min(last, match.end() + _WINDOW, start + 2 * _WINDOW)
            at = max(end + 1, match.end())
        begin, end = _aligned(said, begin), _aligned(said, end)
        yield f"{number}: {said[begin:end].decode('utf-8', 'surrogatepass')}"


def _aligned(said: bytes, at: int) -> int:
    """The nearest place from `at` on that is not inside a character."""
    while at < len(said) and said[at] & 0xC0 == 0x80:
        at += 1
    return at


def _pattern(pattern: str) -> re2._Regexp:
    """RE2 needs time in proportion to the text, whatever the pattern; what is none is searched for as it stands."""
    options = re2.Options()
    options.log_errors, options.case_sensitive = False, False
    options.max_mem = 1 << 20  # a pattern that takes more to compile holds everybody up while it does
    options.never_nl, options.never_capture = True, True  # a search ends with its line
    try:
        return re2.compile(f"(?m){pattern}".encode("utf-8", "replace"), options)
    except re2.error:
        return re2.compile(re2.escape(pattern).encode("utf-8", "replace"), options)
