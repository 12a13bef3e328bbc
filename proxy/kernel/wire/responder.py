"""The response to one request: the upstream's reply passed on, or an error.

Laws
  What the upstream sends is passed on at once and unchanged; what reads the reply reads a copy.
  A reply that breaks off breaks off for the client too: no invented finish_reason, no [DONE], no clean end.
  Where a client was told to wait, its response has begun: whatever goes wrong afterwards is said in the stream.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass

from aiohttp import web

from policies.dialects import DIALECTS, Reply
from proxy.errors import ApiError, FailedError, internal_error, shutting_down
from proxy.kernel.addons import Exchange
from proxy.kernel.services import KernelParts
from proxy.kernel.wire.downstream import ID_HEADER, SERVER, Connection, Early, Relayed, Response, error_response
from proxy.sse import Copy
from proxy.upstreams.upstream import CutError, UpstreamReply

_MUCH = 2**20


@dataclass(slots=True, eq=False)
class Responder:
    """`is_ending`: whether Narrows is ending what still runs."""

    exchange: Exchange
    parts: KernelParts
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
        left = came if length is None else length - came
        if left > _MUCH and isinstance(connection, Connection) and not self.parts.admission.drains(left):
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
