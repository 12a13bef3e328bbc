"""The walk of one request, from its head to the record of what became of it.

Laws
  A chat request is read, prepared and forwarded; so is one that asks for its tokens, and nothing remembers that one;
  everything else under /v1 is relayed as it comes, both ways.
  What the upstream sends is passed on at once and unchanged; what reads the reply reads a copy.
  A reply that breaks off breaks off for the client too: no invented finish_reason, no [DONE], no clean end.
  Where a client was told to wait its response has begun: whatever goes wrong afterwards is told in the stream.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from functools import partial
from time import perf_counter

from aiohttp import web

from policies.dialects import DIALECTS, Reply
from proxy.compaction.prepare import UpstreamRequest
from proxy.config import Settings
from proxy.config.routes import Route
from proxy.errors import ApiError, FailedError, internal_error, shutting_down
from proxy.gateway.bodies import Upload
from proxy.gateway.downstream import Early, Relayed, Response, shaped
from proxy.gateway.recall_loop import STREAM, Ask, Compaction, Retrieval
from proxy.gateway.request_options import asked, chosen, conversation_of
from proxy.gateway.upstream import Answer, CutError, Upstream, readable_encodings, request_headers
from proxy.identity import auth_of, credential_of, tenant_of
from proxy.requests import ClientRequest
from proxy.sse import ENCODINGS, Copy
from proxy.telemetry import RequestRecord, Telemetry

_AS_SENT = frozenset({"content-length"})
_OF_THE_BYTES = frozenset({"content-encoding", "content-md5", "digest", "content-digest"})
_READABLE = frozenset({"", *ENCODINGS})
_ONCE = frozenset({"idempotency-key", "x-idempotency-key"})
"""What names a request: each round of a reply is another one."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What every walk needs; `upstreams` by the API that is spoken."""

    settings: Settings
    upstreams: Mapping[str, Upstream]
    compaction: Compaction
    telemetry: Telemetry
    secret: bytes


class Flow:
    """One request."""

    def __init__(self, parts: Parts, request: web.BaseRequest, is_ending: Callable[[], bool]) -> None:
        self._parts = parts
        self._request = request
        self._is_ending = is_ending
        """Whether Narrows ends what runs."""
        self.route = Route("openai_chat")
        self.rest = ""
        """The target as it came, after /v1."""
        self.exchange = RequestRecord(request.method)
        self.early = Early(request)
        self._reply: Reply | None = None

    async def go(self) -> web.StreamResponse:
        """What the route says. Raises ApiError."""
        self.exchange.route = self.route.kind
        return await {"chat": self._chat, "count": self._count, "relay": self._relay}[self.route.kind]()

    async def refuse(self, error: ApiError) -> web.StreamResponse:
        """What the client gets instead of a reply, in the words of the API: in the stream, where it has begun."""
        self.exchange.trouble = error.code
        if self.early.prepared:
            self.exchange.status = self.early.status
            await self._broken(self.early, _between_events, error)
            return self.early
        self.exchange.status = error.status
        response = shaped(error, DIALECTS[self.route.dialect])
        if not self._request.content.is_eof():
            response.force_close()
        return response

    async def _chat(self) -> web.StreamResponse:
        """Read, prepare, forward, relay, record."""
        compaction, exchange, early = self._parts.compaction, self.exchange, self.early
        client_request, raw = await self._take_in()
        began = perf_counter()
        upstream_request = await compaction.prepare(client_request, early.waiting if self._tells else None)
        exchange.added_ms = ms_since(began)
        exchange.read_headers(upstream_request.headers)
        await early.declare(upstream_request.headers)
        ask = self._asker(client_request, raw)
        retrieval = Retrieval(compaction, ask, upstream_request)
        self._reply = retrieval.reply
        try:
            async with ask(upstream_request, 0) as answer:
                exchange.status = retrieval.status = answer.status
                if early.prepared:
                    return await self._go_on(answer, retrieval)
                if retrieval.looks and answer.status == 200 and answer.coding in _READABLE:
                    return await self._retrieve(answer, retrieval)
                return await self._watch(answer, retrieval)
        finally:
            exchange.rounds = retrieval.rounds
            await compaction.record(retrieval.upstream_request, retrieval.reply, retrieval.status)

    async def _count(self) -> web.StreamResponse:
        """What the same request would be, is forwarded to be counted."""
        client_request, raw = await self._take_in()
        began = perf_counter()
        upstream_request = await self._parts.compaction.preview(client_request)
        self.exchange.added_ms = ms_since(began)
        self.exchange.read_headers(upstream_request.headers)
        async with self._asker(client_request, raw)(upstream_request, 0) as answer:
            self.exchange.status = answer.status
            relayed = await Relayed.begin(self._request, answer, upstream_request.headers)
            return await self._pass_on(relayed, answer.chunks(), None)

    async def _relay(self) -> web.StreamResponse:
        """Bytes in, bytes out."""
        request, exchange = self._request, self.exchange
        headers = request_headers(request.raw_headers)
        upload = Upload(request, self._parts.settings.body_timeout) if request.body_exists else None
        try:
            async with self._upstream.send(request.method, self.rest, headers, upload) as answer:
                exchange.status = answer.status
                relayed = await Relayed.begin(request, answer, {})
                return await self._pass_on(relayed, answer.chunks(), None)
        except ApiError as error:
            raise (upload and upload.fault) or error from None
        finally:
            exchange.received = upload.size if upload else 0

    @property
    def _upstream(self) -> Upstream:
        return self._parts.upstreams[self.route.dialect]

    @property
    def _tells(self) -> bool:
        """Whether clients are told that they wait for a summary."""
        settings = self._parts.settings
        return settings.summary_comments and settings.summary_wait > 0

    def _asker(self, client_request: ClientRequest, raw: bytes) -> Ask:
        """How this client's requests go upstream: as it sent them where nothing is to change."""

        def ask(upstream_request: UpstreamRequest, round_: int) -> AbstractAsyncContextManager[Answer]:
            same = upstream_request.body is client_request.body or upstream_request.body == client_request.body
            headers = request_headers(self._request.raw_headers, _AS_SENT if same else _AS_SENT | _OF_THE_BYTES)
            for name, value in upstream_request.asks.items():
                given = headers.getall(name, ())
                headers[name] = ", ".join(given if any(value in each for each in given) else [*given, value])
            readable_encodings(headers, plain=self.early.prepared or upstream_request.exchanged is not None)
            for name in _ONCE.intersection(map(str.lower, headers)) if round_ else ():
                headers[name] = f"{headers[name]}-{round_}"
            return self._upstream.send("POST", self.rest, headers, raw if same else upstream_request.body)

        return ask

    async def _watch(self, answer: Answer, retrieval: Retrieval) -> web.StreamResponse:
        """Pass on a reply that is only read along."""
        settings = self._parts.settings
        copy = Copy(retrieval.reply.feed, answer.kind, answer.encoding, settings.body_limit)
        relayed = await Relayed.begin(self._request, answer, retrieval.upstream_request.headers)
        response = await self._pass_on(relayed, _watched(answer, copy), partial(getattr, copy, "amid"))
        self.exchange.unread = copy.trouble
        return response

    async def _retrieve(self, answer: Answer, retrieval: Retrieval) -> web.StreamResponse:
        """Pass on a reply in which recall calls may have to be answered."""
        added = retrieval.upstream_request.headers
        if _streams(answer, retrieval.upstream_request):
            answer.rewritten()
            relayed = await Relayed.begin(self._request, answer, added)
            return await self._pass_on(relayed, retrieval.events(answer), _between_events)
        try:
            head, body = await retrieval.whole(answer)
        except CutError as error:
            raise ApiError(502, str(error), "upstream_cut") from error
        self.exchange.status = head.status
        head.rewritten(len(body))
        relayed = await Relayed.begin(self._request, head, added)
        return await self._pass_on(relayed, _once(body), None)

    async def _go_on(self, answer: Answer, retrieval: Retrieval) -> web.StreamResponse:
        """Pass on a reply to a client that was told to wait, and has a head already."""
        if answer.status != 200 or not _streams(answer, retrieval.upstream_request) or answer.coding not in _READABLE:
            raise await retrieval.refusal(answer)
        return await self._pass_on(self.early, retrieval.events(answer, amid=True), _between_events)

    async def _pass_on(
        self, response: Response, pieces: AsyncGenerator[bytes, None], amid: Callable[[], bool] | None
    ) -> web.StreamResponse:
        """Send the reply on as it comes. `amid` tells whether the client has half an event; None where it cannot be
        told in words that a reply breaks off."""
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    await response.write(piece)
                    self.exchange.replied += len(piece)
        except CutError as error:
            await self._broken(response, amid, ApiError(502, str(error), "upstream_cut"))
        except ApiError as error:
            if isinstance(error, FailedError):
                self._parts.telemetry.log.error("unexpected", error=error.code, exc_info=error.__cause__)
            await self._broken(response, amid, error)
        except asyncio.CancelledError:
            if not self._is_ending():
                raise
            await self._broken(response, amid, shutting_down())
        except ConnectionError:  # writing to a client that has left
            raise
        except Exception as error:  # another response would stand in the middle of this one
            self._parts.telemetry.log.error("unexpected", error=type(error).__name__, exc_info=error)
            await self._broken(response, amid, internal_error())
        else:
            await response.write_eof()
        return response

    async def _broken(self, response: Response, amid: Callable[[], bool] | None, error: ApiError) -> None:
        """End a response that has begun, and say why in the words of the API."""
        self.exchange.trouble = error.code
        dialect = DIALECTS[self.route.dialect]
        reply = self._reply or dialect.reply()
        await response.break_off(self._request, amid, reply.last_event(error.body(dialect)))

    async def _take_in(self) -> tuple[ClientRequest, bytes]:
        """The request, and its body as it was on the wire."""
        request, settings = self._request, self._parts.settings
        wish, conversation = asked(request, settings), conversation_of(request)
        upload = Upload(request, settings.body_timeout)
        try:
            raw, plain = await upload.whole(settings.body_limit)
        finally:
            self.exchange.received = upload.size
        credential = credential_of(request)
        tenant = tenant_of(request, credential, self._parts.secret, settings.tenant)
        self.exchange.tenant = tenant
        route, auth = self.route, auth_of(request)
        choice = await chosen(wish, settings, route.dialect, credential, plain)
        client_request = ClientRequest(
            route.dialect,
            plain,
            tenant,
            conversation,
            choice.mode,
            credential,
            auth,
            route.unsaid,
            counts=route.kind == "count",
            preset=choice.preset,
        )
        return client_request, raw


async def _watched(answer: Answer, copy: Copy) -> AsyncGenerator[bytes, None]:
    """The reply as it comes, each piece shown to the copy once it was sent."""
    async for piece in answer.chunks():
        yield piece
        copy.feed(piece)
    if not copy.close() and not answer.delimited:
        raise CutError("The upstream ended its reply in the middle.")


def _streams(answer: Answer, upstream_request: UpstreamRequest) -> bool:
    """Whether the reply is one of events, whatever it is called."""
    return answer.kind == STREAM or (upstream_request.streams and answer.kind != "application/json")


def _between_events() -> bool:
    """Only whole events were sent."""
    return False


async def _once(body: bytes) -> AsyncGenerator[bytes, None]:
    yield body


def ms_since(began: float) -> float:
    """Milliseconds from then until now."""
    return (perf_counter() - began) * 1000
