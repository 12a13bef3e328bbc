"""Where a value is inside raw JSON text, so that one leaf can change and every other byte stays.

Law: only slices of the text itself are reported, so to replace one leaves key order, number spelling, escapes and
white space of everything else exactly as the client wrote them.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

Span = tuple[int, int]
Path = tuple[str | int, ...]
Change = tuple[Span, bytes]
T = TypeVar("T")

_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw])
_BLANK = b" \t\n\r"
_KEY = re.compile(rb'[\s,]*"[^"\\]*+(?:\\.[^"\\]*+)*+"[\s:]*')
_HALVES = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


class UnreadableError(ValueError):
    """The text is not JSON, is nested too deep, or repeats a key, so that its meaning would be a guess."""


_FAULTS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def _skip(text: bytes, at: int, also: bytes = b"") -> int:
    while at < len(text) and (text[at] in _BLANK or text[at : at + 1] == also):
        at += 1
    return at


def _decoded(decoder: msgspec.json.Decoder[T], text: bytes, start: int, end: int) -> tuple[T, bytes]:
    """The value at text[start:end], and the text it was decoded from: halves of surrogate pairs (legal in JSON, not
    in UTF-8) are replaced there by other escapes of the same length."""
    try:
        return decoder.decode(memoryview(text)[start:end]), text
    except _FAULTS:
        repaired = _HALVES.sub(rb"\\ufffd", text)
    try:
        return decoder.decode(memoryview(repaired)[start:end]), repaired
    except _FAULTS as error:
        raise UnreadableError(str(error)) from error


def members(text: bytes, start: int = 0, end: int | None = None) -> dict[str, Span]:
    """The span of each member's value in the object at text[start:end]."""
    end = len(text) if end is None else end
    values, text = _decoded(_members, text, start, end)
    at = _skip(text, start) + 1
    spans: dict[str, Span] = {}
    for key, raw in values.items():
        name = _KEY.match(text, at)
        value = memoryview(raw)  # no copy
        if name is None or not text.startswith(value, name.end()):
            raise UnreadableError("a key is repeated")
        at = name.end() + len(value)
        spans[key] = (name.end(), at)
    # the decoder returns the last of two values: where it skipped one, this is not the end of the object
    if text[at:end].strip() != b"}":
        raise UnreadableError("a key is repeated")
    return spans


def items(text: bytes, start: int = 0, end: int | None = None) -> list[Span]:
    """The span of each element in the array at text[start:end]."""
    end = len(text) if end is None else end
    values, text = _decoded(_items, text, start, end)
    spans: list[Span] = []
    at = _skip(text, start) + 1
    for raw in values:
        at = _skip(text, at, b",")
        spans.append((at, at + len(memoryview(raw))))
        at = spans[-1][1]
    return spans


def shared(text: bytes, earlier: bytes, spans: Sequence[Span]) -> int:
    """How many leading elements, at `spans` in `earlier`, are in `text` too, with the same bytes before them."""
    before = memoryview(earlier)  # slices of it are no copies
    if not spans or text.startswith(before[: spans[-1][1]]):  # as a rule a request extends the one before
        return len(spans)
    return bisect_left(spans, True, key=lambda span: not text.startswith(before[: span[1]]))


def find(text: bytes, path: Path, cache: dict[Path, Mapping[str | int, Span]] | None = None) -> Span:
    """The span of the value at `path`; `cache` has the spans in each object and array that was parsed."""
    cache = {} if cache is None else cache
    span = (0, len(text))
    for depth, step in enumerate(path):
        parent = path[:depth]
        if parent not in cache:
            by_name = isinstance(step, str)
            cache[parent] = dict(members(text, *span).items() if by_name else enumerate(items(text, *span)))
        span = cache[parent][step]
    return span


def replaced(text: bytes, changes: Mapping[Path, bytes]) -> bytes:
    """`text` with other values at the given paths (of which none lies inside another)."""
    cache: dict[Path, Mapping[str | int, Span]] = {}
    return spliced(text, [(find(text, path, cache), new) for path, new in changes.items()])


def spliced(text: bytes, changes: Iterable[Change]) -> bytes:
    """`text` with other bytes in the given places (of which none overlap)."""
    pieces, at, whole = list[bytes | memoryview](), 0, memoryview(text)  # slices of it are no copies
    for (start, end), new in sorted(changes):
        pieces += [whole[at:start], new]
        at = end
    return b"".join([*pieces, whole[at:]])
