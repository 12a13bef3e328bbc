"""Presets beside each other over the same sessions: one bill, one tally, and who is ahead."""

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from policies.money.catalog import prices_for
from policies.money.prices import Usage
from policies.presets import PRESETS
from proxy.console import cli
from proxy.console.output import WIDE, as_json
from proxy.lab.arguments import presets_named
from proxy.lab.demo import recorded
from proxy.lab.needs import Needs
from proxy.lab.replay.bills import SessionBill, SummaryCosts
from proxy.lab.replay.display import print_replays
from proxy.lab.replay.environment import Options
from proxy.lab.replay.report import PresetResult, Report, averages, preset_results
from proxy.lab.replay.runs import replay_each

SHORT = recorded("write_once")
MODEL = "gpt-5.4"


def report_of(preset: str, ratio: float, visible: int = 10, hidden: int = 0, model: str = MODEL) -> Report:
    """A session whose bill was that of doing nothing times `ratio`; so many uses were in sight, and so many not."""
    prices = prices_for(model)
    found = Report("s", model, SessionBill(prices), SessionBill(prices), preset=preset, worst_ratio_at_any_stop=ratio)
    found.bill.input, found.baseline.input = 2 * ratio, 2.0
    for where, times in (("visible", visible), ("recoverable_by_recall", hidden)):
        for _ in range(times):
            found.used_by_later_turns.all.add(where)  # type: ignore[arg-type]
    return found


def ahead(*found: Report) -> list[tuple[str, str]]:
    return [(row.prices, row.preset) for row in preset_results(found) if row.ahead]


def test_sums_are_of_all_sessions_and_peaks_of_the_worst() -> None:
    first, second = report_of("a", 0.5, visible=8, hidden=2), report_of("a", 1.0, visible=30)
    first.bill.tokens, second.bill.tokens, first.baseline.tokens, second.baseline.tokens = 10, 20, 30, 40
    first.bill.peak, second.bill.peak, first.baseline.peak, second.baseline.peak = 5, 3, 6, 9
    first.recalls.add(2, 0, [Usage(100, 0, 0, 1)])
    second.summaries = SummaryCosts(SessionBill(prices_for(MODEL), output=0.25), batch=1_000, calls=5, digests=2)
    first.needs, second.needs = Needs(10, 1, 1, 8, 2), Needs(30, 9, 3, 0, 0)
    (row,) = preset_results([first, second])
    assert row.sessions == 2
    assert (row.share_out_of_sight, row.share_out_of_sight_in_calls, row.share_edits_out_of_sight) == (0.25, 0.1, 0.25)
    assert (row.tokens_sent.with_, row.tokens_sent.without) == (30, 70)
    assert (row.peak_context.with_, row.peak_context.without) == (5, 9)
    assert row.input_bill.ratio == pytest.approx((1.0 + 2.0 + 0.25) / 4.0)
    assert (row.worst_ratio_at_any_stop, row.share_visible, row.share_recoverable, row.lost) == (1.0, 0.95, 0.05, 0)
    calls = row.model_calls
    assert (calls.recall_rounds, calls.summaries, calls.digests) == (1, 3, 2)
    assert calls.dollars == pytest.approx(0.25 + first.recalls.bill.input)


def test_ahead_is_who_no_other_beats_at_the_same_prices() -> None:
    cheap, clear, worse = report_of("cheap", 0.5, 5, 5), report_of("clear", 0.9), report_of("worse", 0.95, 9, 1)
    assert ahead(cheap, clear, worse) == [(MODEL, "cheap"), (MODEL, "clear")]
    alike = report_of("alike", 0.9)
    assert ahead(clear, alike) == [(MODEL, "clear"), (MODEL, "alike")]
    elsewhere = report_of("cheap", 1.0, model="gpt-4o")
    assert ahead(clear, elsewhere) == [(MODEL, "clear"), ("gpt-4o", "cheap")]


async def test_each_session_runs_under_each_preset_and_all_stand_in_one_table() -> None:
    progressed: list[None] = []
    names = ("structural", "coding-agent")
    found = await replay_each([SHORT], names, Options((MODEL,)), lambda: progressed.append(None))
    assert [(report.session, report.preset, report.faults) for report in found] == [(SHORT.name, n, 0) for n in names]
    assert len(progressed) == 2 * len(SHORT.turns)
    assert found[0].baseline == found[1].baseline
    assert [(mean.preset, mean.input_bill_ratio) for mean in averages(found)] == [
        (r.preset, r.input_bill.ratio) for r in found
    ]
    rows = preset_results(found)
    assert [as_json(row)["input_bill"]["ratio"] for row in rows] == [
        round(report.input_bill.ratio, 4) for report in found
    ]
    told = drawn(found, rows)
    begin, end = (next(at for at, line in enumerate(told) if line.startswith(words)) for words in ("presets ", "* no"))
    table = told[begin:end]
    for row in rows:
        bill, sight = (line for line in table if row.preset in line)
        assert bill.startswith("*") == sight.startswith("*") == row.ahead
        assert f"{row.input_bill.ratio:.3f} {row.whole_bill.ratio:.3f}" in bill
        assert f"{row.share_visible:.1%}" in sight
    assert [line for line in told if line.startswith("Prices of ")] == [
        f"Prices of {MODEL}, preset {name}, aim {PRESETS[name].aim}" for name in names
    ]
    assert max(map(len, told)) <= WIDE


def drawn(found: list[Report], rows: list[PresetResult]) -> list[str]:
    paper = StringIO()
    console = Console(file=paper, width=WIDE)
    print_replays(console, found, averages(found), rows)
    return paper.getvalue().rstrip().splitlines()


def test_one_preset_needs_no_table_and_no_name() -> None:
    found = [report_of("a", 0.5)]
    told = "\n".join(drawn(found, preset_results(found)))
    assert "no other preset" not in told
    assert f"Prices of {MODEL}, preset" not in told


def test_all_is_every_preset_and_each_runs_once() -> None:
    others = [name for name in PRESETS if name != "gentle"]
    assert list(presets_named(["gentle", "all", "gentle"], {})) == ["gentle", *others]
    with pytest.raises(ValueError, match="there is no preset 'x'"):
        presets_named(["all", "x"], {})


def test_the_rows_are_in_the_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "short.json"
    short = replace(SHORT, messages=SHORT.messages[:3])
    file.write_text(json.dumps({"model": MODEL, "messages": short.messages, "tools": short.tools}))
    with pytest.raises(SystemExit):
        cli.main(["replay", str(file), "--preset", "gentle", "--preset", "structural", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [row["preset"] for row in found["sessions"]] == ["gentle", "structural"]
    assert [(row["prices"], row["preset"]) for row in found["presets"]] == [(MODEL, "gentle"), (MODEL, "structural")]
    assert set(found["presets"][0]["model_calls"]) == {"recall_rounds", "summaries", "digests", "dollars"}
