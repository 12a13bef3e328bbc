"""A provider's prompt cache, as arithmetic: how much of a prompt was read from it and written to it.

Laws
  Nothing is read that an earlier request of the same owner did not write: a hit is a digest seen before.
  cached + written <= prompt. What stands after the last boundary is plain input.
  Entries do not expire: there is no clock here.
How each provider's cache matches is in policies.money.caches.
"""

from itertools import takewhile

from policies.money.caches import CacheRule
from policies.money.prices import Usage
from proxy.lab.provider.prompt import LONGER, Count, PromptBlock, ProviderPrompt, WeightedLRU

CONTINUATIONS = 32
"""How many continuations of one prefix are remembered, for a comparison within the differing block."""
NODE_WEIGHT = 200
"""What remembering a prefix costs beside the text of its continuations, in characters."""


def lookups(prompt: ProviderPrompt, rule: CacheRule) -> list[int]:
    """The prefixes, in blocks, at which an earlier entry is looked for; the longest first."""
    ends = set[int]()
    for mark in prompt.marked(rule.mark)[-rule.reads :]:
        least = prompt.positions[mark] - rule.lookback
        ends |= {mark, *(end for end in range(1, mark) if prompt.positions[end] > least)}
    if rule.endings and prompt.implicit:
        ends |= {prompt.opening, *prompt.endings[-rule.endings :]}
    return sorted(ends - {0}, reverse=True)


def writes(prompt: ProviderPrompt, rule: CacheRule) -> list[int]:
    """The prefixes, in blocks, that the request writes, in order."""
    own = prompt.endings[-1:] if rule.endings and prompt.implicit else ()
    marks = prompt.marked(rule.mark)[-(rule.writes - len(own)) :]
    return sorted(end for end in {*own, *marks} if prompt.ends[end] >= rule.least)


def longer_writes(prompt: ProviderPrompt, ends: list[int]) -> list[int]:
    """Those of the written prefixes that are stored for the longer lifetime. Anthropic, "Prompt caching", "Mixing
    different TTLs": up to the last of them it costs what such a write costs."""
    return ends if prompt.longer else [end for end in ends if LONGER in prompt.blocks[end - 1].marks]


class PromptCache:
    """What a provider remembers of earlier prompts, for each owner (a credential and a model) apart."""

    def __init__(self, count: Count, capacity: int = 256_000_000) -> None:
        self._count = count
        self._continuations: WeightedLRU[tuple[PromptBlock, ...]] = WeightedLRU(capacity)
        """By the digest of a prefix: the blocks that followed it, the newest first."""
        self._written: WeightedLRU[int] = WeightedLRU(1_000_000)

    def charge(self, owner: str, prompt: ProviderPrompt, rule: CacheRule) -> Usage:
        """Serve a prompt: what it reads and writes; the completion is added later."""
        chain = prompt.chain(owner)
        if rule.mark:
            return self._by_breakpoint(chain, prompt, rule)
        cached = self._by_prefix(chain, prompt)
        cached -= cached % rule.step
        return Usage(prompt.tokens, cached if cached >= rule.least else 0, 0, 0)

    def _by_breakpoint(self, chain: tuple[bytes, ...], prompt: ProviderPrompt, rule: CacheRule) -> Usage:
        hit = next((end for end in lookups(prompt, rule) if self._written.get(chain[end])), 0)
        ends = writes(prompt, rule)
        for end in ends:
            self._written.put(chain[end], prompt.ends[end], 1)
        cached = prompt.ends[hit]
        written = max(0, prompt.ends[max(ends, default=0)] - cached)
        longer = max(0, prompt.ends[max(longer_writes(prompt, ends), default=0)] - cached)
        return Usage(prompt.tokens, cached, written, 0, longer)

    def _by_prefix(self, chain: tuple[bytes, ...], prompt: ProviderPrompt) -> int:
        """Tokens of the longest prefix that an earlier prompt of the owner had; this one is now such."""
        depth_seen = sum(1 for _ in takewhile(self._continuations.__contains__, chain)) - 1
        shared = prompt.ends[max(depth_seen, 0)]
        if 0 <= depth_seen < len(prompt.blocks):  # and the first differing block may begin as one that stood there
            others = self._continuations.get(chain[depth_seen]) or ()
            shared += max((prompt.blocks[depth_seen].shared(other, self._count) for other in others), default=0)
        # Deepest first, so that what a prefix is reached by was always used later than the prefix itself.
        for depth in range(len(prompt.blocks), -1, -1):
            before = self._continuations.get(chain[depth])
            if depth >= depth_seen:
                following = (*prompt.blocks[depth : depth + 1], *(before or ()))[:CONTINUATIONS]
                weight = NODE_WEIGHT + sum(len(block.text) for block in following)
                self._continuations.put(chain[depth], following, weight)
        return shared
