"""What waits for the upstream's answer: whose credential it has accepted, and what a request leaves behind then.

Laws
  Nothing is stored of a request before its upstream has answered 2xx, but for what must be there before its bytes are
  sent: a claimed decision, and one in the place of another. These, and summaries, are for verified credentials only.
  A credential is verified where the upstream last accepted it through this process, or, where this process has not
  heard of it, where the store says that it has sent this conversation: that is noted after a 2xx alone.
  For any other credential a request is planned from its history: nothing is claimed, adopted or begun for it. What was
  decided for the history before stands all the same.
"""

from msgspec import structs

from proxy.identity.states import CredentialStates
from proxy.memory.cached import CachedStore, StoreWriter
from proxy.requests import PlannedRequest, UpstreamRequest
from proxy.summaries.background import BackgroundWriters
from proxy.telemetry import Telemetry


class Acceptance:
    """Notes what upstreams answer."""

    def __init__(
        self,
        store: CachedStore,
        writer: StoreWriter,
        states: CredentialStates,
        writers: BackgroundWriters,
        telemetry: Telemetry,
    ) -> None:
        self._telemetry = telemetry
        self._store = store
        self._writer = writer
        self._states = states
        self._writers = writers

    def asks_for_more(self, planned: PlannedRequest) -> bool:
        """Whether the plan would have something claimed or begun."""
        return bool(planned.plan.wants or planned.plan.digests) or is_underivable(planned)

    async def is_verified(self, planned: PlannedRequest) -> bool:
        """Whether the credential of this request is verified."""
        client_request = planned.context.client_request
        there = client_request.owner_there
        if self._states.is_accepted(there) or self._states.is_refused(there):
            return self._states.is_accepted(there)
        return await self._store.is_owner(planned.context.key, client_request.owner)

    async def accepted(self, upstream_request: UpstreamRequest, planned: PlannedRequest) -> UpstreamRequest:
        """The upstream answers 2xx. Returns the request, with headers that say what has begun since."""
        try:
            self._store_sent(upstream_request, planned)
            await self._store.settle(planned.context.key)
            summary = self._writers.begin(planned) if upstream_request.left_out else ""
        except Exception as error:  # law 6: the reply has come, and goes to the client
            self._telemetry.log.error("not_stored", error=type(error).__name__, exc_info=True)
            return upstream_request
        if not summary:
            return upstream_request
        return structs.replace(upstream_request, headers={**upstream_request.headers, "x-narrows-summary": summary})

    def _store_sent(self, upstream_request: UpstreamRequest, planned: PlannedRequest) -> None:
        """Write behind the request what was sent."""
        client_request, record = upstream_request.client_request, upstream_request.record
        context, is_sent = planned.context, not client_request.is_dry and record is not None
        self._writer.own(context.live, client_request.owner)
        if record is None or not is_sent:
            return
        if planned.is_quiet:
            self._writer.note_sent(context.live, context.conversation, record, is_quiet=True)
        else:
            self._writer.remember(
                context.live,
                context.fingerprint,
                context.conversation,
                None if planned.plan.shed else planned.plan.state,
                record,
                supersedes=upstream_request.supersedes,
            )
        first = upstream_request.continues
        if first is not None and first.planned is not None and first.record is not None:
            self._writer.continued(context.live, first.planned.context.fingerprint, first.record, record)


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
