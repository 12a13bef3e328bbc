"""How far back a provider looks for an entry of its prompt cache, on caches that match only at boundaries.

A boundary is a mark, or the end of a message where the provider counts those. An entry that ends before the oldest
position that is looked up is not found any more, although it may still be there; a mark at its end finds it again.
"""

from collections.abc import Sequence
from itertools import islice

from policies.model.conversation import Block, Conversation
from policies.money.caches import CacheRule


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
