"""Which cache marks of ours the request of one step gets.

Law: the first request of a conversation gets none. Only the second proves that there are more.
"""

from policies.context import Context
from policies.model.conversation import Conversation
from policies.money.lookback import oldest_in_reach
from policies.money.marks import newest_input, own_marks
from policies.planning.state import PlanSettings, PlanState
from policies.rules.base import ConfiguredPolicy
from policies.tools import RECALL


def is_recall_round(conversation: Conversation, step: int) -> bool:
    """Whether the proxy itself made this request, to answer recall calls. The client has part of its reply already, so
    nothing is decided there."""
    is_round = False
    for at in reversed(conversation.arrived(step)):  # the last one is mostly a result
        block = conversation.blocks[at]
        if block.kind == "result":
            if block.tool != RECALL:
                return False
            is_round = True
    return is_round


def ends_in_entry(settings: PlanSettings) -> bool:
    """Whether each request ends with a cache entry without a mark of ours. This is assumed, too, where we set no marks
    and those of the client stand further up: then fewer rewrites seem to pay than do."""
    return settings.marks_end or not settings.marks


def may_mark(settings: PlanSettings, step: int, tokens: int) -> bool:
    """Whether a request of so many tokens may get a mark of ours."""
    return bool(settings.marks) and step > 0 and tokens >= settings.budget.floor


def chosen_marks(
    conversation: Conversation, settings: PlanSettings, state: PlanState, context: Context
) -> tuple[int, ...]:
    """The blocks at whose end the request of this step gets a mark of ours."""
    step, ledger = context.step, state.ledger
    if not may_mark(settings, step, settings.head + ledger.total):
        return ()
    sent = conversation.ends[step]
    changed = sent if state.changed is None else state.changed
    standing = ledger.standing(changed)
    is_lost = standing < oldest_in_reach(conversation, sent, settings.cache)
    stays, is_tail = _stays(conversation, settings, context), changed >= conversation.start(max(0, step - 1))
    marks = own_marks(
        conversation,
        standing=standing if changed < sent or is_lost else 0,
        stays=stays,
        style=settings.marks,
        slots=settings.slots,
        # behind many calls at once a mark there finds nothing either
        tail=is_tail and (not is_lost or standing >= oldest_in_reach(conversation, stays, settings.cache)),
    )
    return tuple(at for at in marks if settings.head + ledger.sums[at + 1] >= settings.cache.least)


def _stays(conversation: Conversation, settings: PlanSettings, context: Context) -> int:
    """The end of the blocks that the next step will send again as they are, as far as can be told now. Where the end of
    the request is a boundary anyway, one before its newest input is worth more."""
    fresh, sent = newest_input(conversation, context.step), conversation.ends[context.step]
    if is_recall_round(conversation, context.step):
        return sent
    if settings.marks_end:
        return fresh if settings.policies else 0
    if settings.only_to_fit:
        return sent
    policies = (policy for policy in settings.policies if isinstance(policy, ConfiguredPolicy))
    due = (at for policy in policies for at in policy.due_next(conversation, context))
    return min((at for at in due if at >= fresh), default=sent)
