"""`make bench`: what Narrows adds to a request, side by side with a bare aiohttp relay in the same run; what the recall
tool adds to the first byte of a streamed reply, side by side with a Narrows that has none; and what a shared Redis
adds, side by side with a file: where this process served the turn before (warm), where another one did (cold), and
where Redis is frozen.

Each measured request is the next turn of a conversation that was served before (warm): one new message or two, the rest
known. The two proxies take turns, so that whatever else the machine does falls on both.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
from aiohttp import web

from proxy.app import App
from proxy.config import Settings
from proxy.lab.sessions import load
from tests.kit.redis_servers import Server

ROUNDS = 40
TURNS = 8
HEAD = {"id": "chatcmpl-1", "created": 1, "model": "gpt-5.4"}
Message = dict[str, Any]
Turn = tuple[bytes, Message]
"""A request, and the message that the client goes on with: an answer that it knows nothing of is another case."""
SAYS = "x-bench-says"
ANSWERS: dict[str, Message] = {}


def whole(message: Message) -> bytes:
    """A reply with this message."""
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return json.dumps({**HEAD, "object": "chat.completion", "choices": [choice]}).encode()


def events(message: Message) -> list[bytes]:
    """The same as a stream, word by word."""
    words = [{"content": f"{word} "} for word in (message.get("content") or "").split(" ")]
    words[-1:] = [{"content": words[-1]["content"][:-1]}]
    calls = [{"index": i, **call} for i, call in enumerate(message.get("tool_calls") or ())]
    deltas = [*words, {"tool_calls": calls}] if calls else words
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    chunks = [{**HEAD, "object": "chat.completion.chunk", "choices": [choice]} for choice in choices]
    return [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks]


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


async def upstream(request: web.BaseRequest) -> web.StreamResponse:
    """Reads the request and answers at once: with a stream of words where one is wanted."""
    body, message = await request.content.read(), ANSWERS[request.headers[SAYS]]
    if b'"stream": true' not in body[-400:]:
        return web.Response(body=whole(message), content_type="application/json")
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    first, *others = events(message)
    await response.write(first)
    await asyncio.sleep(0.005)  # a model takes its time: the first word is read alone
    for event in others:
        await response.write(event)
    await response.write(b"data: [DONE]\n\n")
    return response


class Relay:
    """The least that a relay in aiohttp does."""

    def __init__(self, target: str, http: aiohttp.ClientSession) -> None:
        self._target = target
        self._http = http

    async def __call__(self, request: web.BaseRequest) -> web.Response:
        body = await request.content.read()
        headers = {SAYS: request.headers[SAYS]}
        async with self._http.post(self._target + "/chat/completions", data=body, headers=headers) as reply:
            return web.Response(body=await reply.read(), status=reply.status, content_type="application/json")


def streamed(turns: Sequence[Turn]) -> list[Turn]:
    """The same requests, for a stream."""
    return [(body[:-1] + b', "stream": true}', answer) for body, answer in turns]


def large(size: int) -> list[Turn]:
    """The last requests of a conversation that has grown to about `size` bytes."""
    session = load("long_day")
    messages = list(session["messages"])
    rest = [m for m in messages if m["role"] != "system"]
    while len(json.dumps(messages)) < size * 1.2:
        messages += rest
    ends = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    turns = [
        (
            json.dumps({"model": "gpt-5.4", "messages": messages[:end], "tools": session["tools"]}).encode(),
            messages[end],
        )
        for end in ends
    ]
    return [turn for turn in turns if len(turn[0]) < size or turn is turns[0]][-TURNS:]


def small() -> list[Turn]:
    """A conversation of about 2 kB, turn by turn."""
    messages: list[Message] = [{"role": "system", "content": "Answer briefly. " * 20}]
    turns: list[Turn] = []
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"Question {turn}: " + "why is the sky blue? " * 5})
        answer = {"role": "assistant", "content": f"Answer {turn}: " + "because of scattering. " * 3}
        turns.append((json.dumps({"model": "gpt-5.4", "messages": messages}).encode(), answer))
        messages.append(answer)
    return turns


async def timed(http: aiohttp.ClientSession, url: str, turn: Turn, conversation: str) -> tuple[float, float]:
    """Milliseconds from sending a request to the first byte of its reply, and to its end."""
    body, ANSWERS[conversation] = turn
    headers = {"x-narrows-conversation": conversation, SAYS: conversation}
    began = time.perf_counter()
    async with http.post(url + "/chat/completions", data=body, headers=headers) as reply:
        assert reply.status == 200, await reply.text()
        await reply.content.readany()
        first = time.perf_counter()
        await reply.read()
    return (first - began) * 1000, (time.perf_counter() - began) * 1000


async def measured(
    http: aiohttp.ClientSession, urls: Sequence[str], turns: Sequence[Turn]
) -> list[list[tuple[float, float]]]:
    """For each address the milliseconds of every warm request; the first turn warms up and does not count."""
    results: list[list[tuple[float, float]]] = [[] for _ in urls]
    names = count()
    for _ in range(ROUNDS):
        conversation = f"bench-{next(names)}"
        for position, turn in enumerate(turns):
            for url, times in zip(urls, results, strict=True):
                ms = await timed(http, url, turn, conversation)
                if position:
                    times.append(ms)
    return results


def percentiles(times: Sequence[float]) -> tuple[float, float]:
    """p50 and p99."""
    cuts = quantiles(times, n=100)
    return cuts[49], cuts[98]


def printed(name: str, one: Sequence[float], other: Sequence[float]) -> None:
    """A line for each percentile: the one, the other, and what lies between."""
    for label, a, b in zip(("p50", "p99"), percentiles(one), percentiles(other), strict=True):
        print(f"{name:>10} {label:>5} {a:8.2f} {b:8.2f} {b - a:9.2f} {b / a:6.2f}")


async def alternating(
    http: aiohttp.ClientSession, ways: Sequence[Sequence[str]], turns: Sequence[Turn]
) -> list[list[float]]:
    """For each way the milliseconds of every request; each turn goes to the next address of its way."""
    results: list[list[float]] = [[] for _ in ways]
    for number in range(ROUNDS // 2):
        for position, turn in enumerate(turns):
            for way, (urls, times) in enumerate(zip(ways, results, strict=True)):
                url = urls[position % len(urls)]
                _, ms = await timed(http, url, turn, f"stores-{number}-{way}")
                times.append(ms)
    return results


async def stores(http: aiohttp.ClientSession, target: str) -> None:
    """What a Redis adds, warm, cold and frozen."""
    async with AsyncExitStack() as parts:
        folder = Path(parts.enter_context(TemporaryDirectory()))
        server = Server(folder / "redis")
        parts.callback(server.kill)
        server.start()
        chosen: dict[str, Any] = {"upstream": target, "port": 0, "log_level": "error", "preset": "rolling"}
        places = [f"sqlite:///{folder}/file.db", server.url, server.url]
        apps = [await App.start(Settings(store=place, **chosen)) for place in places]
        for app in apps:
            await parts.enter_async_context(app)
        file, one, other = (app.base_url for app in apps)
        turns = large(20_000)
        print(f"\n{'store':>10} {'':>5} {'file':>8} {'redis':>8} {'added ms':>9} {'ratio':>6}")
        plain, warm, cold = await alternating(http, [[file], [one], [one, other]], turns)
        printed("warm", plain, warm)
        printed("cold", plain, cold)
        with server.frozen():
            plain, frozen = await alternating(http, [[file], [one]], turns)
        printed("frozen", plain, frozen)
        print(f"the longest request while it was frozen: {max(frozen):.0f} ms")


async def main() -> None:
    """Measure both sizes, streams and stores, and print a line for each."""
    async with AsyncExitStack() as parts:
        http = await parts.enter_async_context(aiohttp.ClientSession())
        target = await parts.enter_async_context(listening(upstream))
        relay = await parts.enter_async_context(listening(Relay(target, http)))
        folder = parts.enter_context(TemporaryDirectory())
        chosen: dict[str, Any] = {"upstream": target, "port": 0, "log_level": "error"}
        with_tool = Settings(store=f"sqlite:///{folder}/with.db", **chosen)
        without = Settings(store=f"sqlite:///{folder}/without.db", recall="never", **chosen)
        app = await parts.enter_async_context(await App.start(with_tool))
        bare_app = await parts.enter_async_context(await App.start(without))
        print(f"{'request':>10} {'':>5} {'relay':>8} {'narrows':>8} {'added ms':>9} {'ratio':>6}")
        for name, turns in (("2 kB", small()), ("400 kB", large(400_000))):
            bare, ours = await measured(http, [relay, app.base_url], turns)
            printed(name, [end for _, end in bare], [end for _, end in ours])
        print(f"\n{'streamed':>10} {'':>5} {'never':>8} {'recall':>8} {'added ms':>9} {'ratio':>6}")
        never, there = await measured(http, [bare_app.base_url, app.base_url], streamed(large(20_000)))
        printed("first byte", [first for first, _ in never], [first for first, _ in there])
        printed("whole", [end for _, end in never], [end for _, end in there])
        await stores(http, target)


if __name__ == "__main__":
    asyncio.run(main())
