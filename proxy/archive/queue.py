"""Texts on their way to the store, behind the requests, for people: nothing that is sent needs them.

Laws
  Nothing waits for it and nothing fails by it: what cannot be written is tried once more, then counted and given up.
  What waits is bounded. No text is logged.
  What is deleted is not written any more.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field

from proxy.store import Key, Leaf, Store, StoreTrouble
from proxy.store.write_behind import WriteBehindQueue
from proxy.telemetry import Telemetry

_QUEUED, _HELD = 256, 32 * 2**20
"""Requests whose texts may wait, and the characters of these texts; beyond it they are dropped."""
_PORTION = 2**20
"""Characters that are handed to the store at once, but for a longer text."""

Made = Callable[[], Awaitable[Iterable[Leaf]]]
"""What makes the texts of a request, once it is their turn. May raise StoreTrouble."""
Write = Callable[[Key, list[Leaf]], Awaitable[None]]
"""Raises StoreTrouble."""


@dataclass(frozen=True, slots=True)
class ArchiveQueue:
    """Where texts are kept, the key to their names, and the time."""

    store: Store
    telemetry: Telemetry
    secret: bytes = field(repr=False)
    clock: Callable[[], float]


@dataclass(slots=True)
class _Waiting:
    """The texts of one request; `size` is how many characters they hold."""

    key: Key
    size: int
    made: Made
    lost: Callable[[], None]
    unwanted: bool = False
    again: bool = False
    """Whether the store would not take them once."""


class Filing:
    """A queue of texts of one kind, which is called `name` where something is wrong with it."""

    def __init__(self, name: str, write: Write, telemetry: Telemetry) -> None:
        self._name = name
        self._write = write
        self._telemetry = telemetry
        self._behind = WriteBehindQueue(self._written, telemetry)

    def put(self, key: Key, size: int, made: Made, lost: Callable[[], None] = lambda: None) -> bool:
        """Whether they will be written. `lost` is called where the store would not take them twice."""
        held = sum(waiting.size for waiting in self._behind)
        if held and (len(self._behind) >= _QUEUED or held + size > _HELD):
            self._telemetry.metrics.store_trouble(f"{self._name}_full")
            return False
        return self._behind.put(_Waiting(key, size, made, lost))

    def forget(self, tenant: str, conversation: str | None = None) -> None:
        """What waits of a conversation, or of a whole tenant, is not wanted any more."""
        for waiting in self._behind:
            if waiting.key.tenant == tenant and conversation in (None, waiting.key.conversation):
                waiting.unwanted = True

    async def close(self) -> None:
        """Write what is waiting, for a moment at most."""
        if lost := await self._behind.close():
            self._telemetry.log.warning(f"{self._name}_lost", requests=lost)

    async def _written(self, waiting: _Waiting) -> bool:
        try:
            made = () if waiting.unwanted else await waiting.made()
            for portion in _portions(made):
                if not waiting.unwanted:
                    await self._write(waiting.key, portion)
        except StoreTrouble:
            self._telemetry.metrics.store_trouble(self._name)
            if waiting.again:
                waiting.lost()
            waiting.again = True
            return False
        return True


def _portions(leaves: Iterable[Leaf]) -> Iterator[list[Leaf]]:
    """The same in pieces, so that no other writer waits for long."""
    portion: list[Leaf] = []
    size = 0
    for leaf in leaves:
        if portion and size + len(leaf.text) > _PORTION:
            yield portion
            portion, size = [], 0
        portion.append(leaf)
        size += len(leaf.text)
    if portion:
        yield portion
