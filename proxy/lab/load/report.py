"""The results of a load: what the target reports of itself on /metrics before and after, the figures, and their text.

Law: what is not known is a dash.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from yarl import URL

from proxy.console.output import plain_table, print_last_line, printable
from proxy.drawing.charts import skyline
from proxy.drawing.html import Node, element, section, table
from proxy.lab.load.client import KINDS, PERCENTILES, ClientResult, Latencies
from proxy.lab.load.plan import LoadPlan
from proxy.lab.terminal import sheet

_PATIENCE = aiohttp.ClientTimeout(total=10)
_STOPS = "narrows_event_loop_lag_seconds"


@dataclass(frozen=True, slots=True)
class TargetSample:
    cpu: float
    """Seconds since it began."""
    rss: float
    stops: Mapping[float, float] = field(default_factory=dict)
    """Stops of its event loop so far that were not longer than so many seconds."""
    starts: frozenset[float] = frozenset()
    """When its processes were started. What was counted by others does not compare."""


@dataclass(frozen=True, slots=True)
class TargetUse:
    JSON = ("cpu_seconds", "cores", "cpu_ms_per_request", "cpu_ms_per_1000_events", "rss_mib_before", "rss_mib_after",
            "conversations_per_gib", "longest_stop_ms")  # fmt: skip

    cpu_seconds: float
    cores: float
    """Processors that it kept busy, in the mean."""
    cpu_ms_per_request: float | None
    cpu_ms_per_1000_events: float | None
    """All of its time by the events that it passed on, so of use where replies are streamed and long."""
    rss_mib_before: float
    rss_mib_after: float
    conversations_per_gib: float | None
    """By what it grew; None where it did not."""
    longest_stop_ms: float | None
    """No stop of its event loop was longer: the next higher of the limits that it counts by. None where it does not
    say, or was longer than any."""


async def sample(url: str) -> TargetSample | None:
    """The target's metrics now; None where it says nothing. Raises ValueError where nothing answers at all."""
    address = URL(url).origin() / "metrics"
    try:
        async with aiohttp.ClientSession(timeout=_PATIENCE) as http, http.get(address) as reply:
            page = await reply.text(errors="replace") if reply.status == 200 else ""
    except (aiohttp.ClientConnectionError, TimeoutError) as error:
        raise ValueError(f"nothing answers at {url} ({type(error).__name__}); start the target first") from error
    except aiohttp.ClientError:
        return None
    return read(page)


def read(page: str) -> TargetSample | None:
    """The figures of a page of metrics; None where the use of processors is not on it."""
    cpu, rss, stops, starts = None, 0.0, dict[float, float](), set[float]()
    try:
        for family in text_string_to_metric_families(page):
            for each in family.samples:
                if each.name == "process_cpu_seconds_total":
                    cpu = (cpu or 0.0) + each.value
                elif each.name == "process_resident_memory_bytes":
                    rss += each.value
                elif each.name == "process_start_time_seconds":
                    starts.add(each.value)
                elif each.name == f"{_STOPS}_bucket":
                    limit = float(each.labels["le"])
                    stops[limit] = stops.get(limit, 0.0) + each.value
    except (ValueError, KeyError):
        return None
    return TargetSample(cpu, rss, stops, frozenset(starts)) if cpu is not None else None


def use(before: TargetSample, after: TargetSample, seconds: float, requests: int, events: int, begun: int) -> TargetUse:
    """The difference of two samples: of so many seconds, answered requests, events, and conversations begun."""
    cpu, grown = after.cpu - before.cpu, (after.rss - before.rss) / 2**30
    return TargetUse(
        cpu_seconds=cpu,
        cores=cpu / seconds if seconds else 0.0,
        cpu_ms_per_request=cpu * 1000 / requests if requests else None,
        cpu_ms_per_1000_events=cpu * 1_000_000 / events if events else None,
        rss_mib_before=before.rss / 2**20,
        rss_mib_after=after.rss / 2**20,
        conversations_per_gib=begun / grown if grown > 0 and begun else None,
        longest_stop_ms=_longest_stop(before, after),
    )


def _longest_stop(before: TargetSample, after: TargetSample) -> float | None:
    if not after.stops:
        return None
    new = {limit: count - before.stops.get(limit, 0.0) for limit, count in sorted(after.stops.items())}
    all_ = max(new.values())
    limit = next(limit for limit, count in new.items() if count >= all_)
    return None if limit == float("inf") else limit * 1000 if all_ else 0.0


@dataclass(frozen=True, slots=True)
class LatencyRow:
    JSON: ClassVar = ("kind", "count", "mean", "percentiles", "longest")

    kind: str
    count: int
    mean: float
    percentiles: dict[str, float]
    longest: float
    buckets: Sequence[int] = ()
    """The columns of its picture, from the shortest latency to the longest, each as much longer than the one before."""
    shortest: float = 0.0


@dataclass(frozen=True, slots=True)
class LoadReport:
    DIGITS = 3
    url: str
    way: str
    is_whole: bool
    """True where it came to its end; else it was stopped."""
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
    recorded_seconds: float | None = None
    """Seconds of the recording that were played; None where requests were not sent as recorded."""


def way_of(plan: LoadPlan) -> str:
    how = f"{plan.rate:g} requests a second" if plan.rate else f"{plan.concurrency:,} at once"
    how = f"as recorded, {plan.speed:g} times as fast" if plan.begins else how
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
        recorded_seconds=min(plan.span, seconds * plan.speed) if plan.begins else None,
    )


def _row(kind: str, results: Sequence[ClientResult]) -> LatencyRow:
    latencies = Latencies(each.latencies[kind] for each in results if kind in each.latencies)
    percentiles = {f"p{at:g}": value for at, value in latencies.percentiles(PERCENTILES).items()}
    return LatencyRow(kind, latencies.count, latencies.mean, percentiles, latencies.longest, *latencies.buckets())


_LAST_LINE = """
    p50 to p99.9: so many of 100 took no longer; first byte: until a reply began; stop of an event loop: how long the
    process answered nobody; CPU and memory are those of all processes of the target.
"""
_SURE = 5.0
"""Milliseconds that a client process may stand still before the report says so."""


def print_load(console: Console, report: LoadReport) -> None:
    console.print(f"{printable(report.url)}: {report.way}", soft_wrap=True)
    grid = plain_table("latency in ms", "count", *_percentiles(report), "max")
    for row in report.latencies:
        grid.add_row(row.kind, f"{row.count:,}", *map(_ms, row.percentiles.values()), _ms(row.longest))
    console.print(grid)
    for label, value in figures(report):
        console.print(f"{label:<34} {value}", soft_wrap=True)
    for note in notes(report):
        console.print(note, soft_wrap=True)
    print_last_line(console, _LAST_LINE)


def load_page(report: LoadReport) -> str:
    heads = ("milliseconds", "count", *_percentiles(report), "max")
    lines: list[tuple[Node, list[Node]]] = [
        (each.kind, [f"{each.count:,}", *map(_ms, each.percentiles.values()), _ms(each.longest)])
        for each in report.latencies
    ]
    return sheet(
        "load",
        "A load",
        f"{report.answered:,} requests to {report.url}",
        element("p", f"{report.url}: {report.way}.", class_="lead"),
        [element("p", note, class_="fault") for note in notes(report)],
        table(("figure", ""), [(label, [value]) for label, value in figures(report)], "sessions"),
        section("Latency", table(heads, lines, "sessions")),
        section("Histograms", [_histogram(each) for each in report.latencies]),
    )


def _histogram(row: LatencyRow) -> Node:
    apart = (row.longest / row.shortest) ** (1 / len(row.buckets))
    words = (
        f"from {_ms(row.shortest)} to {_ms(row.longest)} ms; each column ends at {apart:.2f} times the last one. "
        f"The tallest is {max(row.buckets):,} of {row.count:,}."
    )
    drawn = skyline([(count, count, "ink") for count in row.buckets])
    return element("figure", element("h3", row.kind), drawn, element("figcaption", words))


def figures(report: LoadReport) -> Iterator[tuple[str, str]]:
    """The figures beside latencies: a label and a value each."""
    rate = f"{report.requests_per_second:,.1f} a second"
    yield "requests answered", f"{report.answered:,} in {report.seconds:.1f} s: {rate}"
    if report.recorded_seconds is not None:
        played, lasted = (timedelta(seconds=round(each)) for each in (report.recorded_seconds, report.seconds))
        yield "of the recording", f"{played} in {lasted}"
    yield "conversations begun", f"{report.conversations:,}"
    yield "sent, received", f"{report.sent_mb:,.1f} MB, {report.received_mb:,.1f} MB"
    yield "errors", ", ".join(f"{kind}: {count:,}" for kind, count in report.errors.items()) or "none"
    target = report.target
    if target is None:
        yield "the target", "does not report what it uses (/metrics), or was started again meanwhile"
        return
    yield "CPU of the target", f"{target.cpu_seconds:.2f} s, {target.cores:.2f} cores in the mean"
    yield "CPU per request", _or_dash(target.cpu_ms_per_request, ".3f", " ms")
    yield "CPU per 1,000 events, all of it", _or_dash(target.cpu_ms_per_1000_events, ".3f", " ms")
    yield "memory of the target", f"{target.rss_mib_before:,.0f} MiB before, {target.rss_mib_after:,.0f} MiB after"
    yield "conversations per GiB", _or_dash(target.conversations_per_gib, ",.0f")
    yield "longest stop of its event loop", _or_dash(target.longest_stop_ms, "g", " ms or less")


def notes(report: LoadReport) -> Iterator[str]:
    if not report.is_whole:
        yield f"Stopped after {report.seconds:.1f} s: these are the figures until then."
    if report.client_longest_stop_ms > _SURE:
        longest = report.client_longest_stop_ms
        yield f"A client process itself stood still for up to {longest:.0f} ms: the longest latencies may be its own."


def _percentiles(report: LoadReport) -> list[str]:
    return list(report.latencies[0].percentiles) if report.latencies else []


def _ms(value: float) -> str:
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def _or_dash(value: float | None, form: str, unit: str = "") -> str:
    return f"{value:{form}}{unit}" if value is not None else "-"
