"""What happened to summaries, for people: a log line at once, and an event in the store behind it.

Laws
  Nothing waits for it, and nothing fails by it: what cannot be written is tried once more, then counted and given up.
  It is told what something is called, how large it was and what it cost; never what was said.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from proxy.store import Event, Key, Store, StoreTrouble
from proxy.telemetry import Telemetry

_QUEUED = 1024
"""Events that may wait; beyond it they are dropped."""
_PAUSE = 5.0
"""Seconds until the second try."""
_LAST_SECONDS = 2.0
_LONGEST = 200
"""Characters of a value: names of models come from clients."""


class Journal:
    """Logs events, and writes them down."""

    def __init__(self, store: Store, telemetry: Telemetry, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._telemetry = telemetry
        self._clock = clock
        self._waiting: deque[tuple[str, Event]] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._closed = False

    def note(self, key: Key, name: str, **details: str | int | float) -> None:
        """Something happened to this conversation."""
        told = {what: _short(value) for what, value in details.items()}
        self._telemetry.log.info(name, **{**told, "tenant": key.tenant, "conversation": key.conversation})
        if self._closed or len(self._waiting) >= _QUEUED:
            self._telemetry.metrics.store_trouble("note_dropped")
            return
        self._waiting.append((key.tenant, Event(self._clock(), key.conversation, name, told)))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())

    async def close(self) -> None:
        """Write what is waiting, for a moment at most. From then on events are logged only."""
        self._closed = True
        if self._writer is not None:
            await asyncio.wait([self._writer], timeout=_LAST_SECONDS)
            self._writer.cancel()
            with suppress(asyncio.CancelledError):
                await self._writer
        if self._waiting:
            self._telemetry.log.warning("events_lost", count=len(self._waiting))
            self._waiting.clear()

    async def _write(self) -> None:
        while self._waiting:
            tenant, event = self._waiting[0]
            if not await self._written(tenant, event):
                await asyncio.sleep(_PAUSE)
                await self._written(tenant, event)
            self._waiting.popleft()

    async def _written(self, tenant: str, event: Event) -> bool:
        """Whether there is nothing more to do about it."""
        try:
            await self._store.note(tenant, event)
        except StoreTrouble:
            self._telemetry.metrics.store_trouble("note")
            return False
        except Exception as error:  # one event is no reason to write no more of them
            self._telemetry.log.error("journal", exc_info=error)
        return True


def _short(value: str | int | float) -> str | int | float:
    return value[:_LONGEST] if isinstance(value, str) else value
