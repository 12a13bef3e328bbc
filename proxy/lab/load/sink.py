"""A cheap upstream: it reads a request and answers at once, in the API of its path, with a reply that was made before.

A request in chat completions may bring its reply in a header. It is no provider: it checks nothing, bills nothing, and
its streams come as fast as they are read.
"""

import asyncio
import json
import sys
from base64 import b64decode
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import orjson
from aiohttp import web
from multidict import CIMultiDict

from policies.dialects import DEFAULT
from policies.money.prices import Usage
from proxy.event_loop import run_fast
from proxy.lab.load.client import REPLY
from proxy.lab.provider import APIS, Say
from proxy.lab.provider.answers import ModelReply
from proxy.lab.provider.api import Api

EVENTS = 100
_TOGETHER = 4
"""Events that are written at once, as they come from a provider that is under way."""
_ASKS_TO_STREAM = (b'"stream":true', b'"stream": true')
_CHAT = {"id": "chatcmpl-1", "created": 1, "model": "m"}
_TEXT = "because of scattering "
Events = Sequence[tuple[str, Mapping[str, Any]]]


def answers(events: int = EVENTS) -> Mapping[str, tuple[bytes, Sequence[bytes]]]:
    """By the end of a path: a whole reply, and a stream of so many words as it is written."""
    words = " ".join(f"word{at}" for at in range(events))
    whole, stream = ({"role": "assistant", "content": text} for text in (_TEXT, words))
    chat = recorded(whole)[0], recorded(stream)[1]
    return {
        api.client.dialect.http.path: chat if name == DEFAULT else _written_by(api, words, events)
        for name, api in APIS.items()
    }


def _written_by(api: Api, words: str, events: int) -> tuple[bytes, Sequence[bytes]]:
    """The same as the built-in provider writes it."""
    whole, stream = (
        ModelReply(Say(text, pieces=events), {"model": "m"}, Usage(10, 0, 0, 5), 0, raw=b"", headers=CIMultiDict())
        for text in (_TEXT, words)
    )
    return _json(api.json_reply(whole)), _written([(str(event["type"]), event) for event in api.events(stream)])


def recorded(message: Mapping[str, Any]) -> tuple[bytes, Sequence[bytes]]:
    """The same for a recorded reply, in chat completions."""
    words = (message.get("content") or "").split(" ")
    deltas: list[Mapping[str, Any]] = [{"content": word + " " * (at < len(words))} for at, word in enumerate(words, 1)]
    calls = [{"index": at, **call} for at, call in enumerate(message.get("tool_calls") or ())]
    if calls:
        deltas.append({"tool_calls": calls})
    reason = "tool_calls" if calls else "stop"
    kind = "chat.completion.chunk"
    events = [("", _chat(kind, {"delta": delta, "finish_reason": None})) for delta in deltas]
    events.append(("", _chat(kind, {"delta": {}, "finish_reason": reason})))
    return _json(_chat("chat.completion", {"message": message, "finish_reason": reason})), _written(events)


def _chat(kind: str, choice: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**_CHAT, "object": kind, "choices": [{"index": 0, **choice}]}


def _written(events: Events) -> Sequence[bytes]:
    lines = [
        (f"event: {name}\n".encode() if name else b"") + b"data: " + _json(data) + b"\n\n" for name, data in events
    ]
    if not events[0][0]:
        lines.append(b"data: [DONE]\n\n")
    return [b"".join(lines[at : at + _TOGETHER]) for at in range(0, len(lines), _TOGETHER)]


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


class Sink:
    def __init__(self, events: int = EVENTS) -> None:
        self._answers = answers(events)

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self.respond(request, await request.content.read())  # of any size

    async def respond(self, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        path = next((path for path in self._answers if request.path.endswith(path)), None)
        if path is None:
            return web.json_response({"object": "list", "data": []})
        whole, pieces = self._answers[path]
        if REPLY in request.headers:
            whole, pieces = recorded(orjson.loads(b64decode(request.headers[REPLY])))
        # within a text its quotes would be escaped
        if not any(asks in body for asks in _ASKS_TO_STREAM):
            return web.Response(body=whole, content_type="application/json")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
            await asyncio.sleep(0)
        return response


@asynccontextmanager
async def running_sink(port: int = 0, events: int = EVENTS) -> AsyncIterator[str]:
    """Its base URL on loopback. Raises ValueError where it cannot listen."""
    runner = web.ServerRunner(web.Server(Sink(events)), shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port, backlog=1024).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    except OSError as error:
        raise ValueError(f"cannot listen on port {port} ({error.strerror}); choose another --port") from error
    finally:
        await runner.cleanup()


async def serve_sink(port: int = 0, events: int = EVENTS) -> None:
    """Listen on loopback, print the address, and go on until this is cancelled."""
    async with running_sink(port, events) as url:
        print(url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    run_fast(serve_sink(events=int(sys.argv[1]) if len(sys.argv) > 1 else EVENTS))
