"""What leaves an SQLite file after its time, a few rows at a time.

Law: it stands in no request's way: no statement takes long, and behind the requests there is a pause after each.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from proxy.store import StoreTrouble
from proxy.store.sqlite import statements as sql
from proxy.store.sqlite.link import Link

_SOON = 60.0
"""Seconds from the opening to the first sweep, and to the next where one met trouble."""
_AGAIN = 3_600.0
"""Seconds from one sweep to the next."""
_PAUSE = 0.02
"""Seconds between two statements."""


class Sweeper:
    """Forgets what was not written for `ttl` seconds, now and then."""

    def __init__(self, link: Link, ttl: float, clock: Callable[[], float]) -> None:
        self._link = link
        self._ttl = ttl
        self._clock = clock
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """From now on, behind the requests. Harmless where it has started."""
        if self._task is None:
            self._task = asyncio.create_task(self._always())

    async def stop(self) -> None:
        """Harmless where it has not started."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def sweep(self, older_than: float, pause: float = 0.0) -> int:
        """Forget the conversations, events and leaves written before this time; how many conversations they were."""
        swept, gone = 0, 1
        while gone:
            for statement in sql.SWEEP_FIRST:
                await self._exhaust(statement, older_than, pause)
            gone = await self._some(sql.SWEEP, older_than, pause)
            swept += gone
        for statement in sql.SWEEP_NUMBERED:
            await self._exhaust(statement, older_than, pause)
        return swept

    async def _always(self) -> None:
        await asyncio.sleep(_SOON)
        while True:
            pause = _SOON
            with suppress(StoreTrouble):
                await self.sweep(self._clock() - self._ttl, _PAUSE)
                pause = _AGAIN
            await asyncio.sleep(pause)

    async def _exhaust(self, statement: str, older_than: float, pause: float) -> None:
        while await self._some(statement, older_than, pause):
            pass

    async def _some(self, statement: str, older_than: float, pause: float) -> int:
        gone = len(await self._link.run(statement, older_than))
        await asyncio.sleep(pause)
        return gone
