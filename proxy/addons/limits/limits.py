"""The limits of keys: what each may use, whether a request is let in, and what it is charged once its reply is over.

A request is let in by what is charged already. What it costs is known when its reply is over, and is charged then: so a
limit of tokens or dollars is overshot by at most what is in flight.

Laws
  A request is counted once, by the process that serves it; what a reply came to is charged once, over all its rounds.
  No request waits longer than a second for a shared count, and none fails by it: late is not away. Where Redis is away,
  each process lets in its share of requests and tokens: the limit divided by the processes seen in the minute before;
  and so does each worker whose parent, which counts for all of them, does not answer.
  Dollars that could not be stored are stored later.
  A key without limits costs a comparison.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import nextafter
from secrets import token_hex
from typing import TYPE_CHECKING

from cachetools import LRUCache
from multidict import CIMultiDict

from proxy.addons.limits.reservations import ReplyReservation, Reservations
from proxy.addons.limits.standing import RATE_HEADERS, Limit, LimitError, Refusal, Standing, rate_headers, refusal_of
from proxy.addons.limits.team_counts import TeamCounts
from proxy.addons.limits.windows import LocalWindows
from proxy.breaker import reported_breaker
from proxy.config import KeyRow
from proxy.memory import Purse, Store, StoreTrouble
from proxy.telemetry import QUIET, Telemetry

if TYPE_CHECKING:  # it imports for a tenth of a second what only keys with limits need
    from proxy.addons.limits.redis_windows import SharedWindows

PATIENCE = 1.0
"""Seconds that a request waits for a shared count, at most: a busy Redis has its answers late, too."""
_HEARTBEAT, _RECHECK = 15.0, 5.0
"""Seconds from one time that a process is seen by the others to the next; and after which they are asked again whether
the dollars are used up: a process may have given some back."""
_PAUSE = 0.05
"""Seconds between two writes of what was charged, so that many charges are written together."""
_CLOSING_SECONDS = 2.0
_OWNERS = 4_096
"""Owners whose summaries are charged to their keys."""


@dataclass(slots=True)
class Counts:
    """What this process has counted, by the name of the key. A reload hands it on to the next Narrows."""

    windows: LocalWindows
    running: dict[str, int] = field(default_factory=dict)
    """Requests in flight."""
    spent: dict[str, tuple[str, float]] = field(default_factory=dict)
    """The newest day, and the dollars that were charged here on it."""
    budgets: dict[str, tuple[str, float, bool]] = field(default_factory=dict)
    """The day and the limit for which the store was asked last, and whether the limit was reached."""
    owed: dict[tuple[str, str], float] = field(default_factory=dict)
    """Dollars of a key and a day that are still to be stored."""
    refusals: dict[str, Refusal] = field(default_factory=dict)

    def owe(self, whose: tuple[str, str], dollars: float) -> None:
        """Remember dollars of a key and a day that are to be stored."""
        self.owed[whose] = self.owed.get(whose, 0.0) + dollars

    def is_used_up(self, key: KeyRow, today: str) -> bool:
        """Whether the dollars of the day are used up, by what is known here."""
        if key.usd_per_day is None:
            return False
        day, spent = self.spent.get(key.name, ("", 0.0))
        budget = self.budgets.get(key.name)
        return budget == (today, key.usd_per_day, True) or (day == today and spent >= key.usd_per_day)


class Admitted:
    """A request of a key, let in. `headers` are those of its reply."""

    __slots__ = ("_key", "_limits", "_running", "headers")

    def __init__(self, limits: "Limits", key: KeyRow) -> None:
        self._limits, self._key, self._running = limits, key, True
        self.headers: Mapping[str, str] = {}

    def put_headers(self, headers: CIMultiDict[str]) -> None:
        """What the key may still use stands in the place of what the gateway's own key may."""
        if self.headers:
            for name in [name for name in headers if name.lower().startswith(RATE_HEADERS)]:
                headers.popall(name, None)
            headers.update(self.headers)

    @property
    def spends(self) -> bool:
        """Whether tokens or dollars are limited."""
        return self._key.tpm is not None or self._key.usd_per_day is not None

    def charge(self, tokens: int, dollars: float) -> None:
        """The reply is over, and came to so much over all its rounds. Never waits."""
        self._limits.charge(self._key, tokens, dollars)

    def reserve(self, name: str, model: str, dollars: float) -> None:
        """The reply of this name goes on, and so much was charged for it."""
        if self._key.usd_per_day is not None:
            reservation = ReplyReservation(self._key.name, model, dollars, self._limits.clock())
            self._limits.reservations.put(name, reservation)

    def close(self) -> None:
        """The request is over. Harmless a second time."""
        if self._running:
            self._running = False
            self._limits.leave(self._key)


class Limits:
    """Lets requests of keys in. `counts` are those of the Narrows before, at a reload; `shared` counts in Redis, `team`
    for the workers of this machine. `is_alone`: whether nobody else spends from the store's purses, so that it is asked
    for them only once a day."""

    def __init__(
        self,
        telemetry: Telemetry,
        counts: Counts,
        store: Store | None = None,
        shared: "SharedWindows | None" = None,
        is_alone: bool = True,
        clock: Callable[[], float] = time.time,
        team: TeamCounts | None = None,
    ) -> None:
        self.counts = counts
        self._telemetry = telemetry
        self._store = store
        self._shared, self._team = shared, team
        self._is_alone = is_alone
        self.clock = clock
        self.reservations = Reservations(store, clock)
        self._breaker = reported_breaker("limits", telemetry)
        self._owed_tokens: dict[str, int] = {}
        self._sending: dict[tuple[str, str], tuple[str, float]] = {}
        """Dollars of a key and a day that are on their way, with the mark by which they are known: where the answer is
        lost they are sent again, and count once."""
        self._writing: asyncio.Task[None] | None = None
        self._owners: LRUCache[str, KeyRow] = LRUCache(_OWNERS)
        self._last_refusals: dict[tuple[str, Limit], float] = {}
        self._beating: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect to the Redis that counts, if there is one."""
        if self._shared is not None:
            try:
                await self._shared.open()
                await self._shared.beat()
            except StoreTrouble as error:
                self._breaker.failed(str(error))
            self._beating = asyncio.create_task(self._beat(self._shared))

    async def _beat(self, shared: "SharedWindows") -> None:
        """Be seen by the others, and see them."""
        while True:
            await asyncio.sleep(_HEARTBEAT)
            try:
                with suppress(StoreTrouble):
                    await shared.beat()
            except Exception as error:
                self._telemetry.log.error("not_seen", error=type(error).__name__, exc_info=error)

    async def close(self) -> None:
        """Store what is still to be stored, for a moment at most."""
        if self._beating is not None:
            self._beating.cancel()
        self._breaker.end_pause()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSING_SECONDS):
                await self.reservations.close()
                await self._write_soon()
        for whose, (_, dollars) in self._sending.items():
            self.counts.owe(whose, dollars)
        if self._shared is not None:
            await self._shared.close()

    # Requests

    def check(self, key: KeyRow | None, dialect: str) -> None:
        """Raises LimitError where it is known without asking anybody that the request is refused: before its body is
        read."""
        if key is None:
            return
        refusal = self.counts.refusals.get(key.name)
        if refusal is not None:
            is_sure = self._is_alone or refusal.limit != "usd_per_day" or self.clock() < refusal.since + _RECHECK
            if is_sure and refusal.until > self.clock() and refusal.allowed == getattr(key, refusal.limit):
                raise self._error(key, refusal, dialect)
            del self.counts.refusals[key.name]
        if key.concurrency is not None and self.counts.running.get(key.name, 0) >= key.concurrency:
            raise self._too_many(key, key.concurrency, dialect)

    async def admit(self, key: KeyRow | None, owner: str, dialect: str) -> Admitted | None:
        """Count a request that is to be served now; None where nothing limits it. Raises LimitError."""
        if key is None or not key.limits:
            return None
        self.check(key, dialect)
        running = self.counts.running
        running[key.name] = running.get(key.name, 0) + 1
        admitted = Admitted(self, key)
        try:
            if key.concurrency is not None and not await self._has_room(key, key.concurrency):
                raise self._too_many(key, key.concurrency, dialect)
            counted, standing, is_used_up = await self._count(key)
            now = self.clock()
            refusal = refusal_of(counted, standing, is_used_up, now)
            if refusal is not None:
                self.counts.refusals[key.name] = refusal
                raise self._error(key, refusal, dialect)
        except BaseException:
            admitted.close()
            raise
        if admitted.spends:  # not where a reply is fetched, for which nothing of this counts
            self._owners[owner] = key
        admitted.headers = rate_headers(dialect, counted, standing, now)
        return admitted

    def leave(self, key: KeyRow) -> None:
        """A request that was let in is over."""
        running = self.counts.running
        running[key.name] -= 1
        if self._team is not None and key.concurrency is not None:
            self._team.leave(key.name, running[key.name])
        if not running[key.name]:
            del running[key.name]

    # Charges

    def charge(self, key: KeyRow, tokens: int, dollars: float) -> None:
        """Charge a reply that is over."""
        if key.tpm is not None and tokens > 0:
            self.counts.windows.charge(key.name, tokens)
            if self._shared is not None:
                self._owed_tokens[key.name] = self._owed_tokens.get(key.name, 0) + tokens
            elif self._team is not None:
                self._team.charge(key.name, tokens)
        if key.usd_per_day is not None and dollars > 0:
            today = self._today()
            day, spent = self.counts.spent.get(key.name, (today, 0.0))
            self.counts.spent[key.name] = today, dollars + (spent if day == today else 0.0)
            if self._store is not None or self._shared is not None:
                self.counts.owe((key.name, today), dollars)
        if self.counts.owed or self._owed_tokens:
            self._write_soon()

    def charge_owner(self, owner: str, tokens: int, dollars: float) -> None:
        """Charge the key of this owner, if it has one with limits, for a summary that was made for it."""
        if (key := self._owners.get(owner)) is not None:
            self.charge(key, tokens, dollars)

    async def settle(self, name: str, dollars_of: Callable[[str], float]) -> None:
        """It is known what the reply of this name used, which went on: its key is charged for that, and no more for
        what it might have used. `dollars_of`: its price, by the model."""
        with suppress(StoreTrouble):
            if (reserved := await self.reservations.take(name)) is not None:
                key, difference = reserved.key, dollars_of(reserved.model) - reserved.dollars
                day, spent = self.counts.spent.get(key, ("", 0.0))
                if day == reserved.day:
                    self.counts.spent[key] = day, max(0.0, spent + difference)
                self.counts.owe((key, reserved.day), difference)
                self.counts.budgets.pop(key, None)
                self.counts.refusals.pop(key, None)
                self._write_soon()

    # Counting

    async def _count(self, key: KeyRow) -> tuple[KeyRow, Standing, bool]:
        """The key with the limits that count now, how it stands with this request counted if it is within them, and
        whether its dollars are used up."""
        if self._asks_others(key) and self._breaker.admits():
            try:
                async with asyncio.timeout(PATIENCE):
                    counted = await self._count_with_others(key)
                self._breaker.succeeded()
                if self.counts.owed or self._sending:
                    self._write_soon()
                return key, *counted
            except (StoreTrouble, TimeoutError) as error:
                self._breaker.failed(str(error) or "it did not answer in time")
        processes = self._shared.replicas if self._shared else self._team.workers if self._team else 1
        if processes > 1:
            limits = {name: limit for name in ("rpm", "tpm") if (limit := getattr(key, name)) is not None}
            key = key.model_copy(update={name: max(1, limit // processes) for name, limit in limits.items()})
        is_used_up = self.counts.is_used_up(key, self._today())
        return key, self.counts.windows.admit(key.name, key.rpm, key.tpm, not is_used_up), is_used_up

    async def _has_room(self, key: KeyRow, concurrency: int) -> bool:
        """Whether the workers together have so many of its requests in flight as they may; this one its share, where
        that is not known."""
        if self._team is None:
            return True  # it was looked at before
        running = self.counts.running[key.name]
        if self._breaker.admits():
            try:
                async with asyncio.timeout(PATIENCE):
                    has_room = await self._team.has_room(key.name, running, concurrency)
                self._breaker.succeeded()
                return has_room
            except (StoreTrouble, TimeoutError) as error:
                self._breaker.failed(str(error) or "it did not answer in time")
        return running <= max(1, concurrency // self._team.workers)

    def _asks_others(self, key: KeyRow) -> bool:
        """Whether Redis, the parent of the workers or the store is to say what was used; of the store what was spent,
        where nobody else spends only once for a day and a limit."""
        has_windows = key.rpm is not None or key.tpm is not None
        if self._shared is not None:
            return has_windows or key.usd_per_day is not None
        if self._team is not None and has_windows:
            return True
        if self._store is None or key.usd_per_day is None:
            return False
        was_asked = self.counts.budgets.get(key.name, ("", 0.0, False))[:2] == (self._today(), key.usd_per_day)
        return not (was_asked and self._is_alone)

    async def _count_with_others(self, key: KeyRow) -> tuple[Standing, bool]:
        """As `_count`, by what everybody has counted. Raises StoreTrouble."""
        today, windows, limit = self._today(), self.counts.windows, key.usd_per_day
        purse = _purse(key.name, today)
        if self._shared is not None:
            standing, is_full = await self._shared.admit(key, purse)
        else:
            standing, is_full = None, limit is not None and await self._is_full(purse, limit)
        if limit is not None:
            self.counts.budgets[key.name] = today, limit, is_full
            is_told = all(name != key.name for name, _ in (*self.counts.owed, *self._sending))
            if (
                not is_full and is_told and self.counts.is_used_up(key, self._today())
            ):  # the purse knows what others have given back
                del self.counts.spent[key.name]
        is_used_up = self.counts.is_used_up(key, self._today())
        if standing is None and self._team is not None:
            standing = await self._team.admit(key.name, key.rpm, key.tpm, not is_used_up)
        if standing is None:
            return windows.admit(key.name, key.rpm, key.tpm, not is_used_up), is_used_up
        if standing.is_within:
            windows.count(key.name, key.rpm)  # so that it is known here if the others cannot be asked
        return standing, is_used_up

    async def _is_full(self, purse: Purse, limit: float) -> bool:
        """Whether the store has so many dollars in a purse, or more. Raises StoreTrouble."""
        return self._store is not None and not await self._store.take(purse, 0.0, nextafter(limit, 0.0))

    def _today(self) -> str:
        return time.strftime("%Y-%m-%d", time.gmtime(self.clock()))

    # What is written behind the requests

    def _write_soon(self) -> "asyncio.Future[None]":
        """Store what is owed; what is charged meanwhile goes with it."""
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())
        return self._writing

    async def _write(self) -> None:
        while self.counts.owed or self._sending or self._owed_tokens:
            if not self._breaker.admits():
                self._owed_tokens.clear()  # they count for a minute, and here they are counted
                return
            if not self._sending:
                self._sending = {whose: (token_hex(16), sum_) for whose, sum_ in self.counts.owed.items()}
                self.counts.owed.clear()
            tokens, self._owed_tokens = self._owed_tokens, {}
            try:
                await self._send(tokens)
            except StoreTrouble as error:
                self._breaker.failed(str(error))
                return
            self._breaker.succeeded()
            await asyncio.sleep(_PAUSE)

    async def _send(self, tokens: Mapping[str, int]) -> None:
        """Charge what is owed where all see it. Raises StoreTrouble; dollars go again then, under the same mark."""
        if self._shared is not None:
            dollars = [(_purse(*whose), mark, sum_) for whose, (mark, sum_) in self._sending.items()]
            await self._shared.charge(tokens, dollars)
            self._sending = {}
        while self._sending and self._store is not None:
            (name, day), (_, sum_) = next(iter(self._sending.items()))
            await self._store.take(_purse(name, day), sum_)
            del self._sending[name, day]
            _, limit, is_full = self.counts.budgets.get(name, ("", 0.0, True))
            if not is_full:  # what others have stored, or a process before this one, counts too
                self.counts.budgets[name] = day, limit, await self._is_full(_purse(name, day), limit)

    # Refusals

    def _too_many(self, key: KeyRow, concurrency: int, dialect: str) -> LimitError:
        return self._error(key, Refusal("concurrency", concurrency, self.clock() + 1, Standing()), dialect)

    def _error(self, key: KeyRow, refusal: Refusal, dialect: str) -> LimitError:
        self._telemetry.metrics.count("refused", refusal.limit, f"key:{key.name}")
        now, series = self.clock(), (key.name, refusal.limit)
        if now - self._last_refusals.get(series, -QUIET) >= QUIET:
            self._telemetry.log.warning("refusing", limit=refusal.limit, whose=f"key:{key.name}")
        self._last_refusals[series] = now
        wait = max(0.0, refusal.until - now)
        headers = rate_headers(dialect, key, refusal.standing, now) if refusal.limit != "concurrency" else {}
        return LimitError(key, refusal.limit, wait, headers)


def _purse(name: str, day: str) -> Purse:
    """What a key has spent on a day. No tenant has such a name."""
    return Purse(tenant=f"key:{name}", day=day)
