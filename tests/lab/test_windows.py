"""The table of windows: real replays in a window, and what a cell says of them."""

from collections.abc import Iterator

import pytest

from proxy.lab.figures import windows
from proxy.lab.figures.tables import put
from proxy.lab.figures.windows import WINDOWS, Cell, Result, cells, measure, table_of, text_of


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Chats of sixteen turns, with two seeds."""
    monkeypatch.setattr(windows, "TURNS", 16)
    windows.sessions.cache_clear()
    yield
    windows.sessions.cache_clear()


@pytest.mark.usefixtures("short")
def test_a_cell_is_measured_in_its_window() -> None:
    roomy, tight = (measure(Cell(260, "chat", window)) for window in (1_000_000, 2_000))
    assert len(roomy) == 2
    for result in roomy:
        assert result.first == 8  # seven whole turns stand
        assert result.paid >= result.used >= 1
        assert result.moves == pytest.approx(100 * result.used / 16)  # each one moves the prefix once, as it is adopted
        assert result.bill > 0
        assert result.faults == 0
    assert all(result.first is not None and result.first < 8 for result in tight)
    (idle, _) = measure(Cell(260, "deep", 1_000_000))
    assert (idle.first, idle.moves, idle.paid, idle.used, idle.bill) == (None, 0, 0, 0, 1)


def test_a_cell_shows_the_range_the_worst_and_the_sum() -> None:
    one, other = Result(7, 31.4, 20, 19, 0.5), Result(8, 29.6, 22, 22, 0.714)
    assert text_of([one, other]) == "7-8 / 31 / 42, 41 / 0.71"
    assert text_of([one, one]) == "7 / 31 / 40, 38 / 0.50"
    assert text_of([Result(None, 0, 0, 0, 1.0)]) == "none / 0 / 0, 0 / 1.00"


def test_each_preset_has_a_row_for_each_kind_of_session_and_each_window_a_column() -> None:
    text = table_of({cell: [Result(cell.window, 1, 2, 3, 0.5)] for cell in cells()})
    heads, _, *rows = text.split("\n")
    assert heads == "| session | preset | 4k | 8k | 16k | 32k | 128k | 1M |"
    assert len(rows) == 2 * 6 + 2
    assert rows[0].startswith("| chat, answers of 260 | `chat` | 4000 / 1 / 2, 3 / 0.50 | 8000 / 1")
    assert rows[-1].startswith("| read loop | `adaptive` |")
    assert {row.count(" / 1 / ") for row in rows} == {len(WINDOWS)}


def test_it_has_its_place_in_the_document() -> None:
    assert "| new |" in put(windows.FILE.read_text(encoding="utf-8"), {windows.MARKS: "| new |"})
