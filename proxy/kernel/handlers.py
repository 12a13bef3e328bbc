"""What answers each request that reaches Narrows: its flow, a page of our own, or an error.

Laws
  Every error has the form of the API that was asked, also before anything of the request was read.
  A client that leaves takes its upstream call with it.
  Of a request's target nothing but path and query is used.
"""

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter
from typing import Any, Protocol, Self
from unicodedata import normalize
from urllib.parse import unquote

from aiohttp import HttpVersion10, HttpVersion11, web

from proxy.config.routes import COMPRESS, MISTAKES, RETRIEVE, ROUTES, Route, spoken
from proxy.errors import ApiError, internal_error, shutting_down
from proxy.identity.place import has_other_name
from proxy.identity.who import IDENTITY
from proxy.kernel.admission import VISIT
from proxy.kernel.flow import Flow, ms_since
from proxy.kernel.parts import FlowParts
from proxy.kernel.wire.downstream import SERVER
from proxy.telemetry.record import ID_HEADER, RequestRecord

PREFIX = "/v1"
_INSIDE = re.compile(r"/v1(?=/|$)|/openai/deployments/([^/]+)(?=/)|/openai/v1(?=/|$)|/openai(?=/)(?!/+v1(?:/|$))")
"""How paths of the API begin: OpenAI's own, and Azure's, whose client names the model there."""
_NO_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
_FOR_ALL = ("/", "/healthz", "/readyz")
"""Pages at which nobody's key is looked at."""
_NOT_RELAYED = frozenset({"TRACE", "PURGE"})
"""Methods by which an upstream would return a credential in its reply, or take Narrows for an administrator."""
_FAREWELL_SECONDS = 2.0
"""How long requests that are ended at shutdown have to say so to their clients."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a request asks for: `path` decoded and normalized, to choose by, in the API as if it were under /v1; `rest`
    as it came, after /v1 or what stands for that, None for what is not of the API; the model that it names itself."""

    path: str
    rest: str | None
    deployment: str = ""

    @classmethod
    @lru_cache
    def read(cls, raw: str) -> Self:
        """Read a request target. Whatever could mean another host or another place is refused."""
        path, question, query = raw.partition("?")
        plain = path
        try:
            for _ in range(4):  # until nothing changes, so that no encoding of an encoding hides what a path means
                plain, before = unquote(plain, errors="strict"), plain
                if plain == before:
                    break
            else:
                raise ApiError(400, "The path is percent-encoded too many times.", "bad_target")
        except UnicodeDecodeError:
            raise ApiError(400, "The path is not UTF-8.", "bad_target") from None
        segments = plain.replace("\\", "/").split("/")
        dots = any(part.strip() in (".", "..") for part in re.split("[/;]", normalize("NFKC", "/".join(segments))))
        if not raw.startswith("/") or raw.startswith("//") or not raw.isascii() or "#" in raw:
            raise ApiError(400, "The request target must be a path that starts with /v1/.", "bad_target")
        if dots or not plain.isprintable() or _NO_ESCAPE.search(path):
            message = "The path has dot segments, control characters or a % that escapes nothing."
            raise ApiError(400, message, "bad_target")
        inside = _INSIDE.match(path)
        if inside is None:
            return cls("/" + "/".join(filter(None, segments)), None)
        rest, deployment = path[inside.end() :], unquote(inside[1] or "")
        if set(deployment) & set("/\\%?#"):
            raise ApiError(400, "This cannot be the name of a deployment.", "bad_target")
        below = plain.replace("\\", "/").split("/")[inside[0].count("/") + 1 :]
        return cls("/".join((PREFIX, *filter(None, below))), rest + question + query, deployment)


class OwnPages(Protocol):
    """Narrows' own pages: health, metrics and what is stored of conversations."""

    ready: bool
    """Whether new requests are welcome: false from the beginning of a shutdown."""

    def has(self, path: str, /) -> bool:
        """Whether there is a page at this path."""

    async def answer(self, request: web.BaseRequest, path: str, /) -> web.Response:
        """The page. Raises ApiError."""


class Gateway:
    def __init__(self, parts: FlowParts, pages: OwnPages) -> None:
        self._parts = parts
        self.shadows = parts.shadows
        self.admission = parts.admission
        self.limits, self.price_book = parts.limits, parts.price_book
        self._pages = pages
        self._telemetry = parts.telemetry
        self._running: set[asyncio.Task[Any]] = set()
        self._is_quiet = asyncio.Event()
        self._is_quiet.set()
        self._ending = False

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        flow = Flow(self._parts, request, lambda: self._ending)
        began = perf_counter()
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        self._is_quiet.clear()
        visit = request[VISIT] = self.admission.visit(request)
        try:
            return await self._answer(request, flow)
        finally:
            visit.close()
            self._running.discard(task)
            if not self._running:
                self._is_quiet.set()
            flow.record.ms = ms_since(began)
            flow.close()
            self._telemetry.request(flow.record)

    @property
    def running(self) -> int:
        return len(self._running)

    async def finished(self) -> None:
        """Nothing runs any more. (The tasks that run are those of connections, which outlive their requests.)"""
        await self._is_quiet.wait()

    async def drain(self, grace: float) -> None:
        """Not ready from now on; what runs has `grace` seconds to finish, is then ended, and says so to its client."""
        self._pages.ready = False
        await self._quiet_within(grace)
        self._ending = True
        for task in self._running:
            task.cancel()
        await self._quiet_within(_FAREWELL_SECONDS)
        self._is_quiet.set()

    async def _quiet_within(self, seconds: float) -> None:
        """Wait until nothing runs, for so long at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_quiet.wait()

    async def _answer(self, request: web.BaseRequest, flow: Flow) -> web.StreamResponse:
        """Run the flow; an error response where that fails."""
        try:
            return await self._run(request, flow)
        except ApiError as error:
            refusal = error.with_traceback(None)  # which refers to all that the request had
        except (asyncio.CancelledError, ConnectionError) as error:
            if not self._ending or isinstance(error, ConnectionError):
                flow.record.status, flow.record.trouble = 499, "client_left"
                raise
            refusal = shutting_down()
        except Exception as error:
            self._telemetry.log.error("unexpected", error=type(error).__name__, exc_info=error)
            refusal = internal_error()
        return await flow.refuse(refusal)

    async def _run(self, request: web.BaseRequest, flow: Flow) -> web.StreamResponse:
        """A page of our own, or the flow of a request for the upstream. Raises ApiError."""
        try:
            _check_head(request)
            target = Target.read(request.raw_path)
        except ApiError:
            flow.route = route_of("", request.raw_path.partition("?")[0], request.headers)
            raise
        flow.route = route_of(request.method, target.path, request.headers)
        if target.path in MISTAKES:
            path, remedy = MISTAKES[target.path]
            flow.route = route_of(request.method, path, request.headers)
            raise ApiError(404, f"There is nothing at {target.path}, but at {path}: {remedy}", "wrong_base_url")
        if target.rest is None:
            if not self._pages.has(target.path):
                raise ApiError(
                    404, "There is nothing here: the API is under /v1, the live page at /narrows/.", "not_found"
                )
            flow.record.route = "page"
            if target.path not in _FOR_ALL:
                await self._parts.gate.recognize(request)
            response = await self._pages.answer(request, target.path)
            response.headers.update(SERVER)
            response.headers[ID_HEADER] = flow.record.request_id
            flow.record.status = response.status
            return response
        if "Origin" in request.headers and has_other_name(request, self._parts.settings.host):
            message = "This host name is not served: use the address of Narrows, `localhost` or the name in `host`."
            raise ApiError(403, message, "forbidden")
        if "websocket" in request.headers.get("Upgrade", "").lower():
            if route_of("POST", target.path, {}).kind != "chat":
                raise ApiError(
                    501, "Narrows does not relay websockets; connect to the upstream directly.", "no_websockets"
                )
            # clients that could ask by HTTP take 426 for an order to do so at once; after any other status some try
            # again for a while
            message = "Narrows does not speak websockets: send the request with POST, and `stream` for events."
            instead = {"Upgrade": "HTTP/1.1", "Connection": "Upgrade"}
            raise ApiError(426, message, "no_websockets", headers=instead)
        await self._parts.gate.enter(request)
        _identify(request, flow.record)
        is_compress = target.path == COMPRESS or target.path.startswith(RETRIEVE)
        if is_compress and self._parts.compress_api is not None:
            flow.route = Route(flow.route.dialect, "compress")
        flow.rest, flow.deployment = target.rest, target.deployment
        request[VISIT].enter()
        return await flow.run()


def _identify(request: web.BaseRequest, record: RequestRecord) -> None:
    """Note who asks, as the entrance has found out."""
    access = request.get(IDENTITY)
    if access is not None:
        record.request_id = access.request_id or record.request_id
        record.key = access.key.name if access.key is not None else ""


def _check_head(request: web.BaseRequest) -> None:
    """Raises ApiError for what is refused whatever its target is."""
    if request.version not in (HttpVersion10, HttpVersion11):
        raise ApiError(400, "Narrows speaks only HTTP/1.0 and HTTP/1.1.", "not_http")
    if request.version == HttpVersion10 and "Transfer-Encoding" in request.headers:
        raise ApiError(400, "HTTP/1.0 has no Transfer-Encoding; use HTTP/1.1.", "not_http", "transfer-encoding")
    if request.method == "CONNECT":
        raise ApiError(405, "Narrows is not a forward proxy; set it as the client's base_url.", "not_a_proxy")
    if request.method in _NOT_RELAYED:
        allowed = {"Allow": "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"}
        message = f"Narrows does not relay {request.method}; send it to the upstream directly."
        raise ApiError(405, message, "method_not_allowed", headers=allowed)


def route_of(method: str, path: str, headers: Mapping[str, str]) -> Route:
    """What is done with a request. A path of no API is OpenAI's, or Anthropic's where the headers say so."""
    if method == "POST" and path in ROUTES:
        return ROUTES[path]
    while path:
        if path in ROUTES:
            return Route(ROUTES[path].dialect)
        path = path.rpartition("/")[0]
    return Route(spoken(headers)[0])
