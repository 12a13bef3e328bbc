"""The provider itself: what it answers to whom (no I/O), and a thin shell of aiohttp around it."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from types import TracebackType
from typing import Any, Literal, Self

from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy

from policies.context import Prices
from policies.dialects import Usage
from proxy.provider import jsontext
from proxy.provider.answers import (
    CREATED,
    Abort,
    Answer,
    Headers,
    Json,
    Reflect,
    Reply,
    Say,
    Send,
    Wire,
    spoken,
    travelling,
)
from proxy.provider.cache import CacheRule, PromptCache, rule_for
from proxy.provider.prompt import Count, Prompt, PromptReader, call_texts
from proxy.provider.rules import Violation, error_body, violations
from proxy.sse import undone

CHAT = ("POST", "/v1/chat/completions")
MODELS = ("GET", "/v1/models")
LARGEST = 1 << 28
"""Bytes of a decoded body."""
TURN_HEADER = "x-replay-turn"
"""Which recorded answer a request of a session wants, where its history was cut and no longer tells."""
JSON_REPLY: Headers = (("Content-Type", "application/json"),)
REFUSALS = {404: "Unknown request URL: {} {}.", 405: "Not allowed: {} {}."}


@dataclass(slots=True)
class Received:
    """One request as it arrived. `usage`, `violation` and `outcome` are filled in as it is served."""

    method: str
    target: str
    headers: CIMultiDictProxy[str]
    body: bytes
    """The very bytes on the wire, encoded as the client encoded them."""
    json: Any = None
    """What the body says, where it is JSON."""
    violation: Violation | None = None
    usage: Usage | None = None
    outcome: Literal["open", "finished", "aborted", "cancelled"] = "open"
    """`aborted` by a script's order, `cancelled` because the client went away."""
    sent: int = 0
    """Bytes of the body written so far."""

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]

    @property
    def credential(self) -> str:
        """The bearer token, "" where there is none."""
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    @property
    def model(self) -> str:
        """The model asked for, "" where none is named."""
        model = self.json.get("model") if isinstance(self.json, dict) else None
        return model if isinstance(model, str) else ""


Script = Callable[[Received], Answer | None]
"""Decides the answer to a request; None leaves it to the provider."""


@dataclass
class Provider:
    """A strict OpenAI-compatible provider. Sessions play back by credential; a script may answer instead."""

    prices: Callable[[str], Prices]
    count: Count
    answer: Script | None = None
    models: Sequence[str] = ()
    default: Say = field(default_factory=lambda: Say("Understood."))
    keep: int = 100
    """How many requests are remembered, with all that they carried."""
    requests: deque[Received] = field(init=False)

    def __post_init__(self) -> None:
        self.requests = deque(maxlen=self.keep)
        self._read = PromptReader(self.count)
        self._cache = PromptCache(self.count)
        self._sessions: dict[str, tuple[Json, ...]] = {}
        self._prices = lru_cache(maxsize=256)(self.prices)

    def play(self, credential: str, messages: Sequence[Json]) -> None:
        """Answer this credential with the assistant messages of a recorded session, one after the other."""
        self._sessions[credential] = tuple(m for m in messages if m["role"] == "assistant")

    def reply(self, received: Received) -> Reply | Abort:
        """The answer to a request. A violation is answered whatever a script would have the model say."""
        self.requests.append(received)
        prompt = self._judge(received) if (received.method, received.path) == CHAT else None
        answer = self.answer(received) if self.answer else None
        match answer or self._own_answer(received):
            case Abort() as abort:
                return abort
            case Reflect(wire):
                return travelling(200, JSON_REPLY, (_reflection(received),), wire)
            case Send() as send:
                return _sent(send)
            case Say() as say:
                return self._say(received, prompt, say)

    def _judge(self, received: Received) -> Prompt | None:
        """Note what the body says and why it is refused; the prompt where it is not."""
        try:
            received.json = jsontext.read(_decoded(received))
            received.violation = violations(received.json, self._rule(received.model))
            prompt = None if received.violation else self._read(received.json)
        except jsontext.NotJSONError:
            received.violation = Violation("The body of the request could not be read as JSON.")
            return None
        window = self._prices(received.model).window
        if prompt is not None and window is not None and prompt.tokens > window:
            received.violation = _overflow(prompt.tokens, window)
        return prompt

    def _rule(self, model: str) -> CacheRule:
        """By the model whose prices are taken: a replay may give one model's requests another's prices."""
        prices = self._prices(model)
        return rule_for(prices.model or model, prices)

    def _say(self, received: Received, prompt: Prompt | None, say: Say) -> Reply:
        if received.violation is not None:
            return travelling(400, JSON_REPLY, (received.violation.body(),), say.wire)
        if prompt is None:
            return _refused(404, received)
        owner = f"{received.credential}\0{received.model}"
        usage = self._cache.charge(owner, prompt, self._rule(received.model))
        received.usage = replace(usage, completion=self._said(say) * (received.json.get("n") or 1))
        return spoken(say, received.json, received.usage, received.body)

    def _said(self, say: Say) -> int:
        called = chain.from_iterable(map(call_texts, say.calls))
        return sum(map(self.count, (say.content or "", *called)))

    def _own_answer(self, received: Received) -> Answer:
        """What the provider answers by itself: the models, the recorded session, or a fixed sentence."""
        if (received.method, received.path) == MODELS:
            return Send(body=_models(self.models))
        if (received.method, received.path) != CHAT:
            known = received.path in (CHAT[1], MODELS[1])
            return _refusal(405 if known else 404, received)
        return self.default if received.violation else self._recorded(received)

    def _recorded(self, received: Received) -> Say:
        session = self._sessions.get(received.credential, ())
        turn = received.headers.get(TURN_HEADER, "")
        answered = sum(1 for message in received.json["messages"] if message["role"] == "assistant")
        k = int(turn) if turn.isdecimal() else answered
        if k >= len(session):
            return self.default
        return Say(_text(session[k].get("content")), tuple(session[k].get("tool_calls") or ()))


def _text(content: Any) -> str | None:
    """What a recorded message says: an answer has no parts."""
    return "".join(part.get("text", "") for part in content) if isinstance(content, list) else content


def _decoded(received: Received) -> bytes:
    encoding = received.headers.get("Content-Encoding", "identity").lower()
    if encoding == "identity":
        return received.body
    try:
        return undone(received.body, encoding, LARGEST)
    except (KeyError, ValueError) as error:
        raise jsontext.NotJSONError(f"cannot decode {encoding}") from error


def _overflow(tokens: int, window: int) -> Violation:
    said = f"This model's context window is {window} tokens, and the messages and tools hold {tokens}."
    return Violation(said, "messages", "context_length_exceeded")


def _refusal(status: int, received: Received) -> Send:
    message = REFUSALS[status].format(received.method, received.path)
    return Send(status, error_body(message, code="unknown_url"))


def _refused(status: int, received: Received) -> Reply:
    return _sent(_refusal(status, received))


def _sent(send: Send) -> Reply:
    if isinstance(send.body, bytes):
        return travelling(send.status, send.headers, (send.body,), send.wire, sized=not _framed_by(send.headers))
    return Reply(send.status, (*send.headers, *send.wire.headers), send.body, send.wire)


def _framed_by(headers: Headers) -> bool:
    """Whether a script says itself how long the body is."""
    return any(name.lower() in ("content-length", "transfer-encoding") for name, _ in headers)


def _reflection(received: Received) -> bytes:
    return jsontext.write(
        {
            "method": received.method,
            "target": received.target,
            "headers": [list(pair) for pair in received.headers.items()],
            "body": received.body.decode("latin-1"),
        }
    )


def _models(names: Sequence[str]) -> bytes:
    rows = [{"id": name, "object": "model", "created": CREATED, "owned_by": "narrows"} for name in names]
    return jsontext.write({"object": "list", "data": rows})


# --- the shell ---


class Running:
    """A provider that listens; stop it, or use it as an asynchronous context."""

    def __init__(self, runner: web.ServerRunner, host: str) -> None:
        self._runner = runner
        self.host = host
        self.port = int(runner.addresses[0][1])

    @property
    def url(self) -> str:
        """What a client takes as its `base_url`."""
        return f"http://{self.host}:{self.port}/v1"

    async def stop(self) -> None:
        """Close every connection and the port."""
        await self._runner.cleanup()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


LARGE_HEAD = 1 << 20


async def start(provider: Provider, host: str = "127.0.0.1", port: int = 0) -> Running:
    """Serve the provider; port 0 takes a free one."""
    server = web.Server(
        _Shell(provider),
        handler_cancellation=True,  # so that a client that leaves is seen at once
        auto_decompress=False,  # what is kept are the bytes on the wire
        access_log=None,
        max_line_size=LARGE_HEAD,
        max_field_size=LARGE_HEAD,
        max_headers=10_000,
    )
    runner = web.ServerRunner(server, shutdown_timeout=0.2)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return Running(runner, host)


class _Shell:
    """One request in, the bytes of its reply out."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        received = Received(request.method, request.raw_path, request.headers, await request.content.read())
        try:
            return await self._serve(request, received)
        except (asyncio.CancelledError, ConnectionError):
            if received.outcome == "open":
                received.outcome = "cancelled"
            raise

    async def _serve(self, request: web.BaseRequest, received: Received) -> web.StreamResponse:
        reply = self._provider.reply(received)
        await _wait(reply.wire)
        if isinstance(reply, Abort):
            return await _cut_off(request, received)
        response = web.StreamResponse(status=reply.status, headers=CIMultiDict(reply.headers))
        await response.prepare(request)
        await _write(response, reply.body, received)
        if reply.wire.die_at is not None:
            return await _cut_off(request, received, response)
        await response.write_eof()
        received.outcome = "finished"
        return response


async def _wait(wire: Wire) -> None:
    if wire.delay:
        await asyncio.sleep(wire.delay)
    if wire.gate is not None:
        await wire.gate()


async def _write(
    response: web.StreamResponse, body: Sequence[bytes] | AsyncIterable[bytes], received: Received
) -> None:
    if not isinstance(body, AsyncIterable):
        for part in body:
            await _write_one(response, part, received)
        return
    async with AsyncExitStack() as stack:
        if isinstance(body, AsyncGenerator):
            stack.push_async_callback(body.aclose)
        async for part in body:
            await _write_one(response, part, received)


async def _write_one(response: web.StreamResponse, part: bytes, received: Received) -> None:
    if part:
        await response.write(part)
        received.sent += len(part)
        await asyncio.sleep(0)  # so that what is read together was not always written together


async def _cut_off(
    request: web.BaseRequest, received: Received, response: web.StreamResponse | None = None
) -> web.StreamResponse:
    """Cut the connection once what was written has left."""
    received.outcome = "aborted"
    transport = request.transport
    # asyncio has no event for an empty write buffer
    while transport is not None and transport.get_write_buffer_size():  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    if transport is not None:
        transport.abort()
    return response or web.Response()
