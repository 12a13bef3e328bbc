"""Events of summaries, for people: a log line at once, and an event in the store behind it.

Laws
  Nothing waits for an event, and nothing fails by one: what cannot be written is tried once more, then counted and
  dropped.
  An event holds what something is called, how large it was and what it cost; never a text of a conversation.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from proxy.memory import Event, Key, Store
from proxy.memory.cached import PendingWrite, WriteBehindQueue
from proxy.telemetry import Telemetry

_QUEUED = 1024
"""Events that may wait; beyond it they are dropped."""
_LONGEST = 200
"""Characters of a value: names of models come from clients."""


@dataclass(eq=False)
class AuditLog:
    """Logs events, and writes them to the store."""

    store: Store
    telemetry: Telemetry
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._writes = WriteBehindQueue(self.telemetry, limit=_QUEUED, trouble="note", full="note_dropped")

    def note(self, key: Key, name: str, **details: str | int | float) -> None:
        """Something happened to this conversation."""
        details = {each: value[:_LONGEST] if isinstance(value, str) else value for each, value in details.items()}
        self.telemetry.log.info(name, **{**details, "tenant": key.tenant, "conversation": key.conversation})
        event = Event(self.clock(), key.conversation, name, details)
        self._writes.put(PendingWrite(key, lambda _: self.store.note(key.tenant, event)))

    async def close(self) -> None:
        """Write what is waiting, for a moment at most. From then on events are logged only."""
        if lost := await self._writes.close():
            self.telemetry.log.warning("events_lost", count=lost)
