"""What happened to summaries, for people: a log line at once, and an event in the store behind it.

Laws
  Nothing waits for it, and nothing fails by it: what cannot be written is tried once more, then counted and given up.
  It is told what something is called, how large it was and what it cost; never what was said.
"""

import time
from collections.abc import Callable

from proxy.store import Event, Key, Store, StoreTrouble
from proxy.store.write_behind import WriteBehindQueue
from proxy.telemetry import Telemetry

_QUEUED = 1024
"""Events that may wait; beyond it they are dropped."""
_LONGEST = 200
"""Characters of a value: names of models come from clients."""


class AuditLog:
    """Logs events, and writes them down."""

    def __init__(self, store: Store, telemetry: Telemetry, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._telemetry = telemetry
        self._clock = clock
        self._behind = WriteBehindQueue(self._written, telemetry)

    def note(self, key: Key, name: str, **details: str | int | float) -> None:
        """Something happened to this conversation."""
        told = {what: _short(value) for what, value in details.items()}
        self._telemetry.log.info(name, **{**told, "tenant": key.tenant, "conversation": key.conversation})
        event = Event(self._clock(), key.conversation, name, told)
        if len(self._behind) >= _QUEUED or not self._behind.put((key.tenant, event)):
            self._telemetry.metrics.store_trouble("note_dropped")

    async def close(self) -> None:
        """Write what is waiting, for a moment at most. From then on events are logged only."""
        if lost := await self._behind.close():
            self._telemetry.log.warning("events_lost", count=lost)

    async def _written(self, noted: tuple[str, Event]) -> bool:
        try:
            await self._store.note(*noted)
        except StoreTrouble:
            self._telemetry.metrics.store_trouble("note")
            return False
        return True


def _short(value: str | int | float) -> str | int | float:
    return value[:_LONGEST] if isinstance(value, str) else value
