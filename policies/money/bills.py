"""Costs of requests, as values: the bill of one, sums of bills, the baseline of a request, what a holdout measures.

Laws
  Paid is what the provider's usage says at its prices; where it reported none, an estimate, counted as one.
  The baseline is an estimate of what the same request would have cost with nothing done: the history unedited, with the
  cache that it would have had. Saved is the difference, may be negative, and is always called an estimate.
  A request whose prices are not known has its tokens counted, and no dollars on any side: nothing is saved on it.
  Nothing here holds text of a conversation, or a credential.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import astuple

from policies.money.caches import CacheRule
from policies.money.prices import Prices, Usage

Arm = Literal["", "on", "holdout", "left"]
"""Of a holdout: compacted, passed as the client wrote it, or in neither arm because it comes near its window, where
nothing passes as the client wrote it (which is told of both arms alike); "" where there is no holdout."""


class Labels(Struct, frozen=True, kw_only=True, omit_defaults=True):
    tenant: str
    owner: str
    """The name of whoever has the credential: a digest, keyed by the tenants' secret."""
    model: str
    preset: str
    api: str
    key: str = ""
    """The name of the key of the gateway that the owner has; "" where it has none, or it is not known."""
    tool: str = ""
    """In rows of tools, which have no model, preset or API."""


class BillSums(Struct, frozen=True, kw_only=True):
    """Tokens, dollars and numbers of requests; dollars are 0 for requests whose prices are not known."""

    requests: int = 0
    original: int = 0
    """Prompt tokens as the client wrote them, in the provider's count as far as that is known."""
    sent: int = 0
    """Prompt tokens that the provider billed in the first round of each reply: what stood in place of `original`."""
    observed: int = 0
    """The part of `original` of requests that were only observed, or held out."""
    observed_sent: int = 0
    """The prompt tokens that their plans would have sent instead."""
    prompt: int = 0
    """Prompt tokens that the provider billed, of all rounds and pings, as are the following three."""
    cached: int = 0
    written: int = 0
    output: int = 0
    paid: float = 0.0
    """Dollars for all rounds and pings, without summaries."""
    baseline: float = 0.0
    baseline_marked: float = 0.0
    """The baseline with the cache marks of ours: what is below `baseline` is saved by marks, the rest by compaction."""
    by_rules: float = 0.0
    """The baseline as the rules of the cache alone would have it, whatever was read or sent: told alike of what is
    compacted and of what is not, it is the size by which conversations are compared."""
    recalls: float = 0.0
    """The part of `paid` for rounds that answer recalls."""
    summaries: float = 0.0
    """Dollars for summaries and digests, beside `paid`."""
    ping_cost: float = 0.0
    """The part of `paid` for pings, by which a prompt stays in the provider's cache while nothing is asked."""
    pings: int = 0
    pause_cost: float = 0.0
    """The part of `paid` for writing again what had been cached, because it had expired after a pause."""
    expired: int = 0
    """Requests that found it so."""
    pause_saving: float = 0.0
    """What requests behind a pause would have paid more, had pings and longer lifetimes not kept the cache: an
    estimate, of which the cost of these is not taken off."""
    bridged: int = 0
    """Such requests."""
    rounds: int = 0
    """Requests sent upstream to answer recalls."""
    recalled: int = 0
    """Recall calls answered with what they asked for."""
    refused: int = 0
    """Recall calls of what is not there."""
    rewritten: int = 0
    """Tokens that were in the provider's cache and were written again, because what stood before them had changed."""
    estimated: int = 0
    """Requests whose usage the provider did not report."""
    unpriced: int = 0
    """Requests to models whose prices are not known."""
    checked: int = 0
    """Requests that went unedited (but for the recall tool), whose bill can be compared with what the rules by which
    baselines are told would have foretold."""
    checked_paid: float = 0.0
    checked_error: float = 0.0
    """Dollars by which that missed what was paid, each counted as positive."""
    calls: int = 0
    """In rows of tools: calls of it, beside the `requests` with its definition, whose tokens are `sent` and `paid`."""

    @property
    def saved(self) -> float:
        """An estimate: of the baseline, what neither requests, pings nor summaries took."""
        return self.baseline - self.paid - self.summaries

    @property
    def saved_by_marks(self) -> float:
        """The part of `saved` that our cache marks account for; compaction does for the rest."""
        return self.baseline - self.baseline_marked

    @property
    def baseline_error(self) -> float | None:
        """By which share the baseline missed what was paid, where both are known; None where nothing was compared."""
        return self.checked_error / self.checked_paid if self.checked_paid else None

    def __add__(self, other: "BillSums") -> "BillSums":
        sums = (mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True))
        return BillSums(**dict(zip(self.__struct_fields__, sums, strict=True)))


class RequestBill(Struct, frozen=True, kw_only=True):
    """The cost of one request of a client, over all rounds of its reply. Where `sums.requests` is 0, it is that of a
    summary, a digest or a ping for this conversation."""

    id: str
    """No other bill has it; what is stored again under it counts once: a request's is in `x-narrows-request-id`."""
    at: float
    """When its reply ended, in seconds since 1970."""
    labels: Labels
    conversation: str
    """"" where it is not known: the bill is added to the day alone."""
    prefix: str
    """The outcome of its prefix, as in `x-narrows-prefix`."""
    mode: str
    """As in `x-narrows-mode`; "summary" for what a summary cost, "ping" for what a ping did."""
    arm: Arm = ""
    sums: BillSums
    edits: str = ""
    """Its edits by policy, as in `x-narrows-edits`."""
    added_ms: float = 0.0
    anchor: str = ""
    """The step of the history that it ends at, as the store names it."""

    @property
    def cache_outcome(self) -> str:
        """What it found in the provider's cache of the request before, and why no more."""
        sums = self.sums
        if self.prefix == "first":
            return "first"
        if sums.estimated:
            return "unreported"
        if sums.expired:
            return "expired"
        if sums.bridged:
            return "bridged"
        if sums.cached > sums.rewritten:
            return "read"
        return "rewritten" if sums.rewritten or self.prefix == "client-changed" else "missed"


class ToolUse(Struct, frozen=True, kw_only=True):
    """The tools of a request; dollars are an estimate, as the provider reports the prompt as a whole."""

    definitions: tuple[tuple[str, int], ...]
    """Those in its prompt, each name once, and their tokens in our count."""
    calls: tuple[str, ...] = ()
    """Of the newest reply in its history."""
    each: float = 0.0
    """Dollars for a token of the definitions."""


def head_price(tokens: int, usages: Iterable[Usage], prices: Prices) -> float:
    """Dollars for so many tokens at the head of a prompt: in each call read from the cache, else written as it was."""
    dollars = 0.0
    for usage in usages:
        cached = min(tokens, usage.cached)
        written = min(tokens - cached, usage.written)
        dollars += prices.cost(Usage(tokens, cached, written, 0, min(written, usage.written_longer))).input
    return dollars if prices.listed else 0.0


class DayRow(Struct, frozen=True, kw_only=True):
    """The sums of a day (as in 2026-01-31, UTC) under the same labels."""

    day: str
    labels: Labels
    sums: BillSums
    prefixes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Of each outcome of the prefix the number of requests, and the tokens written again."""


class ConversationRow(Struct, frozen=True, kw_only=True):
    """The sums of a conversation; the labels are those of its newest request."""

    conversation: str
    labels: Labels
    arm: Arm
    """By `arm_of` of its bills, in the order in which they came."""
    first_at: float
    at: float
    sums: BillSums


def arm_of(before: Arm, newest: Arm) -> Arm:
    return before if before in ("", newest) else "left"


# --- the baseline: a request with nothing done ---
# The prompt's size is the provider's own count of this very request, and what compaction took out of it by our count.
# What the cache would have held follows from its rules (policies.money.caches): all of the request before, up to the
# newest boundary, for as long as the provider keeps it. A provider may keep less, or know more (tools and instructions
# that another conversation sent, the same request a second time): how much it did read of what was sent says that.
# Laws: it follows from the request, its usage and the time since the one before it alone; a request that went as the
# client wrote it, behind others of its kind, would have cost what it did

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
    """The cache of the prompt that was sent in its place; in tokens of that."""

    before: int
    """In the place where the request before stood."""
    cached: int
    is_rewritten: bool
    """True where an edit of this request, or of the client's, touches what stood before."""
    added: int | None = None
    """The tokens put in front of the prompt, where nothing in it was edited; None where something was."""


@dataclass(frozen=True, slots=True)
class CacheTerms:
    rule: CacheRule
    prices: Prices
    """Those of the model, whatever the request asks of the cache."""
    is_warm: bool
    """True where the request before was sent so lately that the cache may still hold it."""
    is_longer: bool = False
    """True where writes are for the longer of two lifetimes."""


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


# --- a holdout: what compacted conversations cost, compared with those that passed as the client wrote them ---
# Conversations differ in size by far more than compaction saves. So each arm's cost is taken in proportion to its size:
# the baseline by the rules of the cache alone, which is told alike in both arms (`BillSums.by_rules`). Where these
# rules are wrong, they are wrong in both, and the quotient of the two proportions is what is measured.
# Law: what is said is said with an interval of 95 %. The spread is that of leaving out one conversation after the other
# (the jackknife), on the logarithm of the quotient, and Student's t by how many conversations there are in each arm

FEWEST = 8
"""Conversations in each arm without which nothing is said."""
_NORMAL_QUANTILE = 1.959964


@dataclass(frozen=True, slots=True)
class ArmCounts:
    """How many conversations are in each arm, and how many in neither."""

    on: int
    holdout: int
    left: int


@dataclass(frozen=True, slots=True)
class MeasuredSaving:
    """A share of what conversations would have cost: 0.2 is a fifth saved; less than 0, they cost more."""

    share: float
    low: float
    high: float


def arm_counts(rows: Iterable[ConversationRow]) -> ArmCounts:
    arms = [row.arm for row in rows]
    return ArmCounts(arms.count("on"), arms.count("holdout"), arms.count("left"))


def measured_saving(rows: Sequence[ConversationRow]) -> MeasuredSaving | None:
    """The saving of the compacted ones; None where there are too few in either arm, or prices are not known."""
    sums = {arm: [row.sums for row in rows if row.arm == arm and row.sums.by_rules > 0] for arm in ("on", "holdout")}
    on, out = (_Proportion.of([(each.paid + each.summaries, each.by_rules) for each in of]) for of in sums.values())
    if on is None or out is None:
        return None
    total = on.variance + out.variance
    if total:
        freedom = total**2 / (on.variance**2 / (on.count - 1) + out.variance**2 / (out.count - 1))
        spread = _student(freedom) * total**0.5
    else:
        spread = 0.0
    quotient = on.log - out.log
    return MeasuredSaving(1 - exp(quotient), 1 - exp(quotient + spread), 1 - exp(quotient - spread))


@dataclass(frozen=True, slots=True)
class _Proportion:
    """The logarithm of an arm's cost in proportion to its size, and its variance."""

    log: float
    variance: float
    count: int

    @classmethod
    def of(cls, costs: Sequence[tuple[float, float]]) -> "_Proportion | None":
        count, paid, size = len(costs), sum(cost for cost, _ in costs), sum(each for _, each in costs)
        if count < FEWEST or min(paid - max(cost for cost, _ in costs), size - max(each for _, each in costs)) <= 0:
            return None
        without = [log((paid - cost) / (size - each)) for cost, each in costs]
        mean = sum(without) / count
        variance = (count - 1) / count * sum((each - mean) ** 2 for each in without)
        return cls(log(paid / size), variance, count)


def _student(freedom: float) -> float:
    """The quantile of Student's t for 95 %, by the expansion of Cornish and Fisher."""
    z, v = _NORMAL_QUANTILE, max(freedom, 2.0)
    terms = ((z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384)
    return z + sum(term / v**at for at, term in enumerate(terms, 1))
