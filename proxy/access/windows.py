"""Requests and tokens of the last minute by the name of a key, counted as the library `limits` does: requests in a
moving window, tokens in a sliding window of two counters, in which the minute before counts less and less.

Laws
  To charge tokens never fails for their number, however far above the limit that is.
  In Redis, whoever shares it counts together, each request in one round trip. The window of requests is by the clocks
  of those who count, which should agree to a second or so.
"""

import threading
import time
from collections.abc import Callable, Sequence
from math import floor
from typing import Any, NamedTuple

from limits.storage import MemoryStorage
from limits.util import get_package_data

from proxy.access import standing as times
from proxy.access.standing import Standing
from proxy.config.keys import KeyRow
from proxy.store.redis.connection import RedisConnection
from proxy.store.redis.scripts import Command, Script
from proxy.store.redis.url import address

_NO_LIMIT = 2**53
_SWEEP = 60.0
"""Seconds between two times that what no longer counts is taken out of memory."""


class _PacedTimer:
    """The timer of a sweep; for a while after it, it says that it is still to come."""

    def __init__(self, timer: threading.Timer) -> None:
        self._timer = timer
        self._until = time.monotonic() + _SWEEP

    def start(self) -> None:
        self._timer.start()

    def is_alive(self) -> bool:
        return time.monotonic() < self._until or self._timer.is_alive()


class _Memory(MemoryStorage):
    """The library's storage, which would start a thread to sweep at nearly each request."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, _PacedTimer(value) if isinstance(value, threading.Timer) else value)


class LocalWindows:
    """Counts in the memory of this process."""

    def __init__(self) -> None:
        self._storage = _Memory()

    def admit(self, key: KeyRow, is_wanted: bool = True) -> Standing:
        """How the key stands. The request is counted where it is within both limits, and wanted."""
        name, seconds, now = f"requests/{key.name}", times.MINUTE, time.time()
        tokens, requests, oldest = _NO_TOKENS, 0, now
        if key.tpm is not None:
            tokens = _tokens(key.tpm, self._storage.get_sliding_window(f"tokens/{key.name}", seconds))
            is_wanted = is_wanted and tokens.used < key.tpm
        is_within = is_wanted and self.count(key)
        if key.rpm is not None:
            oldest, requests = self._storage.get_moving_window(name, key.rpm, seconds)
        return Standing(is_within, requests, max(0.0, oldest + seconds - now), *tokens)

    def count(self, key: KeyRow) -> bool:
        """Count a request; false, and it is not, where it is beyond the limit."""
        if key.rpm is None:
            return True
        return self._storage.acquire_entry(f"requests/{key.name}", key.rpm, times.MINUTE)

    def charge(self, name: str, tokens: int) -> None:
        self._storage.acquire_sliding_window_entry(f"tokens/{name}", _NO_LIMIT, times.MINUTE, tokens)


class SharedWindows:
    """Counts in the Redis of the store, on connections of its own. A key goes by its name, as in the store's keys of
    other things."""

    def __init__(self, url: str, patience: float, clock: Callable[[], float] = time.time) -> None:
        where = address(url)
        self._prefix = f"{where.prefix}:limits"
        self._connection = RedisConnection(where, patience)
        self._clock = clock

    async def open(self) -> None:
        """Connect, or StoreTrouble. From then on it is connected anew where that is needed."""
        await self._connection.open(("EXISTS", self._prefix))

    async def close(self) -> None:
        await self._connection.close()

    async def admit(self, key: KeyRow) -> Standing:
        """As in memory, but a request that is refused for its tokens has counted. Raises StoreTrouble."""
        now, seconds, commands = self._clock(), times.MINUTE, list[Command]()
        if key.rpm is not None:
            requests = [self._name(key.name, "requests")]
            commands.append(_ACQUIRE.on(requests, now, key.rpm, seconds, 1))
            commands.append(_REQUESTS.on(requests, now - seconds, key.rpm))
        if key.tpm is not None:
            commands.append(_TOKENS.on(self._counters(key.name), seconds))
        replies = await self._connection.trip(*commands)
        tokens = _NO_TOKENS if key.tpm is None else _tokens(key.tpm, _numbers(replies[-1]))
        if key.rpm is None:
            return Standing(True, 0, 0.0, *tokens)
        oldest, count = replies[1] or (now, 0)
        return Standing(bool(replies[0]), int(count), max(0.0, float(oldest) + seconds - now), *tokens)

    async def charge(self, charges: Sequence[tuple[str, int]]) -> None:
        """Add tokens to those of keys. Raises StoreTrouble."""
        counted = ((self._counters(name), tokens) for name, tokens in charges)
        await self._connection.trip(*(_CHARGE.on(keys, _NO_LIMIT, times.MINUTE, tokens) for keys, tokens in counted))

    def _name(self, name: str, what: str) -> str:
        return f"{self._prefix}:{{{name}}}:{what}"

    def _counters(self, name: str) -> list[str]:
        """Of the minute before, and of this one."""
        return [self._name(name, "tokens_before"), self._name(name, "tokens")]


def _script(name: str) -> Script:
    return Script(get_package_data(f"resources/redis/lua_scripts/{name}.lua").decode())


_ACQUIRE, _REQUESTS = _script("acquire_moving_window"), _script("moving_window")
_CHARGE, _TOKENS = _script("acquire_sliding_window"), _script("sliding_window")


def _numbers(row: Sequence[Any]) -> tuple[int, float, int, float]:
    """The counter of the minute before, the seconds for which it counts, and the same of this minute."""
    before, before_ms, current, current_ms = (max(0, int(value or 0)) for value in row)
    return before, before_ms / 1000, current, current_ms / 1000


class _Tokens(NamedTuple):
    """As in a standing."""

    used: int = 0
    wait: float = 0.0
    all_wait: float = 0.0


_NO_TOKENS = _Tokens()


def _tokens(limit: int, counters: tuple[int, float, int, float]) -> _Tokens:
    """The tokens that count, and the seconds until they are below the limit and until there are none."""
    minute = times.MINUTE
    before, before_left, current, current_left = counters
    counted, wait = before * before_left / minute + current, 0.0
    if counted >= limit > current:
        wait = before_left - (limit - current) * minute / before
    elif counted >= limit:  # from the end of this minute on it counts less and less
        wait = current_left - minute + minute * (1 - limit / current)
    return _Tokens(floor(counted), wait, current_left if current else before_left)
