"""The flow of one request, from its head to the record of what became of it.

Laws
  A chat request is received, prepared and forwarded; so is one that asks for its number of tokens, and nothing is
  remembered of that one; everything else under /v1 is relayed as it comes, both ways.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from time import perf_counter

from aiohttp import web
from multidict import CIMultiDict

from policies.dialects import DEFAULT, DIALECTS, Reply
from policies.dialects.dialect import UsageOption
from proxy.addons.access.gate import check_model, check_path
from proxy.addons.limits import metering
from proxy.addons.limits.limits import Admitted
from proxy.addons.shadows.shadows import Sample
from proxy.config.routes import ROUTES, Route, spoken
from proxy.errors import ApiError
from proxy.identity.who import IDENTITY, Identity, who
from proxy.kernel.admission import VISIT
from proxy.kernel.head import RequestHead, forwarded_headers
from proxy.kernel.model_lists import Reach
from proxy.kernel.models import allowed_names, check_named, named_model
from proxy.kernel.parts import FlowParts
from proxy.kernel.recall_loop import RecallLoop, Send, is_stream
from proxy.kernel.wire.downstream import Upload, receive
from proxy.kernel.wire.listener import read_head
from proxy.kernel.wire.resending import Sending
from proxy.kernel.wire.responder import Responder, between_events
from proxy.kernel.wire.upstream import READABLE, Body, CutError, Upstream, UpstreamReply
from proxy.requests import ClientRequest, ReplyRound, UpstreamRequest, request_id
from proxy.telemetry import RequestRecord
from proxy.telemetry.tracing import RequestTrace

_DESCRIBES_BYTES = frozenset({"content-encoding", "content-md5", "digest", "content-digest"})
_RELAY_HEADERS = {"x-narrows-mode": "relayed"}
_REQUEST_NAMES = frozenset({"idempotency-key", "x-idempotency-key"})  # each round of a reply is another request


class Flow:
    def __init__(self, parts: FlowParts, request: web.BaseRequest, is_ending: Callable[[], bool]) -> None:
        self._parts = parts
        self._request = request
        self._route = Route(DEFAULT)
        self.rest = ""
        """The target as it came, after /v1."""
        self.deployment = ""
        """The model that the path names."""
        self._id = request_id()
        self.record = RequestRecord(request.method, request_id=self._id)
        self._head: RequestHead | None = None
        self._sample: Sample | None = None
        self._admitted: Admitted | None = None
        """Of a key that has limits."""
        self._model = ""
        """Of a request that was not planned, and is charged to such a key."""
        self._meter: metering.MeteredReply | None = None
        """Reads the reply to such a key."""
        self._usage_option: UsageOption | None = None
        """The option by which usage is asked for that the client has not asked for."""
        self._trace = RequestTrace()
        self._responder = Responder(
            request, self.record, is_ending, parts.admission, parts.telemetry, parts.settings.body_limit
        )
        self.refuse = self._responder.refuse

    @property
    def route(self) -> Route:
        """What is done with the request."""
        return self._route

    @route.setter
    def route(self, route: Route) -> None:
        self._route, self._responder.dialect = route, route.dialect

    async def run(self) -> web.StreamResponse:
        """Serve the request as its route says. Raises ApiError."""
        self.record.route = self.route.kind
        route, tracing = f"/v1{self.rest.partition('?')[0]}", self._parts.telemetry.tracing
        route = route if route in ROUTES else "/v1/*"
        self._trace = tracing.request(self._request.method, route, self._request.headers)
        match self.route.kind:
            case "chat":
                return await self._chat()
            case "count":
                return await self._count()
            case "compress":
                return await self._compress()
            case "relay":
                return await self._relay()

    def close(self) -> None:
        """The request is over, and its record complete."""
        if self._admitted is not None:
            self._admitted.close()
        self._trace.end(self.record, self._responder.reader.usage if self._responder.reader else None)

    async def _chat(self) -> web.StreamResponse:
        compaction, record, settings = self._parts.compaction, self.record, self._parts.settings
        client_request, raw = await self._receive()
        await self._admit()
        responder, tells_waiting = self._responder, settings.summary_comments and settings.summary_wait > 0
        began = perf_counter()
        with self._trace.plan():
            waiting = responder.early.waiting if tells_waiting else None
            upstream_request = await compaction.prepare(client_request, waiting)
        if self._admitted is not None and upstream_request.planned is None:
            self._model = await named_model(client_request.body)
        option = DIALECTS[self.route.dialect].usage_option
        if option is not None and self._admitted is not None and self._admitted.spends:
            self._usage_option = option if option.ask(client_request.body) is not None else None
        self._request[VISIT].end_planning()
        record.added_ms = ms_since(began)
        record.read_headers(upstream_request.headers)
        if responder.has_begun:
            await responder.early.declare(upstream_request.headers)
        reply = responder.reader = self._reader(upstream_request)
        send = self._sender(client_request, raw)
        if upstream_request.recalls or responder.has_begun or self._usage_option:
            loop = RecallLoop(compaction, send, upstream_request, reply, self._trace)
            return await self._chat_in_rounds(loop, send)
        status = 0
        try:
            async with send(upstream_request, 0) as (upstream_request, upstream_reply):
                record.status = status = upstream_reply.status
                return await responder.pass_on_observed(upstream_reply, upstream_request.headers, reply)
        finally:
            self._end_sample(status)
            await compaction.record(upstream_request, reply, status)
            self._bill([ReplyRound(upstream_request, status, reply.usage)])

    def _reader(self, upstream_request: UpstreamRequest) -> Reply:
        """A fresh reader of the reply; where the request is sampled, one that holds what the client receives."""
        reply, shadows = self._parts.compaction.reply(upstream_request, self._metered), self._parts.shadows
        if shadows is not None and self._head is not None:
            self._sample = shadows.sample(upstream_request, reply, self._head, self.rest)
        return self._sample.reader if self._sample is not None else reply

    def _metered(self, reply: Reply) -> Reply:
        """The reader of the reply; to a key with a budget, one that reads what it comes to, too."""
        if self._admitted is not None and self._admitted.spends:
            self._meter = reply = metering.MeteredReply(reply, self._usage_option)
        return reply

    def _end_sample(self, status: int) -> None:
        """Before anything is awaited, as that may be cancelled: a sample takes one of few places."""
        if self._sample is not None:
            self._sample.end(status)

    async def _chat_in_rounds(self, loop: RecallLoop, send: Send) -> web.StreamResponse:
        """Forward a request whose reply may hold recall calls, or whose response has begun."""
        responder = self._responder
        try:
            async with send(loop.upstream_request, 0) as sent:
                loop.begin(sent)
                upstream_request, upstream_reply = sent
                self.record.status = upstream_reply.status
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
                self.record.status = head.status
                head.rewrite(len(body))
                response = await responder.begin(head, upstream_request.headers)
                return await responder.pass_on(response, body, None)
        finally:
            self.record.rounds = loop.rounds
            self._end_sample(loop.status)
            await self._parts.compaction.record(loop.upstream_request, loop.reply, loop.status)
            self._bill([*loop.ended, ReplyRound(loop.upstream_request, loop.status, loop.reply.usage)])

    def _bill(self, rounds: Sequence[ReplyRound]) -> None:
        """A reply is over: say what it came to over all its rounds, to whoever is to know."""
        bill = self._parts.compaction.bill(rounds)
        self.record.read_bill(bill)
        if self._admitted is not None and self._meter is not None:
            is_whole, prices = self._responder.is_whole, self._parts.price_book.prices
            metering.charge_reply(self._admitted, self._meter, rounds, bill, self._model, is_whole, prices)

    async def _count(self) -> web.StreamResponse:
        """Forward the request that would be sent, to have its tokens counted."""
        client_request, raw = await self._receive()
        await self._admit()
        began = perf_counter()
        with self._trace.plan():
            upstream_request = await self._parts.compaction.preview(client_request)
        self._request[VISIT].end_planning()
        self.record.added_ms = ms_since(began)
        self.record.read_headers(upstream_request.headers)
        async with self._sender(client_request, raw)(upstream_request, 0) as (_, upstream_reply):
            self.record.status = upstream_reply.status
            response = await self._responder.begin(upstream_reply, upstream_request.headers)
            return await self._responder.pass_on(response, upstream_reply.chunks(), None)

    async def _compress(self) -> web.StreamResponse:
        """Answered from here: nothing goes upstream."""
        head = read_head(self._request, self._parts.settings, self._parts.secret)
        upload = Upload(self._request, self._parts.settings.body_timeout)
        self.record.tenant = head.access.tenant
        await self._admit()
        try:
            assert self._parts.compress_api is not None  # else it is relayed
            response = await self._parts.compress_api.answer(self._request, head, upload)
        finally:
            self.record.received = upload.size
        self.record.status = response.status
        return response

    async def _relay(self) -> web.StreamResponse:
        request, record = self._request, self.record
        headers = forwarded_headers(request, request.raw_headers, self._parts.settings)
        upload = Upload(request, self._parts.settings.body_timeout) if request.body_exists else None
        access = who(request, self._parts.settings, self._parts.secret)
        reach = Reach(self._parts.upstreams, self._parts.settings.rules, access, spoken(request.headers), self._spends)
        try:
            self._check_limits()
            if lists := reach.lists(request.method, self.rest):
                await self._admit()
                return self._responder.own(await reach.models(lists, request, self.rest))
            body, named = await self._body_and_model(access, upload)
            model = self.deployment or named
            upstream = reach.relayed(self.route.dialect, model, self.rest)
            record.upstream = upstream.name
            if access.key is not None and upstream.row.has_key:
                check_path(request.method, self.rest)
            if self.deployment and not upstream.has_deployments and named:
                check_named(self.deployment, named)
            await self._admit()
            with closing(await self._call(upstream, request.method, headers, body, model)) as upstream_reply:
                record.status = upstream_reply.status
                api = DIALECTS[self.route.dialect]
                if (limits := self._parts.limits) is None or not api.http.stored_path:
                    response = await self._responder.begin(upstream_reply, _RELAY_HEADERS)
                    return await self._responder.pass_on(response, upstream_reply.chunks(), None)
                meter = metering.MeteredReply(api.reply(None))
                try:
                    return await self._responder.pass_on_observed(upstream_reply, _RELAY_HEADERS, meter)
                finally:
                    sent = upload.size if upload is not None and 200 <= upstream_reply.status < 300 else 0
                    prices = self._parts.price_book.prices
                    await metering.charge_relayed(limits, self._admitted, meter, named, upstream.name, prices, sent)
        except ApiError as error:
            raise (upload and upload.fault) or error from None
        finally:
            record.received = upload.size if upload else 0

    async def _body_and_model(self, access: Identity, upload: Upload | None) -> tuple[Body, str]:
        """The body of a request that is relayed, and the model in it: read only where something depends on that, ""
        where it is not JSON. Raises ApiError."""
        settings, has_models = self._parts.settings, access.key is not None and bool(access.key.models)
        if self.deployment:
            check_model(access, self.deployment)
        depends = self._parts.upstreams.needs_model(self.route.dialect) and not self.deployment
        depends = depends or any(rule.upstream and rule.model for rule in settings.rules)
        depends = depends or (self._parts.limits is not None and bool(DIALECTS[self.route.dialect].http.stored_path))
        is_json = "json" in self._request.headers.get("Content-Type", "").lower()
        if upload is None or not (has_models or ((depends or self.deployment) and is_json)):
            return upload, ""
        raw, body = await upload.whole(settings.body_limit)
        if not has_models:
            return raw, await named_model(body)
        named, *others = await allowed_names(body, self._request.headers)
        check_model(access, named, *others)
        return raw, named

    @property
    def _spends(self) -> bool:
        """Whether a key of the gateway's own may go with the request: for holders of keys of this gateway; where there
        are none, for this machine."""
        settings, access = self._parts.settings, self._request.get(IDENTITY)
        if not self._parts.upstreams.has_keys or (access is not None and access.key is not None):
            return True
        return settings.auth == "passthrough" and who(self._request, settings, self._parts.secret).is_here

    async def _receive(self) -> tuple[ClientRequest, bytes]:
        """The request, and its body as it was on the wire. Raises ApiError."""
        settings = self._parts.settings
        self._head = head = read_head(self._request, settings, self._parts.secret)
        self._check_limits()
        upload = Upload(self._request, settings.body_timeout)
        try:
            received = await receive(
                head,
                self.route,
                upload,
                settings,
                self._parts.upstreams,
                deployment=self.deployment,
                spends=self._spends,
                request_id=self._id,
            )
        finally:
            self.record.received = upload.size
        self.record.tenant, self.record.upstream = received[0].tenant, received[0].upstream
        return received

    def _check_limits(self) -> None:
        """Raises ApiError where a key has used what it may, so far as that is known: its body need not be read then."""
        access, limits = self._request.get(IDENTITY), self._parts.limits
        if limits is not None and access is not None:
            limits.check(metering.limited_key(access, self.route, self.rest), self.route.dialect)

    async def _admit(self) -> None:
        """Count the request of a key that has limits, now that it is served here. Raises ApiError."""
        access, limits = self._request.get(IDENTITY), self._parts.limits
        if limits is not None and access is not None:
            key = metering.limited_key(access, self.route, self.rest)
            self._admitted = await limits.admit(key, access.owner, self.route.dialect)
            self._responder.limit_headers = self._admitted.headers if self._admitted is not None else {}

    def _sender(self, client_request: ClientRequest, raw: bytes) -> Send:
        """Sends this client's requests upstream; changed, once more, where the upstream refuses them for that."""
        compaction, telemetry = self._parts.compaction, self._parts.telemetry
        return lambda upstream_request, round_: Sending(
            partial(self._send, client_request, raw), compaction, telemetry, upstream_request, round_
        )

    async def _send(
        self, client_request: ClientRequest, raw: bytes, upstream_request: UpstreamRequest, suffix: str
    ) -> UpstreamReply:
        """Send one request: byte for byte as the client sent it where nothing changes. Headers that name a request end
        with the suffix that tells it from others of the same reply."""
        body, planned = upstream_request.body, upstream_request.planned
        model = client_request.model or (planned.context.request.model if planned else self._model)
        upstream = self._parts.upstreams[client_request.upstream]
        option = self._usage_option if model not in upstream.without_usage else None
        asking = option.ask(body) if option is not None else None
        unchanged = asking is None and (body is client_request.body or body == client_request.body)
        assert self._head is not None
        headers = self._head.forwarded.copy()
        for name in () if unchanged else _DESCRIBES_BYTES:
            headers.popall(name, None)
        for name, value in upstream_request.upstream_headers.items():
            values = headers.getall(name, ())
            headers[name] = ", ".join(values if any(value in each for each in values) else [*values, value])
        is_read = self._responder.has_begun or upstream_request.recalls or self._usage_option
        if is_read and "Accept-Encoding" in headers:
            headers["Accept-Encoding"] = "identity"  # what is read here on its way is to come as it is
        for name in _REQUEST_NAMES.intersection(map(str.lower, headers)) if suffix else ():
            headers[name] = f"{headers[name]}{suffix}"
        if option is not None and asking is not None:
            reply = await self._call(upstream, "POST", headers.copy(), asking, model)
            if not await metering.refuses(option, reply):
                return reply
            reply.close()
        if self._meter is not None:
            self._meter.option = None
        reply = await self._call(upstream, "POST", headers, raw if unchanged else body, model)
        if asking is not None and reply.status < 400:
            upstream.without_usage[model] = True
        return reply

    async def _call(
        self, upstream: Upstream, method: str, headers: CIMultiDict[str], body: Body, model: str = ""
    ) -> UpstreamReply:
        """The reply to a request. Raises ApiError where none came."""
        trace = self._trace
        trace.call(upstream.host, self.route.dialect if self.route.kind == "chat" else "", model, headers)
        try:
            reply = await upstream.send(method, self.rest, headers, body, model)
        except ApiError as error:
            trace.replied(0, error.code)
            raise
        trace.replied(reply.status)
        if self._admitted is not None:
            self._admitted.put_headers(reply.headers)
        return reply


def ms_since(began: float) -> float:
    """Milliseconds from `began`, a reading of `perf_counter`, until now."""
    return (perf_counter() - began) * 1000
