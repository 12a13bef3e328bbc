"""A store behind a circuit breaker, asked with patience: each question has a deadline.

Laws
  A request waits for a late answer once, and while one is late no other request waits.
  A late answer is no trouble: that is one that does not come at all, or answers that are late again and again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeVar

from proxy.breaker import reported_breaker
from proxy.memory.decisions import StoreTrouble
from proxy.memory.store import Store
from proxy.telemetry import Telemetry

T = TypeVar("T")
_NEWEST = 0.05
"""The weight of the newest question in the share of late answers."""
_MOST_LATE = 0.15
"""A larger share is trouble: it takes four late answers in a row, or one in seven over a while."""


@dataclass(eq=False)
class GuardedStore:
    """Asks a store for one user of it, whose breaker has this name."""

    store: Store
    telemetry: Telemetry
    name: str

    def __post_init__(self) -> None:
        # After the pause all questions pass until one fails: requests do not wait for one that tries.
        self._breaker = reported_breaker(self.name, self.telemetry)
        self._late: set[asyncio.Task[Any]] = set()
        """Questions whose callers have gone on without an answer."""
        self._share_of_late = 0.0

    @property
    def is_paused(self) -> bool:
        """True where the store would not be asked now."""
        return self._breaker.is_paused

    def end_pause(self) -> None:
        """Let the next question pass."""
        self._breaker.end_pause()

    def close(self) -> None:
        """Wait for no late answer any more."""
        for asking in self._late:
            asking.cancel()

    async def ask(
        self,
        operation: str,
        question: Callable[[Store], Awaitable[T]],
        deadline: float | None = None,
        patience: float | None = None,
    ) -> T:
        """The store's answer. `deadline`: seconds that it has. `patience`: seconds that the caller waits for it, where
        that is less; the answer may then come later. Raises StoreTrouble: at once during a pause, and with a patience
        also while another answer is late."""
        if not self._breaker.admits() or (patience is not None and self._late):
            raise StoreTrouble("left alone for a moment")
        if patience is None:
            return await self._answer(operation, question, deadline)
        asking = asyncio.create_task(self._answer(operation, question, deadline))
        asking.add_done_callback(self._answered)  # the caller may be gone by then
        if await _ends(asking, patience):
            self._share_of_late -= self._share_of_late * _NEWEST
            return asking.result()
        self._late.add(asking)
        self._share_of_late += (1 - self._share_of_late) * _NEWEST
        if self._share_of_late > _MOST_LATE:  # whoever is always late costs each request its patience
            self._share_of_late = _MOST_LATE
            self._fail(operation, "too slow")
        raise StoreTrouble("late")

    async def _answer(self, operation: str, question: Callable[[Store], Awaitable[T]], deadline: float | None) -> T:
        began = perf_counter()
        try:
            async with asyncio.timeout(deadline):
                answer = await question(self.store)
        except (StoreTrouble, TimeoutError) as error:
            fault = str(error) or "too slow"
            self._fail(operation, fault)
            raise StoreTrouble(fault) from error
        finally:
            self.telemetry.metrics.observe("store_seconds", perf_counter() - began, operation)
        if not self.is_paused:  # else another question, asked meanwhile, met trouble
            self._breaker.succeeded()
        return answer

    def _fail(self, operation: str, fault: str) -> None:
        self.telemetry.metrics.store_trouble(operation)
        self._breaker.failed(fault)

    def _answered(self, asking: "asyncio.Task[Any]") -> None:
        self._late.discard(asking)
        if not asking.cancelled():
            asking.exception()  # it was reported


async def _ends(task: "asyncio.Task[Any]", seconds: float) -> bool:
    """True where it ends within so many seconds, in which the event loop does not stand still."""
    loop = asyncio.get_running_loop()
    for _ in range(2):
        began = loop.time()
        await asyncio.wait({task}, timeout=seconds)
        if task.done() or loop.time() - began < 1.5 * seconds:
            break
    return task.done()
