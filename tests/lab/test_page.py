"""The pages: they say what the values say, stand alone, and nothing in a request becomes more than text."""

import asyncio
import json
import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from proxy.console import cli
from proxy.console.output import as_json
from proxy.drawing.charts import MARKS, count_ticks, legend_of_prefixes, mark
from proxy.drawing.html import element, visible
from proxy.lab import sessions
from proxy.lab.demo import recorded
from proxy.lab.explain import Explanation, explained, print_explanation
from proxy.lab.replay.display import print_replays
from proxy.lab.replay.environment import Options
from proxy.lab.replay.report import Report, averages, preset_results
from proxy.lab.replay.runs import replay_all
from proxy.lab.terminal import page_of
from tests.kit.drawn import HOSTILE, checked
from tests.kit.histories import TOOLS
from tests.lab.test_explain import body_of, called, chat, said

SHORT = recorded("write_once")


@pytest.fixture(scope="module")
def replayed() -> Report:
    (report,) = asyncio.run(replay_all([SHORT], Options(prices=("gpt-5.4",))))
    return report


@pytest.fixture(scope="module")
def short() -> Explanation:
    return explained(body_of("write_once"), "coding-agent")


@pytest.fixture(scope="module")
def long() -> Explanation:
    return explained(body_of("long_day"), "coding-agent")


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as leaving:
        cli.main(words)
    return int(leaving.value.code or 0)


# --- the values ---


def test_messages_and_kinds_add_up_to_the_request(long: Explanation) -> None:
    for sizes in ([share.tokens for share in long.messages], [*long.kinds.values()]):
        assert sum(size.before for size in sizes) == long.tokens.before
        assert sum(size.after for size in sizes) == long.tokens.after
    less = sum(change.tokens.before - change.tokens.after for change in long.edits)
    assert long.tokens.before - long.tokens.after == less - long.tokens_of_recall_tool


def test_a_recall_exchange_is_ours_and_not_what_the_client_wrote() -> None:
    turns = called(1, "line\n" * 40)
    turns[0]["tool_calls"][0]["function"] = {"name": "narrows_recall", "arguments": '{"ref": "123456"}'}
    told = explained(chat(said("user", "go"), *called(0, "ok"), *turns, tools=TOOLS), "coding-agent")
    assert told.tokens.before == sum(share.tokens.before for share in told.messages)
    assert told.tokens.after == sum(share.tokens.after for share in told.messages)
    ours = [share.tokens for share in told.messages if share.tool == "narrows_recall"]
    assert [tokens.before for tokens in ours] == [0, 0]
    assert all(tokens.after > 0 for tokens in ours)


def test_the_requests_of_a_report_add_up_to_its_bill(replayed: Report) -> None:
    each = replayed.each_request
    assert len(each) == replayed.requests
    assert sum(one.tokens_sent.with_ for one in each) == replayed.bill.tokens
    assert sum(one.tokens_sent.without for one in each) == replayed.baseline.tokens
    assert sum(one.cached_tokens_given_up for one in each) == replayed.cached_tokens_given_up > 0
    assert [one.prefix for one in each if one.cached_tokens_given_up] == ["tail-cut"] * replayed.prefix["tail-cut"]
    listed = as_json(replayed)
    assert listed["each_request"][-1] == as_json(each[-1])
    assert (listed["preset"], replayed.preset) == ("adaptive", "adaptive")


# --- the pages ---


def test_a_page_says_what_the_terminal_says(short: Explanation, replayed: Report) -> None:
    reports = ([replayed], averages([replayed]), preset_results([replayed]))
    for draw in (lambda paper: print_explanation(paper, short), lambda paper: print_replays(paper, *reports)):
        paper = StringIO()
        draw(Console(file=paper, width=124))
        assert checked(page_of(draw)).text.endswith(" ".join(paper.getvalue().split()))


def test_x8_nothing_that_a_request_says_becomes_markup() -> None:
    name = f"<b>{HOSTILE[:9]}"
    output = "\n".join(f"{HOSTILE} {i}" for i in range(400))
    turns = [called(i, output if i == 0 else f"ok {i}") for i in range(24)]
    for turn in turns:
        turn[0]["tool_calls"][0]["function"]["name"] = name
    body = chat(said("user", HOSTILE), *(message for turn in turns for message in turn), model=HOSTILE, tools=TOOLS)
    told = explained(body, "coding-agent")
    found = checked(page_of(lambda paper: print_explanation(paper, told)))
    assert told.edits
    assert HOSTILE in found.text
    assert found.text.count(name) > 1
    assert found.count("h1") == 1


def test_x8_what_cannot_be_seen_is_shown() -> None:
    name = "a\ud800b\x00c\x1b[2Jd\u202ee\r\nf\rg\th"
    assert visible(name) == "a�b�c�[2Jd�e\nf�g\th"
    assert element("p", name, class_=name).encode()
    assert (
        element("a", "x", href='#"><b>', open=True, id=None, hidden=False)
        == '<a href="#&quot;&gt;&lt;b&gt;" open>x</a>'
    )


def test_a_checkpoint_stands_out_whatever_its_reason() -> None:
    assert mark("checkpoint:paid") == mark("checkpoint:summary")
    heights = [mark(word)[1] for word in ("extended", "tail-cut", "checkpoint:paid")]
    assert heights == sorted(set(heights))
    assert len({mark(word)[0] for word in ("extended", "tail-cut", "checkpoint:paid", "refused", "bypassed")}) == 5


@pytest.mark.parametrize("words", [["first", "extended"], list(MARKS), [*MARKS, "checkpoint:cold", "bypassed", ""]])
def test_no_two_entries_of_a_legend_have_one_colour(words: list[str]) -> None:
    classes = re.findall(r'<rect[^>]* class="(\w+)"', legend_of_prefixes(words))
    assert len(set(classes)) == len(classes) == len({mark(word)[0] for word in words})


@pytest.mark.parametrize("count", [1, 2, 6, 7, 71, 100, 999, 1_000, 12_345])
def test_an_axis_has_a_few_round_numbers_each_below_its_column(count: int) -> None:
    ticks = count_ticks(count)
    assert 1 <= len(ticks) <= 8
    numbers = [int(word.replace(",", "")) for _, word in ticks]
    assert numbers[0] == 1
    assert numbers[-1] <= count
    assert [place for place, _ in ticks] == [(number - 0.5) / max(count, 12) for number in numbers]


# --- the command ---


def test_the_page_is_written_and_the_last_line_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    request, place = tmp_path / "request.json", tmp_path / "page.html"
    place.write_text("what was there before " * 9_000)
    request.write_bytes(body_of("write_once"))
    assert run("explain", str(request), "--html", str(place), "--prices", "gpt-4o") == 0
    out, err = capsys.readouterr()
    assert (out.splitlines()[-1], err) == (f"The page is in {place}", "")
    found = checked(place.read_text())
    assert "Prices of gpt-4o, for the input" in found.text


def test_with_json_nothing_else_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session, place = tmp_path / "s.json", tmp_path / "page.html"
    messages = [said("user", "hi"), said("assistant", "ho"), said("user", "well"), said("assistant", "so")]
    session.write_bytes(chat(*messages))
    assert run("replay", str(session), "--html", str(place), "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["sessions"]) == 1
    assert "this session costs" in checked(place.read_text()).text


@pytest.mark.parametrize("command", ["explain", "replay"])
def test_a_page_that_cannot_be_written_is_refused_before_anything_is_run(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def never(*_: object) -> list[Report]:
        raise AssertionError("it was run")

    monkeypatch.setattr("proxy.lab.replay.runs.replay_all", never)
    session = tmp_path / "s.json"
    session.write_text(json.dumps(sessions.load("write_once")))
    whole = session.read_bytes()
    places = {
        str(tmp_path / "no" / "page.html"): "cannot write",
        str(tmp_path): "cannot write",
        "-": "- is none",
        "": "nothing is none",
        str(tmp_path / "." / "s.json"): "would write over",
    }
    for place, sentence in places.items():
        assert run(command, str(session), "--html", place) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert sentence in err
        assert err.startswith("narrows: ")
        assert err.count("\n") == 1
    assert session.read_bytes() == whole
    assert list(tmp_path.iterdir()) == [session]


def test_a_disk_that_is_full_in_the_end_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    request = tmp_path / "request.json"
    request.write_bytes(chat(said("user", "hi")))
    assert run("explain", str(request), "--html", "/dev/full") == 2
    assert capsys.readouterr().err.startswith("narrows: cannot write /dev/full (No space left on device)")


def test_a_name_that_no_file_can_have_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    request, link = tmp_path / "request.json", tmp_path / "link"
    request.write_bytes(chat(said("user", "hi")))
    assert run("explain", str(request), "--html", "x" * 300) == 2
    assert "(File name too long); name a file" in capsys.readouterr().err
    link.symlink_to(tmp_path / "page.html")
    assert run("explain", str(request), "--html", str(link)) == 0
    assert link.is_symlink()  # it is written where it leads to


def test_a_reference_has_no_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain", "-", "--ref", "123456", "--html", str(tmp_path / "page.html")) == 2
    assert "--html shows the whole request" in capsys.readouterr().err
