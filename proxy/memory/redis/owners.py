"""Conversations as a whole, in Redis: who has sent them (a set beside the steps), how much they take (measured now and
then by one replica for all), and what of them is deleted."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from proxy.memory import Key, TextKind, serialization
from proxy.memory.redis.bills import RedisBills, conversation_row
from proxy.memory.redis.scripts import MEND, Command, Script
from proxy.memory.redis.texts import AT_ONCE, in_portions, letter, member, row_numbers
from proxy.memory.serialization import Names, UnreadableRecordError, name_bytes, names_of, readable
from proxy.memory.trimming import Holding, trimmed

_PAUSE = 600
"""Seconds from one measurement to the next: each looks at every conversation."""
_FEW = 8
_ENTRY = re.compile(rb"(\d{1,9}):(\d{1,9}):")

_SIZE = Script(
    """-- KEYS: those of a conversation
local sum = 0
for _, key in ipairs(KEYS) do
    sum = sum + (redis.call('MEMORY', 'USAGE', key, 'SAMPLES', 5) or 0)
end
return sum"""
)


class RedisOwners(RedisBills):
    """The part of the store that knows whose conversations they are, and deletes them."""

    async def own(self, key: Key, owner: str) -> None:
        names = names_of(key)
        owners = self._keys.conversation(*names).owners
        await self._connection.trip(("SADD", owners, owner), ("EXPIRE", owners, self._ttl), *self._noted(*names))

    async def owners(self, key: Key) -> Collection[str]:
        names = names_of(key)
        keys = self._keys.conversation(*names)
        owners, row = await self._connection.trip(("SMEMBERS", keys.owners), ("HGET", keys.spent, "b"))
        return {
            *readable(self._codec.read(serialization.name, owner) for owner in owners),
            *self._billed_to(names, row),
        }

    async def conversations(self, tenant: str, owner: str | None = None) -> Sequence[str]:
        of_tenant = name_bytes(tenant)
        (names,) = await self._connection.trip(("ZRANGE", self._keys.conversations(of_tenant), 0, -1))
        if owner is None:
            return readable(self._codec.read(serialization.name, name) for name in names)
        owned = []
        for some in in_portions(names):
            keys = [self._keys.conversation(of_tenant, name) for name in some]
            noted = await self._connection.trip(*(("SISMEMBER", each.owners, owner) for each in keys))
            billed = await self._connection.trip(*(("HGET", each.spent, "b") for each in keys))
            for name, is_owner, row in zip(some, noted, billed, strict=True):
                if is_owner or owner in self._billed_to((of_tenant, name), row):
                    owned.append(name)
        return readable(self._codec.read(serialization.name, name) for name in owned)

    def _billed_to(self, names: Names, row: bytes | None) -> Sequence[str]:
        """Who has sent the newest request that was billed, where there is one."""
        billed = None if row is None else self._codec.read(conversation_row, *names, row)
        return [] if billed is None else [billed.labels.owner]

    async def disown(self, key: Key, owner: str) -> int:
        owners = self._keys.conversation(*names_of(key)).owners
        _, left = await self._connection.trip(("SREM", owners, owner), ("SCARD", owners))
        return int(left)

    async def delete_texts(self, key: Key, kind: TextKind, names: Sequence[str]) -> None:
        there = names_of(key)
        for some in in_portions(names):
            fields = [letter(kind) + name_bytes(name) for name in some]
            (rows,) = await self._connection.trip(("HMGET", self._keys.conversation(*there).abouts, *fields))
            sizes = (
                (field, self._codec.read(row_numbers, row)) for field, row in zip(fields, rows, strict=True) if row
            )
            members = [member(field, int(size[2]), there) for field, size in sizes if size is not None]
            await self._drop_texts(self._keys.text_index(kind, *there), there[0], members)

    async def delete_summaries(self, key: Key, ids: Collection[str]) -> None:
        summaries = self._keys.conversation(*names_of(key)).summaries
        (rows,) = await self._connection.trip(("HGETALL", summaries))
        for field, row in rows.items() if ids else ():
            left = [(name, content) for name, content in self._entries(row) if numbered_id(name)[1] not in ids]
            row_left = b"".join(b"%d:%d:" % (len(name), len(content)) + name + content for name, content in left)
            if field != b"n" and row_left != row:
                await self._connection.trip(MEND.on([summaries], field, row, row_left))

    async def trim(self, limit: int) -> tuple[int, int] | None:
        held = await self._measured()
        if held is None:
            return None
        return await trimmed(held.total(), limit, held, self._oldest, lambda names: self._delete(names[0], names[1:]))

    async def _measured(self) -> Counter[bytes] | None:
        """About how many bytes each tenant holds; None where a replica has looked a moment ago."""
        (is_ours,) = await self._connection.trip(("SET", self._keys.measured, 1, "NX", "EX", _PAUSE))
        if not is_ours:
            return None
        (tenants,) = await self._connection.trip(("ZRANGE", self._keys.tenants, 0, -1))
        held: Counter[bytes] = Counter()
        for tenant in tenants:
            start, names = 0, [b""]
            while names:
                stop = start + AT_ONCE - 1
                (names,) = await self._connection.trip(("ZRANGE", self._keys.conversations(tenant), start, stop))
                held[tenant] += sum(holding.size for holding in await self._sizes(tenant, names))
                start += AT_ONCE
        return held

    async def _oldest(self, tenant: bytes) -> Sequence[Holding]:
        (names,) = await self._connection.trip(("ZRANGE", self._keys.conversations(tenant), 0, _FEW - 1))
        return await self._sizes(tenant, names)

    async def _sizes(self, tenant: bytes, names: Sequence[bytes]) -> Sequence[Holding]:
        commands: list[Command] = [_SIZE.on(self._keys.conversation(tenant, name)) for name in names]
        sizes = await self._connection.trip(*commands) if commands else []
        return [Holding(name, int(size)) for name, size in zip(names, sizes, strict=True)]

    async def _delete_all(self, tenant: bytes, command: Command) -> int:
        """Delete the conversations that the command answers with, until there are none."""
        count = 0
        while names := (await self._connection.trip(command))[0]:
            count += await self._delete(tenant, names)
        return count

    async def _delete(self, tenant: bytes, names: Sequence[bytes]) -> int:
        """The indexes before the conversations: what is written meanwhile is found again."""
        for name in names:
            await self._unindex_texts((tenant, name))
        for index in (self._keys.conversations(tenant), self._keys.billed(tenant, "conversations")):
            await self._connection.trip(("ZREM", index, *names))
        commands = [("UNLINK", *self._keys.conversation(tenant, name)) for name in names]
        return sum(map(bool, await self._connection.trip(*commands)))

    def _entries(self, row: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The names and records of a row; where it breaks off is a miss."""
        at = 0
        while at < len(row):
            entry = _ENTRY.match(row, at)
            if entry is None:
                self._codec.misses += 1
                return
            start = entry.end() + int(entry[1])
            at = start + int(entry[2])
            yield row[entry.end() : start], row[start:at]


def numbered_id(name: bytes) -> tuple[int, str]:
    """The number of a summary, and its id. Raises UnreadableRecordError, UnicodeDecodeError."""
    number, _, id = name.partition(b" ")
    if not number.isdigit():
        raise UnreadableRecordError("it has no number")
    return int(number), serialization.name(id)
