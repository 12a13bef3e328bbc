"""The report of replayed sessions, as text: tables, sentences, and each text that was needed and out of sight.

Law: nothing that a request or a file name holds can move the cursor or change the colours.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from statistics import fmean
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from proxy.console.output import as_json, plain_table, print_last_line, printable
from proxy.drawing.figures import UNKNOWN_PRICE, dollars, money, percent, short
from proxy.lab.quality import Tally
from proxy.lab.replay.bills import Compared, ComparedBill, Moment, joined
from proxy.lab.replay.recorded import CHAIN
from proxy.lab.replay.report import Average, PresetResult, Report
from proxy.lab.terminal import print_notes

_LAST_LINE = """
    x/none: with Narrows and without. ratio, end, past 20, any stop: the bill with Narrows divided by that without, so
    below 1 it saves. visible to lines at risk: of what later turns used, the share that stood in the prompt. needs,
    edits: of next actions, and of edits, the share that needs what stood nowhere in it. `narrows replay --help`
    explains every column.
"""

# --- the columns of its tables ---


class Column(NamedTuple):
    """The head of a column, the attribute of a row that stands in it, and how that is written."""

    head: str
    path: str
    form: Callable[[Any], str]

    def cell(self, row: object) -> str:
        return self.form(attrgetter(self.path)(row))


def _pair(form: Callable[[float], str]) -> Callable[[Compared], str]:
    return lambda both: f"{form(both.with_)}/{form(both.without)}"


def _bills(bill: ComparedBill) -> str:
    if not bill.prices_known:
        return UNKNOWN_PRICE
    return f"{dollars(bill.with_)}/{dollars(bill.without)}"


def _stop(ratio: float) -> str:
    return f"{ratio:.3f}" if ratio else "-"


def _share(share: float | None) -> str:
    return "-" if share is None else percent(share)


def _visible(tally: Tally) -> str:
    return _share(tally.share_visible if tally.used else None)


_ratio, _count = "{:.3f}".format, "{:,}".format
_END = Column("end", "worst_input_bill_ratio", _ratio)
_STOPS = (
    Column("past 20", "worst_ratio_past_request_20", _stop),
    Column("any stop", "worst_ratio_at_any_stop", _ratio),
)
_RATIO = Column("ratio", "input_bill.ratio", _ratio)
_WHOLE = Column("whole", "whole_bill.ratio", _ratio)
_TOKENS = Column("sent/none", "tokens_sent", _pair(short))
_PEAK = Column("peak/none", "peak_context", _pair(short))
_RECALLS = Column("recalls", "recall_share_of_input_bill", percent)
_TALLIES = {
    "all": "visible",
    "rare": "rare",
    "at_risk_rare": "rare at risk",
    "quoted": "quoted",
    "quoted_lines": "lines",
    "at_risk_quoted_lines": "lines at risk",
}
_SIGHT = {name: Column(head, f"used_by_later_turns.{name}", _visible) for name, head in _TALLIES.items()}
_SHARES = {
    name: Column(head, "share_visible" if name == "all" else f"share_visible_{name}", _share)
    for name, head in _TALLIES.items()
}
_NEEDS = (
    Column("needs", "needs.share_out_of_sight", _share),
    Column("edits", "needs.share_edits_out_of_sight", _share),
)
_NEEDS_TOGETHER = tuple(Column(head, path.removeprefix("needs."), form) for head, path, form in _NEEDS)
"""Beside every bill: what it was paid for with."""
_LOST = Column("lost", "used_by_later_turns.all.lost", _count)

COSTS: Sequence[Column] = (
    Column("req", "requests", str),
    _TOKENS,
    Column("input $/none", "input_bill", _bills),
    _RATIO,
    Column("whole $/none", "whole_bill", _bills),
    Column("ratio", "whole_bill.ratio", _ratio),
    *_NEEDS,
)
"""Costs of a session, and what it hid."""
MARKS: Sequence[Column] = (
    Column("marks alone $/none", "input_bill_of_marks_alone", _bills),
    Column("ratio", "input_bill_of_marks_alone.ratio", _ratio),
    Column("with compaction $/marks alone", "input_bill_beside_marks_alone", _bills),
    Column("ratio", "input_bill_beside_marks_alone.ratio", _ratio),
)
"""Savings in a session by cache marks of Narrows, and by compaction beside them."""
PAUSES: Sequence[Column] = (
    Column("expired/none", "pauses.expired", _pair(_count)),
    Column("cost $/none", "pauses.cost", _bills),
    Column("cost %/none", "pauses.shares", _pair(percent)),
    Column("bridged", "pauses.bridged", _count),
    Column("pings", "pauses.pings", _count),
    Column("pings %", "pauses.share_of_pings", percent),
    Column("never expired", "pauses.never_expired_ratio", _ratio),
)
"""What pauses of a session cost, and what was done about them."""
FAULTS: Sequence[Column] = (
    Column("invalid", "validity_errors", str),
    Column("no reply", "unanswered", str),
    Column("undeclared", "undeclared_prefix_changes", str),
    Column("fail-open", "failed_open", str),
    Column("chkp", "checkpoints", str),
    *(_LOST, *_STOPS),
)
"""Faults of a session, its checkpoints, and its worst bills."""
SIGHT: Sequence[Column] = (*_SIGHT.values(), _RECALLS, _PEAK)
"""The shares in sight, the share of recall rounds, and the largest prompt."""
SESSION_BILLS: Sequence[Column] = (
    Column("input bill", "input_bill", lambda bill: f"{money(bill.dollars_without)} → {money(bill.dollars_with)}"),
    *(_RATIO, _WHOLE, *_STOPS),
)
"""A session in two lines of a page: this one, and the next."""
SESSION_SIGHT: Sequence[Column] = (*(_SIGHT["all"], _NEEDS[0], _LOST), Column("breaks", "prefix_changes", _count))
AVERAGE_BILLS: Sequence[Column] = (
    Column("sessions", "sessions", _count),
    Column("ratio", "input_bill_ratio", _ratio),
    Column("whole", "whole_bill_ratio", _ratio),
    *(_END, *_STOPS, _RECALLS),
)
AVERAGE_SIGHT: Sequence[Column] = tuple(_SHARES.values())
PRESET_BILLS: Sequence[Column] = (
    *(_TOKENS, _PEAK, _RATIO, _WHOLE, _END, *_STOPS, *_NEEDS_TOGETHER),
    Column("calls", "model_calls.total", _count),
    Column("$", "model_calls.dollars", lambda amount: money(amount).lstrip("$")),
)
PRESET_SIGHT: Sequence[Column] = (
    *_SHARES.values(),
    Column("back", "share_recoverable", percent),
    Column("lost", "lost", _count),
)
PRESET_BILLS_ON_A_PAGE: Sequence[Column] = (
    *(_RATIO, _WHOLE, _END, *_STOPS),
    Column("calls", "model_calls", lambda calls: f"{calls.total:,}, {money(calls.dollars)}" if calls.total else "0"),
)
PRESET_SIGHT_ON_A_PAGE: Sequence[Column] = (
    *(_SHARES["all"], _NEEDS_TOGETHER[0]),
    Column("recoverable", "share_recoverable", percent),
    Column("lost", "lost", _count),
)


# --- the tables ---

AHEAD = (
    "* no other preset has a bill as low and as much in sight. back: out of sight, but can be recalled or had again. "
    "calls: rounds of recalls, summaries and the like; $ is what they cost, which is on the bill."
)
OUT_OF_SIGHT: Mapping[str, str] = {
    "recoverable_by_recall": "recallable",
    "recoverable_by_running_again": "by running a tool again",
    "behind_a_stub_without_way_back": "without way back",
    "lost": "lost",
}


def print_replays(
    console: Console, reports: Sequence[Report], averages: Sequence[Average], presets: Sequence[PresetResult] = ()
) -> None:
    """All reports by price table and preset, then the averages; several presets beside each other."""
    several = len({each.preset for each in presets}) > 1
    for (model, preset, aim), group in groupby(reports, lambda report: (report.prices, report.preset, report.aim)):
        by = f", preset {printable(preset)}" if several else ""
        console.print(Text(f"Prices of {printable(model)}{by}, aim {aim}", style="bold"))
        _print_sessions(console, list(group))
    for report in reports:
        if report.first_refusal:
            refusal = f"{printable(report.session)}: first refusal {printable(report.first_refusal)}"
            console.print(Text(refusal, style="red"))
    _print_averages(console, averages)
    console.print(Text("; ".join(meanings(averages)), style="dim"))
    notes = [note for row in averages for note in row.notes]
    print_notes(console, notes)
    if several:
        for columns in (PRESET_BILLS, PRESET_SIGHT):
            table = plain_table("presets", *(column.head for column in columns))
            for prices, rows in groupby(presets, lambda row: row.prices):
                table.add_row(Text(printable(prices, 24), style="bold"))
                for row in rows:
                    name = f"{'*' if row.ahead else ' '} {printable(row.preset, 24)}"
                    table.add_row(name, *(column.cell(row) for column in columns))
            console.print(table)
        console.print(Text(AHEAD, style="dim"))
        print_notes(console, notes)
    print_last_line(console, _LAST_LINE)
    for each in presets:
        console.print(Text(printable(each.in_money, 500)))


def _print_sessions(console: Console, reports: Sequence[Report]) -> None:
    widest = max(16, console.width - 76)  # the figures beside the name of a session take 76 columns
    set_marks = any(report.marks_matter for report in reports)
    timed = [report for report in reports if report.pauses is not None]
    for columns in (COSTS, *([MARKS] if set_marks else ()), *([PAUSES] if timed else ()), FAULTS, SIGHT):
        table = plain_table("session", *(column.head for column in columns))
        for report in timed if columns is PAUSES else reports:
            table.add_row(_session_name(report.session, widest), *(column.cell(report) for column in columns))
        console.print(table)
    print_notes(console, (note for report in reports for note in report.notes))
    if len(timed) > 1:
        console.print(Text(pauses_together(timed)))
    # where later turns used what they could not see; where there are no tools, nothing can be recalled
    for protocol, kind in (("tools", "with tools"), ("text", "text protocol")):
        if tallies := [report.used_by_later_turns.all for report in reports if report.protocol == protocol]:
            tally = joined(tallies)
            counts = ", ".join(f"{getattr(tally, field):,} {meaning}" for field, meaning in OUT_OF_SIGHT.items())
            console.print(Text(f"used out of sight, {kind}: {counts}"))
    for line in (recalls(reports), *summaries(reports), *against_nothing(reports)):
        console.print(Text(line))
    console.print()


def _session_name(name: str, widest: int) -> str:
    """The name, not too long; of a chain the ends of its names, which differ in most cases."""
    parts = name.split("+")
    if len(name) > widest and 1 < len(parts) <= widest // 4:
        name = "+".join(part[1 - widest // len(parts) :] for part in parts)
    return printable(name, widest)


def meanings(averages: Sequence[Average]) -> Iterator[str]:
    for row in {row.group: row for row in averages}.values():
        orders = f", {row.sessions} of them: their mean and their worst" if row.group == CHAIN else ""
        yield f"{row.group}: {row.means}{orders}"


def _print_averages(console: Console, rows: Sequence[Average]) -> None:
    several = len({row.preset for row in rows}) > 1
    heads = ("prices", "preset", "means of") if several else ("prices", "means of")
    for columns in (AVERAGE_BILLS, AVERAGE_SIGHT, _NEEDS_TOGETHER):
        table = plain_table(*heads, *(column.head for column in columns), left=len(heads))
        for row in rows:
            group = (printable(row.preset, 24), row.group) if several else (row.group,)
            table.add_row(printable(row.prices, 24), *map(printable, group), *(c.cell(row) for c in columns))
        console.print(table)


# --- each text that a next action needed and that was out of sight, so that a person can judge ---

MOST_ITEMS = 5


def by_place(reports: Sequence[Report]) -> list[dict[str, Any]]:
    """The reports as `--json` prints them, with each hidden text below `needs`."""
    rows: list[dict[str, Any]] = as_json(reports)
    for row, report in zip(rows, reports, strict=True):
        row["needs"]["by_place"] = as_json(report.needs.each)
    return rows


def print_needs(console: Console, reports: Sequence[Report]) -> None:
    """By session: where each text stood, what was needed of it, and what stood in its place."""
    for report in reports:
        head = f"{printable(report.session)}, {printable(report.prices)}, preset {printable(report.preset)}"
        console.print(Text(f"{head}: needed and out of sight", style="bold"))
        for need in report.needs.each:
            kind = "an edit" if need.quoted else "a call" if need.in_calls else "prose"
            connects = "connects" if need.connects else "does not connect"
            others = f", and {len(need.items) - MOST_ITEMS} more" if len(need.items) > MOST_ITEMS else ""
            items = "; ".join(printable(item, 100) for item in need.items[:MOST_ITEMS])
            console.print(Text(f"request {need.request}, {need.turns_ago} turns ago, {kind}: {printable(need.place)}"))
            console.print(Text(f"    needed: {items}{others}"))
            console.print(Text(f"    stub, which {connects}: {printable(need.stub, 300)}", style="dim"))
        console.print()


# --- what replays cost, in sentences ---


def pauses_together(reports: Sequence[Report]) -> str:
    """The means over sessions whose times are known."""
    costs = [report.pauses for report in reports if report.pauses is not None]
    without, with_, never_expired, pings = (
        fmean(attrgetter(path)(each) for each in costs)
        for path in ("shares.without", "shares.with_", "never_expired_ratio", "share_of_pings")
    )
    return (
        f"pauses, mean of {len(costs):,} sessions: {percent(without)} of the bill with nothing done (never expired: "
        f"{never_expired:.3f}), {percent(with_)} with Narrows and {percent(pings)} for pings; whole bill "
        f"{fmean(report.whole_bill.ratio for report in reports):.3f}"
    )


def recalls(reports: Sequence[Report]) -> str:
    costs = joined([report.recalls for report in reports])
    uses = f"{costs.calls:,} for {costs.uses_of_hidden_text:,} uses of hidden text"
    line = f"recalls, rate {costs.rate:g}: {uses}"
    if not costs.rounds:
        return line
    input_bill = money(costs.bill.dollars_of_input)
    return f"{line}, {costs.rounds:,} rounds of {short(costs.bill.tokens)} tokens, {input_bill} of the input"


def summaries(reports: Sequence[Report]) -> Iterator[str]:
    """The cost of summaries, of all sessions together; nothing where none are wanted."""
    costs = joined([report.summaries for report in reports])
    if not costs.batch:
        return
    if not costs.calls and not costs.failed:
        yield "no summary was asked for"
        return
    why = ", ".join(f"{reason} {times}" for reason, times in sorted(costs.rejected_because.items()))
    yield (
        f"summaries by {printable(costs.bill.prices.model)}: {costs.accepted:,} made, {costs.adopted:,} adopted, "
        f"{costs.rejected:,} rejected{f' ({why})' if why else ''}, {costs.failed:,} failed"
    )
    yield (
        f"their {costs.calls:,} calls (at most {costs.bound:,}): {short(costs.bill.tokens)} tokens in, "
        f"{short(costs.bill.completion)} out, {money(costs.bill.dollars)}, which is on the bill"
    )


def against_nothing(reports: Sequence[Report]) -> Iterator[str]:
    """Of each session with the aim `context` or with summaries: what it cost or saved against doing nothing, when its
    first summary was asked for and adopted, how often the prefix moved, and the sizes of prompts."""
    for report in reports:
        if report.aim != "context" and not report.summaries.batch:
            continue
        bill, costs = report.input_bill, report.summaries
        saved = bill.without - bill.with_
        amount = money(abs(saved) if bill.prices_known else None)
        mean, peak = report.mean_context, report.peak_context
        paid, first = "", ""
        if costs.calls:
            rejected = money(costs.rejected_bill.dollars)
            paid = f", with {money(costs.bill.dollars)} for summaries on the bill ({rejected} of it for rejected ones)"
        if costs.first_asked or costs.calls:
            first = f"first summary {_at('asked for', costs.first_asked)}, {_at('adopted', costs.first_adopted)}; "
            first += f"{costs.calls:,} paid, {costs.adopted:,} used; "
        yield (
            f"{printable(report.session, 60)}, aim {report.aim}: {bill.ratio:.3f} of the input bill of doing nothing, "
            f"{'saved' if saved >= 0 else 'cost'} {amount}{paid}"
        )
        yield (
            f"  {first}{report.checkpoints_per_100_requests:g} checkpoints per 100 requests; prompts of "
            f"{short(mean.with_)} tokens in the mean and {short(peak.with_)} at most (doing nothing: "
            f"{short(mean.without)} and {short(peak.without)})"
        )


def _at(what: str, moment: Moment | None) -> str:
    return f"{what} at request {moment.request:,} ({moment.tokens:,} tokens)" if moment else f"never {what}"
