"""`narrows usage`: its options, and the table that it prints."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from proxy.console.arguments import AsJson, offers
from proxy.console.output import console, plain_table, print_json, printable, refusing
from proxy.console.read_store import KeySettings, StoreConfig, StoreTenant, StoreUrl, key_names, read_store, settings_of
from proxy.drawing.figures import dollars, pauses_in_words, percent, short
from proxy.memory import Store
from proxy.usage.report import BY, SINCE, TOOL_COLUMNS, UsageQuery, UsageReport, UsageRow, as_csv, read_usage
from proxy.usage.report import as_json as values_of

_LAST_LINE = "`narrows usage --help` says what each column is."
COLUMNS = ("requests", "original", "sent", "cached", "paid", "baseline", "saved", "summaries", "recalls")
_LONGEST_NAME = 16


def usage(
    by: Annotated[
        str,
        typer.Option("--by", metavar="LABEL", help=f"{', '.join(BY[:-1])} or {BY[-1]}.", autocompletion=offers(*BY)),
    ] = "day",
    since: Annotated[
        str, typer.Option(metavar="TIME", help="The last days, today included (7d), or all since a day (2026-01-31).")
    ] = SINCE,
    store: StoreUrl = "",
    config: StoreConfig = None,
    tenant: StoreTenant = "",
    as_json: AsJson = False,
    as_table: Annotated[bool, typer.Option("--csv", help="Print comma-separated values, for a spreadsheet.")] = False,
) -> None:
    """Show what was used, what it cost, and what was saved.

    Requests, tokens, what was paid, and what doing nothing would have cost, which is an estimate and so is what was
    saved; days are those of UTC. Reads the store itself, so that `narrows serve` need not run. NARROWS_STORE and
    NARROWS_CONFIG count here too.

    Columns: requests; original and sent, prompt tokens as the client wrote them, and as billed in their place;
    cached, of the tokens billed, those read from the provider's cache; paid, dollars for all requests; baseline,
    what they would have cost without Narrows; saved, baseline minus paid and summaries; summaries and recalls, what
    these cost (recalls are in paid); chkp, checkpoints (rewrites of the prefix). By tool: requests with its
    definition, the tokens of that, what these cost, calls, and the day of the last one.
    """
    with refusing():
        if as_json and as_table:
            raise ValueError("--json and --csv are two forms of the same; give one of them")
        query = replace(UsageQuery.read(by, since, time.time()), tenant=tenant or None)
        settings = settings_of(KeySettings, store, config)
        report = asyncio.run(read_store(settings, partial(_read, settings, query)))
    if as_json:
        print_json(values_of(report))
    elif as_table:
        print(as_csv(report), end="")
    else:
        print_usage(console(), report)


async def _read(settings: KeySettings, query: UsageQuery, store: Store) -> UsageReport:
    """The report, with the names of keys in the place of their digests."""
    report = await read_usage(store, query)
    if query.by != "credential":
        return report
    names = await key_names(store, settings)
    return replace(report, rows=[replace(row, name=names.get(row.name, row.name)) for row in report.rows])


def print_usage(console: Console, report: UsageReport) -> None:
    """The report as a table, and below it what it cannot say in columns."""
    if not report.rows:
        console.print(f"Nothing was billed from {report.since} to {report.until} (UTC).")
        return
    if report.by == "tool":
        _print_tools(console, report)
        return
    has_prefixes = report.by != "conversation"
    heads = (report.by, *COLUMNS, *(["chkp"] if has_prefixes else []))
    rows = [tuple(_cells(row, has_prefixes)) for row in report.rows]
    total = tuple(_cells(report.total, has_prefixes))
    title = f"From {report.since} to {report.until} (UTC), in dollars; baseline and saved are estimates"
    for part in _tables(list(zip(heads, *rows, total, strict=True)), console.width):
        table = plain_table(*(heads[at] for at in part), title=title)
        for row in rows:
            table.add_row(*(row[at] for at in part))
        if len(rows) > 1:
            table.add_section()
            table.add_row(*(total[at] for at in part))
        console.print(table)
        title = ""
    pauses = pauses_in_words(report.total.sums)
    for line in (
        *_prefixes(report),
        pauses and f"pauses: {pauses}",
        report.measured_in_words,
        *report.notes,
        _LAST_LINE,
    ):
        if line:
            console.print(Text(line))


def _print_tools(console: Console, report: UsageReport) -> None:
    table = plain_table("tool", *TOOL_COLUMNS, title=f"From {report.since} to {report.until} (UTC)")
    for row in report.rows:
        table.add_row(printable(row.name, 40), *row.tool_cells)
    console.print(table, *map(Text, (*report.notes, _LAST_LINE)), sep="\n")


def _tables(columns: Sequence[Sequence[str]], width: int) -> Sequence[Sequence[int]]:
    """Which columns stand in one table: all, or, where that is too wide, those of money apart from the others."""
    every = range(len(columns))
    if sum(max(map(len, column)) + 1 for column in columns) - 1 <= width:
        return [every]
    money = every[1 + COLUMNS.index("paid") : 1 + len(COLUMNS)]
    return [[at for at in every if at not in money], [0, *money]]


def _cells(row: UsageRow, has_prefixes: bool) -> Iterator[str]:
    sums = row.sums
    yield printable(row.name, _LONGEST_NAME)
    yield f"{sums.requests:,}"
    yield from (short(sums.original), short(sums.sent), "" if row.cache_share is None else percent(row.cache_share))
    yield from map(_dollars, (sums.paid, sums.baseline, sums.saved, sums.summaries, sums.recalls))
    if has_prefixes:
        yield f"{row.checkpoints:,}"


def _prefixes(report: UsageReport) -> Iterator[str]:
    outcomes = sorted(report.total.prefixes.items(), key=lambda item: -item[1][1])
    words = [
        f"{printable(name, 40)} {requests:,}" + (f" ({short(rewritten)} tokens written again)" if rewritten else "")
        for name, (requests, rewritten) in outcomes
    ]
    if words:
        yield f"prefixes: {', '.join(words)}"


def _dollars(amount: float) -> str:
    """Saved may be less than nothing."""
    return f"{'-' if amount < 0 else ''}{dollars(abs(amount))}" if amount else "0"
