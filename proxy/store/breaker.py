"""A circuit breaker, which leaves alone what fails and tries it again after a while; and a store behind one, asked with
patience: each question has a deadline.

Law: each change of state is reported once.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from proxy.store import Store, StoreTrouble
from proxy.telemetry import Telemetry

_PAUSE = 5.0
"""Seconds that a store in trouble is left alone."""

T = TypeVar("T")


class Breaker:
    """Opens after `failures` in a row: nothing passes for `pause` seconds, then one trial, whose success closes it. A
    trial that reports nothing within `trial` seconds is followed by another. `changed` is called with True when it
    opens and with False when it closes."""

    def __init__(
        self,
        failures: int,
        pause: float,
        trial: float,
        changed: Callable[[bool], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit = failures
        self._pause = pause
        self._trial = trial
        self._changed = changed
        self._clock = clock
        self._failures = 0
        self._open = False
        self._paused_until = 0.0

    @property
    def is_paused(self) -> bool:
        """Whether nothing would pass now."""
        return self._open and self._clock() < self._paused_until

    def admits(self) -> bool:
        """Whether the caller may try now; where the breaker is open, that is the trial."""
        if self.is_paused:
            return False
        if self._open:
            self._paused_until = self._clock() + self._trial
        return True

    def end_pause(self) -> None:
        """Admit the next trial at once."""
        self._paused_until = 0.0

    def succeeded(self) -> None:
        self._failures = 0
        if self._open:
            self._open = False
            self._changed(False)

    def failed(self) -> None:
        self._failures += 1
        self._paused_until = self._clock() + self._pause
        if not self._open and self._failures >= self._limit:
            self._open = True
            self._changed(True)


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
