"""Requests and tokens of the last minute by the name of a key, in the memory of this process: requests in a moving
window, tokens in a sliding window of two counters, in which the minute before counts less and less. It is how the
scripts of the library `limits` count in Redis; its counts in memory need threads, which workers' parents lack.

Laws
  To charge tokens never fails for their number, however far above the limit that is.
  What the parent of workers counts outlives them: one that is started again, or a reload, goes on where counts were.
  A worker says how many requests of a key are in flight in it, not that there is one more or less: what gets lost is
  mended by its next message, and what was in flight in a worker that has died counts no more.
"""

import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from math import floor
from typing import NamedTuple

import msgspec

from proxy.memory import StoreTrouble

MINUTE = 60


class WindowTokens(NamedTuple):
    """The tokens that count, and the seconds until they are below the limit and until there are none."""

    used: int = 0
    wait: float = 0.0
    all_wait: float = 0.0


class WindowUse(NamedTuple):
    """Use of a key in the last minute, of the limits that it has. Waits are seconds."""

    is_within: bool = True
    """The request was within the limit of requests, and is counted."""
    requests: int = 0
    """This one counted."""
    request_wait: float = 0.0
    """Until the oldest of them no longer counts."""
    tokens: int = 0
    token_wait: float = 0.0
    """Until they are below the limit."""
    tokens_wait: float = 0.0
    """Until none of them counts."""


def window_tokens(limit: int | None, counters: tuple[int, float, int, float]) -> WindowTokens:
    """`counters`: the tokens of the minute before, and the seconds for which they count; the same of this minute."""
    if limit is None:
        return WindowTokens()
    before, before_left, current, current_left = counters
    used, wait = before * before_left / MINUTE + current, 0.0
    if used >= limit > current:
        wait = before_left - (limit - current) * MINUTE / before
    elif current and used >= limit:  # from the end of this minute on it counts less and less
        wait = current_left - MINUTE + MINUTE * (1 - limit / current)
    return WindowTokens(floor(used), wait, current_left if current else before_left)


@dataclass(slots=True)
class _Use:
    """Use of a key, as it is counted here."""

    requests: deque[float] = field(default_factory=deque)
    """When each of the last minute came, the oldest first."""
    minute: int = 0
    tokens_before: int = 0
    tokens: int = 0

    def expire(self, now: float) -> bool:
        """Drop what no longer counts; true where anything is left."""
        while self.requests and self.requests[0] < now - MINUTE:
            self.requests.popleft()
        minute = int(now // MINUTE)
        if self.minute != minute:
            self.tokens_before = self.tokens if self.minute == minute - 1 else 0
            self.minute, self.tokens = minute, 0
        return bool(self.requests or self.tokens_before or self.tokens)

    def counters(self, now: float) -> tuple[int, float, int, float]:
        rest = MINUTE - now % MINUTE
        return self.tokens_before, rest if self.tokens_before else 0.0, self.tokens, rest + MINUTE


class LocalWindows:
    def __init__(self) -> None:
        self._uses: dict[str, _Use] = {}
        self._swept = 0.0

    def admit(self, name: str, rpm: int | None, tpm: int | None, is_wanted: bool = True) -> WindowUse:
        """How the key of this name stands. The request is counted where it is within both limits, and wanted."""
        now, use = time.time(), self._use(name)
        tokens = window_tokens(tpm, use.counters(now))
        is_within = is_wanted and (tpm is None or tokens.used < tpm) and self.count(name, rpm)
        if rpm is None:
            return WindowUse(is_within, 0, MINUTE, *tokens)
        oldest = use.requests[0] if use.requests else now
        return WindowUse(is_within, len(use.requests), max(0.0, oldest + MINUTE - now), *tokens)

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
        now = time.time()
        if now - self._swept > MINUTE:
            self._swept = now
            self._uses = {each: use for each, use in self._uses.items() if use.expire(now)}
        use = self._uses.setdefault(name, _Use())
        use.expire(now)
        return use


# --- over the workers of one machine: counted in the memory of their parent, which answers at once ---


class _KeyReport(msgspec.Struct, array_like=True, frozen=True):
    """The report of a worker about a key, and its limits, where it asks how the key stands."""

    name: str
    running: int | None = None
    """Requests in flight in this worker; None: as many as before."""
    concurrency: int | None = None
    rpm: int | None = None
    tpm: int | None = None
    is_wanted: bool = False
    """A request is counted where it is within its limits."""
    tokens: int = 0
    """That were used since."""


class _Answer(NamedTuple):
    has_room: bool
    """As many requests are in flight in all workers as may be, or fewer."""
    use: WindowUse


_report, _answer = msgspec.msgpack.Decoder(_KeyReport), msgspec.msgpack.Decoder(_Answer)


class ParentCounts:
    def __init__(self) -> None:
        self._windows = LocalWindows()
        self._running: dict[int, dict[str, int]] = {}
        """Requests in flight by the worker's process id and the name of the key."""

    def answer(self, pid: int, message: bytes) -> bytes:
        """Count what a worker reports, and answer how the key stands."""
        report = _report.decode(message)
        if report.running is not None:
            self._running.setdefault(pid, {})[report.name] = report.running
        if report.tokens:
            self._windows.charge(report.name, report.tokens)
        running = sum(each.get(report.name, 0) for each in self._running.values())
        has_room = report.concurrency is None or running <= report.concurrency
        use = self._windows.admit(report.name, report.rpm, report.tpm, report.is_wanted)
        return msgspec.msgpack.encode(_Answer(has_room, use))

    def ended(self, pid: int) -> None:
        self._running.pop(pid, None)


class TeamCounts:
    """A worker's way to these counts. `ask`: has its parent answer, and raises OSError where that takes no message;
    `tell`: says something that the parent may miss; `workers`: how many count together."""

    def __init__(self, ask: Callable[[bytes], Awaitable[bytes]], tell: Callable[[bytes], None], workers: int) -> None:
        self._ask, self._tell = ask, tell
        self.workers = workers

    async def has_room(self, name: str, running: int, concurrency: int) -> bool:
        """True where all workers together have at most so many in flight; `running` here. Raises StoreTrouble."""
        return (await self._answer(_KeyReport(name, running, concurrency))).has_room

    async def admit(self, name: str, rpm: int | None, tpm: int | None, is_wanted: bool) -> WindowUse:
        """As `LocalWindows.admit`, for all workers. Raises StoreTrouble."""
        return (await self._answer(_KeyReport(name, rpm=rpm, tpm=tpm, is_wanted=is_wanted))).use

    def charge(self, name: str, tokens: int) -> None:
        self._tell(msgspec.msgpack.encode(_KeyReport(name, tokens=tokens)))

    def leave(self, name: str, running: int) -> None:
        self._tell(msgspec.msgpack.encode(_KeyReport(name, running)))

    async def _answer(self, report: _KeyReport) -> _Answer:
        try:
            return _answer.decode(await self._ask(msgspec.msgpack.encode(report)))
        except OSError as error:
            raise StoreTrouble("the parent of the workers takes no question") from error
