"""From a request to its plan: the conversation it carries, what is remembered of that, and what follows.

Laws
  Nothing takes effect here: nothing is written, claimed or reported.
  The cost follows what is new: messages are read once, and a history served here before is continued where it ended.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from cachetools import LRUCache, TTLCache
from msgspec import structs

from policies.assemble import tool_tokens
from policies.dialects import DIALECTS
from policies.dialects.overflow import Overflow
from policies.keep import digest_of
from policies.model.memory import Memory, StepRecord
from policies.model.tokens import Calibration
from policies.planning.prefix import outcome, sent_record, untouched_before
from policies.planning.quiet import is_quiet, no_plan
from policies.planning.state import Plan, PlanState
from policies.render import Rendering, render
from policies.restore import ReplyInProgress
from proxy.config import Settings
from proxy.kernel.cold import ColdProcess
from proxy.kernel.learned import SECONDS, LearnedWindow
from proxy.kernel.recall_exchanges import RecallExchanges, RestoredRequest
from proxy.kernel.request_parser import RequestParser
from proxy.kernel.runs import PlanRuns
from proxy.kernel.understand import Assembler
from proxy.memory import UNTOUCHED, Key
from proxy.memory.cached import NO_LOOKUP, CachedStore, StoreWriter
from proxy.memory.conversation import Assembly, Inserts, LiveConversation, ParsedRequest
from proxy.requests import ClientRequest, PlannedRequest, RequestContext, UpstreamRequest
from proxy.summaries.background import BackgroundWriters
from proxy.upstreams.price_book import LearnedCaches, PriceBook

_NEAR = 0.5
"""The share of the window from which on an upstream may find a prompt too long: counts may be so far off."""


class Planner:
    """Plans requests, and remembers how far token counts were off."""

    def __init__(
        self,
        settings: Settings,
        parser: RequestParser,
        store: CachedStore,
        writer: StoreWriter,
        writers: BackgroundWriters,
        clock: Callable[[], float],
        cold: ColdProcess,
        *,
        price_book: PriceBook,
    ) -> None:
        self._settings = settings
        self._runs = PlanRuns(cold, settings.planning_timeout)
        self._store = store
        self._writers = writers
        self._clock = clock
        self._parser = parser
        self._assembler, self._price_book = Assembler(settings, price_book), price_book
        self.prices_of, self.context_tokens_of = self._assembler.prices_of, self._assembler.context_tokens_of
        self.exchanges = RecallExchanges(parser, writer)
        self._ratios: LRUCache[str, float] = LRUCache(1024)
        self._windows: TTLCache[tuple[str, str, str], LearnedWindow] = TTLCache(4096, SECONDS, clock)
        """By tenant, upstream and model: what an upstream says may repeat what a client wrote, and no client's text
        moves what is sent for another."""
        self.caches = LearnedCaches()

    async def plan(
        self,
        client_request: ClientRequest,
        in_progress: ReplyInProgress | None = None,
        first: PlannedRequest | None = None,
        is_dry: Callable[[Key], bool] | None = None,
    ) -> PlannedRequest | None:
        """The plan for a request; None where the body is not one of its dialect's, or may not be edited. `is_dry`: of
        which conversations requests are planned without effect.

        For a later round of a reply, `in_progress` is that reply so far and `first` the plan of its first round, whose
        recall exchanges count, whatever the store says by now.
        """
        dialect, body, tenant = client_request.dialect, client_request.body, client_request.tenant
        named, is_accepted = client_request.conversation, client_request.is_accepted
        received = await self._parser.parse(dialect, body, tenant, named, is_accepted=is_accepted)
        if received is None:
            return None
        await self._price_book.settle(received.request.model, client_request.upstream)
        live = self._store.conversations.of(received.key)
        if is_dry is not None and is_dry(live.key):
            client_request = structs.replace(client_request, is_dry=True)
        assembly = self._assembled(client_request, live, received)
        if assembly is None:
            return None
        if first is None and (unplanned := await self._without_plan(client_request, live, received, assembly)):
            return unplanned
        exchanges, lookup = first.context.exchanges if first is not None else {}, NO_LOOKUP
        if first is None and not client_request.is_dry and assembly.tool is not None:
            exchanges, lookup = await self._store.exchanges(live, client_request.dialect, received.conversation)
        restored = RestoredRequest(received)
        if exchanges or in_progress is not None:
            restored = await self.exchanges.restore(client_request, live, received, exchanges, in_progress)
            assembly = self._assembled(client_request, live, restored.parsed, restored=True)
            if assembly is None:
                return None
        context = self._context(client_request, received, restored, assembly, live, exchanges, lookup.complete)
        plan_state, memory = await self._store.history(
            live, context.fingerprint, context.conversation, lookup, context.plan_settings.prices
        )
        return await self._with_memory(context, plan_state, memory)

    async def _without_plan(
        self, client_request: ClientRequest, live: LiveConversation, received: ParsedRequest, assembly: Assembly
    ) -> PlannedRequest | None:
        """The request as it came, where nothing is decided for it, so that neither the planner nor the store is asked;
        None where something may be."""
        conversation = received.conversation
        if client_request.is_dry or not is_quiet(conversation, assembly.settings):
            return None
        foreign = self._store.announcements.foreign_exchanges()
        if assembly.tool is not None and live.exchanges_of(client_request.dialect, conversation, foreign) != {}:
            return None  # there are recall exchanges, or there may be
        context = self._context(client_request, received, RestoredRequest(received), assembly, live, {}, True)
        is_unknown = conversation.steps > 1 and live.sent_before(conversation) is None
        # another process may have sent it, and shortened
        anchors = [*filter(None, (conversation.beginning, UNTOUCHED, conversation.previous_anchor))]
        memory = (await self._store.look_up(live.key, anchors)).memory if is_unknown else Memory()
        if conversation.previous_anchor in memory.steps:
            return None
        context, memory = await self._writers.before_plan(context, None, memory)
        can_summarize = context.plan_settings.summarizing is not None
        if memory.summaries or (can_summarize and not is_quiet(conversation, context.plan_settings)):
            return None
        result = no_plan(conversation, context.plan_settings)
        rendering = render(client_request.dialect, context.request, conversation, result)
        return self._planned_request(context, None, memory, result, rendering)

    def _context(
        self,
        client_request: ClientRequest,
        received: ParsedRequest,
        restored: RestoredRequest,
        assembly: Assembly,
        live: LiveConversation,
        exchanges: Inserts,
        exchanges_complete: bool,
    ) -> RequestContext:
        return RequestContext(
            client_request=client_request,
            dialect=DIALECTS[client_request.dialect],
            live=live,
            received=received,
            request=restored.parsed.request,
            conversation=restored.parsed.conversation,
            exchanges=exchanges,
            exchanges_complete=exchanges_complete,
            exchange_lost=restored.lost,
            answers=restored.answers,
            plan_settings=assembly.settings,
            tool=assembly.tool,
            consent=assembly.consent,
            lifetime=assembly.lifetime,
            calibration=self._calibration(live, received.request.model),
            preset=assembly.preset,
            policy=assembly.policy,
            fingerprint=assembly.fingerprint,
            head=assembly.head,
        )

    async def plan_smaller(self, planned: PlannedRequest) -> PlannedRequest | None:
        """The same request planned anew under what its upstream has said of the window since; None where that does not
        make it smaller, or not small enough."""
        context = planned.context
        client_request, live = context.client_request, context.live
        parsed = structs.replace(context.received, request=context.request, conversation=context.conversation)
        is_restored = context.request is not context.received.request
        assembly = self._assembled(client_request, live, parsed, restored=is_restored)
        if assembly is None:
            return None
        calibration = self._calibration(live, parsed.request.model)
        client_request = structs.replace(client_request, may_plan=True)  # else it cannot be served at all
        changes = {"client_request": client_request, "plan_settings": assembly.settings, "calibration": calibration}
        context = structs.replace(context, **changes)
        plan_state, memory = await self._store.history(
            live, context.fingerprint, context.conversation, NO_LOOKUP, context.plan_settings.prices
        )
        refused = context.conversation.end_anchor(context.conversation.steps - 1)
        steps = {anchor: record for anchor, record in memory.steps.items() if anchor != refused}
        smaller = await self._with_memory(context, plan_state, replace(memory, steps=steps))
        learned = self._learned_window(client_request, parsed.request.model)
        room = learned.room(parsed.request.reserve) if learned else None
        fits = room is None or smaller.context.calibration.estimate(smaller.tokens_sent) <= room
        return smaller if fits and smaller.tokens_sent < planned.tokens_sent else None

    async def _with_memory(
        self, context: RequestContext, plan_state: PlanState | None, memory: Memory
    ) -> PlannedRequest:
        """The plan, with what the store and the background writers have for it."""
        if not context.client_request.is_dry:
            context, memory = await self._writers.before_plan(context, plan_state, memory)
        previous = memory.steps.get(context.conversation.previous_anchor)
        # once the provider has forgotten the prompt, a rewrite costs nothing
        upstream, lifetime = context.client_request.upstream, context.lifetime
        lifetime = self._settings.cold_seconds or self.caches.lifetime(context.request.model, upstream, lifetime)
        cold = previous is not None and self._clock() - previous.at > lifetime
        factor = context.calibration.ratio if self._settings.calibrate else 1.0
        if cold or factor != 1.0:
            plan_settings = replace(context.plan_settings, cold=cold, factor=factor)
            context = structs.replace(context, plan_settings=plan_settings)
        return await self._planned(context, plan_state, memory)

    async def replan(self, planned: PlannedRequest, memory: Memory) -> PlannedRequest:
        return await self._planned(planned.context, planned.plan_state, memory)

    def refuse_marks(self, upstream_request: UpstreamRequest) -> None:
        """Set no cache marks of ours for this model at its upstream any more."""
        assert upstream_request.planned is not None
        model = upstream_request.planned.context.request.model
        self._assembler.refuse_marks(upstream_request.client_request.upstream, model)

    def learn_window(self, upstream_request: UpstreamRequest, overflow: Overflow) -> None:
        """The upstream found this prompt too long. Where its own count is larger than ours, that calibrates."""
        planned, client_request = upstream_request.planned, upstream_request.client_request
        assert planned is not None
        model, counted = planned.context.request.model, upstream_request.tokens_sent
        sent = self._calibration(planned.context.live, model).estimate(counted)
        least = overflow.prompt or (0 if overflow.with_answer else overflow.window) or 0
        if least > sent and self._settings.calibrate:
            self.learn(planned, counted, least)
        elif least > sent and overflow.window:  # in our own count, where nothing may be calibrated
            overflow = replace(overflow, window=overflow.window * sent // least)
        before = self._learned_window(client_request, model) or LearnedWindow()
        self._windows[self._served_by(client_request, model)] = before.after(overflow, sent)

    def needs_room(self, planned: PlannedRequest) -> bool:
        """Whether room would have to be made for the request as the client wrote it."""
        context = planned.context
        learned = self._learned_window(context.client_request, context.request.model)
        most = self._assembler.fitting_tokens(context.client_request, context.received, learned)
        return context.calibration.estimate(planned.tokens_received) > most

    def was_compacted(self, planned: PlannedRequest) -> bool:
        """Whether this process sent the request before it, and not only as the client wrote it."""
        return planned.context.live.sent_before(planned.context.conversation) is not None

    def may_overflow(self, context: RequestContext, tokens: int) -> bool:
        """Whether it is worth to look whether the upstream takes a prompt of so many tokens."""
        client_request, model = context.client_request, context.request.model
        learned = self._learned_window(client_request, model)
        window = (learned and learned.window) or self.prices_of(model, client_request.upstream).window
        return window is None or context.calibration.estimate(tokens) > _NEAR * window

    def fits(self, planned: PlannedRequest) -> bool:
        """Whether the window takes the prompt beside its answer; true where nobody has said how large it is."""
        client_request, request = planned.context.client_request, planned.context.request
        tokens = planned.context.calibration.estimate(planned.tokens_sent)
        window = self.prices_of(request.model, client_request.upstream).window
        learned = self._learned_window(client_request, request.model) or LearnedWindow()
        room = learned.room(request.reserve)
        fits = window is None or tokens + (request.reserve or 0) <= window
        return fits and (room is None or tokens <= room)

    def learn_from_usage(self, planned: PlannedRequest, sent: int, reported: int) -> None:
        """The provider took a request that was sent with `sent` counted tokens, and reported so many."""
        client_request, model = planned.context.client_request, planned.context.request.model
        if (learned := self._learned_window(client_request, model)) is not None:
            left = learned.above(reported if self._settings.calibrate else sent)
            if left != learned:  # else its hour would begin anew
                self._windows[self._served_by(client_request, model)] = left
        if self._settings.calibrate:
            self.learn(planned, sent, reported)

    def learn(self, planned: PlannedRequest, sent: int, reported: int) -> None:
        """Calibrate: the provider reported so many tokens for a request that was sent with `sent` counted ones."""
        live, model = planned.context.live, planned.context.request.model
        learned = live.calibration = self._calibration(live, model).learn(sent, reported)
        self._ratios[model] = learned.ratio

    def _assembled(
        self, client_request: ClientRequest, live: LiveConversation, parsed: ParsedRequest, *, restored: bool = False
    ) -> Assembly | None:
        learned = self._learned_window(client_request, parsed.request.model)
        return self._assembler.assemble(client_request, live, parsed, learned, restored=restored)

    def _learned_window(self, client_request: ClientRequest, model: str) -> LearnedWindow | None:
        return self._windows.get(self._served_by(client_request, model)) if self._windows else None

    def _served_by(self, client_request: ClientRequest, model: str) -> tuple[str, str, str]:
        return client_request.tenant, client_request.upstream, model

    def _calibration(self, live: LiveConversation, model: str) -> Calibration:
        return live.calibration or Calibration(self._ratios.get(model, 1.0))

    async def _planned(self, context: RequestContext, plan_state: PlanState | None, memory: Memory) -> PlannedRequest:
        result, rendering = await self._runs.run(context, plan_state, memory)
        if result.reached is not None:
            context.live.add_reached(context.fingerprint, context.conversation, result.reached)
        return self._planned_request(context, plan_state, memory, result, rendering)

    def _planned_request(
        self, context: RequestContext, plan_state: PlanState | None, memory: Memory, result: Plan, rendering: Rendering
    ) -> PlannedRequest:
        head, conversation = context.plan_settings.head, context.conversation
        before = conversation.previous_anchor
        return PlannedRequest(
            context=context,
            plan_state=plan_state,
            memory=memory,
            plan=result,
            rendering=rendering,
            tokens_received=head - tool_tokens(context.tool, context.plan_settings.count) + result.before,
            tokens_sent=head + result.after,
            previous=memory.steps.get(before) or context.live.sent_before(conversation),
            sent_last=not context.exchanges_complete
            and context.live.sent_last(before, self._store.announcements.foreign_exchanges()),
        )


def step_record(planned: PlannedRequest, at: float) -> StepRecord:
    """What is remembered of this step. `at`: when it was served, in seconds since 1970."""
    context, result = planned.context, planned.plan
    anchor = context.conversation.end_anchor(context.conversation.steps - 1)
    return StepRecord(
        anchor=anchor,
        edits=result.new,
        reason=result.reason,
        sent=sent_record(
            context.conversation,
            planned.rendering.chains,
            context.head,
            context.fingerprint,
            result.state.use,
        ),
        at=at,
        recall=context.plan_settings.recall,
        dropped=result.state.dropped,
        keep=digest_of(context.plan_settings.keep),
        shed=result.shed or (before.shed if (before := planned.memory.steps.get(anchor)) else 0),
    )


def prefix_outcome(planned: PlannedRequest, record: StepRecord) -> str:
    """What becomes of the prompt's prefix when this is sent: the value of x-narrows-prefix."""
    context, newest = planned.context, planned.context.live.newest
    if context.conversation.steps < 2 or record.sent is None:
        return "first"
    previous, chains, stored = planned.previous, planned.rendering.chains, planned.memory.steps.get(UNTOUCHED)
    if previous is None and stored is not None and stored.sent is not None:
        before = untouched_before(context.conversation, chains, record.sent, stored.sent)
        previous = None if before is None else StepRecord(context.conversation.previous_anchor, sent=before)
    word = outcome(previous, newest, record.sent, chains, planned.plan.reason)
    is_new = stored is not None and not newest and not any(step.sent for step in planned.memory.steps.values())
    if word == "checkpoint:replayed" and is_new and not planned.plan.edits:
        return "first"
    if context.exchange_lost and word in ("extended", "tail-cut", "checkpoint:replayed"):
        return "checkpoint:recall"
    # where neither the store nor this process can say all, there may be an exchange that is missing here
    certain = context.exchanges_complete or planned.sent_last
    return "checkpoint:replayed" if word == "extended" and not certain else word


def reply_headers(planned: PlannedRequest, prefix: str) -> dict[str, str]:
    context, result = planned.context, planned.plan
    policies = Counter(edit.by for edit in result.edits)
    preset, prices = context.client_request.preset, context.plan_settings.prices
    return {
        "x-narrows-mode": "compacted" if result.edits else "marked" if result.marks else "untouched",
        "x-narrows-prefix": prefix,
        "x-narrows-tokens-before": str(context.calibration.estimate(planned.tokens_received)),
        "x-narrows-tokens-after": str(context.calibration.estimate(planned.tokens_sent)),
        "x-narrows-edits": ";".join(f"{name}={policies[name]}" for name in sorted(policies)),
        "x-narrows-conversation": context.key.conversation,
        **({} if prices.listed else {"x-narrows-prices": prices.origin}),
        **({"x-narrows-preset": preset} if preset else {}),
    }
