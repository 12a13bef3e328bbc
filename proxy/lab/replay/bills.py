"""What replayed sessions cost with and without Narrows, what became of their prefix, and what was in sight.

Laws
  Money is what a provider's usage says, at the prices of one table; both bills come from the same arithmetic.
  Sums are sums: the report of several runs adds them up, so a fault in any of them shows.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Literal

from policies.model.summary_record import SummaryCost, SummaryRecord
from policies.money.prices import Prices, Usage
from proxy.lab.breakdown import Weights
from proxy.lab.quality import Sight, Tally, sight

LONG = 60
"""A session with so many requests is a long one."""
Group = Literal["long", "short", "text"]
GROUPS: Mapping[Group, str] = {
    "long": f"{LONG} or more requests, with tools",
    "short": f"fewer than {LONG} requests, with tools",
    "text": "text protocol, without tools",
}
_MILLION = 1e6


@dataclass
class Bill:
    """What requests cost, by what the provider counted. Money in dollars."""

    prices: Prices
    input: float = 0.0
    output: float = 0.0
    tokens: int = 0
    cached: int = 0
    written: int = 0
    peak: int = 0
    completion: int = 0

    def add(self, usage: Usage) -> None:
        """Add one more request."""
        cost = self.prices.cost(usage)
        self.input += cost.input
        self.output += cost.output
        self.tokens += usage.prompt
        self.cached += usage.cached
        self.written += usage.written
        self.peak = max(self.peak, usage.prompt)
        self.completion += usage.completion

    def join(self, other: "Bill") -> None:
        """Add another bill of the same prices."""
        self.input += other.input
        self.output += other.output
        self.tokens += other.tokens
        self.cached += other.cached
        self.written += other.written
        self.peak = max(self.peak, other.peak)
        self.completion += other.completion

    @property
    def total(self) -> float:
        """Input and output."""
        return self.input + self.output


@dataclass
class Recalls:
    """What recalls took. `bill` is that of the rounds: the requests of a turn after its first."""

    bill: Bill
    rate: float = 0.0
    """The stated share of the uses of hidden text at which the model recalls it."""
    calls: int = 0
    """Recalls answered with what they asked for."""
    refused: int = 0
    """Recalls of what is not there."""
    rounds: int = 0

    def add(self, calls: int, refused: int, rounds: Iterable[Usage]) -> None:
        """The recalls of one turn."""
        self.calls += calls
        self.refused += refused
        for usage in rounds:
            self.rounds += 1
            self.bill.add(usage)

    def join(self, other: "Recalls") -> None:
        """Add those of another run at the same rate."""
        self.bill.join(other.bill)
        self.rate = other.rate
        self.calls += other.calls
        self.refused += other.refused
        self.rounds += other.rounds

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "rate": self.rate,
            "calls": self.calls,
            "refused": self.refused,
            "rounds": self.rounds,
            "tokens": self.bill.tokens,
            "input_bill": round(self.bill.input, 6),
        }


@dataclass
class Summaries:
    """What summaries took. `bill` is that of the calls, at the prices of whoever writes them."""

    bill: Bill
    batch: int = 0
    """So many tokens have to go for each; 0 where none are wanted."""
    calls: int = 0
    made: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    """Answers that may not be used, by reason."""
    failed: int = 0
    """Those wanted of which no answer came."""
    adopted: int = 0
    covered: int = 0
    """Tokens, as the client wrote them, for which any of them was to stand."""
    outputs: int = 0
    """Those that are digests, each of one output."""
    bound: int = 0
    """How many calls that is worth."""

    def answered(self, record: SummaryRecord) -> None:
        """One more was answered, to be used or not."""
        self.made += not record.rejected
        if record.rejected:
            self.rejected[record.rejected] += 1
        if record.kind == "digest":
            self.outputs += 1
        else:
            self.covered = max(self.covered, record.tokens_before)
        self.bound = self.outputs + (ceil(self.covered / self.batch) if self.batch else 0)

    def charge(self, before: SummaryCost, now: SummaryCost) -> None:
        """What one turn added to what was spent: mostly there is one call, or none."""
        self.calls += now.calls - before.calls
        names = ("prompt", "cached", "written", "completion")
        usage = Usage(*(getattr(now, name) - getattr(before, name) for name in names))
        if usage.prompt:
            self.bill.add(usage)

    def join(self, other: "Summaries") -> None:
        """Add those of another run with the same model."""
        self.bill.join(other.bill)
        self.batch = other.batch
        self.rejected += other.rejected
        for name in ("calls", "made", "failed", "adopted", "covered", "outputs", "bound"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "model": self.bill.prices.model,
            "made": self.made,
            "adopted": self.adopted,
            "rejected": self.rejected.total(),
            "rejected_because": dict(self.rejected),
            "failed": self.failed,
            "calls": self.calls,
            "bound": self.bound,
            "tokens_covered": self.covered,
            "tokens_in": self.bill.tokens,
            "tokens_out": self.bill.completion,
            "dollars": round(self.bill.total, 6),
        }


@dataclass(frozen=True, slots=True)
class Answered:
    """One request of a session: what its reply said of the prefix, and the tokens of its prompt, those of recall rounds
    included, as sent and as they would have been."""

    prefix: str
    """`REFUSED` where it was not answered."""
    sent: int = 0
    baseline: int = 0
    given_up: int = 0
    """Tokens that were in the provider's cache and had to be sent anew because of us."""

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        tokens = {"with": self.sent, "without": self.baseline}
        return {"prefix": self.prefix, "tokens_sent": tokens, "cached_tokens_given_up": self.given_up}


REFUSED = "refused"


@dataclass
class Report:
    """What became of one session, in one run or in several."""

    name: str
    model: str
    bill: Bill
    baseline: Bill
    """The bill of doing nothing."""
    runs: int = 1
    requests: int = 0
    rejected: int = 0
    """Requests that the provider refused as invalid."""
    failed: int = 0
    """Requests without a complete answer for another reason: a real upstream has many."""
    refusal: str = ""
    """What was said at the first of these."""
    changed: int = 0
    """Requests, rounds included, that did not begin with the whole of the one before, as the provider got them."""
    undeclared: int = 0
    """Those of them whose reply did not say so."""
    failed_open: int = 0
    prefixes: Counter[str] = field(default_factory=Counter)
    given_up: int = 0
    """Tokens that were in the provider's cache and had to be sent anew because of us."""
    worst: float = 0.0
    """The highest ratio of the bill so far to that of doing nothing so far, at any request."""
    seen: Sight = field(default_factory=sight)
    """By one run: the others are alike."""
    recalls: Recalls = field(init=False)
    summaries: Summaries = field(init=False)
    protocol: str = "tools"
    each: list[Answered] = field(default_factory=list)
    """Its requests, of one run."""
    last: Weights | None = None
    """What the last of them weighed, of one run; None where nothing is known of it."""
    preset: str = ""
    seconds: list[float] = field(default_factory=list)
    added_ms: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.recalls = Recalls(Bill(self.bill.prices))
        self.summaries = Summaries(Bill(self.bill.prices))

    @property
    def tokens(self) -> int:
        """All that was sent."""
        return self.bill.tokens + self.summaries.bill.tokens

    @property
    def input(self) -> float:
        """The input side of the bill. All that summaries cost is on it: they are made to make it smaller."""
        return self.bill.input + self.summaries.bill.total

    @property
    def total(self) -> float:
        """The whole bill."""
        return self.input + self.bill.output

    @property
    def calls(self) -> Mapping[str, int]:
        """How often a model was asked beyond the session's own requests, by what for."""
        made = self.summaries
        digests = made.outputs if made.batch else made.calls
        return {"recall_rounds": self.recalls.rounds, "summaries": made.calls - digests, "digests": digests}

    @property
    def spent(self) -> float:
        """What these calls cost, in dollars: of a recall its input, because what is said at last is said once."""
        return self.recalls.bill.input + self.summaries.bill.total

    @property
    def ratio(self) -> float:
        """The input side of the bill, against doing nothing."""
        return self.input / self.baseline.input if self.baseline.input else 1.0

    @property
    def checkpoints(self) -> int:
        """Declared rewrites that were not tail cuts."""
        return sum(times for word, times in self.prefixes.items() if word.startswith("checkpoint"))

    @property
    def faults(self) -> int:
        """Whatever must not be: of these, one is too many."""
        return (
            self.rejected + self.failed + self.undeclared + self.failed_open + self.seen.all.lost + self.recalls.refused
        )

    @property
    def uses_of_hidden(self) -> int:
        """Turns times hidden texts that they would need, in all runs."""
        return self.seen.hidden * self.runs

    @property
    def group(self) -> Group:
        """With which others it is compared."""
        if self.protocol == "text":
            return "text"
        return "long" if self.requests >= LONG * self.runs else "short"

    def refuse(self, status: int, text: str) -> None:
        """A request without a complete answer; a provider says 400 to what is not valid."""
        self.requests += 1
        self.rejected += status == 400
        self.failed += status != 400
        self.refusal = self.refusal or f"{status}: {text}"
        self.each.append(Answered(REFUSED))

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        bills = {"with": self.bill, "without": self.baseline}
        sights = {"all": self.seen.all, "rare": self.seen.rare, "quoted": self.seen.quoted}
        return {
            "session": self.name,
            "preset": self.preset,
            "prices": self.model,
            "prices_known": self.bill.prices.listed,
            "protocol": self.protocol,
            "runs": self.runs,
            "requests": self.requests,
            "checkpoints": self.checkpoints,
            "prefix": dict(self.prefixes),
            "cached_tokens_given_up": self.given_up,
            "each_request": [answered.as_json() for answered in self.each],
            "layers_of_the_last_request": [layer.as_json() for layer in self.last.layers] if self.last else [],
            "tokens_sent": {"with": self.tokens, "without": self.baseline.tokens},
            "peak_context": {name: bill.peak for name, bill in bills.items()},
            "input_bill": {
                "with": round(self.input, 6),
                "without": round(self.baseline.input, 6),
                "ratio": round(self.ratio, 4),
            },
            "whole_bill": {"with": round(self.total, 6), "without": round(self.baseline.total, 6)},
            "worst_ratio_at_any_stop": round(self.worst, 4),
            "validity_errors": self.rejected,
            "unanswered": self.failed,
            "first_refusal": self.refusal or None,
            "prefix_changes": self.changed,
            "undeclared_prefix_changes": self.undeclared,
            "failed_open": self.failed_open,
            "recalls": {"uses_of_hidden_text": self.uses_of_hidden, **self.recalls.as_json()},
            "summaries": self.summaries.as_json(),
            "used_by_later_turns": {name: _tallied(tally) for name, tally in sights.items()},
        }


def _tallied(tally: Tally) -> dict[str, Any]:
    return {
        "used": tally.used,
        "visible": tally.visible,
        "recoverable_by_recall": tally.recallable,
        "recoverable_by_running_again": tally.again,
        "behind_a_stub_without_way_back": tally.stubbed,
        "lost": tally.lost,
        "share_visible": round(tally.share, 4),
    }


def joined(reports: Sequence[Report]) -> Report:
    """The runs of one session as one report."""
    first = reports[0]
    whole = Report(first.name, first.model, Bill(first.bill.prices), Bill(first.bill.prices), runs=0)
    whole.summaries = Summaries(Bill(first.summaries.bill.prices))
    for report in reports:
        whole.bill.join(report.bill)
        whole.baseline.join(report.baseline)
        whole.recalls.join(report.recalls)
        whole.summaries.join(report.summaries)
        whole.prefixes += report.prefixes
        whole.seconds += report.seconds
        whole.added_ms += report.added_ms
        for name in ("runs", "requests", "rejected", "failed", "changed", "undeclared", "failed_open", "given_up"):
            setattr(whole, name, getattr(whole, name) + getattr(report, name))
        whole.worst = max(whole.worst, report.worst)
        whole.refusal = whole.refusal or report.refusal
    whole.seen, whole.protocol = first.seen, first.protocol
    whole.each, whole.last, whole.preset = first.each, first.last, first.preset
    return whole
