"""A store behind a circuit breaker, asked with patience: each question has a deadline."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from proxy.breaker import reported_breaker
from proxy.store import Store, StoreTrouble
from proxy.telemetry import Telemetry

T = TypeVar("T")


class GuardedStore:
    """Asks a store for one user of it, whose breaker has this name."""

    def __init__(self, store: Store, telemetry: Telemetry, name: str) -> None:
        self._store = store
        self._telemetry = telemetry
        # After the pause all questions pass until one fails: requests do not wait for one that tries.
        self._breaker = reported_breaker(name, telemetry)

    @property
    def is_paused(self) -> bool:
        """Whether the store would not be asked now."""
        return self._breaker.is_paused

    def end_pause(self) -> None:
        """Let the next question pass."""
        self._breaker.end_pause()

    async def ask(self, operation: str, question: Callable[[Store], Awaitable[T]], deadline: float | None = None) -> T:
        """The store's answer. `deadline`: seconds that it has. Raises StoreTrouble: at once during a pause."""
        if not self._breaker.admits():
            raise StoreTrouble("left alone for a moment")
        try:
            async with asyncio.timeout(deadline):
                answer = await question(self._store)
        except (StoreTrouble, TimeoutError) as error:
            fault = str(error) or "too slow"
            self._telemetry.metrics.store_trouble(operation)
            self._breaker.failed(fault)
            raise StoreTrouble(fault) from error
        if not self.is_paused:  # else another question, asked meanwhile, met trouble
            self._breaker.succeeded()
        return answer
