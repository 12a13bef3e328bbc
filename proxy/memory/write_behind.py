"""The queue of writes that happen behind the requests.

Laws
  No request fails by a write, or waits for it, unless another process is to read it: then for a moment, and not at all
  while a write is late.
  Writes happen in the order in which they came: one by one, or those in a row that can be made together at once. What
  meets trouble is tried again after a pause.
  What waits is bounded; what was forgotten (a deleted conversation) is not written any more.
"""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from itertools import islice, takewhile
from typing import Any

from proxy.memory import Key, StoreTrouble
from proxy.telemetry import Telemetry

_PAUSE = 5.0
"""Seconds between two tries."""
_CLOSING_SECONDS = 2.0
_TOGETHER = 64
"""Writes that are made at once."""


@dataclass(slots=True, eq=False)
class PendingWrite:
    """A write that waits. `write` raises StoreTrouble where it should be tried again; a write of several parts asks
    `is_forgotten` before each of them."""

    key: Key
    write: Callable[[Any], Awaitable[None]]
    size: int = 1
    on_give_up: Callable[[], None] = lambda: None
    """Called where the last try has failed."""
    record: object = None
    """The record that `write` writes, where it makes several writes together."""
    together: bool = False
    """True where `write` takes a list: this write and those right behind it that have the same `write`."""
    without_conversation: Callable[[Any], object] | None = None
    """The part of `record` that is written all the same where its conversation is deleted, though not its tenant."""
    name: str = ""
    """Of writes of one conversation that follow each other and have this same name, only the newest is made."""
    end: asyncio.Future[None] | None = None
    """Is over once it is made, where a request waits for that."""
    is_forgotten: bool = False
    is_begun: bool = False
    failures: int = 0


@dataclass(eq=False)
class WriteBehindQueue:
    """Holds at most `limit` writes, and `size_limit` of their sizes, though always one write."""

    telemetry: Telemetry
    _: KW_ONLY
    limit: int
    size_limit: float = math.inf
    tries: int | None = 2
    """After how many failures a write is given up; None: never."""
    closing_seconds: float | None = None
    trouble: str | None = None
    """The names in metrics of a write that failed, and one that was refused."""
    full: str | None = None
    interval: float = 0.0
    """Seconds from one time that all is written to the next, so that more is written together."""

    def __post_init__(self) -> None:
        self._next = 0.0
        self._pending: deque[PendingWrite] = deque()
        self._by_key: dict[Key, deque[PendingWrite]] = {}
        self._size = 0
        self._writer: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._wake = asyncio.Event()
        self._late: asyncio.Future[None] | None = None
        """The end of the write that a request has waited for in vain."""

    def put(self, pending: PendingWrite) -> bool:
        """True where it will be written: not where there is no room, nor once the queue is closed."""
        is_full = len(self._pending) >= self.limit or self._size + pending.size > self.size_limit
        if self._closing.is_set() or (self._size and is_full):
            if self.full is not None:
                self.telemetry.metrics.store_trouble(self.full)
            return False
        last = next(reversed(self._by_key.get(pending.key, ())), None)
        if last is not None and pending.name and last.name == pending.name and not (last.is_begun or last.is_forgotten):
            last.record = pending.record
            return True
        self._pending.append(pending)
        self._by_key.setdefault(pending.key, deque()).append(pending)
        self._size += pending.size
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_all())
        return True

    def waiting(self, key: Key) -> Sequence[PendingWrite]:
        """The writes that still wait of a conversation, the oldest first, and what of it is forgotten."""
        return tuple(self._by_key.get(key, ()))

    def forget(self, tenant: str, conversation: str | None = None) -> None:
        """Do not write what waits of a conversation, or of a whole tenant."""
        for pending in self._pending:
            if pending.key.tenant == tenant and conversation in (None, pending.key.conversation):
                if conversation is None or pending.without_conversation is None:
                    pending.is_forgotten = True
                else:
                    pending.record = pending.without_conversation(pending.record)

    def hurry(self) -> None:
        """Make the next write now."""
        self._wake.set()

    async def settle(self, key: Key, seconds: float) -> None:
        """Make now what waits of a conversation and has a record, and wait for that, for so many seconds at most."""
        newest = next((each for each in reversed(self._by_key.get(key, ())) if each.record is not None), None)
        if newest is None or (self._late is not None and not self._late.done()):
            return
        self.hurry()
        end = newest.end = newest.end or asyncio.get_running_loop().create_future()
        await asyncio.wait([end], timeout=seconds)
        self._late = None if end.done() else end

    async def close(self) -> int:
        """Write what waits, for a few seconds at most. Returns how many writes were lost."""
        self._closing.set()
        self._wake.set()
        if self._writer is not None:
            await asyncio.wait([self._writer], timeout=self.closing_seconds or _CLOSING_SECONDS)
            self._writer.cancel()
            with suppress(asyncio.CancelledError):
                await self._writer
        lost = len(self._pending)
        self._pending.clear()
        self._by_key.clear()
        return lost

    async def _write_all(self) -> None:
        loop, due = asyncio.get_running_loop(), 0
        while self._pending:
            if due <= 0 and self.interval:
                await self._wait(self._next - loop.time())
                self._next, due = loop.time() + self.interval, len(self._pending)
            row = self._row()
            for pending in row:
                pending.is_begun = True
            try:
                if left := [pending for pending in row if not pending.is_forgotten]:
                    await left[0].write(left if left[0].together else left[0])
            except StoreTrouble as error:
                if self.trouble is not None:
                    self.telemetry.metrics.store_trouble(self.trouble)
                row[0].failures += 1
                if row[0].failures > 1:  # once is only a busy disk
                    self.telemetry.write_trouble(str(error))
                if row[0].failures != self.tries:
                    if self._closing.is_set() and (self.closing_seconds or _CLOSING_SECONDS) <= _PAUSE:
                        return  # there is no time for another try
                    await self._pause()
                    continue
                row[0].on_give_up()
            except Exception as error:  # one write is no reason to stop all others
                self.telemetry.log.error("write_failed", exc_info=error)
            due -= len(row)
            for pending in row:
                if pending.end is not None:
                    pending.end.set_result(None)
                self._pending.popleft()
                self._size -= pending.size
                self._by_key[pending.key].popleft()
                if not self._by_key[pending.key]:
                    del self._by_key[pending.key]

    def _row(self) -> Sequence[PendingWrite]:
        """The writes that are to be made next."""
        first = self._pending[0]
        same = takewhile(lambda each: each.together and each.write == first.write, self._pending)
        return list(islice(same, _TOGETHER)) or [first]

    async def _pause(self) -> None:
        """Wait before the next try; closing ends the wait, so that there is a last one."""
        if self._closing.is_set():
            await asyncio.sleep(_PAUSE)
        with suppress(TimeoutError):
            async with asyncio.timeout(_PAUSE):
                await self._closing.wait()

    async def _wait(self, seconds: float) -> None:
        """Wait, at most until it is closed or has to hurry."""
        if seconds > 0 and not self._closing.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
        self._wake.clear()
