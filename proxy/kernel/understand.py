"""The stage `Understanding`: from the bytes of a request to its conversation, and all that it is planned under.

A body becomes messages; the recall exchanges that its client has never seen are put back; what does not follow from the
history (preset, prices, budget, tools) is assembled.

Laws
  A request that begins with the bytes of an earlier one of the same tenant takes over what was read there: only what is
  new is read. Of a large request of a credential that was not accepted nothing stays, until its upstream has accepted
  it.
  The store holds the calls of a recall exchange, and what else the model's message carried; the answers are found again
  in the request. Where the store is in trouble an exchange is missing, the reply says so, and nothing else happens.
  What does not follow from the history is worked out once, and used again for as long as everything that it follows
  from stays the same; it comes out as if it were worked out anew.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from importlib.metadata import version
from itertools import takewhile
from typing import Literal

from cachetools import LRUCache, TTLCache
from msgspec import structs

from policies.assemble import PlanOptions, assemble
from policies.dialects import DIALECTS, Consent, Request
from policies.dialects.overflow import LearnedWindow, Overflow
from policies.keep import joined
from policies.model.conversation import Conversation, Message, converse
from policies.model.tokens import Calibration, Counter, encoding_for
from policies.money.caches import MINUTE
from policies.money.prices import BudgetLimits, Usage
from policies.planning.prefix import LIST_AT, last_use, life_of
from policies.planning.state import PlanSettings
from policies.presets import described
from policies.recall import RecallAnswer
from policies.restore import DialectRequest, ReplyInProgress, restore
from proxy.config import Settings
from proxy.event_loop import in_thread
from proxy.kernel.client_summaries import TAKES_OVER, ClientSummaries
from proxy.kernel.defer import ToolDeferral, with_tools, without_searches
from proxy.memory import Key, conversation_id
from proxy.memory.cached import NO_LOOKUP, CachedStore
from proxy.memory.conversation import (
    Assembly,
    Branch,
    Conversations,
    Inserts,
    LiveConversation,
    PackedRequest,
    ParsedRequest,
    restored_weight,
)  # fmt: skip
from proxy.requests import WHOLE, ClientRequest, PlannedRequest, RequestContext, UpstreamRequest
from proxy.summaries.background import policy_of
from proxy.upstreams.price_book import PriceBook

_RELEASE = version("narrows")
_LARGE_BYTES = 200_000
"""More unread text than this is read in a thread, so that nobody else waits."""
_NEW_BYTES = 50_000
"""More of a body than this, beyond what an earlier one has, is split in a thread: it may hold thousands of messages."""
_HUGE_BYTES = 1_000_000
"""A larger body is always split in a thread: an earlier one that begins alike may share little with it."""
_MANY_MESSAGES = 150
"""More new messages are read and put together in a thread, too, however small they are."""
_AT_ONCE = 2
"""Large bodies that are worked on at once: more threads would only keep the interpreter from the event loop."""
_HUGE_NEW_BYTES = 4_000_000
"""Of bodies in which more is new, one is worked on at once: it takes some five times as much memory meanwhile."""
_UNPROVEN_BYTES = 2**20
"""A larger request is only remembered for a credential that an upstream has accepted."""
_RESTORED_BYTES = 8 * 2**20

_Kind = tuple[str, str, str | None, bool]
"""API, tenant, what a header names the conversation, and whether recall exchanges were put back."""


@dataclass(eq=False)
class Understanding:
    parser: "RequestParser"
    store: CachedStore
    assembler: "Assembler"
    price_book: PriceBook
    learned: "Learned"
    deferral: ToolDeferral | None = None

    async def __call__(
        self,
        client_request: ClientRequest,
        in_progress: ReplyInProgress | None = None,
        first: PlannedRequest | None = None,
        is_dry: Callable[[Key], bool] | None = None,
    ) -> RequestContext | None:
        """The request with all that it is planned under; None where the body is not one of its dialect's, or may not be
        edited. `is_dry`: of which conversations requests are planned without effect. For a later round of a reply,
        `in_progress` is that reply so far and `first` the plan of its first round, whose recall exchanges count,
        whatever the store says by now."""
        received = await self.parser.parse_of(client_request)
        if received is None:
            return None
        if client_request.upstream in self.price_book.local:
            await self.price_book.settle(received.request.model, client_request.upstream)
        live = self.store.conversations.of(received.key)
        if is_dry is not None and is_dry(live.key):
            client_request = structs.replace(client_request, is_dry=True)
        decision = first.context.tools if first is not None else WHOLE
        if first is None and self.deferral is not None:
            decision = await self.deferral(client_request, live, received)
        parsed = with_tools(received, decision.tools) if decision.tools is not None else received
        assembly = self.assembler.assemble(client_request, live, parsed)
        if assembly is None:
            return None
        exchanges, lookup = first.context.exchanges if first is not None else {}, NO_LOOKUP
        may_hold = assembly.tool is not None or decision.tools is not None
        if first is None and not client_request.is_dry and may_hold:
            exchanges, lookup = await self.store.exchanges(live, client_request.dialect, received.conversation)
            exchanges = without_searches(exchanges) if exchanges and decision.tools is None else exchanges
        is_lost, answers = False, tuple[RecallAnswer, ...]()
        if exchanges or in_progress is not None:
            parsed, is_lost, answers = await self.restored(client_request, live, parsed, exchanges, in_progress)
            assembly = self.assembler.assemble(client_request, live, parsed, restored=True)
            if assembly is None:
                return None
        return RequestContext(
            client_request=client_request,
            dialect=DIALECTS[client_request.dialect],
            live=live,
            received=received,
            request=parsed.request,
            conversation=parsed.conversation,
            exchanges=exchanges,
            lookup=lookup,
            exchange_lost=is_lost,
            answers=answers,
            plan_settings=assembly.settings,
            tool=assembly.tool,
            consent=assembly.consent,
            lifetime=self.learned.caches.lifetime(received.request.model, client_request.upstream, assembly.lifetime),
            calibration=self.learned.calibration(live, received.request.model),
            tools=decision,
            preset=assembly.preset,
            policy=assembly.policy,
            fingerprint=assembly.fingerprint,
            head=assembly.head,
        )

    def anew(self, context: RequestContext) -> RequestContext | None:
        is_restored = context.request is not context.received.request
        parsed = structs.replace(
            context.received, request=context.request, conversation=context.conversation, tools=context.tools.tools
        )
        assembly = self.assembler.assemble(context.client_request, context.live, parsed, restored=is_restored)
        if assembly is None:
            return None
        calibration = self.learned.calibration(context.live, parsed.request.model)
        return structs.replace(context, plan_settings=assembly.settings, calibration=calibration)

    async def restored(
        self,
        client_request: ClientRequest,
        live: LiveConversation,
        received: ParsedRequest,
        exchanges: Inserts,
        in_progress: ReplyInProgress | None,
    ) -> tuple[ParsedRequest, bool, tuple[RecallAnswer, ...]]:
        """The request as the model was sent it, with the exchange of the reply that is being given, if any; whether the
        newest reply had an exchange and came back as another; and the answers to the calls of the reply in progress."""
        dialect = DIALECTS[client_request.dialect]
        reading = DialectRequest(dialect, received.request, received.conversation, received.count, received.tools)
        remembered = dict(live.restored)  # which belongs to the event loop, the copy to the thread
        with received.conversation.carried.held():
            whole = await in_thread(restore, reading, exchanges, remembered, in_progress)
        live.restored = remembered if restored_weight(remembered) < _RESTORED_BYTES else {}
        parsed = received
        if whole.body is not received.request.body:
            parsed = await self.parser.parse_of(client_request, whole.body) or received
            parsed = with_tools(parsed, received.tools) if received.tools is not None else parsed
        return parsed, whole.lost, whole.answers


# --- a body becomes messages ---


class RequestParser:
    """Splits and reads requests, and remembers what it has read."""

    def __init__(self, conversations: Conversations, summaries: ClientSummaries | None = None) -> None:
        self._conversations, self.summaries = conversations, summaries
        self._counters: dict[str, Counter] = {}
        self._large, self._huge = asyncio.Semaphore(_AT_ONCE), asyncio.Semaphore(1)
        self._unproven, self._unproven_large = asyncio.Semaphore(1), asyncio.Semaphore(1)
        """Of credentials that were not accepted one body is worked on at once, so that others find a place; one that is
        not large waits for no large one: it may be the first of an honest client."""

    async def parse(
        self,
        dialect: str,
        body: bytes,
        tenant: str,
        named: str | None = None,
        *,
        owner: str = "",
        restored: bool = False,
        is_accepted: bool = True,
    ) -> ParsedRequest | None:
        """The request and its conversation; None where the body is not one of the dialect's. What a header has `named`
        continues what it named before; a body with recall exchanges `restored` in it an earlier one of its kind.
        `owner`: whose summaries it may begin with. `is_accepted`: its credential was accepted. Raises TooManyError
        where the body holds more than a limit."""
        kind = (dialect, tenant, named, restored)
        branch, is_extended = await self._find(kind, body)
        earlier = None if branch is None else branch.parsed
        new = len(body) - (len(earlier.request.body) if earlier and is_extended else 0)
        async with self._turn(new, is_accepted):
            parsed = await self._parsed(kind, body, earlier, new)
        is_unnamed = parsed is not None and not (named or parsed.request.conversation)
        if parsed and is_unnamed and owner and self.summaries and (text := taken_over(parsed.conversation)):
            parsed = await self.summaries.placed(parsed, dialect, owner, text)
        if parsed is not None and (is_accepted or parsed.size <= _UNPROVEN_BYTES):
            self._conversations.put(kind, parsed, branch, earlier.conversation if earlier else None)
        return parsed

    async def parse_of(self, client_request: ClientRequest, restored: bytes | None = None) -> ParsedRequest | None:
        """The request of a client; or the body that recall exchanges were put back in."""
        return await self.parse(
            client_request.dialect,
            client_request.body if restored is None else restored,
            client_request.sender.tenant,
            client_request.conversation,
            owner=client_request.sender.owner,
            restored=restored is not None,
            is_accepted=client_request.is_accepted,
        )

    def keep(self, dialect: str, parsed: ParsedRequest, tenant: str, named: str | None) -> None:
        """The credential of this request has been accepted: it is remembered, if it was not yet."""
        if parsed.size > _UNPROVEN_BYTES:
            kind = (dialect, tenant, named, False)
            branch, _ = self._conversations.find(kind, parsed.request.body)
            earlier = branch.content if branch and isinstance(branch.content, ParsedRequest) else None
            if earlier is not parsed:
                self._conversations.put(kind, parsed, branch, earlier.conversation if earlier else None)

    @asynccontextmanager
    async def _turn(self, new: int, is_accepted: bool) -> AsyncIterator[None]:
        unproven = self._unproven_large if new > _LARGE_BYTES else self._unproven
        async with (
            unproven if new > _NEW_BYTES and not is_accepted else nullcontext(),
            self._huge if new > _HUGE_NEW_BYTES else nullcontext(),
            self._large if new > _LARGE_BYTES else nullcontext(),
        ):
            yield

    async def _parsed(self, kind: _Kind, body: bytes, earlier: ParsedRequest | None, new: int) -> ParsedRequest | None:
        """The request, which begins like an `earlier` one; so many bytes of it are `new`. It is held to the limits; but
        what is put back was bounded where it was made: a round of recalls is not to fail at the last message."""
        before, dialect, bounded = earlier.request if earlier else None, DIALECTS[kind[0]], not kind[3]
        is_large, split = len(body) > _HUGE_BYTES or new > _NEW_BYTES, (body, before, bounded)
        request = await in_thread(dialect.split, *split) if is_large else dialect.split(*split)
        if request is None:
            return None
        count = await self.counter(request.model)
        conversation = earlier.conversation if earlier and earlier.count is count else None
        shared = conversation.messages[: request.shared] if conversation else ()
        fresh = range(len(shared), len(request.spans))
        unread = request.spans[-1][1] - request.spans[fresh.start][0] if fresh else 0

        def read() -> tuple[Message, ...]:
            return shared + tuple(dialect.read(request.raw(at), count) for at in fresh)

        is_long = len(fresh) > _MANY_MESSAGES
        messages = await in_thread(read) if is_long or unread > _LARGE_BYTES else read()
        if is_long:
            conversation = await in_thread(converse, messages)
        else:
            conversation = converse(messages, conversation, len(shared))
        return ParsedRequest(request, count, conversation, _key(kind, request, conversation))

    async def _find(self, kind: _Kind, body: bytes) -> tuple[Branch | None, bool]:
        """The earlier request that the body has most in common with, as it is used; and whether the body extends it."""
        branch, is_extended = self._conversations.find(kind, body)
        if branch is not None and isinstance(branch.content, PackedRequest):
            parsed = await asyncio.to_thread(branch.content.unpacked, DIALECTS[kind[0]], branch.key)
            self._conversations.unpack(branch, parsed)
        return branch, is_extended

    async def counter(self, model: str) -> Counter:
        encoding = encoding_for(model)
        if encoding not in self._counters:  # a third of a second to load its vocabulary, once in a process
            self._counters[encoding] = await asyncio.to_thread(Counter, encoding)
        return self._counters[encoding]


# --- what does not follow from the history ---


class Assembler:
    def __init__(self, settings: Settings, price_book: PriceBook, learned: "Learned") -> None:
        self._settings, self._price_book, self._learned = settings, price_book, learned
        self._rows = {row.name: row for row in settings.upstream_rows}
        limits = BudgetLimits(**{limit.name: getattr(settings, limit.name) for limit in fields(BudgetLimits)})
        self._limits = {"": limits} | {name: limits.within(row.window) for name, row in self._rows.items()}
        self._presets, self._stale = settings.all_presets(), settings.stale

    def assemble(
        self, client_request: ClientRequest, live: LiveConversation, parsed: ParsedRequest, *, restored: bool = False
    ) -> Assembly | None:
        request, dialect = parsed.request, DIALECTS[client_request.dialect]
        consent = dialect.consent(request) if self._settings.drop_bound_thinking else Consent()
        if consent is None:
            return None
        learned, reserve = self._learned.window(client_request, request.model), request.reserve
        if client_request.counting is not None:  # it has no field for it: what the newest other one said counts
            reserve = reserve or live.reserve
        else:
            live.reserve = reserve
        if parsed.conversation.marked:  # they move from request to request, and much follows from where they are
            return self._assembled(client_request, parsed, reserve, learned)
        name = self._origin(client_request, parsed, reserve, learned)
        before = live.assemblies.get(restored)
        if before is None or before[0] != name:
            assembly = self._assembled(client_request, parsed, reserve, learned)
            live.assemblies[restored] = name, assembly
            return assembly
        assembly, end = before[1], request.spans[-1][1]
        tool = assembly.tool
        if tool is not None and tool[0] >= assembly.end:
            tool = (tool[0] + end - assembly.end, tool[1])
        is_same = tool is assembly.tool and consent == assembly.consent
        return assembly if is_same else replace(assembly, tool=tool, consent=consent, end=end)

    def context_tokens_of(self, client_request: ClientRequest) -> int | None:
        return client_request.options.context_tokens or self._settings.context_tokens

    def needs_room(self, planned: PlannedRequest) -> bool:
        """True where room would have to be made for the request as the client wrote it, whatever a price tier says."""
        context, client_request = planned.context, planned.context.client_request
        request, upstream = context.received.request, client_request.upstream
        model, reserve, learned = request.model, request.reserve, self._learned.window(client_request, request.model)
        limits = replace(self._limits[upstream], context_tokens=self.context_tokens_of(client_request))
        prices = replace(self._price_book.prices(model, upstream), tiers=())
        budget = learned.budget(limits, prices, reserve, has_floor=False) if learned else limits.budget(prices, reserve)
        return context.calibration.estimate(planned.tokens_received) > budget.high

    def _origin(
        self, client_request: ClientRequest, parsed: ParsedRequest, reserve: int | None, learned: "LearnedWindow | None"
    ) -> tuple[object, ...]:
        """All that an assembly follows from, where no message has cache marks: the request but for its history, and
        the few properties of that which count."""
        request, conversation, upstream = parsed.request, parsed.conversation, client_request.upstream
        options = client_request.options
        start, end = request.spans[0][0], request.spans[-1][1]
        leading = takewhile(lambda message: message.role in ("system", "developer"), conversation.messages)
        return (
            *(client_request.is_dry, options.preset, options.aim, options.context_tokens),
            *(options.keep, options.stale, reserve, learned, upstream),
            *(self._learned.refuses("marks", upstream, request.model), self._price_book.version),
            self._learned.caches.ignores_lifetimes(request.model, upstream),
            *(request.body[:start], request.body[end:], request.model, parsed.count),
            *("call" in conversation.kinds, conversation.is_text_protocol, *(message.raw for message in leading)),
        )

    def _assembled(
        self, client_request: ClientRequest, parsed: ParsedRequest, reserve: int | None, learned: "LearnedWindow | None"
    ) -> Assembly:
        request, dialect = parsed.request, DIALECTS[client_request.dialect]
        options = self._options(client_request, request.model, reserve)
        plan_input = assemble(dialect, request, parsed.conversation, parsed.count, options)
        settings = plan_input.settings
        if learned is not None:
            has_floor = settings.aim != "context"
            budget = learned.budget(options.limits, settings.prices, reserve, has_floor=has_floor)
            settings = replace(settings, learned=budget)
        tools = parsed.tools.whole if parsed.tools else request.tool_list
        model, ours = request.model.encode(), (plan_input.tool[1] if plan_input.tool else b"")
        head = _digest(model, tools, ours, request.instructions)
        if parsed.tools:  # another list of the same tools
            head = head[:LIST_AT] + _digest(request.tool_list)[:LIST_AT]
        head += _digest(model, tools, request.instructions)[:LIST_AT]
        stale = client_request.options.stale.over(options.preset.writing.stale).over(self._stale)
        return Assembly(
            settings=settings,
            tool=plan_input.tool,
            consent=plan_input.consent,
            lifetime=self._settings.cold_seconds or plan_input.lifetime,
            preset=replace(options.preset, writing=replace(options.preset.writing, stale=stale)),
            policy=policy_of(client_request.options.preset or self._settings.preset, options.preset),
            fingerprint=_fingerprint(client_request, settings),
            head=head,
            end=request.spans[-1][1],
        )

    def _options(self, client_request: ClientRequest, model: str, reserve: int | None) -> PlanOptions:
        settings, upstream = self._settings, client_request.upstream
        row = self._rows.get(upstream)
        is_refused = self._learned.refuses("marks", upstream, model)
        stays = client_request.is_dry or is_refused or self._learned.caches.ignores_lifetimes(model, upstream)
        return PlanOptions(
            preset=self._presets[client_request.options.preset or settings.preset],
            prices=self._price_book.prices(model, upstream),
            aim=client_request.options.aim or settings.aim,
            limits=replace(self._limits[upstream], context_tokens=self.context_tokens_of(client_request)),
            reserve=reserve,
            recall=settings.recall != "never",
            recall_always=settings.recall == "always",
            own_marks="never" if is_refused else (row and row.own_marks) or settings.own_marks,
            mark_lifetime="usual" if stays else settings.mark_lifetime,
            drop_bound_thinking=settings.drop_bound_thinking,
            text_protocol=settings.text_protocol,
            tool_kinds=settings.tool_kinds,
            keep=joined(settings.keep, client_request.options.keep),
        )


def taken_over(conversation: Conversation) -> str:
    """A text that begins with the summary which its client begins it with; "" where there is none."""
    for block in conversation.blocks[conversation.head : conversation.ends[0]]:
        for words, end in TAKES_OVER if block.kind == "user" else ():
            if block.text.lstrip().startswith(words):
                return block.text.partition(end)[2]
    return ""


def _key(kind: _Kind, request: Request, conversation: Conversation) -> Key:
    """Which conversation this is: named by the client, or else by all that stands before the first reply, and by the
    API: what was sent in one API is nothing that another could extend."""
    name, beginning = kind[2] or request.conversation, f"{kind[0]}\0{conversation.end_anchor(0)}"
    return Key(kind[1], conversation_id(name) if name else sha256(beginning.encode()).hexdigest()[:32])


def _digest(*parts: bytes) -> str:
    return sha256(b"\0".join(parts)).hexdigest()[:32]


def _fingerprint(client_request: ClientRequest, settings: PlanSettings) -> str:
    prices = (settings.prices, settings.aim, settings.is_chat, settings.budget)
    values = (*prices, settings.marks, settings.slots, settings.marks_end, settings.head, settings.text_protocol)
    tools = [sorted(kinds.items()) for kinds in (settings.toolbox.configured, settings.toolbox.schemas)]
    ways = (client_request.dialect, settings.recall, settings.exchanges, settings.only_to_fit)
    preset, effect = described(settings.policies), "observe" if client_request.is_dry else "on"
    chosen = filter(None, (settings.keep, settings.sight))
    parts = (_RELEASE, values, ways, settings.exceptions, tools, preset, effect, *chosen)
    return _digest(repr(parts).encode())


# --- what upstreams have shown: how large a model's window is, where a prompt was too long; which models take no cache
# marks of ours; what their caches forget; and how far our counts of tokens are off. Only this process knows.
# Laws
#   A learned window only makes a budget smaller.
#   It counts for an hour, and no longer once the upstream takes a prompt that is larger.

_SECONDS = 3_600.0
"""Seconds for which what was said counts: an error may repeat what a client wrote, and an upstream may change."""
_MODELS = 1_024
_STREAK, _FEW = 5, 2
"""Replies in a row that show the same of a cache before it is believed; fewer where dear marks are in vain."""
_NEAR = 0.5
"""The share of the window from which on an upstream may find a prompt too long: counts may be so far off."""


_Refused = Literal["marks", "tools"]


class Learned:
    def __init__(self, settings: Settings, clock: Callable[[], float]) -> None:
        self._calibrates = settings.calibrate
        self.caches = LearnedCaches(is_fixed=bool(settings.cold_seconds))
        self._ratios: LRUCache[str, float] = LRUCache(_MODELS)
        self._windows: TTLCache[tuple[str, str, str], LearnedWindow] = TTLCache(4096, _SECONDS, clock)
        """By tenant, upstream and model: what an upstream says may repeat what a client wrote, and no client's text
        moves what is sent for another."""
        self._refused: LRUCache[tuple[_Refused, str, str], bool] = LRUCache(2 * _MODELS)

    def window(self, client_request: ClientRequest, model: str) -> LearnedWindow | None:
        return self._windows.get(_served_by(client_request, model)) if self._windows else None

    def calibration(self, live: LiveConversation, model: str) -> Calibration:
        return live.calibration or Calibration(self._ratios.get(model, 1.0))

    def refuses(self, what: _Refused, upstream: str, model: str) -> bool:
        return self._refused.get((what, upstream, model), False)

    def note_refused(self, what: _Refused, upstream_request: UpstreamRequest, is_refused: bool = True) -> None:
        """An upstream does not take our marks or deferred definitions for a model, or refused what lacks these."""
        assert upstream_request.planned is not None
        model = upstream_request.planned.context.request.model
        self._refused[what, upstream_request.client_request.upstream, model] = is_refused

    def note_overflow(self, upstream_request: UpstreamRequest, overflow: Overflow) -> None:
        """The upstream found this prompt too long. Where its own count is larger than ours, that calibrates."""
        planned, client_request = upstream_request.planned, upstream_request.client_request
        assert planned is not None
        model, tokens = planned.context.request.model, upstream_request.tokens_sent
        sent = self.calibration(planned.context.live, model).estimate(tokens)
        least = overflow.prompt or (0 if overflow.with_answer else overflow.window) or 0
        if least > sent and self._calibrates:
            self.calibrate(planned, tokens, least)
        elif least > sent and overflow.window:  # in our own count, where nothing may be calibrated
            overflow = replace(overflow, window=overflow.window * sent // least)
        before = self.window(client_request, model) or LearnedWindow()
        self._windows[_served_by(client_request, model)] = before.after(overflow, sent)

    def note_usage(self, planned: PlannedRequest, sent: int, reported: int) -> None:
        client_request, model = planned.context.client_request, planned.context.request.model
        if (learned := self.window(client_request, model)) is not None:
            window = learned.above(reported if self._calibrates else sent)
            if window != learned:  # else its hour would begin anew
                self._windows[_served_by(client_request, model)] = window
        if self._calibrates:
            self.calibrate(planned, sent, reported)

    def calibrate(self, planned: PlannedRequest, sent: int, reported: int) -> None:
        live, model = planned.context.live, planned.context.request.model
        learned = live.calibration = self.calibration(live, model).learn(sent, reported)
        self._ratios[model] = learned.ratio

    def may_overflow(self, context: RequestContext, tokens: int) -> bool:
        """True where it is worth to look whether the upstream takes a prompt of so many tokens."""
        learned = self.window(context.client_request, context.request.model)
        window = (learned and learned.window) or context.plan_settings.prices.window
        return window is None or context.calibration.estimate(tokens) > _NEAR * window

    def fits(self, planned: PlannedRequest) -> bool:
        """True where the window takes the prompt beside its answer; true where nobody has said how large it is."""
        context, request = planned.context, planned.context.request
        tokens, window = context.calibration.estimate(planned.tokens_sent), context.plan_settings.prices.window
        learned = self.window(context.client_request, request.model)
        room = learned.room(request.reserve) if learned else None
        return (window is None or tokens + (request.reserve or 0) <= window) and (room is None or tokens <= room)


def _served_by(client_request: ClientRequest, model: str) -> tuple[str, str, str]:
    return client_request.sender.tenant, client_request.upstream, model


class LearnedCaches:
    """Where the usage of replies is not what the table of caches has foretold, by model and upstream."""

    def __init__(self, *, is_fixed: bool = False) -> None:
        self._is_fixed = is_fixed  # by a person
        self._streaks: LRUCache[tuple[str, str, str], int] = LRUCache(_MODELS)
        self._seconds: LRUCache[tuple[str, str], float] = LRUCache(_MODELS)
        self._pauses: LRUCache[tuple[str, str, str], float] = LRUCache(_MODELS)
        self._reporting: LRUCache[tuple[str, str], bool] = LRUCache(_MODELS)
        """Those that have reported cached tokens: of others nobody knows what they have forgotten."""

    def ignores_lifetimes(self, model: str, upstream: str) -> bool:
        """True where marks that ask for the longer lifetime do not get it."""
        return self._streaks.get((model, upstream, "unlengthened"), 0) >= _FEW

    def lifetime(self, model: str, upstream: str, usual: float) -> float:
        return usual if self._is_fixed else self._seconds.get((model, upstream), usual)

    def note(self, upstream_request: UpstreamRequest, usage: Usage) -> str:
        """Take notice of a reply. Returns what it shows where that has now been seen often enough: `longer` or
        `shorter` (the lifetime), `uncached`, `unmarked` (read without marks), `least` (read below it) or
        `unlengthened` (marks get no longer lifetime); else ""."""
        planned, record = upstream_request.planned, upstream_request.notes.record
        is_extended = upstream_request.headers.get("x-narrows-prefix") == "extended"
        if planned is None or planned.previous is None or record is None or not is_extended:
            return ""
        context = planned.context
        name = (context.request.model, upstream_request.client_request.upstream)
        if usage.cached > 0:
            self._reporting[name] = True
        rule, pause = context.plan_settings.cache, record.at - last_use(planned.previous)
        kind, differs = "uncached", usage.cached == 0
        if rule.mark and not context.plan_settings.prices.breakpoints:  # it has none, and so has the one before
            kind, differs = "unmarked", usage.cached > 0
        elif usage.prompt < rule.least:
            kind, differs = "least", usage.cached > 0
        elif context.conversation.steps < 3:  # the first request gets no mark of ours
            return ""
        elif life_of(planned.previous).is_longer:
            if not context.lifetime < pause <= planned.lifetime:
                return ""
            kind = "unlengthened"
        elif pause > context.lifetime:
            kind, differs = "longer", usage.cached > 0
        elif pause > MINUTE:
            kind, differs = "shorter", differs and name in self._reporting
        streak = self._streaks[*name, kind] = self._streaks.get((*name, kind), 0) + 1 if differs else 0
        if streak > 1:
            pause = min(pause, self._pauses.get((*name, kind), pause))
        if streak:
            self._pauses[*name, kind] = pause
        if streak >= _STREAK and kind in ("longer", "shorter"):
            self._seconds[name] = pause
        return kind if streak == (_FEW if kind == "unlengthened" else _STREAK) else ""
