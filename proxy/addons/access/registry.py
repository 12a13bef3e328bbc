"""The keys there are: those of the settings, and those of the store, followed.

Laws
  The store is asked in the background, every few seconds: what is added or revoked in it counts in all replicas soon.
  A request waits for it only where nobody knows its key, and however many such requests there are, it is asked four
  times a second at most.
  Where the store is away, the keys that are remembered count on.
  A row of the settings counts before one of the store with its name or its key.
"""

import asyncio
import hmac
from collections.abc import Iterable, Mapping

from cachetools import TTLCache

from proxy.config import KeyRow, Settings
from proxy.memory import DEADLINE, StoreTrouble
from proxy.memory.breaker import GuardedStore

_POLL = 3.0
"""Seconds between two questions in the background."""
_SPACING = 0.25
"""Seconds between two questions for keys that nobody knows."""
_UNKNOWN = 10_000
"""Unknown keys that are remembered as such."""
_PLACE = 16
"""Characters of a digest by which a row is found; the rest is compared in constant time."""


class KeyRegistry:
    """`store`: None where keys are in the settings only."""

    def __init__(self, settings: Settings, store: GuardedStore | None) -> None:
        self._own = settings.keys
        self._store = store
        self._rows = _by_digest(self._own)
        self._revision = ""
        self._unknown: TTLCache[str, bool] = TTLCache(_UNKNOWN, _POLL)
        self._one_at_a_time = asyncio.Lock()
        self._asked_at = -_SPACING
        self._next: asyncio.Task[None] | None = None
        """A question that is still to be asked."""
        self._following: asyncio.Task[None] | None = None

    async def open(self) -> bool:
        """Ask the store for the first time, and follow it from then on. Whether it has answered."""
        if self._store is not None:
            self._following = asyncio.create_task(self._follow())
        try:
            await self._refresh()
        except StoreTrouble:  # it was logged
            return False
        return True

    async def close(self) -> None:
        tasks = [task for task in (self._following, self._next) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._store is not None:
            self._store.close()

    def find(self, digest: str) -> KeyRow | None:
        row = self._rows.get(digest[:_PLACE])
        return row if row is not None and hmac.compare_digest(row.sha256, digest) else None

    async def look_up(self, digest: str) -> KeyRow | None:
        """The row of a key that is not known here, as the store has it now. Raises StoreTrouble."""
        if self._store is None or digest in self._unknown:
            return None
        if self._next is None:
            self._next = asyncio.create_task(self._ask_soon())
            self._next.add_done_callback(_observed)
        await asyncio.shield(self._next)  # others wait for the same answer
        row = self.find(digest)
        if row is None:
            self._unknown[digest] = True
        return row

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(_POLL)
            try:
                await self._refresh()
            except StoreTrouble:  # it was logged
                continue
            except Exception as error:  # whatever it is: else no revoked key would be noticed any more
                fault = {"message": "the keys of the store could not be read", "exception": error}
                asyncio.get_running_loop().call_exception_handler(fault)

    async def _ask_soon(self) -> None:
        now = asyncio.get_running_loop().time
        await asyncio.sleep(max(0.0, self._asked_at + _SPACING - now()))
        self._next = None  # whoever comes from now on may know of a newer key
        self._asked_at = now()
        await self._refresh()

    async def _refresh(self) -> None:
        """Take over what the store has. Raises StoreTrouble."""
        if self._store is None:
            return
        async with self._one_at_a_time:  # so that no older answer comes after a newer one
            answer = await self._store.ask("keys", lambda store: store.key_rows(self._revision), DEADLINE)
            if answer is not None:
                self._revision, rows = answer
                names = {row.name for row in self._own}
                self._rows = {**_by_digest(row for row in rows if row.name not in names), **_by_digest(self._own)}


def _by_digest(rows: Iterable[KeyRow]) -> Mapping[str, KeyRow]:
    return {row.sha256[:_PLACE]: row for row in rows}


def _observed(task: "asyncio.Task[None]") -> None:
    """Those who waited for it may all have left."""
    if not task.cancelled():
        task.exception()
