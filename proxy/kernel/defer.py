"""Whose definitions of tools are deferred, and who says so: the list of a conversation is decided once.

    ToolDeferral    what was decided of the list of a request, or is to be; and the claim of that
    CalledTools     the tools that a tenant's conversations with the same list have called, by name

Laws
  A list is decided at the first request that brings it, and written before its bytes are sent; the first writer wins.
  Where nothing may be claimed, a first request is decided by itself alone, and that is written once it was accepted.
  A later request whose decision nobody has, or that forces a tool that is deferred, brings its list whole.
  Another list in mid-conversation is another decision. Whatever goes wrong: the list as its client wrote it.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from operator import methodcaller

import msgspec
from cachetools import TTLCache
from msgspec import structs

from policies.dialects import DIALECTS
from policies.dialects.deferring import DeferralForm, DeferredTools, catalog_of, decided, forced, list_digest, searches
from policies.model.conversation import Conversation, new_calls
from policies.model.edits import Insert
from policies.model.memory import StepRecord
from policies.money.prices import Prices
from policies.tools.deferral import Catalog, most_called
from proxy.config import Settings
from proxy.event_loop import in_thread
from proxy.memory import Key, StoreTrouble
from proxy.memory.cached import CachedStore, PendingWrite
from proxy.memory.conversation import Inserts, LiveConversation, ParsedRequest, put_newest
from proxy.requests import WHOLE, ClientRequest, RequestContext, ToolDecision
from proxy.telemetry import Telemetry

_TOOLS = "tools"
"""The anchor of the record of a conversation's first list; those of others have their digest behind it."""
LARGE_LIST = 50_000
"""Bytes of a list that is read in a thread, so that nobody else waits."""
_LISTS = 8
"""Lists of one conversation whose decisions are remembered, the newest."""


def may_defer(settings: Settings) -> bool:
    """True where any request may have its list deferred."""
    presets = (preset.tools for preset in settings.all_presets().values())
    return "defer" in (settings.tools, *(rule.tools for rule in settings.rules), *presets)


def wants_deferral(client_request: ClientRequest, settings: Settings) -> bool:
    options = client_request.options
    preset = settings.all_presets()[options.preset or settings.preset]
    return (options.tools or settings.tools or preset.tools) == "defer"


@dataclass(eq=False)
class ToolDeferral:
    settings: Settings
    store: CachedStore
    telemetry: Telemetry
    called: "CalledTools"
    prices: Callable[[str, str], Prices]
    refuses: Callable[[str, str], bool]
    """True where an upstream takes no deferred definitions for a model."""

    async def __call__(
        self, client_request: ClientRequest, live: LiveConversation, received: ParsedRequest
    ) -> ToolDecision:
        request, form = received.request, DIALECTS[client_request.dialect].deferral
        if form is None or client_request.is_dry or not request.brings_tools:
            return WHOLE
        if not wants_deferral(client_request, self.settings) or not form.takes(request):
            return WHOLE
        if self.refuses(client_request.upstream, request.model):
            return WHOLE
        try:
            if len(request.tool_list) > LARGE_LIST:
                catalog = await in_thread(catalog_of, form, request.tool_list, received.count)
            else:
                catalog = catalog_of(form, request.tool_list, received.count)
            return await self._decided(client_request, live, received, form, catalog)
        except Exception as error:  # law 6: the list goes as the client wrote it
            self.telemetry.log.error("not_deferred", error=type(error).__name__, exc_info=True)
            return WHOLE

    async def settle(self, context: RequestContext, may_claim: bool) -> bool:
        """Have a decision count. False where another does, by which the request is to be planned anew."""
        record, live, is_first = context.tools.record, context.live, context.received.conversation.steps == 1
        assert record is not None  # else it counts
        whole = _whole(_digest_of(record))
        counts = await self._claimed(live.key, record) if may_claim else context.tools.alone if is_first else whole
        put_newest(live.tools, _digest_of(record), counts, _LISTS)
        return counts == record.reason

    def of_first(self, context: RequestContext) -> Iterator[StepRecord]:
        """What was decided for a first request, where its credential could claim nothing: it follows from the request
        alone, and is written once that has been accepted."""
        digest = list_digest(context.received.request.tool_list)
        if context.received.conversation.steps == 1 and digest in context.live.tools:
            yield StepRecord(_TOOLS, reason=context.live.tools[digest])

    async def _decided(
        self,
        client_request: ClientRequest,
        live: LiveConversation,
        received: ParsedRequest,
        form: DeferralForm,
        catalog: Catalog,
    ) -> ToolDecision:
        decision, is_first = live.tools.get(catalog.digest), received.conversation.steps == 1
        if decision is None and client_request.counting is not None:
            return WHOLE
        if decision is None and not is_first:
            lookup = await self.store.look_up(live.key, [_TOOLS, f"{_TOOLS} {catalog.digest}"])
            records = lookup.memory.steps
            if _TOOLS not in records:
                return ToolDecision(is_gone=True)
            decision = next((each.reason for each in records.values() if _digest_of(each) == catalog.digest), None)
            if decision is not None:
                put_newest(live.tools, catalog.digest, decision, _LISTS)
        record, alone = None, ""
        if decision is None:
            if not client_request.may_plan:
                return WHOLE
            called = await self.called.counts(client_request.sender.tenant, catalog.digest)
            prices = self.prices(received.request.model, client_request.upstream)

            def reason(called: Collection[str]) -> str:
                some = decided(form, received.request, received.conversation, catalog, received.count, prices, called)
                return f"{catalog.digest} {','.join(map(str, some))} {prices.read} {prices.write}"

            decision, alone = reason(called), reason(()) if called else ""
            record, alone = StepRecord(_TOOLS, reason=decision), alone or decision
        _, numbers, read, write = decision.split(" ")
        places = tuple(map(int, filter(None, numbers.split(","))))
        tools = DeferredTools(form, catalog, places, received.request.tool_list, (float(read), float(write)))
        # not for a request that has to call one of them: that could be refused
        is_forced = not tools.names.isdisjoint(forced(received.request))
        return ToolDecision(None if is_forced or not places else tools, record, alone)

    async def _claimed(self, key: Key, record: StepRecord) -> str:
        """What counts for the list: the first that was written. Nothing is deferred where the store does not answer."""
        digest = _digest_of(record)
        for anchor in (_TOOLS, f"{_TOOLS} {digest}"):
            first = await self.store.claim(key, replace(record, anchor=anchor))
            if first is None:
                return _whole(digest)
            if _digest_of(first) == digest:
                return first.reason
        return _whole(digest)


def _whole(digest: str) -> str:
    """What a record says of a list of which nothing is deferred."""
    return f"{digest}  1.0 1.0"


def _digest_of(record: StepRecord) -> str:
    return record.reason.partition(" ")[0]


def with_tools(parsed: ParsedRequest, tools: DeferredTools) -> ParsedRequest:
    """The request as it is sent: with what its searches have found, where that stands in the list."""
    hits = tools.found_in(parsed.conversation) if tools.form.finds_in_list else ()
    request = tools.applied_to(parsed.request, parsed.conversation, hits)
    return structs.replace(parsed, request=request, tools=tools)


def without_searches(exchanges: Inserts) -> Inserts:
    """The exchanges that a request can hold where nothing is deferred."""

    def may_stand(insert: Insert) -> bool:
        return not any(searches(call) for each in insert.rounds for call in each.calls)

    return {after: others for after, some in exchanges.items() if (others := [*filter(may_stand, some)])}


# --- what the conversations of a tenant have called: names and counts, for each list ---

_Counts = dict[str, tuple[int, int]]
"""By name, how many conversations have called it, and the day when one did last."""
_COUNTS = msgspec.json.Decoder(_Counts)
_DAYS = 30
"""Days after which a name counts no more."""
_SECONDS = 300.0
"""For which what the store says is remembered."""


@dataclass(eq=False)
class CalledTools:
    store: CachedStore
    clock: Callable[[], float]
    _lists: TTLCache[tuple[str, str], _Counts] = field(default_factory=lambda: TTLCache(1_024, _SECONDS))

    async def counts(self, tenant: str, digest: str) -> Mapping[str, int]:
        """The tools that others have called which have the same list. Empty where the store does not answer."""
        if (tenant, digest) not in self._lists:
            try:
                self._lists[tenant, digest] = await self._stored(_list_key(tenant, digest), waits=True)
            except StoreTrouble:
                return {}
        return {name: count for name, (count, _) in self._lists[tenant, digest].items()}

    def note(self, tenant: str, digest: str, names: Sequence[str]) -> None:
        """A conversation has called these for the first time: that is written behind its request."""
        write = partial(self._add, tenant, digest, names)
        self.store.writes.put(PendingWrite(_list_key(tenant, digest), write))

    async def _add(self, tenant: str, digest: str, names: Sequence[str], pending: PendingWrite) -> None:
        counts = await self._stored(pending.key, waits=False)
        counts |= {name: (counts.get(name, (0, 0))[0] + 1, self._today) for name in names}
        most = most_called({name: count for name, (count, _) in counts.items()})
        self._lists[tenant, digest] = counts = {name: counts[name] for name in most}
        record = StepRecord(_TOOLS, reason=msgspec.json.encode(counts).decode())
        await self.store.ask("called", methodcaller("claim", pending.key, record, supersedes=True), waits=False)

    async def _stored(self, key: Key, *, waits: bool) -> _Counts:
        memory = await self.store.ask("called", methodcaller("memory", key, [_TOOLS]), waits=waits)
        record = memory.steps.get(_TOOLS)
        with suppress(msgspec.DecodeError):
            counts = _COUNTS.decode(record.reason) if record is not None else {}
            return {name: (count, day) for name, (count, day) in counts.items() if day > self._today - _DAYS}
        return {}

    @property
    def _today(self) -> int:
        return int(self.clock() // 86_400)


def _list_key(tenant: str, digest: str) -> Key:
    return Key(tenant, f"\0{_TOOLS} {digest}")  # no conversation that a client can name


def first_calls(conversation: Conversation) -> Iterator[str]:
    """The tools that the newest reply calls, and none before it."""
    calls = conversation.kinds.get("call", ())
    new = new_calls(conversation)
    yield from {*new} - {conversation.blocks[at].tool for at in calls[: len(calls) - len(new)]}
