"""The shared store: Redis or Valkey, one server, Sentinel or a cluster. `url` says how they are named.

Laws
  What serving needs is one round trip; records cost a few, for what is there is read before it is written.
  A conversation lives in keys of one hash tag, and so in one slot. The indexes (a tenant's conversations, the tenants,
  the conversations that have a text) are sorted by last write. They stand in other slots, as a tenant's events do (a
  capped stream, in the order in which the server took them), are written in the same trip, and hold nothing that a
  request needs.
"""

import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

from proxy.config.keyring import Keyring
from proxy.memory.decisions import Announce, Key, StoreTrouble
from proxy.memory.redis.connection import RedisConnection
from proxy.memory.redis.decisions import RedisDecisionStore
from proxy.memory.redis.keys import Command, Keys, Script
from proxy.memory.redis.layouts import Place
from proxy.memory.redis.records import RedisRecordStore
from proxy.memory.redis.scripts import PUT_ONCE
from proxy.memory.redis.url import Address, address
from proxy.memory.serialization import Codec, name_bytes, names_of
from proxy.memory.store import Store
from proxy.memory.texts import AT_ONCE
from proxy.memory.trimming import Holding, trimmed

_PAUSE = 600
"""Seconds from one measurement to the next: each looks at every conversation."""
_FEW = 8

_SIZE = Script(
    """-- KEYS: those of a conversation
local sum = 0
for _, key in ipairs(KEYS) do
    sum = sum + (redis.call('MEMORY', 'USAGE', key, 'SAMPLES', 5) or 0)
end
return sum"""
)


def from_url(
    url: str, *, patience: float = 0.05, keyring: Keyring | None = None, announce: Announce = lambda _: None
) -> "RedisStore":
    """See `url`. Raises ValueError."""
    return RedisStore(address(url), patience=patience, keyring=keyring, announce=announce)


class RedisStore(RedisDecisionStore, Store):
    """A Store in Redis; see the contract for what each method promises."""

    _records: RedisRecordStore

    def __init__(
        self,
        where: Address,
        *,
        patience: float = 0.05,
        clock: Callable[[], float] = time.time,
        keyring: Keyring | None = None,
        announce: Announce = lambda _: None,
    ) -> None:
        parts = RedisConnection(where, patience), Keys(where.prefix), Codec(keyring), where.ttl, clock
        super().__init__(*parts)
        self._records = RedisRecordStore(*parts)
        self._where = where
        self._announce = announce

    @property
    def shared(self) -> bool:
        return True

    @property
    def misses(self) -> int:
        return self._codec.misses + self._connection.misses

    async def open(self) -> None:
        await self._connection.open(self._probe)
        is_old = False
        with suppress(StoreTrouble):  # in a cluster this is another node; what it says is only for the log
            (is_old,) = await self._connection.trip(("EXISTS", self._keys.tenants_of_0_1))
        if is_old:
            self._announce(
                f"{self._where} has keys that release 0.1 wrote: they are not read, expire by themselves, and new keys"
                f" begin with {self._keys.ready.removesuffix('ready')}"
            )

    async def close(self) -> None:
        await self._connection.close()

    async def ready(self) -> bool:
        try:
            await self._connection.trip(self._probe)
        except StoreTrouble:
            return False
        return True

    async def secret(self, name: str) -> bytes:
        (value,) = await self._connection.trip(PUT_ONCE.on([self._keys.secret(name)], secrets.token_bytes(32)))
        assert isinstance(value, bytes)
        return value

    async def delete(self, key: Key, *, with_events: bool = True) -> int:
        tenant, name = names_of(key)
        if with_events:
            await self._records.delete_events(tenant, name)
        return await self._delete(tenant, [name])

    async def delete_tenant(self, tenant: str, *, with_events: bool = True) -> int:
        owner = name_bytes(tenant)
        count = await self._delete_all(owner, ("ZRANGE", self._keys.conversations(owner), 0, AT_ONCE - 1))
        await self._records.delete_tenant(owner)
        if with_events:
            await self._connection.trip(("UNLINK", self._keys.events(owner)), ("ZREM", self._keys.tenants, owner))
        return count

    async def sweep(self, older_than: float) -> int:
        (tenants,) = await self._connection.trip(("ZRANGE", self._keys.tenants, 0, -1))
        old = ("-inf", f"({older_than}", "LIMIT", 0, AT_ONCE)
        count = 0
        for tenant in tenants:
            await self._records.sweep(tenant, older_than)
            count += await self._delete_all(tenant, ("ZRANGEBYSCORE", self._keys.conversations(tenant), *old))
        return count

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
            await self._records.unindex(tenant, name)
        for index in (self._keys.conversations(tenant), self._keys.billed(tenant, "conversations")):
            await self._connection.trip(("ZREM", index, *names))
        commands = [("UNLINK", *self._keys.conversation(tenant, name)) for name in names]
        marks = [("UNLINK", Place(self._keys, tenant, name).mark(None)) for name in names]
        return sum(map(bool, (await self._connection.trip(*commands, *marks))[: len(names)]))

    @property
    def _probe(self) -> Command:
        """Fails where nothing can be written."""
        return "SET", self._keys.ready, 1, "PX", 60_000
