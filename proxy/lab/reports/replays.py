"""The reports of replayed sessions, as tables."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from proxy.lab.replay.averages import Mean, timing
from proxy.lab.replay.bills import GROUPS, Bill, Recalls, Report, Summaries
from proxy.lab.replay.comparison import Standing
from proxy.lab.reports.drawing import UNKNOWN_PRICES, dollars, percent, plain_table, printable, short

_BESIDE = 72
"""Columns that stand beside the name of a session."""


def reports(
    console: Console,
    found: Sequence[Report],
    averages: Sequence[Mean],
    timed: bool,
    presets: Sequence[Standing] = (),
) -> None:
    """All reports, by price table and preset, then the means; the presets beside each other where there are several."""
    for (model, preset), group in groupby(found, lambda report: (report.model, report.preset)):
        members = list(group)
        known = "" if members[0].bill.prices.listed else UNKNOWN_PRICES
        by = f", preset {printable(preset)}" if _several(presets) else ""
        console.print(Text(f"Prices of {printable(model)}{known}{by}", style="bold"))
        console.print(_costs(members, console.width - _BESIDE))
        console.print(_holds(members, console.width - _BESIDE))
        for line in (*_out_of_sight(members), recalls(members), *summaries(members)):
            console.print(Text(line))
        console.print()
    for report in found:
        if report.refusal:
            console.print(Text(f"{printable(report.name)}: first refusal {printable(report.refusal)}", style="red"))
    console.print(_averages(averages))
    if _several(presets):
        console.print(Text("; ".join(f"{name}: {means}" for name, means in GROUPS.items()), style="dim"))
    if timed:
        for name, marks in timing(found).items():
            words = "  ".join(f"{mark} {value:,.1f}" for mark, value in marks.items())
            console.print(Text(f"{name.replace('_', ' in '):<14} {words}"))
    if _several(presets):
        console.print(_presets(presets))
        console.print(Text(AHEAD, style="dim"))


def _several(presets: Sequence[Standing]) -> bool:
    return len({each.preset for each in presets}) > 1


def _costs(found: Sequence[Report], room: int) -> Table:
    table = plain_table("session", "req", "chkp", "sent/none", "peak/none", "input $/none", "ratio", "whole $/none")
    for report in found:
        baseline = report.baseline
        table.add_row(
            printable(report.name, max(12, room)),
            str(report.requests),
            str(report.checkpoints),
            f"{short(report.tokens)}/{short(baseline.tokens)}",
            f"{short(report.bill.peak)}/{short(baseline.peak)}",
            f"{dollars(report.input)}/{dollars(baseline.input)}",
            f"{report.ratio:.3f}",
            f"{dollars(report.total)}/{dollars(baseline.total)}",
        )
    return table


def _holds(found: Sequence[Report], room: int) -> Table:
    faults = ("invalid", "no reply", "undeclared", "fail-open")
    table = plain_table("session", *faults, "visible", "rare", "quoted", "lost", "worst")
    for report in found:
        table.add_row(
            printable(report.name, max(12, room)),
            *map(str, (report.rejected, report.failed, report.undeclared, report.failed_open)),
            *(percent(tally.share) for tally in (report.seen.all, report.seen.rare, report.seen.quoted)),
            str(report.seen.all.lost),
            f"{report.worst:.3f}",
        )
    return table


def _out_of_sight(found: Sequence[Report]) -> Iterator[str]:
    """Where that stood which later turns used and could not see; where there are no tools, nothing can be recalled."""
    for protocol, name in (("tools", "with tools"), ("text", "text protocol")):
        tallies = [report.seen.all for report in found if report.protocol == protocol]
        sums = {word: sum(getattr(tally, word) for tally in tallies) for word in AWAY}
        if tallies:
            counts = ", ".join(f"{sums[word]:,} {meaning}" for word, meaning in AWAY.items())
            yield f"used out of sight, {name}: {counts}"


AWAY: Mapping[str, str] = {
    "recallable": "recallable",
    "again": "by running a tool again",
    "stubbed": "without way back",
    "lost": "lost",
}


def recalls(found: Sequence[Report]) -> str:
    """What recalls took, of all sessions together."""
    whole = Recalls(Bill(found[0].bill.prices))
    for report in found:
        whole.join(report.recalls)
    uses = sum(report.uses_of_hidden for report in found)
    said = f"recalls, rate {whole.rate:g}: {whole.calls:,} for {uses:,} uses of hidden text"
    if not whole.rounds:
        return said
    spent = f"{whole.rounds:,} rounds of {short(whole.bill.tokens)} tokens, ${dollars(whole.bill.input)} of the input"
    return f"{said}, {spent}"


def summaries(found: Sequence[Report]) -> Iterator[str]:
    """What summaries took, of all sessions together; nothing where none are wanted."""
    first = found[0].summaries
    if not first.batch:
        return
    whole = Summaries(Bill(first.bill.prices))
    for report in found:
        whole.join(report.summaries)
    why = ", ".join(f"{reason} {times}" for reason, times in sorted(whole.rejected.items()))
    yield (
        f"summaries by {printable(first.bill.prices.model)}: {whole.made:,} made, {whole.adopted:,} adopted, "
        f"{whole.rejected.total():,} rejected{f' ({why})' if why else ''}, {whole.failed:,} failed"
    )
    yield (
        f"their {whole.calls:,} calls (at most {whole.bound:,}): {short(whole.bill.tokens)} tokens in, "
        f"{short(whole.bill.completion)} out, ${dollars(whole.bill.total)}, which is on the bill"
    )


AHEAD = (
    "* no other preset has a bill as low and as much in sight. back: out of sight, but can be recalled or had again. "
    "calls: rounds of recalls, summaries and the like; $ is what they cost, which is on the bill."
)


def _presets(rows: Sequence[Standing]) -> Table:
    """All presets, under the name of each price table."""
    heads = ("sent/none", "ratio", "worst", "peak/none", "visible", "rare", "quoted", "back", "lost", "calls", "$")
    table = plain_table("presets", *heads)
    for prices, group in groupby(rows, lambda row: row.prices):
        table.add_row(Text(printable(prices, 24), style="bold"))
        for row in group:
            table.add_row(*_standing(row))
    return table


def _standing(row: Standing) -> Iterator[str]:
    yield f"{'*' if row.ahead else ' '} {printable(row.preset, 24)}"
    yield f"{short(row.tokens)}/{short(row.tokens_undone)}"
    yield f"{row.ratio:.3f}"
    yield f"{row.worst:.3f}"
    yield f"{short(row.peak)}/{short(row.peak_undone)}"
    yield from map(percent, (row.seen.share, row.rare.share, row.quoted.share, row.recoverable))
    yield str(row.seen.lost)
    yield f"{sum(row.calls.values()):,}"
    yield dollars(row.spent)


def _averages(found: Sequence[Mean]) -> Table:
    several = len({mean.preset for mean in found}) > 1
    names = ("prices", "preset", "means of") if several else ("prices", "means of")
    table = plain_table(*names, "sessions", "ratio", "worst", "visible", "rare", "quoted", left=len(names))
    for mean in found:
        table.add_row(
            printable(mean.prices, 40),
            *((printable(mean.preset, 24), mean.group) if several else (GROUPS[mean.group],)),
            str(mean.sessions),
            f"{mean.ratio:.3f}",
            f"{mean.worst:.3f}",
            *map(percent, (mean.visible, mean.rare, mean.quoted)),
        )
    return table
