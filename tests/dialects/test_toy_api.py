"""An API of 150 lines that one line adds is compacted, recalled and streamed by a real Narrows over real sockets."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from policies.dialects import DIALECTS
from policies.tools import RECALL
from tests.dialects.toy import TOY
from tests.kit.histories import Json
from tests.kit.paths import ROOT
from tests.kit.upstream import Asked, ScriptedUpstream, chunk, event, json_answer, stream_head

MOST_LINES = 150
LINES = "\n".join(f"src/module_{at}.py:{at}: def handler_{at}(event, context): return {at * 37}" for at in range(300))
TOOLS = [{"name": "bash", "description": "Run a command.", "parameters": {"type": "object", "properties": {}}}]
USAGE = {"read": 900, "cached": 100, "written": 7}
Turns = list[dict[str, Any]]


def session(calls: int) -> Turns:
    """A person's task, and a model that runs one command after the other."""
    turns: Turns = [{"by": "rules", "text": "Be brief."}, {"by": "user", "text": "Find the slow handler."}]
    for at in range(calls):
        call = {"id": f"c{at}", "name": "bash", "arguments": json.dumps({"command": f"grep -rn handler src/{at}"})}
        turns.append({"by": "model", "text": f"Step {at}.", "calls": [call]})
        turns.append({"by": "tool", "for": f"c{at}", "text": f"output {at}\n{LINES}"})
    return turns


class Model:
    """The upstream: it recalls the first text that stands behind a reference, and then says what it saw."""

    def __init__(self) -> None:
        self.bodies: list[Json] = []
        self.ref = ""

    async def __call__(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        body = json.loads(asked.body)
        self.bodies.append(body)
        has_recalled = body["turns"][-1].get("for") == "r1"
        refs = re.findall(r"\bref (\d{6,24}(?:\+\d+)?)", json.dumps(body["turns"]))
        self.ref = self.ref or refs[0]
        call = {"id": "r1", "name": RECALL, "arguments": json.dumps({"ref": self.ref})}
        text = "It is handler 7." if has_recalled else "Let me look. "
        if not body.get("stream"):
            turn = {"by": "model", "text": text, "calls": [] if has_recalled else [call]}
            writer.write(json_answer({"turn": turn, "end": "done", "usage": USAGE}))
            return
        writer.write(stream_head())
        words: list[Json] = [{"text": word} for word in re.findall(r"\S+ ?", text)]
        for each in [*words, *([] if has_recalled else [{"call": call}]), {"end": "done", "usage": USAGE}]:
            writer.write(chunk(event(each)))
            await writer.drain()
        writer.write(chunk(b""))


@asynccontextmanager
async def narrows(upstream: str) -> AsyncIterator[str]:
    """The base_url of a Narrows in a process of its own that speaks the toy API, too."""
    words = ["serve", "--port", "0", "--upstream", upstream, "--preset", "eager", "--store", "sqlite:///:memory:"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.dialects.toy", *words), stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            yield (await process.stdout.readline()).decode().split()[-1]
    finally:
        process.kill()
        await process.communicate()


async def ask(url: str, turns: Sequence[Json], stream: bool) -> tuple[str, list[Json], Json]:
    """What is said of the request, and the reply: the events of a stream, or one object."""
    body = {"model": "gpt-5.4", "turns": turns, "tools": TOOLS, "stream": stream}
    async with aiohttp.ClientSession() as http, http.post(f"{url}/turns", json=body) as reply:
        assert reply.status == 200, await reply.text()
        raw = await reply.read()
    events = [json.loads(each[6:]) for each in raw.split(b"\n\n") if each] if stream else [json.loads(raw)]
    assert RECALL.encode() not in raw
    return reply.headers["x-narrows-mode"], events, json.loads(TOY.messages_in(raw)[0])


@pytest.mark.parametrize("stream", [True, False])
async def test_an_api_that_one_line_adds_is_compacted_and_recalled(stream: bool) -> None:
    assert TOY.name not in DIALECTS
    model, turns = Model(), session(30)
    async with ScriptedUpstream(model) as upstream, narrows(upstream.url) as url:
        mode, events, turn = await ask(url, turns, stream)
        first, second = model.bodies
        assert mode == "compacted"
        assert len(json.dumps(first)) < len(json.dumps(turns)) / 2
        assert [tool["name"] for tool in first["tools"]] == ["bash", RECALL]

        *_, recall, answer = second["turns"]
        assert second["turns"][:-2] == first["turns"]
        assert (recall["text"], recall["calls"][0]["name"], answer["for"]) == ("Let me look. ", RECALL, "r1")
        assert LINES[:500] in answer["text"]

        assert turn == {"by": "model", "text": "Let me look. It is handler 7.", "calls": []}
        assert [each["usage"] for each in events if "usage" in each] == [{**USAGE, "written": 14}]

        # the client knows of no recall, and the model has it before it with the next request
        _, _, again = await ask(url, [*turns, turn, {"by": "user", "text": "Which file?"}], stream)
        assert again["text"].endswith("It is handler 7.")
        third, told = model.bodies[2]["turns"], {**turn, "text": "It is handler 7."}
        assert third == [*second["turns"], told, {"by": "user", "text": "Which file?"}]


async def test_its_paths_and_errors_are_its_own() -> None:
    async with narrows("http://127.0.0.1:9/v1") as url, aiohttp.ClientSession() as http:
        async with http.post(url.removesuffix("/v1") + "/turns", json={}) as reply:
            error = (await reply.json())["error"]
            assert (reply.status, error["code"]) == (404, "wrong_base_url")
            assert "but at /v1/turns" in error["message"]
        async with http.post(f"{url}/turns", json={"model": "m", "turns": session(1)}) as reply:
            assert (reply.status, (await reply.json())["error"]["code"]) == (502, "upstream_unreachable")


def test_it_is_small() -> None:
    assert len((ROOT / "tests/dialects/toy.py").read_text().splitlines()) <= MOST_LINES
