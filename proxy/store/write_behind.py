"""The queue of writes that happen behind the requests.

Laws
  No request waits for a write, and none fails by it.
  Writes happen one by one, in the order in which they came. A write that meets trouble is tried again after a pause.
  What waits is bounded; what was forgotten (a deleted conversation) is not written any more.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from proxy.store import Key, StoreTrouble
from proxy.telemetry import Telemetry

_PAUSE = 5.0
"""Seconds between two tries."""
_CLOSING_SECONDS = 2.0


@dataclass(slots=True, eq=False)
class PendingWrite:
    """A write that waits. `write` raises StoreTrouble where it should be tried again; a write of several parts asks
    `is_forgotten` before each of them."""

    key: Key
    write: Callable[["PendingWrite"], Awaitable[None]]
    size: int = 1
    on_give_up: Callable[[], None] = lambda: None
    """Called where the last try has failed."""
    is_forgotten: bool = False
    failures: int = 0


class WriteBehindQueue:
    """Holds at most `limit` writes, and `size_limit` of their sizes, though always one write. `tries`: after how many
    failures a write is given up; None: never. `trouble` and `full`: what metrics call a write that failed, and one that
    was refused."""

    def __init__(
        self,
        telemetry: Telemetry,
        *,
        limit: int,
        size_limit: float = float("inf"),
        tries: int | None = 2,
        closing_seconds: float | None = None,
        trouble: str | None = None,
        full: str | None = None,
    ) -> None:
        self._telemetry = telemetry
        self._limit = limit
        self._size_limit = size_limit
        self._tries = tries
        self._closing_seconds = closing_seconds
        self._trouble = trouble
        self._full = full
        self._pending: deque[PendingWrite] = deque()
        self._size = 0
        self._writer: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    def put(self, pending: PendingWrite) -> bool:
        """Whether it will be written: not where there is no room, nor once the queue is closed."""
        is_full = len(self._pending) >= self._limit or self._size + pending.size > self._size_limit
        if self._closing.is_set() or (self._size and is_full):
            if self._full is not None:
                self._telemetry.metrics.store_trouble(self._full)
            return False
        self._pending.append(pending)
        self._size += pending.size
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_all())
        return True

    def forget(self, tenant: str, conversation: str | None = None) -> None:
        """Do not write what waits of a conversation, or of a whole tenant."""
        for pending in self._pending:
            if pending.key.tenant == tenant and conversation in (None, pending.key.conversation):
                pending.is_forgotten = True

    async def close(self) -> int:
        """Write what waits, for a few seconds at most. Returns how many writes were lost."""
        self._closing.set()
        if self._writer is not None:
            await asyncio.wait([self._writer], timeout=self._closing_seconds or _CLOSING_SECONDS)
            self._writer.cancel()
            with suppress(asyncio.CancelledError):
                await self._writer
        lost = len(self._pending)
        self._pending.clear()
        return lost

    async def _write_all(self) -> None:
        while self._pending:
            pending = self._pending[0]
            try:
                if not pending.is_forgotten:
                    await pending.write(pending)
            except StoreTrouble:
                if self._trouble is not None:
                    self._telemetry.metrics.store_trouble(self._trouble)
                pending.failures += 1
                if pending.failures != self._tries:
                    if self._closing.is_set() and (self._closing_seconds or _CLOSING_SECONDS) <= _PAUSE:
                        return  # there is no time for another try
                    await self._pause()
                    continue
                pending.on_give_up()
            except Exception as error:  # one write is no reason to stop all others
                self._telemetry.log.error("behind", exc_info=error)
            self._pending.popleft()
            self._size -= pending.size

    async def _pause(self) -> None:
        """Wait before the next try; closing ends the wait, so that there is a last one."""
        if self._closing.is_set():
            await asyncio.sleep(_PAUSE)
        with suppress(TimeoutError):
            async with asyncio.timeout(_PAUSE):
                await self._closing.wait()
