"""The client's side: how a request is received, and how its reply is passed on, framed and broken off.

Laws
  Everything a client can make wait or grow is bounded: a pause, a trickle, a size, and what a small body unpacks to.
  What is not HTTP, or can be read in two ways, is refused in an API's error shape and the connection closed.
  Only a client that was told to wait has a response before the upstream was asked.
  What the upstream sends is passed on at once and unchanged; what reads the reply reads a copy.
  A reply that breaks off breaks off for the client too: no invented finish_reason, no [DONE], no clean end.
  Where a client was told to wait, its response has begun: whatever goes wrong afterwards is said in the stream.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from aiohttp import HttpVersion11, web
from aiohttp.http_exceptions import BadHttpMessage, LineTooLong
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader

from policies.dialects import DEFAULT, DIALECTS, Dialect, Reply
from proxy.config import Settings
from proxy.errors import ApiError, FailedError, internal_error, shutting_down, too_large
from proxy.kernel.addons import Exchange, request_id
from proxy.kernel.admission import UNPACKED, VISIT, Admission, Visit
from proxy.requests import RequestHead
from proxy.sse import ENCODINGS, Copy, TooLargeError, UndecodableError, decoded
from proxy.upstreams.connections import HEADER_LIMIT, LINE_LIMIT, REQUEST_HEAD_LIMIT
from proxy.upstreams.upstream import CutError, UpstreamReply

if TYPE_CHECKING:
    from proxy.kernel.services import KernelParts

ID_HEADER = "x-narrows-request-id"
SERVER = {"Server": "narrows"}
"""The header by which our own responses say who responds: no versions."""
_LAST_WORDS_SECONDS = 1.0
_UPDATING = b": updating summary\n\n"
_UPDATING_SECONDS = 1.0
_SLOWEST, _WHOLE, _WINDOWS = 2**10, 2**16, 20
"""Bytes a second that a client must send over any window; and on the whole, once the body has taken so many windows."""
_LONGEST_VALUE = 256
_EXPECTED = 2**16
_BLOCK = 2**19
"""Bytes of a body that are put together as it comes: what is so large is memory of its own, free at once when it is
gone. To join a MiB lets go of the interpreter, and then the event loop waits for it."""


class Upload:
    """A body on its way through; `fault` is what went wrong on the client's side of it."""

    def __init__(self, request: web.BaseRequest, idle: float) -> None:
        self._request = request
        self._idle = idle
        self.size = 0
        self.fault: ApiError | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in _received(self._request, self._idle):
                self.size += len(piece)
                yield piece
        except ApiError as error:
            self.fault = error
            raise

    @property
    def visit(self) -> Visit:
        return self._request[VISIT]

    def _all_here(self) -> bytes | None:
        """A body that came with its head, as small ones do; None where there is more to wait for, or to say."""
        content = self._request.content
        if not content.is_eof() or content.exception() is not None or "Expect" in self._request.headers:
            return None
        raw = content.read_nowait()
        self.size = len(raw)
        return raw

    async def whole(self, limit: int) -> tuple[bytes, bytes]:
        """All of the body: its bytes on the wire, and those bytes decoded from their Content-Encoding. Raises ApiError
        where either is longer than `limit` bytes, or the encoding cannot be read."""
        encoding = ",".join(self._request.headers.getall("Content-Encoding", ())).strip().lower()
        if encoding not in ("", "identity", *ENCODINGS):
            message = f"This Content-Encoding is not supported; use one of {', '.join(ENCODINGS)}."
            raise ApiError(415, message, "unknown_encoding", "content-encoding")
        raw = await self._on_the_wire(limit)
        if encoding not in ENCODINGS:
            return raw, raw
        try:
            body = await _unpacked(raw, encoding, limit, self.visit)
        except TooLargeError:
            raise too_large(limit) from None
        except UndecodableError as error:
            message = f"The body cannot be decoded by its Content-Encoding ({encoding})."
            raise ApiError(400, message, "bad_encoding", "content-encoding") from error
        self.visit.hold(len(body))
        return raw, body

    async def _on_the_wire(self, limit: int) -> bytes:
        visit, length = self.visit, self._request.content_length or 0
        if length > limit:
            raise too_large(limit)
        visit.enter()  # a page of our own needs the place of a request only for its body
        if length > _EXPECTED:
            visit.expect(length)
        if (raw := self._all_here()) is not None:
            if self.size > limit:
                raise too_large(limit)
            visit.hold(self.size)
            return raw
        return await self._received(limit)

    async def _received(self, limit: int) -> bytes:
        """The body as it comes. Of a large one no small pieces stay: behind them memory would not be free again."""
        blocks, pieces, size = list[bytes](), list[bytes](), 0
        try:
            async for piece in self:
                self.visit.receive(len(piece))
                if self.size > limit:
                    raise too_large(limit)
                pieces.append(piece)
                size += len(piece)
                if size > _BLOCK:
                    blocks.append(b"".join(pieces))
                    pieces.clear()
                    size = 0
            if not blocks:
                return b"".join(pieces)
            return await asyncio.to_thread(b"".join, [*blocks, *pieces])  # which lets go of the interpreter
        finally:
            self.visit.end_receiving()
            blocks.clear()  # the error that ends this refers to them, and may be there for long
            pieces.clear()


async def _unpacked(raw: bytes, encoding: str, limit: int, visit: Visit) -> bytes:
    """The decoded body. Few become large at once: a small one may be a bomb, and nobody else waits for those."""
    try:
        return await asyncio.to_thread(decoded, raw, encoding, min(limit, UNPACKED))
    except TooLargeError:
        if limit <= UNPACKED:
            raise
    async with visit.admission.unpacking:
        return await asyncio.to_thread(decoded, raw, encoding, limit)


async def _received(request: web.BaseRequest, window: float) -> AsyncIterator[bytes]:
    """A request's body as it comes. Whatever came before, the last `window` seconds must have brought `_SLOWEST` bytes
    a second, and the whole must not take for ever."""
    expectation = request.headers.get("Expect")
    if expectation is not None and request.version >= HttpVersion11:  # others cannot know what 100 means
        if expectation.lower() != "100-continue":
            raise ApiError(417, "The header Expect may only be 100-continue.", "bad_expectation")
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # this was not the answer yet
    now = asyncio.get_running_loop().time
    too_slow, too_late = now() + window, now() + _WINDOWS * window
    content = request.content
    while True:
        try:
            if content.is_eof():  # all of it is here
                piece = await content.readany()
            else:
                async with asyncio.timeout_at(min(too_slow, too_late)):
                    piece = await content.readany()
        except TimeoutError as error:
            message = "The body did not arrive in time: its client was silent or too slow (`body_timeout`)."
            raise ApiError(408, message, "body_timeout") from error
        except web.RequestPayloadError as error:
            raise ApiError(400, "The framing of the body is not valid HTTP.", "bad_body") from error
        if not piece:
            return
        if getattr(request.protocol, "has_too_many_chunks", False):
            raise ApiError(400, "The body comes in too many small chunks; send larger ones.", "bad_body")
        handed_on = now()
        yield piece
        waited = now() - handed_on  # a slow upstream is not the client's fault
        too_slow = min(too_slow + waited + len(piece) / _SLOWEST, now() + window)
        too_late += waited + len(piece) / _WHOLE


class Response(web.StreamResponse):
    """A response that ends as the upstream's reply ends, or breaks off."""

    explains = True
    """True where the stream can say why it breaks off."""

    async def _prepare_headers(self) -> None:
        added = [name for name in ("Server", "Content-Type") if name not in self.headers]
        await super()._prepare_headers()
        for name in added:
            self.headers.popall(name, None)

    async def break_off(self, request: web.BaseRequest, amid: Callable[[], bool] | None, why: bytes) -> None:
        """End without a clean end: a client that reads plain events receives an event that says why, any other is cut
        off. `amid` says whether it has received half an event; None where no event can be sent."""
        transport = request.transport
        if transport is None:
            return
        if amid is None or not self.explains:
            reset(transport)
            return
        words = (b"\n\n" if amid() else b"") + why
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_SECONDS):
                await self.write(words)
        transport.close()


class Relayed(Response):
    """The upstream's reply, framed as the upstream framed it."""

    def __init__(self, upstream_reply: UpstreamReply, added: Mapping[str, str]) -> None:
        headers = upstream_reply.headers.copy()
        headers.update({name: header_safe(value) for name, value in added.items()})
        super().__init__(status=upstream_reply.status, reason=upstream_reply.reason, headers=headers)
        self.explains = (
            upstream_reply.kind == "text/event-stream" and not upstream_reply.encoding and not upstream_reply.sized
        )
        self._send_headers_immediately = not upstream_reply.has_come  # else with the body, in one write
        if not upstream_reply.delimited:  # chunks would claim an end that nobody has seen
            self._length_check = False
            self.force_close()

    @classmethod
    async def begin(cls, request: web.BaseRequest, upstream_reply: UpstreamReply, added: Mapping[str, str]) -> Self:
        response = cls(upstream_reply, added)
        try:
            await response.prepare(request)
        except ValueError as error:
            message = "The upstream's headers have characters that HTTP does not allow."
            raise ApiError(502, message, "upstream_garbled") from error
        return response


class Early(Response):
    """The response to a client that was told to wait: it begins, with events, before the upstream is asked.

    Status and headers are ours by then, so those of the upstream's reply cannot be sent any more; what Narrows says
    in headers is said in comments. Until it is `prepared` nothing was sent, and another response may be.
    """

    def __init__(self, request: web.BaseRequest, request_id: str) -> None:
        heads = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "x-narrows-summary": "pending"}
        super().__init__(headers={**heads, ID_HEADER: request_id})
        self._request = request

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:

        async def send_comments() -> None:
            with suppress(ConnectionError):  # that a client has left shows in what is written next
                while True:
                    await self.prepare(self._request)  # sends the head, the first time
                    await self.write(_UPDATING)
                    await asyncio.sleep(_UPDATING_SECONDS)

        telling = asyncio.create_task(send_comments())
        try:
            yield
        finally:
            telling.cancel()
            await asyncio.wait({telling})

    async def declare(self, headers: Mapping[str, str]) -> None:
        if self.prepared:
            lines = "".join(f": {name}: {header_safe(value)}\n" for name, value in headers.items())
            await self.write(lines.encode() + b"\n")


def header_safe(value: str) -> str:
    """A name that a client gave in its body may come back in a header: as one short line of ASCII."""
    plain = value if value.isascii() and value.isprintable() else ascii(value)[1:-1]
    return plain[:_LONGEST_VALUE]


def error_response(error: ApiError, dialect: Dialect) -> web.Response:
    headers = {"Content-Type": "application/json", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return web.Response(status=error.status, body=error.body(dialect), headers={**headers, **SERVER, **error.headers})


def reset(transport: asyncio.Transport) -> None:
    """Break the connection so that the other side cannot take it for an end."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


# --- the response to one request ---

_MUCH = 2**20


@dataclass(slots=True, eq=False)
class Responder:
    """`is_ending`: whether Narrows is ending what still runs."""

    exchange: Exchange
    parts: "KernelParts"
    is_ending: Callable[[], bool]
    _early: Early | None = None

    @property
    def early(self) -> Early:
        if self._early is None:
            self._early = Early(self.exchange.request, self.exchange.request_id)
            self._early.headers.update(self.exchange.own_headers)
        return self._early

    @property
    def has_begun(self) -> bool:
        return self._early is not None and self._early.prepared

    async def refuse(self, error: ApiError) -> web.StreamResponse:
        self.exchange.trouble = error.code
        if self.has_begun:
            self.exchange.status = self.early.status
            await self.break_off(self.early, between_events, error)
            return self.early
        self.exchange.status = error.status
        response = error_response(error, DIALECTS[self.exchange.route.dialect])
        if self.exchange.request_id:
            response.headers[ID_HEADER] = self.exchange.request_id
        if error.code == "not_http" or not self.exchange.request.content.is_eof():
            response.force_close()
            self._end_body()
        return response

    def _end_body(self) -> None:
        """Receive no more of a body where there is much to come: without a length, as much again as has come."""
        connection, came = self.exchange.request.protocol, self.exchange.request.content.total_bytes
        length = self.exchange.request.content_length
        remaining = came if length is None else length - came
        if remaining > _MUCH and isinstance(connection, Connection) and not self.parts.admission.drains(remaining):
            connection.stop_reading()

    def own(self, body: bytes) -> web.Response:
        self.exchange.status, self.exchange.replied = 200, len(body)
        own = {"Content-Type": "application/json", ID_HEADER: self.exchange.request_id, **SERVER}
        return web.Response(body=body, headers={**own, **self.exchange.own_headers})

    async def begin(self, upstream_reply: UpstreamReply, headers: Mapping[str, str]) -> Relayed:
        self.exchange.headers = headers
        declared = {**headers, ID_HEADER: self.exchange.request_id}
        return await Relayed.begin(self.exchange.request, upstream_reply, declared)

    async def pass_on_observed(
        self, upstream_reply: UpstreamReply, headers: Mapping[str, str], reply: Reply
    ) -> web.StreamResponse:
        """Pass on a reply unchanged while `reply` reads a copy of it."""
        limit = self.parts.settings.body_limit
        copy = Copy(reply.feed, upstream_reply.kind, upstream_reply.encoding, limit, reply.feed_all)

        async def observed() -> AsyncGenerator[bytes, None]:
            async for piece in upstream_reply.chunks():
                yield piece
                copy.feed(piece)
            if not copy.close(upstream_reply.delimited):
                raise CutError("The upstream ended its reply in the middle.")

        response = await self.begin(upstream_reply, headers)
        if (body := upstream_reply.all_here()) is not None:
            try:
                await self.pass_on(response, body, lambda: copy.amid)
            finally:  # what has come is billed, whoever has left
                copy.feed(body)
                copy.close(upstream_reply.delimited)
        else:
            await self.pass_on(response, observed(), lambda: copy.amid)
        self.exchange.unread = copy.trouble
        return response

    async def pass_on(
        self, response: Response, body: AsyncGenerator[bytes, None] | bytes, amid: Callable[[], bool] | None
    ) -> web.StreamResponse:
        """Send the reply on, as it comes where it is not here yet. `amid` tells whether the client has received half an
        event; None where no event can say that the reply breaks off."""
        try:
            if isinstance(body, bytes):
                await response.write_eof(body)
                self.exchange.replied += len(body)
                self.exchange.is_whole = True
                return response
            async with aclosing(body):
                async for piece in body:
                    await response.write(piece)
                    self.exchange.replied += len(piece)
        except CutError as error:
            await self.break_off(response, amid, ApiError(502, str(error), "upstream_cut"))
        except ApiError as error:
            if isinstance(error, FailedError):
                self.parts.telemetry.log.error("unexpected", error=error.code, exc_info=error.__cause__)
            await self.break_off(response, amid, error)
        except asyncio.CancelledError:
            if not self.is_ending():
                raise
            await self.break_off(response, amid, shutting_down())
        except ConnectionError:  # the client has left
            raise
        except Exception as error:  # another response would stand in the middle of this one
            self.parts.telemetry.log.error("unexpected", error=type(error).__name__, exc_info=error)
            await self.break_off(response, amid, internal_error())
        else:
            self.exchange.is_whole = True
            await response.write_eof()
        return response

    async def break_off(self, response: Response, amid: Callable[[], bool] | None, error: ApiError) -> None:
        """End a response that has begun, and say why in the form of the API."""
        self.exchange.trouble = error.code
        dialect = DIALECTS[self.exchange.route.dialect]
        reply = self.exchange.reader or dialect.reply(None)
        await response.break_off(self.exchange.request, amid, reply.last_event(error.body(dialect)))


def between_events() -> bool:
    """Only whole events were sent."""
    return False


# --- the server of connections: what it takes for HTTP, and what of it it receives ---

_LINGERING = 2.0
"""Seconds in which a client that still sends its body can read why nothing of it is received any more."""
_FRAMING, _FRAMED = 2**21, 32
"""Bytes around the chunks of a body, beyond one for each so many bytes in them: 400,000 chunks of a byte, or any number
of 160 bytes. Each takes the event loop a microsecond, whatever is in it."""
_STALLED = 10
"""After so many times `body_timeout` a client is let go that takes nothing of its reply."""


Answer = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Listener(web.Server):
    """Speaks HTTP with clients. When one leaves, its request is cancelled."""

    def __init__(self, answer: Answer, settings: Settings, admission: Admission) -> None:
        super().__init__(answer, handler_cancellation=True)
        self.admission = admission
        self.apply(settings, answer)

    def apply(self, settings: Settings, answer: Answer) -> None:
        """From now on the times are those of these settings, for new connections; requests of all are answered so."""
        self._patience = settings.header_timeout
        self.stalled_seconds = _STALLED * settings.body_timeout
        self.request_handler = answer
        for connection in self.connections:
            connection._request_handler = answer

    def __call__(self) -> "Connection":
        return Connection(
            self,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=self._patience,
            max_line_size=LINE_LIMIT,
            max_field_size=LINE_LIMIT,
            max_headers=HEADER_LIMIT,
            auto_decompress=False,
            access_log=None,  # so it is turned off; the gateway logs
        )


class Connection(web.RequestHandler):
    head: RequestHead | None = None
    _payload: StreamReader = EMPTY_PAYLOAD
    _unread = 0
    has_too_many_chunks = False
    """True where nothing more is received of the newest body because it comes in more chunks than are read."""
    _on_the_wire = 0
    _is_too_long = False

    def __init__(self, listener: Listener, **options: Any) -> None:
        super().__init__(listener, **options)
        self._listener = listener
        self._stalled: asyncio.TimerHandle | None = None
        self._stopped = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self._listener.admission.connected(self, str(peer[0]) if isinstance(peer, tuple) else "")

    def data_received(self, data: bytes) -> None:
        if self._is_too_long or self._stopped:
            return
        count, was_whole = len(self._messages), self._payload.is_eof()
        super().data_received(data)
        if len(self._messages) > count:
            self._payload, self._unread, self._on_the_wire = self._messages[-1][1], 0, 0
        elif not was_whole and not self._payload.is_eof():
            self._on_the_wire += len(data)
            received = self._payload.total_bytes
            if self._on_the_wire > received + received // _FRAMED + _FRAMING:
                self.has_too_many_chunks = True
                self.stop_reading()
        elif self._payload.is_eof() != was_whole:
            self._unread = 0
        elif was_whole and len(self._messages) < self._max_msg_queue_size:  # else what was received is read later
            self._unread += len(data)
            if self._unread > REQUEST_HEAD_LIMIT:
                self._is_too_long = True
                super().data_received(b"-" * 2 * LINE_LIMIT)  # which no line may have

    def connection_lost(self, exc: BaseException | None) -> None:
        self._listener.admission.disconnected(self)
        self._end_stall()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client takes no more for now: if it goes on like that, it is let go."""
        super().pause_writing()
        self._stalled = self._loop.call_later(self._listener.stalled_seconds, self._let_go)

    def resume_writing(self) -> None:
        self._end_stall()
        super().resume_writing()

    def _end_stall(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _let_go(self) -> None:
        if self.transport is not None:
            self._listener.admission.count_stalled()
            reset(self.transport)

    def stop_reading(self) -> None:
        """Receive no more of a body: its client has a moment to read why, and is let go."""
        self._stopped = True
        self._lingering_time = _LINGERING
        self._pause_transport_reading()

    def _resume_transport_reading(self) -> None:
        if not self._stopped:
            super()._resume_transport_reading()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Refuse what is not HTTP. Its text is neither returned nor logged: it may hold a credential."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun already")
        if self._is_too_long:
            error = ApiError(431, f"The head has more than {REQUEST_HEAD_LIMIT} bytes.", "head_too_large")
        elif isinstance(exc, LineTooLong):
            error = ApiError(431, f"The head has a line of more than {LINE_LIMIT} bytes.", "head_too_large")
        elif isinstance(exc, BadHttpMessage) and exc.message.startswith("Too many headers"):
            error = ApiError(431, f"The head has more than {HEADER_LIMIT} headers.", "head_too_large")
        else:
            error = ApiError(400, "This is not a request as HTTP/1.1 wants it.", "not_http")
        response = error_response(error, DIALECTS[DEFAULT])  # nobody knows what it was meant for
        response.headers[ID_HEADER] = request_id()
        response.force_close()
        return response
