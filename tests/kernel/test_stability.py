"""S1, S2, S4 where it matters by whatever process: restarts, hash seeds, a real day; and the checks themselves."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from policies.dialects.openai_chat.request import TOOL
from proxy.lab import sessions
from tests.kit.histories import TOOLS, Json
from tests.kit.stage import Exchange, Stage, body_of, ends, moved, unaided, working

SESSION = working()
pytestmark = pytest.mark.usefixtures("patient")
_PRINT = """
import asyncio, hashlib, tempfile
from pathlib import Path
from policies.presets import PRESETS, Preset
from tests.kit.histories import EAGER
from tests.kit.stage import staged, working
PRESETS["eager"] = Preset(EAGER)

async def main():
    with tempfile.TemporaryDirectory() as place:
        async with staged(Path(place) / "n.db") as stage:
            for exchange in await stage.grow(await stage.start(), working()):
                print(exchange.prefix, hashlib.sha256(exchange.sent).hexdigest())

asyncio.run(main())
"""


def bodies(exchanges: Sequence[Exchange]) -> list[bytes]:
    return [exchange.sent for exchange in exchanges]


async def test_s1_each_request_after_a_restart_of_its_own(stage: Stage) -> None:
    one = bodies(await stage.grow(await stage.start(), SESSION, ("Authorization", "Bearer other")))
    grown = []
    for end in ends(SESSION):
        app = await stage.start(tenant="restarted")
        grown.append(await stage.ask(app, SESSION[:end]))
        await app.close(0)
    assert bodies(grown) == one
    assert moved(grown) == []


def rereading() -> list[Json]:
    """A file is read twice: the second output points to the first, until that one is shortened."""
    big = "\n".join(f"    def method_{n}(self, value): return value * {n}" for n in range(200))
    said: list[Json] = [{"role": "user", "content": "Go on."}]
    for turn in range(14):
        again = turn in (0, 3)
        text = big if again else "\n".join(f"def other_{turn}_{n}(): pass" for n in range(60))
        arguments = json.dumps({"command": "cat src/a.py" if again else f"cat src/b{turn}.py"})
        call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": arguments}}
        said.append({"role": "assistant", "content": None, "tool_calls": [call]})
        said.append({"role": "tool", "tool_call_id": "c", "content": text})
    return [*said, {"role": "assistant", "content": "done"}]


async def test_s1_a_pointer_is_rewritten_with_its_copy_after_a_restart_too(stage: Stage) -> None:
    session = rereading()
    one = await stage.grow(await stage.start(store="sqlite://", preset="rolling"), session)
    grown = []
    for end in ends(session):
        app = await stage.start(preset="rolling", tenant="restarted")
        grown.append(await stage.ask(app, session[:end]))
        await app.close(1)
    assert any("same output as above" in exchange.text for exchange in one)
    assert "same output as above" not in one[-1].text
    assert bodies(grown) == bodies(one)


def test_s1_in_processes_with_other_hash_seeds() -> None:
    running = [
        subprocess.Popen(
            [sys.executable, "-c", _PRINT], env={**os.environ, "PYTHONHASHSEED": seed}, stdout=subprocess.PIPE
        )
        for seed in ("1", "4711")
    ]
    one, other = (process.communicate(timeout=60)[0] for process in running)
    assert one == other
    assert one.count(b"\n") == len(ends(SESSION))


async def test_s2_a_real_day_extends_or_says_why(stage: Stage) -> None:
    day = sessions.load("long_day")
    app = await stage.start(preset="coding-agent", floor=None)
    grown = await stage.grow(app, day["messages"], tools=day["tools"], model="gpt-5.4")
    assert moved(grown) == []
    checkpoints = [e.prefix for e in grown if e.prefix.startswith("checkpoint:")]
    assert {*checkpoints} <= {"checkpoint:paid"}
    assert 100 * sum(e.prefix != "extended" for e in grown) <= 10 * len(grown)
    assert len(grown[-1].sent) < 0.9 * len(grown[-1].given)


def test_s2_the_check_itself_sees_what_was_not_declared() -> None:
    def sent(prefix: str, *texts: str, tools: Sequence[Json] | None = TOOLS) -> Exchange:
        body = body_of([{"role": "assistant", "content": text} for text in texts], tools=tools)
        return Exchange(body, body, 200, {"x-narrows-prefix": prefix}, b"")

    assert moved([sent("first", "a", "b"), sent("extended", "a", "b", "c")]) == []
    assert moved([sent("first", "a", "b"), sent("extended", "a", "B", "c")]) == [1]
    assert moved([sent("first", "a", "b"), sent("tail-cut", "a", "B", "c")]) == []
    assert moved([sent("first", "a", "b"), sent("tail-cut", "A", "b", "c")]) == [1]
    assert moved([sent("first", "a", "b"), sent("first", "a", "b", "c")]) == [1]
    assert moved([sent("first", "a", "b"), sent("checkpoint:paid", "A", "b", "c")]) == []
    assert moved([sent("first", "a", "b"), sent("extended", "a")]) == [1]
    assert moved([sent("first", "a", "b"), sent("extended", "a", "b", tools=None)]) == [1]


ODD = (
    b'{\t"z" : 1.50e+1 ,"content":"sp\\u00e4t \\/ \\ud83d\\ude42 \xf0\x9f\x99\x82" , "role"\n:"user", "n":[1.0,-0]}',
    b'{"role":"assistant","content":null,"audio" : null,"x":{"b":1,"a":2}}',
    b'{ "content":[{"text":"t","type":"text","zz":0.10}], "role":"user"}',
)


ODD_TOOL = b'{ "type":"function","function" : {"name":"b\\u0061sh", "parameters":{"type":"object" }} ,"x":1.0}'


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[],"tools":[' + ODD_TOOL + b"," + TOOL + b"," + TOOL + b"]}",
        b'{"messages":[],"tools":[' + ODD_TOOL + b"," + TOOL + b"," + ODD_TOOL + b"]}",
        b'{"messages":[' + ODD[0] + b"," + TOOL + b'],"tools":[' + ODD_TOOL + b"]}",
        b'{"messages":[],"tools":[' + ODD_TOOL + b"," + TOOL.replace(b'"ref"', b'"id"') + b"]}",
    ],
    ids=["twice", "not the last", "no tool", "not the same bytes"],
)
def test_s3_the_check_itself_sees_another_addition(body: bytes) -> None:
    with pytest.raises(AssertionError):
        unaided(body)


@pytest.mark.parametrize("field", ["created", "created_at", "timestamp", "id"])
async def test_s4_timestamps_do_not_move_a_decision(stage: Stage, field: str) -> None:
    app = await stage.start()
    told = [[{**message, field: when} for message in SESSION[:-1]] for when in (1700000000, 1800000001)]
    first, second = [await stage.ask(app, messages) for messages in told]
    assert second.headers["x-narrows-conversation"] == first.headers["x-narrows-conversation"]
    assert second.sent == first.sent.replace(b"1700000000", b"1800000001")
