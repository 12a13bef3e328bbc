"""One limit for all that is stored, fair between tenants: whoever holds most gives up its oldest conversation first."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import NamedTuple

from proxy.memory.decisions import StoreTrouble
from proxy.memory.serialization import Names
from proxy.memory.store import Store
from proxy.telemetry import Telemetry

_PAUSE = 60.0
"""Seconds from one look at the size to the next."""
_ROOM = 0.95
"""The share of the limit that is come down to, so that not every write is one too many."""


class Holding(NamedTuple):
    """A conversation, and about how many bytes are stored of it."""

    name: bytes
    size: int


async def trimmed(
    size: int,
    limit: int,
    held: MutableMapping[bytes, int],
    oldest: Callable[[bytes], Awaitable[Sequence[Holding]]],
    delete: Callable[[Names], Awaitable[object]],
) -> tuple[int, int]:
    """Delete conversations until `size` is below the limit, with some room. `held`: about how many bytes each tenant
    has; `oldest`: a few conversations of one, not used for longest. Returns the size then, and how many went."""
    share, left, gone = size / max(1, sum(held.values())), float(size), 0
    while held and left > limit * _ROOM:
        tenant = max(held, key=held.__getitem__)
        few = await oldest(tenant)
        for name, of_it in few:
            if left <= limit * _ROOM or held[tenant] < max(held.values()):
                break
            await delete((tenant, name))
            held[tenant] -= of_it
            left -= of_it * share
            gone += 1
        if not few:
            del held[tenant]
    return int(left), gone


async def keep_within(limit: int, store: Store, telemetry: Telemetry) -> None:
    """Look now and then whether more is stored than may be, and trim it; until it is cancelled."""
    while True:
        try:
            looked = await store.trim(limit)
        except StoreTrouble:
            telemetry.metrics.store_trouble("trim")
        else:
            if looked is not None:
                size, trimmed = looked
                telemetry.metrics.stored.set(size)
                telemetry.metrics.count("trimmed", by=trimmed)
                if trimmed:
                    telemetry.log.warning("store_trimmed", conversations=trimmed, size=size, limit=limit)
        await asyncio.sleep(_PAUSE)
