"""`make bench`: what Narrows adds to a request, side by side with a bare aiohttp relay in the same run.

Each measured request is the next turn of a conversation that was served before (warm): one new message or two, the rest
known. The two proxies take turns, so that whatever else the machine does falls on both.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from statistics import quantiles
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
from aiohttp import web

from proxy.app import App
from proxy.config import Settings
from proxy.sessions import load

ROUNDS = 40
TURNS = 8
REPLY = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-5.4",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
    }
).encode()


@asynccontextmanager
async def listening(handler: Any) -> AsyncIterator[str]:
    """A server on a free port of loopback; its address."""
    runner = web.ServerRunner(web.Server(handler))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


async def upstream(request: web.BaseRequest) -> web.Response:
    """Reads the request and answers at once."""
    await request.content.read()
    return web.Response(body=REPLY, content_type="application/json")


class Relay:
    """The least that a relay in aiohttp does."""

    def __init__(self, target: str, http: aiohttp.ClientSession) -> None:
        self._target = target
        self._http = http

    async def __call__(self, request: web.BaseRequest) -> web.Response:
        body = await request.content.read()
        async with self._http.post(self._target + "/chat/completions", data=body) as reply:
            return web.Response(body=await reply.read(), status=reply.status, content_type="application/json")


def bodies(size: int) -> list[bytes]:
    """The last requests of a conversation that has grown to about `size` bytes."""
    session = load("long_day")
    messages = list(session["messages"])
    rest = [m for m in messages if m["role"] != "system"]
    while len(json.dumps(messages)) < size * 1.2:
        messages += rest
    ends = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    found = [json.dumps({"model": "gpt-5.4", "messages": messages[:end], "tools": session["tools"]}) for end in ends]
    return [body.encode() for body in found if len(body) < size or body is found[0]][-TURNS:]


def small() -> list[bytes]:
    """A conversation of about 2 kB, turn by turn."""
    messages: list[dict[str, str]] = [{"role": "system", "content": "Answer briefly. " * 20}]
    found = []
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"Question {turn}: " + "why is the sky blue? " * 5})
        found.append(json.dumps({"model": "gpt-5.4", "messages": messages}).encode())
        messages.append({"role": "assistant", "content": f"Answer {turn}: " + "because of scattering. " * 3})
    return found


async def timed(http: aiohttp.ClientSession, url: str, body: bytes, conversation: str) -> float:
    """Milliseconds from sending a request to the end of its reply."""
    began = time.perf_counter()
    headers = {"x-narrows-conversation": conversation}
    async with http.post(url + "/chat/completions", data=body, headers=headers) as reply:
        assert reply.status == 200, await reply.text()
        await reply.read()
    return (time.perf_counter() - began) * 1000


async def measured(http: aiohttp.ClientSession, urls: Sequence[str], turns: Sequence[bytes]) -> list[list[float]]:
    """For each address the milliseconds of every warm request; the first turn warms up and does not count."""
    found: list[list[float]] = [[] for _ in urls]
    names = count()
    for _ in range(ROUNDS):
        conversation = f"bench-{next(names)}"
        for position, body in enumerate(turns):
            for url, times in zip(urls, found, strict=True):
                ms = await timed(http, url, body, conversation)
                if position:
                    times.append(ms)
    return found


def percentiles(times: Sequence[float]) -> tuple[float, float]:
    """p50 and p99."""
    cuts = quantiles(times, n=100)
    return cuts[49], cuts[98]


async def main() -> None:
    """Measure both sizes and print one line for each."""
    async with AsyncExitStack() as parts:
        http = await parts.enter_async_context(aiohttp.ClientSession())
        target = await parts.enter_async_context(listening(upstream))
        relay = await parts.enter_async_context(listening(Relay(target, http)))
        folder = parts.enter_context(TemporaryDirectory())
        settings = Settings(upstream=target, port=0, store=f"sqlite:///{folder}/bench.db", log_level="error")
        app = await parts.enter_async_context(await App.start(settings))
        print(f"{'request':>10} {'':>5} {'relay':>8} {'narrows':>8} {'added ms':>9} {'ratio':>6}")
        for name, turns in (("2 kB", small()), ("400 kB", bodies(400_000))):
            bare, ours = await measured(http, [relay, app.base_url], turns)
            for label, a, b in zip(("p50", "p99"), percentiles(bare), percentiles(ours), strict=True):
                print(f"{name:>10} {label:>5} {a:8.2f} {b:8.2f} {b - a:9.2f} {b / a:6.2f}")


if __name__ == "__main__":
    asyncio.run(main())
