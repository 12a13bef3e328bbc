"""The demo ends by itself, shows what it claims, and fails where the proof fails."""

import os
import tempfile
import webbrowser
from pathlib import Path

import pytest

from proxy.console import cli
from proxy.console.audit import read_audit
from proxy.console.read_store import StoreSettings, settings_of
from proxy.lab import demo
from proxy.lab.breakdown import BeforeAfter
from proxy.lab.demo import EDITED_AT, WINDOW, DemoResult, chat_at_length, demonstrate, newest_only, recorded
from proxy.lab.provider import find_violation
from proxy.lab.replay.recorded import requests
from proxy.lab.replay.runs import Progress
from proxy.lab.terminal import columns, new_page, write


def test_the_demo_runs_alone_and_shows_bars_bills_and_proof(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    acts: list[DemoResult] = []

    async def kept(model: str, progress: Progress) -> list[DemoResult]:
        acts.extend(await demonstrate(model, progress))
        return acts

    shown: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: bool(shown.append(address)))
    monkeypatch.setattr(demo, "demonstrate", kept)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "narrows-demo.html").write_text("a page of somebody else's")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NARROWS_MODE", "off")
    with pytest.raises(SystemExit) as leaving:
        cli.main(["demo", "--open"])
    out, err = capsys.readouterr()
    assert (leaving.value.code or 0, err) == (0, "narrows: there is no browser here; open the file in one elsewhere\n")
    assert shown == [(tmp_path / "narrows-demo-2.html").as_uri()]
    assert out.startswith("Two recorded sessions ")
    assert out.endswith("The page is in narrows-demo-2.html\nWith a client of your own: narrows run -- COMMAND\n")
    assert (tmp_path / "narrows-demo.html").read_text() == "a page of somebody else's"
    page = (tmp_path / "narrows-demo-2.html").read_text()
    assert all(name in page for name in ("write_once", "long_day", "long_chat"))
    lines = out.splitlines()
    assert max(map(len, lines)) <= 100
    assert len(lines) <= 80
    for name in ("write_once", "long_day"):
        assert f"The prefix held in {name}" in out
    assert "█" in out
    assert "░" in out
    assert out.count(f"last {WINDOW} messages") == 2
    assert list((tmp_path / "temporary").iterdir()) == []
    check_the_window_sends_least_and_still_costs_most_where_a_session_is_long(*acts)


def check_the_window_sends_least_and_still_costs_most_where_a_session_is_long(
    short: DemoResult, long: DemoResult
) -> None:
    assert all(act.is_held for act in (short, long))
    assert long.window.tokens < long.report.bill.tokens < long.report.baseline.tokens
    assert long.report.bill.input < long.report.baseline.input < long.window.input
    assert 0.8 < short.report.input_bill.ratio <= 1.02, "a short session gains less"
    for act in (short, long):
        assert act.window.output == pytest.approx(act.report.bill.output)
        assert sum(size.tokens.before for size in act.sizes.messages) == sum(
            kind.before for kind in act.sizes.kinds.values()
        )
        assert len(act.sizes.messages) == recorded(act.report.session).turns[-1] + 1


@pytest.mark.parametrize("name", ["write_once", "long_day"])
def test_the_window_is_valid_and_keeps_the_newest(name: str) -> None:
    for body in requests(recorded(name), "gpt-5.4", marks=False):
        cut = newest_only(body)
        assert find_violation(cut) is None
        assert cut["messages"][0] == body["messages"][0]
        newest = body["messages"][1:][-WINDOW:]
        assert cut["messages"][-len(newest) :] == newest
        assert len(cut["messages"]) <= len(body["messages"])


def test_a_proof_that_fails_is_said_and_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def broken(model: str, progress: Progress) -> list[DemoResult]:
        (act,) = await demonstrate(model, progress)
        act.report.undeclared_prefix_changes += 1
        return [act]

    monkeypatch.setattr(demo, "SHOWN", ("write_once",))
    monkeypatch.setattr(demo, "demonstrate", broken)
    with pytest.raises(SystemExit) as leaving:
        cli.main(["demo", "--html", os.devnull])
    assert leaving.value.code == 1
    assert "THE PREFIX DID NOT HOLD (1 faults) in write_once" in capsys.readouterr().out


async def test_a_summary_of_the_long_chat_stands_goes_stale_by_an_edit_and_is_made_anew(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/chat.db"
    report = await chat_at_length("gpt-5.4", store)
    words = [(each.summary, each.prefix) for each in report.each_request]
    edited = EDITED_AT - 1
    assert ("adopted", "checkpoint:summary") in words[:edited]
    assert words[edited] == ("stale:source", "client-changed")
    assert words[edited + 1] == ("adopted", "checkpoint:summary")
    assert report.faults == 0
    assert report.summaries.calls == report.summaries.adopted >= 3
    # the context stays small, and what that saved has every summary on the bill
    assert report.mean_context.with_ < 0.6 * report.mean_context.without
    assert report.each_request[-1].input_bill == report.input_bill
    assert report.input_bill.with_ == report.bill.input + report.summaries.bill.total < report.baseline.input
    audit = await read_audit(settings_of(StoreSettings, store, None), "run-0", None, 50)
    assert len(audit.summaries) >= 2


def test_columns_are_to_scale_and_more_than_before_shows() -> None:
    sizes = [BeforeAfter(4, 4), BeforeAfter(4, 1), BeforeAfter(2, 4), BeforeAfter(0, 0)]
    assert list(columns(sizes, 4, plain=True)) == ["#.+", "#.+", "#.#", "###"]


def test_a_page_that_nobody_named_never_replaces_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo.html").symlink_to(tmp_path / "nowhere")

    def written(name: str, page: str) -> Path:
        path = new_page(name, page)
        write(path, page)
        return path

    places = [written("demo", page) for page in ("one", "two", "one", "two")]
    assert places == [Path("demo-2.html"), Path("demo-3.html")] * 2
    assert [place.read_text() for place in places[:2]] == ["one", "two"]
    times = [f"drawn 2026-01-01 10:0{minute} UTC" for minute in range(2)]
    assert [written("timed", page) for page in times] == [Path("timed.html")] * 2
    assert Path("timed.html").read_text() == times[1]
    assert not (tmp_path / "nowhere").exists()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()  # nothing can be written here, not even by root
    place = written("demo", "three")
    assert place.is_relative_to(tmp_path)
    assert place.read_text() == "three"
