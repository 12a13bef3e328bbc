"""Values that come in pieces. No state, and nothing here raises on what it reads."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from policies.dialects.events import joined_text

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


def gathered(pieces: Sequence[Any], joins: Joins, key: str = "") -> object:
    """One value from its pieces, in time linear in them: strings joined, lists extended (items that carry an index
    merged by it), objects merged; of anything else the newest. None counts for nothing."""
    values = [piece for piece in pieces if piece is not None]
    if len(values) < 2:
        return values[0] if values else None
    kind = type(values[-1])
    if kind not in (str, dict, list) or any(type(value) is not kind for value in values):
        return values[-1]
    if kind is str:
        return joined_text(values) if joins(key) else next(filter(None, values), "")
    places: dict[object, list[object]] = {}
    if kind is dict:
        for name, value in chain.from_iterable(piece.items() for piece in values):
            places.setdefault(name, []).append(value)
        return {name: gathered(parts, joins, str(name)) for name, parts in places.items()}
    for item in chain.from_iterable(values):
        index = item.get("index") if isinstance(item, dict) else None
        place = index if isinstance(index, int) else (len(places),)  # a place of its own
        places.setdefault(place, []).append(item)
    return [gathered(parts, joins, key) for parts in places.values()]


def is_blank(value: object) -> bool:
    """Whether a value tells nothing."""
    return value is None or value in ("", [], {})
