"""How each upstream does, as this process sees it: what it has answered lately, and whether it can be connected to."""

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

MINUTES = 5
"""The newest minutes, the current one included, whose answers are counted."""


class BreakerState(Protocol):
    """What is read of a breaker, which stands above this."""

    @property
    def is_open(self) -> bool: ...

    @property
    def pause_left(self) -> float: ...


class AnswerCounts(NamedTuple):
    """How many requests were answered how."""

    well: int = 0
    """1xx to 3xx."""
    client_errors: int = 0
    server_errors: int = 0
    none: int = 0
    """No reply came, or nothing that is one."""


class UpstreamHealth:
    """One upstream. `host`: where it is, by its URL."""

    def __init__(
        self, name: str, host: str, breaker: BreakerState, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = name
        self.host = host
        self._breaker = breaker
        self._clock = clock
        self._minutes: deque[tuple[int, list[int]]] = deque(maxlen=MINUTES)
        """Minutes in which something was asked, each with its answers by the first digit of the status."""

    @property
    def is_up(self) -> bool:
        """Whether its breaker is closed."""
        return not self._breaker.is_open

    @property
    def next_try(self) -> float:
        """Seconds until it is tried again, where its breaker is open."""
        return self._breaker.pause_left

    def note(self, status: int) -> None:
        """Count an answer; 0 where none came."""
        minute = int(self._clock() // 60)
        if not self._minutes or self._minutes[-1][0] != minute:
            self._minutes.append((minute, [0] * 6))
        self._minutes[-1][1][min(status // 100, 5)] += 1

    def answers(self) -> AnswerCounts:
        """Those of the last minutes."""
        first = int(self._clock() // 60) - MINUTES + 1
        recent = [counts for minute, counts in self._minutes if minute >= first]
        none, *well, client, server = (sum(counts[digit] for counts in recent) for digit in range(6))
        return AnswerCounts(sum(well), client, server, none)
