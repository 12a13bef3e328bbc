"""Values that come in pieces. No state, and nothing here raises on what it reads."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType

from policies.dialects.events import Json, joined_text

Joins = Callable[[str], bool]
"""Whether strings of this key are pieces of one string; of other strings the first that is not empty counts."""

_LABELS = frozenset({"id", "type", "format", "role", "object"})
"""Strings that servers repeat in each piece."""


def of_a_message(key: str) -> bool:
    """In what a message carries all strings are pieces, but labels."""
    return key not in _LABELS


def of_a_call(key: str) -> bool:
    """In a call only the name and the arguments come in pieces."""
    return key in ("name", "arguments")


def gathered(pieces: Sequence[object], joins: Joins, key: str = "") -> object:
    """One value from its pieces, in time linear in them: strings joined, lists extended (items that carry an index
    merged by it), objects merged; of anything else the newest. None counts for nothing."""
    values = [piece for piece in pieces if piece is not None]
    if len(values) < 2:
        return values[0] if values else None
    kind = type(values[-1])
    if kind not in _RULES or any(type(value) is not kind for value in values):
        return values[-1]
    return _RULES[kind](values, joins, key)


def is_blank(value: object) -> bool:
    """Whether a value tells nothing."""
    return value is None or value in ("", [], {})


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
