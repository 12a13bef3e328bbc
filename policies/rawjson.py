"""Where a value stands inside raw JSON text, so that one leaf can change and every other byte stays.

Law: `spans` only ever reports slices of the text it was given, so replacing the slices it names leaves key order,
number spelling, escapes and white space of everything else exactly as the client wrote them.
"""

from collections.abc import Iterator, Mapping

import msgspec

Span = tuple[int, int]
Path = tuple[str | int, ...]

_WHITE = b" \t\n\r"
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw])


class Unreadable(ValueError):
    """The text is not JSON, or repeats a key: what it means is not ours to guess."""


def _skip(text: bytes, at: int, also: bytes = b"") -> int:
    while text[at : at + 1] in (b" ", b"\t", b"\n", b"\r") or (also and text[at : at + 1] == also):
        at += 1
    return at


def _end_of_string(text: bytes, at: int) -> int:
    """The position after the string that opens at `at`."""
    at += 1
    while text[at] != 0x22:
        at += 2 if text[at] == 0x5C else 1
    return at + 1


def members(text: bytes, start: int = 0, end: int | None = None) -> dict[str, Span]:
    """The span of each member's value in the object that stands at text[start:end]."""
    end = len(text) if end is None else end
    try:
        found = _members.decode(memoryview(text)[start:end])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unreadable(str(error)) from error
    at = _skip(text, start) + 1
    spans: dict[str, Span] = {}
    for key, raw in found.items():
        at = _skip(text, _end_of_string(text, _skip(text, at, b",")), b":")
        spans[key] = (at, at + len(memoryview(raw)))
        at = spans[key][1]
    if text[_skip(text, at) : _skip(text, at) + 1] != b"}":
        raise Unreadable("a key is repeated")
    return spans


def items(text: bytes, start: int = 0, end: int | None = None) -> list[Span]:
    """The span of each element in the array that stands at text[start:end]."""
    end = len(text) if end is None else end
    try:
        found = _items.decode(memoryview(text)[start:end])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unreadable(str(error)) from error
    at = _skip(text, start) + 1
    spans = []
    for raw in found:
        at = _skip(text, at, b",")
        spans.append((at, at + len(memoryview(raw))))
        at = spans[-1][1]
    return spans


def find(text: bytes, path: Path) -> Span:
    """The span of the value at `path`."""
    span = (0, len(text))
    for step in path:
        span = members(text, *span)[step] if isinstance(step, str) else items(text, *span)[step]
    return span


def replaced(text: bytes, changes: Mapping[Path, bytes]) -> bytes:
    """`text` with other values at the given paths (of which none lies inside another)."""
    return b"".join(_pieces(text, sorted((find(text, path), new) for path, new in changes.items())))


def _pieces(text: bytes, changes: list[tuple[Span, bytes]]) -> Iterator[bytes]:
    done = 0
    for (start, end), new in changes:
        yield text[done:start]
        yield new
        done = end
    yield text[done:]
