"""Events in Redis: a stream for each tenant, capped, in the order in which the server took them."""

import secrets
from collections.abc import AsyncIterator, Sequence
from itertools import islice

from proxy.store import EVENTS, Event, serialization
from proxy.store.codec import Codec
from proxy.store.redis import scripts as lua
from proxy.store.redis.keys import Keys
from proxy.store.redis.link import Link
from proxy.store.redis.script import Command
from proxy.store.serialization import name_bytes

_AT_ONCE = 500
"""Events that are looked at in one trip."""
_Place = tuple[int, int]
"""Where an event stands in time: the server's milliseconds, and a number within them."""


class Events:
    """What happened to the summaries of each tenant."""

    def __init__(self, link: Link, keys: Keys, ttl: int, read: Codec) -> None:
        self._link = link
        self._keys = keys
        self._ttl = ttl
        self._read = read

    def noting(self, tenant: bytes, event: Event) -> Command:
        """What keeps the event."""
        row = (secrets.token_hex(16), name_bytes(event.conversation), serialization.event_bytes(event))
        return lua.NOTE_EVENT.on([self._keys.events(tenant)], self._ttl, EVENTS, *row)

    async def newest(
        self, tenants: Sequence[bytes], conversation: bytes | None, most: int
    ) -> Sequence[tuple[str, Event]]:
        """Of these tenants, and of one conversation if one is given; the oldest first."""
        found: list[tuple[_Place, str, Event]] = []
        for tenant in tenants:
            if (name := self._read(serialization.name, tenant)) is not None:
                newest = [each async for each in self._of(tenant, conversation, min(most, EVENTS))]
                found += ((place, name, event) for place, event in newest)
        found.sort(key=lambda each: each[0])
        return [(name, event) for _, name, event in found[-most:] if most > 0]

    async def _of(self, tenant: bytes, conversation: bytes | None, most: int) -> AsyncIterator[tuple[_Place, Event]]:
        """Of one tenant, the newest first."""
        before, left = "+", most
        wanted = () if conversation is None else (conversation,)
        while before and left > 0:
            at_once = _AT_ONCE if wanted else min(left, _AT_ONCE)
            asked = lua.EVENTS.on([self._keys.events(tenant)], before, at_once, *wanted)
            ((last, *rows),) = await self._link.trip(asked)
            before = last and f"({last.decode()}"
            for id, *row in islice(lua.events(*rows), left):
                if (event := self._read(_event, *row)) is not None:
                    left -= 1
                    yield _place(id), event

    async def forget(self, tenant: bytes, conversations: Sequence[bytes]) -> None:
        """Those of these conversations."""
        after = "-"
        while after:
            command = lua.FORGET_EVENTS.on([self._keys.events(tenant)], after, _AT_ONCE, *conversations)
            (last,) = await self._link.trip(command)
            after = last and f"({last.decode()}"

    async def trim(self, tenant: bytes, older_than: float) -> None:
        """Those noted before this time."""
        since = f"{max(0, int(older_than * 1_000))}"
        await self._link.trip(("XTRIM", self._keys.events(tenant), "MINID", since))


def _place(id: bytes) -> _Place:
    time, _, number = id.partition(b"-")
    return int(time), int(number)


def _event(conversation: bytes, record: bytes) -> Event:
    """Raises UnreadableError, UnicodeDecodeError."""
    return serialization.event(serialization.name(conversation), record)
