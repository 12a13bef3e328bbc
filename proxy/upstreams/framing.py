"""HTTP/1.1 as it is on the wire, where aiohttp is more lenient or more forgetful than a proxy may be.

Laws
  The bytes of a header's value are the same on both sides, whatever characters they are meant to be.
  A reply whose head can be read in two ways is none: lines that end in CRLF and in LF, an encoding of the transfer that
  nobody asked for, a switch to another protocol.
  A whole reply is a reply, whatever comes behind it; the connection is not used again.
  A request was not received where the other side acknowledged no byte of it: only that is known for sure.
"""

import asyncio
import re
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import aiohttp
from aiohttp import http_writer
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import HttpProcessingError, HttpVersion11, RawResponseMessage
from multidict import CIMultiDict

LINE_LIMIT = 16 * 1024
"""The longest request line, status line or header, both ways."""
HEADER_LIMIT = 256
REQUEST_HEAD_LIMIT = 128 * 1024
"""Bytes of a request's head."""
_HEADS_LIMIT = 256 * 1024
"""Bytes of a reply's head, and of what comes before it (status 100 to 199)."""
_STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3})[ \r\n]")
_FORBIDDEN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_ACKNOWLEDGED = struct.Struct("<120xQ")
"""Where Linux has the number of acknowledged bytes in its `tcp_info`."""

fresh_only: ContextVar[bool] = ContextVar("fresh_only", default=False)
"""Whether a request must not go out on a connection that was used before."""


@contextmanager
def only_fresh_connections() -> Iterator[None]:
    outside = fresh_only.set(True)
    try:
        yield
    finally:
        fresh_only.reset(outside)


class UnreceivedError(aiohttp.ServerDisconnectedError):
    """The connection was closed before the upstream had received anything of the request."""


def text(raw: bytes) -> str:
    """Header text, from which `_serialized` makes the same bytes again."""
    return raw.decode("utf-8", "surrogateescape")


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
        """A request is about to be sent."""
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
        """Take what has come for no reply."""
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
