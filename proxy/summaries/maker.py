"""Summaries and digests, made in the background: each once, however many ask for it, in however many replicas.

Laws
  Nothing waits for one that does not want to, and no trouble with one reaches a request.
  Only who holds the lease makes it; what comes from one who has lost it is dropped.
  What was paid for is charged, whatever came of it. A rejected answer is kept as such: nobody pays for it again.
  What fails is left alone for a while: the summarizer by whose credential it was asked, and the store.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeVar

from cachetools import LRUCache, TTLCache

from policies.model.summary_record import Criteria, SummaryCost, SummaryRecord, stale
from policies.presets import AS_SET, Writing
from proxy.config import Settings
from proxy.store import SUMMARIES, Key, Lease, Store, StoreTrouble
from proxy.store.audit_log import AuditLog
from proxy.store.breaker import Breaker
from proxy.store.cached import NEAR_SECONDS, weight
from proxy.store.forgetting import ForgetRegistry, forget_in
from proxy.store.guarded import GuardedStore
from proxy.summaries.jobs import Details, Order, Place, Task
from proxy.summaries.prompts import Prompt
from proxy.summaries.summarizer import Summarizer, SummarizerError
from proxy.summaries.writer import Writer
from proxy.telemetry import Telemetry

__all__ = ["RejectedError", "Summaries", "Task"]

_AT_ONCE, _QUEUED = 4, 64
"""Summaries that are made at once, and those that may wait for it; beyond it they are dropped, and wanted again."""
_FAILURES, _PAUSE = 3, 30.0
"""Failures in a row after which a summarizer is left alone, and for how many seconds."""
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
_Order = Order[Any]
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
        audit_log: AuditLog,
        telemetry: Telemetry,
        forgets: ForgetRegistry,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._guarded = GuardedStore(
            store, telemetry, name="summaries_store", effect="no summaries are made for a while"
        )
        self._audit_log = audit_log
        self._telemetry = telemetry
        self._clock = clock
        self._writer = Writer(settings, summarizer, clock)
        self._held = settings.summary_timeout + _MARGIN
        self._shared = all(each.key_env for each in settings.summarizers)
        self._breakers: LRUCache[str, Breaker] = LRUCache(_NAMES)
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._running: dict[Place, _Flight] = {}
        self._for: dict[Place, Key] = {}
        """The conversations that what runs was asked for in."""
        self._failed: LRUCache[Place, bool] = LRUCache(_NAMES)
        self._made: TTLCache[Place, tuple[SummaryRecord, ...]] = TTLCache(_NEAR, NEAR_SECONDS, getsizeof=weight)
        self._closing = False
        forgets.register(self._forget)

    def making(self, dialect: str, model: str, policy: str, writing: Writing = AS_SET) -> Criteria:
        """What summaries for the prompt are made with now."""
        return self._writer.making(dialect, model, policy, "compaction", writing)

    def made_with(self, dialect: str, model: str, policy: str, prompt: Prompt, writing: Writing) -> Criteria:
        """What is made with this prompt, now."""
        return self._writer.made_with(dialect, model, policy, prompt, writing)

    def start(self, order: _Order) -> bool:
        """Make it behind the request, unless it is there; whether it is on its way. Never raises."""
        place = order.place
        if place in self._running:
            return True
        if self._found(order, (*order.known, *self.made(*place))):
            return False
        if self._breaker(order).shut or self._guarded.is_paused:
            self._failed[place] = True
            self._count("paused")
            return False
        with suppress(SummarizerError):
            self._flight(order)
        return place in self._running

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
        order = replace(task, kind="history")
        flight = self._running.get(order.place) or self._flight(order)
        await asyncio.wait([flight])  # whoever leaves does not end it for the others
        if flight.cancelled():
            raise SummarizerError("stopped", SummaryCost())
        record = flight.result()
        if record.rejected:
            raise RejectedError(record.rejected)
        return record

    def _forget(self, tenant: str, conversation: str | None) -> None:
        """End what runs for a conversation, or for all of a tenant, and drop what is cached of it."""

        def is_meant(key: Key) -> bool:
            return key.tenant == tenant and conversation in (None, key.conversation)

        for place in [place for place, key in self._for.items() if is_meant(key)]:
            self._running[place].cancel()
        forget_in(self._failed, tenant, conversation)
        for place, records in list(self._made.items()):  # what is cached for all conversations of a tenant, too
            if any(is_meant(Key(place[0].tenant, record.conversation)) for record in records):
                self._made.pop(place, None)

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

    def _flight(self, order: _Order) -> _Flight:
        """Begin to make it. Raises SummarizerError where there is no room."""
        if self._closing or len(self._running) >= _AT_ONCE + _QUEUED:
            self._count("dropped")
            raise SummarizerError("busy", SummaryCost())
        flight = asyncio.create_task(self._flown(order))
        self._running[order.place], self._for[order.place] = flight, order.key
        flight.add_done_callback(partial(self._landed, order.place))
        return flight

    def _landed(self, name: Place, flight: _Flight) -> None:
        self._running.pop(name, None)
        self._for.pop(name, None)
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

    async def _flown(self, order: _Order) -> SummaryRecord:
        """The record, made here, or by whoever holds the lease. Raises SummarizerError, StoreTrouble."""
        waited, pause = 0.0, _SOONEST
        while waited <= self._held + _LATEST:  # then whoever had it has lost it
            async with self._places:
                lease = await self._ask("lease", lambda store: store.lease(order.key, order.lease, self._held))
                if lease is not None:
                    return await self._holding(lease, order)
            await asyncio.sleep(pause)
            waited, pause = waited + pause, min(2 * pause, _LATEST)
        self._count("failed")
        raise SummarizerError("timeout", SummaryCost())

    async def _holding(self, lease: Lease, order: _Order) -> SummaryRecord:
        """Whoever held it before may have made it."""
        try:
            known = await self._known(order)
            found = self._found(order, known)
            if found is None:
                return await self._new(lease, order, known)
            self._count("found")
            self._at_hand(order, found)
            return found
        finally:
            with suppress(StoreTrouble, TimeoutError):  # it runs out by itself
                async with asyncio.timeout(_MOMENT):
                    await self._store.release(order.key, lease)

    async def _known(self, order: _Order) -> tuple[SummaryRecord, ...]:
        """All records that this could be, or go on from, the store's last."""
        if order.kind == "history":
            return tuple(await self._ask("summaries", lambda store: store.summaries(order.key)))
        memory = await self._ask("memory", lambda store: store.memory(order.key, [order.first]))
        return (*order.known, *self.made(*order.place), *memory.summaries)

    async def _new(self, lease: Lease, order: _Order, known: tuple[SummaryRecord, ...]) -> SummaryRecord:
        """Ask for it, judge it, keep it, and say what came of it."""
        breaker, started = self._breaker(order), asyncio.get_running_loop().time()
        if self._closing or not breaker.admits():
            self._count("paused")
            raise SummarizerError("paused", SummaryCost())
        self._audit_log.note(order.key, f"{order.event}.wanted", kind=order.kind, **order.noted())
        try:
            record = await self._writer.write(order, known)
        except SummarizerError as error:
            breaker.failed()
            self._note(order, "failed", error.spent, {"reason": error.reason})
            await self._charge(order, error.spent)
            raise
        breaker.succeeded()
        kept = await self._kept(order, record, lease)
        ms = round((asyncio.get_running_loop().time() - started) * 1000)
        self._told(order, record, kept, ms)
        await self._charge(order, record.spent)
        return record

    async def _kept(self, order: _Order, record: SummaryRecord, lease: Lease) -> bool:
        """Whether it counts: not where the lease has passed on. What the store cannot take counts here."""
        kept = await self._put(order, record, lease)
        if kept is None:
            await asyncio.sleep(_AGAIN)
            kept = await self._put(order, record, lease)
        if kept is False:
            return False
        self._at_hand(order, record)
        return True

    async def _put(self, order: _Order, record: SummaryRecord, lease: Lease) -> bool | None:
        try:
            return await self._store.put_summary(order.key, record, lease)
        except StoreTrouble:
            self._telemetry.metrics.store_trouble("put_summary")
            return None

    async def _charge(self, order: _Order, spent: SummaryCost) -> None:
        """To the conversation that caused it."""
        self._telemetry.metrics.summary_spent(spent)
        if spent == SummaryCost():
            return
        try:
            await self._store.spend(order.key, order.kind, spent)
        except StoreTrouble:
            self._telemetry.metrics.store_trouble("spend")

    def _found(self, order: _Order, known: Iterable[SummaryRecord]) -> SummaryRecord | None:
        """What is there already of what is wanted."""
        making = self._writer.made_with(order.dialect, order.model, order.policy, order.prompt, order.writing)
        now = self._clock()
        here = [r for r in known if r.kind == order.kind and order.fits(r) and not stale(r, making, now)]
        return here[-1] if here else None

    def _at_hand(self, order: _Order, record: SummaryRecord) -> None:
        if record.kind != "history":
            others = (each for each in self.made(*order.place) if each.id != record.id)
            self._made[order.place] = (*others, record)[-SUMMARIES:]

    async def _ask(self, operation: str, question: Callable[[Store], Awaitable[T]]) -> T:
        """The store's answer. Raises StoreTrouble, at once while it is known to be in trouble."""
        outcome = "paused" if self._guarded.is_paused else "store_trouble"
        try:
            return await self._guarded.ask(operation, question)
        except StoreTrouble:
            self._count(outcome)
            raise

    def _breaker(self, order: _Order) -> Breaker:
        """That of the credential with which is asked: the trouble of one is not the trouble of all."""
        owner = "" if self._shared else order.owner
        if owner not in self._breakers:
            self._breakers[owner] = Breaker(_FAILURES, _PAUSE, self._held, partial(self._summarizer_changed, owner))
        return self._breakers[owner]

    def _summarizer_changed(self, owner: str, is_open: bool) -> None:
        if is_open:
            self._telemetry.log.warning("summarizer_trouble", owner=owner, effect="nothing is asked for a while")
        else:
            self._telemetry.log.info("summarizer_recovered", owner=owner)

    def _told(self, order: _Order, record: SummaryRecord, kept: bool, ms: int) -> None:
        made: Details = {"id": record.id, "model": record.model, "ms": ms}
        if not kept:
            self._note(order, "fenced", record.spent, {**made, "reason": "fenced"})
        elif record.rejected:
            self._note(order, "rejected", record.spent, {**made, "reason": record.rejected})
        else:
            by: Details = {"prompt": record.prompt, "generation": record.generation}
            sizes: Details = {"before": record.tokens_before, "after": record.tokens_after}
            self._note(order, "made", record.spent, {**made, **by, **sizes})

    def _note(self, order: _Order, outcome: str, spent: SummaryCost, details: Details) -> None:
        self._count(outcome)
        name = f"{order.event}.{'failed' if outcome == 'fenced' else outcome}"
        paid: Details = {"tokens": spent.prompt + spent.completion, "dollars": spent.dollars}
        self._audit_log.note(order.key, name, kind=order.kind, **details, **paid)

    def _count(self, outcome: str) -> None:
        self._telemetry.metrics.summarized(outcome)
