"""The limits of keys: what each may use, whether a request is let in, and what its clients read of that.

A request is let in by what is charged already. What it costs is known when its reply is over, and is charged then: so a
limit of tokens or dollars is overshot by at most what is in flight.

Laws
  A request is counted once, by the process that serves it; what a reply came to is charged once, over all its rounds.
  No request waits longer than a second for a shared count, and none fails by it: late is not away. Where Redis is away,
  each process lets in its share of requests and tokens: the limit divided by the processes seen in the minute before;
  and so does each worker whose parent, which counts for all of them, does not answer.
  A key without limits costs a comparison.
  What remains is what remained when the request was let in: neither the request's own tokens nor those of others in
  flight are taken off.
  A client that waits as long as it is told is let in then, if nobody else has used what came free. Where that takes
  longer than a minute, it is told not to try again by itself.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from math import ceil
from typing import TYPE_CHECKING, TypeVar

from cachetools import LRUCache
from multidict import CIMultiDict

from policies.dialects import DIALECTS, Dialect, Fault
from proxy.addons.limits import windows
from proxy.addons.limits.charges import DAY, Counts, KeyCharges, Refusal, purse_of
from proxy.addons.limits.windows import TeamCounts, WindowUse
from proxy.breaker import reported_breaker
from proxy.config import KeyRow
from proxy.errors import ApiError
from proxy.memory import Store, StoreTrouble
from proxy.telemetry import QUIET, Telemetry

if TYPE_CHECKING:  # it imports for a tenth of a second what only keys with limits need
    from proxy.addons.limits.redis_windows import SharedWindows

PATIENCE = 1.0
"""Seconds that a request waits for a shared count, at most: a busy Redis has its answers late, too."""
_HEARTBEAT, _RECHECK = 15.0, 5.0
"""Seconds from one time that a process is seen by the others to the next; and after which they are asked again whether
the dollars are used up: a process may have given some back."""
_OWNERS = 4_096
"""Owners whose summaries are charged to their keys."""
RATE_HEADERS = tuple({api.http.rate.partition("{")[0] for api in DIALECTS.values()})
_REFUSALS: Mapping[str, tuple[str, str, str]] = {
    "rpm": ("rate_limit_exceeded", "requests", "Rate limit reached: {limit:,} requests a minute."),
    "tpm": ("rate_limit_exceeded", "tokens", "Rate limit reached: {limit:,} tokens a minute."),
    "usd_per_day": ("insufficient_quota", "insufficient_quota", "The budget of the day (UTC) is used up: ${limit:,g}."),
    "concurrency": ("rate_limit_exceeded", "requests", "Too many requests at once: {limit:,} may be in flight."),
}
"""Code, type (of OpenAI's errors) and message, by the field of a key."""
T = TypeVar("T")


class Admitted:
    """A request of a key, let in. `headers` are those of its reply."""

    __slots__ = ("_key", "_limits", "_running", "headers")

    def __init__(self, limits: "Limits", key: KeyRow) -> None:
        self._limits, self._key, self._running = limits, key, True
        self.headers: Mapping[str, str] = {}

    def put_headers(self, headers: CIMultiDict[str]) -> None:
        """The remaining use of the key stands in the place of that of the gateway's own key."""
        if self.headers:
            for name in [name for name in headers if name.lower().startswith(RATE_HEADERS)]:
                headers.popall(name, None)
            headers.update(self.headers)

    @property
    def spends(self) -> bool:
        """True where tokens or dollars are limited."""
        return self._key.tpm is not None or self._key.usd_per_day is not None

    def charge(self, tokens: int, dollars: float) -> None:
        self._limits.charges.charge(self._key, tokens, dollars)

    def reserve(self, name: str, model: str, dollars: float) -> None:
        self._limits.charges.reserve(name, self._key, model, dollars)

    def close(self) -> None:
        if self._running:
            self._running = False
            self._limits.leave(self._key)


class Limits:
    """Lets requests of keys in. `counts` are those of the Narrows before, at a reload; `shared` counts in Redis, `team`
    for the workers of this machine. `is_alone`: nobody else spends from the store's purses, so that it is asked for
    them only once a day."""

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
        self._telemetry, self._store, self._shared, self._team = telemetry, store, shared, team
        self._is_alone = is_alone
        self._breaker = reported_breaker("limits", telemetry)
        self.charges = KeyCharges(counts, self._breaker, store, shared, team, clock)
        self._owners: LRUCache[str, KeyRow] = LRUCache(_OWNERS)
        self._last_refusals: dict[tuple[str, str], float] = {}
        self._beating: asyncio.Task[None] | None = None

    async def open(self) -> None:
        if self._shared is not None:
            try:
                await self._shared.open()
                await self._shared.beat()
            except StoreTrouble as error:
                self._breaker.failed(str(error))
            self._beating = asyncio.create_task(_beat(self._shared, self._telemetry))

    async def close(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
        self._breaker.end_pause()
        await self.charges.close()
        if self._shared is not None:
            await self._shared.close()

    def check(self, key: KeyRow | None, dialect: str) -> None:
        """Raises LimitError where the request is refused by what is known here: before its body is read."""
        if key is None:
            return
        refusal, now = self.counts.refusals.get(key.name), self.charges.clock()
        if refusal is not None:
            is_sure = self._is_alone or refusal.limit != "usd_per_day" or now < refusal.since + _RECHECK
            if is_sure and refusal.until > now and refusal.allowed == getattr(key, refusal.limit):
                raise self._error(key, refusal, dialect)
            del self.counts.refusals[key.name]
        if key.concurrency is not None and self.counts.running.get(key.name, 0) >= key.concurrency:
            raise self._error(key, Refusal("concurrency", key.concurrency, now + 1, WindowUse()), dialect)

    async def admit(self, key: KeyRow | None, owner: str, dialect: str, share: float = 1.0) -> Admitted | None:
        """Count a request that is to be served now; None where nothing limits it. Raises LimitError.
        `share`: below 1 for what its client has not sent: let in where less than this share of each limit is used; that
        it is refused is told nobody, and counts for no other request."""
        if key is None or not key.limits:
            return None
        if is_asked := share == 1.0:
            self.check(key, dialect)
        running, before = self.counts.running, self.counts.budgets.get(key.name)
        running[key.name] = running.get(key.name, 0) + 1
        admitted = Admitted(self, key)
        try:
            if key.concurrency is not None and not await self._has_room(key, key.concurrency):
                too_many = Refusal("concurrency", key.concurrency, self.charges.clock() + 1, WindowUse())
                raise self._error(key, too_many, dialect, is_asked)
            row, use, is_used_up = await self._count(key if is_asked else part_of(key, share))
            now = self.charges.clock()
            refusal = refusal_of(row, use, is_used_up, now)
            if not is_asked:  # of the whole limit it says nothing
                self.counts.budgets.pop(key.name, None)
                self.counts.budgets.update({key.name: before} if before is not None else {})
            elif refusal is not None:
                self.counts.refusals[key.name] = refusal
            if refusal is not None:
                raise self._error(key, refusal, dialect, is_asked)
        except BaseException:
            admitted.close()
            raise
        if admitted.spends:  # not where a reply is fetched, for which nothing of this counts
            self._owners[owner] = key
        admitted.headers = rate_headers(dialect, row, use, now)
        return admitted

    def leave(self, key: KeyRow) -> None:
        running = self.counts.running
        running[key.name] -= 1
        if self._team is not None and key.concurrency is not None:
            self._team.leave(key.name, running[key.name])
        if not running[key.name]:
            del running[key.name]

    def charge_owner(self, owner: str, tokens: int, dollars: float) -> None:
        """Charge the key of this owner, if it has one with limits, for a summary that was made for it."""
        if (key := self._owners.get(owner)) is not None:
            self.charges.charge(key, tokens, dollars)

    async def _count(self, key: KeyRow) -> tuple[KeyRow, WindowUse, bool]:
        """The key with the limits that count now, how it stands with this request counted if it is within them, and
        true where its dollars are used up. Redis, the parent of the workers or the store say what was used; of the
        store what was spent, where nobody else spends only once for a day and a limit."""
        has_windows, today = key.rpm is not None or key.tpm is not None, self.charges.today()
        was_asked = self.counts.budgets.get(key.name, ("", 0.0, False))[:2] == (today, key.usd_per_day)
        asks = has_windows and (self._shared is not None or self._team is not None)
        if key.usd_per_day is not None and not asks:
            asks = self._shared is not None or (self._store is not None and not (was_asked and self._is_alone))
        if asks and self._breaker.admits():
            answer = await self._answer(self._count_with_others(key))
            if answer is not None:
                self.charges.write_soon()
                return key, *answer
        processes = self._shared.replicas if self._shared else self._team.workers if self._team else 1
        if processes > 1:
            limits = {name: limit for name in ("rpm", "tpm") if (limit := getattr(key, name)) is not None}
            key = key.model_copy(update={name: limit and max(1, limit // processes) for name, limit in limits.items()})
        is_used_up = self.counts.is_used_up(key, self.charges.today())
        return key, self.counts.windows.admit(key.name, key.rpm, key.tpm, not is_used_up), is_used_up

    async def _has_room(self, key: KeyRow, concurrency: int) -> bool:
        """True where no more requests are in flight than may be: in all workers, else in this one of its share."""
        running = self.counts.running[key.name]
        if self._team is None:
            return running <= concurrency
        if self._breaker.admits():
            has_room = await self._answer(self._team.has_room(key.name, running, concurrency))
            if has_room is not None:
                return has_room
        return running <= max(1, concurrency // self._team.workers)

    async def _answer(self, question: Awaitable[T]) -> T | None:
        """The answer of others; None where they are late or away."""
        try:
            async with asyncio.timeout(PATIENCE):
                answer = await question
        except (StoreTrouble, TimeoutError) as error:
            self._breaker.failed(str(error) or "it did not answer in time")
            return None
        self._breaker.succeeded()
        return answer

    async def _count_with_others(self, key: KeyRow) -> tuple[WindowUse, bool]:
        """As `_count`, by what everybody has counted. Raises StoreTrouble."""
        counts, charges, limit = self.counts, self.charges, key.usd_per_day
        today = charges.today()
        purse = purse_of(key.name, today)
        if self._shared is not None:
            use, is_full = await self._shared.admit(key, purse)
        else:
            use, is_full = None, limit is not None and await charges.is_full(purse, limit)
        if limit is not None:
            counts.budgets[key.name] = today, limit, is_full
            is_told = all(name != key.name for name, _ in (*counts.owed, *charges.sending))
            # the purse knows what others have given back
            if not is_full and is_told and counts.is_used_up(key, charges.today()):
                del counts.spent[key.name]
        is_used_up = counts.is_used_up(key, charges.today())
        if use is None and self._team is not None:
            use = await self._team.admit(key.name, key.rpm, key.tpm, not is_used_up)
        if use is None:
            return counts.windows.admit(key.name, key.rpm, key.tpm, not is_used_up), is_used_up
        if use.is_within:
            counts.windows.count(key.name, key.rpm)  # so that it is known here if the others cannot be asked
        return use, is_used_up

    def _error(self, key: KeyRow, refusal: Refusal, dialect: str, is_told: bool = True) -> "LimitError":
        now, series = self.charges.clock(), (key.name, refusal.limit)
        if is_told:
            self._telemetry.metrics.count("refused", refusal.limit, f"key:{key.name}")
            if now - self._last_refusals.get(series, -QUIET) >= QUIET:
                self._telemetry.log.warning("refusing", limit=refusal.limit, whose=f"key:{key.name}")
            self._last_refusals[series] = now
        headers = rate_headers(dialect, key, refusal.use, now) if refusal.limit != "concurrency" else {}
        return LimitError(key, refusal.limit, max(0.0, refusal.until - now), headers)


async def _beat(shared: "SharedWindows", telemetry: Telemetry) -> None:
    """Be seen by the others, and see them."""
    while True:
        await asyncio.sleep(_HEARTBEAT)
        try:
            with suppress(StoreTrouble):
                await shared.beat()
        except Exception as error:
            telemetry.log.error("not_seen", error=type(error).__name__, exc_info=error)


# --- what clients read: headers and refusals in their API's words ---


def rate_headers(dialect: str, key: KeyRow, use: WindowUse, now: float) -> dict[str, str]:
    """Reset is when there is something again where nothing remains, else when there is all of it."""
    api, headers = DIALECTS[dialect].http, dict[str, str]()
    used = (
        ("requests", key.rpm, use.requests, use.request_wait, float(windows.MINUTE)),
        ("tokens", key.tpm, use.tokens, use.token_wait, use.tokens_wait),
    )
    for what, limit, count, wait, whole in used:
        if limit is not None:
            seconds = wait if count >= limit else whole
            reset = instant(now + seconds) if api.rate_reset == "instant" else duration(seconds)
            values = {"limit": str(limit), "remaining": str(max(0, limit - count)), "reset": reset}
            headers |= {api.rate.format(what=each, of=what): value for each, value in values.items()}
    return headers


def duration(seconds: float) -> str:
    """As in OpenAI's headers: 250ms, 1.5s, 6m0s."""
    if seconds < 1:
        return f"{ceil(seconds * 1000)}ms"
    minutes, rest = divmod(ceil(seconds * 1000) / 1000, 60)
    return f"{int(minutes)}m{rest:g}s" if minutes else f"{rest:g}s"


def instant(at: float) -> str:
    """As in Anthropic's headers, by seconds since 1970."""
    return datetime.fromtimestamp(ceil(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def part_of(key: KeyRow, share: float) -> KeyRow:
    """The key with this share of each limit, which may be nothing; as many in flight."""
    parts = {name: type(limit)(limit * share) for name, limit in key.limits.items() if name != "concurrency"}
    return key.model_copy(update=parts)


def refusal_of(key: KeyRow, use: WindowUse, is_used_up: bool, now: float) -> Refusal | None:
    """The reason why a request is not let in; None where it is. Of several reasons the one that lasts longest."""
    if key.usd_per_day is not None and is_used_up:
        return Refusal("usd_per_day", key.usd_per_day, now + DAY - now % DAY, use, now)
    if key.tpm is not None and use.tokens >= key.tpm:
        return Refusal("tpm", key.tpm, now + use.token_wait, use)
    if key.rpm is not None and not use.is_within:
        return Refusal("rpm", key.rpm, now + min(use.request_wait, windows.MINUTE), use)
    return None


class LimitError(ApiError):
    """429: a limit of a key is reached. `wait`: seconds until enough of it is free."""

    def __init__(self, key: KeyRow, limit: str, wait: float, headers: Mapping[str, str]) -> None:
        code, self._kind, reason = _REFUSALS[limit]
        seconds = max(1, ceil(wait))
        retry = {"Retry-After": str(seconds), "retry-after-ms": str(max(1, ceil(wait * 1000)))}
        if wait > windows.MINUTE:
            retry["x-should-retry"] = "false"
        reason = reason.format(limit=getattr(key, limit))
        message = f"{reason} It is the limit `{limit}` of the key `{key.name}`; try again in {duration(seconds)}."
        super().__init__(429, message, code, headers={**headers, **retry})

    def body(self, dialect: Dialect) -> bytes:
        return dialect.failure(Fault(self.status, self.message, self.code, self.param, self._kind))
