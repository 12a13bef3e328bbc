"""What the writers of summaries and digests share."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from cachetools import LRUCache

from policies.model.summary_record import Criteria
from policies.money.prices import Prices
from proxy.config import Settings
from proxy.memory import Key
from proxy.memory.audit_log import AuditLog
from proxy.memory.cached import CachedStore
from proxy.requests import RequestContext
from proxy.summaries.clients import ModelRequest
from proxy.summaries.jobs import Place, SummaryPrompt
from proxy.summaries.maker import SummaryMaker
from proxy.summaries.payments import Payment, Payments
from proxy.summaries.summarizer import Summarizer
from proxy.telemetry import Telemetry

Waiting = Callable[[], AbstractAsyncContextManager[None]]
"""Entered around a wait on behalf of a client that streams, to keep its connection alive."""

_EVENTS = 1024
"""Events that are remembered, so that none is noted twice."""


@dataclass(frozen=True, slots=True)
class SummaryServices:
    """What the writers share."""

    settings: Settings
    summarizer: Summarizer
    maker: SummaryMaker
    cached_store: CachedStore
    audit_log: AuditLog
    telemetry: Telemetry
    payments: Payments
    clock: Callable[[], float]
    _noted: LRUCache[tuple[Key, str], bool] = field(default_factory=lambda: LRUCache(_EVENTS), repr=False)

    def payment(self, context: RequestContext) -> Payment:
        """With which credentials something may be written for it now."""
        client_request = context.client_request
        return self.payments.possible(client_request.credential, client_request.is_plain_key)

    def may_ask(self, context: RequestContext) -> bool:
        """Whether any model may be asked for it now."""
        return self.summarizer.first(self._wish(context, self.payment(context))) is not None

    def job_fields(self, context: RequestContext) -> dict[str, Any]:
        """What every job for this request holds."""
        return {
            "key": context.key,
            "conversation": context.conversation,
            "received": context.received.conversation,
            "model": context.request.model,
            "auth": context.client_request.auth,
            "owner": context.client_request.owner,
            "payment": self.payment(context),
            "count": context.plan_settings.count,
            "policy": context.policy,
            "dialect": context.client_request.dialect,
            "upstream": context.client_request.upstream,
            "writing": context.preset.writing,
        }

    def criteria(self, context: RequestContext, prompt: SummaryPrompt) -> Criteria:
        """What a record with this prompt must have been written under to count for this request."""
        dialect, preset = context.client_request.dialect, context.preset
        return self.maker.criteria(dialect, context.request.model, context.policy, prompt, preset.writing)

    def prices(self, context: RequestContext) -> Prices | None:
        """The prices of the model that is asked first for this conversation; None where no model may be asked."""
        if not self.settings.summaries:
            return None
        client_request = context.client_request
        allowed = self.payments.allowed(client_request.credential, client_request.is_plain_key)
        prices = self.summarizer.first_prices(self._wish(context, allowed))
        if prices is None:
            self._refuse_once()
        return prices

    async def wait(self, context: RequestContext, places: Iterable[Place], waiting: Waiting | None) -> bool:
        """Wait for the jobs that run at these places, at most `summary_wait`; False where there was no wait."""
        seconds = self.settings.summary_wait / 1000
        pending = [place for place in places if self.maker.state(*place) == "pending"] if seconds else []
        if not pending:
            return False
        async with waiting() if waiting is not None and context.request.streams else nullcontext():
            await asyncio.gather(*(self.maker.wait(*place, seconds) for place in pending))
        return True

    def note_once(self, key: Key, event: str, subject: str, **details: str | int) -> None:
        """Note an event of a conversation, unless it was noted already of this subject, for the same reason."""
        name = (key, f"{event} {subject} {details.get('reason', '')}")
        if name not in self._noted:
            self._noted[name] = True
            self.audit_log.note(key, event, **details)

    def _wish(self, context: RequestContext, payment: Payment) -> ModelRequest:
        client_request = context.client_request
        return ModelRequest(
            model=context.request.model,
            auth=client_request.auth,
            owner=client_request.owner,
            payment=payment,
            dialect=client_request.dialect,
            upstream=client_request.upstream,
            writing=context.preset.writing,
        )

    def _refuse_once(self) -> None:
        """Count a request for which no credential may be used, and say so in the log the first time."""
        self.telemetry.metrics.count("summaries", "no_credential")
        name = (Key("", ""), "no_credential")
        if name not in self._noted:
            self._noted[name] = True
            effect = "no summaries: the client sends no plain API key, and no key of the gateway's own may be used"
            self.telemetry.log.warning("summary_no_credential", effect=effect)
