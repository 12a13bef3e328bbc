"""Each column of a report is explained in the help of its command."""

import re
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from policies.money.prices import Prices
from policies.presets import PRESETS
from proxy.console import cli
from proxy.console.presets import describe, print_presets
from proxy.console.usage import COLUMNS as OF_USAGE
from proxy.lab.agree.report import HEADS as OF_AGREE
from proxy.lab.load.client import PERCENTILES
from proxy.lab.replay import display as tables
from proxy.lab.replay.bills import SessionBill
from proxy.lab.replay.report import Report, preset_results

REPLAY = (
    *(tables.COSTS, tables.MARKS, tables.FAULTS, tables.SIGHT, tables.AVERAGE_BILLS, tables.AVERAGE_SIGHT),
    *(tables.PRESET_BILLS, tables.PRESET_SIGHT),
)
HEADS = {
    "explain": ("policy", "where", "what", "ref", "before", "after", "since"),
    "replay": tuple(
        {word for columns in REPLAY for column in columns for word in re.split(r" \$/none|/none| \$/|/", column.head)}
    ),
    "presets": ("for whom",),
    "audit": ("when", "what", "id", "cost"),
    "usage": (*OF_USAGE, "chkp"),
    "agree": OF_AGREE,
    "load": ("count", "max", *(f"p{at:g}" for at in (PERCENTILES[0], PERCENTILES[-1]))),
}


@pytest.mark.parametrize("command", HEADS)
def test_every_column_is_in_the_help_of_its_command(capsys: pytest.CaptureFixture[str], command: str) -> None:
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    told = " ".join(capsys.readouterr().out.split()).replace("- ", "-")
    columns = told[told.index("Columns") : told.index("Options:")]
    assert [head for head in HEADS[command] if head and head not in columns] == []


def test_all_presets_stand_on_80_columns_with_for_whom_they_are() -> None:
    paper = StringIO()
    print_presets(Console(file=paper, width=80), [describe(name, {}) for name in PRESETS])
    lines = paper.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in paper.getvalue()
    assert all(any(line.startswith(f"{name} ") for line in lines) for name in PRESETS)


@pytest.mark.parametrize(
    ("without", "with_", "listed", "words"),
    [
        (2.2568, 1.9688, True, "this session costs $2.26 without Narrows and $1.97 with it"),
        (2.2568, 1.9688, True, ": $0.29 less, 12.8%."),
        (0.12581, 0.12254, True, "$0.1258 without Narrows and $0.1225 with it"),
        (0.10, 0.15, True, "$0.100 without Narrows and $0.150 with it (preset p; replies, recalls and summaries"),
        (0.10, 0.15, True, ": $0.050 more, 50.0%."),
        (0.10, 0.10, True, ": the same."),
        (0.10, 0.100_000_01, True, ": the same."),
        (
            0.10,
            0.09,
            False,
            "The prices of m are unknown, so there is no sum in money: with Narrows, this session costs",
        ),
        (0.10, 0.09, False, " costs 0.900 of what it costs without (preset p;"),
    ],
)
def test_a_replay_ends_with_a_sentence_in_money(without: float, with_: float, listed: bool, words: str) -> None:
    prices: Any = Prices("m", listed=listed)
    report = Report("s", "m", SessionBill(prices, input=with_), SessionBill(prices, input=without), preset="p")
    (result,) = preset_results([report])
    assert words in result.in_money
