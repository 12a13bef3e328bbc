"""Reports for a terminal: a dry run, the demo, and replayed sessions.

Law: nothing that a request or a file name holds can move the cursor or change the colours.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.text import Text

from proxy.console.output import as_json, plain_table, print_last_line, printable
from proxy.drawing.figures import change_of, dollars, money, percent
from proxy.drawing.words import WHY
from proxy.lab.breakdown import BeforeAfter
from proxy.lab.demo import WINDOW, DemoResult
from proxy.lab.explain import Explanation
from proxy.lab.replay.comparison import Average, PresetResult, timing
from proxy.lab.replay.recorded import CHAIN
from proxy.lab.replay.report import Report, RequestResult
from proxy.lab.reports import tables, terminal
from proxy.lab.reports.sentences import against_nothing, recalls, recorded_usage, summaries
from proxy.lab.reports.terminal import Bar, bars, kind_bars, legend, message_bars
from proxy.lab.results import joined

_LAST_LINE_OF_REPLAY = """
    x/none: with Narrows and without. ratio, end, past 20, any stop: the bill with Narrows divided by that without, so
    below 1 it saves. visible to lines at risk: of what later turns used, the share that stood in the prompt. needs,
    edits: of next actions, and of edits, the share that needs what stood nowhere in it. `narrows replay --help`
    explains every column.
"""
_LAST_LINE_OF_EXPLAIN = """
    where: the place in the body; before, after: tokens; since now: decided in this request, earlier: in one before it;
    `narrows explain FILE --ref REF` prints what a ref stands for, --json lists all edits.
"""
MOST_EDITS = 20
"""Rows of the table of edits."""

# --- explain ---


def print_explanation(console: Console, explanation: Explanation) -> None:
    """The dry run: bars, what would change, tokens and bill."""
    plain = console.options.ascii_only
    head = f"{printable(explanation.model)}, preset {explanation.preset}, aim {explanation.aim}"
    head = f"{head}: request {explanation.requests_in_history}"
    console.print(Text(f"{head}, tokens per message   {legend(plain)}", style="bold"))
    _print_bars(console, message_bars(explanation.messages), console.width)
    console.print(Text("\nby kind", style="bold"))
    _print_bars(console, kind_bars(explanation.kinds), console.width)
    console.print()
    if explanation.edits:
        table = plain_table("policy", "where", "what", "ref", "before", "after", "since", left=4)
        table.columns[1].no_wrap, table.columns[1].overflow = False, "fold"  # the widest, so that no other is cut
        largest = sorted(explanation.edits, key=lambda edit: edit.tokens.after - edit.tokens.before)
        for edit in largest[:MOST_EDITS]:
            what = printable(f"{edit.kind} {edit.tool}".strip(), 24)
            sizes = (f"{edit.tokens.before:,}", f"{edit.tokens.after:,}")
            since = "now" if edit.new_in_this_request else "earlier"
            table.add_row(
                edit.policy, printable(edit.where.removesuffix(".content"), 60), what, edit.ref or "", *sizes, since
            )
        if others := largest[MOST_EDITS:]:
            sizes = (f"{sum(e.tokens.before for e in others):,}", f"{sum(e.tokens.after for e in others):,}")
            table.add_row("", f"{len(others)} smaller ones", "", "", *sizes, "")
        console.print(table)
    for policy in sorted({edit.policy for edit in explanation.edits}):
        count = sum(edit.policy == policy for edit in explanation.edits)
        console.print(Text(f"{policy:<8} {count:>4}  {WHY.get(policy, '')}"))
    console.print(Text(f"\n{'why now' if explanation.edits else 'nothing to shorten'}: {explanation.verdict}"))
    before, after = explanation.tokens.before, explanation.tokens.after
    tokens = f"{before:>10,} -> {after:>10,}  ({change_of(before, after)})"
    console.print(Text(f"\ntokens of the input              {tokens}"))
    for end, bill in explanation.input_bill_of_this_request.items():
        words = f"{end.removesuffix('_cached')} of it cached"
        costs = f"{money(bill.before):>10} -> {money(bill.after):>10}"
        console.print(Text(f"its bill, {words:<22} {costs}"))
    note = (
        f"Prices of {printable(explanation.prices)}, for the input of this one request; its true bill lies between the "
        "two. What a whole session costs, with every rewrite of the provider's cache, is what `narrows replay` adds up."
    )
    _print_notes(console, [*explanation.foretold, note, *explanation.notes])
    if explanation.edits:
        print_last_line(console, _LAST_LINE_OF_EXPLAIN)


def _print_notes(console: Console, notes: Iterable[str]) -> None:
    """What a reader has to know of the figures above, each once."""
    for note in dict.fromkeys(notes):
        console.print(Text(printable(note, 1_000), style="dim"))


def _print_bars(console: Console, drawn: Sequence[Bar], width: int) -> None:
    for line in bars(drawn, width, console.options.ascii_only):
        console.print(line, no_wrap=True, overflow="crop")


# --- demo ---

PLOT = "Two recorded sessions of a coding agent, by way of Narrows, to a provider that is built in:"
MORAL = (
    "Short sessions gain little: most of their tokens are new when they are sent. The sliding window sends the fewest "
    "tokens of a long one and pays for most of them in full, because its beginning is never the same twice."
)


def print_demo(console: Console, results: Sequence[DemoResult]) -> None:
    """Bars of each session's last request, the bills, and the proof."""
    console.print(Text(PLOT))
    for result in results:
        tokens, messages = result.sizes.tokens, result.sizes.messages
        name, requests = result.report.session, result.report.requests
        head = f"{name}: the last of {requests} requests, {tokens.before:,} -> {tokens.after:,} tokens"
        console.print(Text(f"{head}   {legend(console.options.ascii_only)}", style="bold"))
        few = len(messages) <= 2 * WINDOW
        _print_bars(console, message_bars(messages) if few else kind_bars(result.sizes.kinds), min(console.width, 100))
    first = results[0].report
    heads = ("session", "tokens", "cached", "peak", "input bill", "ratio", "whole bill", "ratio")
    table = plain_table(*heads, title=f"\nThe bill at the prices of {printable(first.prices)}")
    for result in results:
        baseline = result.report.baseline
        name = f"{result.report.session} as it is"
        rows = ((name, baseline), ("  by Narrows", result.report.bill), (f"  last {WINDOW} messages", result.window))
        for name, bill in rows:
            table.add_row(
                name,
                f"{bill.tokens:,}",
                percent(bill.share_cached),
                f"{bill.peak:,}",
                f"${dollars(bill.input)}",
                f"{bill.input / baseline.input if baseline.input else 1.0:.2f}",
                f"${dollars(bill.total)}",
                f"{bill.total / baseline.total if baseline.total else 1.0:.2f}",
            )
    console.print(table)
    _print_notes(console, first.notes)
    for result in results:
        report, is_held = result.report, result.is_held
        words = ", ".join(f"{word} {times}" for word, times in report.prefix.items())
        changed, followers = report.prefix_changes, report.requests - 1
        declared = changed - report.undeclared_prefix_changes
        verdict = "The prefix held" if is_held else f"THE PREFIX DID NOT HOLD ({report.faults} faults)"
        refusal = f"\n  first refusal: {printable(report.first_refusal)}" if report.first_refusal else ""
        proof = (
            f"{verdict} in {report.session}: {words}.\n"
            f"  The provider itself saw {followers - changed} of {followers} requests begin with all of the one "
            f"before;\n  {declared} of the {changed} others were declared in the reply.{refusal}"
        )
        console.print(Text(proof, style="" if is_held else "red"))
    console.print(Text(MORAL, style="dim"))


# --- replay ---

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
    console: Console,
    reports: Sequence[Report],
    averages: Sequence[Average],
    timed: bool,
    presets: Sequence[PresetResult] = (),
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
    _print_notes(console, notes)
    if timed:
        for name, marks in timing(reports).items():
            words = "  ".join(f"{mark} {value:,.1f}" for mark, value in marks.items())
            console.print(Text(f"{name.replace('_', ' in '):<14} {words}"))
    if several:
        for columns in (tables.PRESET_BILLS, tables.PRESET_SIGHT):
            table = plain_table("presets", *(column.head for column in columns))
            for prices, rows in groupby(presets, lambda row: row.prices):
                table.add_row(Text(printable(prices, 24), style="bold"))
                for row in rows:
                    name = f"{'*' if row.ahead else ' '} {printable(row.preset, 24)}"
                    table.add_row(name, *(column.cell(row) for column in columns))
            console.print(table)
        console.print(Text(AHEAD, style="dim"))
        _print_notes(console, notes)
    print_last_line(console, _LAST_LINE_OF_REPLAY)
    for each in presets:
        console.print(Text(printable(each.in_money, 500)))


def _print_sessions(console: Console, reports: Sequence[Report]) -> None:
    """The sessions under one price table and preset."""
    widest = max(16, console.width - 76)  # the figures beside the name of a session take 76 columns
    set_marks = any(report.marks_matter for report in reports)
    for columns in (tables.COSTS, *([tables.MARKS] if set_marks else ()), tables.FAULTS, tables.SIGHT):
        table = plain_table("session", *(column.head for column in columns))
        for report in reports:
            table.add_row(_session_name(report.session, widest), *(column.cell(report) for column in columns))
        console.print(table)
    _print_notes(console, (note for report in reports for note in report.notes))
    # where later turns used what they could not see; where there are no tools, nothing can be recalled
    for protocol, kind in (("tools", "with tools"), ("text", "text protocol")):
        if tallies := [report.used_by_later_turns.all for report in reports if report.protocol == protocol]:
            tally = joined(tallies)
            counts = ", ".join(f"{getattr(tally, field):,} {meaning}" for field, meaning in OUT_OF_SIGHT.items())
            console.print(Text(f"used out of sight, {kind}: {counts}"))
    for line in (recalls(reports), *summaries(reports), *against_nothing(reports), *recorded_usage(reports)):
        console.print(Text(line))
    console.print()


def _session_name(name: str, widest: int) -> str:
    """The name, not too long; of a chain the ends of its names, which differ in most cases."""
    parts = name.split("+")
    if len(name) > widest and 1 < len(parts) <= widest // 4:
        name = "+".join(part[1 - widest // len(parts) :] for part in parts)
    return printable(name, widest)


def meanings(averages: Sequence[Average]) -> Iterator[str]:
    """What the groups are, in words."""
    for row in {row.group: row for row in averages}.values():
        orders = f", {row.sessions} of them: their mean and their worst" if row.group == CHAIN else ""
        yield f"{row.group}: {row.means}{orders}"


def _print_averages(console: Console, rows: Sequence[Average]) -> None:
    several = len({row.preset for row in rows}) > 1
    heads = ("prices", "preset", "means of") if several else ("prices", "means of")
    for columns in (tables.AVERAGE_BILLS, tables.AVERAGE_SIGHT, tables.AVERAGE_NEEDS):
        table = plain_table(*heads, *(column.head for column in columns), left=len(heads))
        for row in rows:
            group = (printable(row.preset, 24), row.group) if several else (row.group,)
            table.add_row(printable(row.prices, 24), *map(printable, group), *(c.cell(row) for c in columns))
        console.print(table)


# --- the demo's long chat on a terminal: its prompts and its bill over time, and what became of its summaries ---

_HEIGHT = 5
_MILLIONTHS = 1_000_000
_MARKS = {"pending": "?", "adopted": "^", "stale": "!"}
"""Below the columns: a summary is asked for, stands from here on, may no longer be used."""


def print_long_chat(console: Console, report: Report) -> None:
    """Two charts over its requests, what happened to its summaries, and what all of it cost."""
    plain, results = console.options.ascii_only, report.each_request
    prompts = [BeforeAfter(int(each.tokens_sent.without), int(each.tokens_sent.with_)) for each in results]
    bills = [_so_far(each) for each in results]
    title = f"\n{report.session}: {report.requests} requests by the preset {report.preset}, made by rule"
    console.print(Text(f"{title}   {legend(plain)}", style="bold"))
    _print_columns(console, "tokens of each prompt", f"{prompts[-1].after:,} of {prompts[-1].before:,}", prompts)
    console.print(Text("".join(_marks(results)).rstrip()))
    console.print(Text("(a summary: ? asked for  ^ adopted  ! stale)", style="dim"))
    bill = report.input_bill
    _print_columns(
        console, "the input bill so far", f"{money(bill.dollars_with)} of {money(bill.dollars_without)}", bills
    )
    for number, each, word in _events(results):
        console.print(Text(f"request {number:>3}  {word}: {each.tokens_sent.with_:,} tokens, {each.prefix}"))
    for line in (*summaries([report]), *against_nothing([report])):
        console.print(Text(line))
    if report.faults:
        console.print(Text(f"THE PREFIX DID NOT HOLD ({report.faults} faults)", style="red"))


def _print_columns(console: Console, title: str, last: str, sizes: Sequence[BeforeAfter]) -> None:
    console.print(Text(f"{title}; at the end {last}", style="dim"))
    for line in terminal.columns(sizes, _HEIGHT, console.options.ascii_only):
        console.print(Text(line))


def _so_far(result: RequestResult) -> BeforeAfter:
    """Both bills up to a request, in millionths, which columns can be drawn of."""
    bill = result.input_bill
    return BeforeAfter(int(bill.without * _MILLIONTHS), int(bill.with_ * _MILLIONTHS))


def _marks(results: Sequence[RequestResult]) -> list[str]:
    marks = [" "] * len(results)
    for number, _, word in _events(results):
        marks[number - 1] = _MARKS[word.partition(":")[0]]
    return marks


def _events(results: Sequence[RequestResult]) -> Iterator[tuple[int, RequestResult, str]]:
    """The requests at which something became of summaries, and what their replies said."""
    before = ""
    for number, result in enumerate(results, 1):
        word = result.summary
        is_new = word != before or (word == "adopted" and result.prefix.startswith("checkpoint:"))
        if is_new and word.partition(":")[0] in _MARKS:
            yield number, result, word
        before = word


# --- each text that a next action needed and that was out of sight, so that a person can judge ---
# Law: nothing that a request holds can move the cursor or change the colours.

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
