"""What this process knows of histories: the books of those it served, and the store behind them.

Laws
  A history served here is continued without a round trip; any other asks the store once, for the steps on its own path.
  The store is given a moment, and none at all while it is known to be in trouble: requests never wait for it.
  Decisions that follow from the history are written behind the request; those that do not are claimed before it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from cachetools import LRUCache

from policies.context import Memory, StepRecord
from policies.conversation import Conversation
from policies.pipeline import Books
from proxy.store import Key, Store, StoreTrouble
from proxy.telemetry import Telemetry

_PATIENCE = 0.05
"""Seconds that a request waits for the store."""
_PAUSE = 5.0
"""Seconds that a store in trouble is left alone."""
_KEPT = 512
"""Histories whose books are kept at hand."""
_QUEUED = 4096
"""Writes that may wait; beyond it they are dropped, and replay makes up for them."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Served:
    """A step of a history that was served here: where its books stand, and the record of it."""

    books: Books
    record: StepRecord


class Histories:
    """Looks up, keeps and writes down what was decided."""

    def __init__(self, store: Store, telemetry: Telemetry, clock: Callable[[], float]) -> None:
        self._store = store
        self._telemetry = telemetry
        self._clock = clock
        self._served: LRUCache[tuple[str, ...], Served] = LRUCache(_KEPT)
        self._closed_until = 0.0
        self._trouble = False
        self._queue: asyncio.Queue[tuple[Key, StepRecord]] = asyncio.Queue(_QUEUED)
        self._writer: asyncio.Task[None] | None = None

    async def known(self, key: Key, setup: str, conversation: Conversation) -> tuple[Books | None, Memory]:
        """The newest books of this history at hand, and what is remembered from the step before on."""
        last = conversation.steps - 1
        for step in range(last - 1, -1, -1):
            anchor = conversation.end_anchor(step)
            served = self._served.get((key.tenant, key.conversation, setup, anchor))
            if served is not None:
                if step == last - 1:
                    return served.books, Memory({anchor: served.record})
                later = await self._remembered(key, [conversation.end_anchor(s) for s in range(step, last + 1)])
                return served.books, Memory({anchor: served.record, **later.steps})
        return None, await self._remembered(key, [conversation.end_anchor(s) for s in range(last + 1)])

    async def _remembered(self, key: Key, anchors: Sequence[str]) -> Memory:
        found = await self._patiently("memory", self._store.memory(key, anchors))
        return found or Memory()

    async def claim(self, key: Key, record: StepRecord) -> StepRecord:
        """Write a decision before its bytes are sent; the record that counts is the first."""
        return await self._patiently("claim", self._store.claim(key, record)) or record

    def keep(self, key: Key, setup: str, books: Books, record: StepRecord, *, behind: bool) -> None:
        """Remember a step: here at once, and in the store behind the request if it was really sent."""
        self._served[(key.tenant, key.conversation, setup, record.anchor)] = Served(books, record)
        if not behind:
            return
        if self._writer is None:
            self._writer = asyncio.create_task(self._write())
        try:
            self._queue.put_nowait((key, record))
        except asyncio.QueueFull:
            self._telemetry.metrics.store_trouble("queue_full")

    async def close(self) -> None:
        """Write what is waiting, for a few seconds at most."""
        if self._writer is None:
            return
        try:
            async with asyncio.timeout(_PAUSE):
                await self._queue.join()
        except TimeoutError:
            self._telemetry.log.warning("store_writes_lost", count=self._queue.qsize())
        self._writer.cancel()

    async def _write(self) -> None:
        while True:
            key, record = await self._queue.get()
            await self._patiently("remember", self._store.remember(key, record), _PAUSE)
            self._queue.task_done()

    async def _patiently(self, operation: str, asked: Awaitable[T], patience: float = _PATIENCE) -> T | None:
        """The store's answer, or None where it is in trouble or too slow."""
        now = asyncio.get_running_loop().time()
        if now < self._closed_until:
            if asyncio.iscoroutine(asked):
                asked.close()
            return None
        try:
            async with asyncio.timeout(patience):
                answer = await asked
        except (StoreTrouble, TimeoutError) as error:
            self._closed_until = asyncio.get_running_loop().time() + _PAUSE
            self._changed(trouble=True, fault=str(error) or "too slow")
            self._telemetry.metrics.store_trouble(operation)
            return None
        self._changed(trouble=False, fault="")
        return answer

    def _changed(self, *, trouble: bool, fault: str) -> None:
        """One log line for each change of state."""
        if trouble and not self._trouble:
            self._telemetry.log.warning("store_trouble", fault=fault, effect="requests are planned from replay alone")
        elif self._trouble and not trouble:
            self._telemetry.log.info("store_recovered")
        self._trouble = trouble
