"""The pages: they say what the values say, stand alone, and nothing in a request becomes more than text."""

import asyncio
import json
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from policies.presets import PRESETS
from proxy.console import cli
from proxy.console.output import as_json
from proxy.drawing.charts import FOLDED, MARKS, count_ticks, legend_of_prefixes, mark
from proxy.drawing.figures import signed
from proxy.drawing.html import element, visible
from proxy.lab import sessions
from proxy.lab.breakdown import order_of
from proxy.lab.demo import recorded
from proxy.lab.explain import Explanation, explained
from proxy.lab.pages import explain_page, replay_page
from proxy.lab.replay.bills import SessionBill
from proxy.lab.replay.command import replay_until
from proxy.lab.replay.environment import Options
from proxy.lab.replay.report import REFUSED, Report, averages, preset_results
from proxy.lab.replay.runs import replay_all
from tests.kit.drawn import HOSTILE, checked
from tests.kit.histories import TOOLS
from tests.lab.test_explain import body_of, called, chat, said

SHORT = recorded("write_once")
ORDER = order_of(PRESETS["coding-agent"].policies)
NOWHERE = "nothing to replay here"


@pytest.fixture(scope="module")
def replayed() -> Report:
    (report,) = asyncio.run(replay_all([SHORT], Options(prices=("gpt-5.4",), preset="structural")))
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


def test_the_layers_lead_from_what_was_written_to_what_is_sent(long: Explanation) -> None:
    told = long
    first, *others = told.layers
    assert (first.after, first.tokens, told.layers[-1].tokens) == ("as written", told.tokens.before, told.tokens.after)
    assert others[0].after == "recall tool"
    assert others[0].tokens - first.tokens == told.tokens_of_recall_tool
    names = [layer.after for layer in others[1:]]
    assert names == [name for name in ORDER if name not in told.idle_policies]
    for before, layer in pairwise(others):
        edits = [change for change in told.edits if change.policy == layer.after]
        assert layer.edits == len(edits) > 0
        assert before.tokens - layer.tokens == sum(change.tokens.before - change.tokens.after for change in edits)
        assert sum(layer.kinds.values()) == layer.tokens
    assert first.characters == sum(share.characters.before for share in told.messages)
    assert told.layers[-1].characters == sum(share.characters.after for share in told.messages)
    for sizes in ([share.tokens for share in told.messages], [*told.kinds.values()]):
        assert sum(size.before for size in sizes) == told.tokens.before
        assert sum(size.after for size in sizes) == told.tokens.after


def test_a_recall_exchange_is_ours_and_not_what_the_client_wrote() -> None:
    turns = called(1, "line\n" * 40)
    turns[0]["tool_calls"][0]["function"] = {"name": "narrows_recall", "arguments": '{"ref": "123456"}'}
    told = explained(chat(said("user", "go"), *called(0, "ok"), *turns, tools=TOOLS), "coding-agent")
    assert told.layers[0].tokens == told.tokens.before == sum(share.tokens.before for share in told.messages)
    assert told.layers[-1].tokens == told.tokens.after == sum(share.tokens.after for share in told.messages)
    ours = [share for share in told.messages if share.tool == "narrows_recall"]
    assert [(share.tokens.before, share.characters.before) for share in ours] == [(0, 0), (0, 0)]
    assert all(share.tokens.after > 0 and share.characters.after > 0 for share in ours)


def test_the_requests_of_a_report_add_up_to_its_bill(replayed: Report) -> None:
    each = replayed.each_request
    assert len(each) == replayed.requests
    assert sum(one.tokens_sent.with_ for one in each) == replayed.bill.tokens
    assert sum(one.tokens_sent.without for one in each) == replayed.baseline.tokens
    assert sum(one.cached_tokens_given_up for one in each) == replayed.cached_tokens_given_up > 0
    assert [one.prefix for one in each if one.cached_tokens_given_up] == ["tail-cut"] * replayed.prefix["tail-cut"]
    assert replayed.last_request is not None
    written, *_, sent = replayed.last_request.layers
    assert 0 <= each[-1].tokens_sent.without - written.tokens < 16, "the provider counts what a request ends with"
    assert 0 <= each[-1].tokens_sent.with_ - sent.tokens < 16
    listed = as_json(replayed)
    assert listed["each_request"][-1] == as_json(each[-1])
    assert (listed["preset"], replayed.preset) == ("structural", "structural")


# --- the pages ---


def test_the_page_of_a_request_says_it_all_as_text(short: Explanation, replayed: Report) -> None:
    told = short
    found = checked(explain_page("my request.json", told, replayed))
    assert f"{told.tokens.before:,} → {told.tokens.after:,} tokens" in found.text
    for layer in told.layers:
        assert f"{layer.after}" in found.text
        assert f"{layer.tokens:,} tokens" in found.text
        assert f"{layer.characters:,} characters" in found.text
    assert f"No effect: {', '.join(told.idle_policies)}." in found.text
    for share in told.messages:
        left = "" if share.tokens.before == share.tokens.after else f" → {share.tokens.after:,}"
        assert f"{share.kind} {share.tool}".strip() in found.text
        assert f"{share.tokens.before:,}{left} tokens" in found.text
    for change in told.edits:
        assert " ".join(change.becomes.split()) in found.text
        assert f"{change.where} {change.tokens.before:,} → {change.tokens.after:,} tokens" in found.text
        assert f"Reference {change.ref} ." in found.text
    for one in replayed.each_request:
        assert one.prefix in found.text
        sizes = f"{one.cached_tokens_given_up:,} {one.tokens_sent.with_:,} {one.tokens_sent.without:,}"
        assert not one.cached_tokens_given_up or f"{one.prefix} {sizes}" in found.text
    assert f"{replayed.used_by_later_turns.all.visible:,} visible, " in found.text
    assert f"tokens sent {replayed.baseline.tokens:,} {replayed.tokens_sent.with_:,}" in found.text
    assert found.count("details", **{"class": "change"}) == len(told.edits)
    assert "Faults" not in found.text
    rectangles = [float((width or "").rstrip("%")) for width in found.values("width") if str(width).endswith("%")]
    assert 0 <= min(rectangles) <= max(rectangles) == 100


def test_the_page_of_a_replay_leads_to_a_section_for_each_session(replayed: Report) -> None:
    broken = Report(HOSTILE, "nobody-knows", SessionBill(replayed.bill.prices), SessionBill(replayed.bill.prices))
    broken.preset = "gentle"
    broken.refuse(400, HOSTILE)
    both = [replayed, broken]
    found = checked(replay_page(both, averages(both), preset_results(both)))
    links = [link for link in found.values("href") if link]
    sections = [f"#{name}" for name in found.values("id")]
    assert sections == ["#session-1", "#session-2"]
    assert links == 2 * sections  # of the bills and of what stood in sight
    assert f"{replayed.input_bill.ratio:.3f}" in found.text
    assert f"Faults: 1 refused as invalid. The first refusal: 400: {HOSTILE}" in found.text
    assert f"{REFUSED} 1" in found.text
    assert found.text.count(HOSTILE) == 4
    assert "Presets compared" in found.text
    alone = both[:1]
    assert "Presets compared" not in checked(replay_page(alone, averages(alone), preset_results(alone))).text


def test_x8_nothing_that_a_request_says_becomes_markup() -> None:
    output = "\n".join(f"{HOSTILE} {i}" for i in range(400))
    turns = [called(i, output if i == 0 else f"ok {i}") for i in range(24)]
    for turn in turns:
        turn[0]["tool_calls"][0]["function"]["name"] = HOSTILE
    body = chat(said("user", HOSTILE), *(message for turn in turns for message in turn), model=HOSTILE, tools=TOOLS)
    told = explained(body, "coding-agent")
    found = checked(explain_page(HOSTILE, told, HOSTILE))
    assert told.edits
    assert any(HOSTILE in change.becomes for change in told.edits)
    assert found.text.count(HOSTILE) > len(turns)
    assert found.count("h1") == 1


def test_x8_what_cannot_be_seen_is_shown() -> None:
    name = "a\ud800b\x00c\x1b[2Jd\u202ee\r\nf\rg\th"
    assert visible(name) == "a�b�c�[2Jd�e\nf�g\th"
    assert element("p", name, class_=name).encode()
    assert (
        element("a", "x", href='#"><b>', open=True, id=None, hidden=False)
        == '<a href="#&quot;&gt;&lt;b&gt;" open>x</a>'
    )


def test_long_lists_are_folded_and_what_is_folded_is_drawn(short: Explanation) -> None:
    long = explained(body_of("long_day"), "rolling")
    assert len(long.edits) > FOLDED
    for told, is_long in ((short, False), (long, True)):
        found = checked(explain_page("x", told, NOWHERE))
        shut = [attrs for tag, attrs in found.tags if tag == "details" and "class" not in attrs and "open" not in attrs]
        assert len(shut) == (2 if is_long else 0)
        assert found.count("svg", **{"class": "chart"}) == is_long
        assert (len(told.messages) > FOLDED) == is_long
        assert NOWHERE in found.text


def test_a_checkpoint_stands_out_whatever_its_reason() -> None:
    assert mark("checkpoint:paid") == mark("checkpoint:summary")
    heights = [mark(word)[1] for word in ("extended", "tail-cut", "checkpoint:paid")]
    assert heights == sorted(set(heights))
    assert len({mark(word)[0] for word in ("extended", "tail-cut", "checkpoint:paid", "refused", "bypassed")}) == 5


def test_a_page_begins_with_money_and_says_why_fewer_tokens_are_not_as_much_less_of_it(
    short: Explanation, replayed: Report
) -> None:
    bill = replayed.whole_bill
    for text in (explain_page("x", short, replayed), replay_page([replayed], averages([replayed]))):
        (headline,) = re.findall(r'<p class="headline"><strong>([^<]*)', text)
        assert headline == signed(bill.without - bill.with_)
        drawn = checked(text)
        assert f"ratio of {bill.ratio:.3f}." in drawn.text
        assert re.search(r"20\d\d-\d\d-\d\d \d\d:\d\d UTC · .* · Narrows \d", drawn.text)
        assert drawn.count("abbr") == len([title for title in drawn.values("title") if title]) > 5
    ratio = f"still {replayed.input_bill.ratio:.2f} of the bill without Narrows"
    assert ratio in explain_page("x", short, replayed)
    assert "saved on the input of this request" in checked(explain_page("x", short, NOWHERE)).text


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


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        ([said("user", "hi")], "no message of the assistant"),
        ([said("user", "hi"), said("assistant", "ho"), said("user", "hi")], "1 answered request, and it takes 2"),
        ([{"role": "tool", "tool_call_id": "x", "content": "y"}, said("assistant", "z")], "are not valid"),
    ],
    ids=["none", "one", "invalid"],
)
def test_where_there_is_nothing_to_replay_a_sentence_says_why(messages: Sequence[Any], sentence: str) -> None:
    why = replay_until(chat(*messages), "x.json", Options())
    assert isinstance(why, str)
    assert why.startswith("There is nothing to replay: ")
    assert sentence in why


# --- the command ---


def test_the_page_is_written_and_the_last_line_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    request, place = tmp_path / "request.json", tmp_path / "page.html"
    place.write_text("what was there before " * 9_000)
    request.write_bytes(body_of("write_once"))
    assert run("explain", str(request), "--html", str(place), "--prices", "gpt-4o") == 0
    out, err = capsys.readouterr()
    assert (out.splitlines()[-1], err) == (f"The page is in {place}", "")
    found = checked(place.read_text())
    assert "The 8 answered requests of this file" in found.text
    assert "At the prices of gpt-4o." in found.text


def test_with_json_nothing_else_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session, place = tmp_path / "s.json", tmp_path / "page.html"
    messages = [said("user", "hi"), said("assistant", "ho"), said("user", "well"), said("assistant", "so")]
    session.write_bytes(chat(*messages))
    assert run("replay", str(session), "--html", str(place), "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["sessions"]) == 1
    assert "#session-1" in checked(place.read_text()).values("href")


@pytest.mark.parametrize("command", ["explain", "replay"])
def test_a_page_that_cannot_be_written_is_refused_before_anything_is_run(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def never(*_: object) -> list[Report]:
        raise AssertionError("it was run")

    for module in ("runs", "command"):
        monkeypatch.setattr(f"proxy.lab.replay.{module}.replay_all", never)
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
