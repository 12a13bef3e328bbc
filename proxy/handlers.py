"""The walk of one request, from its head to the record of what became of it.

Laws
  A chat request is read, prepared and forwarded; everything else under /v1 is relayed as it comes, both ways.
  What the upstream sends is passed on at once and unchanged; what reads the reply reads a copy.
  A reply that breaks off breaks off for the client too: no invented finish_reason, no [DONE], no clean end.
  A client that leaves takes its upstream call with it.
  Where a client was told to wait its response has begun: whatever goes wrong afterwards is told in the stream.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from functools import partial
from time import perf_counter
from types import MappingProxyType
from typing import Any

from aiohttp import web

from policies.dialects import DIALECTS as POLICIES
from policies.dialects import Reply
from proxy.compaction import Prepared
from proxy.config import Settings
from proxy.downstream import (
    Early,
    Relayed,
    Response,
    Upload,
    auth_of,
    conversation_of,
    credential_of,
    encoding_of,
    mode_of,
    plain_body,
    received,
    shaped,
    tenant_of,
    too_large,
)
from proxy.outgoing import Incoming
from proxy.pages import Pages
from proxy.retrieval import STREAM, Ask, Compaction, FailedError, Retrieval
from proxy.rolling import Waiting
from proxy.sse import ENCODINGS, Copy
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
_READABLE = frozenset({"", *ENCODINGS})
_ONCE = frozenset({"idempotency-key", "x-idempotency-key"})
"""What names a request: each round of a reply is another one."""


class Bypass:
    """What `mode = off` makes of compaction: it plans nothing, remembers nothing and needs no store."""

    async def prepare(self, incoming: Incoming, waiting: Waiting | None = None, /) -> Prepared:
        """The client's own bytes."""
        return Prepared(incoming.body, {"x-narrows-mode": "bypassed", "x-narrows-prefix": "bypassed"})

    def reply(self, prepared: Prepared, /) -> Reply:
        """Nobody asks what it read."""
        return POLICIES[prepared.dialect].reply(None)

    async def again(self, prepared: Prepared, reply: Reply, choice: int, /) -> Prepared:
        """Nothing is recalled."""
        return prepared

    async def keep(self, prepared: Prepared, reply: Reply, choice: int, /) -> None:
        """Nothing was recalled."""

    async def record(self, prepared: Prepared, reply: Reply, status: int, /) -> None:
        """Nothing to remember."""


class Gateway:
    """Answers every request that reaches Narrows."""

    def __init__(
        self,
        settings: Settings,
        upstream: Upstream,
        compaction: Compaction,
        telemetry: Telemetry,
        secret: bytes,
        pages: Pages,
    ) -> None:
        self._settings = settings
        self._upstream = upstream
        self._compaction = compaction
        self._telemetry = telemetry
        self._secret = secret
        self._pages = pages
        self._tells = settings.summary_comments and settings.summary_wait > 0
        self._running: set[asyncio.Task[Any]] = set()
        telemetry.metrics.running.set_function(lambda: len(self._running))
        self._ending = False

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
        self._pages.ready = False
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
        early = Early(request)
        try:
            return await self._walk(request, exchange, early)
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
        exchange.trouble = refusal.code
        if early.prepared:
            exchange.status = early.status
            await early.break_off(request, _between_events, refusal)
            return early
        exchange.status = refusal.status
        response = shaped(refusal)
        if not request.content.is_eof():
            response.force_close()
        return response

    async def _walk(self, request: web.BaseRequest, exchange: Exchange, early: Early) -> web.StreamResponse:
        if request.method == "CONNECT":
            raise ShapedError(405, "Narrows is not a forward proxy; set it as base_url.", "not_a_proxy")
        target = Target.read(request.raw_path)
        if self._pages.has(target.path):
            exchange.route = "page"
            response = await self._pages.answer(request, target.path)
            exchange.status = response.status
            return response
        if target.rest is None:
            raise ShapedError(404, "There is nothing here; the API is under /v1.", "not_found")
        if "websocket" in request.headers.get("Upgrade", "").lower():
            raise ShapedError(501, "Websockets are not relayed; connect to the upstream.", "no_websockets")
        if request.method == "POST" and target.path in DIALECTS:
            return await self._chat(request, target, exchange, early)
        return await self._relay(request, target, exchange)

    async def _chat(
        self, request: web.BaseRequest, target: Target, exchange: Exchange, early: Early
    ) -> web.StreamResponse:
        """Read, prepare, forward, relay, record."""
        exchange.route = "chat"
        incoming, raw = await self._take_in(request, target, exchange)
        exchange.tenant = incoming.tenant
        began = perf_counter()
        prepared = await self._compaction.prepare(incoming, early.waiting if self._tells else None)
        exchange.added_ms = _ms_since(began)
        exchange.heed(prepared.headers)
        await early.declare(prepared.headers)
        ask = self._asker(request, target, incoming, raw, early.prepared)
        retrieval = Retrieval(self._compaction, ask, prepared)
        try:
            async with ask(prepared, 0) as answer:
                exchange.status = retrieval.status = answer.status
                if early.prepared:
                    return await self._go_on(request, answer, exchange, retrieval, early)
                if retrieval.looks and answer.status == 200 and answer.coding in _READABLE:
                    return await self._retrieve(request, answer, exchange, retrieval)
                copy = Copy(retrieval.reply.feed, answer.kind, answer.encoding, self._settings.body_limit)
                pieces, amid = _watched(answer, copy), partial(getattr, copy, "amid")
                relayed = await Relayed.begin(request, answer, prepared.headers)
                response = await self._pass_on(request, relayed, exchange, pieces, amid)
                exchange.unread = copy.trouble
                return response
        finally:
            exchange.rounds = retrieval.rounds
            await self._compaction.record(retrieval.prepared, retrieval.reply, retrieval.status)

    def _asker(self, request: web.BaseRequest, target: Target, incoming: Incoming, raw: bytes, begun: bool) -> Ask:
        """How this client's requests go upstream: as it sent them where nothing is to change."""

        def ask(prepared: Prepared, round_: int) -> AbstractAsyncContextManager[Answer]:
            same = prepared.body is incoming.body or prepared.body == incoming.body
            headers = request_headers(request.raw_headers, _AS_SENT if same else _AS_SENT | _OF_THE_BYTES)
            readable_encodings(headers, plain=begun or prepared.exchanged is not None)
            for name in _ONCE.intersection(map(str.lower, headers)) if round_ else ():
                headers[name] = f"{headers[name]}-{round_}"
            return self._upstream.send("POST", target.rest or "", headers, raw if same else prepared.body)

        return ask

    async def _retrieve(
        self, request: web.BaseRequest, answer: Answer, exchange: Exchange, retrieval: Retrieval
    ) -> web.StreamResponse:
        """Pass on a reply in which recall calls may have to be answered."""
        added = retrieval.prepared.headers
        if _streams(answer, retrieval.prepared):
            answer.rewritten()
            relayed = await Relayed.begin(request, answer, added)
            return await self._pass_on(request, relayed, exchange, retrieval.events(answer), _between_events)
        try:
            head, body = await retrieval.whole(answer)
        except CutError as error:
            raise ShapedError(502, str(error), "upstream_cut") from error
        exchange.status = head.status
        head.rewritten(len(body))
        relayed = await Relayed.begin(request, head, added)
        return await self._pass_on(request, relayed, exchange, _once(body), None)

    async def _go_on(
        self, request: web.BaseRequest, answer: Answer, exchange: Exchange, retrieval: Retrieval, early: Early
    ) -> web.StreamResponse:
        """Pass on a reply to a client that was told to wait, and has a head already."""
        if answer.status != 200 or not _streams(answer, retrieval.prepared) or answer.coding not in _READABLE:
            raise await retrieval.refusal(answer)
        return await self._pass_on(request, early, exchange, retrieval.events(answer, amid=True), _between_events)

    async def _relay(self, request: web.BaseRequest, target: Target, exchange: Exchange) -> web.StreamResponse:
        """Everything that is not chat: bytes in, bytes out."""
        exchange.route = "relay"
        headers = request_headers(request.raw_headers)
        upload = Upload(request, self._settings.body_timeout) if request.body_exists else None
        try:
            async with self._upstream.send(request.method, target.rest or "", headers, upload) as answer:
                exchange.status = answer.status
                relayed = await Relayed.begin(request, answer, {})
                return await self._pass_on(request, relayed, exchange, answer.chunks(), None)
        except ShapedError as error:
            raise (upload and upload.fault) or error from None
        finally:
            exchange.received = upload.size if upload else 0

    async def _pass_on(
        self,
        request: web.BaseRequest,
        response: Response,
        exchange: Exchange,
        pieces: AsyncGenerator[bytes, None],
        amid: Callable[[], bool] | None,
    ) -> web.StreamResponse:
        """Send the reply on as it comes. `amid` tells whether the client has half an event; None where it cannot be
        told in words that a reply breaks off."""
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    await response.write(piece)
                    exchange.replied += len(piece)
        except CutError as error:
            exchange.trouble = "upstream_cut"
            await response.break_off(request, amid, ShapedError(502, str(error), exchange.trouble))
        except ShapedError as error:
            if isinstance(error, FailedError):
                self._telemetry.log.error("unexpected", error=error.code, exc_info=error.__cause__)
            exchange.trouble = error.code
            await response.break_off(request, amid, error)
        except asyncio.CancelledError:
            if not self._ending:
                raise
            exchange.trouble = "shutting_down"
            await response.break_off(request, amid, _shutting_down())
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
        tenant = tenant_of(request, credential, self._secret, self._settings.tenant)
        dialect = DIALECTS[target.path]
        return Incoming(dialect, plain, tenant, conversation, mode, credential, auth_of(request)), raw

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


async def _watched(answer: Answer, copy: Copy) -> AsyncGenerator[bytes, None]:
    """The reply as it comes, each piece shown to the copy once it was sent."""
    async for piece in answer.chunks():
        yield piece
        copy.feed(piece)
    if not copy.close() and not answer.delimited:
        raise CutError("The upstream ended its reply in the middle.")


def _streams(answer: Answer, prepared: Prepared) -> bool:
    """Whether the reply is one of events, whatever it is called."""
    return answer.kind == STREAM or (prepared.streams and answer.kind != "application/json")


def _between_events() -> bool:
    """Only whole events were sent."""
    return False


async def _once(body: bytes) -> AsyncGenerator[bytes, None]:
    yield body


def _shutting_down() -> ShapedError:
    return ShapedError(503, "Narrows is shutting down; ask again.", "shutting_down")


def _ms_since(began: float) -> float:
    return (perf_counter() - began) * 1000
