"""The client's side: what the head of a request may say, who sends it, and how a reply is framed and broken off.

Laws
  Everything a client can make wait or grow is bounded.
  What is not HTTP, or can be read in two ways, is refused in an API's error shape and the connection closed.
  A tenant is configured, or this machine, or a keyed hash of the credential; never the credential.
  Only a client that was told to wait has a response before the upstream was asked.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Self

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from policies.dialects import DIALECTS, Dialect
from proxy.config import Settings
from proxy.errors import ApiError
from proxy.gateway.upstream import HEADER_LIMIT, LINE_LIMIT, Answer

_LAST_WORDS_SECONDS = 1.0
_UPDATING = b": updating summary\n\n"
_UPDATING_SECONDS = 1.0


class Listener(web.Server):
    """Speaks HTTP with clients. When one leaves, what runs for it is cancelled."""

    def __init__(self, answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], settings: Settings) -> None:
        super().__init__(answer, handler_cancellation=True)
        self._patience = settings.header_timeout

    def __call__(self) -> web.RequestHandler:
        return Connection(
            self,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=self._patience,
            max_line_size=LINE_LIMIT,
            max_field_size=LINE_LIMIT,
            max_headers=HEADER_LIMIT,
            auto_decompress=False,
            access_log=None,  # type: ignore[arg-type]  # so it is turned off; the gateway logs
        )


class Connection(web.RequestHandler):
    """One connection of a client."""

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Refuse what is not HTTP. Neither told nor logged what it was: it may hold a credential."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun already")
        if isinstance(exc, LineTooLong):
            error = ApiError(431, f"The head has a line of more than {LINE_LIMIT} bytes.", "head_too_large")
        else:
            error = ApiError(400, "This is not a request as HTTP/1.1 wants it.", "not_http")
        response = shaped(error, DIALECTS["openai_chat"])  # nobody knows what it was meant for
        response.force_close()
        return response


class Response(web.StreamResponse):
    """A response that has no end of its own: it ends as the reply behind it ends, or breaks off."""

    tells = True
    """Whether it can be told in the stream why it breaks off."""

    async def _prepare_headers(self) -> None:
        """Take back what aiohttp adds of its own accord."""
        sent = set(map(str.lower, self.headers))
        await super()._prepare_headers()
        for name in {"Server", "Content-Type"}:
            if name.lower() not in sent:
                self.headers.popall(name, None)

    async def break_off(self, request: web.BaseRequest, amid: Callable[[], bool] | None, why: bytes) -> None:
        """End without a clean end: a client that reads plain events is told, in an event, why; another is cut off."""
        transport = request.transport
        if transport is None:
            return
        if amid is None or not self.tells:
            reset(transport)
            return
        words = (b"\n\n" if amid() else b"") + why
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_SECONDS):
                await self.write(words)
        transport.close()


class Relayed(Response):
    """The upstream's reply, framed as the upstream framed it."""

    def __init__(self, answer: Answer, added: Mapping[str, str]) -> None:
        headers = answer.headers.copy()
        headers.update({name: header_safe(value) for name, value in added.items()})
        super().__init__(status=answer.status, reason=answer.reason, headers=headers)
        self.tells = answer.kind == "text/event-stream" and not answer.encoding and not answer.sized
        if not answer.delimited:  # chunks would claim an end that nobody has seen
            self._length_check = False
            self.force_close()

    @classmethod
    async def begin(cls, request: web.BaseRequest, answer: Answer, added: Mapping[str, str]) -> Self:
        """Send the head."""
        response = cls(answer, added)
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

    def __init__(self, request: web.BaseRequest) -> None:
        heads = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "x-narrows-summary": "pending"}
        super().__init__(headers=heads)
        self._request = request

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """The client is told, at once and every second, that it waits for a summary."""
        telling = asyncio.create_task(self._tell())
        try:
            yield
        finally:
            telling.cancel()
            await asyncio.wait({telling})

    async def declare(self, headers: Mapping[str, str]) -> None:
        """Say in comments what headers can say no more, if it has begun."""
        if self.prepared:
            lines = "".join(f": {name}: {header_safe(value)}\n" for name, value in headers.items())
            await self.write(lines.encode() + b"\n")

    async def _tell(self) -> None:
        with suppress(ConnectionError):  # whoever has left is missed by what is written next
            while True:
                await self.prepare(self._request)  # sends the head, the first time
                await self.write(_UPDATING)
                await asyncio.sleep(_UPDATING_SECONDS)


def header_safe(value: str) -> str:
    """A name that a client gave in its body may come back in a header: as one short line of ASCII."""
    plain = value if value.isascii() and value.isprintable() else ascii(value)[1:-1]
    return plain[:256]


def shaped(error: ApiError, dialect: Dialect) -> web.Response:
    """The answer that says it."""
    headers = {"Content-Type": "application/json", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return web.Response(status=error.status, body=error.body(dialect), headers={**headers, **error.headers})


def reset(transport: asyncio.Transport) -> None:
    """Break the connection so that the other side cannot take it for an end."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
