"""Which requests need no plan, because nothing would be decided for them.

Laws
  Where `is_quiet` holds, plan() without a memory changes nothing, sets no cache mark and wants nothing; and as long as
  it holds, a later request is planned the same whether this one was planned or not.
  It costs next to nothing, however long the history is.
What a memory holds may still have to be repeated: edits made under other settings, and summaries of other branches.
"""

from policies.context import Context
from policies.model.conversation import Conversation
from policies.model.summary_record import SummaryUse
from policies.money.ledger import Ledger
from policies.planning.state import Plan, PlanSettings, PlanState
from policies.rules.base import ConfiguredPolicy
from policies.rules.summarize import Summarize

_GROWTH = 3
"""What the next two requests may have at most, by which a mark counts as near, as a multiple of this one."""
_PRESSED = 0.8
"""The share of the high mark from which on one counts as near at the latest."""
_CLEAR = 0.5
"""The share of the high mark up to which it was not reached under a window that an upstream taught either."""


def is_quiet(conversation: Conversation, settings: PlanSettings) -> bool:
    """Whether nothing is decided for a request: it is below the floor, or none of its blocks may be edited at all, as
    in a chat without tools; and no mark of ours is due, no summary wanted, the hard mark not near. A history only
    grows, so what holds of the newest step held of all before it."""
    if settings.prices.window is None:  # another replica may have learned that it is small
        return False
    history = history_tokens(conversation, settings)
    tokens, budgets = settings.head + history, {settings.budget, settings.learned or settings.budget}
    floor, high = min(each.floor for each in budgets), min(each.high for each in budgets)
    locked = settings.is_chat and not settings.recall and not settings.text_protocol
    counted = tokens * max(1.0, settings.factor)
    if tokens >= floor and not (locked and counted <= _CLEAR * high):
        return False
    if counted > high or (settings.marks and tokens >= max(floor, settings.cache.least)):
        return False
    if not all(isinstance(policy, ConfiguredPolicy) for policy in settings.policies):
        return False  # what functions offer is not known
    if settings.summarizing is None:
        return True
    seen, pressed = conversation.steps - 1, _GROWTH * counted > _PRESSED * high
    contexts = [
        Context(seen, settings.prices, budget, settings.count, is_chat=settings.is_chat, pressed=pressed)
        for budget in budgets
    ]
    writers = [policy for policy in settings.policies if isinstance(policy, Summarize)]
    return not any(
        writer.is_wanted(conversation, context, history, history) for writer in writers for context in contexts
    )


def no_plan(conversation: Conversation, settings: PlanSettings) -> Plan:
    """The plan of a quiet request: all of it stays, and its state has no step yet."""
    use = SummaryUse(criteria=settings.summarizing.criteria if settings.summarizing else None)
    tokens, state = history_tokens(conversation, settings), PlanState(Ledger(settings.prices), use=use)
    return Plan(edits=(), new=(), wants=(), reason="", marks=(), before=tokens, after=tokens, state=state)


def history_tokens(conversation: Conversation, settings: PlanSettings) -> int:
    """Tokens of the history as the client wrote it: what stands behind its head."""
    sums, foldable = conversation.client_tokens, settings.exceptions.foldable_system(conversation)
    return sums[-1] - sums[conversation.head] + conversation.tokens(foldable)
