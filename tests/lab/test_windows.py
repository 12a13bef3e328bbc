"""The table of windows: real replays in a window, and what a cell says of them."""

from collections.abc import Iterator

import pytest

from policies.money.catalog import prices_for
from policies.presets import PRESETS
from proxy.lab.replay.bills import Moment, SessionBill
from proxy.lab.replay.report import Report
from tests.long.figures import windows
from tests.long.figures.tables import put
from tests.long.figures.windows import ON_CHATS, ON_LOOPS, measure, text_of


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Chats of sixteen turns, with two seeds."""
    monkeypatch.setattr(windows, "TURNS", 16)
    windows.sessions.cache_clear()
    yield
    windows.sessions.cache_clear()


def report(first: int | None, moves: int, paid: int, used: int, bill: float) -> Report:
    """Of 200 requests."""
    prices = prices_for(windows.MODEL)
    made = Report("any", windows.MODEL, SessionBill(prices, input=bill), SessionBill(prices, input=1.0), requests=200)
    made.summaries.first_asked = Moment(first, 1) if first else None
    made.summaries.calls, made.summaries.adopted, made.prefix_changes = paid, used, moves
    return made


@pytest.mark.usefixtures("short")
def test_it_is_measured_in_its_window() -> None:
    roomy, tight = (measure(260, "chat", window) for window in (1_000_000, 2_000))
    assert len(roomy) == 2
    for each in roomy:
        assert each.summaries.first_asked is not None
        assert each.summaries.first_asked.request == 8  # seven whole turns stand
        assert each.prefix_changes == each.summaries.adopted >= 1  # each moves the prefix once, as it is adopted
        assert each.faults == 0
    assert all(each.summaries.first_asked and each.summaries.first_asked.request < 8 for each in tight)
    assert text_of(measure(260, "deep", 1_000_000)) == "none / 0 / 0, 0 / 1.00"


def test_a_cell_has_the_range_the_worst_and_the_sum() -> None:
    one, other = report(7, 63, 20, 19, 0.5), report(8, 59, 22, 22, 0.714)
    assert text_of([one, other]) == "7-8 / 32 / 42, 41 / 0.71"
    assert text_of([one, one]) == "7 / 32 / 40, 38 / 0.50"
    assert text_of([report(None, 0, 0, 0, 1.0)]) == "none / 0 / 0, 0 / 1.00"


def test_each_preset_has_a_row_and_each_window_a_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "measure", lambda answer, preset, window: [report(window, answer, 2, 3, 0.5)])
    monkeypatch.setattr("gc.disable", lambda: None)
    heads, _, *rows = windows.windows().split("\n")
    assert heads == "| session | preset | 4k | 8k | 16k | 32k | 128k | 1M |"
    assert len(rows) == 2 * 6 + 2
    assert rows[0].startswith("| chat, answers of 260 | `chat` | 4000 / 130 / 2, 3 / 0.50 | 8000 / 130")
    assert rows[-1].startswith("| read loop | `adaptive` | 4000 / 0 /")
    assert {*ON_CHATS, *ON_LOOPS} <= PRESETS.keys()


def test_it_has_its_place_in_the_document() -> None:
    assert "| new |" in put(windows.FILE.read_text(encoding="utf-8"), {windows.MARKS: "| new |"})
