"""A provider's prompt cache, as arithmetic: how much of a prompt was read from it and written to it.

Laws
  Nothing is read that an earlier request of the same owner did not write: a hit is a digest seen before.
  cached + written <= prompt. What stands after the last boundary is plain input.
  Entries do not grow old: how long a cache lives is the affair of a clock, and there is none here.
How each provider's cache matches is in policies.money.caches.
"""

from collections.abc import Iterator
from itertools import takewhile

from policies.money.caches import CacheRule
from policies.money.prices import Usage
from proxy.lab.provider.prompt import LASTING, Block, Bounded, Count, Prompt

CONTINUATIONS = 32
"""How many continuations of one prefix are remembered, for a comparison within the differing block."""
NODE_WEIGHT = 200
"""What remembering a prefix costs beside the text of its continuations, in characters."""


def lookups(prompt: Prompt, rule: CacheRule) -> list[int]:
    """The prefixes, in blocks, at which an earlier entry is looked for; the longest first."""
    marks = prompt.marked(rule.mark)[-rule.reads :]
    found = {before for mark in marks for before in (mark, *_looked_back(prompt, mark, rule.lookback))}
    if rule.endings and prompt.implicit:
        found.update(prompt.endings[-rule.endings :])
        found.add(prompt.opening)
    return sorted(found - {0}, reverse=True)


def _looked_back(prompt: Prompt, mark: int, lookback: int) -> Iterator[int]:
    first = prompt.positions[mark]
    return takewhile(lambda before: first - prompt.positions[before] < lookback, range(mark - 1, 0, -1))


def writes(prompt: Prompt, rule: CacheRule) -> list[int]:
    """The prefixes, in blocks, that the request writes, in order."""
    own = prompt.endings[-1:] if rule.endings and prompt.implicit else ()
    marks = prompt.marked(rule.mark)[-(rule.writes - len(own)) :]
    return sorted(end for end in {*own, *marks} if prompt.ends[end] >= rule.least)


def lasting(prompt: Prompt, ends: list[int]) -> list[int]:
    """Those of the written prefixes that are kept for the longer time. Anthropic, "Prompt caching", "Mixing different
    TTLs": up to the last of them it costs what such a write costs."""
    return ends if prompt.lasting else [end for end in ends if LASTING in prompt.blocks[end - 1].marks]


class PromptCache:
    """What a provider remembers of earlier prompts, for each owner (a credential and a model) apart."""

    def __init__(self, count: Count, capacity: int = 256_000_000) -> None:
        self._count = count
        self._continued: Bounded[tuple[Block, ...]] = Bounded(capacity)
        self._written: Bounded[int] = Bounded(1_000_000)

    def charge(self, owner: str, prompt: Prompt, rule: CacheRule) -> Usage:
        """Serve a prompt: what it reads and writes; the completion is not known yet."""
        chain = prompt.chain(owner)
        if rule.mark:
            return self._by_breakpoint(chain, prompt, rule)
        cached = self._by_prefix(chain, prompt)
        cached -= cached % rule.step
        return Usage(prompt.tokens, cached if cached >= rule.least else 0, 0, 0)

    def _by_breakpoint(self, chain: tuple[bytes, ...], prompt: Prompt, rule: CacheRule) -> Usage:
        hit = next((end for end in lookups(prompt, rule) if self._written.get(chain[end])), 0)
        ends = writes(prompt, rule)
        for end in ends:
            self._written.put(chain[end], prompt.ends[end], 1)
        cached = prompt.ends[hit]
        written, kept = (max(0, prompt.ends[max(to, default=0)] - cached) for to in (ends, lasting(prompt, ends)))
        return Usage(prompt.tokens, cached, written, 0, kept)

    def _by_prefix(self, chain: tuple[bytes, ...], prompt: Prompt) -> int:
        """Tokens of the longest prefix that an earlier prompt of the owner had; this one is now such."""
        known = sum(1 for _ in takewhile(self._continued.__contains__, chain)) - 1
        shared = prompt.ends[max(known, 0)] + self._within(chain, prompt, known)
        # Deepest first, so that what a prefix is reached by was always used later than the prefix itself.
        for depth in range(len(prompt.blocks), -1, -1):
            before = self._continued.get(chain[depth])
            if depth >= known:
                self._continue(chain[depth], before or (), prompt.blocks[depth : depth + 1])
        return shared

    def _within(self, chain: tuple[bytes, ...], prompt: Prompt, known: int) -> int:
        """Tokens that the first differing block shares with one that stood in its place before."""
        if not 0 <= known < len(prompt.blocks):
            return 0
        others = self._continued.get(chain[known]) or ()
        return max((prompt.blocks[known].shared(other, self._count) for other in others), default=0)

    def _continue(self, prefix: bytes, before: tuple[Block, ...], new: tuple[Block, ...]) -> None:
        following = (*new, *before)[:CONTINUATIONS]
        self._continued.put(prefix, following, NODE_WEIGHT + sum(len(block.text) for block in following))
