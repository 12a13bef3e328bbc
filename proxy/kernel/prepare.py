"""prepare(): from the bytes a client sent to the bytes that go upstream, and the headers that say what happened.

The modes of requests, the holdout and failing open stand around this: modes.py.

Law
  Store trouble is not such a failure: the plan is derived from replay alone, and comes out the same.
"""

import time
from collections.abc import Callable
from dataclasses import replace

from msgspec import structs

from policies.dialects import DIALECTS, Reply
from policies.dialects.overflow import Overflow
from policies.model.edits import Insert
from policies.model.memory import StepRecord
from policies.restore import ReplyInProgress, reply_digest
from proxy.config import Settings
from proxy.errors import not_planned
from proxy.kernel.acceptance import Acceptance, is_underivable
from proxy.kernel.cold import ColdProcess
from proxy.kernel.learned import Learned
from proxy.kernel.outgoing import in_arm, rendered_body, retried, unchanged
from proxy.kernel.plan import Planner, prefix_outcome, reply_headers, step_record
from proxy.kernel.understand import Assembler, RequestParser, Understanding
from proxy.kernel.warnings import ReplyWarnings
from proxy.memory.cached import CachedStore, StoreWriter
from proxy.requests import ClientRequest, PlannedRequest, UpstreamRequest
from proxy.summaries.background import BackgroundWriters, Waiting, adopted_digests
from proxy.telemetry import Telemetry
from proxy.upstreams.price_book import PriceBook


class Compactor:
    def __init__(
        self,
        settings: Settings,
        parser: RequestParser,
        store: CachedStore,
        writer: StoreWriter,
        telemetry: Telemetry,
        writers: BackgroundWriters,
        clock: Callable[[], float] | None = None,
        *,
        cold: ColdProcess,
        acceptance: Acceptance,
        price_book: PriceBook,
    ) -> None:
        self._settings = settings
        self._parser = parser
        self._store = store
        self._telemetry = telemetry
        self._writers = writers
        self._clock = clock = clock or time.time
        self._cold = cold
        self._learned = learned = Learned(settings, price_book, clock)
        assembler = Assembler(settings, price_book, learned)
        self._understanding = Understanding(parser, store, assembler, price_book, learned)
        self._planner = Planner(settings, self._understanding, store, writers, clock, cold=cold, learned=learned)
        self._writer = writer
        self._acceptance = acceptance
        self._warnings = ReplyWarnings(telemetry, assembler.context_tokens_of)
        self.plan, self.may_overflow, self.needs_room = self._planner.plan, learned.may_overflow, assembler.needs_room

    async def prepare(self, client_request: ClientRequest, waiting: Waiting | None = None, /) -> UpstreamRequest:
        """The request that goes upstream; of one that only counts, nothing is remembered. Raises ApiError where a stale
        summary is to be an error, and whatever goes wrong."""
        if client_request.only_counts:
            return await self._counted(client_request)
        planned = await self.plan(client_request)
        return await self.unread(client_request) if planned is None else await self.compacted(planned, waiting)

    async def next_round(self, upstream_request: UpstreamRequest, reply: Reply, choice: int) -> UpstreamRequest:
        """The request of the next round: what the client sent, the recall calls of the model, and the answers."""
        client_request, first, result = upstream_request.client_request, upstream_request.planned, reply.result(choice)
        assert first is not None
        in_progress = ReplyInProgress(result.text, result.rounds)
        try:
            planned = await self._planner.plan(client_request, in_progress, first)
            following = await self.compacted(planned, None, first) if planned else await self.unread(client_request)
        except Exception as error:  # law 6 again: the model gets its answer all the same
            self._telemetry.log.error("failed_open", error=type(error).__name__, exc_info=True)
            following = await self._unplanned(upstream_request, first, in_progress)
        # no header of the reply can say it any more
        self._telemetry.metrics.count("prefix", following.headers["x-narrows-prefix"])
        count = await self._parser.counter(first.context.request.model)
        spent = max(count(result.text), reply.completion if len(reply.over) + len(reply.pending) == 1 else 0)
        body = DIALECTS[client_request.dialect].recall.next_round(following.body, spent)
        return structs.replace(following, body=body, spent=spent, continues=upstream_request)

    def learn_refused_marks(self, upstream_request: UpstreamRequest) -> None:
        """The upstream took the request without our marks, and not with them: this model gets none any more."""
        self._telemetry.log.warning("marks_refused", field=upstream_request.marks)
        self._learned.note_refused_marks(upstream_request)

    async def compact_harder(self, upstream_request: UpstreamRequest, overflow: Overflow) -> UpstreamRequest | None:
        """The request of the first round, smaller: what was decided for it before counts no more."""
        planned = upstream_request.planned
        if planned is None or not upstream_request.may_change:
            return None
        try:
            self._learned.note_overflow(upstream_request, overflow)
            if upstream_request.arm == "holdout":
                return await self._taken_out(upstream_request)
            smaller = await self._planner.plan_smaller(planned) if upstream_request.spent is None else None
            if smaller is None:
                return None
            if upstream_request.left_out:
                smaller = await self._derived(smaller)
            if await self._acceptance.is_verified(smaller):
                await self._store.supersede(smaller.context.key, step_record(smaller, self._clock()))
            sendable = structs.replace(self._sendable(smaller), supersedes=True, left_out=upstream_request.left_out)
        except Exception as error:  # law 6: the client gets the upstream's error then
            self._telemetry.log.error("failed_open", error=type(error).__name__, exc_info=True)
            return None
        return retried(upstream_request, structs.replace(sendable, arm=upstream_request.arm))

    async def _taken_out(self, upstream_request: UpstreamRequest) -> UpstreamRequest | None:
        """A request that passed as the client wrote it, and was too long: compacted, as its conversation is from now
        on. None where that does not make it smaller."""
        planned = await self.plan(structs.replace(upstream_request.client_request, is_dry=False))
        compacted = await self.compacted(planned) if planned is not None else None
        if compacted is None or compacted.tokens_sent >= upstream_request.tokens_sent:
            return None
        return retried(upstream_request, in_arm(compacted, "left"))

    async def remember_recalls(self, upstream_request: UpstreamRequest, reply: Reply, choice: int) -> None:
        """Store the recall exchange of a choice, or that there is none, before the client has all of the reply."""
        result, planned = reply.result(choice), upstream_request.planned
        if not upstream_request.recalls or planned is None:
            return
        context = planned.context
        after = context.received.conversation.end_anchor(context.received.conversation.steps - 1)
        digest = reply_digest(result.text, result.call_ids)
        exchange = Insert(after, digest, result.rounds, context.client_request.dialect)
        together = {**context.exchanges, after: (exchange,)} if result.rounds else context.exchanges
        complete = context.exchanges_complete  # else nobody may take these for all
        context.live.add_exchanges(exchange.dialect, after, digest, together, complete=complete)
        if result.rounds:
            await self._writer.store_exchange(context.key, exchange)
        self._telemetry.metrics.count("recalls", "beside", by=sum(len(r.calls) for r in result.rounds if r.places))

    async def answered(self, upstream_request: UpstreamRequest, status: int) -> UpstreamRequest:
        client_request, planned = upstream_request.client_request, upstream_request.planned
        if planned is None or not 200 <= status < 300:
            return upstream_request
        if not client_request.is_accepted:
            received = planned.context.received
            self._parser.keep(client_request.dialect, received, client_request.tenant, client_request.conversation)
        return await self._acceptance.accepted(upstream_request, planned)

    def learn(self, upstream_request: UpstreamRequest, reply: Reply, status: int) -> None:
        planned = upstream_request.planned
        if planned is not None and 200 <= status < 300 and reply.usage is not None:
            self._learned.note_usage(planned, upstream_request.tokens_sent, reply.usage.prompt)
            if sign := self._learned.caches.note(upstream_request, reply.usage):
                model, upstream = planned.context.request.model, upstream_request.client_request.upstream
                self._telemetry.log.warning("cache_differs", sign=sign, model=model, upstream=upstream)

    async def close(self) -> None:
        await self._cold.close()
        await self._store.close()

    async def compacted(
        self, planned: PlannedRequest, waiting: Waiting | None = None, first: PlannedRequest | None = None
    ) -> UpstreamRequest:
        """Let background writers have their turn, claim what the history alone does not decide, remember."""
        if planned.plan.shed and not self._learned.fits(planned):
            raise not_planned()
        left_out = self._acceptance.asks_for_more(planned) and not await self._acceptance.is_verified(planned)
        if not left_out:
            planned = await self._writers.after_plan(planned, self._planner.replan, waiting)
        if first is None:
            if reason := planned.plan.state.use.reason:
                self._telemetry.metrics.count("stale_summaries", reason)
            self._writers.meet_stale(planned)
        if is_underivable(planned):
            planned = await self._derived(planned) if left_out else await self._claimed(planned)
        return structs.replace(self._sendable(planned), left_out=left_out)

    def _sendable(self, planned: PlannedRequest) -> UpstreamRequest:
        """The request as it goes upstream."""
        context, client_request = planned.context, planned.context.client_request
        summary = self._writers.report(planned)
        record, headers = self.record_and_headers(planned)
        if planned.plan.shed:
            if client_request.may_plan:  # else it is counted already
                self._telemetry.shed("time")
            self._telemetry.metrics.count("shed_tokens", by=planned.tokens_sent)
        elif not planned.is_quiet:
            plan_state = planned.plan.state
            context.live.add_planned(context.fingerprint, context.conversation, plan_state, record)
            self._store.conversations.settle(context.live)
        for edit in planned.plan.new:
            self._telemetry.metrics.count("edits", edit.by)
        if summary:
            headers["x-narrows-summary"] = summary
        return UpstreamRequest(
            client_request=client_request,
            body=rendered_body(planned),
            headers=headers | self._warnings.header(planned),
            upstream_headers=context.consent.headers,
            planned=planned,
            record=record,
            recalls=context.tool is not None,
            tokens_sent=planned.tokens_sent,
            marks=context.plan_settings.marks if planned.plan.marks else "",
            may_overflow=self.may_overflow(context, planned.tokens_sent),
        )

    def record_and_headers(self, planned: PlannedRequest) -> tuple[StepRecord, dict[str, str]]:
        """What is remembered of the step, and the headers of its reply."""
        record = step_record(planned, self._clock())
        return record, reply_headers(planned, prefix_outcome(planned, record))

    async def _claimed(self, planned: PlannedRequest) -> PlannedRequest:
        """A step that the history alone does not decide is decided by whoever claims it first."""
        ours = step_record(planned, self._clock())
        first = await self._store.claim(planned.context.key, ours)
        adopted = planned.plan.adopted or bool(adopted_digests(planned.context, planned.plan, planned.memory))
        if first is None and adopted:  # nobody else could know of it: it is adopted another time
            memory = replace(planned.memory, summaries=(), digests={})
        elif first is None or (first.edits, first.dropped, first.shed) == (ours.edits, ours.dropped, ours.shed):
            return planned
        else:
            memory = replace(planned.memory, steps={**planned.memory.steps, first.anchor: first})
        return await self._planner.replan(planned, memory)

    async def _derived(self, planned: PlannedRequest) -> PlannedRequest:
        """The plan that the history alone decides, for a credential that nothing may be claimed for."""
        adopted = planned.plan.adopted or bool(adopted_digests(planned.context, planned.plan, planned.memory))
        if not adopted and planned.plan.reason != "checkpoint:cold":
            return planned
        plan_settings = replace(planned.context.plan_settings, cold=False)
        context = structs.replace(planned.context, plan_settings=plan_settings)
        planned = structs.replace(planned, context=context)
        memory = replace(planned.memory, summaries=(), digests={}) if adopted else planned.memory
        return await self._planner.replan(planned, memory)

    async def _unplanned(
        self, upstream_request: UpstreamRequest, first: PlannedRequest, in_progress: ReplyInProgress
    ) -> UpstreamRequest:
        """A later round where planning fails: what the client sent and the exchange of the reply, nothing shortened."""
        client_request, context = upstream_request.client_request, first.context
        restored, _, answers = await self._understanding.restored(
            client_request, context.live, context.received, context.exchanges, in_progress
        )
        dialect, request = context.dialect, restored.request
        tool = dialect.recall.tool(request, self._settings.recall == "always")
        consent = dialect.consent(request) if self._settings.drop_bound_thinking else None
        body = dialect.joined(request, {}, tool, consent.change if consent else None)
        headers = {**upstream_request.headers, "x-narrows-prefix": "checkpoint:failed-open"}
        answered = structs.replace(first, context=structs.replace(context, answers=answers))
        return structs.replace(upstream_request, body=body, headers=headers, record=None, planned=answered, marks="")

    async def _counted(self, client_request: ClientRequest) -> UpstreamRequest:
        planned = before = None
        opening = b"{" + client_request.implied + b","
        if client_request.implied:  # the member that this body cannot have counts where the request before it had it
            body = opening + client_request.body.lstrip().removeprefix(b"{")
            planned = await self._planner.plan(structs.replace(client_request, body=body))
            before = planned and (planned.previous or planned.context.live.newest)
        if not (before and before.recall):
            planned = await self._planner.plan(client_request)
        if planned is None:
            return unchanged(client_request, "untouched", "bypassed")
        _, headers = self.record_and_headers(planned)
        body = rendered_body(planned, marked=False)  # they are no tokens
        if client_request.implied and body.startswith(opening):
            body = b"{" + body.removeprefix(opening)
        return UpstreamRequest(client_request, body, headers, planned.context.consent.headers)

    async def unread(self, client_request: ClientRequest) -> UpstreamRequest:
        """A request that is no chat, or may not be edited: whatever it is, it costs what its model does."""
        named, is_accepted = client_request.conversation, client_request.is_accepted
        dialect, body, tenant = client_request.dialect, client_request.body, client_request.tenant
        parsed = await self._parser.parse(dialect, body, tenant, named, is_accepted=is_accepted)
        upstream_request = unchanged(client_request, "untouched", "bypassed")
        return structs.replace(upstream_request, model=parsed.request.model) if parsed else upstream_request

    def observed(self, planned: PlannedRequest) -> UpstreamRequest:
        context, client_request = planned.context, planned.context.client_request
        record, headers = self.record_and_headers(planned)
        if not planned.plan.shed:
            context.live.add_planned(context.fingerprint, context.conversation, planned.plan.state, record)
            self._store.conversations.settle(context.live)
        for edit in planned.plan.new:
            self._telemetry.metrics.count("edits", edit.by)
        headers |= {"x-narrows-mode": "observed", **self._warnings.header(planned)}
        sent = planned.tokens_received
        return UpstreamRequest(
            client_request, client_request.body, headers, planned=planned, record=record, tokens_sent=sent
        )
