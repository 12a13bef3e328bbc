"""Leaves alone what fails, and tries it again after a while.

Law: each change of state is told once.
"""

import time
from collections.abc import Callable

Changed = Callable[[bool], None]
"""Told that it opened, or closed again."""


class Breaker:
    """Opens after so many failures in a row: nothing passes for `pause` seconds, then one trial, whose success closes
    it. A trial that reports nothing within `trial` seconds is followed by another."""

    def __init__(
        self,
        failures: int,
        pause: float,
        trial: float,
        changed: Changed,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = failures
        self._pause = pause
        self._trial = trial
        self._changed = changed
        self._clock = clock
        self._failures = 0
        self._open = False
        self._again = 0.0

    @property
    def shut(self) -> bool:
        """Whether nothing would pass now."""
        return self._open and self._clock() < self._again

    def admits(self) -> bool:
        """Whether the caller may try now; where it is open, that is the trial."""
        if self.shut:
            return False
        if self._open:
            self._again = self._clock() + self._trial
        return True

    def succeeded(self) -> None:
        """It works."""
        self._failures = 0
        if self._open:
            self._open = False
            self._changed(False)

    def failed(self) -> None:
        """It does not."""
        self._failures += 1
        self._again = self._clock() + self._pause
        if not self._open and self._failures >= self._most:
            self._open = True
            self._changed(True)
