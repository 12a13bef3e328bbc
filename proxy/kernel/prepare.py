"""prepare(): from the bytes a client sent to the bytes that go upstream, and the headers that say what happened.

The modes of requests, the holdout and failing open stand around this: modes.py. What comes after it: follow_up.py.

Laws
  Store trouble is no failure: the plan is derived from replay alone, and comes out the same.
  Nothing is stored of a request before its upstream has answered 2xx, but for what must be there before its bytes are
  sent: a claimed decision, and one in the place of another. These, and summaries, are for verified credentials only.
  A credential is verified where the upstream last accepted it through this process, or, where this process has not
  heard of it, where the store says that it has sent this conversation: that is noted after a 2xx alone.
  For any other credential a request is planned from its history: nothing is claimed, adopted or begun for it. What was
  decided for the history before stands all the same.
"""

import time
from collections.abc import Callable
from dataclasses import replace

from msgspec import structs

from policies.model.memory import StepRecord
from proxy.config import Settings
from proxy.errors import not_planned
from proxy.identity.credential import CredentialStates
from proxy.kernel.cold import ColdProcess
from proxy.kernel.learned import Learned
from proxy.kernel.outgoing import ReplyWarnings, rendered_body, unchanged
from proxy.kernel.plan import Planner, prefix_outcome, reply_headers, step_record
from proxy.kernel.understand import Assembler, RequestParser, Understanding
from proxy.memory.cached import CachedStore
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
        telemetry: Telemetry,
        writers: BackgroundWriters,
        *,
        states: CredentialStates,
        cold: ColdProcess,
        price_book: PriceBook,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._parser = parser
        self._store = store
        self._telemetry = telemetry
        self._writers = writers
        self._states = states
        self._cold = cold
        self.clock = clock
        self.learned = learned = Learned(settings, price_book, clock)
        assembler = Assembler(settings, price_book, learned)
        self.understanding = Understanding(parser, store, assembler, price_book, learned)
        self.planner = Planner(settings, self.understanding, store, writers, clock, cold=cold, learned=learned)
        self._warnings = ReplyWarnings(telemetry, assembler.context_tokens_of)
        self.plan, self.needs_room = self.planner.plan, assembler.needs_room

    async def prepare(self, client_request: ClientRequest, waiting: Waiting | None = None, /) -> UpstreamRequest:
        """The request that goes upstream; of one that only counts, nothing is remembered. Raises ApiError where a stale
        summary is to be an error, and whatever goes wrong."""
        if client_request.only_counts:
            return await self._counted(client_request)
        planned = await self.plan(client_request)
        return await self.unread(client_request) if planned is None else await self.compacted(planned, waiting)

    async def close(self) -> None:
        await self._cold.close()
        await self._store.close()

    async def compacted(
        self, planned: PlannedRequest, waiting: Waiting | None = None, first: PlannedRequest | None = None
    ) -> UpstreamRequest:
        """Let background writers have their turn, claim what the history alone does not decide, remember."""
        if planned.plan.shed and not self.learned.fits(planned):
            raise not_planned()
        asks_for_more = bool(planned.plan.wants or planned.plan.digests) or is_underivable(planned)
        left_out = asks_for_more and not await self.is_verified(planned)
        if not left_out:
            planned = await self._writers.after_plan(planned, self.planner.replan, waiting)
        if first is None:
            if reason := planned.plan.state.use.reason:
                self._telemetry.metrics.count("stale_summaries", reason)
            self._writers.meet_stale(planned)
        if is_underivable(planned):
            planned = await self.derived(planned) if left_out else await self._claimed(planned)
        return structs.replace(self.sendable(planned), left_out=left_out)

    async def is_verified(self, planned: PlannedRequest) -> bool:
        """Whether the credential of this request is verified."""
        client_request = planned.context.client_request
        there = client_request.owner_there
        if self._states.is_accepted(there) or self._states.is_refused(there):
            return self._states.is_accepted(there)
        return await self._store.is_owner(planned.context.key, client_request.sender.owner)

    def sendable(self, planned: PlannedRequest) -> UpstreamRequest:
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
            may_overflow=self.learned.may_overflow(context, planned.tokens_sent),
        )

    def record_and_headers(self, planned: PlannedRequest) -> tuple[StepRecord, dict[str, str]]:
        """What is remembered of the step, and the headers of its reply."""
        record = step_record(planned, self.clock())
        return record, reply_headers(planned, prefix_outcome(planned, record))

    async def _claimed(self, planned: PlannedRequest) -> PlannedRequest:
        """A step that the history alone does not decide is decided by whoever claims it first."""
        ours = step_record(planned, self.clock())
        first = await self._store.claim(planned.context.key, ours)
        adopted = planned.plan.adopted or bool(adopted_digests(planned.context, planned.plan, planned.memory))
        if first is None and adopted:  # nobody else could know of it: it is adopted another time
            memory = replace(planned.memory, summaries=(), digests={})
        elif first is None or (first.edits, first.dropped, first.shed) == (ours.edits, ours.dropped, ours.shed):
            return planned
        else:
            memory = replace(planned.memory, steps={**planned.memory.steps, first.anchor: first})
        return await self.planner.replan(planned, memory)

    async def derived(self, planned: PlannedRequest) -> PlannedRequest:
        """The plan that the history alone decides, for a credential that nothing may be claimed for."""
        adopted = planned.plan.adopted or bool(adopted_digests(planned.context, planned.plan, planned.memory))
        if not adopted and planned.plan.reason != "checkpoint:cold":
            return planned
        plan_settings = replace(planned.context.plan_settings, cold=False)
        context = structs.replace(planned.context, plan_settings=plan_settings)
        planned = structs.replace(planned, context=context)
        memory = replace(planned.memory, summaries=(), digests={}) if adopted else planned.memory
        return await self.planner.replan(planned, memory)

    async def _counted(self, client_request: ClientRequest) -> UpstreamRequest:
        planned = before = None
        implied = client_request.counting or b""
        opening = b"{" + implied + b","
        if implied:  # the member that this body cannot have counts where the request before it had it
            body = opening + client_request.body.lstrip().removeprefix(b"{")
            planned = await self.planner.plan(structs.replace(client_request, body=body))
            before = planned and (planned.previous or planned.context.live.newest)
        if not (before and before.recall):
            planned = await self.planner.plan(client_request)
        if planned is None:
            return unchanged(client_request, "untouched", "bypassed")
        _, headers = self.record_and_headers(planned)
        body = rendered_body(planned, marked=False)  # they are no tokens
        if implied and body.startswith(opening):
            body = b"{" + body.removeprefix(opening)
        return UpstreamRequest(client_request, body, headers, planned.context.consent.headers)

    async def unread(self, client_request: ClientRequest) -> UpstreamRequest:
        """A request that is no chat, or may not be edited: whatever it is, it costs what its model does."""
        named, is_accepted = client_request.conversation, client_request.is_accepted
        dialect, body, tenant = client_request.dialect, client_request.body, client_request.sender.tenant
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


def is_underivable(planned: PlannedRequest) -> bool:
    """Whether the step was decided by more than the history: a summary, the time, or what the provider reported. So is
    a digest by rule where another replica may have one by a model."""
    plan, state, plan_settings = planned.plan, planned.plan.state, planned.context.plan_settings
    if plan.shed or plan.wants or state.has_model_text or state.dropped or plan.reason == "checkpoint:cold":
        return True
    if plan_settings.digesting is not None and any(edit.by == "digest" for edit in plan.new):
        return True
    if plan_settings.learned is not None and plan.new:  # the floor and every share of the window are smaller, too
        return True
    return plan_settings.factor != 1.0 and plan.reason in ("checkpoint:window", "checkpoint:context")
