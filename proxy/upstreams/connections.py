"""The connections to upstreams, and HTTP/1.1 on them, where aiohttp is more lenient or forgetful than a proxy may be.

Laws
  The bytes of a header's value are the same on both sides, whatever characters they are meant to be.
  A reply whose head can be read in two ways is none: lines that end in CRLF and in LF, an encoding of the transfer that
  nobody asked for, a switch to another protocol.
  A whole reply is a reply, whatever comes behind it; the connection is not used again.
  A request was not received where the other side acknowledged no byte of it: only that is known for sure.
  No connection is used on which something has come before anything was asked.
  What cannot be connected to for a while is left alone for a moment, whatever requests come.
"""

import asyncio
import re
import socket
import ssl
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any

import aiohttp
from aiohttp import http_writer
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.connector import Connection
from aiohttp.http import HttpProcessingError, HttpVersion11, RawResponseMessage
from aiohttp.tracing import Trace
from multidict import CIMultiDict

from proxy.breaker import Breaker
from proxy.errors import ApiError

LINE_LIMIT = 16 * 1024
"""The longest request line, status line or header, both ways."""
HEADER_LIMIT = 256
REQUEST_HEAD_LIMIT = 128 * 1024
_HEADS_LIMIT = 256 * 1024
_STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3})[ \r\n]")
_FORBIDDEN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_ACKNOWLEDGED = struct.Struct("<120xQ")
"""Where Linux has the number of acknowledged bytes in its `tcp_info`."""

fresh_only: ContextVar[bool] = ContextVar("fresh_only", default=False)
"""True where a request must not go out on a connection that was used before."""


@contextmanager
def only_fresh_connections() -> Iterator[None]:
    outside = fresh_only.set(True)
    try:
        yield
    finally:
        fresh_only.reset(outside)


class UnreceivedError(aiohttp.ServerDisconnectedError):
    """The connection was closed before the upstream had received anything of the request."""


_quickly_serialized = http_writer._serialize_headers


def _serialized(first: str, headers: "CIMultiDict[str]") -> bytes:
    """The bytes of a head. Raises ValueError where a character cannot be in it."""
    if first.isascii() and all(map(str.isascii, headers.values())):
        return _quickly_serialized(first, headers)
    lines = [first, *(f"{name}: {value}" for name, value in headers.items())]
    if any(map(_FORBIDDEN.search, lines)):
        raise ValueError("a header has a control character")
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape")


http_writer._serialize_headers = _serialized  # type: ignore[assignment]  # aiohttp's own leaves out what is not UTF-8


class UpstreamProtocol(ResponseHandler):
    """A connection to an upstream: each head of a reply is read by itself, before anything behind it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.requests = 0
        self._awaits_head = False
        self._head = b""
        self._received = 0
        self._acknowledged: int | None = None

    def set_response_params(self, **params: Any) -> None:
        self.requests += 1
        self._awaits_head, self._head, self._received = True, b"", 0
        self._acknowledged = self._acknowledged_bytes() if self.requests > 1 else None
        super().set_response_params(**params)

    def data_received(self, data: bytes) -> None:
        while data and self._awaits_head and self._exception is None:
            self._received += len(data)
            self._head += data
            end = _end_of_head(self._head)
            if end < 0 and self._received <= _HEADS_LIMIT:
                self._reschedule_timeout()
                return
            head, data, self._head = self._head[:end], self._head[end:], b""
            self._received -= len(data)
            status = _STATUS.match(head)
            if end < 0 or status is None or status[1] == b"101" or head.count(b"\r\n") not in (0, head.count(b"\n")):
                self._refuse()
            elif not status[1].startswith(b"1"):  # else it comes before the reply, and is not meant for the client
                self._awaits_head = False
                super().data_received(head)
        super().data_received(data)

    def feed_data(self, data: tuple[RawResponseMessage, aiohttp.StreamReader], size: int = 0) -> None:
        message = data[0]
        encoding = message.headers.getall("Transfer-Encoding", None)
        if encoding and [each.strip(" \t").lower() for each in encoding] != ["chunked"]:
            self._refuse()
            return
        if encoding and message.version < HttpVersion11:  # nobody knows whether the one who sent it knows what it says
            self.force_close()
        super().feed_data(data, size)

    def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
        if isinstance(exc, HttpProcessingError) and self._payload is not None and not self._payload.is_eof():
            self._payload.set_exception(aiohttp.ClientPayloadError("the body is garbled"))  # else it never ends
        is_lost = isinstance(exc, aiohttp.ClientOSError | aiohttp.ServerDisconnectedError)
        before = self._acknowledged
        if is_lost and before and not self._received and before == self._acknowledged_bytes():
            exc = UnreceivedError()
        if not isinstance(self._exception, UnreceivedError):  # what follows from that says less
            super().set_exception(exc, *cause)

    def _refuse(self) -> None:
        if self.transport is not None:
            self.transport.close()
        self.set_exception(HttpProcessingError(code=400, message="not a reply"))

    def _acknowledged_bytes(self) -> int | None:
        """How many bytes the other side has acknowledged so far; None where the system does not say it."""
        sock = self.transport.get_extra_info("socket") if self.transport is not None else None
        if sys.platform != "linux" or sock is None:
            return None
        with suppress(OSError, struct.error):
            return int(*_ACKNOWLEDGED.unpack(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKNOWLEDGED.size)))
        return None


def _end_of_head(received: bytes) -> int:
    """Where the head ends, or -1: behind the first empty line, however lines end."""
    end = received.find(b"\n\r\n")
    bare = received.find(b"\n\n", 0, end if end >= 0 else len(received))
    return bare + 2 if bare >= 0 else end + 3 if end >= 0 else -1


TRIAL_MARGIN = 1.0
"""Seconds besides those to connect after which a trial that reports nothing is followed by another."""


class PausedError(aiohttp.ClientError):
    """The upstream could not be connected to for a while, and is left alone for a moment."""


class UpstreamConnector(aiohttp.TCPConnector):
    """A pool that gives out no connection on which something has come already: it would pass for the next reply. While
    its breaker is open it connects to nothing."""

    def __init__(self, breaker: Breaker, *, limit: int, ssl: ssl.SSLContext | bool) -> None:
        super().__init__(limit=limit, ssl=ssl)
        self._breaker = breaker
        self._factory = partial(UpstreamProtocol, self._loop)  # type: ignore[assignment]  # it is one

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's
    ) -> Connection:
        if self._breaker.is_open and not self._breaker.admits():
            raise PausedError
        try:
            connection = await super().connect(req, traces, timeout)
            if not _is_silent(connection):
                connection.close()
                raise aiohttp.ServerDisconnectedError
        except aiohttp.ClientSSLError:  # it was reached
            self._breaker.succeeded()
            raise
        except asyncio.CancelledError:  # the client has left: another one may try
            self._breaker.end_pause()
            raise
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._breaker.failed(type(error).__name__)
            raise
        if self._breaker.failures:
            self._breaker.succeeded()
        return connection

    async def _get(self, key: ConnectionKey, traces: list[Trace]) -> Connection | None:
        while not fresh_only.get() and (connection := await super()._get(key, traces)) is not None:
            if _is_silent(connection):
                return connection
            connection.close()
        return None


def _is_silent(connection: Connection) -> bool:
    """True where nothing has come on it since the reply to its last request, which ended as it should."""
    return connection.protocol is not None and not connection.protocol.should_close


# --- which error describes each way in which an upstream gives no reply ---

_TROUBLES: tuple[tuple[type[Exception], int, str, str], ...] = (
    (aiohttp.ConnectionTimeoutError, 504, "upstream_timeout", "did not take a connection in time; is it up?"),
    (TimeoutError, 504, "upstream_timeout", "took the request but stayed silent; see `read_timeout`."),
    (aiohttp.ClientProxyConnectionError, 502, "proxy_unreachable", "is behind a proxy that does not answer."),
    (aiohttp.ClientHttpProxyError, 502, "proxy_refused", "is behind a proxy that refused to connect."),
    (aiohttp.ClientConnectorDNSError, 502, "upstream_unknown", "has no address; check the setting `upstream`."),
    (
        aiohttp.ClientConnectorCertificateError,
        502,
        "upstream_certificate",
        "has a certificate that is not trusted; set `ca_bundle`?",
    ),
    (aiohttp.ClientSSLError, 502, "upstream_tls", "does not speak TLS here; check http or https in `upstream`."),
    (aiohttp.ClientConnectorError, 502, "upstream_unreachable", "cannot be reached; is it up?"),
    (aiohttp.ClientResponseError, 502, "upstream_garbled", "sent something that is not HTTP."),
    (Exception, 502, "upstream_cut", "closed the connection before it answered."),
)
"""The first that fits counts. No text of the error itself: it may quote what it was sending."""


def trouble(error: Exception, host: str) -> ApiError:
    """The error that a client receives when no reply came from the upstream."""
    status, code, text = next(row[1:] for row in _TROUBLES if isinstance(error, row[0]))
    return ApiError(status, f"The upstream {host} {text}", code)
