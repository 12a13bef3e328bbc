"""From a request to its plan: the conversation it carries, what is known of that, and what follows.

Laws
  Nothing is decided here for good: nothing is written, claimed, asked for or told.
  The cost follows what is new: messages are read once, histories are continued where their books are at hand.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256

from cachetools import LRUCache

from policies.caching import caching
from policies.dialects import DIALECTS, Added, Consent, Request
from policies.model.memory import Memory, StepRecord
from policies.model.tokens import Calibration
from policies.money.budget import Budget
from policies.money.catalog import prices_for
from policies.money.prices import Prices
from policies.planning.prefix import outcome
from policies.planning.state import Plan, PlanSettings, PlanState
from policies.recall import RecallAnswer
from policies.restore import ReplyInProgress
from policies.tools import Toolbox
from proxy.compaction.recall_exchanges import Recalls, RestoredRequest
from proxy.compaction.rendering import PIECES_BYTES, Outgoing, Piece, planned, tool_tokens
from proxy.compaction.request_parser import RequestParser
from proxy.config import Settings
from proxy.requests import ClientRequest, ParsedRequest, RequestContext
from proxy.store import Key
from proxy.store.cached import NO_LOOKUP, CachedStore, Inserts, StoreLookup
from proxy.summaries.background import BackgroundWriters
from proxy.summaries.rolling import policy_of

_COLD_BYTES = 20_000
_COLD_STEPS, _COLD_BLOCKS, _MANY_BLOCKS = 16, 100, 800
"""A larger message, more steps to replay or more new blocks are worked on in a thread, so that nobody else waits."""
_NEWEST, _NEWEST_BYTES = 24, 60_000
"""Messages that may be cut now: where they are larger together they are worked on there, too."""


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """A request in hand, what is known of its history, and the plan that follows from both."""

    context: RequestContext
    plan_state: PlanState | None
    memory: Memory
    outgoing: Outgoing
    after: str
    """Where in what the client sent the reply belongs."""
    inserts: Inserts
    """The exchanges behind the replies before."""
    sure: bool
    """Whether the store could say all that it was asked."""
    answers: tuple[RecallAnswer, ...]
    """What this very request answers."""
    taken: ParsedRequest
    """What the client sent, without the exchanges."""

    @property
    def plan(self) -> Plan:
        """What is to change in the request."""
        return self.outgoing.plan

    @property
    def whole(self) -> int:
        """Exact tokens of what the client sent."""
        return (
            self.context.setup.head
            - tool_tokens(self.context.tool, self.context.setup.count)
            + self.outgoing.plan.before
        )

    @property
    def plain(self) -> int:
        """Exact tokens of what the plan makes of it."""
        return self.context.setup.head + self.outgoing.plan.after

    @property
    def previous(self) -> StepRecord | None:
        """What is remembered of the request before this one."""
        conversation = self.context.conversation
        return (
            self.memory.steps.get(conversation.end_anchor(conversation.steps - 2)) if conversation.steps > 1 else None
        )

    def prefix(self, record: StepRecord, newest: StepRecord | None) -> str:
        """What becomes of the prompt's prefix when this is sent. `newest` is the last step that was."""
        conversation, made = self.context.conversation, self.outgoing.plan
        if conversation.steps < 2 or record.sent is None:
            return "first"
        found = outcome(self.previous, newest, record.sent, self.outgoing.chains, made.reason)
        if self.context.lost and found in ("extended", "tail-cut", "checkpoint:replayed"):
            return "checkpoint:recall"
        # else there may be an exchange nobody can tell of
        return "checkpoint:replayed" if found == "extended" and not self.sure else found

    def headers(self, prefix: str) -> dict[str, str]:
        """What the reply says."""
        work, made = self.context, self.outgoing.plan
        policies = [edit.by for edit in made.edits]
        mode = "compacted" if made.edits or made.marks else "untouched"
        return {
            "x-narrows-mode": "observed" if work.client_request.mode == "observe" else mode,
            "x-narrows-prefix": prefix,
            "x-narrows-tokens-before": str(work.calibration.estimate(self.whole)),
            "x-narrows-tokens-after": str(work.calibration.estimate(self.plain)),
            "x-narrows-edits": ";".join(f"{name}={policies.count(name)}" for name in sorted(set(policies))),
            "x-narrows-conversation": work.key.conversation,
            **({"x-narrows-preset": work.client_request.preset} if work.client_request.preset else {}),
        }


class Planner:
    """Plans requests, and remembers how far token counts were off."""

    def __init__(
        self,
        settings: Settings,
        request_parser: RequestParser,
        cached_store: CachedStore,
        writers: BackgroundWriters,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._cached_store = cached_store
        self._writers = writers
        self._clock = clock
        self._request_parser = request_parser
        self.recalls = Recalls(request_parser, cached_store)
        self._prices: LRUCache[str, Prices] = LRUCache(1024)
        self._pieces: LRUCache[tuple[object, ...], Piece] = LRUCache(PIECES_BYTES, getsizeof=lambda p: len(p.raw))
        self._calibrations: LRUCache[Key, Calibration] = LRUCache(4096)
        self._reserves: LRUCache[Key, int | None] = LRUCache(4096)
        self._ratios: LRUCache[str, float] = LRUCache(1024)

    async def step(
        self, client_request: ClientRequest, flight: ReplyInProgress | None = None, before: Inserts | None = None
    ) -> PlannedRequest | None:
        """The plan for a request; None where it is not one of its dialect's, or may not be edited. In a
        round of a reply in `flight`, `before` are the exchanges that the reply began with, whatever the store says."""
        taken = await self._request_parser.take(client_request.dialect, client_request.body, client_request.tenant)
        if taken is None:
            return None
        key = key_of(client_request, taken)
        inserts, found = (before, NO_LOOKUP) if before is not None else await self._inserts(client_request, key, taken)
        resumed = await self.recalls.resume(client_request, key, taken, inserts, flight)
        consent = self.consent(client_request, resumed.taken)
        if consent is None:
            return None
        work = replace(self._work(client_request, key, resumed), consent=consent)
        plan_state, memory = await self._cached_store.history(key, work.fingerprint, work.conversation, found)
        work, memory = await self._writers.before_plan(work, plan_state, memory)
        work = replace(work, setup=replace(work.setup, cold=self._is_cold(work, memory)))
        outgoing = await self._planned(work, plan_state, memory)
        after = taken.conversation.end_anchor(taken.conversation.steps - 1)
        return PlannedRequest(
            work, plan_state, memory, outgoing, after, inserts, found.complete, resumed.answers, taken
        )

    async def again(self, step: PlannedRequest, memory: Memory) -> PlannedRequest:
        """The same with something else in memory."""
        return replace(step, memory=memory, outgoing=await self._planned(step.context, step.plan_state, memory))

    def tool(self, client_request: ClientRequest, taken: ParsedRequest) -> Added | None:
        """Where the recall tool goes in this request."""
        if self._settings.recall == "never":
            return None
        return DIALECTS[client_request.dialect].recall_tool(taken.request, self._settings.recall == "always")

    def consent(self, client_request: ClientRequest, taken: ParsedRequest) -> Consent | None:
        """What has to be said so that this history may be edited; None where it may not."""
        return (
            DIALECTS[client_request.dialect].consent(taken.request) if self._settings.drop_bound_thinking else Consent()
        )

    def learn(self, key: Key, model: str, plain: int, billed: int) -> None:
        """So many exact tokens were billed as so many."""
        learned = self._calibration(key, model).learn(plain, billed)
        self._calibrations[key] = learned
        self._ratios[model] = learned.ratio

    async def _inserts(
        self, client_request: ClientRequest, key: Key, taken: ParsedRequest
    ) -> tuple[Inserts, StoreLookup]:
        """The exchanges to put back."""
        if client_request.mode != "on" or self.tool(client_request, taken) is None:
            return {}, NO_LOOKUP
        return await self._cached_store.exchanges(key, client_request.dialect, taken.conversation)

    def _work(self, client_request: ClientRequest, key: Key, resumed: RestoredRequest) -> RequestContext:
        settings, dialect, taken = self._settings, DIALECTS[client_request.dialect], resumed.taken
        request, conversation = taken.request, taken.conversation
        listed, tool = self.prices_of(request.model), self.tool(client_request, taken)
        calibration = self._calibration(key, request.model)
        cached = caching(dialect, request, conversation.messages, listed, settings.own_marks)
        preset = settings.preset_named(client_request.preset)
        loose = preset.exceptions.foldable_system(conversation)
        head = dialect.head_tokens(request, conversation.messages, taken.count) - conversation.tokens(loose)
        policy = policy_of(client_request.preset or settings.preset, preset)
        setup = PlanSettings(
            preset.policies,
            cached.prices,
            self._budget(cached.prices, self._reserve(client_request, key, request)),
            taken.count,
            text_protocol=settings.text_protocol,
            marks=cached.marks,
            slots=cached.slots,
            head=head + tool_tokens(tool, taken.count),
            factor=calibration.ratio if settings.calibrate else 1.0,
            recall=tool is not None,
            only_to_fit=tool is None and not request.brings_tools and conversation.has_calls,
            exceptions=preset.exceptions,
            toolbox=Toolbox(settings.tool_kinds, dialect.tool_kinds(request)),
        )
        return RequestContext(
            client_request,
            dialect,
            request,
            conversation,
            setup,
            key,
            calibration,
            tool,
            resumed.lost,
            settings.cold_seconds or cached.lifetime,
            preset=preset,
            policy=policy,
        )

    def _reserve(self, client_request: ClientRequest, key: Key, request: Request) -> int | None:
        """Tokens that the client allows for the answer. A request for the tokens has no way to say it: there it is what
        the newest other one said."""
        if client_request.counts:
            return request.reserve or self._reserves.get(key)
        self._reserves[key] = request.reserve
        return request.reserve

    def _budget(self, prices: Prices, reserve: int | None) -> Budget:
        settings = self._settings
        return Budget.of(
            prices,
            unknown_window=settings.unknown_window,
            window=settings.window,
            reserve=settings.reserve if settings.reserve is not None else reserve,
            high=settings.high,
            low=settings.low,
            floor=settings.floor,
        )

    def _is_cold(self, work: RequestContext, memory: Memory) -> bool:
        """Whether the provider has forgotten this prompt: then a rewrite costs nothing."""
        if work.conversation.steps < 2:
            return False
        previous = memory.steps.get(work.conversation.end_anchor(work.conversation.steps - 2))
        return previous is not None and self._clock() - previous.at > work.lifetime

    async def _planned(self, work: RequestContext, plan_state: PlanState | None, memory: Memory) -> Outgoing:
        if _is_long(work, plan_state, memory):
            # the cache of pieces is the event loop's alone: a thread fills one of its own
            fresh: dict[tuple[object, ...], Piece] = {}
            outgoing = await asyncio.to_thread(planned, work, plan_state, memory, fresh)
            for name, piece in fresh.items():
                self._pieces[name] = piece
            return outgoing
        return planned(work, plan_state, memory, self._pieces)

    def prices_of(self, model: str) -> Prices:
        """What a model costs, whatever a request asks for."""
        if model not in self._prices:
            self._prices[model] = prices_for(model, self._settings.overrides)
        return self._prices[model]

    def _calibration(self, key: Key, model: str) -> Calibration:
        return self._calibrations.get(key) or Calibration(self._ratios.get(model, 1.0))


def key_of(client_request: ClientRequest, taken: ParsedRequest) -> Key:
    """Which conversation this is: the client says so, or all that was said before the first answer, and in which API:
    what was sent in one is nothing that another could extend."""
    named = client_request.conversation or taken.request.conversation
    said = f"{client_request.dialect}\0{taken.conversation.key}"
    return Key(client_request.tenant, named or sha256(said.encode()).hexdigest()[:32])


def _is_long(work: RequestContext, plan_state: PlanState | None, memory: Memory) -> bool:
    """Whether planning may take so long that others would wait."""
    ends, done, spans = work.conversation.ends, plan_state.step if plan_state else 0, work.request.spans
    if len(ends) - done > _COLD_STEPS or ends[-1] - (ends[done - 1] if done else 0) > _COLD_BLOCKS:
        return True
    if memory.summaries and ends[-1] > _MANY_BLOCKS:  # to adopt one may change all of them at once
        return True
    newest = spans[-1][1] - spans[-min(len(spans), _NEWEST)][0]
    return newest > _NEWEST_BYTES or max(end - start for start, end in spans) > _COLD_BYTES
