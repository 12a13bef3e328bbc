"""The response to one request: the upstream's reply passed on, or an error.

Laws
  What the upstream sends is passed on at once and unchanged; what reads the reply reads a copy.
  A reply that breaks off breaks off for the client too: no invented finish_reason, no [DONE], no clean end.
  Where a client was told to wait, its response has begun: whatever goes wrong afterwards is said in the stream.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

from aiohttp import web

from policies.dialects import DIALECTS, Reply
from proxy.errors import ApiError, FailedError, internal_error, shutting_down
from proxy.kernel.addons import Exchange
from proxy.kernel.admission import Admission
from proxy.kernel.wire.downstream import SERVER, Connection, Early, Relayed, Response, error_response
from proxy.sse import Copy
from proxy.telemetry import Telemetry
from proxy.telemetry.record import ID_HEADER
from proxy.upstreams.upstream import CutError, UpstreamReply

_MUCH = 2**20


class Responder:
    """`is_ending`: whether Narrows is ending what still runs."""

    def __init__(
        self,
        exchange: Exchange,
        is_ending: Callable[[], bool],
        admission: Admission,
        telemetry: Telemetry,
        body_limit: int,
    ) -> None:
        self._exchange = exchange
        self._request = exchange.request
        self._is_ending = is_ending
        self._admission = admission
        self._telemetry = telemetry
        self._body_limit = body_limit
        self._early: Early | None = None

    @property
    def early(self) -> Early:
        if self._early is None:
            self._early = Early(self._request, self._exchange.request_id)
            self._early.headers.update(self._exchange.own_headers)
        return self._early

    @property
    def has_begun(self) -> bool:
        return self._early is not None and self._early.prepared

    async def refuse(self, error: ApiError) -> web.StreamResponse:
        self._exchange.trouble = error.code
        if self.has_begun:
            self._exchange.status = self.early.status
            await self.break_off(self.early, between_events, error)
            return self.early
        self._exchange.status = error.status
        response = error_response(error, DIALECTS[self._exchange.route.dialect])
        if self._exchange.request_id:
            response.headers[ID_HEADER] = self._exchange.request_id
        if error.code == "not_http" or not self._request.content.is_eof():
            response.force_close()
            self._end_body()
        return response

    def _end_body(self) -> None:
        """Receive no more of a body where there is much to come: without a length, as much again as has come."""
        connection, came = self._request.protocol, self._request.content.total_bytes
        length = self._request.content_length
        left = came if length is None else length - came
        if left > _MUCH and isinstance(connection, Connection) and not self._admission.drains(left):
            connection.stop_reading()

    def own(self, body: bytes) -> web.Response:
        self._exchange.status, self._exchange.replied = 200, len(body)
        own = {"Content-Type": "application/json", ID_HEADER: self._exchange.request_id, **SERVER}
        return web.Response(body=body, headers={**own, **self._exchange.own_headers})

    async def begin(self, upstream_reply: UpstreamReply, headers: Mapping[str, str]) -> Relayed:
        self._exchange.headers = headers
        declared = {**headers, ID_HEADER: self._exchange.request_id}
        return await Relayed.begin(self._request, upstream_reply, declared)

    async def pass_on_observed(
        self, upstream_reply: UpstreamReply, headers: Mapping[str, str], reply: Reply
    ) -> web.StreamResponse:
        """Pass on a reply unchanged while `reply` reads a copy of it."""
        limit = self._body_limit
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
        self._exchange.unread = copy.trouble
        return response

    async def pass_on(
        self, response: Response, body: AsyncGenerator[bytes, None] | bytes, amid: Callable[[], bool] | None
    ) -> web.StreamResponse:
        """Send the reply on, as it comes where it is not here yet. `amid` tells whether the client has received half an
        event; None where no event can say that the reply breaks off."""
        try:
            if isinstance(body, bytes):
                await response.write_eof(body)
                self._exchange.replied += len(body)
                self._exchange.is_whole = True
                return response
            async with aclosing(body):
                async for piece in body:
                    await response.write(piece)
                    self._exchange.replied += len(piece)
        except CutError as error:
            await self.break_off(response, amid, ApiError(502, str(error), "upstream_cut"))
        except ApiError as error:
            if isinstance(error, FailedError):
                self._telemetry.log.error("unexpected", error=error.code, exc_info=error.__cause__)
            await self.break_off(response, amid, error)
        except asyncio.CancelledError:
            if not self._is_ending():
                raise
            await self.break_off(response, amid, shutting_down())
        except ConnectionError:  # the client has left
            raise
        except Exception as error:  # another response would stand in the middle of this one
            self._telemetry.log.error("unexpected", error=type(error).__name__, exc_info=error)
            await self.break_off(response, amid, internal_error())
        else:
            self._exchange.is_whole = True
            await response.write_eof()
        return response

    async def break_off(self, response: Response, amid: Callable[[], bool] | None, error: ApiError) -> None:
        """End a response that has begun, and say why in the form of the API."""
        self._exchange.trouble = error.code
        dialect = DIALECTS[self._exchange.route.dialect]
        reply = self._exchange.reader or dialect.reply(None)
        await response.break_off(self._request, amid, reply.last_event(error.body(dialect)))


def between_events() -> bool:
    """Only whole events were sent."""
    return False
