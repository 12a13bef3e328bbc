"""How far back a provider looks for an entry of its prompt cache, on caches that match only at boundaries.

A boundary is a mark, or the end of a message where the provider counts those. An entry that ends before the oldest
position that is looked up is not found any more, although it may still be there; a mark at its end finds it again.
"""

from policies.model.conversation import Conversation
from policies.money.caches import CacheRule


def oldest_in_reach(conversation: Conversation, step: int, rule: CacheRule) -> int:
    """Where the oldest entry ends that is found without another mark, as a number of blocks, in the request of `step`,
    whose newest block is marked where the cache takes marks."""
    blocks, end = conversation.blocks, conversation.ends[step]
    if not rule.mark:
        return 0
    if rule.endings:
        left, at = rule.endings, end
        while at > conversation.head:
            kind, after = blocks[at - 1].kind, blocks[at].message if at < end else -1
            ends_message = blocks[at - 1].message != after
            ends_group = kind == "user" or (kind == "result" and (at == end or blocks[at].kind != "result"))
            if ends_message and ends_group:
                left -= 1
                if not left:
                    return at
            at -= 1
        return 0
    left, at = rule.lookback, end
    while at > 0 and left > 0:
        at -= 1
        kind = blocks[at].kind
        # parallel calls and their results count as one position each
        left -= kind not in ("call", "result") or at == 0 or blocks[at - 1].kind != kind
    return at + 1 if at else 0
