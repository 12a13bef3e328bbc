"""One round of a choice as it comes: its text, its calls, which of them are ours, and what the client receives of them.

Laws: a call is undecided until its name says whose it is, and what follows it waits so long, so that the client gets
its calls in their order; the client's indexes have no gap where a call of ours was.
"""

from collections.abc import Callable, Sequence
from itertools import chain, takewhile
from typing import Any

from policies.dialects.common import as_json, object_at, text_at
from policies.dialects.events import Json, joined_text
from policies.dialects.rounds import Round, derived_id, valid_arguments
from policies.tools import RECALL

_READ = frozenset({"role", "content", "tool_calls"})


class ChatCall:
    """One call, from its pieces; an Entry (rounds.py)."""

    is_call = True
    text = ""

    def __init__(self, index: int) -> None:
        self.index = index
        self.id = ""
        self.ours: bool | None = None
        """None while the name may yet become that of the recall tool."""
        self._name = ""
        self._pieces: list[object] = []

    def receive(self, entry: object) -> None:
        self._pieces.append(entry)
        self.id = self.id or text_at(entry, "id")
        if self.ours is not None:
            return
        self._name += name_of(entry)
        if self._name == RECALL:
            self.ours = True
        elif (
            not isinstance(entry, dict)
            or not isinstance(entry.get("function", {}), dict | None)
            or entry.get("type") not in (None, "", "function")
            or not RECALL.startswith(self._name)
        ):
            self.ours = False

    def release(self, ours_before: int) -> list[object]:
        """What the client gets of it now, as one entry; `ours_before`: how many calls of ours stand before it."""
        pieces, self._pieces = self._pieces, []
        if not pieces:
            return []
        entry = gathered(pieces, of_a_call)
        if ours_before and isinstance(entry, dict) and isinstance(entry.get("index"), int):
            entry = {**entry, "index": entry["index"] - ours_before}
        return [entry]

    def _whole(self) -> tuple[Json, Json]:
        """The call and the function in it."""
        call = gathered(self._pieces, of_a_call)
        return call if isinstance(call, dict) else {}, object_at(call, "function")

    @property
    def arguments(self) -> str | None:
        return valid_arguments(self._whole()[1].get("arguments"))

    def as_json(self, place: int) -> str:
        whole, function = self._whole()
        arguments = self.arguments or "{}"
        call = {
            **{key: value for key, value in whole.items() if key != "index"},
            "id": self.id or derived_id(place, arguments),
            "type": "function",
            "function": {**function, "name": RECALL, "arguments": arguments},
        }
        return as_json(call).decode()


class ChatRound(Round[ChatCall]):
    """The message of one round."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[ChatCall] = []
        self.texts: list[str] = []
        """Its text in pieces, as they came."""
        self._fields: list[Json] = []

    def receive(self, message: Json) -> None:
        """The next piece of the message, apart from its calls."""
        text = message.get("content")
        if isinstance(text, str):
            self.texts.append(text)
        if not message.keys() <= _READ:
            self._fields.append({key: value for key, value in message.items() if key not in _READ})

    def receive_calls(self, entries: Sequence[object], final: bool) -> list[object]:
        """The next pieces of its calls; returns those that the client gets now. `final`: no name grows any more."""
        for position, entry in enumerate(entries):
            self._call_of(entry, position).receive(entry)
        if final:
            for call in self._calls:
                call.ours = call.ours or False
        decided = takewhile(lambda call: call.ours is not None, self._calls)
        return [entry for call in decided if not call.ours for entry in call.release(self.ours_before(call.index))]

    def continues_theirs(self, entries: object) -> bool:
        """Whether these are one entry, the next piece of a call that is known to be the client's, where no call is
        ours."""
        entry = entries[0] if isinstance(entries, list) and len(entries) == 1 else None
        index = entry.get("index") if isinstance(entry, dict) else None
        call = self.by_index.get(index) if isinstance(index, int) else None
        return bool(call and call.id) and not name_of(entry) and all(each.ours is False for each in self._calls)

    def _call_of(self, entry: object, position: int) -> ChatCall:
        """The call that an entry belongs to. Servers that know no index, or give each call the same one, send each
        call whole: a new id and a name."""
        index = entry.get("index") if isinstance(entry, dict) else None
        index = index if isinstance(index, int) else position
        call, id_ = self.by_index.get(index), text_at(entry, "id")
        if call is None or (call.id not in ("", id_) and id_ and name_of(entry)):
            call = self.by_index[index] = ChatCall(index)
            self._calls.append(call)
        return call

    @property
    def entries(self) -> list[ChatCall]:
        return sorted(self._calls, key=lambda call: call.index)

    @property
    def text(self) -> str:
        return joined_text(self.texts)

    def fields(self, entries: Sequence[ChatCall], alone: bool) -> str:
        """The fields of the message besides text and calls, as JSON; "" where there are none."""
        whole = gathered(self._fields, of_a_message)
        fields = {k: v for k, v in whole.items() if not is_blank(v)} if isinstance(whole, dict) else {}
        return as_json(fields).decode() if fields else ""


def name_of(entry: object) -> str:
    """The part of the name in one piece of a call."""
    return text_at(object_at(entry, "function"), "name")


# --- values that come in pieces. No state, and nothing here raises on what it reads ---

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
