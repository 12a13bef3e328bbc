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
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Literal, TypeVar

from cachetools import LRUCache, TTLCache

from policies.model.summary_record import Criteria, SummaryCost, SummaryRecord, stale
from policies.presets import AS_CONFIGURED, WritingOptions
from proxy.addons.billing.billing import Billing
from proxy.breaker import Breaker, reported_breaker
from proxy.config import Settings
from proxy.event_loop import in_thread
from proxy.memory import SUMMARIES, Key, Lease, Store, StoreTrouble
from proxy.memory.audit_log import AuditLog
from proxy.memory.breaker import GuardedStore
from proxy.memory.cached import NEAR_SECONDS
from proxy.memory.conversation import summaries_weight
from proxy.memory.forgetting import ForgetRegistry, forget_in
from proxy.summaries.clients import ModelRequest, WriteRequest
from proxy.summaries.jobs import Details, Draft, Job, Place, SummaryJob, SummaryPrompt
from proxy.summaries.payments import SpendingLimits
from proxy.summaries.summarizer import GeneratedText, Summarizer, SummarizerError
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
_CACHE_BYTES = 32 * 2**20
_NAMES = 4096

State = Literal["", "pending", "failed"]
T = TypeVar("T")


class RejectedError(SummarizerError):
    """The answer must not be used; `reason` is the word of `policies.text.summary_checks`."""


class SummaryMaker:
    """Runs jobs, and caches their records."""

    def __init__(
        self,
        settings: Settings,
        summarizer: Summarizer,
        store: Store,
        audit_log: AuditLog,
        telemetry: Telemetry,
        forgets: ForgetRegistry,
        clock: Callable[[], float] = time.time,
        *,
        billing: Billing,
    ) -> None:
        self._settings = settings
        self._billing = billing
        self._summarizer = summarizer
        self._store = store
        self._guarded = GuardedStore(store, telemetry, "summaries_store")
        self._audit_log = audit_log
        self._telemetry = telemetry
        self._clock = clock
        self._budget = SpendingLimits(settings.summary_budget, store, audit_log, telemetry, clock)
        self._lease_seconds = settings.summary_timeout + _MARGIN
        self._breakers: LRUCache[str, Breaker] = LRUCache(_NAMES)
        self._slots = asyncio.Semaphore(_CONCURRENT)
        self._running: dict[Place, asyncio.Task[SummaryRecord]] = {}
        self._jobs: dict[Place, Job] = {}
        """Those that are running."""
        self._failed: LRUCache[Place, bool] = LRUCache(_NAMES)
        self._recent: TTLCache[Place, tuple[SummaryRecord, ...]] = TTLCache(
            _CACHE_BYTES, NEAR_SECONDS, getsizeof=summaries_weight
        )
        self._closing = False
        forgets.register(self._forget)

    def criteria(
        self, dialect: str, model: str, policy: str, prompt: SummaryPrompt, writing: WritingOptions = AS_CONFIGURED
    ) -> Criteria:
        """What a record must have been written under to count now."""
        options = writing.stale.over(self._settings.stale)
        required = self._summarizer.models(dialect, model, writing) if options.same_model else ()
        return Criteria(policy, prompt.version, required, options.ttl or self._settings.summary_ttl)

    def start(self, job: Job) -> bool:
        """Run a job in the background, unless there is a record for it; whether it is running. Never raises."""
        place = job.place
        if place in self._running:
            return True
        if self._fitting(job, (*job.records, *self.recent(*place))):
            return False
        is_used_up = self._budget.is_used_up(job.key)
        if is_used_up or self._breaker(job).is_paused or self._guarded.is_paused or not self.may_ask(job):
            self._failed[place] = True
            self._count("budget" if is_used_up else "paused")
            return False
        with suppress(SummarizerError):
            self._task(job)
        return place in self._running

    async def wait(self, key: Key, first: str, seconds: float) -> None:
        """Wait until the job at this place is over, here or in another replica, at most so many seconds."""
        task = self._running.get((key, first))
        if task is not None:
            await asyncio.wait([task], timeout=seconds)

    def state(self, key: Key, first: str) -> State:
        """The state of the job at this place; empty where none ran. One that has failed stays so until one succeeds."""
        if (key, first) in self._failed:
            return "failed"
        return "pending" if (key, first) in self._running else ""

    def recent(self, key: Key, first: str) -> tuple[SummaryRecord, ...]:
        """The records of this place that are cached, rejected ones too, oldest first."""
        return self._recent.get((key, first), ())

    def may_ask(self, job: Job) -> bool:
        """Whether any model may be asked now with the credentials that pay for a job."""
        return self._summarizer.may_ask(ModelRequest(**job.request_fields))

    async def history(self, job: SummaryJob) -> SummaryRecord:
        """A summary for people of exactly these messages: the one that counts, or a new one.

        Raises SummarizerError, also as RejectedError, and StoreTrouble.
        """
        job = replace(job, kind="history")
        task = self._running.get(job.place) or self._task(job)
        await asyncio.wait([task])  # a caller that leaves does not end it for the others
        if task.cancelled():
            raise SummarizerError("stopped")
        record = task.result()
        if record.rejected:
            raise RejectedError(record.rejected)
        return record

    def _forget(self, tenant: str, conversation: str | None) -> None:
        """End what runs for a conversation, or for all of a tenant, and drop what is cached of it."""

        def is_meant(key: Key) -> bool:
            return key.tenant == tenant and conversation in (None, key.conversation)

        for place in [place for place, job in self._jobs.items() if is_meant(job.key)]:
            self._running[place].cancel()
        forget_in(self._failed, tenant, conversation)
        for place, records in list(self._recent.items()):  # also digests, cached for all conversations of a tenant
            if any(is_meant(Key(place[0].tenant, record.conversation)) for record in records):
                self._recent.pop(place, None)

    def written_for(self, tenant: str, owner: str) -> set[Key]:
        """The conversations of a tenant of which something is being written for this owner."""
        return {job.key for job in self._jobs.values() if job.key.tenant == tenant and job.owner == owner}

    async def settled(self) -> None:
        """Wait until nothing runs."""
        while self._running:
            await asyncio.wait(self._running.values())

    async def close(self) -> None:
        """Start nothing more, give running jobs a moment, and end them. The store must still be open."""
        self._closing = True
        tasks = list(self._running.values())
        if tasks:
            await asyncio.wait(tasks, timeout=_MOMENT)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _task(self, job: Job) -> asyncio.Task[SummaryRecord]:
        """Raises SummarizerError where too many jobs wait."""
        if self._closing or len(self._running) >= _CONCURRENT + _QUEUED:
            self._count("dropped")
            raise SummarizerError("busy")
        task = asyncio.create_task(self._run(job))
        self._running[job.place], self._jobs[job.place] = task, job
        task.add_done_callback(partial(self._ended, job.place))
        return task

    def _ended(self, place: Place, task: asyncio.Task[SummaryRecord]) -> None:
        self._running.pop(place, None)
        self._jobs.pop(place, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is None and not task.result().rejected:
            self._failed.pop(place, None)
        else:
            self._failed[place] = True
        if error is not None and not isinstance(error, SummarizerError | StoreTrouble):
            self._count("fault")
            self._telemetry.log.error("summary_failed", exc_info=error)

    async def _run(self, job: Job) -> SummaryRecord:
        """The record, written here or by the replica that holds the lease. Raises SummarizerError, StoreTrouble."""
        waited, pause = 0.0, _SOONEST
        name = f"{'summary' if job.kind == 'compaction' else job.kind}:{job.first}"
        while waited <= self._lease_seconds + _LATEST:  # after that every earlier lease has expired
            async with self._slots:
                lease = await self._ask("lease", lambda store: store.lease(job.key, name, self._lease_seconds))
                if lease is not None:
                    return await self._run_alone(job, lease)
            await asyncio.sleep(pause)
            waited, pause = waited + pause, min(2 * pause, _LATEST)
        self._count("failed")
        raise SummarizerError("timeout")

    async def _run_alone(self, job: Job, lease: Lease) -> SummaryRecord:
        """The record, where this replica holds the lease; an earlier holder may have written it."""
        try:
            if job.kind == "history":
                records = tuple(await self._ask("summaries", lambda store: store.summaries(job.key)))
            else:
                memory = await self._ask("memory", lambda store: store.memory(job.key, [job.first]))
                records = (*job.records, *self.recent(*job.place), *memory.summaries)
            record = self._fitting(job, records)
            if record is None:
                return await self._write(job, lease, records)
            self._count("found")
            self._cache(job, record)
            return record
        finally:
            with suppress(StoreTrouble, TimeoutError):  # it expires by itself
                async with asyncio.timeout(_MOMENT):
                    await self._store.release(job.key, lease)

    async def _write(self, job: Job, lease: Lease, records: Sequence[SummaryRecord]) -> SummaryRecord:
        """Ask the summarizer, check its answer, and store the record, used or rejected."""
        breaker, started = self._breaker(job), asyncio.get_running_loop().time()
        if self._closing or not breaker.admits():
            self._count("paused")
            raise SummarizerError("paused")
        with job.conversation.carried.held():
            draft, request = await in_thread(self._request, job, records)
        await self._summarizer.look_up(request)
        reservation = await self._budget.reserve(job.key, self._summarizer.estimate(request))
        if reservation is None:
            self._count("budget")
            raise SummarizerError("budget")
        self._audit_log.note(job.key, f"{job.event}.wanted", kind=job.kind, **job.details())
        try:
            answer = await self._summarizer.write(request)
        except SummarizerError as error:
            breaker.failed(error.reason)
            self._note(job, "failed", error.spent, {"reason": error.reason})
            await self._charge(job, error.spent)
            await self._budget.settle(reservation, error.charged)
            raise
        await self._budget.settle(reservation, answer.charged)
        with job.conversation.carried.held():
            record = await in_thread(self._record, job, draft, answer, request.most)
        if record.rejected:  # a model whose answers are of no use is not better than one that gives none
            breaker.failed(record.rejected)
        else:
            breaker.succeeded()
        counts = await self._put(job, record, lease)
        if counts is None:
            await asyncio.sleep(_AGAIN)
            counts = await self._put(job, record, lease)
        milliseconds = round((asyncio.get_running_loop().time() - started) * 1000)
        details: Details = {"id": record.id, "model": record.model, "ms": milliseconds}
        if counts is not False:  # the lease has not passed on; a record that the store could not take counts here
            self._cache(job, record)
        if counts is False:
            self._note(job, "fenced", record.spent, {**details, "reason": "fenced"})
        elif record.rejected:
            self._note(job, "rejected", record.spent, {**details, "reason": record.rejected})
        else:
            origin: Details = {"prompt": record.prompt, "generation": record.generation}
            sizes: Details = {"before": record.tokens_before, "after": record.tokens_after}
            self._note(job, "made", record.spent, {**details, **origin, **sizes})
        await self._charge(job, record.spent)
        return record

    def _request(self, job: Job, records: Sequence[SummaryRecord]) -> tuple[Draft, WriteRequest]:
        """The material, and what is asked of the summarizer. Takes time that grows with the history."""
        draft, most = job.draft(records), job.most(self._settings.summary_tokens)
        instructions = job.prompt.filled(most)
        request = WriteRequest(
            instructions=instructions,
            text=draft.text,
            tokens=job.count(instructions) + job.count(draft.text),
            most=most,
            writing=job.writing,
            **job.request_fields,
        )
        return draft, request

    def _record(self, job: Job, draft: Draft, answer: GeneratedText, most: int) -> SummaryRecord:
        """The record of an answer. Takes time that grows with the history."""
        previous, content = draft.previous, job.content(answer.text.strip(), draft, most)
        before = sum(block.tokens + block.frame for block in draft.blocks)
        after = job.count(content)
        rejected = job.verdict(answer.text, answer.end, draft, content, before, after, most)
        record = SummaryRecord(
            id="",
            conversation=job.key.conversation,
            first=job.first,
            last=job.last,
            sources=draft.messages,
            model=answer.model,
            content="" if rejected else content,
            tokens_before=before,
            tokens_after=0 if rejected else after,
            created_at=self._clock(),
            policy=job.policy,
            prompt=job.prompt.version,
            kind=job.kind,
            generation=job.want.generation if isinstance(job, SummaryJob) and previous else 1,
            previous=previous.id if previous else "",
            rejected=rejected,
            owner=job.owner,
            spent=answer.spent,
            lines=draft.lines,
        )
        name = (job.key, record.first, record.last, record.generation, record.policy, record.prompt, record.kind)
        answered = (record.model, record.content, record.rejected, record.created_at)
        return replace(record, id=sha256(repr((name, answered)).encode("utf-8", "surrogatepass")).hexdigest()[:16])

    async def _put(self, job: Job, record: SummaryRecord, lease: Lease) -> bool | None:
        """Whether the record was stored: False where the lease has passed on, None where the store is in trouble."""
        try:
            return await self._store.put_summary(job.key, record, lease)
        except StoreTrouble:
            self._telemetry.metrics.store_trouble("put_summary")
            return None

    async def _charge(self, job: Job, spent: SummaryCost) -> None:
        """Add a cost to the conversation that caused it."""
        if spent == SummaryCost():
            return
        self._billing.summary(job.key, job.labels, spent)
        try:
            await self._store.spend(job.key, job.kind, spent)
        except StoreTrouble:
            self._telemetry.metrics.store_trouble("spend")

    def _fitting(self, job: Job, records: Iterable[SummaryRecord]) -> SummaryRecord | None:
        """The newest record that satisfies the job."""
        criteria, now = self.criteria(job.dialect, job.model, job.policy, job.prompt, job.writing), self._clock()
        fitting = [r for r in records if r.kind == job.kind and job.fits(r) and not stale(r, criteria, now)]
        return fitting[-1] if fitting else None

    def _cache(self, job: Job, record: SummaryRecord) -> None:
        if job.kind != "history":
            others = (other for other in self.recent(*job.place) if other.id != record.id)
            self._recent[job.place] = (*others, record)[-SUMMARIES:]

    async def _ask(self, operation: str, question: Callable[[Store], Awaitable[T]]) -> T:
        """The store's answer. Raises StoreTrouble, at once while the store is left alone."""
        outcome = "paused" if self._guarded.is_paused else "store_trouble"
        try:
            return await self._guarded.ask(operation, question)
        except StoreTrouble:
            self._count(outcome)
            raise

    def _breaker(self, job: Job) -> Breaker:
        """The breaker for the credential that the summarizer is asked with: one that fails pauses no other."""
        owner = "" if all(each.key_env for each in self._settings.summarizers) else job.owner
        if owner not in self._breakers:
            self._breakers[owner] = reported_breaker("summarizer", self._telemetry, self._lease_seconds, owner=owner)
        return self._breakers[owner]

    def _note(self, job: Job, outcome: str, spent: SummaryCost, details: Details) -> None:
        self._count(outcome)
        name = f"{job.event}.{'failed' if outcome == 'fenced' else outcome}"
        tokens = spent.prompt + spent.completion
        bill: Details = {"dollars": spent.dollars} if spent.known_dollars is not None else {"price": "unknown"}
        self._audit_log.note(job.key, name, kind=job.kind, **details, **job.span, tokens=tokens, **bill)

    def _count(self, outcome: str) -> None:
        self._telemetry.metrics.count("summaries", outcome)
