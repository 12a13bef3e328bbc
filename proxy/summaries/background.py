"""Summaries and digests are written in the background, beside requests, by two writers of one interface: rolling
summaries of old turns, and digests of single large outputs of tools.

For each request whose mode is `on`, a writer is called in this order:
  before_plan   adds to the request what the writer can be asked for, and to the memory what it has written
  after_plan    starts what the plan wants
  wait          the memory to plan with again, after a wait for what is being written; None where there was no wait
  report        notes the events of its texts, each once; the value of `x-narrows-summary`, empty for none

Laws
  A request waits for a writer at most `summary_wait` milliseconds, and for one writer only.
  A writer works after the call has returned, and no failure of its work reaches the request.
  The state of a summary is reported: in the reply's header, and as an event.
  A stale summary is an event once for each reason, and an error to clients only where `fail` is to follow.
  The same output is digested once for the same owner in a tenant, also where the answer was rejected: the digest is
  used in all of that owner's conversations, and stored with the one that caused it.
  A digest that is not there when its output may first be shortened is made by rule, and stays so.
  A digest stands where its text was claimed first: no two replicas send different ones.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from typing import Any

from msgspec import structs

from policies.context import Summarizing
from policies.model.conversation import Block
from policies.model.edits import Replace
from policies.model.memory import Memory, ModelDigest
from policies.model.parameters import is_large
from policies.model.summary_record import Criteria, SummaryRecord, reply_word, stale
from policies.money.prices import Prices
from policies.planning.state import Plan, PlanState
from policies.presets import Preset, described
from policies.rules.digest import Digest
from policies.rules.summarize import Summarize
from policies.tools import OURS
from proxy.config import Settings
from proxy.errors import ApiError
from proxy.memory.audit_log import AuditLog
from proxy.memory.cached import CachedStore
from proxy.memory.conversation import LiveConversation, note_first, put_newest
from proxy.requests import PlannedRequest, RequestContext
from proxy.summaries.endpoints import ModelRequest
from proxy.summaries.jobs import DIGEST_PROMPTS, DigestJob, Place, SummaryJob, SummaryPrompt, digest_place, prompt_of
from proxy.summaries.maker import State, SummaryMaker
from proxy.summaries.payments import EVERYTHING, Payment, Payments
from proxy.summaries.summarizer import Summarizer, criteria_for
from proxy.telemetry import Telemetry

Waiting = Callable[[], AbstractAsyncContextManager[None]]
"""Entered around a wait on behalf of a client that streams, to keep its connection alive."""
Replan = Callable[[PlannedRequest, Memory], Awaitable[PlannedRequest]]

_LOOKUPS = 4_096
"""Outputs of one conversation of which it is remembered that the store was asked for their digests."""


@dataclass(frozen=True, slots=True)
class SummaryServices:
    """The services that the writers share."""

    settings: Settings
    summarizer: Summarizer
    maker: SummaryMaker
    cached_store: CachedStore
    audit_log: AuditLog
    telemetry: Telemetry
    payments: Payments
    clock: Callable[[], float]
    _refusals: set[str] = field(default_factory=set, repr=False)

    def _payment(self, context: RequestContext) -> Payment:
        """With which credentials something may be written for it now."""
        client_request = context.client_request
        return self.payments.possible(client_request.sender.credential, client_request.proof.is_plain_key)

    def may_ask(self, context: RequestContext) -> bool:
        """True where any model may be asked for it now."""
        return self.summarizer.first(self._model_request(context, self._payment(context))) is not None

    def job_fields(self, context: RequestContext) -> dict[str, Any]:
        """The fields of every job for this request."""
        return {
            "key": context.key,
            "conversation": context.conversation,
            "received": context.received.conversation,
            "request": self._model_request(context, self._payment(context)),
            "count": context.plan_settings.count,
            "policy": context.policy,
        }

    def criteria(self, context: RequestContext, prompt: SummaryPrompt) -> Criteria:
        """The terms that a record with this prompt must have been written under to count for this request."""
        request = self._model_request(context, EVERYTHING)
        return criteria_for(self.settings, self.summarizer, request, context.policy, prompt.version)

    def prices(self, context: RequestContext) -> Prices | None:
        """The prices of the model that is asked first for this conversation; None where no model may be asked."""
        if not self.settings.summaries:
            return None
        client_request = context.client_request
        allowed = self.payments.allowed(client_request.sender.credential, client_request.proof.is_plain_key)
        first = self.summarizer.first(self._model_request(context, allowed))
        if first is not None:
            return first[1]
        self.telemetry.metrics.count("summaries", "no_credential")
        if not self._refusals:  # it is said in the log the first time
            self._refusals.add("no_credential")
            effect = "no summaries: the client sends no plain API key, and no key of the gateway's own may be used"
            self.telemetry.log.warning("summary_no_credential", effect=effect)
        return None

    async def wait(self, context: RequestContext, places: Iterable[Place], waiting: Waiting | None) -> bool:
        """Wait for the jobs that run at these places, at most `summary_wait`; False where there was no wait."""
        seconds = self.settings.summary_wait / 1000
        pending = [place for place in places if self.maker.state(*place) == "pending"] if seconds else []
        if not pending:
            return False
        async with waiting() if waiting is not None and context.request.streams else nullcontext():
            await asyncio.gather(*(self.maker.wait(*place, seconds) for place in pending))
        return True

    def note_once(self, live: LiveConversation, event: str, subject: str, **details: str | int) -> None:
        """Note an event of a conversation, unless it was noted already of this subject, for the same reason."""
        if note_first(live, f"{event} {subject} {details.get('reason', '')}"):
            self.audit_log.note(live.key, event, **details)

    def _model_request(self, context: RequestContext, payment: Payment) -> ModelRequest:
        client_request = context.client_request
        return ModelRequest(
            model=context.request.model,
            auth=client_request.proof.auth,
            owner=client_request.sender.owner,
            payment=payment,
            dialect=client_request.dialect,
            upstream=client_request.upstream,
            writing=context.preset.writing,
        )


@dataclass(frozen=True, slots=True)
class BackgroundWriters:
    """All writers, in the order in which they start and wait; in the reply a later one takes precedence."""

    _services: SummaryServices
    _writers: "Sequence[RollingSummaries | OutputDigests]"

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

    def meet_stale(self, planned: PlannedRequest) -> None:
        """Notes a stale summary of this conversation. Raises ApiError where that is to be an error."""
        context, plan, services = planned.context, planned.plan, self._services
        reason, id = plan.state.use.reason, plan.state.use.stale
        if not reason:
            return
        services.note_once(context.live, "summary.stale", id, id=id, reason=reason)
        if context.preset.writing.stale.then == "fail" and plan.summary is None:
            message = (
                f"The summary of this conversation is stale ({reason}) and `summary_stale` is `fail`: "
                "start a new conversation, or have it forgotten (DELETE /narrows/conversations/ID)."
            )
            raise ApiError(400, message, "stale_summary", "messages")

    def begin(self, planned: PlannedRequest) -> str:
        """Start what the plan of a request wants that has gone upstream without it; what the reply's header says."""
        for writer in self._writers:
            writer.after_plan(planned)
        return self.report(planned)


class RollingSummaries:
    """Has old turns of conversations summarized, and the summary before them extended."""

    def __init__(self, services: SummaryServices) -> None:
        self._services = services
        self._maker = services.maker

    async def before_plan(
        self, context: RequestContext, plan_state: PlanState | None, memory: Memory
    ) -> tuple[RequestContext, Memory]:
        """Adds how summaries are written now, None where none can be, and those that were written here."""
        if not context.preset.summarizes:
            return context, memory
        memory = self._merged(context, memory)
        prices, writing = self._services.prices(context), context.preset.writing
        if prices is None:
            return context, memory
        criteria = self._services.criteria(context, prompt_of("compaction", writing.prompt))
        most = writing.tokens or self._services.settings.summary_tokens
        waits = self._services.settings.summary_wait > 0
        summarizing = Summarizing(criteria, prices, most, self._services.clock(), waits)
        return structs.replace(context, plan_settings=replace(context.plan_settings, summarizing=summarizing)), memory

    def after_plan(self, planned: PlannedRequest) -> None:
        context, plan = planned.context, planned.plan
        if self._may_start(context, plan):
            self._maker.start(
                SummaryJob(
                    want=plan.wants[-1],
                    records=planned.memory.summaries,
                    exceptions=context.preset.exceptions,
                    **self._services.job_fields(context),
                )
            )

    async def wait(self, planned: PlannedRequest, waiting: Waiting | None) -> Memory | None:
        """Waits for the summary that the plan wants."""
        context = planned.context
        places = [(context.key, context.conversation.beginning)] if self._may_start(context, planned.plan) else []
        if not await self._services.wait(context, places, waiting):
            return None
        summaries = await self._services.cached_store.summaries(context.key, context.conversation)
        return self._merged(context, replace(planned.memory, summaries=summaries))

    def report(self, planned: PlannedRequest) -> str:
        """Notes a summary that stands from this request on."""
        context, plan = planned.context, planned.plan
        origin = plan.summary.origin if plan.summary else None
        if plan.adopted and origin is not None:
            self._services.note_once(
                context.live, "summary.adopted", origin.id, id=origin.id, generation=origin.generation
            )
        job = self._maker.state(context.key, context.conversation.beginning) if context.preset.summarizes else ""
        return reply_word(plan.state.use, job, is_wanted=bool(plan.wants))

    def _merged(self, context: RequestContext, memory: Memory) -> Memory:
        """The memory with the summaries that were written here: the store may not have them yet."""
        recent = self._maker.recent(context.key, context.conversation.beginning)
        if not recent and len(memory.summaries) < 2:
            return memory
        by_id = {record.id: record for record in (*memory.summaries, *recent)}
        return replace(memory, summaries=tuple(sorted(by_id.values(), key=lambda record: record.created_at)))

    def _may_start(self, context: RequestContext, plan: Plan) -> bool:
        if not plan.wants or not self._services.may_ask(context):
            return False
        return not plan.state.use.reason or context.preset.writing.stale.then == "regenerate"


# a pure function of its arguments, so remembering changes nothing but the time it takes
@lru_cache(maxsize=256)
def policy_of(name: str, preset: Preset) -> str:
    """The name of a preset with a hash of its parameters: summaries and digests written under another do not count."""
    writing = described(policy for policy in preset.policies if isinstance(policy, (Summarize, Digest)))
    return f"{name}:{sha256(f'{writing}{preset.exceptions.system}'.encode()).hexdigest()[:8]}"


class OutputDigests:
    """Has large outputs of tools shortened by a cheap model."""

    def __init__(self, services: SummaryServices) -> None:
        self._services = services
        self._maker = services.maker

    async def before_plan(
        self, context: RequestContext, plan_state: PlanState | None, memory: Memory
    ) -> tuple[RequestContext, Memory]:
        """Adds the prices for digests, and the digests of outputs that no edit has shortened: those written here, and,
        of outputs that may be shortened from now on, those in the store."""
        # where outputs are shortened before the model first sees them, only requests that wait leave time to ask
        in_time = self._services.settings.summary_wait or not context.preset.exceptions.first_sight
        digesting = self._services.prices(context) if context.preset.digests is not None and in_time else None
        if digesting is None:
            return context, memory
        context = structs.replace(context, plan_settings=replace(context.plan_settings, digesting=digesting))
        place_of, unknown = self._places(context), list[str]()
        for block in _of_age(context):
            place = place_of(block)
            is_over = self._maker.recent(*place) or self._maker.state(*place) == "failed"
            if not is_over and block.text_digest.hex() not in context.live.digest_lookups:  # a replica may have it
                unknown.append(block.text_digest.hex())
        for digest in unknown:
            put_newest(context.live.digest_lookups, digest, None, _LOOKUPS)
        lookup = await self._services.cached_store.look_up(context.key, unknown)
        return context, self._merged(context, plan_state, memory, lookup.memory.summaries)

    def after_plan(self, planned: PlannedRequest) -> None:
        context = planned.context
        may_start = planned.plan.digests and self._services.may_ask(context)
        for want in planned.plan.digests if may_start else ():
            self._maker.start(DigestJob(want=want, **self._services.job_fields(context)))

    async def wait(self, planned: PlannedRequest, waiting: Waiting | None) -> Memory | None:
        """Waits for the digests, of those being written, of outputs that may be shortened from now on."""
        context = planned.context
        if context.preset.digests is None:
            return None
        if not await self._services.wait(context, map(self._places(context), _of_age(context)), waiting):
            return None
        if context.plan_settings.digesting is None:
            return planned.memory
        return self._merged(context, planned.plan_state, planned.memory)

    def report(self, planned: PlannedRequest) -> str:
        """Notes the digests that stand from this request on: `pending`, `failed`, `adopted` or nothing."""
        context, plan, conversation = planned.context, planned.plan, planned.context.conversation
        adopted = adopted_digests(context, plan, planned.memory)
        for block in adopted:
            digest = block.text_digest.hex()
            self._services.note_once(context.live, "digest.adopted", block.anchor, first=digest, last=block.anchor)
        if context.preset.digests is None:
            return ""
        wanted = [conversation.blocks[conversation.index[want.at]] for want in plan.digests]
        places = map(self._places(context), (*wanted, *_of_age(context)))
        states: set[State] = {self._maker.state(*place) for place in places}
        return next((state for state in ("pending", "failed") if state in states), "adopted" if adopted else "")

    def _merged(
        self,
        context: RequestContext,
        plan_state: PlanState | None,
        memory: Memory,
        stored: Sequence[SummaryRecord] = (),
    ) -> Memory:
        """The memory with the newest digests that may be used now, of outputs that no edit has shortened."""
        prompts = {prompt.version: prompt for prompt in DIGEST_PROMPTS.values()}
        digests, place_of, now = dict(memory.digests), self._places(context), self._services.clock()
        for i, block in _outputs(context, range(context.conversation.ends[-1])):
            if plan_state is not None and i in plan_state.edits:
                continue
            digest = block.text_digest.hex()
            for record in (*stored, *self._maker.recent(*place_of(block))):
                prompt = prompts.get(record.prompt) if record.kind == "digest" and record.first == digest else None
                if prompt and not record.rejected and not stale(record, self._services.criteria(context, prompt), now):
                    digests[digest] = ModelDigest(record.content, record.lines)
        return replace(memory, digests=digests)

    def _places(self, context: RequestContext) -> Callable[[Block], Place]:
        """The place at which the digest of an output is made, for the sender of this request."""
        owner = context.client_request.sender.owner
        return lambda block: digest_place(context.key.tenant, owner, block.text_digest.hex())


def adopted_digests(context: RequestContext, plan: Plan, memory: Memory) -> list[Block]:
    """The outputs for which a model's digest stands from this request on."""
    conversation, adopted = context.conversation, list[Block]()
    for edit in plan.new if memory.digests else ():
        if isinstance(edit, Replace) and edit.by == "digest":
            block = conversation.blocks[conversation.index[edit.at]]
            digest = memory.digests.get(block.text_digest.hex())
            if digest and edit.text.startswith(digest.text):
                adopted.append(block)
    return adopted


def _of_age(context: RequestContext) -> list[Block]:
    """The large outputs that may be shortened from this request on."""
    ends, fresh = context.conversation.ends, 0 if context.preset.exceptions.first_sight else 1
    if len(ends) <= fresh + 1:
        return []
    return [block for _, block in _outputs(context, range(ends[-2 - fresh], ends[-1 - fresh]))]


def _outputs(context: RequestContext, span: range) -> Iterator[tuple[int, Block]]:
    """The large outputs of tools among these blocks; none where the preset has no digests."""
    over = context.preset.digests
    if over is None:
        return
    for i in span:
        block = context.conversation.blocks[i]
        if block.answers is not None and block.tool not in OURS and is_large(block.text, block.tokens, over):
            yield i, block
