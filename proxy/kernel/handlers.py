"""What answers each request that reaches Narrows: its flow, an addon, or an error.

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
from functools import lru_cache, partial
from time import perf_counter
from typing import Any, Self
from unicodedata import normalize
from urllib.parse import unquote

from aiohttp import HttpVersion10, HttpVersion11, web

from proxy.config.routes import MISTAKES, ROUTES, Route, spoken
from proxy.errors import ApiError, internal_error, shutting_down
from proxy.identity.place import has_other_name
from proxy.kernel.admission import VISIT
from proxy.kernel.exchange import Exchange
from proxy.kernel.flow import Flow, ms_since
from proxy.kernel.parts import KernelParts
from proxy.kernel.receive import receive
from proxy.kernel.wire.responder import Responder
from proxy.requests import request_id

PREFIX = "/v1"
_INSIDE = re.compile(r"/v1(?=/|$)|/openai/deployments/([^/]+)(?=/)|/openai/v1(?=/|$)|/openai(?=/)(?!/+v1(?:/|$))")
"""How paths of the API begin: OpenAI's own, and Azure's, whose client names the model there."""
_NO_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
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


class Gateway:
    """Answers requests under the same settings."""

    def __init__(self, parts: KernelParts) -> None:
        self._parts = parts
        self._running: set[asyncio.Task[Any]] = set()
        self._is_quiet = asyncio.Event()
        self._is_quiet.set()
        self._ending = False

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        parts, began, task = self._parts, perf_counter(), asyncio.current_task()
        exchange = Exchange(request, request_id(), partial(receive, parts))
        responder = Responder(
            exchange, lambda: self._ending, parts.admission, parts.telemetry, parts.settings.body_limit
        )
        assert task is not None
        self._running.add(task)
        self._is_quiet.clear()
        visit = request[VISIT] = parts.admission.visit(request)
        try:
            return await self._answer(exchange, responder)
        finally:
            try:
                visit.close()
                exchange.ms = ms_since(began)
                await parts.addons.finished(exchange)
            finally:
                self._running.discard(task)
                if not self._running:
                    self._is_quiet.set()

    @property
    def running(self) -> int:
        return len(self._running)

    async def finished(self) -> None:
        """Nothing runs any more. (The tasks that run are those of connections, which outlive their requests.)"""
        await self._is_quiet.wait()

    async def drain(self, grace: float) -> None:
        """What runs has `grace` seconds to finish, is then ended, and says so to its client."""
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

    async def _answer(self, exchange: Exchange, responder: Responder) -> web.StreamResponse:
        """The answer, or an error response where there is none."""
        try:
            return await self._run(exchange, responder)
        except ApiError as error:
            refusal = error.with_traceback(None)  # which refers to all that the request had
        except (asyncio.CancelledError, ConnectionError) as error:
            if not self._ending or isinstance(error, ConnectionError):
                exchange.status, exchange.trouble = 499, "client_left"
                raise
            refusal = shutting_down()
        except Exception as error:
            self._parts.telemetry.log.error("unexpected", error=type(error).__name__, exc_info=error)
            refusal = internal_error()
        return await responder.refuse(refusal)

    async def _run(self, exchange: Exchange, responder: Responder) -> web.StreamResponse:
        """Let the request in, and answer it. Raises ApiError."""
        addons = self._parts.addons
        _read_target(exchange)
        if not exchange.is_api:
            await addons.knock(exchange)
            if exchange.answer is None:
                message = "There is nothing here: the API is under /v1, the live page at /narrows/."
                raise ApiError(404, message, "not_found")
            return await exchange.answer()
        _check_origin(exchange, self._parts.settings.host)
        await addons.knock(exchange)
        exchange.visit.enter()
        exchange.kind = exchange.route.kind
        await addons.admit(exchange)
        if exchange.answer is not None:
            return await exchange.answer()
        return await Flow(self._parts, exchange, responder).run()


def _read_target(exchange: Exchange) -> None:
    """Read what is asked. Raises ApiError."""
    request = exchange.request
    try:
        _check_head(request)
        target = Target.read(request.raw_path)
    except ApiError:
        exchange.route = route_of("", request.raw_path.partition("?")[0], request.headers)
        raise
    exchange.path, exchange.route = target.path, route_of(request.method, target.path, request.headers)
    if target.path in MISTAKES:
        path, remedy = MISTAKES[target.path]
        exchange.route = route_of(request.method, path, request.headers)
        raise ApiError(404, f"There is nothing at {target.path}, but at {path}: {remedy}", "wrong_base_url")
    exchange.rest, exchange.deployment, exchange.is_api = target.rest or "", target.deployment, target.rest is not None


def _check_origin(exchange: Exchange, host: str) -> None:
    """Raises ApiError for what is no request of a client that means this API."""
    request = exchange.request
    if "Origin" in request.headers and has_other_name(request, host):
        message = "This host name is not served: use the address of Narrows, `localhost` or the name in `host`."
        raise ApiError(403, message, "forbidden")
    if "websocket" not in request.headers.get("Upgrade", "").lower():
        return
    if route_of("POST", exchange.path, {}).kind != "chat":
        raise ApiError(501, "Narrows does not relay websockets; connect to the upstream directly.", "no_websockets")
    # clients that could ask by HTTP take 426 for an order to do so at once; after any other status some try again for a
    # while
    message = "Narrows does not speak websockets: send the request with POST, and `stream` for events."
    raise ApiError(426, message, "no_websockets", headers={"Upgrade": "HTTP/1.1", "Connection": "Upgrade"})


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
