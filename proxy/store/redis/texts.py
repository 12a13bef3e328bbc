"""Texts for people in Redis: they stand with their conversation; what is too much or too old is found by an index."""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import TypeVar

from proxy.store import Leaf, Shelf, serialization
from proxy.store.codec import Codec, place
from proxy.store.redis import text_scripts as lua
from proxy.store.redis.keys import Index, Keys
from proxy.store.redis.link import Link
from proxy.store.redis.script import Command
from proxy.store.serialization import name_bytes

_AT_ONCE = 200
"""Leaves in one trip."""
_LETTERS: Mapping[Shelf, bytes] = {"artifact": b"a", "message": b"m"}
_SHELVES: Mapping[bytes, Shelf] = {letter: shelf for shelf, letter in _LETTERS.items()}
_ROW = re.compile(rb"(\d{1,15}) (\d{1,15}) ")
_ENDLESS = 2**53
_Names = tuple[bytes, bytes]
"""A tenant and a conversation."""

T = TypeVar("T")


class Leaves:
    """The leaves of each conversation."""

    def __init__(self, link: Link, keys: Keys, ttl: int, codec: Codec, clock: Callable[[], float]) -> None:
        self._link = link
        self._keys = keys
        self._ttl = ttl
        self._codec = codec
        self._clock = clock

    async def keep(
        self, names: _Names, shelf: Shelf, leaves: Sequence[Leaf], most: int, noted: Sequence[Command]
    ) -> None:
        """Keep them; `noted` says in the indexes of conversations that there is one."""
        index = self._keys.index(shelf, *names)
        for some in _some(leaves):
            # In a thread: texts may be long, and nobody waits for these.
            members, rows = zip(*await asyncio.to_thread(self._rows, names, shelf, some), strict=True)
            keep = lua.KEEP_LEAVES.on(self._keys.place(*names).keys, self._ttl, *chain.from_iterable(rows))
            shelve = lua.SHELVE.on(index, self._ttl, self._clock(), *members)
            holders = [self._holding(names, leaf.name) for leaf in some] if shelf == "artifact" else []
            surplus = lua.SURPLUS.on(index, self._clock() - self._ttl, most, _AT_ONCE)
            # Indexed first: nothing is kept that nobody finds.
            *_, gone = await self._link.trip(shelve, keep, *noted, *holders, surplus)
            while gone:
                await self._unshelve(index, names[0], gone)
                (gone,) = await self._link.trip(surplus)

    async def listed(self, names: _Names, shelf: Shelf) -> Sequence[Leaf]:
        """In the order in which they were kept, without their texts."""
        (rows,) = await self._link.trip(("HGETALL", self._keys.place(*names).leaves))
        letter, found = _LETTERS[shelf], []
        for field, row in rows.items():
            if field.startswith(letter) and (told := self._told(names, shelf, field[1:], row)) is not None:
                found.append(told)
        return [leaf for _, leaf in sorted(found, key=lambda each: each[0])]

    async def texts(self, names: _Names, shelf: Shelf, wanted: Sequence[str]) -> Mapping[str, str]:
        """The texts that are there."""
        found: dict[str, str] = {}
        for some in _some(wanted):
            fields = (_LETTERS[shelf] + name_bytes(name) for name in some)
            (rows,) = await self._link.trip(("HMGET", self._keys.place(*names).texts, *fields))
            found |= await asyncio.to_thread(self._read, names, shelf, some, rows)
        return found

    async def holders(self, tenant: bytes, name: str) -> Sequence[str]:
        """The conversations that have this artifact, as far as their names can be read."""
        (names,) = await self._link.trip(("ZRANGE", self._keys.kept(tenant, name_bytes(name)), 0, -1))
        found = (self._codec(serialization.name, holder) for holder in names)
        return [holder for holder in found if holder is not None]

    async def forget(self, tenant: bytes, conversations: Sequence[bytes]) -> None:
        """Take the artifacts of these conversations out of the indexes; they themselves go with their conversation."""
        for conversation in conversations:
            names = (tenant, conversation)
            (rows,) = await self._link.trip(("HGETALL", self._keys.place(*names).leaves))
            sizes = ((field, _ROW.match(row)) for field, row in rows.items() if field[:1] == _LETTERS["artifact"])
            members = [_member(field, int(sized[2]), names) for field, sized in sizes if sized]
            await self._unshelve(self._keys.index("artifact", *names), tenant, members)

    async def trim(self, tenant: bytes, older_than: float) -> None:
        """Let the artifacts go that were kept before this time; a log's messages go as it grows, or with it."""
        index = self._keys.index("artifact", tenant, b"")
        while gone := (await self._link.trip(lua.SURPLUS.on(index, older_than, _ENDLESS, _AT_ONCE)))[0]:
            await self._unshelve(index, tenant, gone)

    async def _unshelve(self, index: Index, tenant: bytes, members: Sequence[bytes]) -> None:
        """The leaves first, then what says that they are there: whoever breaks off is followed up."""
        for some in _some(members):
            gone = (command for member in some for command in self._dropped(tenant, member))
            await self._link.trip(*gone, lua.UNSHELVE.on(index, self._ttl, *some))

    def _dropped(self, tenant: bytes, member: bytes) -> Iterator[Command]:
        _, field, conversation = member.split(b" ", 2)
        there = self._keys.place(tenant, conversation)
        yield "HDEL", there.leaves, field
        yield "HDEL", there.texts, field
        if _SHELVES.get(field[:1]) == "artifact":
            yield "ZREM", self._keys.kept(tenant, field[1:]), conversation

    def _holding(self, names: _Names, name: str) -> Command:
        return "ZADD", self._keys.kept(names[0], name_bytes(name)), self._clock(), names[1]

    def _rows(self, names: _Names, shelf: Shelf, leaves: Sequence[Leaf]) -> list[tuple[bytes, Command]]:
        return [self._written(names, shelf, leaf) for leaf in leaves]

    def _written(self, names: _Names, shelf: Shelf, leaf: Leaf) -> tuple[bytes, Command]:
        """What an index says of a leaf, and what its conversation does: field, size, what a list says, and text."""
        name = name_bytes(leaf.name)
        field = _LETTERS[shelf] + name
        about = self._codec.seal(place(f"about {shelf}", *names, name), serialization.about_bytes(leaf.about))
        text = self._codec.seal(place(shelf, *names, name), serialization.text_bytes(leaf.text))
        size = len(about) + len(text)
        return _member(field, size, names), (field, size, about, text)

    def _read(self, names: _Names, shelf: Shelf, wanted: Sequence[str], rows: Sequence[object]) -> dict[str, str]:
        """The texts of these rows, as far as they are there and can be read."""
        found: dict[str, str] = {}
        for name, row in zip(wanted, rows, strict=True):
            text = self._codec.opened(place(shelf, *names, name_bytes(name)), serialization.text, row)
            if text is not None:
                found[name] = text
        return found

    def _told(self, names: _Names, shelf: Shelf, name: bytes, row: bytes) -> tuple[int, Leaf] | None:
        """The number of a leaf, and what is said of it; what cannot be read is a miss."""
        read = partial(_numbered, self._codec, place(f"about {shelf}", *names, name), name)
        return self._codec(read, row)


def _numbered(codec: Codec, there: bytes, name: bytes, row: bytes) -> tuple[int, Leaf] | None:
    """Raises UnreadableError, UnicodeDecodeError."""
    sized = _ROW.match(row)
    if sized is None:
        raise serialization.UnreadableError("it has no number")
    about = codec.opened(there, serialization.about, row[sized.end() :])
    return None if about is None else (int(sized[1]), Leaf(serialization.name(name), "", about))


def _member(field: bytes, size: int, names: _Names) -> bytes:
    """How an index names a leaf."""
    return b"%d %s %s" % (size, field, names[1])


def _some(rows: Iterable[T]) -> Iterator[list[T]]:
    """A few of them, again and again."""
    left = iter(rows)
    return iter(lambda: list(islice(left, _AT_ONCE)), [])
