"""The report of a comparison, as text for a terminal and as a page.

Law: both say what the report says, with the same caution.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from urllib.parse import urlsplit

from rich.console import Console

from proxy.console.output import plain_table, print_last_line, printable
from proxy.drawing import charts
from proxy.drawing.charts import folded, row, rows, shortened
from proxy.drawing.figures import counted, money, percent
from proxy.drawing.html import Markup, Node, element, headline, section, table
from proxy.lab.agree.figures import FEWEST, Agreement, AgreeReport, PresetAgreement
from proxy.lab.reports.page_file import sheet

_LAST_LINE = """
    model with itself: how often two replies to the same request agree, which is the model's noise; with Narrows: how
    often a reply to the shortened request agrees with them; difference: the second minus the first, in turns of
    100; last checkpoint: requests since the prefix was rewritten.
"""
HEADS = ("turns", "model with itself", "with Narrows", "difference", "95 % interval")
_STEP = 0.05
MEANING = (
    "Agreement is how often the model's next action is the same: the same tools, each at the same target (file, "
    "command or query), with the same kind of edit. Where it only speaks, two texts count as the same when both ask "
    "back or neither does, and they share half of their names and half of the words of the shorter one: a reader "
    "would call more of them the same. What an edit writes, and which lines are read, is not compared. Whether an "
    "action is right, or the task done in the end, is not looked at. The model's agreement with itself (the same "
    "request twice) is its noise; only the difference from it says something of Narrows."
)


def print_agreement(console: Console, report: AgreeReport) -> None:
    console.print(_lead(report), soft_wrap=True)
    for each in report.presets if report.samples else ():
        console.print()
        console.print(each.words, soft_wrap=True)
        grid = plain_table(each.preset, *HEADS)
        for label, figures in _rows(each).items():
            grid.add_row(label, *_cells(figures))
        console.print(grid)
        console.print(_beside(each), soft_wrap=True)
        for example in each.examples[:3]:
            place = f"{printable(example.session, 60)}, request {example.request}"
            console.print(f"  {place}: {printable(example.without)} | with: {printable(example.with_)}", soft_wrap=True)
    console.print()
    for note in _notes(report):
        console.print(note, soft_wrap=True)
    if report.samples:
        print_last_line(console, _LAST_LINE)


def page(report: AgreeReport) -> str:
    presets = report.presets if report.samples else ()
    return sheet(
        "agreement",
        f"Does {shortened(report.model)} do the same?",
        f"{counted(report.samples, 'turn')} of {counted(report.sessions, 'session')}",
        [
            headline(
                f"{_signed(each.action.difference).replace('-', '−')} in 100",
                element("span", each.words, class_="fault" if each.verdict == "loss" else None),
            )
            for each in presets
        ],
        element("p", _lead(report), class_="lead"),
        [element("p", note, class_="aside") for note in _notes(report)],
        [_preset(each) for each in presets],
        section("What agreement means", element("p", MEANING)),
    )


def _preset(each: PresetAgreement) -> Markup:
    figures = _rows(each)
    drawn = {label: row for label, row in figures.items() if row.samples >= FEWEST} or figures
    end = ceil(max(abs(end) for row in drawn.values() for end in (row.low, row.high, _STEP)) / _STEP) * _STEP
    lines = [
        row(
            _signed(agreement.difference),
            element("b", label) if at < 2 else label,
            charts.interval(agreement.low, agreement.difference, agreement.high, end),
            element("span", f"{agreement.samples:,}", element("span", " turns", class_="unseen"), class_="n"),
        )
        for at, (label, agreement) in enumerate(drawn.items())
    ]
    ends = [element("span", text) for text in (f"−{100 * end:.0f}", "0: as by its noise", f"+{100 * end:.0f}")]
    heads = ("in 100", "how often the same", element("span", ends, class_="ends"), "turns")
    grid: list[tuple[Node, Sequence[Node]]] = [(label, _cells(agreement)) for label, agreement in figures.items()]
    others: Node = ""
    if each.examples:
        places = [
            (f"{shortened(example.session, 60)}, request {example.request}", [example.without, example.with_])
            for example in each.examples
        ]
        summary = f"Turns at which both answers without Narrows agreed, and the one with it did not: {len(places):,}"
        others = folded(summary, table(("turn", "without", "with Narrows"), places, "sessions actions"), len(places))
    return section(
        each.preset,
        rows(heads, lines, "rows sight"),
        table(("", *HEADS), grid, "sessions"),
        element("p", _beside(each), class_="aside"),
        others,
    )


def _rows(each: PresetAgreement) -> Mapping[str, Agreement]:
    distances = {f"last checkpoint: {name}": agreement for name, agreement in each.by_distance.items()}
    return {"next action": each.action, "tools alone": each.tools, **distances}


def _cells(figures: Agreement) -> list[str]:
    interval = f"{_signed(figures.low)} to {_signed(figures.high)}"
    shares = (percent(figures.noise), percent(figures.with_))
    return [f"{figures.samples:,}", *shares, _signed(figures.difference), interval]


def _lead(report: AgreeReport) -> str:
    sessions = counted(report.sessions, "session")
    if not report.turns_shortened:
        return (
            f"Nothing to compare: of {report.turns:,} requests of {sessions} Narrows shortens none, "
            "so the model reads what the client wrote."
        )
    if not report.samples:
        return f"Nothing was compared: at no sampled turn of {sessions} did all answers come."
    what = f"{counted(report.samples, 'sampled turn')} of {sessions}, asked of {printable(report.model)} at"
    place = printable(urlsplit(report.upstream).netloc)
    return f"{what} {place}: twice with what the client wrote, and once with what Narrows makes of it."


def _beside(each: PresetAgreement) -> str:
    shares = f"{each.calls:,} of {each.action.samples:,} turns call tools; {each.shortened:,} were sent shortened"
    recalls = (
        f"{each.recalls:,} recalls were answered first, at {each.recalled:,} turns" if each.recalls else "no recalls"
    )
    return f"{shares}; {recalls}. Differences are in turns of 100; rows by distance are intervals of each row alone."


def _notes(report: AgreeReport) -> Iterator[str]:
    """What a reader must know of these figures."""
    if report.stopped:
        yield report.stopped
    if report.turns_shortened:
        others = report.turns - report.turns_shortened
        yield (
            f"Samples are drawn (seed {report.seed}) from the {report.turns_shortened:,} of {report.turns:,} requests "
            f"that are shortened; of the other {others:,} the model reads what the client wrote."
        )
    if report.left_out:
        yield f"{report.left_out:,} turns are left out, as an answer did not come: {printable(report.first_failure)}"
    if report.samples:
        yield f"{report.requests:,} requests to the model, recalls and summaries included: {money(report.dollars)}."


def _signed(share: float) -> str:
    return f"{100 * share:+.1f}"
