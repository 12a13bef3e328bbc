"""What a client returned of a reply, told from what was kept of its rounds.

Laws: what was kept is sent as the model saw it, whatever the client has left out of it or seals otherwise, and never
are there two items with one id.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from policies.dialects.common import as_json, parsed
from policies.dialects.openai_responses.items import CALLS, Item, digest, read, texts_of, type_of
from policies.model.rawjson import Path, find, items, replaced

Layout = Sequence[Any]
"""The items of a round as they were kept: null for a call of ours, true for one of the client's."""
_MESSAGE = frozenset({"message"})


class Returned:
    """The items of a reply. One that was kept is the same if kind and id agree: clients leave fields out, and some
    upstreams seal reasoning anew in each event that holds it. Else it is told again by all that it says.
    """

    def __init__(self, reply: Sequence[bytes], kept: Iterable[Layout]) -> None:
        self._left = dict(enumerate(reply))
        self._items = list(map(parsed, reply))
        self._kept = {_name(entry) for layout in kept for entry in layout if isinstance(entry, dict)}
        self._ids = {name for name in map(_name, self._items) if name}
        self._places: dict[object, deque[int]] = defaultdict(deque)
        for at, item in enumerate(self._items):
            for key in self._keys(item):
                self._places[key].append(at)
        self._found: set[int] = set()
        self._taken = 0
        """Characters of the messages that were taken."""

    def take(self, raw: bytes) -> bytes:
        """An item of an earlier round as it is to be sent; the client's copy goes from what is left."""
        item = parsed(raw)
        at = self._find(item)
        if at is not None:
            self._taken += len(_text(self._items[at]))
            del self._left[at]
            return raw
        # its text is in a message that the client has put together, under the same id
        return as_json({k: v for k, v in item.items() if k != "id"}) if _name(item) in self._ids else raw

    def left(self, count: int) -> list[bytes]:
        """What was not taken. The rounds before have said `count` characters: those that the client has in other
        items go, too."""
        return list(_after(self._left.values(), count - self._taken))

    def place(self, entry: Any, start: int) -> int | None:
        """Where what an entry stands for is; None where the client has not returned it. A message, or a call of the
        client's, is the next one from `start` on."""
        kinds = CALLS if entry is True else _MESSAGE
        if entry is not True and type_of(entry) != "message":
            return self._find(entry)
        return next((at for at in range(start, len(self._items)) if type_of(self._items[at]) in kinds), None)

    def _find(self, item: Item) -> int | None:
        """The place of an item that was kept. It is found once."""
        for key in (_named(item), _sign(item)):
            places = self._places.get(key, deque())
            while places:
                at = places.popleft()
                if at not in self._found:
                    self._found.add(at)
                    return at
        return None

    def _keys(self, item: Item) -> Iterator[object]:
        """What an item is found by: one that has the id of another that was kept is not that it equals."""
        name = _name(item)
        if name:
            yield _named(item)
        if not name or name not in self._kept:
            yield _sign(item)


def _name(item: Item) -> tuple[str, str] | None:
    """The kind and the id of an item; None where it has no id."""
    found = item.get("id")
    return (type_of(item), found) if isinstance(found, str) and found else None


def _named(item: Item) -> tuple[object, str]:
    """Its name, and what it says: a message with other text is another one, because clients join several."""
    return _name(item), _text(item)


def _text(item: Item) -> str:
    return "".join(texts_of(item)) if type_of(item) == "message" else ""


def _sign(item: Item) -> bytes:
    """What tells an item again that has no id: its seal, or all that it says."""
    sealed = item.get("encrypted_content")
    return sealed.encode("utf-8", "surrogatepass") if isinstance(sealed, str) and sealed else digest(item)


def _after(reply: Iterable[bytes], count: int) -> Iterator[bytes]:
    """The reply without the first `count` characters of its text, and without the messages that are empty then."""
    for raw in reply:
        rest: bytes | None = raw
        if count > 0:
            rest, count = _shortened(raw, count)
        if rest is not None:
            yield rest


def _shortened(raw: bytes, count: int) -> tuple[bytes | None, int]:
    """An item without so many characters of its text, and how many are still to go."""
    gone = set[int]()
    changes: dict[Path, bytes] = {}
    for part in read(raw, len).parts:
        if part.kind == "assistant" and count:
            if len(part.text) <= count:
                gone.add(int(part.path[1]) if len(part.path) > 1 else 0)
            else:
                changes[part.path] = as_json(part.text[count:])
            count -= min(count, len(part.text))
    raw = replaced(raw, changes) if changes else raw
    return (_relieved(raw, gone) if gone else raw), count


def _relieved(raw: bytes, gone: set[int]) -> bytes | None:
    """The message without these parts of its content; None where no other is left."""
    start, end = find(raw, ("content",))
    parts = [] if raw[start : start + 1] == b'"' else items(raw, start, end)
    kept = [raw[a:b] for at, (a, b) in enumerate(parts) if at not in gone]
    return raw[:start] + b"[" + b",".join(kept) + b"]" + raw[end:] if kept else None
