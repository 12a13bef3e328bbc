"""Requests and tokens of the last minute by the name of a key, in the memory of this process: requests in a moving
window, tokens in a sliding window of two counters, in which the minute before counts less and less. It is how the
scripts of the library `limits` count in Redis; its own counts in memory would start threads, and the parent of workers
may have none.

Law: to charge tokens never fails for their number, however far above the limit that is.
"""

import time
from collections import deque
from dataclasses import dataclass, field
from math import floor
from typing import NamedTuple

from proxy.addons.limits import standing as times
from proxy.addons.limits.standing import Standing


@dataclass(slots=True)
class _Use:
    """What a key has used lately."""

    requests: deque[float] = field(default_factory=deque)
    """When each of the last minute came, the oldest first."""
    minute: int = 0
    """The number of the minute of the tokens."""
    tokens_before: int = 0
    """Those of the minute before."""
    tokens: int = 0

    def expire(self, now: float) -> bool:
        """Drop what no longer counts; whether anything is left."""
        while self.requests and self.requests[0] < now - times.MINUTE:
            self.requests.popleft()
        minute = int(now // times.MINUTE)
        if self.minute != minute:
            self.tokens_before = self.tokens if self.minute == minute - 1 else 0
            self.minute, self.tokens = minute, 0
        return bool(self.requests or self.tokens_before or self.tokens)

    def counters(self, now: float) -> tuple[int, float, int, float]:
        """The tokens of the minute before, and the seconds for which they count; the same of this minute."""
        left = times.MINUTE - now % times.MINUTE
        return self.tokens_before, left if self.tokens_before else 0.0, self.tokens, left + times.MINUTE


class LocalWindows:
    """Counts in the memory of this process."""

    def __init__(self) -> None:
        self._uses: dict[str, _Use] = {}
        self._swept = 0.0

    def admit(self, name: str, rpm: int | None, tpm: int | None, is_wanted: bool = True) -> Standing:
        """How the key of this name stands. The request is counted where it is within both limits, and wanted."""
        now, use, tokens = time.time(), self._use(name), NO_TOKENS
        if tpm is not None:
            tokens = window_tokens(tpm, use.counters(now))
            is_wanted = is_wanted and tokens.used < tpm
        is_within = is_wanted and self.count(name, rpm)
        if rpm is None:
            return Standing(is_within, 0, times.MINUTE, *tokens)
        oldest = use.requests[0] if use.requests else now
        return Standing(is_within, len(use.requests), max(0.0, oldest + times.MINUTE - now), *tokens)

    def count(self, name: str, rpm: int | None) -> bool:
        """Count a request; false, and it is not, where it is beyond the limit."""
        if rpm is None:
            return True
        requests = self._use(name).requests
        is_within = len(requests) < rpm
        if is_within:
            requests.append(time.time())
        return is_within

    def charge(self, name: str, tokens: int) -> None:
        self._use(name).tokens += tokens

    def _use(self, name: str) -> _Use:
        """What of a key's use counts now."""
        now = time.time()
        if now - self._swept > times.MINUTE:
            self._swept = now
            self._uses = {each: use for each, use in self._uses.items() if use.expire(now)}
        use = self._uses.setdefault(name, _Use())
        use.expire(now)
        return use


class WindowTokens(NamedTuple):
    """As in a standing."""

    used: int = 0
    wait: float = 0.0
    all_wait: float = 0.0


NO_TOKENS = WindowTokens()


def window_tokens(limit: int, counters: tuple[int, float, int, float]) -> WindowTokens:
    """The tokens that count, and the seconds until they are below the limit and until there are none."""
    minute = times.MINUTE
    before, before_left, current, current_left = counters
    counted, wait = before * before_left / minute + current, 0.0
    if counted >= limit > current:
        wait = before_left - (limit - current) * minute / before
    elif counted >= limit:  # from the end of this minute on it counts less and less
        wait = current_left - minute + minute * (1 - limit / current)
    return WindowTokens(floor(counted), wait, current_left if current else before_left)
