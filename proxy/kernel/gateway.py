"""Each request that reaches Narrows is answered: by its flow, an addon, or an error.

Laws
  Every error has the form of the API that was asked, also before anything of the request was read.
  A client that leaves takes its upstream call with it.
  Of a request's target nothing but path and query is used.
"""

import asyncio
import re
from collections.abc import Mapping
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from time import perf_counter
from typing import Any, Self, cast
from unicodedata import normalize
from urllib.parse import unquote

from aiohttp import HttpVersion10, HttpVersion11, web

from policies.dialects import DIALECTS, Reply
from policies.dialects.common import RECALL_ALONE, Ours
from policies.tools import OURS, SEARCH
from proxy.config.routes import MISTAKES, ROUTES, Route, spoken
from proxy.errors import ApiError, internal_error, shutting_down
from proxy.identity.who import has_other_name
from proxy.kernel.addons import Exchange, RelayedRequest, request_id
from proxy.kernel.admission import VISIT
from proxy.kernel.receive import forwarded_headers, named_model, receive
from proxy.kernel.reply import RecallLoop, WatchedReply, is_stream
from proxy.kernel.send import Sender
from proxy.kernel.services import KernelParts
from proxy.kernel.wire.downstream import Responder, between_events
from proxy.requests import ClientRequest, ReplyRound, UpstreamRequest
from proxy.upstreams.upstream import READABLE, CutError

PREFIX = "/v1"
_INSIDE = re.compile(r"/v1(?=/|$)|/openai/deployments/([^/]+)(?=/)|/openai/v1(?=/|$)|/openai(?=/)(?!/+v1(?:/|$))")
"""How paths of the API begin: OpenAI's own, and Azure's, whose client names the model there."""
_NO_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
_NOT_RELAYED = frozenset({"TRACE", "PURGE"})
"""Methods by which an upstream would return a credential in its reply, or take Narrows for an administrator."""
_FAREWELL_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a request: `path` decoded and normalized, to choose by, in the API as if it were under /v1; `rest`
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
        responder = Responder(exchange, parts, lambda: self._ending)
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
        """Running requests have `grace` seconds to finish; then they are ended, and say so to their clients."""
        await self._quiet_within(grace)
        self._ending = True
        for task in self._running:
            task.cancel()
        await self._quiet_within(_FAREWELL_SECONDS)
        self._is_quiet.set()

    async def _quiet_within(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_quiet.wait()

    async def _answer(self, exchange: Exchange, responder: Responder) -> web.StreamResponse:
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
    request = exchange.request
    if "Origin" in request.headers and has_other_name(request, host):
        message = "This host name is not served: use the address of Narrows, `localhost` or the name in `host`."
        raise ApiError(403, message, "forbidden")
    if "websocket" not in request.headers.get("Upgrade", "").lower():
        return
    if route_of("POST", exchange.path, {}).kind != "chat":
        raise ApiError(501, "Narrows does not relay websockets; connect to the upstream directly.", "no_websockets")
    # clients that could ask by HTTP take 426 for an order to do so at once; after any other status some try again
    message = "Narrows does not speak websockets: send the request with POST, and `stream` for events."
    raise ApiError(426, message, "no_websockets", headers={"Upgrade": "HTTP/1.1", "Connection": "Upgrade"})


def _check_head(request: web.BaseRequest) -> None:
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
    """The route of a request. A path of no API is OpenAI's, or Anthropic's where the headers say so."""
    if method == "POST" and path in ROUTES:
        return ROUTES[path]
    while path:
        if path in ROUTES:
            return Route(ROUTES[path].dialect)
        path = path.rpartition("/")[0]
    return Route(spoken(headers)[0])


# --- the way of one exchange: receive -> prepare -> send -> reply ---
# A chat request is received, prepared and forwarded; so is one that asks for its number of tokens, and nothing is
# remembered of that one; everything else under /v1 is relayed as it comes, both ways.

_RELAY_HEADERS = {"x-narrows-mode": "relayed"}


class Flow:
    def __init__(self, parts: KernelParts, exchange: Exchange, responder: Responder) -> None:
        self._parts, self._exchange, self._responder = parts, exchange, responder
        self._send = Sender(parts, exchange)

    async def run(self) -> web.StreamResponse:
        exchange = self._exchange
        await exchange.receive()
        if exchange.relayed is not None:
            return await self._relay(exchange.relayed)
        assert exchange.client_request is not None
        upstream_request = await self._prepare(exchange.client_request)
        if exchange.client_request.counting is not None:
            return await self._count(upstream_request)
        return await self._chat(upstream_request)

    async def _prepare(self, client_request: ClientRequest) -> UpstreamRequest:
        exchange, responder, settings = self._exchange, self._responder, self._parts.settings
        tells_waiting = settings.summary_comments and settings.summary_wait > 0 and client_request.counting is None
        began = perf_counter()
        with exchange.trace.plan() if exchange.trace is not None else nullcontext():
            waiting = responder.early.waiting if tells_waiting else None
            upstream_request = await self._parts.prepare(client_request, waiting)
        exchange.upstream_request = upstream_request
        if exchange.asks_usage:
            if upstream_request.planned is None and client_request.counting is None:
                exchange.model = await named_model(client_request.body)
            option = DIALECTS[client_request.dialect].usage_option
            is_asked = option is not None and option.ask(client_request.body) is not None
            exchange.usage_option = option if is_asked and client_request.counting is None else None
        exchange.visit.end_planning()
        exchange.added_ms = ms_since(began)
        exchange.headers = upstream_request.headers
        if responder.has_begun:
            await responder.early.declare(upstream_request.headers)
        await self._parts.addons.planned(exchange)
        return upstream_request

    async def _chat(self, upstream_request: UpstreamRequest) -> web.StreamResponse:
        exchange, responder, send = self._exchange, self._responder, self._send
        rounds = self._parts.settings.recall_rounds if upstream_request.notes.is_read else None
        reader = DIALECTS[upstream_request.client_request.dialect].reply(rounds, _ours(upstream_request))
        reply = exchange.reader = _watched(reader, exchange)
        send.is_read = responder.has_begun or upstream_request.notes.is_read or exchange.usage_option is not None
        if send.is_read:
            loop = RecallLoop(self._parts.follow_up, send, upstream_request, reply, exchange.trace, exchange.rounds)
            return await self._chat_in_rounds(loop)
        status = 0
        try:
            async with send(upstream_request, 0) as (upstream_request, upstream_reply):
                exchange.status = status = upstream_reply.status
                return await responder.pass_on_observed(upstream_reply, upstream_request.headers, reply)
        finally:
            self._end_round(upstream_request, reply, status)

    async def _chat_in_rounds(self, loop: RecallLoop) -> web.StreamResponse:
        """Forward a request whose reply may hold recall calls, or whose response has begun."""
        exchange, responder = self._exchange, self._responder
        try:
            async with self._send(loop.upstream_request, 0) as sent:
                loop.begin(sent)
                upstream_request, upstream_reply = sent
                exchange.status = upstream_reply.status
                readable = upstream_reply.status == 200 and upstream_reply.received_encoding in READABLE
                if responder.has_begun:
                    if not readable or not is_stream(upstream_reply, upstream_request):
                        raise await loop.refusal(upstream_reply)
                    events = loop.events(upstream_reply, continues=True)
                    return await responder.pass_on(responder.early, events, between_events)
                if not readable:
                    return await responder.pass_on_observed(upstream_reply, upstream_request.headers, loop.reply)
                if is_stream(upstream_reply, upstream_request):
                    upstream_reply.rewrite()
                    response = await responder.begin(upstream_reply, upstream_request.headers)
                    return await responder.pass_on(response, loop.events(upstream_reply), between_events)
                try:
                    head, body = await loop.whole(upstream_reply)
                except CutError as error:
                    raise ApiError(502, str(error), "upstream_cut") from error
                exchange.status = head.status
                head.rewrite(len(body))
                response = await responder.begin(head, upstream_request.headers)
                return await responder.pass_on(response, body, None)
        finally:
            self._end_round(loop.upstream_request, loop.reply, loop.status)

    def _end_round(self, upstream_request: UpstreamRequest, reply: Reply, status: int) -> None:
        if self._parts.follow_up is not None:
            self._parts.follow_up.learn(upstream_request, reply, status)
        self._exchange.rounds.append(ReplyRound(upstream_request, status, reply.usage))

    async def _count(self, upstream_request: UpstreamRequest) -> web.StreamResponse:
        """Forward the request that would be sent, to have its tokens counted."""
        async with self._send(upstream_request, 0) as (_, upstream_reply):
            self._exchange.status = upstream_reply.status
            response = await self._responder.begin(upstream_reply, upstream_request.headers)
            return await self._responder.pass_on(response, upstream_reply.chunks(), None)

    async def _relay(self, relayed: RelayedRequest) -> web.StreamResponse:
        exchange, responder, upload = self._exchange, self._responder, relayed.upload
        request = exchange.request
        if relayed.upstream is None:
            return responder.own(await relayed.reach.models(relayed.lists, request, exchange.rest))
        headers = forwarded_headers(request, request.raw_headers, self._parts.settings)
        sending = self._send.call(relayed.upstream, request.method, headers, relayed.body, relayed.model)
        try:
            with closing(await sending) as upstream_reply:
                exchange.status = upstream_reply.status
                if exchange.listener is None:
                    response = await responder.begin(upstream_reply, _RELAY_HEADERS)
                    return await responder.pass_on(response, upstream_reply.chunks(), None)
                reader = _watched(DIALECTS[exchange.route.dialect].reply(None), exchange)
                try:
                    return await responder.pass_on_observed(upstream_reply, _RELAY_HEADERS, reader)
                finally:
                    exchange.reader = reader
        except ApiError as error:
            raise (upload and upload.fault) or error from None
        finally:
            exchange.received = upload.size if upload else 0


def ms_since(began: float) -> float:
    """Milliseconds from `began`, a reading of `perf_counter`, until now."""
    return (perf_counter() - began) * 1000


def _watched(reply: Reply, exchange: Exchange) -> Reply:
    wishes = (exchange.usage_option, exchange.listener, exchange.reply)
    return cast("Reply", WatchedReply(reply, exchange)) if wishes != (None, None, None) else reply


def _ours(upstream_request: UpstreamRequest) -> Ours:
    """What the reply may hold of ours."""
    planned = upstream_request.planned
    if planned is None or (tools := planned.context.tools.tools) is None:
        return RECALL_ALONE
    return Ours(OURS if planned.context.tool is not None else frozenset({SEARCH}), tools.names, tools.whole)
