"""The planner's input: what one request brings, what its provider charges, and what a person has configured.

Law: everything that plans a request (the proxy, `compact()`, `narrows explain`) gets its input here, so that the same
request under the same options is planned the same way by all of them.
"""

from dataclasses import dataclass, field, replace

from policies.context import Aim, Summarizing, TokenCounter
from policies.dialects import Added, Consent, Dialect, Request
from policies.dialects.tool_lists import definition_tokens, tool_kinds
from policies.keep import Patterns
from policies.model.conversation import Conversation
from policies.money.caches import CacheRequest, MarkLifetime, OwnMarks, lifetimes_of, rule_for
from policies.money.prices import NO_LIMITS, Budget, BudgetLimits, Prices
from policies.planning.state import PlanSettings
from policies.presets import Preset
from policies.tools import Kinds, Toolbox

_ASKING = ("cache_control", "prompt_cache_")
"""How the members begin that ask the cache for something; what looks like that in others asks for nothing."""


@dataclass(frozen=True, slots=True)
class PlanOptions:
    preset: Preset
    prices: Prices
    """Those listed for the model, whatever this request asks of the cache."""
    aim: Aim | None = None
    """None for that of the preset."""
    limits: BudgetLimits = NO_LIMITS
    budget: Budget | None = None
    """The marks themselves, in the place of those that follow from `limits`."""
    reserve: int | None = None
    """Tokens that the request allows for the answer, where its body cannot say so."""
    recall: bool = True
    recall_always: bool = False
    own_marks: OwnMarks = "auto"
    mark_lifetime: MarkLifetime = "own"
    drop_bound_thinking: bool = True
    """True where Anthropic is asked to drop thoughts that an edit before them invalidates."""
    text_protocol: bool = False
    calibration: float = 1.0
    """Reported tokens per counted token: moves the hard marks only."""
    tool_kinds: Kinds = field(default_factory=dict)
    """Kinds of tools as a person has configured them, by name."""
    summarizing: Summarizing | None = None
    digesting: Prices | None = None
    keep: Patterns = ()


@dataclass(frozen=True, slots=True)
class PlanInput:
    settings: PlanSettings
    tool: Added | None
    """The recall tool and its place in the body; None where it cannot be added."""
    consent: Consent
    """Needed beside the messages, so that the provider takes an edited history."""
    lifetime: float
    """Seconds of disuse after which the provider has forgotten the prompt."""
    editable: bool = True
    """False where the history holds bound thoughts that the request cannot ask to drop: then no policy is asked."""


def assemble(
    dialect: Dialect, request: Request, conversation: Conversation, count: TokenCounter, options: PlanOptions
) -> PlanInput:
    consent = dialect.consent(request) if options.drop_bound_thinking else Consent()
    editable, messages, preset = consent is not None, conversation.messages, options.preset
    reserve = request.reserve if options.reserve is None else options.reserve
    tool = dialect.recall.tool(request, options.recall_always) if editable and options.recall else None
    # where the client uses marks, that proves which kind the upstream takes
    used = dialect.marks.style(request, messages) if options.prices.breakpoints else ""
    rule, bearing = rule_for(request.model, options.prices), [request.spans[at] for at in conversation.marked]
    apart = [span for name, span in request.members.items() if not name.startswith((*_ASKING, dialect.fields.history))]
    asks = CacheRequest.of(request.body, apart, request.spans, bearing, bool(used))
    prices, marks_end = rule.charged(options.prices, asks), dialect.marks.at_end(request, messages) or rule.endings > 0
    marks = used
    if options.own_marks == "auto" and options.prices.breakpoints and not used:
        # a client that leaves no boundary to a provider that sets its own wants nothing cached
        marks = rule.mark if rule.mark in dialect.marks.styles and (prices.breakpoints or not rule.endings) else ""
    slots = max(0, dialect.marks.slots(request, messages)) if marks else 0
    if not (editable and slots and rule.takes_marks(asks)) or options.own_marks == "never":
        marks, slots = "", 0
    if marks and not marks_end:
        prices = rule.charged(options.prices, replace(asks, marked=True))
    may_lengthen = (marks or used) == dialect.marks.longer != "" and rule.takes_marks(asks)
    lifetimes = lifetimes_of(rule, options.prices, options.mark_lifetime, ours=not used) if may_lengthen else None
    removable = preset.exceptions.foldable_system(conversation)
    head = dialect.head_tokens(request, messages, count) - conversation.tokens(removable)
    has_calls = "call" in conversation.kinds
    is_chat = not (request.brings_tools or has_calls or conversation.is_text_protocol)
    budget = options.budget or options.limits.budget(prices, reserve)
    # with no price, only the size can count
    usual_aim = "context" if prices.is_local else preset.aim_for(is_chat=is_chat, window=budget.window)
    aim = options.aim or usual_aim
    if aim == "context" and options.budget is None:
        budget = options.limits.budget(prices, reserve, has_floor=False)
    settings = PlanSettings(
        policies=preset.policies if editable else (),
        prices=prices,
        budget=budget,
        count=count,
        text_protocol=options.text_protocol,
        marks=marks,
        cache=rule,
        slots=slots,
        marks_end=marks_end,
        lifetimes=lifetimes,
        head=head + tool_tokens(tool, count),
        factor=options.calibration,
        recall=tool is not None,
        exchanges=tool is not None and dialect.recall.may_stand(request),
        only_to_fit=tool is None and not request.brings_tools and has_calls,
        aim=aim,
        is_chat=is_chat,
        summarizing=options.summarizing,
        exceptions=preset.exceptions,
        digesting=options.digesting,
        toolbox=Toolbox(options.tool_kinds, tool_kinds(request)),
        keep=options.keep,
        sight=0.0 if is_chat or aim == "context" else preset.sight,
    )
    return PlanInput(settings, tool, consent or Consent(), rule.lifetime(asks), editable)


def tool_tokens(tool: Added | None, count: TokenCounter) -> int:
    return definition_tokens(tool[1], count) if tool else 0
