"""Values that come in pieces, and the events that carry them. No state, and nothing here raises on what it reads."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from types import MappingProxyType

import msgspec

from policies.dialects.openai_chat.request import as_json

Json = dict[str, object]
Joins = Callable[[str], bool]
"""Whether strings of this key are pieces of one string; of others the first that says something counts."""

_BOM = b"\xef\xbb\xbf"
_FAULTS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_LABELS = frozenset({"id", "type", "format", "role", "object"})
"""What servers say again with each piece."""


def is_plain(event: bytes) -> bool:
    """Whether this is the whole body of a reply that is not streamed."""
    return event.removeprefix(_BOM).lstrip()[:1] == b"{"


def text_of(event: bytes) -> bytes:
    """The JSON in an event or a body. A break between two lines of data is white space in JSON."""
    if is_plain(event):
        return event.removeprefix(_BOM)
    lines = event.removeprefix(_BOM).splitlines()
    return b"\n".join(line[5:] for line in lines if line.startswith(b"data:"))


def read_event(event: bytes) -> Json | None:
    """The JSON object in an event or a body; None where there is none."""
    if event.startswith(b"data: {"):
        with suppress(*_FAULTS):  # one line of data, as nearly all are
            found: Json = msgspec.json.decode(event[6:])
            return found
    return document(text_of(event))


def document(text: bytes) -> Json | None:
    """The JSON object that the text is; None where it is none."""
    found: object = None
    try:
        found = msgspec.json.decode(text)
    except _FAULTS:
        with suppress(ValueError, RecursionError):  # half a surrogate pair: some servers part them between events
            found = json.loads(text) if b"\\u" in text else None
    return found if isinstance(found, dict) else None


def framed(chunk: Mapping[str, object]) -> bytes:
    """The chunk as a server-sent event."""
    return b"data: " + as_json(chunk) + b"\n\n"


def joined_text(pieces: Sequence[str]) -> str:
    """One text; the halves of a surrogate pair that were parted between pieces are one character again."""
    text = "".join(pieces)
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def of_a_message(key: str) -> bool:
    """In what a message carries all strings are pieces, but labels."""
    return key not in _LABELS


def of_a_call(key: str) -> bool:
    """In a call only the name and the arguments come in pieces."""
    return key in ("name", "arguments")


def gathered(pieces: Sequence[object], joins: Joins, key: str = "") -> object:
    """One value from its pieces, in time linear in them: strings joined, lists extended (items that carry an index
    merged by it), objects merged; of anything else the newest. None says nothing."""
    given = [piece for piece in pieces if piece is not None]
    if len(given) < 2:
        return given[0] if given else None
    kind = type(given[-1])
    if kind not in _RULES or any(type(piece) is not kind for piece in given):
        return given[-1]
    return _RULES[kind](given, joins, key)


def _strings(pieces: Sequence[str], joins: Joins, key: str) -> str:
    return joined_text(pieces) if joins(key) else next(filter(None, pieces), "")


def _objects(pieces: Sequence[Json], joins: Joins, key: str) -> Json:
    members: dict[str, list[object]] = {}
    for name, value in chain.from_iterable(piece.items() for piece in pieces):
        members.setdefault(name, []).append(value)
    return {name: gathered(values, joins, name) for name, values in members.items()}


def _lists(pieces: Sequence[list[object]], joins: Joins, key: str) -> list[object]:
    places: dict[object, list[object]] = {}
    for item in chain.from_iterable(pieces):
        index = item.get("index") if isinstance(item, dict) else None
        place = index if isinstance(index, int) else (len(places),)  # a place of its own
        places.setdefault(place, []).append(item)
    return [gathered(items, joins, key) for items in places.values()]


_RULES: Mapping[type, Callable[..., object]] = MappingProxyType({str: _strings, dict: _objects, list: _lists})
