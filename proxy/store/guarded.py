"""A store that is asked with patience: each question has a deadline, and after trouble the store is left alone for a
while. Trouble, and its end, are logged once each."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from proxy.store import Store, StoreTrouble
from proxy.store.breaker import Breaker
from proxy.telemetry import Telemetry

_PAUSE = 5.0
"""Seconds that a store in trouble is left alone."""

T = TypeVar("T")


class GuardedStore:
    """Asks a store for one user of it. `name` is what its log lines begin with, `effect` what they say of trouble."""

    def __init__(self, store: Store, telemetry: Telemetry, *, name: str, effect: str) -> None:
        self._store = store
        self._telemetry = telemetry
        self._name = name
        self._effect = effect
        self._fault = ""
        # After the pause all questions pass until one fails: requests do not wait for one that tries.
        self._breaker = Breaker(1, pause=_PAUSE, trial=0.0, changed=self._changed)

    @property
    def is_paused(self) -> bool:
        """Whether the store would not be asked now."""
        return self._breaker.shut

    def end_pause(self) -> None:
        """Let the next question pass, whatever happened before."""
        self._breaker.end_pause()

    async def ask(self, operation: str, question: Callable[[Store], Awaitable[T]], deadline: float | None = None) -> T:
        """The store's answer. `deadline`: seconds that it has. Raises StoreTrouble: at once during a pause."""
        if not self._breaker.admits():
            raise StoreTrouble("left alone for a moment")
        try:
            async with asyncio.timeout(deadline):
                answer = await question(self._store)
        except (StoreTrouble, TimeoutError) as error:
            self._fault = str(error) or "too slow"
            self._telemetry.metrics.store_trouble(operation)
            self._breaker.failed()
            raise StoreTrouble(self._fault) from error
        if not self.is_paused:  # else another question, asked meanwhile, met trouble
            self._breaker.succeeded()
        return answer

    def _changed(self, is_open: bool) -> None:
        if is_open:
            self._telemetry.log.warning(f"{self._name}_trouble", fault=self._fault, effect=self._effect)
        else:
            self._telemetry.log.info(f"{self._name}_recovered")
