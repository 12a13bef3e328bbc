"""The tools that are ours: the recall tool, how its calls are read and how they are answered, and the search for tools
whose definitions are deferred.

Laws
  The answer follows from the conversation and the call alone: no store, no clock; the same call has the same answer.
  Original text is shown unchanged; what Narrows adds to it stands on a line of its own behind it.
  Bounded: a page is at most PAGE characters, and a search is linear in the text, whatever the pattern.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import re2  # type: ignore[import-untyped]  # it ships no types

from policies.model.conversation import Block, Conversation, Places
from policies.text.stubs import MARK
from policies.tools import RECALL, arguments_of, recalled_ref
from policies.tools.deferral import Catalog, Definition, names_of, search

DESCRIPTION = "Text left out at [narrows: ref N]"
PARAMETERS = '{"type":"object","properties":{"ref":{"type":"string"},"part":{"type":"string"}},"required":["ref"]}'
"""The forms of `part` are explained under a page that is not the whole, where they are needed."""

PAGE = 20_000
"""Characters that one answer shows at most."""
_LONGEST_PATTERN = 300
_SPELLED = 60
"""Characters of a part that may name a range: matching it takes more than linear time."""
_MOST_WORK = 250_000_000
"""Bytes of text times size of the compiled pattern. At this bound the worst patterns take two seconds, and those that
people write some milliseconds; they cannot be told apart beforehand."""
_AROUND = 150
_PARTS = 'part may be "lines 9-80", "chars 0-999" or "find REGEX"'
_ELSEWHERE = "another command or range may show it"
_LAST = f"\n{MARK} this was the last recall in this reply]"

_RANGE = re.compile(
    r"(?P<unit>line|char)?s?\s*(?P<first>\d{1,12})?\s*(?P<to>-|–|:|to|\.\.)?\s*(?P<last>\d{1,12})?", re.I
)


@dataclass(frozen=True, slots=True)
class RecallCall:
    """A call of the recall tool: a reference, and a part of the text that it stands for ("" for the beginning)."""

    ref: str
    part: str


@dataclass(frozen=True, slots=True)
class RecallAnswer:
    """The text for the model, and whether that is what it asked for or a refusal."""

    text: str
    succeeded: bool
    tools: tuple[Definition, ...] = ()
    """Those that a search has found: their definitions go where the API has a place for them."""


def read(arguments: str) -> RecallCall:
    """The call that these arguments make; its reference is empty where they hold none."""
    fields = arguments_of(arguments)
    part = str(fields.get("part") or "")
    for unit in ("lines", "chars", "find"):  # models make them fields of their own
        if fields.get(unit) and not part:
            value = fields[unit]
            part = f"{unit} {'-'.join(map(str, value)) if isinstance(value, list) else value}"
    return RecallCall(recalled_ref(arguments), part.strip())


def call_answered_by(conversation: Conversation, at: int) -> RecallCall | None:
    return _answered(conversation.blocks, at)


def _answered(blocks: Sequence[Block], at: int) -> RecallCall | None:
    call = blocks[at].answers if blocks[at].tool == RECALL else None
    return None if call is None else read(blocks[call].text)


_ANSWERS = Places[Block, RecallCall](_answered)


def answers_to(conversation: Conversation, call: RecallCall) -> Sequence[int]:
    return _ANSWERS.of(conversation).get(call, ())


def stands_for_text(conversation: Conversation, ref: str) -> bool:
    return _block(conversation, ref) is not None or run_of(conversation, ref) is not None


def run_of(conversation: Conversation, ref: str) -> range | None:
    name, _, count = ref.partition("+")
    length = int(count[:9]) if count.isdecimal() else 0
    first = conversation.runs.get(name) if length else None
    return None if first is None or first + length > len(conversation.blocks) else range(first, first + length)


def _block(conversation: Conversation, ref: str) -> int | None:
    """The block that a reference stands for; of a run's without the number of blocks, the first."""
    return conversation.references.places.get(ref, conversation.runs.get(ref))


def answer(conversation: Conversation, arguments: str, last: bool = False) -> RecallAnswer:
    """Answer a call. `last` tells the model that no further call is answered in this reply."""
    call = read(arguments)
    text = original(conversation, call.ref)
    # nobody knows here which tool would show it, and one that reads files may answer that nothing has changed
    refusal = f"nothing in this conversation has the ref {call.ref or 'given'}; do not retry, {_ELSEWHERE}"
    result = RecallAnswer(f"{MARK} {refusal}]", False) if text is None else _part(text, call.part)
    first = None if call.ref in conversation.references.places else conversation.runs.get(call.ref)
    if first is not None:
        result = RecallAnswer(f"{result.text}\n{MARK} {_only_first(conversation, first, call.ref)}]", result.succeeded)
    return RecallAnswer(result.text + _LAST, result.succeeded) if last else result


def original(conversation: Conversation, ref: str) -> str | None:
    """The text that a reference stands for, of one block or of a run of blocks; of a run's reference without the number
    of blocks, the first block's. None where it stands for nothing."""
    if (at := _block(conversation, ref)) is not None:
        return conversation.blocks[at].text
    if (run := run_of(conversation, ref)) is None:
        return None
    blocks = (conversation.blocks[i] for i in run)
    return "\n".join(f"== {' '.join(filter(None, (b.kind, b.tool)))} ==\n{b.text}" for b in blocks)


def _only_first(conversation: Conversation, first: int, name: str) -> str:
    """How to go on behind the first block of a run. It must not say how many follow: their number may grow."""
    after = conversation.blocks[first + 1 : first + 2]
    following = (
        f", the next text alone has ref {conversation.ref(first + 1)}" if after and after[0].kind != "system" else ""
    )
    return f"the first of several texts; ref {name}+N has the first N of them{following}"


def _part(text: str, part: str) -> RecallAnswer:
    if part[:4].lower() == "find":
        return _matching_lines(text, part[4:].strip().strip('"')[:_LONGEST_PATTERN])
    spelled = _RANGE.fullmatch(part) if len(part) <= _SPELLED else None
    if spelled is None:
        return RecallAnswer(f"{MARK} {_PARTS}]", False)
    by_chars = (spelled["unit"] or "").lower() == "char"
    first, last = int(spelled["first"] or 0), int(spelled["last"]) if spelled["last"] else None
    if spelled["to"] is None and part:
        last = first + 1 if by_chars else first
    if by_chars:
        start, end = first, len(text) if last is None else last
    else:
        start = _after_lines(text, 0, max(0, first - 1))
        end = len(text) if last is None else _after_lines(text, start, max(0, last - max(1, first) + 1))
    return _page(text, min(start, len(text)), min(end, len(text)), part)


def _after_lines(text: str, start: int, count: int) -> int:
    for _ in range(count):
        end = text.find("\n", start)
        if end < 0:
            return len(text)
        start = end + 1
    return start


def _page(text: str, start: int, end: int, part: str) -> RecallAnswer:
    """text[start:end] unchanged, up to a page, and how to go on where that is not all of it."""
    if start >= end and text:
        lines = text.count("\n") + 1
        return RecallAnswer(f"{MARK} nothing at {part!r}: there are {lines} lines, {len(text)} chars]", False)
    stop = min(end, start + PAGE)
    if stop == end:
        return RecallAnswer(text[start:end], True)
    stop = text.rfind("\n", start + PAGE // 2, stop) + 1 or stop
    note = f'chars {start}-{stop} of {len(text)}; go on with part "chars {stop}-{end}"; {_PARTS}'
    return RecallAnswer(f"{text[start:stop]}\n{MARK} {note}]", True)


def _matching_lines(text: str, pattern: str) -> RecallAnswer:
    """The lines that match, each with its number, until a page is full. An invalid pattern is taken literally."""
    options = re2.Options()  # RE2 needs time in proportion to the text, whatever the pattern
    options.log_errors, options.case_sensitive = False, False
    options.max_mem = 1 << 20  # bounds the time that compiling a pattern takes
    options.never_nl, options.never_capture = True, True  # a search ends with its line
    try:
        regex = re2.compile(f"(?m){pattern}".encode("utf-8", "replace"), options)
    except re2.error:
        regex = re2.compile(re2.escape(pattern).encode("utf-8", "replace"), options)
    encoded = text.encode("utf-8", "surrogatepass")
    if regex.programsize * len(encoded) > _MOST_WORK:
        return RecallAnswer(f"{MARK} the pattern is too much for {len(text)} chars; find plain words]", False)
    lines: list[str] = []
    room = PAGE
    for line in _matches(encoded, regex):
        room -= len(line) + 1
        if room < 0:  # each further search may take as long as the text is
            lines.append(f"{MARK} more match; {_PARTS}]")
            break
        lines.append(line)
    if not lines:
        count = text.count("\n") + 1
        return RecallAnswer(f"{MARK} no match for {pattern!r} in {count} lines, {len(text)} chars]", False)
    return RecallAnswer("\n".join(lines), True)


def _matches(text: bytes, regex: re2._Regexp) -> Iterator[str]:
    """Each line with a match, once; of a line too long to be shown, the surroundings of each match."""
    number, first, last, at = 1, 0, -1, 0
    while at <= len(text) and (match := regex.search(text, at)):
        start = match.start()
        if start > last:
            number += text.count(b"\n", first, start)
            first, last = text.rfind(b"\n", 0, start) + 1, text.find(b"\n", start)
            last = len(text) if last < 0 else last
        if last - first <= 4 * _AROUND:
            begin, end, at = first, last, last + 1
        else:
            begin, end = (max(first, start - _AROUND), min(last, match.end() + _AROUND, start + 2 * _AROUND))
            at = max(end + 1, match.end())
        begin, end = _aligned(text, begin), _aligned(text, end)
        yield f"{number}: {text[begin:end].decode('utf-8', 'surrogatepass')}"


def _aligned(text: bytes, at: int) -> int:
    """The nearest place from `at` on that is not inside a character."""
    while at < len(text) and text[at] & 0xC0 == 0x80:
        at += 1
    return at


# --- the search for tools ---

FINDS = "Finds more tools, by words or by name; those found can be called from then on. There are: {}"
QUERY = '{"type":"object","properties":{"query":{"type":"string"}},"required":["query"]}'


def found_tools(catalog: Catalog, places: tuple[int, ...], arguments: str, last: bool = False) -> RecallAnswer:
    """Answer a call of the search tool: with what it finds at these places, or with what there is."""
    query = " ".join(map(str, arguments_of(arguments).values()))
    tools = search(catalog, places, query)
    if tools:
        text = f"{MARK} found, and among your tools now: {', '.join(each.name for each in tools)}]"
    else:
        text = f"{MARK} nothing found; there are: {names_of(catalog, places)}]"
    return RecallAnswer(text + _LAST if last else text, bool(tools), tools)
