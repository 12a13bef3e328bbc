"""Summaries and digests, written in the background: each once, however often it is asked for, in however many replicas.

Laws
  A request waits for a job only where it asks to wait, and no failure of a job reaches a request.
  Only the holder of a job's lease writes its record; after the lease has passed on, the record is dropped.
  Every answer that was paid for is charged. A rejected one is stored without its text, with its cost, so that it is
  not paid for again.
  After failures there is a pause: for the store, and for the summarizer with the credential that it was asked with. An
  answer that is rejected is such a failure.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from time import monotonic
from typing import Literal, TypeVar

from cachetools import LRUCache

from policies.model.summary_record import SummaryCost, SummaryRecord, stale
from policies.money.bills import Labels
from proxy.breaker import Breaker, reported_breaker
from proxy.config import Settings
from proxy.event_loop import in_thread
from proxy.memory import SUMMARIES, Key, Lease, Store, StoreTrouble
from proxy.memory.audit_log import AuditLog
from proxy.memory.breaker import GuardedStore
from proxy.memory.cached import NEAR_SECONDS
from proxy.memory.conversation import Conversations, put_newest
from proxy.memory.forgetting import ForgetRegistry
from proxy.summaries.endpoints import ModelRequest
from proxy.summaries.jobs import Details, Job, Place, SummaryJob, record_of, write_request
from proxy.summaries.payments import SpendingLimits
from proxy.summaries.summarizer import GeneratedText, Summarizer, SummarizerError, criteria_for
from proxy.telemetry import Telemetry

_CONCURRENT, _QUEUED = 4, 64
"""Jobs that run at once, and jobs that may wait; further ones are dropped, and wanted again by later requests."""
_MARGIN = 15.0
"""Seconds of a lease besides those that the summarizer may take."""
_SOONEST, _LATEST = 0.1, 2.0
"""Seconds between two tries to get a lease that another replica holds: at first, and at most."""
_AGAIN = 2.0
"""Seconds until the second try to store a record."""
_MOMENT = 2.0
"""Seconds that running jobs have at the end, and that giving back a lease may take."""
_OWNERS = 4_096
"""Owners of whose failures it is known."""
_FAILED, _RECENT = 4_096, 1_024
"""Jobs of one conversation that have failed, and those whose records are remembered."""

State = Literal["", "pending", "failed"]
T = TypeVar("T")


class RejectedError(SummarizerError):
    """The answer must not be used; `reason` is the word of `policies.text.summary_checks`."""


class SummaryMaker:
    """Runs jobs in the background, and knows which are pending and which have failed."""

    def __init__(self, writer: "SummaryWriter", forgets: ForgetRegistry) -> None:
        self.summarizer, self.recent = writer.summarizer, partial(recent_records, writer.conversations)
        self._writer = writer
        self._conversations = writer.conversations
        self._running: dict[Place, tuple[Job, asyncio.Task[SummaryRecord]]] = {}
        forgets.register(self._forget)

    def start(self, job: Job) -> bool:
        """Run a job in the background, unless there is a record for it. True where it is running. Never raises."""
        place = job.place
        if place in self._running:
            return True
        if self._writer.fitting(job, (*job.records, *self.recent(*place))):
            return False
        if obstacle := self._writer.obstacle(job):
            self._note_failed(place, True)
            self._writer.count(obstacle)
            return False
        with suppress(SummarizerError):
            self._task(job)
        return place in self._running

    async def wait(self, key: Key, first: str, seconds: float) -> None:
        """Wait until the job at this place is over, here or in another replica, at most so many seconds."""
        if (key, first) in self._running:
            await asyncio.wait([self._running[key, first][1]], timeout=seconds)

    def state(self, key: Key, first: str) -> State:
        """The state of the job at this place; empty where none ran. One that has failed stays so until one succeeds."""
        live = self._conversations.get(key)
        if live is not None and first in live.failed_jobs:
            return "failed"
        return "pending" if (key, first) in self._running else ""

    async def history(self, job: SummaryJob) -> SummaryRecord:
        """A summary for people of exactly these messages: the one that counts, or a new one.

        Raises SummarizerError, also as RejectedError, and StoreTrouble.
        """
        job = replace(job, kind="history")
        task = self._running[job.place][1] if job.place in self._running else self._task(job)
        await asyncio.wait([task])  # a caller that leaves does not end it for the others
        if task.cancelled():
            raise SummarizerError("stopped")
        record = task.result()
        if record.rejected:
            raise RejectedError(record.rejected)
        return record

    def written_for(self, tenant: str, owner: str) -> set[Key]:
        """The conversations of a tenant of which something is being written for this owner."""
        jobs = [job for job, _ in self._running.values()]
        return {job.key for job in jobs if job.key.tenant == tenant and job.request.owner == owner}

    async def settled(self) -> None:
        """Wait until nothing runs."""
        while self._running:
            await asyncio.wait([task for _, task in self._running.values()])

    async def close(self) -> None:
        """Start nothing more, give running jobs a moment, and end them. The store must still be open."""
        self._writer.is_closing = True
        tasks = [task for _, task in self._running.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=_MOMENT)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _forget(self, tenant: str, conversation: str | None) -> None:
        """End what runs for a conversation, or for all of a tenant."""
        for job, task in list(self._running.values()):
            if job.key.tenant == tenant and conversation in (None, job.key.conversation):
                task.cancel()

    def _task(self, job: Job) -> asyncio.Task[SummaryRecord]:
        """Raises SummarizerError where too many jobs wait."""
        if self._writer.is_closing or len(self._running) >= _CONCURRENT + _QUEUED:
            self._writer.count("dropped")
            raise SummarizerError("busy")
        task = asyncio.create_task(self._writer.write_once(job))
        self._running[job.place] = job, task
        task.add_done_callback(partial(self._end, job.place))
        return task

    def _end(self, place: Place, task: asyncio.Task[SummaryRecord]) -> None:
        """Remember what came of a job."""
        self._running.pop(place, None)
        if task.cancelled():
            return
        error = task.exception()
        self._note_failed(place, error is not None or bool(task.result().rejected))
        if error is not None and not isinstance(error, SummarizerError | StoreTrouble):
            self._writer.count("fault")
            self._writer.telemetry.log.error("summary_failed", exc_info=error)

    def _note_failed(self, place: Place, has_failed: bool) -> None:
        live = self._conversations.of(place[0])
        live.failed_jobs.pop(place[1], None)
        if has_failed:
            put_newest(live.failed_jobs, place[1], None, _FAILED)
        self._conversations.settle(live)


def recent_records(conversations: Conversations, key: Key, first: str) -> tuple[SummaryRecord, ...]:
    """The records that were written or looked up here lately for the job at this place, rejected ones too, oldest
    first: the store may not have them yet."""
    live = conversations.get(key)
    until, records = (0.0, ()) if live is None else live.recent_records.get(first, (0.0, ()))
    return records if monotonic() < until else ()


def _add_recent(conversations: Conversations, job: Job, record: SummaryRecord) -> None:
    """Remember what came of a job; those for people are looked up in the store."""
    if job.kind == "history":
        return
    (key, first), now = job.place, monotonic()
    others = (other for other in recent_records(conversations, key, first) if other.id != record.id)
    live = conversations.of(key)
    live.recent_records = {name: entry for name, entry in live.recent_records.items() if now < entry[0]}
    put_newest(live.recent_records, first, (now + NEAR_SECONDS, (*others, record)[-SUMMARIES:]), _RECENT)
    conversations.settle(live)


@dataclass(eq=False)
class SummaryWriter:
    """Does one job, once over all replicas: takes its lease, asks the summarizer, and stores and charges the answer."""

    settings: Settings
    summarizer: Summarizer
    store: Store
    audit_log: AuditLog
    telemetry: Telemetry
    conversations: Conversations
    _: KW_ONLY
    billed: Sequence[Callable[[Key, Labels, SummaryCost], None]] = ()
    """Are told what each summary has cost."""
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._guarded = GuardedStore(self.store, self.telemetry, "summaries_store")
        budget = self.settings.summary_budget
        self._budget = SpendingLimits(budget, self.store, self.audit_log, self.conversations, self.clock)
        self._lease_seconds = self.settings.summary_timeout + _MARGIN
        self._breakers: LRUCache[str, Breaker] = LRUCache(_OWNERS)
        self._slots = asyncio.Semaphore(_CONCURRENT)
        self.is_closing = False
        """True where no model is asked any more."""
        self.count = partial(self.telemetry.metrics.count, "summaries")
        """Counts an outcome."""

    def fitting(self, job: Job, records: Iterable[SummaryRecord]) -> SummaryRecord | None:
        """The newest record that satisfies the job."""
        settings, now = self.settings, self.clock()
        criteria = criteria_for(settings, self.summarizer, job.request, job.policy, job.prompt.version)
        fitting = [r for r in records if r.kind == job.kind and job.fits(r) and not stale(r, criteria, now)]
        return fitting[-1] if fitting else None

    def obstacle(self, job: Job) -> Literal["", "budget", "paused"]:
        """Why a job could not be done now, as an outcome that is counted; empty where it could."""
        if self._budget.is_used_up(job.key):
            return "budget"
        is_paused = self._breaker(job).is_paused or self._guarded.is_paused
        return "paused" if is_paused or not self.summarizer.may_ask(job.request) else ""

    async def write_once(self, job: Job) -> SummaryRecord:
        """The record, written here or by the replica that holds the lease. Raises SummarizerError, StoreTrouble."""
        waited, pause = 0.0, _SOONEST
        name = f"{'summary' if job.kind == 'compaction' else job.kind}:{job.first}"
        while waited <= self._lease_seconds + _LATEST:  # after that every earlier lease has expired
            async with self._slots:
                lease = await self._ask("lease", lambda store: store.lease(job.key, name, self._lease_seconds))
                if lease is not None:
                    return await self._write_alone(job, lease)
            await asyncio.sleep(pause)
            waited, pause = waited + pause, min(2 * pause, _LATEST)
        self.count("failed")
        raise SummarizerError("timeout")

    async def _write_alone(self, job: Job, lease: Lease) -> SummaryRecord:
        """The record, where this replica holds the lease; an earlier holder may have written it."""
        try:
            if job.kind == "history":
                records = tuple(await self._ask("summaries", lambda store: store.summaries(job.key)))
            else:
                memory = await self._ask("memory", lambda store: store.memory(job.key, [job.first]))
                records = (*job.records, *recent_records(self.conversations, *job.place), *memory.summaries)
            record = self.fitting(job, records)
            if record is None:
                return await self._write(job, lease, records)
            self.count("found")
            _add_recent(self.conversations, job, record)
            return record
        finally:
            with suppress(StoreTrouble, TimeoutError):  # it expires by itself
                async with asyncio.timeout(_MOMENT):
                    await self.store.release(job.key, lease)

    async def _write(self, job: Job, lease: Lease, records: Sequence[SummaryRecord]) -> SummaryRecord:
        """Ask the summarizer, check its answer, and store the record, used or rejected."""
        breaker, started = self._breaker(job), asyncio.get_running_loop().time()
        if self.is_closing or not breaker.admits():
            self.count("paused")
            raise SummarizerError("paused")
        with job.conversation.carried.held():
            draft, request = await in_thread(write_request, job, records, self.settings.summary_tokens)
        answer = await self._answer(job, request, breaker)
        with job.conversation.carried.held():
            record = await in_thread(record_of, job, draft, answer, request.most, self.clock())
        if record.rejected:  # a model whose answers are of no use is not better than one that gives none
            breaker.failed(record.rejected)
        else:
            breaker.succeeded()
        has_lease = await self._put(job, record, lease)
        milliseconds = round((asyncio.get_running_loop().time() - started) * 1000)
        details: Details = {"id": record.id, "model": record.model, "ms": milliseconds}
        if has_lease:
            _add_recent(self.conversations, job, record)
        if not has_lease:
            self._note(job, "fenced", record.spent, {**details, "reason": "fenced"})
        elif record.rejected:
            self._note(job, "rejected", record.spent, {**details, "reason": record.rejected})
        else:
            origin: Details = {"prompt": record.prompt, "generation": record.generation}
            sizes: Details = {"before": record.tokens_before, "after": record.tokens_after}
            self._note(job, "made", record.spent, {**details, **origin, **sizes})
        await self._charge(job, record.spent)
        return record

    async def _answer(self, job: Job, request: ModelRequest, breaker: Breaker) -> GeneratedText:
        """The summarizer's answer, within the budget. Raises SummarizerError, StoreTrouble."""
        await self.summarizer.look_up(request)
        estimate = self.summarizer.estimate(request)
        purses = await self._budget.reserve(job.key, estimate)
        if purses is None:
            self.count("budget")
            raise SummarizerError("budget")
        self.audit_log.note(job.key, f"{job.event}.wanted", kind=job.kind, **job.details())
        try:
            answer = await self.summarizer.write(request)
        except SummarizerError as error:
            breaker.failed(error.reason)
            self._note(job, "failed", error.spent, {"reason": error.reason})
            await self._charge(job, error.spent)
            await self._budget.settle(purses, estimate, error.charged)
            raise
        await self._budget.settle(purses, estimate, answer.charged)
        return answer

    async def _put(self, job: Job, record: SummaryRecord, lease: Lease) -> bool:
        """Store a record; False where the lease has passed on. One that the store could not take, not even at a second
        try, counts in this process."""
        for pause in (0.0, _AGAIN):
            try:
                await asyncio.sleep(pause)
                return await self.store.put_summary(job.key, record, lease)
            except StoreTrouble:
                self.telemetry.metrics.store_trouble("put_summary")
        return True

    async def _charge(self, job: Job, spent: SummaryCost) -> None:
        """Add a cost to the conversation that caused it."""
        if spent == SummaryCost():
            return
        for bill in self.billed:
            bill(job.key, job.labels, spent)
        try:
            await self.store.spend(job.key, job.kind, spent)
        except StoreTrouble:
            self.telemetry.metrics.store_trouble("spend")

    async def _ask(self, operation: str, question: Callable[[Store], Awaitable[T]]) -> T:
        """The store's answer. Raises StoreTrouble, at once while the store is left alone."""
        outcome = "paused" if self._guarded.is_paused else "store_trouble"
        try:
            return await self._guarded.ask(operation, question)
        except StoreTrouble:
            self.count(outcome)
            raise

    def _breaker(self, job: Job) -> Breaker:
        """The breaker for the credential that the summarizer is asked with: one that fails pauses no other."""
        owner = "" if all(each.key_env for each in self.settings.summarizers) else job.request.owner
        if owner not in self._breakers:
            self._breakers[owner] = reported_breaker("summarizer", self.telemetry, self._lease_seconds, owner=owner)
        return self._breakers[owner]

    def _note(self, job: Job, outcome: str, spent: SummaryCost, details: Details) -> None:
        self.count(outcome)
        name = f"{job.event}.{'failed' if outcome == 'fenced' else outcome}"
        tokens = spent.prompt + spent.completion
        bill: Details = {"dollars": spent.dollars} if spent.known_dollars is not None else {"price": "unknown"}
        self.audit_log.note(job.key, name, kind=job.kind, **details, **job.span, tokens=tokens, **bill)
