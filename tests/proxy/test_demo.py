"""The demo ends by itself, shows what it claims, and fails where the proof fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from proxy import cli, demo
from proxy.demo import WINDOW, Act, demonstrate, recorded, slid
from proxy.provider import violations
from proxy.recorded import requests
from proxy.replay import Progress


def test_the_demo_runs_alone_and_shows_bars_bills_and_proof(tmp_path: Path) -> None:
    environment = os.environ | {"HTTP_PROXY": "http://127.0.0.1:9", "NARROWS_MODE": "off", "TMPDIR": str(tmp_path)}
    words = [sys.executable, "-m", "proxy.cli", "demo"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    assert len(lines) <= 50
    for name in ("write_once", "long_day"):
        assert f"The prefix held in {name}" in done.stdout
    assert "█" in done.stdout
    assert "░" in done.stdout
    assert done.stdout.count(f"last {WINDOW} messages") == 2
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
async def acts() -> list[Act]:
    return await demonstrate("gpt-5.4")


async def test_the_window_sends_least_and_still_costs_most_where_a_session_is_long(acts: list[Act]) -> None:
    short, long = acts
    assert all(act.held for act in acts)
    assert long.window.tokens < long.report.bill.tokens < long.report.undone.tokens
    assert long.report.bill.input < long.report.undone.input < long.window.input
    assert 0.9 < short.report.ratio <= 1.02, "a short session gains little"
    for act in acts:
        assert act.window.output == pytest.approx(act.report.bill.output)
        assert sum(share.before for share in act.shares) == sum(share.before for share in act.kinds)
        assert len(act.shares) == act.messages + 1


@pytest.mark.parametrize("name", ["write_once", "long_day"])
def test_the_window_is_valid_and_keeps_the_newest(name: str) -> None:
    for body in requests(recorded(name), "gpt-5.4", marks=False):
        cut = slid(body)
        assert violations(cut) is None
        assert cut["messages"][0] == body["messages"][0]
        newest = body["messages"][1:][-WINDOW:]
        assert cut["messages"][-len(newest) :] == newest
        assert len(cut["messages"]) <= len(body["messages"])


def test_a_proof_that_fails_is_said_and_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def broken(model: str, progress: Progress) -> list[Act]:
        (act,) = await demonstrate(model, progress)
        act.report.undeclared += 1
        return [act]

    monkeypatch.setattr(demo, "SHOWN", ("write_once",))
    monkeypatch.setattr(demo, "demonstrate", broken)
    with pytest.raises(SystemExit) as leaving:
        cli.main(["demo"])
    assert leaving.value.code == 1
    assert "THE PREFIX DID NOT HOLD (1 faults) in write_once" in capsys.readouterr().out
