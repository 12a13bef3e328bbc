"""Everything in one call, for those who use the policies as a library: a request body in, a shorter one out."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from policies.assemble import PlanInput, PlanOptions, assemble
from policies.context import Aim, Policy, Summarizing
from policies.dialects import DIALECTS, Added, Dialect, Request, dialect_of
from policies.dialects.common import parsed
from policies.dialects.deferring import DeferredTools, catalog_of, decided
from policies.keep import patterns_of
from policies.model.conversation import Conversation, converse
from policies.model.memory import Memory
from policies.model.rawjson import UnreadableError
from policies.model.tokens import Counter, encoding_for
from policies.money.caches import OwnMarks
from policies.money.catalog import prices_for
from policies.money.prices import NO_LIMITS, Budget, BudgetLimits, Prices
from policies.planning.plan import plan
from policies.planning.state import Plan, PlanSettings
from policies.presets import PRESETS, Preset
from policies.render import body_of, render
from policies.tools.deferral import ToolLists


@dataclass(frozen=True, slots=True)
class Compacted:
    body: bytes
    plan: Plan
    conversation: Conversation
    input: PlanInput
    dialect: str
    tools: DeferredTools | None = None
    """Where definitions of tools are deferred."""

    @property
    def settings(self) -> PlanSettings:
        return self.input.settings

    @property
    def tool(self) -> Added | None:
        return self.input.tool


def compact(
    body: bytes,
    *,
    dialect: str | None = None,
    policies: str | Preset | tuple[Policy, ...] = "coding-agent",
    prices: Prices | None = None,
    aim: Aim | None = None,
    budget: Budget | None = None,
    limits: BudgetLimits = NO_LIMITS,
    text_protocol: bool = False,
    recall: bool = False,
    own_marks: OwnMarks = "beside",
    calibration: float = 1.0,
    memory: Memory | None = None,
    summarizing: Summarizing | None = None,
    digesting: Prices | None = None,
    keep: Iterable[str] = (),
    tools: ToolLists | None = None,
) -> Compacted:
    """Compact one request body, with a preset or other policies, at the model's prices or others.

    The same body gives the same result, and a body that extends another one gives a result that extends the other's
    result, but at a checkpoint. With `recall` the recall tool is added where it can be, and stubs name what it takes:
    the caller must then answer its calls (policies.recall). The budget follows from the prices within `limits`, unless
    a `budget` is given; the aim is that of the preset, unless an `aim` is given. `calibration` is the number of tokens
    that the provider reports for each one counted. Cache marks are added beside those of the body alone;
    `own_marks="auto"` adds them wherever the cache takes any. Where the policies want summaries, `summarizing` says how
    they are written, the plan which are wanted, and `memory` which exist; likewise digests of outputs, at the prices
    `digesting`. `keep` names what is never edited. With `tools="defer"` definitions are left to a search, whose calls
    the caller answers; what the history calls was found. Without a `dialect` it is detected from the body. Raises
    ValueError where the body is not a request of the dialect, or `keep` holds what is no pattern; KeyError where there
    is no such dialect or preset.
    """
    preset = PRESETS[policies] if isinstance(policies, str) else policies
    preset = preset if isinstance(preset, Preset) else Preset(preset)
    api = DIALECTS[dialect or dialect_of(parsed(body))]
    request = _split(api, body)
    count = Counter(encoding_for(request.model))
    conversation = converse([api.read(request.raw(i), count) for i in range(len(request.spans))])
    options = PlanOptions(
        preset=preset,
        prices=prices or prices_for(request.model),
        aim=aim,
        budget=budget,
        limits=limits,
        recall=recall,
        own_marks=own_marks,
        text_protocol=text_protocol,
        calibration=calibration,
        summarizing=summarizing,
        digesting=digesting,
        keep=patterns_of(keep),
    )
    deferring = _deferred(api, request, conversation, count, options.prices, tools or preset.tools)
    request = deferring.applied_to(request, conversation, deferring.called_in(conversation)) if deferring else request
    plan_input = assemble(api, request, conversation, count, options)
    result = plan(conversation, plan_input.settings, memory)
    rendering, marks = render(api.name, request, conversation, result), plan_input.settings.marks
    new = body_of(api, request, result, rendering, marks=marks, tool=plan_input.tool, consent=plan_input.consent)
    return Compacted(new, result, conversation, plan_input, api.name, deferring)


def _split(api: Dialect, body: bytes) -> Request:
    request = api.split(body)
    if request is None:
        needs = "it needs `model` and a history of messages or items"
        raise ValueError(f"the body is not a request of {api.name}: {needs}")
    return request


def _deferred(
    api: Dialect, request: Request, conversation: Conversation, count: Counter, prices: Prices, tools: ToolLists
) -> DeferredTools | None:
    form = api.deferral if tools == "defer" and request.brings_tools else None
    if form is None or not form.takes(request):
        return None
    with suppress(UnreadableError):
        catalog = catalog_of(form, request.tool_list, count)
        places = decided(form, request, conversation, catalog, count, prices, step=0)
        return DeferredTools(form, catalog, places, request.tool_list, (prices.read, prices.write)) if places else None
    return None
