"""Where a value stands inside raw JSON text, so that one leaf can change and every other byte stays.

Law: `spans` only ever reports slices of the text it was given, so replacing the slices it names leaves key order,
number spelling, escapes and white space of everything else exactly as the client wrote them.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

Span = tuple[int, int]
Path = tuple[str | int, ...]
Change = tuple[Span, bytes]
"""A place in a text, and what stands there instead."""
T = TypeVar("T")

_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw])
_BLANK = b" \t\n\r"
_HALVES = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


class UnreadableError(ValueError):
    """The text is not JSON, is nested too deep, or repeats a key: what it means is not ours to guess."""


_FAULTS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def _skip(text: bytes, at: int, also: bytes = b"") -> int:
    while at < len(text) and (text[at] in _BLANK or text[at : at + 1] == also):
        at += 1
    return at


def _end_of_string(text: bytes, at: int) -> int:
    """The position after the string that opens at `at`."""
    end = text.find(b'"', at + 1)
    if text.find(b"\\", at + 1, end) < 0:
        return end + 1
    at += 1
    while text[at] != 0x22:
        at += 2 if text[at] == 0x5C else 1
    return at + 1


def _decoded(decoder: msgspec.json.Decoder[T], text: bytes, start: int, end: int) -> tuple[T, bytes]:
    """What stands at text[start:end], and the text in which it was found: where halves of surrogate pairs (legal in
    JSON, unknown to UTF-8) keep it from being read, they are others of the same length."""
    try:
        return decoder.decode(memoryview(text)[start:end]), text
    except _FAULTS:
        whole = _HALVES.sub(rb"\\ufffd", text)
    try:
        return decoder.decode(memoryview(whole)[start:end]), whole
    except _FAULTS as error:
        raise UnreadableError(str(error)) from error


def members(text: bytes, start: int = 0, end: int | None = None) -> dict[str, Span]:
    """The span of each member's value in the object that stands at text[start:end]."""
    end = len(text) if end is None else end
    found, text = _decoded(_members, text, start, end)
    at = _skip(text, start) + 1
    spans: dict[str, Span] = {}
    for key, raw in found.items():
        at = _skip(text, _end_of_string(text, _skip(text, at, b",")), b":")
        if not text.startswith(bytes(raw), at):
            raise UnreadableError("a key is repeated")
        spans[key] = (at, at + len(memoryview(raw)))
        at = spans[key][1]
    # the decoder keeps the last of two values: where one was passed over, this is not the end of the object
    if text[at:end].strip() != b"}":
        raise UnreadableError("a key is repeated")
    return spans


def items(text: bytes, start: int = 0, end: int | None = None, known: Sequence[Span] = ()) -> list[Span]:
    """The span of each element in the array that stands at text[start:end]; `known` are its first ones, if any."""
    end = len(text) if end is None else end
    at = _skip(text, known[-1][1]) if known else start
    if known and text[at : at + 1] == b"]":
        return list(known)
    if known:  # what follows them is an array too, but for its bracket
        text = text[:at] + b"[" + text[at + 1 :]
    found, text = _decoded(_items, text, at, end)
    spans = list(known)
    at = _skip(text, at) + 1
    for raw in found:
        at = _skip(text, at, b",")
        spans.append((at, at + len(memoryview(raw))))
        at = spans[-1][1]
    return spans


def shared(text: bytes, earlier: bytes, spans: Sequence[Span]) -> int:
    """How many leading elements, at `spans` in `earlier`, stand in `text` too, with the same bytes before them."""
    end = spans[-1][1] if spans else 0
    if text[:end] == earlier[:end]:  # as a rule a request extends the one before
        return len(spans)
    return bisect_left(spans, True, key=lambda span: text[: span[1]] != earlier[: span[1]])


def find(text: bytes, path: Path) -> Span:
    """The span of the value at `path`."""
    return _found(text, path, {})


def _found(text: bytes, path: Path, known: dict[Path, Mapping[str | int, Span]]) -> Span:
    """As `find`; `known` remembers what stands in each holder, so that many paths cost one reading."""
    span = (0, len(text))
    for depth, step in enumerate(path):
        holder = path[:depth]
        if holder not in known:
            named = isinstance(step, str)
            known[holder] = dict(members(text, *span).items() if named else enumerate(items(text, *span)))
        span = known[holder][step]
    return span


def replaced(text: bytes, changes: Mapping[Path, bytes]) -> bytes:
    """`text` with other values at the given paths (of which none lies inside another)."""
    known: dict[Path, Mapping[str | int, Span]] = {}
    return spliced(text, [(_found(text, path, known), new) for path, new in changes.items()])


def spliced(text: bytes, changes: Iterable[Change]) -> bytes:
    """`text` with other bytes in the given places (of which none overlap)."""
    return b"".join(_pieces(text, sorted(changes)))


def _pieces(text: bytes, changes: list[Change]) -> Iterator[bytes]:
    done = 0
    for (start, end), new in changes:
        yield text[done:start]
        yield new
        done = end
    yield text[done:]
