"""What the tests of rolling summaries share: the whole program, the official SDK before it, and behind it the strict
provider, which answers the agent and writes the summaries, too.

`Desk.ask` sends a request and gives back what the upstream then received for it, whatever summaries are asked for
meanwhile; `Office.settled` waits until none is being made any more.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

import pytest

from policies.context import Policy
from policies.model.parameters import Trigger
from policies.presets import PRESETS, Preset
from policies.rules.summarize import Summarize
from policies.rules.trim import Trim
from proxy.app import App
from proxy.lab.provider import TURN_HEADER, Answer, Provider, Received, Say, Script
from proxy.memory import Event, open_store
from proxy.summaries.jobs import PROMPTS
from proxy.summaries.maker import SummaryMaker, SummaryWriter
from tests.kit.counted import counted
from tests.kit.histories import EAGER, Json
from tests.kit.recalling import TOOLS, Client, client_of, runs
from tests.kit.stage import MODELS, Exchange, Stage

_SUMMARIZE = Summarize(keep=4, when=(Trigger(),), batch=900, verbatim_tokens=400, generations=3, long_message=2_000)
_LAST: Policy = Trim(keep=2)
PLAIN: tuple[Policy, ...] = (_SUMMARIZE, _LAST)
"""Nothing but summaries, with the windows that are usual."""
OTHER: tuple[Policy, ...] = (replace(_SUMMARIZE, verbatim_tokens=300), _LAST)
"""The same with another parameter: another policy."""
_BUSY = replace(_SUMMARIZE, keep=1, batch=40)
BUSY: tuple[Policy, ...] = (*EAGER[:-1], _BUSY, EAGER[-1])
"""Everything at once, as soon as it may."""
BUSIER: tuple[Policy, ...] = (*EAGER[:-1], replace(_BUSY, verbatim_tokens=300), EAGER[-1])
"""Likewise, by another policy."""
_HERE = {"plain": PLAIN, "other": OTHER, "busy": BUSY, "busier": BUSIER}
_FREE = {"input": 0.001, "output": 0.001, "window": 100_000}
PRICED = {**MODELS, "m": {**MODELS["m"], "read": 0.9}, "scribe": _FREE, "writer": _FREE}
"""For tests of what becomes of summaries with the aim `bill`, whenever they are wanted: at these prices short histories
pay for them at once. When presets ask, and what for, is tested at listed prices (tests/presets)."""
RULES = ("You must never touch main.py.", "Always answer in French.", "Use tabs only, remember that.")
NOTES = " earlier messages left out"
"""What stands in a request that has a summary."""
_CALLED = PROMPTS["compaction"].text[:60]


def _now() -> float:
    """By the clock that a test may have set."""
    return time.time()


def material_of(received: Received) -> str:
    """What a summarizer was given, in any API."""
    history = received.json.get("messages") or received.json["input"]
    content = history if isinstance(history, str) else history[-1]["content"]
    return content if isinstance(content, str) else str(content[-1]["text"])


def notes_of(material: str) -> str:
    """The lines that a model might choose, as they are used: the newest prose of the assistant, of 205 characters."""
    found = re.findall(r"^    \[(\d+)\] assistant: (.+)", material, re.M)
    found += re.findall(r"^\[(\d+)\] assistant\n    (.+)", material, re.M)
    lines: list[str] = []
    while found and len("\n".join(lines)) < 205:
        number, line = found.pop()
        said = line if len(line) < 290 else line[:290].rpartition(". ")[0] + "."
        lines.insert(0, f"[{number}] assistant: {said}")
    return "\n".join(lines)


def writes(received: Received) -> Say:
    """What a summarizer answers."""
    return Say(notes_of(material_of(received)))


def writes_summaries(received: Received) -> Say | None:
    """Likewise, of a provider that leaves all else to its agent's model."""
    return writes(received) if received.json and received.headers["User-Agent"] == "narrows" else None


def is_asked_for_a_summary(received: Received) -> bool:
    """Whether it is a call for a summary and none of an agent's."""
    first = received.json["messages"][0] if isinstance(received.json, dict) else {}
    return str(first.get("content", "")).startswith(_CALLED)


@dataclass
class Scribe:
    """Writes the summaries, or does `instead` what it is told to; leaves everything else to the agent's model."""

    instead: Answer | None = None
    agent: Script | None = None
    asked: list[str] = field(default_factory=list)
    """What each call was about, instructions apart."""
    quote: Callable[[str], str] = field(default=lambda _: "")
    """What of that it quotes."""

    def __call__(self, received: Received) -> Answer | None:
        if received.violation or not is_asked_for_a_summary(received):
            return self.agent(received) if self.agent else None
        self.asked.append(material_of(received))
        return self.instead or Say(self.notes[-1] + self.quote(self.asked[-1]))

    @property
    def calls(self) -> int:
        return len(self.asked)

    @property
    def notes(self) -> list[str]:
        """What it answered, or would have."""
        return [notes_of(each) for each in self.asked]


@dataclass(frozen=True, slots=True)
class Desk:
    """A Narrows, and an agent on the official SDK before it."""

    app: App
    client: Client
    provider: Provider
    model: str = "m"
    """The model that its agent asks."""
    _numbers: Any = field(default_factory=count)

    async def ask(self, messages: Sequence[Any], stream: bool = False, **fields: Any) -> Exchange:
        """Send these messages; what the upstream received of them last, and what came back."""
        mark = f"{id(self)}-{next(self._numbers)}"
        turn = str(sum(message["role"] == "assistant" for message in messages))
        headers = {**fields.pop("extra_headers", {}), "x-ask": mark, TURN_HEADER: turn}
        asked = {"model": self.model, "extra_headers": headers, **fields}
        reply = await (self._streamed if stream else self._whole)(messages, asked)
        sent = [each for each in self.provider.requests if each.headers.get("x-ask") == mark]
        assert sent[-1].violation is None
        given = json.dumps({"messages": messages}).encode()
        return Exchange(given, sent[-1].body, 200, *reply)

    async def _streamed(self, messages: Sequence[Any], asked: Json) -> tuple[dict[str, str], bytes]:
        """One at a time: the ear hears what came last."""
        heard = await self.client.ask(messages, True, **asked)
        return dict(heard.headers), heard.raw

    async def _whole(self, messages: Sequence[Any], asked: Json) -> tuple[dict[str, str], bytes]:
        """As many at a time as one likes."""
        create = self.client.sdk.chat.completions.with_raw_response.create
        reply = await create(**{"messages": messages, "tools": TOOLS, **asked})
        return dict(reply.headers), reply.content

    def count(self, metric: str, **labels: str) -> float:
        return counted(self.app.telemetry, f"{metric}_total", **labels)


@dataclass
class Office:
    """Every Narrows of a test, and who writes for all of them."""

    stage: Stage
    scribe: Scribe
    summaries: list[SummaryMaker]
    _stack: AsyncExitStack

    async def desk(self, key: str = "k", model: str = "m", **settings: Any) -> Desk:
        """A Narrows more, with an agent before it."""
        chosen = {
            "preset": "plain",
            "summary_tokens": 100,
            "models": PRICED,
            "summarizers": [{"model": "scribe"}],
            **settings,
        }
        app = await self.stage.start(**chosen)
        return await self.before(app, key, model)

    async def before(self, app: App, key: str = "k", model: str = "m") -> Desk:
        """One more agent before a Narrows."""
        client = await self._stack.enter_async_context(client_of(app.base_url))
        client.sdk.api_key = key
        return Desk(app, client, self.stage.provider, model)

    async def settled(self) -> None:
        """Until no summary is being made."""
        async with asyncio.timeout(30):
            for each in self.summaries:
                await each.settled()

    async def adopted(self, desk: Desk, session: Sequence[Sequence[Json]], **fields: Any) -> list[Exchange]:
        """The requests of a session, one after the other, until a summary stands in what is sent."""
        found: list[Exchange] = []
        while not found or NOTES[:40] not in found[-1].text:
            found += await self.grow(desk, [session[len(found)]], **fields)
        return found

    async def grow(self, desk: Desk, requests: Sequence[Sequence[Json]], **fields: Any) -> list[Exchange]:
        """One request after the other; what was asked for with one is there with the next."""
        grown = []
        for messages in requests:
            grown.append(await desk.ask(messages, **fields))
            await self.settled()
        return grown

    async def events(self) -> list[Event]:
        """What the store knows of events, oldest first, once every Narrows that wrote them is closed."""
        store = open_store(f"sqlite:///{self.stage.path}", patience=5)
        await store.open()
        found = await store.events(None, None, 100)
        await store.close()
        return [event for _, event in found]


@asynccontextmanager
async def office_of(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Office]:
    """Short conversations are summed up, too, and what is being made can be waited for."""
    made: list[SummaryMaker] = []

    class Watched(SummaryMaker):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            made.append(self)

    monkeypatch.setattr("proxy.generation.SummaryMaker", Watched)
    monkeypatch.setattr("proxy.generation.SummaryWriter", partial(SummaryWriter, clock=_now))
    monkeypatch.setattr("policies.planning.folding.SMALLEST", 1)
    for name, policies in _HERE.items():
        monkeypatch.setitem(PRESETS, name, Preset(policies))
    stage.provider.answer = scribe = Scribe()
    async with AsyncExitStack() as stack:
        yield Office(stage, scribe, made, stack)


@pytest.fixture(name="office")
async def office_of_a_test(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Office]:
    """With nothing else about it."""
    async with office_of(stage, monkeypatch) as made:
        yield made


def work(turns: int, rules: Sequence[str] = RULES, output: str = "") -> list[Json]:
    """Steps of an agent, with what a person lays down in between; each has a few hundred tokens, the third this output
    in front."""
    said: list[Json] = [{"role": "system", "content": "You are careful."}, {"role": "user", "content": "Do the work."}]
    for turn in range(turns):
        said += runs(f"make step-{turn}", (output if turn == 2 else "") + f"step {turn} is done\n" * 60)
        said[-2]["content"] = f"Now step {turn}. " + "First this, and then that. " * 8
        if turn % 3 == 1:
            rule = rules[turn // 3 % len(rules)] if rules else f"go on {turn}"
            said += [{"role": "assistant", "content": "What next?"}, {"role": "user", "content": rule}]
    return [*said, {"role": "assistant", "content": "done"}]


def staled(reason: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The settings, or the circumstances, under which a summary is stale for this reason; of `source` and `policy` the
    test sees to itself."""
    if reason == "prompt":
        prompts = {**PROMPTS, "compaction": replace(PROMPTS["compaction"], version="compaction-3")}
        monkeypatch.setattr("proxy.summaries.jobs.PROMPTS", prompts)
    if reason == "age":
        before = time.time()
        monkeypatch.setattr("time.time", lambda: before + 700)
    return {"summary_same_model": True, "summarizers": [{"model": "writer"}]} if reason == "model" else {}


def edited(message: Json) -> Json:
    """What an early output of `work` becomes where a client edits it."""
    is_edited = str(message["content"]).startswith("step 1 is done")
    return {**message, "content": "step 1 is not done"} if is_edited else message


def summary_header(exchange: Exchange) -> str:
    """What the reply says of summaries."""
    return exchange.headers.get("x-narrows-summary", "")
