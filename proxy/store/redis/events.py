"""Events in Redis: a stream for each tenant, capped, in the order in which the server took them."""

import secrets
from collections.abc import AsyncIterator, Sequence
from io import BytesIO
from itertools import islice
from operator import itemgetter
from struct import iter_unpack

from proxy.store import EVENTS, Event, serialization
from proxy.store.redis.connection import RedisPart
from proxy.store.redis.scripts import Script
from proxy.store.serialization import name_bytes

_AT_ONCE = 500
"""Events that are looked at in one trip."""
_Moment = tuple[int, int]
"""When the server took an event: its milliseconds, and a number within them."""

_NOTE = Script(
    """-- KEYS: a tenant's events. ARGV: ttl, most, mark, conversation, record
for _, entry in ipairs(redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 16)) do
    if entry[2][2] == ARGV[3] then return end
end
redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[2], '*', 'm', ARGV[3], 'c', ARGV[4], 'e', ARGV[5])
local since = math.max(0, redis.call('TIME')[1] - ARGV[1])
redis.call('XTRIM', KEYS[1], 'MINID', '~', string.format('%.0f', since * 1000))
redis.call('EXPIRE', KEYS[1], ARGV[1])"""
)

_LIST = Script(
    """-- KEYS: a tenant's events. ARGV: before which, how many to look at, and maybe a conversation
local entries = redis.call('XREVRANGE', KEYS[1], ARGV[1], '-', 'COUNT', ARGV[2])
local lengths, parts = {}, {}
for _, entry in ipairs(entries) do
    if not ARGV[3] or entry[2][4] == ARGV[3] then
        for _, part in ipairs({entry[1], entry[2][4] or '', entry[2][6] or ''}) do
            lengths[#lengths + 1] = struct.pack('>i4', #part)
            parts[#parts + 1] = part
        end
    end
end
return {entries[tonumber(ARGV[2])] and entries[#entries][1] or '', table.concat(lengths), table.concat(parts)}"""
)
"""Answers with the last one that it has looked at, empty where there are no more, and with the id, the conversation and
the record of those wanted: in two pieces, as READ does."""

_DELETE = Script(
    """-- KEYS: a tenant's events. ARGV: after which, how many to look at, conversations
local entries = redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', ARGV[2])
local names = {}
for i = 3, #ARGV do names[ARGV[i]] = true end
for _, entry in ipairs(entries) do
    if names[entry[2][4]] then redis.call('XDEL', KEYS[1], entry[1]) end
end
return entries[tonumber(ARGV[2])] and entries[#entries][1] or ''"""
)
"""Answers with the last one that it has looked at, empty where there are no more."""


class RedisEvents(RedisPart):
    """The events of each tenant."""

    async def note(self, tenant: str, event: Event) -> None:
        owner = name_bytes(tenant)
        row = (secrets.token_hex(16), name_bytes(event.conversation), serialization.packed("event", event))
        command = _NOTE.on([self._keys.events(owner)], self._ttl, EVENTS, *row)
        await self._connection.trip(command, self._note(self._keys.tenants, owner))

    async def events(self, tenant: str | None, conversation: str | None, most: int) -> Sequence[tuple[str, Event]]:
        if tenant is None:
            (tenants,) = await self._connection.trip(("ZRANGE", self._keys.tenants, 0, -1))
        else:
            tenants = [name_bytes(tenant)]
        wanted = () if conversation is None else (name_bytes(conversation),)
        events: list[tuple[_Moment, str, Event]] = []
        for owner in tenants:
            if (name := self._codec.read(serialization.name, owner)) is not None:
                newest = self._newest_events(owner, wanted, min(most, EVENTS))
                events += [(moment, name, event) async for moment, event in newest]
        events.sort(key=itemgetter(0))
        return [(name, event) for _, name, event in events[-most:] if most > 0]

    async def _newest_events(
        self, tenant: bytes, wanted: Sequence[bytes], most: int
    ) -> AsyncIterator[tuple[_Moment, Event]]:
        """Of one tenant, and of the conversation that is wanted, if any; the newest first."""
        before, left = "+", most
        while before and left > 0:
            at_once = _AT_ONCE if wanted else min(left, _AT_ONCE)
            command = _LIST.on([self._keys.events(tenant)], before, at_once, *wanted)
            ((last, lengths, parts),) = await self._connection.trip(command)
            before, rest = last and f"({last.decode()}", BytesIO(parts)
            for sizes in islice(iter_unpack(">3i", lengths), left):
                id, *row = map(rest.read, sizes)
                if (event := self._codec.read(serialization.event, *row)) is not None:
                    left -= 1
                    time, _, number = id.partition(b"-")
                    yield (int(time), int(number)), event

    async def _delete_events(self, tenant: bytes, conversation: bytes) -> None:
        after = "-"
        while after:
            command = _DELETE.on([self._keys.events(tenant)], after, _AT_ONCE, conversation)
            (last,) = await self._connection.trip(command)
            after = last and f"({last.decode()}"

    async def _trim_events(self, tenant: bytes, older_than: float) -> None:
        """Delete those noted before this time."""
        since = f"{max(0, int(older_than * 1_000))}"
        await self._connection.trip(("XTRIM", self._keys.events(tenant), "MINID", since))
