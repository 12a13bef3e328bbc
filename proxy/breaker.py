"""Circuit breakers: each leaves alone what fails, and tries it again after a while.

Law: it is logged when a breaker opens, and when it closes; where it opens more often than once a minute, one line a
minute says how often. How many breakers of a name are open is a metric.
"""

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from proxy.telemetry import QUIET, Telemetry


@dataclass(frozen=True, slots=True)
class BreakerOptions:
    """When a breaker opens, and for how long."""

    failures: int
    pause: float
    effect: str
    """The words of its log line."""
    lasting: float = 0.0
    """Seconds that the row of failures must have lasted, so that many at once do not open it."""


BREAKERS: Mapping[str, BreakerOptions] = {
    "store": BreakerOptions(
        1, 5.0, "replies stay right, planned from the history in each request; new summaries and figures wait"
    ),
    "summaries_store": BreakerOptions(1, 5.0, "replies stay right; no summaries are made meanwhile"),
    "keys_store": BreakerOptions(1, 2.0, "known keys stay valid; unknown ones are refused"),
    "summarizer": BreakerOptions(3, 30.0, "no summaries or digests are requested meanwhile"),
    "shadows": BreakerOptions(3, 300.0, "no requests are sampled meanwhile"),
    "limits": BreakerOptions(1, 5.0, "each process counts the use of keys by itself"),
    "upstream": BreakerOptions(5, 2.0, "requests are refused at once meanwhile", lasting=5.0),
}


class Breaker:
    """Opens after failures in a row: nothing passes for the pause, then one trial, whose success closes it. A trial
    that reports nothing within `trial` seconds is followed by another. `changed` is called with True when it opens and
    with False when it closes."""

    def __init__(
        self,
        options: BreakerOptions,
        trial: float,
        changed: Callable[[bool], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._trial = trial
        self._changed = changed
        self._clock = clock
        self.failures = 0
        self._failing_since = 0.0
        self.is_open = False
        self._paused_until = 0.0
        self.fault = ""

    @property
    def is_paused(self) -> bool:
        return self.is_open and self._clock() < self._paused_until

    @property
    def pause_left(self) -> float:
        return max(0.0, self._paused_until - self._clock()) if self.is_open else 0.0

    def admits(self) -> bool:
        """True where the caller may try now; where the breaker is open, that is the trial."""
        if self.is_paused:
            return False
        if self.is_open:
            self._paused_until = self._clock() + self._trial
        return True

    def end_pause(self) -> None:
        """Admit the next trial at once."""
        self._paused_until = 0.0

    def succeeded(self) -> None:
        self.failures = 0
        if self.is_open:
            self.is_open = False
            self._changed(False)

    def failed(self, fault: str = "") -> None:
        now, self.fault = self._clock(), fault
        if not self.failures:
            self._failing_since = now
        self.failures += 1
        self._paused_until = now + self._options.pause
        lasting = now - self._failing_since >= self._options.lasting
        if not self.is_open and self.failures >= self._options.failures and lasting:
            self.is_open = True
            self._changed(True)


class _ChangeLog:
    """The log lines of one breaker. What fails again and again for a moment, as a busy disk does, is one line a minute.
    `fields`: what each line says beside what failed."""

    def __init__(self, name: str, telemetry: Telemetry, fields: Mapping[str, str]) -> None:
        self._name = name
        self._telemetry = telemetry
        self._fields = fields
        self._openings = 0
        self._quiet_until = -math.inf
        self._later: asyncio.TimerHandle | None = None

    def note(self, breaker: Breaker) -> None:
        self._openings += breaker.is_open
        wait = self._quiet_until - time.monotonic()
        if wait <= 0 or not self._openings:
            self._log(breaker)
        elif self._later is None:
            with suppress(RuntimeError):  # without a loop the next change says it
                self._later = asyncio.get_running_loop().call_later(wait, self._log, breaker)

    def _log(self, breaker: Breaker) -> None:
        often = {"times": self._openings} if self._openings > breaker.is_open else {}
        if breaker.is_open:
            error = {"error": breaker.fault} if breaker.fault else {}
            effect = BREAKERS[self._name].effect
            self._telemetry.log.warning(f"{self._name}_trouble", effect=effect, **often, **error, **self._fields)
        else:
            self._telemetry.log.info(f"{self._name}_recovered", **often, **self._fields)
        if self._openings:
            self._quiet_until = time.monotonic() + QUIET
        self._openings, self._later = 0, None


def reported_breaker(name: str, telemetry: Telemetry, trial: float = 0.0, **fields: str) -> Breaker:
    """A breaker of the table. `fields`: what its log lines say beside what failed."""
    changes = _ChangeLog(name, telemetry, fields)

    def changed(is_open: bool) -> None:
        telemetry.metrics.breaker_changed(name, breaker, is_open)
        changes.note(breaker)

    breaker = Breaker(BREAKERS[name], trial, changed)
    telemetry.metrics.breaker_changed(name, breaker, False)
    return breaker
