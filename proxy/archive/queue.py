"""Texts on their way to the store, behind the requests, for people: nothing that is sent needs them.

Laws
  Nothing waits for a text, nothing fails by one: what cannot be written is tried once more, then counted and dropped.
  What waits is bounded. No text is logged.
  What is deleted is not written any more.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from proxy.store import Key, Store, StoredText, StoreTrouble, TextKind
from proxy.store.forgetting import ForgetRegistry
from proxy.store.write_behind import PendingWrite, WriteBehindQueue
from proxy.telemetry import Telemetry

_QUEUED, _HELD = 256, 32 * 2**20
"""Requests whose texts may wait, and the characters of these texts; beyond it they are dropped."""
_PORTION = 2**20
"""Characters that are handed to the store at once, but for a longer text."""

Make = Callable[[], Awaitable[Iterable[StoredText]]]
"""Makes the texts of a request, once it is their turn. May raise StoreTrouble."""


@dataclass(frozen=True, slots=True)
class ArchiveServices:
    """Where texts are kept, the key to their names, the time, and where deletions are announced."""

    store: Store
    telemetry: Telemetry
    secret: bytes = field(repr=False)
    clock: Callable[[], float]
    forgets: ForgetRegistry


class TextQueue:
    """A queue of texts of one kind. `name` is what log lines and metrics call it; `limit`: bytes that stay in the store
    of a bounded kind."""

    def __init__(self, services: ArchiveServices, name: str, kind: TextKind, limit: int | None = None) -> None:
        self._store = services.store
        self._telemetry = services.telemetry
        self._name = name
        self._kind = kind
        self._limit = limit
        self._writes = WriteBehindQueue(services.telemetry, limit=_QUEUED, size_limit=_HELD)
        self.forget = self._writes.forget
        services.forgets.register(self.forget)

    def put(self, key: Key, size: int, make: Make, on_give_up: Callable[[], None] = lambda: None) -> bool:
        """Whether they will be written. `size`: their characters. `on_give_up` is called where the store would not take
        them twice."""
        if self._writes.put(PendingWrite(key, partial(self._write, make), size, on_give_up)):
            return True
        self._telemetry.metrics.store_trouble(f"{self._name}_full")
        return False

    async def close(self) -> None:
        """Write what is waiting, for a moment at most."""
        if lost := await self._writes.close():
            self._telemetry.log.warning(f"{self._name}_lost", requests=lost)

    async def _write(self, make: Make, pending: PendingWrite) -> None:
        try:
            for portion in _portions(await make()):
                if not pending.is_forgotten:
                    await self._store.put_texts(pending.key, self._kind, portion, self._limit)
        except StoreTrouble:
            self._telemetry.metrics.store_trouble(self._name)
            raise


def _portions(texts: Iterable[StoredText]) -> Iterator[list[StoredText]]:
    """Pieces of them, so that no other writer waits for long."""
    portion: list[StoredText] = []
    size = 0
    for text in texts:
        if portion and size + len(text.text) > _PORTION:
            yield portion
            portion, size = [], 0
        portion.append(text)
        size += len(text.text)
    if portion:
        yield portion
