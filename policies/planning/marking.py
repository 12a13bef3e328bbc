"""Which cache marks of ours the request of one step gets.

Law: the first request of a conversation gets none. Only the second proves that there are more.
"""

from collections.abc import Sequence
from itertools import islice

from policies.context import Context
from policies.model.conversation import Block, Conversation
from policies.money.caches import CacheRule
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
    due = (at for policy in policies for at in policy.due(conversation, context, context.step + 1))
    return min((at for at in due if at >= fresh), default=sent)


# --- how far back a provider looks for an entry of its prompt cache, on caches that match only at boundaries ---
# A boundary is a mark, or the end of a message where the provider counts those. An entry that ends before the oldest
# position that is looked up is not found any more, although it may still be there; a mark at its end finds it again.


def oldest_in_reach(conversation: Conversation, end: int, rule: CacheRule) -> int:
    """Where the oldest entry ends that is found from a mark at the end of so many blocks, or, on a cache that takes no
    marks, by a request that ends there; as a number of blocks, 0 where all are found."""
    if not (rule.endings or rule.mark):
        return 0
    blocks = conversation.blocks
    backwards = range(end, 0, -1)
    if rule.endings:
        ends = (at for at in backwards if _ends_message(blocks, at, blocks[at] if at < end else None))
        return next(islice(ends, rule.endings - 1, None), 0)
    one = ("call", "result") if rule.joins_runs else ()
    starts = (at for at in backwards if at == 1 or not blocks[at - 1].kind == blocks[at - 2].kind in one)
    return next(islice(starts, rule.lookback - 1, None), 0)


def _ends_message(blocks: Sequence[Block], at: int, following: Block | None) -> bool:
    """Whether a message of a user, or a group of results, ends before the block `at`, which is the `following` one."""
    newest = blocks[at - 1]
    if following and following.message == newest.message:
        return False
    return newest.kind == "user" or (newest.kind == "result" and (following is None or following.kind != "result"))
