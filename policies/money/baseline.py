"""What a request would have cost with nothing done: its history unedited, with the cache that it would have had.

The prompt's size is the provider's own count of this very request, and what compaction took out of it by our count.
What the cache would have held follows from its rules (policies.money.caches): all of the request before, up to the
newest boundary, for as long as the provider keeps it. A provider may keep less, or know more (tools and instructions
that another conversation sent, the same request a second time): how much it did read of what was sent says that, where
it can.

Laws
  Nothing depends on when this is computed, or where: it follows from the request, its usage and the time since the one
  before it.
  A request that went as the client wrote it, behind others of its kind, would have cost what it did.
"""

from dataclasses import dataclass, replace

from policies.money.caches import CacheRule
from policies.money.prices import Prices, Usage

_SLACK = 0.05
"""By which share tokens read may differ from those expected before that says anything: so good are our counts."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt, in tokens of the provider."""

    tokens: int
    before: int = 0
    """Of the request before it, with which it begins; 0 for the first one."""
    boundary: int = 0
    """Up to the newest place at which the cache may hold an entry: all of them where it matches any prefix."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What became of the cache for the prompt that was sent in its place; of that, in tokens."""

    before: int
    """What stands where the request before stood."""
    cached: int
    """What was read."""
    is_rewritten: bool
    """Whether an edit of this request, or of the client's, touches what stood before."""
    added: int | None = None
    """The tokens put in front of the prompt, where nothing in it was edited; None where something was."""


@dataclass(frozen=True, slots=True)
class CacheTerms:
    """How a cache charges one request."""

    rule: CacheRule
    prices: Prices
    """Whatever the request asks of the cache."""
    is_warm: bool
    """Whether the request before was sent so lately that the cache may still hold it."""
    is_longer: bool = False
    """Whether writes are for the longer of two lifetimes."""


def usage_without(prompt: Prompt, terms: CacheTerms, evidence: Evidence | None = None) -> Usage:
    """The usage that the prompt would have had, without its answer; by the rules alone where there is no evidence."""
    rule, least = terms.rule, max(1, terms.rule.least)
    share, beyond = float(terms.is_warm), 0
    slack = 0
    if evidence is not None:
        slack = max(2 * rule.step, round(evidence.before * _SLACK))
        if not evidence.is_rewritten and evidence.before >= least:  # else what is missing may be missing by our doing
            is_whole = evidence.before - evidence.cached <= slack
            share = 1.0 if is_whole else evidence.cached / evidence.before
        beyond = evidence.cached - evidence.before
    cached = round(min(prompt.before, prompt.boundary) * share) + (beyond if beyond > slack else 0)
    if evidence is not None and evidence.added is not None:  # what was read says it, but for where a step ends
        read = max(0, evidence.cached - evidence.added)
        cached = min(max(cached, read), read + rule.step - 1)
    cached = min(cached, prompt.boundary)
    cached -= cached % rule.step
    cached = cached if cached >= least else 0
    is_entry = terms.prices.breakpoints and prompt.boundary >= least
    written = prompt.boundary - cached if is_entry else 0
    return Usage(prompt.tokens, cached, written, 0, written if terms.is_longer else 0)


def with_marks(prompt: Prompt, *, was_marked: bool) -> Prompt:
    """The same prompt with a cache mark of ours at its end; `was_marked`: the request before had one, too."""
    readable = prompt.before if was_marked else min(prompt.before, prompt.boundary)
    return replace(prompt, boundary=prompt.tokens, before=readable)
