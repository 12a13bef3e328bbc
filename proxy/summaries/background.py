"""Summaries and digests are written in the background, beside requests, by writers of one interface.

For each request a writer is called in this order: `before_plan` with what is remembered, `after_plan` and `wait` with
the plan, `report` with the plan that is carried out.

Laws
  A request waits for a writer at most `summary_wait` milliseconds, and for one writer only.
  A writer works after the call has returned, and no failure of its work reaches the request.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from cachetools import LRUCache

from policies.model.memory import Memory
from policies.model.summary_record import Criteria
from policies.money.prices import Prices
from policies.planning.state import PlanState
from proxy.config import Settings
from proxy.identity import VerifiedCredentials, owner_of
from proxy.requests import PlannedRequest, RequestContext
from proxy.store import Key
from proxy.store.audit_log import AuditLog
from proxy.store.cached import CachedStore
from proxy.summaries.jobs import Place, SummaryPrompt
from proxy.summaries.maker import SummaryMaker
from proxy.summaries.summarizer import Summarizer

Waiting = Callable[[], AbstractAsyncContextManager[None]]
"""Entered around a wait on behalf of a client that streams, to keep its connection alive."""

Replan = Callable[[PlannedRequest, Memory], Awaitable[PlannedRequest]]

_EVENTS = 1024
"""Events that are remembered, so that none is noted twice."""


class BackgroundWriter(Protocol):
    """Writes something in the background that later plans use."""

    async def before_plan(
        self, context: RequestContext, plan_state: PlanState | None, memory: Memory
    ) -> tuple[RequestContext, Memory]:
        """The request with what the writer can be asked for, and the memory with what it has written."""

    def after_plan(self, planned: PlannedRequest) -> None:
        """Start what the plan wants."""

    async def wait(self, planned: PlannedRequest, waiting: Waiting | None) -> Memory | None:
        """The memory to plan with again, after a wait for what is being written; None where there was no wait."""

    def report(self, planned: PlannedRequest) -> str:
        """The value of `x-narrows-summary`, empty for none. Notes what became of the texts, each event once."""


@dataclass(frozen=True, slots=True)
class SummaryServices:
    """What the writers share."""

    settings: Settings
    summarizer: Summarizer
    maker: SummaryMaker
    cached_store: CachedStore
    audit_log: AuditLog
    verified: VerifiedCredentials
    secret: bytes = field(repr=False)
    """The key of the hash that names owners."""
    clock: Callable[[], float]
    _noted: LRUCache[tuple[Key, str], bool] = field(default_factory=lambda: LRUCache(_EVENTS), repr=False)

    def payer(self, context: RequestContext) -> str:
        """The owner at whose cost this request may have something written; empty where it may not."""
        owner = owner_of(self.secret, context.client_request.credential)
        return owner if context.client_request.mode == "on" and owner in self.verified else ""

    def criteria(self, context: RequestContext, prompt: SummaryPrompt) -> Criteria:
        """What a record with this prompt must have been written under to count for this request."""
        dialect, preset = context.client_request.dialect, context.preset
        return self.maker.criteria(dialect, context.request.model, context.policy, prompt, preset.writing)

    def prices(self, context: RequestContext) -> Prices | None:
        """The prices of the model that is asked first for this conversation; None where no model can be asked."""
        dialect, model = context.client_request.dialect, context.request.model
        models = self.summarizer.models(dialect, model, context.preset.writing)
        return self.summarizer.prices(models[0]) if models else None

    async def wait(self, context: RequestContext, places: Iterable[Place], waiting: Waiting | None) -> bool:
        """Wait for the jobs that run at these places, at most `summary_wait`; False where there was no wait."""
        seconds = self.settings.summary_wait / 1000
        pending = [place for place in places if self.maker.state(*place) == "pending"]
        if not seconds or not pending or context.client_request.mode != "on":
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


@dataclass(frozen=True, slots=True)
class BackgroundWriters:
    """All writers, in the order in which they start and wait; in the reply a later one takes precedence."""

    _services: SummaryServices
    _writers: Sequence[BackgroundWriter]

    async def before_plan(
        self, context: RequestContext, plan_state: PlanState | None, memory: Memory
    ) -> tuple[RequestContext, Memory]:
        for writer in self._writers:
            context, memory = await writer.before_plan(context, plan_state, memory)
        return context, memory

    async def after_plan(
        self, planned: PlannedRequest, replan: Replan, waiting: Waiting | None = None
    ) -> PlannedRequest:
        """Start what the plan wants; the request planned again where it waited for some of it."""
        waited = False
        for writer in self._writers:
            writer.after_plan(planned)
            memory = None if waited else await writer.wait(planned, waiting)
            if memory is not None:
                planned, waited = await replan(planned, memory), True
        return planned

    def report(self, planned: PlannedRequest) -> str:
        words = [writer.report(planned) for writer in reversed(self._writers)]  # each notes its events
        return next(filter(None, words), "")

    def accepted(self, credential: str) -> None:
        """The upstream has accepted this credential: from now on its owner may have summaries written."""
        self._services.verified.add(owner_of(self._services.secret, credential))
