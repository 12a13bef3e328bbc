"""The server of connections: what it takes for HTTP, and what of it it receives."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage, LineTooLong
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader

from policies.dialects import DEFAULT, DIALECTS
from proxy.config import Settings
from proxy.errors import ApiError
from proxy.kernel.admission import Admission
from proxy.kernel.head import RequestHead, head_of
from proxy.kernel.wire.downstream import error_response, reset
from proxy.requests import request_id
from proxy.telemetry.record import ID_HEADER
from proxy.upstreams.framing import HEADER_LIMIT, LINE_LIMIT, REQUEST_HEAD_LIMIT

_LINGERING = 2.0
"""Seconds in which a client that still sends its body can read why nothing of it is received any more."""
_FRAMING, _FRAMED = 2**21, 32
"""Bytes around the chunks of a body, beyond one for each so many bytes in them: 400,000 chunks of a byte, or any number
of 160 bytes. Each takes the event loop a microsecond, whatever is in it."""
_STALLED = 10
"""After so many times `body_timeout` a client is let go that takes nothing of its reply."""


class Listener(web.Server):
    """Speaks HTTP with clients. When one leaves, its request is cancelled."""

    def __init__(
        self,
        answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        settings: Settings,
        admission: Admission,
    ) -> None:
        super().__init__(answer, handler_cancellation=True)
        self.admission = admission
        self.apply(settings)

    def apply(self, settings: Settings) -> None:
        """From now on the times are those of these settings, for new connections."""
        self._patience = settings.header_timeout
        self.stalled_seconds = _STALLED * settings.body_timeout

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
    """That of the newest request."""
    _payload: StreamReader = EMPTY_PAYLOAD
    """The newest body."""
    _unread = 0
    """Bytes received of the next head."""
    has_too_many_chunks = False
    """Whether nothing more is received of the newest body because it comes in more chunks than are read."""
    _on_the_wire = 0
    """Bytes received of the newest body, as it is framed."""
    _is_too_long = False
    """Whether the head that was being received is."""

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


def read_head(request: web.BaseRequest, settings: Settings, secret: bytes) -> RequestHead:
    """The head of a request, which its connection remembers. Raises ApiError."""
    connection = request.protocol
    before = connection.head if isinstance(connection, Connection) else None
    head = head_of(request, before, settings, secret)
    if isinstance(connection, Connection):
        connection.head = head
    return head
