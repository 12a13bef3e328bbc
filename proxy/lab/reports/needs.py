"""Each text that a next action needed and that was out of sight, so that a person can judge.

Law: nothing that a request holds can move the cursor or change the colours.
"""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from proxy.lab.replay.report import Report
from proxy.lab.reports.tables import printable
from proxy.lab.results import as_json

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
