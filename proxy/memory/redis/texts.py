"""Texts that are kept for people in Redis: they stand with their conversation. Those of a bounded kind are in an index,
which finds those that are too many or too old; of those that are found by name, the conversations that have them are
listed.

A text's field is the first letter of its kind, and its name. In `abouts` it holds `NUMBER SIZE ` and then what a list
shows of it, where `n` is the last number; in `texts` it is the text. An index is the texts of a kind, sorted by when
they were first stored, each written `SIZE FIELD ` and then the conversation's name, and beside it how many bytes these
are. The laws of `scripts` hold here too.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import TypeVar

from proxy.config.keyring import Keyring
from proxy.memory import TEXT_KINDS, Key, StoredText, TextKind, serialization
from proxy.memory.redis.connection import RedisConnection
from proxy.memory.redis.scripts import MEND, NOTE, Command, Keys, Script, TextIndex
from proxy.memory.redis.url import Address
from proxy.memory.serialization import Codec, Names, UnreadableRecordError, name_bytes, names_of, readable

AT_ONCE = 200
"""Texts or conversations in one trip."""
_ROW = re.compile(rb"(\d{1,15}) (\d{1,15}) ")
_ENDLESS = 2**53
_KINDS = {kind.name[:1].encode(): kind for kind in TEXT_KINDS.values()}

T = TypeVar("T")

_PUT = Script(
    """-- KEYS: those of a conversation. ARGV: ttl, whether what is there stays, then fields, sizes, abouts and texts
local others = {}
for i = 3, #ARGV, 4 do
    if redis.call('HEXISTS', KEYS[6], ARGV[i]) == 0 then
        local number = redis.call('HINCRBY', KEYS[6], 'n', 1)
        redis.call('HSET', KEYS[6], ARGV[i], number .. ' ' .. ARGV[i + 1] .. ' ' .. ARGV[i + 2])
    end
    local there = ARGV[2] == '1' and redis.call('HGET', KEYS[7], ARGV[i])
    if not there then
        redis.call('HSET', KEYS[7], ARGV[i], ARGV[i + 3])
    elseif there ~= ARGV[i + 3] then
        others[#others + 1] = {ARGV[i], there}
    end
end
for _, key in ipairs(KEYS) do
    redis.call('EXPIRE', key, ARGV[1])
end
return others"""
)
"""Answers with the fields and texts that are there already and are not the same."""

_SUM = """
local function bytes()
    local sum = tonumber(redis.call('GET', KEYS[2]) or '')
    if sum and redis.call('EXISTS', KEYS[1]) == 1 then return sum end
    sum = 0
    for _, member in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
        sum = sum + (tonumber(string.match(member, '^%d+')) or 0)
    end
    return sum
end
"""
"""How many bytes there are; added up where their key is gone."""

_INDEX = Script(
    "-- KEYS: an index and its bytes. ARGV: ttl, now, members"
    + _SUM
    + """
local sum = bytes()
for i = 3, #ARGV do
    if redis.call('ZADD', KEYS[1], 'NX', ARGV[2], ARGV[i]) == 1 then
        sum = sum + tonumber(string.match(ARGV[i], '^%d+'))
    end
end
redis.call('SET', KEYS[2], string.format('%.0f', sum), 'EX', ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[1])"""
)

_SURPLUS = Script(
    "-- KEYS: an index and its bytes. ARGV: since when, most bytes, most members"
    + _SUM
    + """
local sum, surplus = bytes(), {}
local oldest = redis.call('ZRANGE', KEYS[1], 0, ARGV[3] - 1, 'WITHSCORES')
for i = 1, #oldest, 2 do
    if sum <= tonumber(ARGV[2]) and tonumber(oldest[i + 1]) >= tonumber(ARGV[1]) then break end
    surplus[#surplus + 1] = oldest[i]
    sum = sum - (tonumber(string.match(oldest[i], '^%d+')) or 0)
end
return surplus"""
)
"""Answers with the members that are too old or too many, the oldest first. They stay until _UNINDEX."""

_UNINDEX = Script(
    "-- KEYS: an index and its bytes. ARGV: ttl, members"
    + _SUM
    + """
local sum = bytes()
for i = 2, #ARGV do
    if redis.call('ZREM', KEYS[1], ARGV[i]) == 1 then
        sum = sum - (tonumber(string.match(ARGV[i], '^%d+')) or 0)
    end
end
if redis.call('EXISTS', KEYS[1]) == 1 then
    redis.call('SET', KEYS[2], string.format('%.0f', sum), 'EX', ARGV[1])
else
    redis.call('DEL', KEYS[2])
end"""
)


class RedisTexts:
    """The part of the store that holds texts, and what all parts need."""

    def __init__(self, where: Address, patience: float, clock: Callable[[], float], keyring: Keyring | None) -> None:
        self._keys = Keys(where.prefix)
        self._ttl = where.ttl
        self._clock = clock
        self._connection = RedisConnection(where, patience)
        self._codec = Codec(keyring)

    async def put_texts(self, key: Key, kind: TextKind, texts: Sequence[StoredText], limit: int | None = None) -> None:
        names = names_of(key)
        index, keys = self._keys.text_index(kind, *names), self._keys.conversation(*names)
        surplus = _SURPLUS.on(index, self._clock() - self._ttl, _ENDLESS if limit is None else limit, AT_ONCE)
        for some in in_portions(texts):
            # In a thread: texts may be long, and no request waits for them.
            stored = await asyncio.to_thread(self._codec.text_rows, names, kind, some)
            rows = [(letter(kind) + name, size, about, text) for name, size, about, text in stored]
            indexes: list[Command] = [*self._noted(*names)]
            if kind.bounded_by:
                members = (member(field, size, names) for field, size, *_ in rows)
                indexes.append(_INDEX.on(index, self._ttl, self._clock(), *members))
            if kind.by_name:
                holders = (self._keys.holders(names[0], field) for field, *_ in rows)
                indexes += (NOTE.on([key], self._ttl, self._clock(), names[1]) for key in holders)
            put = _PUT.on(keys, self._ttl, int(kind.first_stays), *(part for row in rows for part in row))
            # Indexed first, so that all that is stored can be found.
            *_, others, members_gone = await self._connection.trip(*indexes, put, surplus)
            while kind.bounded_by and members_gone:
                await self._drop_texts(index, names[0], members_gone)
                (members_gone,) = await self._connection.trip(surplus)
            new = {field: text for field, _, _, text in rows}
            for field, there in others if kind.first_stays else ():
                text = self._codec.first_text(names, kind, field[1:], there, new[field])
                if text != there:
                    await self._connection.trip(MEND.on([keys.texts], field, there, text))

    async def list_texts(self, key: Key, kind: TextKind) -> Sequence[StoredText]:
        names = names_of(key)
        (rows,) = await self._connection.trip(("HGETALL", self._keys.conversation(*names).abouts))
        numbered: list[tuple[int, StoredText]] = []
        for field, row in rows.items():
            if field.startswith(letter(kind)) and (sizes := self._codec.read(row_numbers, row)) is not None:
                text = self._codec.listed_text(names, kind, field[1:], row[sizes.end() :])
                if text is not None:
                    numbered.append((int(sizes[1]), text))
        return [text for _, text in sorted(numbered, key=itemgetter(0))]

    async def texts(self, key: Key, kind: TextKind, names: Sequence[str]) -> Mapping[str, str]:
        texts: dict[str, str] = {}
        there = names_of(key)
        for some in in_portions(names):
            fields = (letter(kind) + name_bytes(name) for name in some)
            (rows,) = await self._connection.trip(("HMGET", self._keys.conversation(*there).texts, *fields))
            texts |= await asyncio.to_thread(self._codec.texts, there, kind, zip(some, rows, strict=True))
        return texts

    async def conversations_with(self, tenant: str, kind: TextKind, name: str) -> Sequence[str]:
        key = self._keys.holders(name_bytes(tenant), letter(kind) + name_bytes(name))
        (names,) = await self._connection.trip(("ZRANGE", key, 0, -1))
        return readable(self._codec.read(serialization.name, each) for each in names)

    def _noted(self, tenant: bytes, name: bytes) -> tuple[Command, Command]:
        """The commands that note in the indexes that there is this conversation."""
        return self._note(self._keys.conversations(tenant), name), self._note(self._keys.tenants, tenant)

    def _note(self, index: str, member: bytes) -> Command:
        return NOTE.on([index], self._ttl, self._clock(), member)

    async def _unindex_texts(self, names: Names) -> None:
        """Take the texts of a conversation out of the indexes; they themselves go with their conversation."""
        (rows,) = await self._connection.trip(("HGETALL", self._keys.conversation(*names).abouts))
        for kind in TEXT_KINDS.values():
            fields = [field for field in rows if field.startswith(letter(kind))]
            if kind.bounded_by == "tenant":
                sizes = ((field, _ROW.match(rows[field])) for field in fields)
                members = [member(field, int(row[2]), names) for field, row in sizes if row]
                await self._drop_texts(self._keys.text_index(kind, *names), names[0], members)
            elif kind.by_name:
                for some in in_portions(fields):
                    keys = (self._keys.holders(names[0], field) for field in some)
                    await self._connection.trip(*(("ZREM", key, names[1]) for key in keys))

    async def _trim_texts(self, tenant: bytes, older_than: float) -> None:
        """Delete the texts of a tenant's index that were stored before this time; those of a conversation's go as it
        grows, or with it."""
        for index in self._text_indexes(tenant):
            while members := (await self._connection.trip(_SURPLUS.on(index, older_than, _ENDLESS, AT_ONCE)))[0]:
                await self._drop_texts(index, tenant, members)

    def _text_indexes(self, tenant: bytes) -> Sequence[TextIndex]:
        kinds = (kind for kind in TEXT_KINDS.values() if kind.bounded_by == "tenant")
        return [self._keys.text_index(kind, tenant, b"") for kind in kinds]

    async def _drop_texts(self, index: TextIndex, tenant: bytes, members: Sequence[bytes]) -> None:
        """Delete the texts before their entries in the index: what is interrupted is found again."""
        for some in in_portions(members):
            commands: list[Command] = []
            for member in some:
                _, field, conversation = member.split(b" ", 2)
                keys = self._keys.conversation(tenant, conversation)
                commands += (("HDEL", keys.abouts, field), ("HDEL", keys.texts, field))
                if _KINDS[field[:1]].by_name:
                    commands.append(("ZREM", self._keys.holders(tenant, field), conversation))
            await self._connection.trip(*commands, _UNINDEX.on(index, self._ttl, *some))


def letter(kind: TextKind) -> bytes:
    return kind.name[:1].encode()


def row_numbers(row: bytes) -> re.Match[bytes]:
    """The number and size that a row begins with. Raises UnreadableRecordError."""
    if match := _ROW.match(row):
        return match
    raise UnreadableRecordError("it has no number")


def member(field: bytes, size: int, names: Names) -> bytes:
    """A text as an index names it."""
    return b"%d %s %s" % (size, field, names[1])


def in_portions(rows: Iterable[T]) -> Iterator[list[T]]:
    """AT_ONCE of them, again and again."""
    left = iter(rows)
    return iter(lambda: list(islice(left, AT_ONCE)), [])
