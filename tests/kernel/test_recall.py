"""R1, R7 in chat completions: a text of many pages, and requests with too many tools or none."""

import json
import re
from typing import Any

import pytest

from policies.recall import PAGE
from proxy.app import App
from proxy.lab.provider import Answer, Received, Say
from tests.kit.histories import Json
from tests.kit.recalling import (
    REPORT,
    SECOND,
    Client,
    answered,
    client_of,
    fetched,
    hiding,
    plays,
    recall,
    refs,
    tool_names,
)
from tests.kit.stage import Stage

pytestmark = pytest.mark.usefixtures("patient")


_TRAIL = re.compile(r'\n\[narrows: chars \d+-\d+ of \d+; go on with part "chars (\d+)-(\d+)"[^\n]*\]')
_LAST = "\n[narrows: this was the last recall in this reply]"


class Reader:
    """A model that reads a hidden text to its end: it goes on where the newest page says, 32 pages at a time, as often
    as it may in one reply."""

    def __init__(self) -> None:
        self.pages: list[str] = []
        self.ended = False
        self._ref = ""
        self._parts = ["chars 0-"]

    def __call__(self, received: Received) -> Answer:
        self._ref = self._ref or refs(received)[0]
        newest = received.json["messages"][-1]
        if newest["role"] == "tool" and newest["tool_call_id"].startswith("r"):
            self._read(fetched(received)[-len(self._parts) :])
            if self.ended or newest["content"].endswith(_LAST):
                return Say("So far.")
        return Say(None, [recall(self._ref, part, f"r{n}") for n, part in enumerate(self._parts)])

    def _read(self, shown: list[str]) -> None:
        more = _TRAIL.search(shown[-1])
        self.pages += [_TRAIL.sub("", page.removesuffix(_LAST)) for page in shown]
        self.ended = more is None
        if more is not None:
            starts = range(int(more[1]), int(more[2]), PAGE)[:32]
            self._parts = [f"chars {start}-{start + PAGE}" for start in starts[:-1]]
            self._parts.append(f"chars {starts[-1]}-{more[2]}")


async def test_r1_five_megabytes_on_one_line_page_by_page_and_by_search(stage: Stage) -> None:
    text = "".join(f"{n:<250}" for n in range(20_000))
    model, replies = Reader(), 0
    stage.provider.answer = model
    said = hiding(text)
    async with client_of((await stage.start()).base_url) as client:
        while not model.ended:
            said += answered((await client.ask(said, replies % 2 == 1)).message())
            replies += 1
        stage.provider.answer = plays(lambda r: Say(None, [recall(refs(r)[0], "find \\b4712 +4713")]))
        await client.ask(said)
    assert "".join(model.pages) == text
    assert (len(text), len(model.pages), replies) == (5_000_000, 250, 3)
    found = fetched(stage.provider.requests[-1])[-1]
    assert found.startswith("1: ")
    assert re.search(r"4712 +4713", found)
    assert len(found) < 1_000


def named(name: str, count: int) -> list[Json]:
    return [{"type": "function", "function": {"name": name.format(n), "parameters": {}}} for n in range(count)]


async def test_r7_of_128_tools_none_is_ours_and_nothing_promises_it(stage: Stage, client: Client) -> None:
    tools = named("tool_{}", 128)
    await client.hear(hiding(REPORT, SECOND), tools=tools)
    (received,) = stage.provider.requests
    assert tool_names(received) == [tool["function"]["name"] for tool in tools]
    assert refs(received) == []
    assert "[narrows: run it again for the rest]" in received.json["messages"][3]["content"]


@pytest.mark.parametrize("tools", [[], None], ids=["empty", "null"])
async def test_r7_an_empty_list_of_tools_is_none(stage: Stage, app: App, tools: Any) -> None:
    body = json.dumps({"model": "m", "messages": hiding(), "tools": tools}).encode()
    assert (await stage.post(app, body)).sent == body


async def test_r7_always_hides_in_an_agents_request_without_tools(stage: Stage, app: App) -> None:
    always = await stage.start(preset="keeping", recall="always")
    body = json.dumps({"model": "m", "messages": hiding()}).encode()
    await stage.post(always, body)
    assert refs(stage.provider.requests[-1])
