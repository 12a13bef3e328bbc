"""Everything in one call, for those who use the policies as a library: a request body in, a shorter one out."""

from dataclasses import dataclass

from policies.caching import caching
from policies.context import Budget, Memory, Policy, Summarizing
from policies.dialects import DIALECTS, Added, Dialect, Request
from policies.dialects.common import parsed
from policies.dialects.detect import dialect_of
from policies.model.conversation import Conversation, converse
from policies.model.tokens import Counter, encoding_for
from policies.money.catalog import prices_for
from policies.money.prices import Prices
from policies.planning.plan import plan
from policies.planning.state import Plan, PlanSettings
from policies.presets import PRESETS, Preset
from policies.tools import Toolbox

_UNKNOWN_WINDOW = 128_000


@dataclass(frozen=True, slots=True)
class Compacted:
    """The new body, and the plan that led to it."""

    body: bytes
    plan: Plan
    conversation: Conversation
    setup: PlanSettings
    tool: Added | None = None
    """Where the recall tool was added; None where it was not."""
    dialect: str = "openai_chat"
    """The API that the body was read as."""


def _split(body: bytes, dialect: str) -> tuple[Dialect, Request]:
    request = DIALECTS[dialect].split(body)
    if request is None:
        raise ValueError(f"the body is not a request of {dialect}: it needs `model` and a history of messages or items")
    return DIALECTS[dialect], request


def compact(
    body: bytes,
    *,
    dialect: str | None = None,
    policies: str | Preset | tuple[Policy, ...] = "coding-agent",
    prices: Prices | None = None,
    budget: Budget | None = None,
    text_protocol: bool = False,
    recall: bool = False,
    memory: Memory | None = None,
    summarizing: Summarizing | None = None,
    digesting: Prices | None = None,
) -> Compacted:
    """Compact one request body, with a preset or other policies, at the model's prices or others.

    The same body gives the same result, and a body that extends another one gives a result that extends the other's
    result, but at a checkpoint. With `recall` the recall tool is added where it can be, and stubs name what it takes:
    whoever asks for that must answer its calls (policies.recall). Where the policies want summaries, `summarizing` says
    how they are made, the plan which are wanted, and `memory` which there are; so it is with digests of outputs, and
    `digesting` says what a model costs that is asked for them.

    Without a `dialect` the body's own shape says it. Raises ValueError where the body is not a request of the dialect,
    KeyError where there is no such dialect or preset.
    """
    preset = PRESETS[policies] if isinstance(policies, str) else policies
    preset = preset if isinstance(preset, Preset) else Preset(preset)
    dialect = dialect or dialect_of(parsed(body))
    speaker, request = _split(body, dialect)
    count = Counter(encoding_for(request.model))
    messages = [speaker.read(request.raw(i), count) for i in range(len(request.spans))]
    listed = prices or prices_for(request.model)
    tool = speaker.recall_tool(request, False) if recall else None
    cached = caching(speaker, request, messages, listed)
    conversation = converse(messages)
    loose = preset.exceptions.loose(conversation)
    head = speaker.head_tokens(request, messages, count) - conversation.tokens(loose)
    setup = PlanSettings(
        preset.policies,
        cached.prices,
        budget or Budget.of(cached.prices, unknown_window=_UNKNOWN_WINDOW, reserve=request.reserve),
        count,
        text_protocol=text_protocol,
        marks=cached.marks,
        slots=cached.slots,
        head=head + (count(tool[1].decode()) if tool else 0),
        recall=tool is not None,
        only_to_fit=tool is None and not request.brings_tools and conversation.has_calls,
        summarizing=summarizing,
        exceptions=preset.exceptions,
        digesting=digesting,
        toolbox=Toolbox(schemas=speaker.tool_kinds(request)),
    )
    planned = plan(conversation, setup, memory)
    changed = dict(speaker.splice(request, conversation, planned.edits))
    for message in planned.marks:
        marked = speaker.marked(changed.get(message, request.raw(message)), cached.marks)
        if marked is not None:
            changed[message] = marked
    new = speaker.joined(request, changed, tool) if changed or tool else body
    return Compacted(new, planned, conversation, setup, tool, dialect)
