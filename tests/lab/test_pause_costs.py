"""Pauses in a replay: what they cost with nothing done and with Narrows, and what is kept warm."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from policies.money.caches import MarkLifetime
from policies.money.catalog import prices_for
from policies.money.prices import Usage
from proxy.console.output import as_json
from proxy.lab import sessions
from proxy.lab.pages import replay_page
from proxy.lab.replay.bills import Compared
from proxy.lab.replay.environment import Options
from proxy.lab.replay.recorded import Session, session_of
from proxy.lab.replay.report import Report, averages
from proxy.lab.replay.runs import replay_all
from proxy.lab.replay.times import times_of
from proxy.usage.report import UsageQuery, read_usage
from tests.addons.pages.test_conversations import opened
from tests.console.test_cli import told
from tests.kit.drawn import checked
from tests.kit.forms import FORMS, plain
from tests.lab.test_replay_figures import drawn

MODEL = "claude-opus-5-5"
PRICES = prices_for(MODEL)
TIMES = [0, 10, 20, 30, 700, 710, 4_400, 4_410]
"""Of the eight requests of the session: pauses of eleven minutes and of an hour."""
BODY: dict[str, Any] = {**FORMS["anthropic_messages"](plain(sessions.load("write_once"))), "model": MODEL}
HOSTED = {"type": "web_search_20250305", "name": "web_search"}
PLAIN = session_of(json.dumps(BODY).encode(), "short", "short")
PAUSED = replace(PLAIN, times=times_of(TIMES, 8))


async def replayed(
    session: Session = PAUSED, mark_lifetime: MarkLifetime = "own", keep_warm: float = 0.0, preset: str = "lossless"
) -> Report:
    options = Options(mark_lifetime=mark_lifetime, keep_warm=keep_warm, preset=preset)
    (report,) = await replay_all([session], options)
    return report


async def test_without_times_nothing_is_said_of_pauses() -> None:
    report = await replayed(PLAIN)
    assert report.pauses is None
    assert as_json(report)["pauses"] is None
    assert "never expired" not in drawn([report]).partition("means of")[0]


async def test_p1_pauses_cost_what_the_bill_is_higher_than_with_nothing_expired() -> None:
    """The bill of the same requests without a pause says it, by other arithmetic."""
    report, steady = await replayed(), await replayed(PLAIN)
    costs = report.pauses
    assert costs is not None
    assert (costs.expired, costs.bridged, costs.pings) == (Compared(2, 2), 0, 0)
    assert report.baseline.total - costs.cost.without == pytest.approx(steady.baseline.total)
    assert costs.never_expired_ratio == pytest.approx(steady.baseline.total / report.baseline.total)
    assert 0 < costs.shares.without < 1
    assert [each.expired_tokens.without > 0 for each in report.each_request] == [at in (4, 6) for at in range(8)]
    for at in (4, 6):
        assert report.each_request[at].expired_tokens.without == report.each_request[at - 1].tokens_sent.without


async def test_what_is_shortened_while_it_is_cold_costs_as_much_less_as_it_is_shorter() -> None:
    report = await replayed(preset="eager")
    costs = report.pauses
    assert costs is not None
    assert 0 < report.prefix["checkpoint:cold"] <= costs.expired.with_
    assert 0 < costs.cost.with_ < costs.cost.without
    tokens = sum(int(each.expired_tokens.with_) for each in report.each_request)
    again = PRICES.cost(Usage(tokens, 0, tokens, 0)).input - PRICES.cost(Usage(tokens, tokens, 0, 0)).input
    assert costs.cost.with_ == pytest.approx(again)


@pytest.mark.parametrize(("keep_warm", "bridged", "cold"), [(0.0, 0, 2), (900.0, 1, 1), (7_200.0, 2, 0)])
async def test_p2_what_is_kept_warm_is_bridged_by_pings_that_are_on_the_bill(
    keep_warm: float, bridged: int, cold: int
) -> None:
    report, dear = await replayed(keep_warm=keep_warm), await replayed()
    costs, others = report.pauses, dear.pauses
    assert costs is not None
    assert others is not None
    assert (costs.expired, costs.bridged) == (Compared(cold, 2), bridged)
    assert (costs.pings > 0) == (bridged > 0) == (costs.share_of_pings > 0)
    end = PAUSED.times[-1].sent  # nobody knows that nobody returns
    assert all(30 < at < 700 or 710 < at < 4_400 or at > end for at in costs.pinged_at)
    assert costs.cost.with_ <= others.cost.with_
    saved, spent = others.cost.with_ - costs.cost.with_, report.pings.total
    assert report.whole_bill.with_ == pytest.approx(dear.whole_bill.with_ - saved + spent)


@pytest.mark.parametrize("preset", ["lossless", "eager"])
@pytest.mark.parametrize(
    ("model", "times", "keep_warm"),
    [
        (MODEL, TIMES, 0.0),
        (MODEL, TIMES, 900.0),
        (MODEL, TIMES, 7_200.0),
        ("gpt-6.1-sol", TIMES, 0.0),
        ("gpt-5.4", [0, 10, 20, 30, 100_000, 100_010, 190_000, 190_010], 0.0),
    ],
)
async def test_bills_and_replay_count_the_same_for_pauses(
    tmp_path: Path, preset: str, model: str, times: list[float], keep_warm: float
) -> None:
    """Bills go by the usage of each reply and the plan, replay by a cache that never forgets."""
    chat = session_of(json.dumps(plain(sessions.load("write_once"))).encode(), "chat", "chat")
    session = replace(PLAIN if model == MODEL else chat, times=times_of(times, 8))
    url = f"sqlite:///{tmp_path}/replay.db"
    (report,) = await replay_all([session], Options(store=url, prices=(model,), preset=preset, keep_warm=keep_warm))
    later = time.time() + 3 * 86_400  # the clock of a replay begins now
    async with opened(url) as store:
        sums = (await read_usage(store, UsageQuery.read("day", "", later))).total.sums
    costs = report.pauses
    assert costs is not None
    assert costs.expired.with_ + costs.bridged == costs.expired.without > 0
    assert (sums.expired, sums.bridged, sums.pings) == (costs.expired.with_, costs.bridged, costs.pings)
    assert sums.pause_cost == pytest.approx(costs.cost.with_, abs=1e-9)
    assert sums.ping_cost == pytest.approx(report.pings.total, abs=1e-9)
    assert sums.paid == pytest.approx(report.bill.total, abs=1e-9)
    if preset == "lossless" and keep_warm:  # what is not cut would have cost as much
        steady = await replayed()
        assert steady.pauses is not None
        assert sums.pause_saving == pytest.approx(steady.pauses.cost.with_ - costs.cost.with_)


async def test_of_several_sessions_the_mean_is_said_of_those_with_times() -> None:
    report, steady = await replayed(), await replayed(PLAIN)
    costs = report.pauses
    assert costs is not None
    text = " ".join(drawn([report, report, steady]).split())
    assert f"pauses, mean of 2 sessions: {costs.shares.without:.1%} of the bill with nothing done" in text
    assert f"(never expired: {costs.never_expired_ratio:.3f})" in text
    assert "mean of" not in drawn([report, steady]).partition("used out of sight")[0]


async def test_the_tables_and_the_page_say_it() -> None:
    report = await replayed(keep_warm=900)
    text = drawn([report])
    assert "never expired" in text
    assert report.pauses is not None
    page = checked(replay_page([report], averages([report]))).text
    assert f"{report.pauses.shares.with_:.1%}/{report.pauses.shares.without:.1%}" in page
    assert "bridged" in page
    assert "for what expired in pauses" in page


def command(tmp_path: Path, *words: str) -> list[str]:
    session, times = tmp_path / "short.json", tmp_path / "times.json"
    session.write_text(json.dumps(BODY))
    times.write_text(json.dumps(TIMES))
    return ["replay", str(session), "--preset", "lossless", "--pauses", str(times), *words]


def test_the_command_takes_both_levers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bridged = []
    for words in ([], ["--keep-warm", "15m"], ["--keep-warm", "2h", "--mark-lifetime", "usual"]):
        code, out, err = told(capsys, *command(tmp_path, *words, "--json"))
        assert (code, err) == (0, "")
        (row,) = json.loads(out)["sessions"]
        bridged.append(row["pauses"]["bridged"])
        assert row["pauses"]["pings"] == len(row["pauses"]["pinged_at"])
        assert {"with", "without", "ratio"} == row["pauses"]["cost"].keys()
    assert bridged == [0, 1, 2]


async def test_p2_marks_of_the_client_live_longer_where_that_pays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("policies.planning.step.affords", lambda *_, **__: True)
    often = replace(PLAIN, times=times_of([700 * at for at in range(8)], 8))
    usual, auto = await replayed(often, "usual"), await replayed(often, "auto")
    assert usual.pauses is not None
    assert auto.pauses is not None
    assert (usual.pauses.bridged, usual.pauses.pings, auto.pauses.pings) == (0, 0, 0)
    assert auto.pauses.bridged > 0
    expired = auto.pauses.expired
    assert expired.with_ + auto.pauses.bridged == expired.without == usual.pauses.expired.with_


@pytest.mark.parametrize(
    ("changes", "pauses", "words", "sentence"),
    [
        ({}, "none", "15m", "nobody knows when its requests were sent; name times with --pauses FILE."),
        ({}, "", "2m", "its cache lives 5m without any; name a longer time."),
        ({"tools": [*BODY["tools"], HOSTED]}, "", "15m", "the provider runs tools of its own in it."),
        ({}, "", "15m", ""),
        ({}, "", "0", ""),
    ],
)
def test_where_nothing_can_be_kept_warm_a_sentence_says_why(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    pauses: str,
    words: str,
    sentence: str,
) -> None:
    asked = command(tmp_path, "--keep-warm", words, "--json")
    (tmp_path / "short.json").write_text(json.dumps(BODY | changes))
    code, out, err = told(capsys, *asked, *(["--pauses", pauses] if pauses else ()))
    assert code == 0, err
    (row,) = json.loads(out)["sessions"]
    notes = [note for note in row["notes"] if note.startswith("--keep-warm")]
    assert [f"--keep-warm sends no ping in short: {sentence}" in note for note in notes] == [True] * bool(sentence)
    assert row["pauses"] is None or (row["pauses"]["pings"] > 0) == (words == "15m" and not sentence)


async def test_chat_completions_have_no_ping_and_without_times_none_is_sent() -> None:
    chat = replace(session_of(json.dumps({**plain(sessions.load("write_once")), "model": MODEL}).encode(), "", "x"))
    for session, reason in ((PLAIN, "nobody knows"), (replace(chat, times=PAUSED.times), "vendors name one")):
        report = await replayed(session, keep_warm=900.0)
        assert reason in report.no_ping
        assert report.pings.tokens == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--keep-warm", "soon"], "'soon' is no duration"),
        (["--keep-warm", "2d"], "keep_warm: Input should be less than or equal to 86400"),
        (["--keep-warm", "15m", "--upstream", "http://127.0.0.1:1/v1"], "are for the built-in provider"),
    ],
)
def test_what_cannot_be_kept_warm_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    code, _, err = told(capsys, *command(tmp_path)[:2], *words)
    assert (code, sentence in err) == (2, True), err
