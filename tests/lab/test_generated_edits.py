"""Generated sessions of edits: deterministic, valid, of the shape that they promise, and edits quote what was read."""

import ast
import json
import re
from typing import Any

import pytest

from proxy.lab.provider import PREFIX, find_violation
from proxy.lab.replay.environment import Options
from proxy.lab.replay.recorded import requests, session_of
from proxy.lab.replay.runs import replay_all
from tests.kit.edit_sessions import SESSIONS, edit_sessions
from tests.kit.editing import editing

EACH = pytest.mark.parametrize(("seed", "turns", "files"), SESSIONS)


def calls(session: dict[str, Any], tool: str) -> list[tuple[int, dict[str, Any], str]]:
    """Of each call of a tool: the turn, its arguments and its result."""
    results = {
        block["tool_use_id"]: block["content"]
        for message in session["messages"]
        for block in (message["content"] if message["role"] == "user" and isinstance(message["content"], list) else ())
    }
    replies = [message["content"] for message in session["messages"] if message["role"] == "assistant"]
    return [
        (turn, block["input"], results[block["id"]])
        for turn, reply in enumerate(replies)
        for block in reply
        if block["type"] == "tool_use" and block["name"] == tool
    ]


@EACH
def test_all_files_are_read_in_the_first_turn_with_the_numbers_of_their_lines(
    seed: int, turns: int, files: int
) -> None:
    reads = calls(editing(seed, turns, files), "Read")
    assert [turn for turn, *_ in reads] == [0] * files
    assert len({arguments["file_path"] for _, arguments, _ in reads}) == files
    for _, _, text in reads:
        numbers = [int(line.partition("\t")[0]) for line in text.split("\n")]
        assert numbers == [*range(1, len(numbers) + 1)]
        assert 100 <= len(numbers) <= 400
        assert len(set(re.findall(r"\t(.*)", text))) > 0.75 * len(numbers)
        ast.parse(re.sub(r"^\d+\t", "", text, flags=re.MULTILINE))


@EACH
def test_edits_quote_lines_of_the_file_as_it_was_read_and_each_line_once(seed: int, turns: int, files: int) -> None:
    session = editing(seed, turns, files)
    read = {call["file_path"]: re.sub(r"^\d+\t", "", text, flags=re.M) for _, call, text in calls(session, "Read")}
    edited = dict(read)
    for _, call, _ in calls(session, "Edit"):
        path, old = call["file_path"], call["old_string"]
        assert read[path].count(old) == edited[path].count(old) == 1
        edited[path] = edited[path].replace(old, call["new_string"])
    changed = [path for path, text in edited.items() if text != read[path]]
    assert 1 < len(changed) < files


@pytest.mark.parametrize("odd", [False, True])
def test_each_half_has_a_hundred_edits_and_many_come_long_after_the_file_was_read(odd: bool) -> None:
    edits = [
        turn
        for seed, turns, files in SESSIONS
        if seed % 2 == odd
        for turn, *_ in calls(editing(seed, turns, files), "Edit")
    ]
    assert len(edits) >= 100
    assert sum(turn > 20 for turn in edits) >= 50


def test_the_same_seed_gives_the_same_session_and_another_one_other_lines() -> None:
    assert editing(1, 10, 5) == editing(1, 10, 5)
    first, other = (
        {line for *_, text in calls(editing(seed), "Read") for line in re.findall(r"\t(.{30,})", text)}
        for seed in (1, 2)
    )
    assert len(first & other) < 0.02 * len(first)


@pytest.mark.parametrize("odd", [False, True])
def test_every_request_is_one_that_a_strict_provider_takes(odd: bool) -> None:
    for session in edit_sessions(odd):
        bodies = list(requests(session, session.model, marks=True))
        assert [find_violation(body, PREFIX, session.dialect) for body in bodies] == [None] * len(session.turns)


@pytest.mark.parametrize("prices", ["gpt-5.4", "claude-opus-5-5"])
async def test_it_can_be_replayed_at_the_prices_of_either_kind_of_cache(prices: str) -> None:
    session = session_of(json.dumps(editing(1, 10, 5)).encode(), "edits", "edits")
    (report,) = await replay_all([session], Options(prices=(prices,)))
    assert report.requests == 12
    assert report.faults == 0
