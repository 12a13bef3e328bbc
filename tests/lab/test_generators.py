"""Generated loops: deterministic, of the size that they promise, different for each seed, true to themselves."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from policies.model.tokens import Counter
from proxy.console.cli import command_line
from proxy.lab.generators.loops import LOOPS, generated
from proxy.lab.replay.environment import Options
from proxy.lab.replay.recorded import load, requests, session_of
from proxy.lab.replay.runs import replay_all

COUNT = Counter("o200k_base")
SEEDS = (1, 7)


def results(session: dict[str, Any], tool: str) -> list[tuple[dict[str, Any], str]]:
    """The arguments and the result of each call of a tool, in either form."""
    calls, texts = dict[str, dict[str, Any]](), dict[str, str]()
    for message in session["messages"]:
        for call in message.get("tool_calls", ()):
            if call["function"]["name"] == tool:
                calls[call["id"]] = json.loads(call["function"]["arguments"])
        if message["role"] == "tool":
            texts[message["tool_call_id"]] = message["content"]
        for block in message["content"] if isinstance(message["content"], list) else ():
            if block["type"] == "tool_use" and block["name"] == tool:
                calls[block["id"]] = block["input"]
            if block["type"] == "tool_result":
                texts[block["tool_use_id"]] = block["content"]
    return [(arguments, texts[id_]) for id_, arguments in calls.items()]


@pytest.mark.parametrize("kind", LOOPS)
@pytest.mark.parametrize("seed", SEEDS)
def test_each_request_but_the_first_brings_a_new_file_of_about_2_100_tokens(kind: str, seed: int) -> None:
    session = generated(kind, seed)
    reads = results(session, "read_file")
    sizes = [COUNT(text) for _, text in reads]
    assert len(reads) == LOOPS[kind].requests - 1
    assert len({arguments["path"] for arguments, _ in reads}) == len(reads)
    assert 1_800 < sum(sizes) / len(sizes) < 2_500
    assert max(sizes) > 1.5 * min(sizes)
    assert 7_000 < len(json.dumps(session["tools"])) < 9_000
    for _, text in reads:
        ast.parse(text)


@pytest.mark.parametrize("kind", LOOPS)
def test_the_same_seed_gives_the_same_session_and_another_one_shares_next_to_nothing(kind: str) -> None:
    first, again, other = generated(kind, 1), generated(kind, 1), generated(kind, 2)
    assert first == again
    lines = [{line for _, text in results(each, "read_file") for line in text.split("\n")} for each in (first, other)]
    assert len(lines[0] & lines[1]) < 0.02 * len(lines[0])


@pytest.mark.parametrize("kind", LOOPS)
def test_edits_quote_what_the_file_held_then(kind: str) -> None:
    session = generated(kind, 7)
    files = {arguments["path"]: text for arguments, text in results(session, "read_file")}
    edits = results(session, "edit_file")
    assert edits
    for arguments, _ in edits:
        assert files[arguments["path"]].count(arguments["old_string"]) == 1
        files[arguments["path"]] = files[arguments["path"]].replace(arguments["old_string"], arguments["new_string"])


@pytest.mark.parametrize(("kind", "marks"), [("read-loop", True), ("claude-loop", False)])
def test_a_session_says_whether_its_client_sets_marks(kind: str, marks: bool) -> None:
    session = session_of(json.dumps(generated(kind, 1, 3)).encode(), kind, kind)
    bodies = list(requests(session, "claude-opus-5-5", marks=True))
    assert len(bodies) == 3
    assert ("cache_control" in json.dumps(bodies)) is marks


@pytest.mark.parametrize("no_marks", [False, True])
async def test_a_client_without_marks_pays_for_plain_input(no_marks: bool) -> None:
    session = session_of(json.dumps(generated("read-loop", 1, 4)).encode(), "loop", "loop")
    (report,) = await replay_all([session], Options(prices=("claude-opus-5-5",), no_marks=no_marks))
    assert (report.baseline.cached == 0) is no_marks
    assert report.faults == 0


def test_the_command_prints_what_replay_reads(tmp_path: Path) -> None:
    words = ["generate", "claude-loop", "--seed", "3", "--requests", "4"]
    printed = CliRunner().invoke(command_line(), words)
    assert printed.exit_code == 0
    (tmp_path / "loop.json").write_text(printed.stdout)
    assert len(load(tmp_path / "loop.json").turns) == 4
    replayed = CliRunner().invoke(command_line(), ["replay", str(tmp_path / "loop.json"), "--no-marks", "--json"])
    assert json.loads(replayed.stdout)["sessions"][0]["input_bill"]["ratio"] <= 1.03


def test_an_unknown_kind_is_refused() -> None:
    refused = CliRunner().invoke(command_line(), ["generate", "loop"])
    assert refused.exit_code == 2
    assert "read-loop" in refused.stderr
