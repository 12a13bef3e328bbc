"""understand(): from the bytes of a request to the conversation that it carries, and all that it is planned under.

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
from dataclasses import fields, replace
from hashlib import sha256
from itertools import takewhile

from msgspec import structs

from policies.assemble import PlanOptions, assemble
from policies.dialects import DIALECTS, Consent
from policies.keep import joined
from policies.model.conversation import Conversation, Message
from policies.model.converse import converse
from policies.model.tokens import Counter, encoding_for
from policies.money.budget import BudgetLimits
from policies.planning.state import PlanSettings
from policies.presets import described
from policies.recall import RecallAnswer
from policies.restore import DialectRequest, ReplyInProgress, restore
from proxy.config import Settings
from proxy.event_loop import in_thread
from proxy.kernel.learned import Learned, LearnedWindow
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
)
from proxy.requests import ClientRequest, PlannedRequest, RequestContext
from proxy.summaries.background import policy_of
from proxy.upstreams.price_book import PriceBook

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
"""What is remembered of what was put back in one conversation."""

_Kind = tuple[str, str, str | None, bool]
"""API, tenant, what a header names the conversation, and whether recall exchanges were put back."""


class Understanding:
    def __init__(
        self,
        parser: "RequestParser",
        store: CachedStore,
        assembler: "Assembler",
        price_book: PriceBook,
        learned: Learned,
    ) -> None:
        self._parser = parser
        self._store = store
        self._assembler = assembler
        self._price_book = price_book
        self._learned = learned

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
        dialect, body, tenant = client_request.dialect, client_request.body, client_request.sender.tenant
        named, is_accepted = client_request.conversation, client_request.is_accepted
        received = await self._parser.parse(dialect, body, tenant, named, is_accepted=is_accepted)
        if received is None:
            return None
        await self._price_book.settle(received.request.model, client_request.upstream)
        live = self._store.conversations.of(received.key)
        if is_dry is not None and is_dry(live.key):
            client_request = structs.replace(client_request, is_dry=True)
        assembly = self._assembler.assemble(client_request, live, received)
        if assembly is None:
            return None
        exchanges, lookup = first.context.exchanges if first is not None else {}, NO_LOOKUP
        if first is None and not client_request.is_dry and assembly.tool is not None:
            exchanges, lookup = await self._store.exchanges(live, dialect, received.conversation)
        parsed, is_lost, answers = received, False, tuple[RecallAnswer, ...]()
        if exchanges or in_progress is not None:
            parsed, is_lost, answers = await self.restored(client_request, live, received, exchanges, in_progress)
            assembly = self._assembler.assemble(client_request, live, parsed, restored=True)
            if assembly is None:
                return None
        return RequestContext(
            client_request=client_request,
            dialect=DIALECTS[dialect],
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
            lifetime=assembly.lifetime,
            calibration=self._learned.calibration(live, received.request.model),
            preset=assembly.preset,
            policy=assembly.policy,
            fingerprint=assembly.fingerprint,
            head=assembly.head,
        )

    def anew(self, context: RequestContext) -> RequestContext | None:
        """The same request under what its upstream has said since."""
        is_restored = context.request is not context.received.request
        parsed = structs.replace(context.received, request=context.request, conversation=context.conversation)
        assembly = self._assembler.assemble(context.client_request, context.live, parsed, restored=is_restored)
        if assembly is None:
            return None
        calibration = self._learned.calibration(context.live, parsed.request.model)
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
        reading = DialectRequest(dialect, received.request, received.conversation, received.count)
        remembered = dict(live.restored)  # which belongs to the event loop, the copy to the thread
        with received.conversation.carried.held():
            whole = await in_thread(restore, reading, exchanges, remembered, in_progress)
        live.restored = remembered if restored_weight(remembered) < _RESTORED_BYTES else {}
        parsed = received
        if whole.body is not received.request.body:
            named, tenant = client_request.conversation, client_request.sender.tenant
            kind = (client_request.dialect, whole.body, tenant)
            is_accepted = client_request.is_accepted
            parsed = await self._parser.parse(*kind, named, restored=True, is_accepted=is_accepted) or received
        return parsed, whole.lost, whole.answers


# --- a body becomes messages ---


class RequestParser:
    """Splits and reads requests, and remembers what it has read."""

    def __init__(self, conversations: Conversations) -> None:
        self._conversations = conversations
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
        restored: bool = False,
        is_accepted: bool = True,
    ) -> ParsedRequest | None:
        """The request and its conversation; None where the body is not one of the dialect's. What a header has `named`
        continues what it named before; a body with recall exchanges `restored` in it an earlier one of its kind.
        `is_accepted`: its credential was accepted. Raises TooManyError where the body holds more than a limit."""
        kind = (dialect, tenant, named, restored)
        branch, is_extended = await self._find(kind, body)
        earlier = None if branch is None else branch.parsed
        new = len(body) - (len(earlier.request.body) if earlier and is_extended else 0)
        async with self._turn(new, is_accepted):
            parsed = await self._parsed(kind, body, earlier, new)
        if parsed is not None and (is_accepted or parsed.size <= _UNPROVEN_BYTES):
            self._conversations.put(kind, parsed, branch, earlier.conversation if earlier else None)
        return parsed

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
        """Wait for others, where so many bytes are new."""
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
        if len(body) > _HUGE_BYTES or new > _NEW_BYTES:
            request = await in_thread(dialect.split, body, before, bounded)
        else:
            request = dialect.split(body, before, bounded)
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
        key = _key(kind[0], kind[1], kind[2] or request.conversation, conversation)
        return ParsedRequest(request, count, conversation, key)

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
    """Assembles what requests are planned under."""

    def __init__(self, settings: Settings, price_book: PriceBook, learned: Learned) -> None:
        self._settings, self.prices_of, self._learned = settings, price_book.prices, learned
        self._rows = {row.name: row for row in settings.upstream_rows}
        limits = BudgetLimits(**{limit.name: getattr(settings, limit.name) for limit in fields(BudgetLimits)})
        self._limits = {"": limits} | {name: _within(limits, row.window) for name, row in self._rows.items()}
        """By upstream; also for a request of which no upstream is known."""
        self._presets, self._stale = settings.all_presets(), settings.stale

    def assemble(
        self, client_request: ClientRequest, live: LiveConversation, parsed: ParsedRequest, *, restored: bool = False
    ) -> Assembly | None:
        """What the request is planned under; None where its history may not be edited. `restored`: whether recall
        exchanges were put back."""
        request, dialect = parsed.request, DIALECTS[client_request.dialect]
        consent = dialect.consent(request) if self._settings.drop_bound_thinking else Consent()
        if consent is None:
            return None
        learned, reserve = self._learned.window(client_request, request.model), request.reserve
        if client_request.only_counts:  # it has no field for it: what the newest other one said counts
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
        """The size that the request's prompt is kept below; None where that follows from the window alone."""
        return client_request.options.context_tokens or self._settings.context_tokens

    def needs_room(self, planned: PlannedRequest) -> bool:
        """Whether room would have to be made for the request as the client wrote it, whatever a price tier says."""
        context, client_request = planned.context, planned.context.client_request
        request, upstream = context.received.request, client_request.upstream
        model, reserve, learned = request.model, request.reserve, self._learned.window(client_request, request.model)
        limits = replace(self._limits[upstream], context_tokens=self.context_tokens_of(client_request))
        prices = replace(self.prices_of(model, upstream), tiers=())
        budget = learned.budget(limits, prices, reserve, has_floor=False) if learned else limits.budget(prices, reserve)
        return context.calibration.estimate(planned.tokens_received) > budget.high

    def _origin(
        self, client_request: ClientRequest, parsed: ParsedRequest, reserve: int | None, learned: LearnedWindow | None
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
            *(self._learned.refuses_marks(upstream, request.model), self.prices_of(request.model, upstream)),
            *(request.body[:start], request.body[end:], request.model, parsed.count),
            *("call" in conversation.kinds, conversation.is_text_protocol, *(message.raw for message in leading)),
        )

    def _assembled(
        self, client_request: ClientRequest, parsed: ParsedRequest, reserve: int | None, learned: LearnedWindow | None
    ) -> Assembly:
        request, dialect = parsed.request, DIALECTS[client_request.dialect]
        options = self._options(client_request, request.model, reserve)
        plan_input = assemble(dialect, request, parsed.conversation, parsed.count, options)
        settings = plan_input.settings
        if learned is not None:
            has_floor = settings.aim == "bill"
            budget = learned.budget(options.limits, settings.prices, reserve, has_floor=has_floor)
            settings = replace(settings, learned=budget)
        before_messages = (request.tool_list, plan_input.tool[1] if plan_input.tool else b"", request.instructions)
        stale = client_request.options.stale.over(options.preset.writing.stale).over(self._stale)
        return Assembly(
            settings=settings,
            tool=plan_input.tool,
            consent=plan_input.consent,
            lifetime=self._settings.cold_seconds or plan_input.lifetime,
            preset=replace(options.preset, writing=replace(options.preset.writing, stale=stale)),
            policy=policy_of(client_request.options.preset or self._settings.preset, options.preset),
            fingerprint=_fingerprint(client_request, settings),
            head=sha256(b"\0".join((request.model.encode(), *before_messages))).hexdigest()[:32],
            end=request.spans[-1][1],
        )

    def _options(self, client_request: ClientRequest, model: str, reserve: int | None) -> PlanOptions:
        settings, upstream = self._settings, client_request.upstream
        row = self._rows.get(upstream)
        own_marks = (row and row.own_marks) or settings.own_marks
        return PlanOptions(
            preset=self._presets[client_request.options.preset or settings.preset],
            prices=self.prices_of(model, upstream),
            aim=client_request.options.aim or settings.aim,
            limits=replace(self._limits[upstream], context_tokens=self.context_tokens_of(client_request)),
            reserve=reserve,
            recall=settings.recall != "never",
            recall_always=settings.recall == "always",
            own_marks="never" if self._learned.refuses_marks(upstream, model) else own_marks,
            drop_bound_thinking=settings.drop_bound_thinking,
            text_protocol=settings.text_protocol,
            tool_kinds=settings.tool_kinds,
            keep=joined(settings.keep, client_request.options.keep),
        )


def _key(dialect: str, tenant: str, name: str | None, conversation: Conversation) -> Key:
    """Which conversation this is: named by the client, or else by all that stands before the first reply, and by the
    API: what was sent in one API is nothing that another could extend."""
    beginning = f"{dialect}\0{conversation.end_anchor(0)}"
    return Key(tenant, conversation_id(name) if name else sha256(beginning.encode()).hexdigest()[:32])


def _within(limits: BudgetLimits, window: int | None) -> BudgetLimits:
    """The same for no more than this window."""
    windows = [each for each in (window, limits.window) if each is not None]
    return replace(limits, window=min(windows, default=None))


def _fingerprint(client_request: ClientRequest, settings: PlanSettings) -> str:
    """A digest of everything besides the history that decisions follow from."""
    values = (
        settings.prices,
        settings.aim,
        settings.is_chat,
        settings.budget,
        settings.marks,
        settings.slots,
        settings.marks_end,
        settings.head,
        settings.text_protocol,
    )
    tools = [sorted(kinds.items()) for kinds in (settings.toolbox.configured, settings.toolbox.schemas)]
    ways = (client_request.dialect, settings.recall, settings.exchanges, settings.only_to_fit)
    preset, keep = described(settings.policies), (settings.keep,) if settings.keep else ()
    sight = (settings.sight,) if settings.sight else ()
    effect = "observe" if client_request.is_dry else "on"
    parts = (values, ways, settings.exceptions, tools, preset, effect, *keep, *sight)
    return sha256(repr(parts).encode()).hexdigest()[:32]
