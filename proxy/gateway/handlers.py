"""What answers each request that reaches Narrows: its walk, a page of our own, or a refusal.

Laws
  Whatever goes wrong is said in the words of the API that was asked, also before anything of the request was read.
  A client that leaves takes its upstream call with it.
"""

import asyncio
from time import perf_counter
from typing import Any, Protocol

from aiohttp import web

from policies.dialects import DIALECTS, Reply
from proxy.compaction.prepare import UpstreamRequest
from proxy.config.routes import route_of
from proxy.errors import ApiError, internal_error, shutting_down
from proxy.gateway.flow import Flow, Parts, ms_since
from proxy.gateway.upstream import Target
from proxy.requests import ClientRequest
from proxy.summaries.background import Waiting

_FAREWELL_SECONDS = 2.0


class Bypass:
    """What `mode = off` makes of compaction: it plans nothing, remembers nothing and needs no store."""

    async def prepare(self, client_request: ClientRequest, waiting: Waiting | None = None, /) -> UpstreamRequest:
        """The client's own bytes."""
        headers = {"x-narrows-mode": "bypassed", "x-narrows-prefix": "bypassed"}
        return UpstreamRequest(client_request.body, headers, client_request.dialect)

    async def preview(self, client_request: ClientRequest, /) -> UpstreamRequest:
        """The same."""
        return await self.prepare(client_request)

    def reply(self, upstream_request: UpstreamRequest, /) -> Reply:
        """Only reads, to say where a reply breaks off."""
        return DIALECTS[upstream_request.dialect].reply(None)

    async def again(self, upstream_request: UpstreamRequest, reply: Reply, choice: int, /) -> UpstreamRequest:
        """Nothing is recalled."""
        return upstream_request

    async def keep(self, upstream_request: UpstreamRequest, reply: Reply, choice: int, /) -> None:
        """Nothing was recalled."""

    async def record(self, upstream_request: UpstreamRequest, reply: Reply, status: int, /) -> None:
        """Nothing to remember."""


class Pages(Protocol):
    """Narrows' own pages: health, metrics and what is stored of conversations."""

    ready: bool
    """Whether new requests are welcome: false from the beginning of a shutdown."""

    def has(self, path: str, /) -> bool:
        """Whether there is a page at this path."""

    async def answer(self, request: web.BaseRequest, path: str, /) -> web.Response:
        """The page. Raises ApiError."""


class Gateway:
    """Answers every request that reaches Narrows."""

    def __init__(self, parts: Parts, pages: Pages) -> None:
        self._parts = parts
        self._pages = pages
        self._telemetry = parts.telemetry
        self._running: set[asyncio.Task[Any]] = set()
        parts.telemetry.metrics.running.set_function(lambda: len(self._running))
        self._ending = False

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        walk = Flow(self._parts, request, lambda: self._ending)
        began = perf_counter()
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            return await self._answer(request, walk)
        finally:
            self._running.discard(task)
            walk.exchange.ms = ms_since(began)
            self._telemetry.request(walk.exchange)

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

    async def _answer(self, request: web.BaseRequest, walk: Flow) -> web.StreamResponse:
        try:
            return await self._begun(request, walk)
        except ApiError as error:
            refusal = error
        except asyncio.CancelledError:
            if not self._ending:
                walk.exchange.status, walk.exchange.trouble = 499, "client_left"
                raise
            refusal = shutting_down()
        except ConnectionError:  # writing to a client that has left
            walk.exchange.status, walk.exchange.trouble = 499, "client_left"
            raise
        except Exception as error:
            self._telemetry.log.error("unexpected", error=type(error).__name__, exc_info=error)
            refusal = internal_error()
        return await walk.refuse(refusal)

    async def _begun(self, request: web.BaseRequest, walk: Flow) -> web.StreamResponse:
        """Whatever is asked for. Raises ApiError."""
        walk.route = route_of("", request.raw_path.partition("?")[0], request.headers)  # as long as it is not read
        if request.method == "CONNECT":
            raise ApiError(405, "Narrows is not a forward proxy; set it as base_url.", "not_a_proxy")
        target = Target.read(request.raw_path)
        walk.route = route_of(request.method, target.path, request.headers)
        if self._pages.has(target.path):
            walk.exchange.route = "page"
            response = await self._pages.answer(request, target.path)
            walk.exchange.status = response.status
            return response
        if target.rest is None:
            raise ApiError(404, "There is nothing here; the API is under /v1.", "not_found")
        if "websocket" in request.headers.get("Upgrade", "").lower():
            raise _no_websockets(target.path)
        walk.rest = target.rest
        return await walk.go()


def _no_websockets(path: str) -> ApiError:
    """What to do instead. Clients that could ask by HTTP take 426 for an order to do so at once; after any other status
    some try again for a while."""
    if route_of("POST", path, {}).kind == "chat":
        message = "Websockets are not spoken here: send the request with POST, and `stream` for events."
        return ApiError(426, message, "no_websockets", headers={"Upgrade": "HTTP/1.1", "Connection": "Upgrade"})
    return ApiError(501, "Websockets are not relayed; connect to the upstream.", "no_websockets")
