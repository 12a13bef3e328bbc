"""A circuit breaker: it leaves alone what fails, and tries it again after a while.

Law: each change of state is reported once.
"""

import time
from collections.abc import Callable


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
    def shut(self) -> bool:
        """Whether nothing would pass now."""
        return self._open and self._clock() < self._paused_until

    def admits(self) -> bool:
        """Whether the caller may try now; where the breaker is open, that is the trial."""
        if self.shut:
            return False
        if self._open:
            self._paused_until = self._clock() + self._trial
        return True

    def end_pause(self) -> None:
        """Admit the next trial at once."""
        self._paused_until = 0.0

    def succeeded(self) -> None:
        """A try succeeded."""
        self._failures = 0
        if self._open:
            self._open = False
            self._changed(False)

    def failed(self) -> None:
        """A try failed."""
        self._failures += 1
        self._paused_until = self._clock() + self._pause
        if not self._open and self._failures >= self._limit:
            self._open = True
            self._changed(True)
