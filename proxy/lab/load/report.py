"""What came of a load: the JSON, and the parts that its text and its page are drawn from."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from proxy.lab.load.client import KINDS, ClientResult
from proxy.lab.load.latencies import PERCENTILES, Latencies
from proxy.lab.load.plan import LoadPlan
from proxy.lab.load.target import TargetSample, TargetUse, use


@dataclass(frozen=True, slots=True)
class LatencyRow:
    """One kind of latency, in milliseconds."""

    kind: str
    count: int
    mean: float
    percentiles: dict[str, float]
    longest: float
    buckets: Sequence[tuple[float, int]] = field(default=(), repr=False)
    """Where each column of its picture ends, and how many fell into it."""


@dataclass(frozen=True, slots=True)
class LoadReport:
    DIGITS = 3
    url: str
    way: str
    """How it was sent, in words."""
    is_whole: bool
    """Whether it came to its end; else it was stopped."""
    seconds: float
    answered: int
    requests_per_second: float
    events: int
    conversations: int
    sent_mb: float
    received_mb: float
    errors: dict[str, int]
    latencies: Sequence[LatencyRow]
    target: TargetUse | None
    """None where the target does not report what it uses, or one of its processes was started again meanwhile."""
    client_longest_stop_ms: float
    """Latencies are not surer than this."""

    def as_json(self) -> dict[str, Any]:
        """The values, but for the pictures."""
        from proxy.console.output import as_json

        whole: dict[str, Any] = as_json(self, 3)
        for row in whole["latencies"]:
            del row["buckets"]
        return whole


def way_of(plan: LoadPlan) -> str:
    """How a plan sends its requests, in words."""
    how = f"{plan.rate:g} requests a second" if plan.rate else f"{plan.concurrency:,} at once"
    think = f", {plan.think:g} s between a reply and the next request" if plan.think else ""
    return f"{how}, {plan.conversations:,} conversations{think}, {plan.streamed:.0%} of them streamed"


def report_of(
    plan: LoadPlan, results: Sequence[ClientResult], samples: Sequence[TargetSample | None], is_whole: bool
) -> LoadReport:
    """All client processes together, and what the target said before and after."""
    seconds, answered = max(each.seconds for each in results), sum(each.answered for each in results)
    events, begun = sum(each.events for each in results), sum(each.conversations for each in results)
    errors: Counter[str] = sum((Counter(each.errors) for each in results), Counter())
    before, after = samples
    used = None
    if before and after and before.starts == after.starts:
        used = use(before, after, seconds, answered, events, begun)
    return LoadReport(
        url=plan.url,
        way=way_of(plan),
        is_whole=is_whole,
        seconds=seconds,
        answered=answered,
        requests_per_second=answered / seconds if seconds else 0.0,
        events=events,
        conversations=begun,
        sent_mb=sum(each.sent_bytes for each in results) / 1e6,
        received_mb=sum(each.received_bytes for each in results) / 1e6,
        errors=dict(errors.most_common()),
        latencies=[row for kind in KINDS if (row := _row(kind, results)).count],
        target=used,
        client_longest_stop_ms=max(each.longest_stop for each in results) * 1000,
    )


def _row(kind: str, results: Sequence[ClientResult]) -> LatencyRow:
    latencies = Latencies(each.latencies[kind] for each in results if kind in each.latencies)
    percentiles = {f"p{at:g}": value for at, value in latencies.percentiles(PERCENTILES).items()}
    return LatencyRow(kind, latencies.count, latencies.mean, percentiles, latencies.longest, latencies.buckets())
