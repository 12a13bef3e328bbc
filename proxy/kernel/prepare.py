"""prepare(): from the bytes a client sent to the bytes that go upstream, and the headers that say what happened.

Each request is served in its own mode; where the settings turn all of them off, `Bypass` in outgoing.py stands in the
place of this.

Laws
  Fail open: whatever goes wrong here, the client's own bytes are forwarded; a header, a log line and a counter say so.
  Store trouble is not such a failure: the plan is derived from replay alone, and comes out the same.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from msgspec import structs

from policies.dialects import DIALECTS, Reply, TooManyError
from policies.dialects.overflow import Overflow
from policies.model.memory import StepRecord
from policies.money.bills import RequestBill
from policies.restore import ReplyInProgress
from proxy.addons.billing.billing import Billing
from proxy.catalog.price_book import PriceBook
from proxy.config import Settings
from proxy.errors import ApiError, not_planned
from proxy.kernel.acceptance import Acceptance, is_underivable
from proxy.kernel.cold import ColdProcess
from proxy.kernel.outgoing import in_arm, rendered_body, retried, unchanged
from proxy.kernel.planning import Planner, prefix_outcome, reply_headers, step_record
from proxy.kernel.request_parser import RequestParser
from proxy.kernel.warnings import ReplyWarnings, warning_header
from proxy.memory.cached import CachedStore, StoreWriter
from proxy.requests import ClientRequest, PlannedRequest, ReplyRound, UpstreamRequest
from proxy.summaries.background import BackgroundWriters, adopted_digests
from proxy.summaries.services import Waiting
from proxy.telemetry import Telemetry


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
        billing: Billing,
        price_book: PriceBook,
    ) -> None:
        self._settings = settings
        self._parser = parser
        self._store = store
        self._telemetry = telemetry
        self._writers = writers
        self._clock = clock = clock or time.time
        self._cold = cold
        self._planner = Planner(settings, parser, store, writer, writers, clock, cold, price_book=price_book)
        self._acceptance = acceptance
        self._billing = billing
        self._holdout = billing.holdout
        self._warnings = ReplyWarnings(telemetry, self._planner.context_tokens_of)

    async def prepare(self, client_request: ClientRequest, waiting: Waiting | None = None) -> UpstreamRequest:
        """The request that goes upstream. Raises ApiError where a stale summary is to be an error, and nothing else."""
        match client_request.mode:
            case "on":
                return await self._fail_open(client_request, self._compacted(client_request, waiting))
            case "observe":
                return await self._fail_open(client_request, self._observed(client_request))
            case "off":
                return _bypassed(client_request)

    async def preview(self, client_request: ClientRequest) -> UpstreamRequest:
        if client_request.mode == "off":
            return _bypassed(client_request)
        upstream_request = await self._fail_open(client_request, self._previewed(client_request))
        if client_request.mode == "on" or upstream_request.body is client_request.body:
            return upstream_request
        headers = {**upstream_request.headers, "x-narrows-mode": "observed"}
        return UpstreamRequest(client_request, client_request.body, headers)

    def reply(self, upstream_request: UpstreamRequest, around: Callable[[Reply], Reply]) -> Reply:
        rounds = self._settings.recall_rounds if upstream_request.recalls else None
        reply = around(DIALECTS[upstream_request.client_request.dialect].reply(rounds))
        return self._acceptance.reader(reply) if upstream_request.planned is not None else reply

    async def next_round(self, upstream_request: UpstreamRequest, reply: Reply, choice: int) -> UpstreamRequest:
        """The request of the next round: what the client sent, the recall calls of the model, and the answers."""
        client_request, first, result = upstream_request.client_request, upstream_request.planned, reply.result(choice)
        assert first is not None
        in_progress = ReplyInProgress(result.text, result.rounds)
        try:
            following = await self._compacted(client_request, in_progress=in_progress, first=first)
        except Exception as error:  # law 6 again: the model gets its answer all the same
            self._telemetry.log.error("failed_open", error=type(error).__name__, exc_info=True)
            following = await self._unplanned(upstream_request, first, in_progress)
        # no header of the reply can say it any more
        self._telemetry.metrics.count("prefix", following.headers["x-narrows-prefix"])
        count = await self._parser.counter(first.context.request.model)
        spent = max(count(result.text), reply.completion if len(reply.over) + len(reply.pending) == 1 else 0)
        body = DIALECTS[client_request.dialect].recall.next_round(following.body, spent)
        return structs.replace(following, body=body, spent=spent, continues=upstream_request)

    def without_marks(self, upstream_request: UpstreamRequest) -> UpstreamRequest:
        """The same request without cache marks of ours."""
        planned, spent = upstream_request.planned, upstream_request.spent
        assert planned is not None  # else there are none
        body, edits = rendered_body(planned, marked=False), planned.plan.edits
        if spent is not None:
            body = planned.context.dialect.recall.next_round(body, spent)
        headers = {**upstream_request.headers, "x-narrows-mode": "compacted" if edits else "untouched"}
        warnings = [headers.get("x-narrows-warning", ""), "marks-refused"]
        return structs.replace(upstream_request, body=body, marks="", headers=headers | warning_header(warnings))

    def learn_refused_marks(self, upstream_request: UpstreamRequest) -> None:
        """The upstream took the request without our marks, and not with them: this model gets none any more."""
        self._telemetry.log.warning("marks_refused", field=upstream_request.marks)
        self._planner.refuse_marks(upstream_request)

    def may_overflow(self, upstream_request: UpstreamRequest) -> bool:
        return self._planner.may_overflow(upstream_request)

    async def compact_harder(self, upstream_request: UpstreamRequest, overflow: Overflow) -> UpstreamRequest | None:
        """The request of the first round, smaller: what was decided for it before counts no more."""
        planned = upstream_request.planned
        if planned is None or not upstream_request.may_change:
            return None
        try:
            self._planner.learn_window(upstream_request, overflow)
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
        client_request = structs.replace(upstream_request.client_request, mode="on")
        planned = await self._planner.plan(client_request)
        compacted = await self._compacted_as_planned(planned) if planned is not None else None
        if compacted is None or compacted.tokens_sent >= upstream_request.tokens_sent:
            return None
        return retried(upstream_request, in_arm(compacted, "left"))

    async def remember_recalls(self, upstream_request: UpstreamRequest, reply: Reply, choice: int) -> None:
        """Store the recall exchange of a choice, or that there is none, before the client has all of the reply."""
        result, planned = reply.result(choice), upstream_request.planned
        if upstream_request.recalls and planned is not None:
            await self._planner.exchanges.remember(planned, result)
            self._telemetry.metrics.count("recalls", "beside", by=sum(len(r.calls) for r in result.rounds if r.places))

    async def answered(
        self, upstream_request: UpstreamRequest, status: int, retry_after: str | None
    ) -> UpstreamRequest:
        client_request, planned = upstream_request.client_request, upstream_request.planned
        if planned is not None and 200 <= status < 300 and not client_request.is_accepted:
            received = planned.context.received
            self._parser.keep(client_request.dialect, received, client_request.tenant, client_request.conversation)
        return await self._acceptance.answered(upstream_request, status, retry_after)

    async def record(self, upstream_request: UpstreamRequest, reply: Reply, status: int) -> None:
        planned = upstream_request.planned
        if planned is None or not 200 <= status < 300:
            return
        self._acceptance.replied(planned, reply)
        if reply.usage is not None:
            self._planner.learn_from_usage(planned, upstream_request.tokens_sent, reply.usage.prompt)
            if sign := self._planner.caches.note(upstream_request, reply.usage):
                model, upstream = planned.context.request.model, upstream_request.client_request.upstream
                self._telemetry.log.warning("cache_differs", sign=sign, model=model, upstream=upstream)

    def bill(self, rounds: Sequence[ReplyRound]) -> RequestBill | None:
        upstream = rounds[0].request.client_request.upstream
        return self._billing.request(rounds, lambda model: self._planner.prices_of(model, upstream))

    async def close(self) -> None:
        await self._cold.close()
        await self._store.close()

    async def _fail_open(self, client_request: ClientRequest, prepared: Awaitable[UpstreamRequest]) -> UpstreamRequest:
        """What was prepared; the client's own bytes where that fails."""
        began = time.perf_counter()
        try:
            upstream_request = await prepared
        except ApiError:
            raise
        except TooManyError as error:
            self._telemetry.log.warning("too_many", what=error.what, limit=error.limit)
            self._telemetry.metrics.count("too_many", error.what)
            upstream_request = unchanged(client_request, "untouched", "bypassed")
            warning = warning_header([f"too-many-{error.what}"])
            upstream_request = structs.replace(upstream_request, headers={**upstream_request.headers, **warning})
        except Exception as error:  # law 6: our trouble is never the client's
            self._telemetry.log.error("failed_open", error=type(error).__name__, exc_info=True)
            upstream_request = unchanged(client_request, "failed-open", "checkpoint:failed-open")
        ms = f"{(time.perf_counter() - began) * 1000:.1f}"
        return structs.replace(upstream_request, headers={**upstream_request.headers, "x-narrows-ms": ms})

    async def _compacted(
        self,
        client_request: ClientRequest,
        waiting: Waiting | None = None,
        in_progress: ReplyInProgress | None = None,
        first: PlannedRequest | None = None,
    ) -> UpstreamRequest:
        """The request that goes upstream, in the arm of a holdout where there is one."""
        holdout = self._holdout if first is None and self._holdout.share else None
        planned = await self._planner.plan(client_request, in_progress, first, holdout)
        needs_room = planned is not None and holdout is not None and self._planner.needs_room(planned)
        if planned is not None and planned.context.client_request.mode == "observe":
            if not needs_room and not self._planner.was_compacted(planned):
                return self._held_out(planned)
            planned, needs_room = await self._planner.plan(client_request), True
        if planned is None:
            return await self._unread(client_request)
        compacted = await self._compacted_as_planned(planned, waiting, first)
        return compacted if holdout is None else in_arm(compacted, "left" if needs_room else "on")

    async def _compacted_as_planned(
        self, planned: PlannedRequest, waiting: Waiting | None = None, first: PlannedRequest | None = None
    ) -> UpstreamRequest:
        """Let background writers have their turn, claim what the history alone does not decide, remember."""
        if planned.plan.shed and not self._planner.fits(planned):
            raise not_planned()
        left_out = self._acceptance.asks_for_more(planned) and not await self._acceptance.is_verified(planned)
        if not left_out:
            planned = await self._writers.after_plan(planned, self._planner.replan, waiting)
        if first is None:
            if planned.plan.state.stale:
                self._telemetry.metrics.count("stale_summaries", planned.plan.state.stale)
            self._writers.meet_stale(planned)
        if is_underivable(planned):
            planned = await self._derived(planned) if left_out else await self._claimed(planned)
        return structs.replace(self._sendable(planned), left_out=left_out)

    def _sendable(self, planned: PlannedRequest) -> UpstreamRequest:
        """The request as it goes upstream."""
        context, client_request = planned.context, planned.context.client_request
        summary = self._writers.report(planned)
        record, headers = self._record_and_headers(planned)
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
        )

    def _record_and_headers(self, planned: PlannedRequest) -> tuple[StepRecord, dict[str, str]]:
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
        restored = await self._planner.exchanges.restore(
            client_request, context.live, context.received, context.exchanges, in_progress
        )
        dialect, request = context.dialect, restored.parsed.request
        tool = dialect.recall.tool(request, self._settings.recall == "always")
        consent = dialect.consent(request) if self._settings.drop_bound_thinking else None
        body = dialect.joined(request, {}, tool, consent.change if consent else None)
        headers = {**upstream_request.headers, "x-narrows-prefix": "checkpoint:failed-open"}
        answered = structs.replace(first, context=structs.replace(context, answers=restored.answers))
        return structs.replace(upstream_request, body=body, headers=headers, record=None, planned=answered, marks="")

    async def _previewed(self, client_request: ClientRequest) -> UpstreamRequest:
        if (held_out := await self._in_holdout(client_request)) is not None:
            headers = {**self._record_and_headers(held_out)[1], "x-narrows-mode": "observed"}
            return UpstreamRequest(client_request, client_request.body, headers)
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
        _, headers = self._record_and_headers(planned)
        body = rendered_body(planned, marked=False)  # they are no tokens
        if client_request.implied and body.startswith(opening):
            body = b"{" + body.removeprefix(opening)
        return UpstreamRequest(client_request, body, headers, planned.context.consent.headers)

    async def _unread(self, client_request: ClientRequest) -> UpstreamRequest:
        """A request that is no chat, or may not be edited: whatever it is, it costs what its model does."""
        named, is_accepted = client_request.conversation, client_request.is_accepted
        dialect, body, tenant = client_request.dialect, client_request.body, client_request.tenant
        parsed = await self._parser.parse(dialect, body, tenant, named, is_accepted=is_accepted)
        upstream_request = unchanged(client_request, "untouched", "bypassed")
        return structs.replace(upstream_request, model=parsed.request.model) if parsed else upstream_request

    async def _observed(self, client_request: ClientRequest) -> UpstreamRequest:
        """The client's own bytes, and what would have become of them: planned and remembered in this process, with no
        effect on the store or on anything upstream."""
        planned = await self._planner.plan(client_request)
        return await self._unread(client_request) if planned is None else self._only_observed(planned)

    async def _in_holdout(self, client_request: ClientRequest) -> PlannedRequest | None:
        """The plan of a request that passes as the client wrote it; None for one that does not."""
        if not self._holdout.share or client_request.mode != "on":
            return None
        planned = await self._planner.plan(client_request, holdout=self._holdout)
        if planned is None or planned.context.client_request.mode != "observe":
            return None
        return None if self._planner.needs_room(planned) or self._planner.was_compacted(planned) else planned

    def _held_out(self, planned: PlannedRequest) -> UpstreamRequest:
        """As if it were only observed; but where the upstream may find it too long, it is compacted then, and its reply
        may hold recalls."""
        held_out = in_arm(self._only_observed(planned), "holdout")
        return structs.replace(held_out, recalls=self._planner.may_overflow(held_out))

    def _only_observed(self, planned: PlannedRequest) -> UpstreamRequest:
        context, client_request = planned.context, planned.context.client_request
        record, headers = self._record_and_headers(planned)
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


def _bypassed(client_request: ClientRequest) -> UpstreamRequest:
    upstream_request = unchanged(client_request, "bypassed", "bypassed")
    return structs.replace(upstream_request, headers={**upstream_request.headers, "x-narrows-ms": "0.0"})
