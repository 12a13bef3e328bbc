"""A conversation in which room must be made for each request, because what is protected leaves too little, says so."""

import json

import pytest

from tests.kit.histories import Json
from tests.kit.stage import Stage

pytestmark = pytest.mark.usefixtures("patient")

WORDS = [f"word{n}" for n in range(4_000)]


def words(number: int) -> str:
    return " ".join(WORDS[:number])


def session(first: int, each: int, turns: int) -> list[Json]:
    """A first message of so many words, and turns whose outputs have so many."""
    messages: list[Json] = [{"role": "user", "content": words(first)}]
    for number in range(turns):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "bash", "arguments": f'{{"n": {number}}}'}}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": f"{number}: {words(each)}"},
        ]
    return [*messages, {"role": "assistant", "content": "Done."}]


async def test_v8_what_is_protected_is_named_where_room_must_be_made_for_each_request(
    stage: Stage, capfd: pytest.CaptureFixture[str]
) -> None:
    models = {"m": {"input": 1, "output": 1, "window": 4_000}}
    app = await stage.start(models=models, reserve=0, log_level="info", log_format="json")
    grown = await stage.grow(app, session(1_300, 250, 8))
    assert [each.prefix for each in grown[2:]] == ["checkpoint:window"] * 7
    warnings = [each.headers.get("x-narrows-warning") for each in grown]
    assert warnings == [None] * 4 + ["protected-80-percent"] * 5
    told = [line for line in map(json.loads, capfd.readouterr().err.splitlines()) if line["event"] == "thrashing"]
    assert [line["percent"] for line in told] == [80]


async def test_v8_where_room_lasts_for_more_than_one_request_nothing_is_named(stage: Stage) -> None:
    app = await stage.start(models={"m": {"input": 1, "output": 1, "window": 4_000}}, reserve=0)
    grown = await stage.grow(app, session(100, 250, 20))
    assert any(each.mode == "compacted" for each in grown)
    assert not [each for each in grown if "x-narrows-warning" in each.headers]
