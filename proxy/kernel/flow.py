"""The way of one exchange: receive -> prepare -> send -> reply, and what is learned of it behind that.

Law
  A chat request is received, prepared and forwarded; so is one that asks for its number of tokens, and nothing is
  remembered of that one; everything else under /v1 is relayed as it comes, both ways.
"""

from contextlib import closing
from time import perf_counter

from aiohttp import web

from policies.dialects import DIALECTS, Reply
from proxy.errors import ApiError
from proxy.kernel.exchange import Exchange, RelayedRequest
from proxy.kernel.head import forwarded_headers
from proxy.kernel.models import named_model
from proxy.kernel.parts import KernelParts
from proxy.kernel.reply import RecallLoop, WatchedReply, is_stream
from proxy.kernel.send import Sender
from proxy.kernel.wire.responder import Responder, between_events
from proxy.requests import ClientRequest, ReplyRound, UpstreamRequest
from proxy.upstreams.upstream import READABLE, CutError

_RELAY_HEADERS = {"x-narrows-mode": "relayed"}


class Flow:
    def __init__(self, parts: KernelParts, exchange: Exchange, responder: Responder) -> None:
        self._parts = parts
        self._exchange = exchange
        self._responder = responder
        self._send = Sender(parts, exchange)

    async def run(self) -> web.StreamResponse:
        """Serve the request. Raises ApiError."""
        exchange = self._exchange
        await exchange.receive()
        if exchange.relayed is not None:
            return await self._relay(exchange.relayed)
        assert exchange.client_request is not None
        upstream_request = await self._prepare(exchange.client_request)
        if exchange.client_request.only_counts:
            return await self._count(upstream_request)
        return await self._chat(upstream_request)

    async def _prepare(self, client_request: ClientRequest) -> UpstreamRequest:
        """What goes upstream. Raises ApiError where a policy wants the request to fail."""
        exchange, responder, settings = self._exchange, self._responder, self._parts.settings
        tells_waiting = settings.summary_comments and settings.summary_wait > 0 and not client_request.only_counts
        began = perf_counter()
        with exchange.trace.plan():
            waiting = responder.early.waiting if tells_waiting else None
            upstream_request = await self._parts.prepare(client_request, waiting)
        exchange.upstream_request = upstream_request
        if exchange.asks_usage:
            if upstream_request.planned is None and not client_request.only_counts:
                exchange.model = await named_model(client_request.body)
            option = DIALECTS[client_request.dialect].usage_option
            is_asked = option is not None and option.ask(client_request.body) is not None
            exchange.usage_option = option if is_asked and not client_request.only_counts else None
        exchange.visit.end_planning()
        exchange.added_ms = ms_since(began)
        exchange.headers = upstream_request.headers
        if responder.has_begun:
            await responder.early.declare(upstream_request.headers)
        await self._parts.addons.planned(exchange)
        return upstream_request

    async def _chat(self, upstream_request: UpstreamRequest) -> web.StreamResponse:
        exchange, responder, send = self._exchange, self._responder, self._send
        reply = exchange.reader = self._reader(upstream_request)
        send.is_read = responder.has_begun or upstream_request.recalls or exchange.usage_option is not None
        if send.is_read:
            loop = RecallLoop(self._parts.compaction, send, upstream_request, reply, exchange.trace, exchange.rounds)
            return await self._chat_in_rounds(loop)
        status = 0
        try:
            async with send(upstream_request, 0) as (upstream_request, upstream_reply):
                exchange.status = status = upstream_reply.status
                return await responder.pass_on_observed(upstream_reply, upstream_request.headers, reply)
        finally:
            self._end_round(upstream_request, reply, status)

    def _reader(self, upstream_request: UpstreamRequest) -> Reply:
        """A fresh reader of the reply."""
        exchange = self._exchange
        rounds = self._parts.settings.recall_rounds if upstream_request.recalls else None
        reply = DIALECTS[upstream_request.client_request.dialect].reply(rounds)
        wishes = (exchange.usage_option, exchange.listener, exchange.reply)
        return WatchedReply(reply, exchange) if any(each is not None for each in wishes) else reply

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
        """The last round of a reply is over."""
        if self._parts.compaction is not None:
            self._parts.compaction.learn(upstream_request, reply, status)
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
                reader = WatchedReply(DIALECTS[exchange.route.dialect].reply(None), exchange)
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
