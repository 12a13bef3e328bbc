"""The dry run: what it says adds up, every verdict is said where it holds, and pictures are to scale."""

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from policies.compact import compact
from policies.model.edits import Replace
from policies.money.catalog import prices_for
from policies.money.prices import Prices
from policies.planning.rereads import REREAD
from policies.presets import POLICIES
from proxy.console import cli
from proxy.console.output import as_json
from proxy.drawing.figures import money
from proxy.drawing.words import WHY
from proxy.lab import sessions
from proxy.lab.breakdown import BeforeAfter
from proxy.lab.explain import (
    Explanation,
    PaidPrices,
    explained,
    input_bills,
    original_text,
    print_explanation,
    request_from,
)
from proxy.lab.pages import explain_page
from proxy.lab.terminal import Bar, bars
from tests.kit.histories import TOOLS

PRESET = "coding-agent"
Asked = Callable[..., tuple[Any, bytes, bytes]]
TIGHT = Prices("m", 1.0, 1.0, window=20_000, listed=True)


def body_of(name: str, **fields: Any) -> bytes:
    return json.dumps(sessions.load(name) | fields, indent=1).encode()


def saved(folder: Path, content: str | bytes) -> str:
    file = folder / "request.json"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(file)


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def chat(*messages: dict[str, Any], model: str = "gpt-5.4", **fields: Any) -> bytes:
    return json.dumps({"model": model, "messages": messages, **fields}).encode()


def called(number: int, output: str) -> list[dict[str, Any]]:
    function = {"name": "bash", "arguments": json.dumps({"command": f"make target-{number}"})}
    call = {"id": f"call_{number}", "type": "function", "function": function}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call_{number}", "content": output},
    ]


def drawn(told: Explanation, width: int = 100, encoding: str = "utf-8") -> str:
    page = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    print_explanation(Console(file=page, width=width, force_terminal=False, highlight=False), told)
    page.flush()
    buffer = page.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode(encoding)


@pytest.mark.parametrize(
    ("name", "prices"), [("write_once", None), ("long_day", None), ("long_day", TIGHT)], ids=["short", "long", "tight"]
)
def test_what_goes_is_listed_to_the_token(name: str, prices: Prices | None) -> None:
    told = explained(body_of(name), PRESET, prices=prices)
    assert told.edits
    assert (
        told.tokens.before - told.tokens.after
        == sum(change.tokens.before - change.tokens.after for change in told.edits) - told.tokens_of_recall_tool
    )
    for sizes in ([share.tokens for share in told.messages], told.kinds.values()):
        assert sum(size.before for size in sizes) == told.tokens.before
        assert sum(size.after for size in sizes) == told.tokens.after
    assert [share.message for share in told.messages[1:]] == list(range(len(sessions.load(name)["messages"])))


def test_a_tight_window_leaves_out_turns_and_says_where() -> None:
    told = explained(body_of("long_day"), PRESET, prices=TIGHT)
    folds = [change for change in told.edits if change.kind == "turns"]
    assert folds
    assert all(change.policy == "trim" and ".." in change.where for change in folds)
    assert told.tokens.after < 20_000


def test_the_addresses_lead_to_what_changed() -> None:
    body = body_of("long_day")
    told = explained(body, "gentle")  # without records of turns, which move what follows them
    sent = json.loads(compact(body, policies="gentle", recall=True).body)["messages"]
    for change in told.edits:
        found = sent
        for index, key in re.findall(r"\[(\d+)]|\.(\w+)", change.where):
            found = found[int(index)] if index else found[key]
        assert found == change.becomes


def test_the_bills_are_the_input_at_both_ends() -> None:
    told = explained(body_of("write_once"), PRESET, prices=prices_for("claude-sonnet-5"))
    paid = PaidPrices(*[prices_for("claude-sonnet-5")] * 3)
    million = input_bills(paid, BeforeAfter(1_000_000, 0), BeforeAfter(0, 0), 300.0)
    assert million["nothing_cached"].before == pytest.approx(2.0)
    assert million["all_cached"].before == pytest.approx(0.2)
    bills = as_json(told)["input_bill_of_this_request"]
    assert bills["nothing_cached"]["before"] == pytest.approx(told.tokens.before * 2e-6, abs=1e-8)
    assert bills["all_cached"]["after"] == pytest.approx(told.tokens.after * 0.2e-6, abs=1e-8)


def request_of(messages: int, model: str = "claude-opus-5-5", *, marked: bool = True) -> bytes:
    """The beginning of a shipped session, as a client would send it that sets cache marks, or one that sets none."""
    *before, last = sessions.load("write_once")["messages"][:messages]
    if marked and "claude" in model:
        mark = {"cache_control": {"type": "ephemeral"}}
        last = {**last, "content": [{"type": "text", "text": last["content"], **mark}]}
    return body_of("write_once", messages=[*before, last], model=model)


def test_a_pause_costs_all_of_the_prompt_where_its_cache_does_not_outlive_it() -> None:
    prices = prices_for("claude-opus-5-5")
    bills, size = (told := explained(request_of(8), "lossless")).input_bill_of_this_request, told.tokens.before
    dollars = prices.input / 1e6
    new = new_tokens(told, prices.write)
    assert 0 < new < size / 2
    assert new == pytest.approx(sum(each.tokens.before for each in told.messages[-2:]))
    assert bills["in_ten_minutes"].before == pytest.approx(dollars * size * prices.write)
    assert bills["in_ten_minutes"].after == pytest.approx(dollars * told.tokens.after * prices.write)
    printed = as_json(told)["input_bill_of_this_request"]
    assert printed["in_ten_minutes"]["before"] == pytest.approx(dollars * size * prices.write, abs=1e-8)


def new_tokens(told: Explanation, write: float, side: str = "before") -> float:
    """Those that are not read from the cache where a request is sent now, by its bill."""
    prices = prices_for(told.model)
    size, bill = getattr(told.tokens, side), getattr(told.input_bill_of_this_request["now"], side)
    return float((bill / prices.input * 1e6 - size * prices.read) / (write - prices.read))


def test_without_a_mark_the_body_costs_plain_input_each_time_and_with_those_of_narrows_it_does_not() -> None:
    prices, body = prices_for("claude-opus-5-5"), request_of(8, marked=False)
    bills, size = (told := explained(body, "lossless")).input_bill_of_this_request, told.tokens.before
    assert all(bill.before == pytest.approx(prices.input / 1e6 * size) for bill in bills.values())
    assert 0 < new_tokens(told, prices.write, "after") < size / 2
    marked = explained(request_of(8), "lossless").input_bill_of_this_request
    assert marked["now"].before < bills["now"].before
    assert marked["in_ten_minutes"].before > bills["in_ten_minutes"].before


def test_what_is_new_costs_plain_input_each_time_where_nothing_marks_it() -> None:
    prices = prices_for("claude-opus-5-5")
    told = explained(request_of(8, marked=False), "lossless")
    assert any("plain input each time" in note for note in told.notes)
    assert not any("plain input" in note for note in explained(request_of(8), "lossless").notes)
    dollars, age = prices.input / 1e6, told.requests_in_history
    for each in told.new.values():
        assert each.first_sight.before == pytest.approx(dollars * each.tokens.before)
        assert each.first_sight.after == pytest.approx(dollars * each.tokens.after * prices.write)
        assert each.rest_of_session.before == pytest.approx(dollars * each.tokens.before * age)
        assert each.rest_of_session.after == pytest.approx(dollars * each.tokens.after * prices.read * age)


def test_before_the_first_mark_of_narrows_what_is_sent_costs_plain_input_too() -> None:
    told = explained(request_of(2, marked=False), "lossless")
    dollars = prices_for(told.model).input / 1e6
    for when in ("nothing_cached", "now", "in_ten_minutes"):
        bill = told.input_bill_of_this_request[when]
        assert bill.after == pytest.approx(dollars * told.tokens.after)
    for each in told.new.values():
        assert each.first_sight.after == pytest.approx(dollars * each.tokens.after)


def test_a_pause_costs_nothing_where_the_cache_outlives_it() -> None:
    told = explained(request_of(8, "gpt-5.4"), "lossless")
    bills = told.input_bill_of_this_request
    assert bills["in_ten_minutes"] == bills["now"]
    assert new_tokens(told, 1.0) == pytest.approx(sum(each.tokens.before for each in told.messages[-2:]))


def test_of_a_first_request_and_of_a_short_one_nothing_is_cached() -> None:
    first = explained(request_of(2), "lossless")
    bills = first.input_bill_of_this_request
    assert new_tokens(first, prices_for(first.model).write) == pytest.approx(first.tokens.before)
    assert bills["now"] == bills["in_ten_minutes"]
    short = explained(chat(said("user", "hi"), said("assistant", "yes?"), said("user", "go")), "lossless")
    assert short.input_bill_of_this_request["now"] == short.input_bill_of_this_request["nothing_cached"]


def test_what_a_checkpoint_changes_is_new_in_the_request_that_is_sent() -> None:
    gentle, none = (explained(body_of("long_day"), preset) for preset in ("eager", "lossless"))
    assert new_tokens(gentle, 1.0) == pytest.approx(new_tokens(none, 1.0))
    assert new_tokens(gentle, 1.0, "after") > new_tokens(none, 1.0, "after") * 1.01


def test_a_dry_run_says_what_it_costs_now_and_in_ten_minutes() -> None:
    told = explained(request_of(8), "lossless")
    paper = io.StringIO()
    print_explanation(Console(file=paper, width=100), told)
    lines = {line.partition("  ")[0]: line for line in paper.getvalue().splitlines()}
    page = explain_page("it", told, "Nothing.")
    for when in ("now", "in ten minutes"):
        bill = told.input_bill_of_this_request[when.replace(" ", "_")]
        assert money(bill.before) in lines[f"its bill, {when}"]
        assert f">{when}<" in page
    for kind, each in told.new.items():
        row = next(line for line in paper.getvalue().splitlines() if line.startswith(f"{kind} ") and "$" in line)
        assert row.split()[-2:] == [money(each.first_sight.after), money(each.rest_of_session.after)]
        assert f">{kind}<" in page


def test_what_is_new_adds_up_to_what_the_cache_does_not_hold() -> None:
    prices = prices_for("claude-opus-5-5")
    told = explained(request_of(8), "lossless")
    assert list(told.new) == ["command output", "assistant", "call"]
    size = sum(each.tokens.before for each in told.new.values())
    assert size == pytest.approx(new_tokens(told, prices.write))
    dollars, age = prices.input / 1e6, told.requests_in_history
    for each in told.new.values():
        assert each.first_sight.before == pytest.approx(dollars * each.tokens.before * prices.write)
        assert each.rest_of_session.after == pytest.approx(dollars * each.tokens.after * prices.read * age)


def test_of_a_first_request_all_is_new_and_of_a_long_session_the_rest_has_an_end() -> None:
    first = explained(request_of(2), "lossless")
    assert {kind: each.tokens for kind, each in first.new.items()} == first.kinds
    assert "tools" in first.new
    assert first.requests_to_come == 1
    long = explained(body_of("long_day"), "eager")
    assert long.requests_in_history > long.requests_to_come == 25


def test_an_output_that_is_shortened_at_first_sight_is_sent_for_less() -> None:
    output = "\n".join(f"case {at}: value {at * 7919 % 1000}, as measured" for at in range(300))
    history = [said("user", "go"), *called(1, output), *called(2, output + "\ndone")]
    output = explained(chat(*history, tools=TOOLS), "lossless").new["command output"]
    assert output.tokens.after < output.tokens.before
    assert output.first_sight.after < output.first_sight.before


def test_below_the_floor_is_said() -> None:
    assert "below the floor of 3,000" in explained(chat(said("user", "hi")), PRESET).verdict


def test_an_offer_that_does_not_pay_yet_is_said() -> None:
    first = called(0, "\n".join(f"value_{i} = {i}" for i in range(1_500)))
    first[0]["tool_calls"][0]["function"] = {"name": "read_file", "arguments": '{"path": "values.py"}'}
    later = [message for i in range(1, 13) for message in called(i, f"target {i} is made, " * 8)]
    dear = Prices("m", 1.0, 1.0, read=0.0001, write=1.0, window=100_000, listed=True)
    told = explained(chat(said("user", "go"), *first, *later, tools=TOOLS), "rolling", prices=dear)
    assert not told.edits
    assert re.fullmatch(r"1 edits? would save [\d,]+ tokens, but .* has not paid for itself yet", told.verdict)


def test_a_text_protocol_is_said_and_a_person_may_shorten_it() -> None:
    turns: list[dict[str, Any]] = [said("user", "Fix it.")]
    for i in range(24):
        turns.append(said("assistant", f"Step {i}.\n```bash\nls step-{i}\n```"))
        listing = "\n".join(f"file-{i}-{k}.py" for k in range(120))
        turns.append(said("user", f"<returncode>0</returncode>\n<output>\n{listing}\n</output>"))
    body = chat(*turns, model="gpt-4o")
    told = explained(body, PRESET)
    assert not told.edits
    assert "--text-protocol" in told.verdict
    assert explained(body, PRESET, text_protocol=True).edits


def test_the_recall_tool_is_part_of_what_is_sent_only() -> None:
    body = body_of("write_once")
    told = explained(body, PRESET)
    alone = compact(body)
    assert told.tokens_of_recall_tool > 20
    assert told.tokens.before == alone.settings.head + alone.plan.before
    assert told.messages[0].kind == "tools"
    assert told.messages[0].tokens.after - told.messages[0].tokens.before == told.tokens_of_recall_tool
    assert told.kinds["tools"].after - told.kinds["tools"].before == told.tokens_of_recall_tool
    assert as_json(told)["tokens_of_recall_tool"] == told.tokens_of_recall_tool
    little = explained(chat(said("user", "hi"), tools=TOOLS), PRESET)
    assert little.tokens.after - little.tokens.before == little.tokens_of_recall_tool > 0
    assert "more, for the recall tool)" in drawn(little)


def test_without_tools_there_is_no_recall_tool_and_it_is_shortened_only_to_fit() -> None:
    turns = [m for i in range(12) for m in called(i, "\n".join(f"value_{k} = {i}" for k in range(900)))]
    told = explained(chat(said("user", "go"), *turns), PRESET)
    assert (told.tokens_of_recall_tool, told.edits) == (0, ())
    assert "it brings no tools" in told.verdict
    tight = explained(chat(said("user", "go"), *turns), PRESET, prices=TIGHT)
    assert tight.edits
    assert {change.ref for change in tight.edits} == {None}


@pytest.mark.parametrize("prices", [None, TIGHT], ids=["long", "tight"])
def test_r1_references_in_the_listing_bring_back_their_originals(prices: Prices | None) -> None:
    body = body_of("long_day")
    blocks = {block.anchor: block for block in compact(body).conversation.blocks}
    made = compact(body, recall=True, prices=prices)
    changes = explained(body, PRESET, prices=prices).edits
    assert [change.becomes for change in changes] == [edit.text for edit in made.plan.edits]
    for number, (change, edit) in enumerate(zip(changes, made.plan.edits, strict=True)):
        assert bool(change.ref) == ("same output as above" not in change.becomes)
        if change.ref and number % 4 == 0:  # each is a plan of the whole session
            text = original_text(body, change.ref)
            assert f"ref {change.ref}" in change.becomes
            assert text == blocks[edit.at].text if isinstance(edit, Replace) else "== result" in str(text)


@pytest.fixture
def told_by(monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Asked:
    """What the command makes of a request on standard input: its exit code, what it prints and what it complains of."""

    def asked(body: bytes, *words: str) -> tuple[Any, bytes, bytes]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(body)))
        with pytest.raises(SystemExit) as leaving:
            cli.main(["explain", "-", *words])
        return (leaving.value.code or 0, *capsysbinary.readouterr())

    return asked


AWKWARD = "line one\r\n" + "\ud800 \x1b[2J λόγος\x00\n" * 400 + "no newline"


def awkward() -> tuple[bytes, str]:
    """A request with a text that no terminal likes, and its reference."""
    body = chat(said("user", "go"), *called(1, AWKWARD), tools=TOOLS)
    conversation = compact(body).conversation
    return body, next(conversation.ref(i) for i, b in enumerate(conversation.blocks) if b.kind == "result")


def test_r1_the_original_is_printed_as_it_was(told_by: Asked) -> None:
    body, ref = awkward()
    words = [sys.executable, "-m", "proxy.console.cli", "explain", "-", "--ref", ref]
    done = subprocess.run(words, input=body, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == AWKWARD.encode("utf-8", "surrogatepass")
    assert json.loads(told_by(body, "--ref", ref, "--json")[1]) == {"ref": ref, "found": True, "text": AWKWARD}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--ref", "000000"], "nothing in this request has the ref '000000'"),
        (["--ref", "../etc"], "nothing in this request has the ref '../etc'"),
    ],
    ids=["unknown", "malformed"],
)
def test_r6_an_unknown_reference_is_one_sentence(told_by: Asked, words: list[str], sentence: str) -> None:
    code, out, err = told_by(awkward()[0], *words)
    assert (code, out) == (2, b"")
    assert err.decode().startswith(f"narrows: {sentence}")
    assert err.count(b"\n") == 1


def test_r6_json_says_that_a_reference_is_unknown(told_by: Asked) -> None:
    code, out, err = told_by(awkward()[0], "--ref", "000000", "--json")
    assert code == 2
    assert json.loads(out) == {"ref": "000000", "found": False, "text": None}
    assert b"narrows: nothing in this request" in err


def test_small_talk_has_nothing_to_shorten() -> None:
    turns = [m for i in range(200) for m in called(i, f"ok, target {i} is made")]
    told = explained(chat(said("user", "go"), *turns, tools=TOOLS), PRESET)
    assert not told.edits
    assert told.verdict == "nothing in it is large, or old, or repeated enough"


def test_every_policy_of_every_preset_has_its_reason_in_words() -> None:
    assert {*POLICIES, REREAD} == set(WHY)
    assert all(WHY.values())


def test_a_model_can_be_given_where_there_is_none_and_every_other_byte_stays(tmp_path: Path) -> None:
    bare = b'{ "messages" : [ {"role":"user","content":"hi"} ] , "n": 1.50 }'
    body = request_from(saved(tmp_path, bare), "a/b")
    assert body.endswith(bare[1:])
    assert json.loads(body) == {"model": "a/b", **json.loads(bare)}
    named = b'{"model" : "x", "messages": [{"role": "user", "content": "hi"}]}'
    assert request_from(saved(tmp_path, named), "y") == named.replace(b'"x"', b'"y"')
    assert request_from(saved(tmp_path, named)) == named


def test_a_request_without_a_model_is_refused_with_advice(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--model"):
        request_from(saved(tmp_path, '{"messages": [{"role": "user", "content": "hi"}]}'))


def test_a_missing_file_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot read .*nosuch.json"):
        request_from(str(tmp_path / "nosuch.json"))


def test_bars_are_to_scale_and_readable_without_colour() -> None:
    drawn = [
        Bar("0", "user", "", BeforeAfter(1_000, 1_000)),
        Bar("1", "result", "bash", BeforeAfter(500, 250)),
        Bar("2", "user", "", BeforeAfter(1, 1)),
    ]
    lines = [line.plain for line in bars(drawn, 110, plain=False)]
    whole, half, least = (line.count("█") for line in lines)
    assert whole > 50
    assert abs(whole - 4 * half) <= 3
    assert lines[1].count("░") == pytest.approx(half, abs=1)
    assert (least, lines[2][-1]) == (0, "▏")
    assert max(map(len, lines)) <= 110
    assert "500 ->     250" in lines[1]


def test_the_whole_picture_fits_the_width_and_a_plain_terminal() -> None:
    told = explained(body_of("long_day"), "eager")
    for width in (80, 100, 140):
        assert max(map(len, drawn(told, width).splitlines())) <= width
    plain = drawn(told, encoding="ascii")
    assert "# sent  . left out" in plain
    assert "untouched" in plain
    assert "and " in plain
    assert "smaller ones" in plain


def test_x8_names_in_a_request_cannot_command_the_terminal() -> None:
    turns = called(0, "x")
    turns[0]["tool_calls"][0]["function"]["name"] = "\x1b[bold]\nsh"
    picture = drawn(explained(chat(said("user", "go"), *turns, model="gpt\x1b]0;x\x07"), PRESET))
    assert "\x1b" not in picture
    assert "\x07" not in picture
    assert "call ?[bold]?sh" in picture


def test_unknown_prices_are_said() -> None:
    told = explained(chat(said("user", "hi"), model="nobody-knows"), PRESET)
    assert as_json(told)["prices_known"] is False
    assert "are not known" in drawn(told)


def test_the_command_reads_standard_input_and_prints_json(told_by: Asked) -> None:
    code, out, err = told_by(body_of("write_once"), "--json", "--prices", "gpt-4o", "--preset", "gentle")
    assert (code, err) == (0, b"")
    told = json.loads(out)
    assert told["prices"] == "gpt-4o"
    assert told["preset"] == "gentle"
    assert told["tokens"]["after"] < told["tokens"]["before"]
    assert set(told["edits"][0]) == {
        "policy",
        "why",
        "where",
        "kind",
        "tool",
        "tokens",
        "new_in_this_request",
        "becomes",
        "ref",
    }
    assert told["messages"][0]["message"] is None
    assert told["messages"][1] | {"tokens": 0, "characters": 0} == {
        "message": 0,
        "kind": "system",
        "tool": "",
        "tokens": 0,
        "characters": 0,
    }


@pytest.mark.parametrize(
    ("preset", "words"),
    [
        ("coding-agent", []),
        ("agent-summary", ["A summary would be asked for at 120,000 tokens ("]),
        ("chat", ["A summary would be asked for as soon as enough lies before the newest turns."]),
        ("tool-digest", ["A model would be asked for digests of 21 of its 95 outputs, as they arrive."]),
    ],
)
def test_summaries_and_digests_are_foretold_in_every_report(preset: str, words: list[str]) -> None:
    explanation = explained(body_of("long_day"), preset)
    assert [line.startswith(word) for line, word in zip(explanation.foretold, words, strict=True)] == [True] * len(
        words
    )
    stream = io.StringIO()
    print_explanation(Console(file=stream, width=400), explanation)
    assert all(line in stream.getvalue() for line in explanation.foretold)
    assert as_json(explanation)["foretold"] == list(explanation.foretold)


def test_a_summary_of_a_chat_without_tools_is_foretold_by_the_triggers_of_chats() -> None:
    messages = [{"role": "user", "content": "What is a kettle?"}, {"role": "assistant", "content": "A pot."}] * 3
    body = json.dumps({"model": "gpt-5.4", "messages": messages + messages[:1]}).encode()
    (sentence,) = explained(body, "adaptive").foretold
    assert sentence.startswith("A summary would be asked for at 16,000 tokens (")
    tools = [{"type": "function", "function": {"name": "read", "parameters": {}}}]
    with_tools = json.dumps({"model": "gpt-5.4", "messages": messages + messages[:1], "tools": tools}).encode()
    (sentence,) = explained(with_tools, "adaptive").foretold
    assert sentence.startswith("A summary would be asked for at 100,000 tokens (")


def test_with_the_aim_bill_a_summary_is_asked_for_once_it_pays() -> None:
    assert explained(body_of("long_day"), "rolling", aim="bill").foretold[0].endswith(", once it pays.")
    assert "pays" not in explained(body_of("long_day"), "chat", aim="context").foretold[0]
