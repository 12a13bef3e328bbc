"""The report of a load, as text for a terminal and as a page.

Law: both say what the report says; what is not known is a dash.
"""

from collections.abc import Iterator

from rich.console import Console

from proxy.console.output import plain_table, print_last_line, printable
from proxy.drawing import charts
from proxy.drawing.html import Node, element, table
from proxy.lab.load.report import LatencyRow, LoadReport
from proxy.lab.reports.page_file import sheet

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


def page(report: LoadReport) -> str:
    heads = ("milliseconds", "count", *_percentiles(report), "max")
    rows: list[tuple[Node, list[Node]]] = [
        (row.kind, [f"{row.count:,}", *map(_ms, row.percentiles.values()), _ms(row.longest)])
        for row in report.latencies
    ]
    figures_: list[tuple[Node, list[Node]]] = [(label, [value]) for label, value in figures(report)]
    return sheet(
        "load",
        "A load",
        f"{report.answered:,} requests to {report.url}",
        element("p", f"{report.url}: {report.way}.", class_="lead"),
        [element("p", note, class_="fault") for note in notes(report)],
        table(("figure", ""), figures_, "sessions"),
        element("section", element("h2", "Latency"), table(heads, rows, "sessions")),
        element("section", element("h2", "Histograms"), [_histogram(row) for row in report.latencies]),
    )


def _histogram(row: LatencyRow) -> Node:
    ends = [end for end, _ in row.buckets]
    counts = [count for _, count in row.buckets]
    apart = ends[1] / ends[0] if len(ends) > 1 else 1.0
    words = (
        f"from {_ms(ends[0] / apart)} to {_ms(row.longest)} ms; each column ends at {apart:.2f} times the last one. "
        f"The tallest is {max(counts):,} of {row.count:,}."
    )
    return element("figure", element("h3", row.kind), charts.histogram(counts), element("figcaption", words))


def figures(report: LoadReport) -> Iterator[tuple[str, str]]:
    """What is not a latency: a label and a value each."""
    yield (
        "requests answered",
        f"{report.answered:,} in {report.seconds:.1f} s: {report.requests_per_second:,.1f} a second",
    )
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
    """What a reader must know of these figures."""
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
