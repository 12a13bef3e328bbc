"""The walk of one request, from its head to the record of what became of it.

Laws
  A chat request is read, prepared and forwarded; everything else under /v1 is relayed as it comes, both ways.
  What the upstream sends is passed on at once and unchanged; what reads the reply reads a copy.
  A reply that breaks off breaks off for the client too: no invented finish_reason, no [DONE], no clean end.
  A client that leaves takes its upstream call with it.
"""

import asyncio
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from proxy.compaction import Incoming
from proxy.config import Settings
from proxy.downstream import (
    Relayed,
    Upload,
    conversation_of,
    credential_of,
    encoding_of,
    is_local,
    mode_of,
    plain_body,
    received,
    shaped,
    tenant_of,
    too_large,
)
from proxy.sse import Copy
from proxy.telemetry import Exchange, Telemetry
from proxy.upstream import (
    Answer,
    CutError,
    ShapedError,
    Target,
    Upstream,
    readable_encodings,
    request_headers,
)

DIALECTS: Mapping[str, str] = MappingProxyType({"/v1/chat/completions": "openai_chat"})
"""The paths that are compacted, and the API that is spoken there."""

_FAREWELL_SECONDS = 2.0
_AS_SENT = frozenset({"content-length"})
_OF_THE_BYTES = frozenset({"content-encoding", "content-md5", "digest", "content-digest"})


class Prepared(Protocol):
    """What goes upstream instead, and what the reply's x-narrows-* headers say about it."""

    @property
    def body(self) -> bytes: ...

    @property
    def headers(self) -> Mapping[str, str]: ...


class Reader(Protocol):
    """Sees each raw event of a reply, or the whole of a JSON reply, and changes nothing."""

    def feed(self, event: bytes, /) -> None: ...


P = TypeVar("P", bound=Prepared)
R = TypeVar("R", bound=Reader)


class Compaction(Protocol[P, R]):
    """What the walk needs of compaction. It fails open: none of this raises."""

    async def prepare(self, incoming: Incoming, /) -> P: ...

    def reply(self, prepared: P, /) -> R: ...

    async def record(self, prepared: P, reader: R, status: int, ms: float, /) -> None:
        """`status` is the upstream's, 0 where no reply came."""


@dataclass(frozen=True, slots=True)
class Bypassed:
    """A request that goes on as it came."""

    body: bytes
    headers: Mapping[str, str]


class Blind:
    """A reader that looks at nothing."""

    def feed(self, _: bytes, /) -> None:
        """Let it go by."""


class Bypass:
    """What `mode = off` makes of compaction: it plans nothing, remembers nothing and needs no store."""

    _headers: Mapping[str, str] = MappingProxyType({"x-narrows-mode": "bypassed", "x-narrows-prefix": "bypassed"})

    async def prepare(self, incoming: Incoming, /) -> Bypassed:
        """The client's own bytes."""
        return Bypassed(incoming.body, self._headers)

    def reply(self, _: Bypassed, /) -> Blind:
        """Nobody reads it."""
        return Blind()

    async def record(self, prepared: Bypassed, reader: Blind, status: int, ms: float, /) -> None:
        """Nothing to remember."""


class Gateway(Generic[P, R]):
    """Answers every request that reaches Narrows."""

    def __init__(
        self,
        settings: Settings,
        upstream: Upstream,
        compaction: Compaction[P, R],
        telemetry: Telemetry,
        secret: bytes,
    ) -> None:
        self._settings = settings
        self._upstream = upstream
        self._compaction = compaction
        self._telemetry = telemetry
        self._secret = secret
        self._running: set[asyncio.Task[Any]] = set()
        telemetry.metrics.running.set_function(lambda: len(self._running))
        self._ending = False
        self._pages = {"/healthz": self._health, "/readyz": self._readiness, "/metrics": self._metrics}
        self.ready = True

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        exchange = Exchange(request.method)
        began = perf_counter()
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            return await self._answer(request, exchange)
        finally:
            self._running.discard(task)
            exchange.ms = _ms_since(began)
            self._telemetry.exchange(exchange)

    @property
    def running(self) -> int:
        """How many requests are being answered."""
        return len(self._running)

    async def drain(self, grace: float) -> None:
        """Not ready from now on; what runs has `grace` seconds to finish and is then ended, and told so."""
        self.ready = False
        now = asyncio.get_running_loop().time
        until = now() + grace
        while self._running and (left := until - now()) > 0:
            await asyncio.wait(self._running, timeout=left)
        self._ending = True
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running, timeout=_FAREWELL_SECONDS)

    async def _answer(self, request: web.BaseRequest, exchange: Exchange) -> web.StreamResponse:
        try:
            return await self._walk(request, exchange)
        except ShapedError as error:
            refusal = error
        except asyncio.CancelledError:
            if not self._ending:
                exchange.status, exchange.trouble = 499, "client_left"
                raise
            refusal = _shutting_down()
        except ConnectionError:  # writing to a client that has left
            exchange.status, exchange.trouble = 499, "client_left"
            raise
        except Exception as error:
            self._telemetry.log.error("unexpected", error=type(error).__name__, exc_info=error)
            refusal = ShapedError(500, "Narrows failed on this request; its log says why.", "narrows_failed")
        exchange.status, exchange.trouble = refusal.status, refusal.code
        response = shaped(refusal)
        if not request.content.is_eof():
            response.force_close()
        return response

    async def _walk(self, request: web.BaseRequest, exchange: Exchange) -> web.StreamResponse:
        if request.method == "CONNECT":
            raise ShapedError(405, "Narrows is not a forward proxy; set it as base_url.", "not_a_proxy")
        target = Target.read(request.raw_path)
        if target.path in self._pages:
            exchange.route = "page"
            response = self._pages[target.path](request)
            exchange.status = response.status
            return response
        if target.rest is None:
            raise ShapedError(404, "There is nothing here; the API is under /v1.", "not_found")
        if "websocket" in request.headers.get("Upgrade", "").lower():
            raise ShapedError(501, "Websockets are not relayed; connect to the upstream.", "no_websockets")
        if request.method == "POST" and target.path in DIALECTS:
            return await self._chat(request, target, exchange)
        return await self._relay(request, target, exchange)

    async def _chat(self, request: web.BaseRequest, target: Target, exchange: Exchange) -> web.StreamResponse:
        """Read, prepare, forward, relay, record."""
        exchange.route = "chat"
        arrived = perf_counter()
        incoming, raw = await self._take_in(request, target, exchange)
        exchange.tenant = incoming.tenant
        began = perf_counter()
        prepared = await self._compaction.prepare(incoming)
        exchange.added_ms = _ms_since(began)
        exchange.heed(prepared.headers)
        same = prepared.body is incoming.body or prepared.body == incoming.body
        headers = request_headers(request.raw_headers, _AS_SENT if same else _AS_SENT | _OF_THE_BYTES)
        readable_encodings(headers)
        reader = self._compaction.reply(prepared)
        try:
            body = raw if same else prepared.body
            async with self._upstream.send("POST", target.rest or "", headers, body) as answer:
                exchange.status = answer.status
                copy = Copy(reader.feed, answer.kind, answer.encoding, self._settings.body_limit)
                response = await self._pass_on(request, answer, exchange, prepared.headers, copy)
                exchange.unread = copy.trouble
                return response
        finally:
            await self._compaction.record(prepared, reader, exchange.status, _ms_since(arrived))

    async def _relay(self, request: web.BaseRequest, target: Target, exchange: Exchange) -> web.StreamResponse:
        """Everything that is not chat: bytes in, bytes out."""
        exchange.route = "relay"
        headers = request_headers(request.raw_headers)
        upload = Upload(request, self._settings.body_timeout) if request.body_exists else None
        try:
            async with self._upstream.send(request.method, target.rest or "", headers, upload) as answer:
                exchange.status = answer.status
                return await self._pass_on(request, answer, exchange, {}, None)
        except ShapedError as error:
            raise (upload and upload.fault) or error from None
        finally:
            exchange.received = upload.size if upload else 0

    async def _pass_on(
        self,
        request: web.BaseRequest,
        answer: Answer,
        exchange: Exchange,
        added: Mapping[str, str],
        copy: Copy | None,
    ) -> web.StreamResponse:
        """Send the reply on as it comes, and show the copy what was sent."""
        response = await Relayed.begin(request, answer, added)
        try:
            async for chunk in answer.chunks():
                await response.write(chunk)
                exchange.replied += len(chunk)
                if copy is not None:
                    copy.feed(chunk)
            if copy is not None and not copy.close() and not answer.delimited:
                raise CutError("The upstream ended its reply in the middle.")
        except CutError as error:
            exchange.trouble = "upstream_cut"
            await response.break_off(request, copy, ShapedError(502, str(error), exchange.trouble))
        except asyncio.CancelledError:
            if not self._ending:
                raise
            exchange.trouble = "shutting_down"
            await response.break_off(request, copy, _shutting_down())
        else:
            await response.write_eof()
        return response

    async def _take_in(self, request: web.BaseRequest, target: Target, exchange: Exchange) -> tuple[Incoming, bytes]:
        """The chat request, and its body as it was on the wire."""
        mode = mode_of(request.headers.getall("x-narrows", ()), self._settings.mode)
        encoding = encoding_of(request)
        conversation = conversation_of(request)
        raw = await self._read(request, exchange)
        plain = await plain_body(raw, encoding, self._settings.body_limit) if encoding else raw
        credential = credential_of(request)
        tenant = self._settings.tenant or tenant_of(request, credential, self._secret)
        dialect = DIALECTS[target.path]
        return Incoming(dialect, plain, tenant, conversation, mode, credential), raw

    async def _read(self, request: web.BaseRequest, exchange: Exchange) -> bytes:
        limit = self._settings.body_limit
        if (request.content_length or 0) > limit:
            raise too_large(limit)
        pieces = []
        async for piece in received(request, self._settings.body_timeout):
            pieces.append(piece)
            exchange.received += len(piece)
            if exchange.received > limit:
                raise too_large(limit)
        return b"".join(pieces)

    def _health(self, _: web.BaseRequest) -> web.Response:
        return web.json_response({"status": "ok"})

    def _readiness(self, _: web.BaseRequest) -> web.Response:
        if self.ready:
            return web.json_response({"status": "ready"})
        return web.json_response({"status": "shutting down"}, status=503)

    def _metrics(self, request: web.BaseRequest) -> web.Response:
        token = self._settings.metrics_token
        given = credential_of(request).encode()
        if not is_local(request) and not (token and hmac.compare_digest(given, token.get_secret_value().encode())):
            raise ShapedError(403, "Metrics are for loopback or the `metrics_token`.", "forbidden")
        return web.Response(body=self._telemetry.metrics.page(), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _shutting_down() -> ShapedError:
    return ShapedError(503, "Narrows is shutting down; ask again.", "shutting_down")


def _ms_since(began: float) -> float:
    return (perf_counter() - began) * 1000
