"""Figures that do not flatter: bills at any stop, recall rounds, unknown prices, other vocabularies, recorded usage."""

import json
from dataclasses import replace
from io import StringIO
from itertools import permutations
from pathlib import Path

import pytest
from rich.console import Console

from policies.money.catalog import prices_for
from policies.money.prices import Usage
from proxy.console import cli
from proxy.console.output import WIDE, as_json
from proxy.lab.demo import recorded
from proxy.lab.explain import explained, print_explanation
from proxy.lab.replay.bills import SessionBill, notes_on
from proxy.lab.replay.display import print_replays
from proxy.lab.replay.environment import Options
from proxy.lab.replay.recorded import chains
from proxy.lab.replay.report import EARLY, Report, averages, preset_results
from proxy.lab.replay.runs import replay_all
from tests.lab.test_explain import body_of

SHORT = recorded("write_once")
CLAUDE = "Tokens are counted with OpenAI's o200k_base, because that of claude-opus-5-5 is not public"


def report_at(model: str) -> Report:
    prices = prices_for(model)
    return Report("s", model, SessionBill(prices), SessionBill(prices), preset="a")


def drawn(reports: list[Report]) -> str:
    paper = StringIO()
    print_replays(Console(file=paper, width=WIDE), reports, averages(reports), preset_results(reports))
    return paper.getvalue()


def test_the_worst_bill_counts_at_any_stop_and_past_request_20() -> None:
    report = report_at("gpt-5.4")
    for ratio in (1.5, *[1.0] * (EARLY - 1), 1.2, 0.9):
        report.requests += 1
        report.bill.input, report.baseline.input = ratio, 1.0
        report.compare_bills()
    assert (report.worst_ratio_at_any_stop, report.worst_ratio_past_request_20) == (1.5, 1.2)
    assert report.input_bill.ratio == 0.9
    early = report_at("gpt-5.4")
    early.requests, early.bill.input, early.baseline.input = EARLY, 1.1, 1.0
    early.compare_bills()
    assert (early.worst_ratio_at_any_stop, early.worst_ratio_past_request_20) == (1.1, 0.0)
    (mean,) = averages([report, early])
    assert (mean.worst_input_bill_ratio, mean.worst_ratio_past_request_20) == (1.1, 1.2)
    early.kind = "mine"
    rows = {row.group: row for row in averages([report, early])}
    assert [*rows] == ["short", "mine", "all"]
    worst = [(row.worst_input_bill_ratio, row.worst_ratio_at_any_stop) for row in rows.values()]
    assert worst == [(0.9, 1.5), (1.1, 1.1), (1.1, 1.5)]
    assert rows["all"].input_bill_ratio == pytest.approx(1.0)


def test_the_whole_bill_has_the_output_and_recalls_their_share() -> None:
    report = report_at("gpt-5.4")
    report.baseline.add(Usage(1_000_000, 0, 0, 100_000))
    for usage in (Usage(300_000, 0, 0, 0), Usage(100_000, 0, 0, 100_000)):
        report.bill.add(usage)
    report.recalls.add(1, 0, [Usage(100_000, 0, 0, 100_000)])
    assert report.input_bill.ratio < report.whole_bill.ratio < 1
    assert report.whole_bill.with_ == pytest.approx(report.bill.input + report.bill.output)
    assert report.recall_share_of_input_bill == pytest.approx(report.recalls.bill.input / report.bill.input)
    assert as_json(report)["whole_bill"]["ratio"] == round(report.whole_bill.ratio, 4)


async def test_dollars_of_unknown_prices_are_nowhere() -> None:
    (report,) = await replay_all([replace(SHORT, model="nobody-1")], Options())
    values = as_json(report)
    assert values["input_bill"] == {"with": None, "without": None, "ratio": round(report.input_bill.ratio, 4)}
    assert values["whole_bill"]["with"] is values["recalls"]["input_bill"] is values["summaries"]["dollars"] is None
    assert any(note.startswith("The prices of nobody-1 are not known") for note in values["notes"])
    other = replace(report, preset="b")
    text = drawn([report, other])
    assert "unknown price" in text
    assert "The prices of nobody-1 are not known" in text
    assert "$0" not in text
    assert max(map(len, text.splitlines())) <= WIDE


def test_a_dry_run_shows_no_dollars_of_unknown_prices() -> None:
    explanation = explained(body_of("write_once").replace(b'"gpt-5.4"', b'"nobody-1"', 1), "coding-agent")
    bills = as_json(explanation)["input_bill_of_this_request"]
    assert bills == {
        key: {"before": None, "after": None} for key in ("nothing_cached", "all_cached", "now", "in_ten_minutes")
    }
    paper = StringIO()
    print_explanation(Console(file=paper, width=WIDE), explanation)
    assert "unknown price" in paper.getvalue()
    assert "$0" not in paper.getvalue()


@pytest.mark.parametrize(
    ("model", "notes"),
    [("gpt-5.4", 0), ("openai/gpt-4o", 0), ("o3", 0), ("anthropic/claude-opus-5-5", 1), ("gemini-3-pro-preview", 1)],
)
def test_another_vocabulary_is_noted(model: str, notes: int) -> None:
    found = [note for note in notes_on(prices_for(model)) if note.startswith("Tokens are counted with")]
    assert len(found) == notes


async def test_each_table_of_claude_says_whose_tokens_they_are() -> None:
    (report,) = await replay_all([SHORT], Options(prices=("claude-opus-5-5",)))
    rows = (report, *averages([report]), *preset_results([report]))
    assert all(as_json(row)["notes"][0].startswith(CLAUDE) for row in rows)
    shown = " ".join(drawn([report, replace(report, preset="b")]).split())
    assert shown.count(CLAUDE) == 4  # under each preset, under the means, under the presets


def test_the_orders_of_a_chain_can_be_told_apart() -> None:
    names = ["mini-pylint-dev__pylint-6528", "mini-django__django-11138", "pi-1"]
    reports = [replace(report_at("gpt-5.4"), session="+".join(order)) for order in permutations(names)]
    shown = drawn(reports)
    for order in permutations(("nt-6528", "o-11138", "pi-1")):
        assert "+".join(order) in shown
    assert max(map(len, shown.splitlines())) <= WIDE


async def test_a_chain_reports_the_mean_and_the_worst_of_its_orders() -> None:
    other = replace(recorded("follow_up"), name="other")
    reports = await replay_all(chains([SHORT, other]), Options())
    ratios = [report.input_bill.ratio for report in reports]
    assert [report.session for report in reports] == ["write_once+other", "other+write_once"]
    (mean,) = averages(reports)
    assert (mean.group, mean.sessions) == ("chain", 2)
    assert mean.input_bill_ratio == pytest.approx(sum(ratios) / 2)
    assert mean.worst_input_bill_ratio == max(ratios)
    assert "chain: sessions as one conversation, order by order, 2 of them: their mean and their worst" in drawn(
        reports
    )


def test_the_command_takes_groups_and_refuses_an_order_without_a_chain(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "mcp-1.json"
    file.write_text(json.dumps({"model": "gpt-5.4", "messages": SHORT.messages[:3], "tools": SHORT.tools}))
    with pytest.raises(SystemExit) as leaving:
        cli.main(["replay", str(file), "--group", "mcp=mcp-*", "--json"])
    assert leaving.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["group"] for row in (*found["sessions"], *found["means"])] == ["mcp", "mcp"]
    for words, advice in ((["--as-listed"], "give it with --chain"), (["--group", "mcp"], "is no NAME=GLOB")):
        with pytest.raises(SystemExit) as leaving:
            cli.main(["replay", str(file), *words])
        assert leaving.value.code == 2
        assert advice in capsys.readouterr().err


async def test_marks_and_compaction_are_two_rows() -> None:
    """What compaction saved is counted from what cache marks alone would have cost."""
    sessions, claude = [recorded("long_day")], Options(prices=("claude-opus-5-5",), no_marks=True)
    (report,) = await replay_all(sessions, claude)
    nothing, marks = report.baseline.input, report.marks_alone.input
    assert 0 < marks < nothing / 2
    assert report.input_bill_of_marks_alone.ratio == marks / nothing
    assert report.input_bill_beside_marks_alone.ratio == report.input_bill.with_ / marks
    assert report.input_bill_beside_marks_alone.ratio < 1.03
    assert report.marks_matter
    assert "marks alone $/none" in drawn([report])
    (other,) = await replay_all(sessions, Options(prices=("gpt-5.4",)))
    assert other.input_bill_beside_marks_alone == other.input_bill
    assert not other.marks_matter
    assert "marks alone" not in drawn([other])
