"""Summaries, made in the background: each once, however many ask for it, in however many replicas.

Laws
  Nothing waits for one that does not want to, and no trouble with one reaches a request.
  Only who holds the lease makes it; what comes from one who has lost it is dropped.
  What was paid for is charged, whatever came of it. A rejected answer is kept as such: nobody pays for it again.
  What fails is left alone for a while: the summarizer by whose credential it was asked, and the store.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Literal, TypeVar

from cachetools import LRUCache, TTLCache

from policies.presets import Writing
from policies.staleness import Kind, Making, Spent, SummaryRecord, stale
from proxy.breaker import Breaker
from proxy.config import Settings
from proxy.histories import NEAR_SECONDS, weight
from proxy.journal import Journal
from proxy.store import SUMMARIES, Key, Lease, Store, StoreTrouble
from proxy.summarizer import Summarizer, SummarizerError
from proxy.telemetry import Telemetry
from proxy.writer import Task, Writer, covers, span_of

__all__ = ["RejectedError", "Summaries", "Task"]

_AT_ONCE, _QUEUED = 4, 64
"""Summaries that are made at once, and those that may wait for it; beyond it they are dropped, and wanted again."""
_FAILURES, _PAUSE = 3, 30.0
"""Failures in a row after which a summarizer is left alone, and for how many seconds."""
_STORE_PAUSE = 5.0
"""Seconds that a store in trouble is left alone."""
_MARGIN = 15.0
"""Seconds of a lease besides those that the summarizer may take."""
_SOONEST, _LATEST = 0.1, 2.0
"""Seconds between two looks whether another has made it."""
_AGAIN = 2.0
"""Seconds until the second try to keep what was paid for."""
_MOMENT = 2.0
"""Seconds that what runs is given at the end, and to give back a lease."""
_NEAR = 32 * 2**20
"""Bytes of summaries that are kept at hand."""
_NAMES = 4096

State = Literal["", "pending", "failed"]
Details = Mapping[str, str | int | float]
_Name = tuple[Key, str]
_Flight = asyncio.Task[SummaryRecord]
T = TypeVar("T")


class RejectedError(Exception):
    """The answer may not be used, and why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Summaries:
    """Makes what is wanted, and knows what was made here."""

    def __init__(
        self,
        settings: Settings,
        summarizer: Summarizer,
        store: Store,
        journal: Journal,
        telemetry: Telemetry,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._journal = journal
        self._telemetry = telemetry
        self._clock = clock
        self._writer = Writer(settings, summarizer, clock)
        self._held = settings.summary_timeout + _MARGIN
        self._shared = all(each.key_env for each in settings.summarizers)
        self._breakers: LRUCache[str, Breaker] = LRUCache(_NAMES)
        self._rest = Breaker(1, _STORE_PAUSE, _STORE_PAUSE, self._store_changed)
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._running: dict[_Name, _Flight] = {}
        self._failed: LRUCache[_Name, bool] = LRUCache(_NAMES)
        self._made: TTLCache[_Name, tuple[SummaryRecord, ...]] = TTLCache(_NEAR, NEAR_SECONDS, getsizeof=weight)
        self._closing = False

    def making(self, dialect: str, model: str, policy: str, writing: Writing) -> Making:
        """What summaries for the prompt are made with now."""
        return self._writer.making(dialect, model, policy, "compaction", writing)

    def start(self, task: Task) -> bool:
        """Make it behind the request, unless it is there; whether it is on its way. Never raises."""
        name = task.key, task.want.first
        if name in self._running:
            return True
        if self._found(task, "compaction", (*task.known, *self.made(*name))):
            return False
        if self._breaker(task).shut or self._rest.shut:
            self._failed[name] = True
            self._count("paused")
            return False
        with suppress(SummarizerError):
            self._flight(name, task, "compaction")
        return name in self._running

    async def wait(self, key: Key, first: str, seconds: float) -> None:
        """Until what runs for this beginning is over, here or in another replica; at most so long."""
        flight = self._running.get((key, first))
        if flight is not None:
            await asyncio.wait([flight], timeout=seconds)

    def state(self, key: Key, first: str) -> State:
        """What there is to say of this beginning."""
        name = key, first
        if name in self._running:
            return "pending"
        return "failed" if name in self._failed else ""

    def made(self, key: Key, first: str) -> tuple[SummaryRecord, ...]:
        """What was made or found here lately, oldest first; also what was rejected."""
        return self._made.get((key, first), ())

    async def history(self, task: Task) -> SummaryRecord:
        """A summary for people, of exactly these messages: the one that counts, or a new one.

        Raises SummarizerError, StoreTrouble, RejectedError.
        """
        name = task.key, f"history:{task.want.first}:{task.want.last}"
        flight = self._running.get(name) or self._flight(name, task, "history")
        await asyncio.wait([flight])  # whoever leaves does not end it for the others
        if flight.cancelled():
            raise SummarizerError("stopped", Spent())
        record = flight.result()
        if record.rejected:
            raise RejectedError(record.rejected)
        return record

    def forget(self, key: Key) -> None:
        """The conversation is deleted: nothing of it is kept here, and what runs for it is ended."""
        self._forget(lambda other: other == key)

    def forget_tenant(self, tenant: str) -> None:
        """The same for all conversations of a tenant."""
        self._forget(lambda other: other.tenant == tenant)

    def _forget(self, meant: Callable[[Key], bool]) -> None:
        for name in [name for name in self._running if meant(name[0])]:
            self._running[name].cancel()
        for cache in (self._made, self._failed):
            for name in [name for name in cache if meant(name[0])]:
                cache.pop(name, None)

    async def settled(self) -> None:
        """Until nothing runs any more."""
        while self._running:
            await asyncio.wait(self._running.values())

    async def close(self) -> None:
        """Start nothing more, give what runs a moment, and end it. The store must still be open."""
        self._closing = True
        flights = list(self._running.values())
        if flights:
            await asyncio.wait(flights, timeout=_MOMENT)
            for flight in flights:
                flight.cancel()
            await asyncio.wait(flights)

    def _flight(self, name: _Name, task: Task, kind: Kind) -> _Flight:
        """Begin to make it. Raises SummarizerError where there is no room."""
        if self._closing or len(self._running) >= _AT_ONCE + _QUEUED:
            self._count("dropped")
            raise SummarizerError("busy", Spent())
        flight = asyncio.create_task(self._flown(task, kind))
        self._running[name] = flight
        flight.add_done_callback(partial(self._landed, name))
        return flight

    def _landed(self, name: _Name, flight: _Flight) -> None:
        self._running.pop(name, None)
        if flight.cancelled():
            return
        error = flight.exception()
        if error is None:
            self._failed.pop(name, None)
            if flight.result().rejected:
                self._failed[name] = True
            return
        self._failed[name] = True
        if not isinstance(error, SummarizerError | StoreTrouble):
            self._count("fault")
            self._telemetry.log.error("summaries", exc_info=error)

    async def _flown(self, task: Task, kind: Kind) -> SummaryRecord:
        """The record, made here, or by whoever holds the lease. Raises SummarizerError, StoreTrouble."""
        waited, pause = 0.0, _SOONEST
        while waited <= self._held + _LATEST:  # then whoever had it has lost it
            async with self._places:
                name = f"{'summary' if kind == 'compaction' else kind}:{task.want.first}"
                lease = await self._asked("lease", partial(self._store.lease, task.key, name, self._held))
                if lease is not None:
                    return await self._holding(lease, task, kind)
            await asyncio.sleep(pause)
            waited, pause = waited + pause, min(2 * pause, _LATEST)
        self._count("failed")
        raise SummarizerError("timeout", Spent())

    async def _holding(self, lease: Lease, task: Task, kind: Kind) -> SummaryRecord:
        """Whoever held it before may have made it."""
        try:
            known = await self._known(task, kind)
            found = self._found(task, kind, known)
            if found is None:
                return await self._new(lease, task, kind, known)
            self._count("found")
            self._at_hand(task, found)
            return found
        finally:
            with suppress(StoreTrouble, TimeoutError):  # it runs out by itself
                async with asyncio.timeout(_MOMENT):
                    await self._store.release(task.key, lease)

    async def _known(self, task: Task, kind: Kind) -> tuple[SummaryRecord, ...]:
        """All records that this could be, or go on from, the store's last."""
        first = task.want.first
        if kind == "history":
            return tuple(await self._asked("summaries", partial(self._store.summaries, task.key)))
        memory = await self._asked("memory", partial(self._store.memory, task.key, [first]))
        return (*task.known, *self.made(task.key, first), *memory.summaries)

    async def _new(self, lease: Lease, task: Task, kind: Kind, known: tuple[SummaryRecord, ...]) -> SummaryRecord:
        """Ask for it, judge it, keep it, and say what came of it."""
        breaker, started = self._breaker(task), asyncio.get_running_loop().time()
        if self._closing or not breaker.admits():
            self._count("paused")
            raise SummarizerError("paused", Spent())
        self._wanted(task, kind)
        try:
            record = await self._writer.write(task, kind, known)
        except SummarizerError as error:
            breaker.failed()
            self._note(task, kind, "failed", error.spent, {"reason": error.reason})
            await self._charge(task, kind, error.spent)
            raise
        breaker.succeeded()
        kept = await self._kept(task, record, lease)
        ms = round((asyncio.get_running_loop().time() - started) * 1000)
        self._told(task, record, kept, ms)
        await self._charge(task, kind, record.spent)
        return record

    async def _kept(self, task: Task, record: SummaryRecord, lease: Lease) -> bool:
        """Whether it counts: not where the lease has passed on. What the store cannot take counts here."""
        kept = await self._put(task, record, lease)
        if kept is None:
            await asyncio.sleep(_AGAIN)
            kept = await self._put(task, record, lease)
        if kept is False:
            return False
        self._at_hand(task, record)
        return True

    async def _put(self, task: Task, record: SummaryRecord, lease: Lease) -> bool | None:
        try:
            return await self._store.put_summary(task.key, record, lease)
        except StoreTrouble:
            self._telemetry.metrics.store_trouble("put_summary")
            return None

    async def _charge(self, task: Task, kind: Kind, spent: Spent) -> None:
        """To the conversation that caused it."""
        self._telemetry.metrics.summary_spent(spent)
        if spent == Spent():
            return
        try:
            await self._store.spend(task.key, kind, spent)
        except StoreTrouble:
            self._telemetry.metrics.store_trouble("spend")

    def _found(self, task: Task, kind: Kind, known: Iterable[SummaryRecord]) -> SummaryRecord | None:
        """What is there already of what is wanted; one that was rejected counts, because it was paid for. People get
        what covers exactly these messages, and may have it tried again."""
        making = self._writer.making(task.dialect, task.model, task.policy, kind, task.writing)
        now = self._clock()
        here = [r for r in known if r.kind == kind and covers(r, task) and not stale(r, making, now)]
        if kind == "history":
            here = [record for record in here if record.last == task.want.last and not record.rejected]
        return here[-1] if here else None

    def _at_hand(self, task: Task, record: SummaryRecord) -> None:
        if record.kind == "compaction":
            name = task.key, record.first
            others = (each for each in self.made(*name) if each.id != record.id)
            self._made[name] = (*others, record)[-SUMMARIES:]

    async def _asked(self, operation: str, ask: Callable[[], Awaitable[T]]) -> T:
        """The store's answer. Raises StoreTrouble, at once while it is known to be in trouble."""
        if not self._rest.admits():
            self._count("paused")
            raise StoreTrouble("left alone for a moment")
        try:
            answer = await ask()
        except StoreTrouble:
            self._count("store_trouble")
            self._telemetry.metrics.store_trouble(operation)
            self._rest.failed()
            raise
        self._rest.succeeded()
        return answer

    def _breaker(self, task: Task) -> Breaker:
        """That of the credential with which is asked: the trouble of one is not the trouble of all."""
        owner = "" if self._shared else task.owner
        if owner not in self._breakers:
            self._breakers[owner] = Breaker(_FAILURES, _PAUSE, self._held, partial(self._summarizer_changed, owner))
        return self._breakers[owner]

    def _summarizer_changed(self, owner: str, is_open: bool) -> None:
        if is_open:
            self._telemetry.log.warning("summarizer_trouble", owner=owner, effect="nothing is asked for a while")
        else:
            self._telemetry.log.info("summarizer_recovered", owner=owner)

    def _store_changed(self, is_open: bool) -> None:
        if is_open:
            self._telemetry.log.warning("summaries_store_trouble", effect="no summaries are made for a while")
        else:
            self._telemetry.log.info("summaries_store_recovered")

    def _wanted(self, task: Task, kind: Kind) -> None:
        span, blocks = span_of(task), task.conversation.blocks
        messages = blocks[span.stop - 1].message - blocks[span.start].message + 1
        want = task.want
        self._journal.note(
            task.key,
            "summary.wanted",
            kind=kind,
            reason=want.reason,
            first=want.first,
            last=want.last,
            messages=messages,
        )

    def _told(self, task: Task, record: SummaryRecord, kept: bool, ms: int) -> None:
        made: Details = {"id": record.id, "model": record.model, "ms": ms}
        if not kept:
            self._note(task, record.kind, "fenced", record.spent, {**made, "reason": "fenced"})
        elif record.rejected:
            self._note(task, record.kind, "rejected", record.spent, {**made, "reason": record.rejected})
        else:
            by: Details = {"prompt": record.prompt, "generation": record.generation}
            sizes: Details = {"before": record.tokens_before, "after": record.tokens_after}
            self._note(task, record.kind, "made", record.spent, {**made, **by, **sizes})

    def _note(self, task: Task, kind: Kind, outcome: str, spent: Spent, details: Details) -> None:
        self._count(outcome)
        name = "summary.failed" if outcome == "fenced" else f"summary.{outcome}"
        paid: Details = {"tokens": spent.prompt + spent.completion, "dollars": spent.dollars}
        self._journal.note(task.key, name, kind=kind, **details, **paid)

    def _count(self, outcome: str) -> None:
        self._telemetry.metrics.summarized(outcome)
