"""From a request to what it is planned under: the preset in force, prices, budget, tools, and a digest of all that.

Law: what does not follow from the history is worked out once, and used again for as long as everything that it follows
from stays the same; it comes out as if it were worked out anew.
"""

from dataclasses import fields, replace
from hashlib import sha256
from itertools import takewhile

from cachetools import LRUCache

from policies.assemble import PlanOptions, assemble
from policies.dialects import DIALECTS, Consent
from policies.keep import joined
from policies.money.budget import BudgetLimits
from policies.planning.state import PlanSettings
from policies.presets import described
from proxy.config import Settings
from proxy.kernel.learned import LearnedWindow
from proxy.memory.conversation import Assembly, LiveConversation, ParsedRequest
from proxy.requests import ClientRequest
from proxy.summaries.background import policy_of
from proxy.upstreams.price_book import PriceBook


class Assembler:
    """Assembles what requests are planned under."""

    def __init__(self, settings: Settings, price_book: PriceBook) -> None:
        self._settings, self.prices_of = settings, price_book.prices
        self._rows = {row.name: row for row in settings.upstream_rows}
        limits = BudgetLimits(**{limit.name: getattr(settings, limit.name) for limit in fields(BudgetLimits)})
        self._limits = {"": limits} | {name: _within(limits, row.window) for name, row in self._rows.items()}
        """By upstream; also for a request of which no upstream is known."""
        self._presets, self._stale = settings.all_presets(), settings.stale
        self._refused_marks: LRUCache[tuple[str, str], bool] = LRUCache(1024)
        """The upstreams that answered 400 to cache marks of ours, and for which models."""

    def assemble(
        self,
        client_request: ClientRequest,
        live: LiveConversation,
        parsed: ParsedRequest,
        learned: LearnedWindow | None,
        *,
        restored: bool,
    ) -> Assembly | None:
        """What the request is planned under; None where its history may not be edited. `learned`: what its upstream
        has said of the window; `restored`: whether recall exchanges were put back."""
        request, dialect = parsed.request, DIALECTS[client_request.dialect]
        consent = dialect.consent(request) if self._settings.drop_bound_thinking else Consent()
        if consent is None:
            return None
        reserve = request.reserve
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

    def refuse_marks(self, upstream: str, model: str) -> None:
        """Set no cache marks of ours for this model there any more. Only this process knows."""
        self._refused_marks[upstream, model] = True

    def context_tokens_of(self, client_request: ClientRequest) -> int | None:
        """The size that the request's prompt is kept below; None where that follows from the window alone."""
        return client_request.context_tokens or self._settings.context_tokens

    def fitting_tokens(
        self, client_request: ClientRequest, parsed: ParsedRequest, learned: LearnedWindow | None
    ) -> int:
        """The most tokens that a prompt may have without room being made, whatever a price tier says."""
        model, reserve = parsed.request.model, parsed.request.reserve
        upstream = client_request.upstream
        limits = replace(self._limits[upstream], context_tokens=self.context_tokens_of(client_request))
        prices = replace(self.prices_of(model, upstream), tiers=())
        budget = learned.budget(limits, prices, reserve, has_floor=False) if learned else limits.budget(prices, reserve)
        return budget.high

    def _origin(
        self, client_request: ClientRequest, parsed: ParsedRequest, reserve: int | None, learned: LearnedWindow | None
    ) -> tuple[object, ...]:
        """All that an assembly follows from, where no message has cache marks: the request but for its history, and
        the few properties of that which count."""
        request, conversation, upstream = parsed.request, parsed.conversation, client_request.upstream
        start, end = request.spans[0][0], request.spans[-1][1]
        leading = takewhile(lambda message: message.role in ("system", "developer"), conversation.messages)
        return (
            *(client_request.is_dry, client_request.preset, client_request.aim, client_request.context_tokens),
            *(client_request.keep, client_request.stale, reserve, learned, upstream),
            *((upstream, request.model) in self._refused_marks, self.prices_of(request.model, upstream)),
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
        stale = client_request.stale.over(options.preset.writing.stale).over(self._stale)
        return Assembly(
            settings=settings,
            tool=plan_input.tool,
            consent=plan_input.consent,
            lifetime=self._settings.cold_seconds or plan_input.lifetime,
            preset=replace(options.preset, writing=replace(options.preset.writing, stale=stale)),
            policy=policy_of(client_request.preset or self._settings.preset, options.preset),
            fingerprint=_fingerprint(client_request, settings),
            head=sha256(b"\0".join((request.model.encode(), *before_messages))).hexdigest()[:32],
            end=request.spans[-1][1],
        )

    def _options(self, client_request: ClientRequest, model: str, reserve: int | None) -> PlanOptions:
        settings, upstream = self._settings, client_request.upstream
        row = self._rows.get(upstream)
        own_marks = (row and row.own_marks) or settings.own_marks
        return PlanOptions(
            preset=self._presets[client_request.preset or settings.preset],
            prices=self.prices_of(model, upstream),
            aim=client_request.aim or settings.aim,
            limits=replace(self._limits[upstream], context_tokens=self.context_tokens_of(client_request)),
            reserve=reserve,
            recall=settings.recall != "never",
            recall_always=settings.recall == "always",
            own_marks="never" if (upstream, model) in self._refused_marks else own_marks,
            drop_bound_thinking=settings.drop_bound_thinking,
            text_protocol=settings.text_protocol,
            tool_kinds=settings.tool_kinds,
            keep=joined(settings.keep, client_request.keep),
        )


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
