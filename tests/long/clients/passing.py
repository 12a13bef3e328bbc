"""What passes between client and Narrows, and what is asked of it.

A reply's prefix says what the provider's cache must have had at least:

  extended   the whole prompt of the request before
  tail-cut   what that one had found there: only what was new in it was shortened
  else       the prefix was moved, and said so
"""

import json
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from policies.money.prices import Usage
from policies.tools import RECALL, SEARCH
from proxy.lab.provider import Provider, Received
from proxy.lab.provider.signatures import REASONING, THINKING, seal
from tests.long.clients.task import brings_tools, tools_of

STEP = 128
"""Tokens by which a cache may be behind: OpenAI's grows in such steps."""
SMALLEST = 1024
"""Tokens of the smallest prompt that these providers cache."""
HOP_BY_HOP = ("Host", "Connection", "Transfer-Encoding", "Content-Length")
SEALED = {"anthropic_messages": THINKING, "openai_responses": REASONING}
"""In which APIs what a model thought travels, and as what it is sealed."""
ENDS = {
    "openai_chat": b"data: [DONE]",
    "openai_responses": b"event: response.completed",
    "anthropic_messages": b"event: message_stop",
}
"""What a whole stream ends with, or with its data."""
_SEAL = re.compile(rb'"(?:signature|encrypted_content)":\s*"([^"]+)"')


@dataclass(frozen=True, slots=True)
class Heard:
    """A reply as the client got it, and how many requests of the task the provider had had before."""

    sent: Mapping[str, str]
    """The headers of the request."""
    headers: Mapping[str, str]
    raw: bytes
    before: int
    tools: Sequence[object]
    """What the client brought."""

    @property
    def prefix(self) -> str:
        return self.headers.get("x-narrows-prefix", "")

    @property
    def edits(self) -> str:
        return self.headers.get("x-narrows-edits", "")

    @property
    def is_stream(self) -> bool:
        return self.headers.get("Content-Type", "").startswith("text/event-stream")


@dataclass(slots=True)
class Ear:
    """Stands between client and Narrows, and keeps what passes."""

    provider: Provider
    target: str
    """Where Narrows listens."""
    heard: list[Heard] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    """Replies that ended before their end."""

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """The base_url for the client."""
        async with aiohttp.ClientSession(auto_decompress=False) as http:
            runner = web.ServerRunner(web.Server(partial(self._pass, http)))
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            yield f"http://127.0.0.1:{site.port}/v1"
            await runner.cleanup()

    async def _pass(self, http: aiohttp.ClientSession, request: web.BaseRequest) -> web.StreamResponse:
        body, before = await request.read(), len(task(self.provider))
        headers = [(name, value) for name, value in request.headers.items() if name not in HOP_BY_HOP]
        url = self.target.removesuffix("/v1") + request.raw_path
        async with http.request(request.method, url, data=body, headers=headers) as reply:
            headers = [(name, value) for name, value in reply.headers.items() if name not in HOP_BY_HOP]
            response = web.StreamResponse(status=reply.status, headers=CIMultiDict(headers))
            await response.prepare(request)
            raw = bytearray()
            try:
                async for piece in reply.content.iter_any():
                    raw += piece
                    await response.write(piece)
            except aiohttp.ClientError as error:
                self.cut.append(f"{request.path}: {error}")
        if body and (tools := json.loads(body).get("tools")):
            self.heard.append(Heard(request.headers, reply.headers, bytes(raw), before, tools))
        return response


def task(provider: Provider) -> list[Received]:
    """The requests of the task that the provider had."""
    return [received for received in provider.requests if brings_tools(received)]


def owed(prefix: str, before: Usage | None) -> int:
    """Tokens that must have been in the cache, by what Narrows declared and what the provider billed just before."""
    if before is None or before.prompt < SMALLEST:
        return 0
    return {"extended": before.prompt, "tail-cut": before.cached}.get(prefix, 0)


def promises(heard: Iterable[Heard], requests: Sequence[Received]) -> Iterable[str]:
    """What was declared and not held; each request printed."""
    declared = {each.before: each for each in heard}
    print(f"{'request':>7} {'prompt':>7} {'cached':>7} {'owed':>7}  prefix", flush=True)
    before: Usage | None = None
    lists = [json.dumps(received.json["tools"]) for received in requests]
    for number, received in enumerate(requests):
        usage = received.usage or Usage(0, 0, 0, 0)
        reply = declared.get(number)
        # a further round of the same reply; in chat completions what a search has found is at the end of the list
        prefix = reply.prefix if reply else "extended" if lists[number] == lists[number - 1] else "other tools"
        due = owed(prefix, before)
        line = f"{prefix:18} {reply.edits}" if reply else f"{prefix:18} recall"
        print(f"{number + 1:7} {usage.prompt:7} {usage.cached:7} {due:7}  {line}", flush=True)
        if usage.cached <= due - STEP:
            yield f"request {number + 1}: {prefix} was declared, {usage.cached} were cached, {due} owed"
        marked = usage.cached + usage.written
        # what a further round adds behind the marks is written by the next request
        before = replace(usage, prompt=marked) if not reply and usage.written else usage
        if not marked and received.dialect == "anthropic_messages":
            before = None  # a first request gets no mark of Narrows: nothing says that there is a second


def refused(requests: Iterable[Received]) -> Iterable[str]:
    """What the provider found wrong."""
    return (f"{r.method} {r.path} was refused: {r.violation}" for r in requests if r.violation)


def unseen(hides: bool, heard: Sequence[Heard], requests: Sequence[Received]) -> Iterable[str]:
    """What did not happen, or was heard though it should not be."""
    seen = {"extended": any(each.prefix == "extended" for each in heard)}
    if hides:
        seen |= {"edit": any(each.edits for each in heard), "recall": len(requests) > len(heard)}
    yield from (f"there was no {what}" for what, happened in seen.items() if not happened)
    yield from ("the client heard of a recall" for each in heard if RECALL.encode() in each.raw)
    yield from ("a reply declared no prefix" for each in heard if not each.prefix)


def undeferred(heard: Sequence[Heard], requests: Sequence[Received], looked: int) -> Iterable[str]:
    """What of the deferral did not happen, or was heard though it should not be."""
    brought, sent = heard[0].tools, requests[0].json["tools"]
    shown = len(tools_of(requests[0]))
    print(f"{len(brought)} definitions, of which {shown} were shown at first; {looked} searches", flush=True)
    if "tool_search" in json.dumps(brought):  # its model searches by itself
        yield from [] if sent[: len(brought)] == brought and not looked else ["its own search was changed"]
        return
    yield from ["no definition was deferred"] if shown >= len(brought) else []
    yield from [] if looked else ["there was no search"]
    words = (SEARCH, "tool_search", "tool_reference", "defer_loading", '"namespace"')
    yield from (f"the client heard of {word}" for word in words for each in heard if word.encode() in each.raw)


def broken(dialect: str, streams: bool, ear: Ear) -> Iterable[str]:
    """Streams without an end, and replies in a form that was not asked for."""
    yield from (f"a reply was cut off: {cut}" for cut in ear.cut)
    for number, each in enumerate(ear.heard, 1):
        if each.is_stream != streams:
            yield f"reply {number} {'streams' if each.is_stream else 'does not stream'}"
        if each.is_stream and ENDS[dialect] not in each.raw:
            yield f"the stream of reply {number} has no end"


def lost(dialect: str, thoughts: Sequence[str], requests: Sequence[Received]) -> Iterable[str]:
    """Whether what the model thought, in hidden rounds too, is not in the last request, each in its place."""
    kinds = {kind for name, kind in SEALED.items() if name == dialect}
    sealed = [seal(kind, thought) for thought in thoughts for kind in kinds]
    last = requests[-1].body if requests else b""
    if [seal_.decode() for seal_ in _SEAL.findall(last)] != sealed[:-1]:
        yield "thoughts were lost, or stand elsewhere"
