"""The bodies of clients' requests: passed on as they come, or read as a whole.

Laws
  A pause, a trickle, a size, and what a small body unpacks to: each has its bound.
"""

import asyncio
from collections.abc import AsyncIterator

from aiohttp import web

from proxy.errors import ApiError, too_large
from proxy.sse import ENCODINGS, TooLargeError, UndecodableError, undone

_SLOWEST = 1024
"""Bytes a second that a client must send on the whole, so that no trickle keeps a connection for ever."""


class Upload:
    """A body on its way through; `fault` keeps what went wrong on the client's side of it."""

    def __init__(self, request: web.BaseRequest, idle: float) -> None:
        self._request = request
        self._idle = idle
        self.size = 0
        self.fault: ApiError | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in received(self._request, self._idle):
                self.size += len(piece)
                yield piece
        except ApiError as error:
            self.fault = error
            raise

    async def whole(self, limit: int) -> tuple[bytes, bytes]:
        """All of it, as it was on the wire and as it is meant: undone from its encoding."""
        encoding = encoding_of(self._request)
        if (self._request.content_length or 0) > limit:
            raise too_large(limit)
        pieces = []
        async for piece in self:
            pieces.append(piece)
            if self.size > limit:
                raise too_large(limit)
        raw = b"".join(pieces)
        return raw, await plain_body(raw, encoding, limit) if encoding else raw


async def received(request: web.BaseRequest, idle: float) -> AsyncIterator[bytes]:
    """A request's body as it comes. The client may pause for `idle` seconds, and may not trickle for ever."""
    await _expected(request)
    now = asyncio.get_running_loop().time
    end = now() + 10 * idle
    while True:
        try:
            async with asyncio.timeout_at(min(now() + idle, end)):
                piece = await request.content.readany()
        except TimeoutError as error:
            raise ApiError(408, "The body did not arrive in time.", "body_timeout") from error
        except web.RequestPayloadError as error:
            raise ApiError(400, "The body is not framed as HTTP wants it.", "bad_body") from error
        if not piece:
            return
        asked = now()
        yield piece
        end += len(piece) / _SLOWEST + (now() - asked)


async def _expected(request: web.BaseRequest) -> None:
    """Tell a client that waits for it to go on with its body."""
    expectation = request.headers.get("Expect")
    if expectation is None:
        return
    if expectation.lower() != "100-continue":
        raise ApiError(417, "Only 100-continue can be expected.", "bad_expectation")
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # this was not the answer yet


async def plain_body(raw: bytes, encoding: str, limit: int) -> bytes:
    """A small bomb becomes a large body, so it is undone in a thread."""
    try:
        return await asyncio.to_thread(undone, raw, encoding, limit)
    except TooLargeError:
        raise too_large(limit) from None
    except UndecodableError as error:
        message = f"The body is not what its Content-Encoding ({encoding}) says."
        raise ApiError(400, message, "bad_encoding", "content-encoding") from error


def encoding_of(request: web.BaseRequest) -> str:
    """What the body comes in; "" for plain."""
    value = ",".join(request.headers.getall("Content-Encoding", ())).strip().lower()
    if value in ("", "identity"):
        return ""
    if value not in ENCODINGS:
        known = ", ".join(ENCODINGS)
        message = f"The body's Content-Encoding cannot be read; one of {known} can."
        raise ApiError(415, message, "unknown_encoding", "content-encoding")
    return value
