"""The third stage: each round of an exchange goes upstream, as the client wrote it where nothing changes.

Laws
  Headers that name a request differ from round to round: each is another request.
  A client that has not asked for usage has it asked for on behalf of its key, until an upstream refuses that.
"""

from multidict import CIMultiDict

from policies.dialects.dialect import UsageOption
from proxy.errors import ApiError
from proxy.identity.states import seconds_of
from proxy.kernel.exchange import Exchange
from proxy.kernel.parts import KernelParts
from proxy.kernel.wire.resending import Sending, error_of
from proxy.requests import UpstreamRequest
from proxy.upstreams.upstream import READABLE, Body, Upstream, UpstreamReply

_DESCRIBES_BYTES = frozenset({"content-encoding", "content-md5", "digest", "content-digest"})
_REQUEST_NAMES = frozenset({"idempotency-key", "x-idempotency-key"})
_REFUSALS = (400, 422)


class Sender:
    """Sends the requests of one exchange. `is_read`: whether the reply is read on its way, so that it is to come
    uncompressed."""

    def __init__(self, parts: KernelParts, exchange: Exchange) -> None:
        self._parts = parts
        self._exchange = exchange
        self.is_read = False

    def __call__(self, upstream_request: UpstreamRequest, round_: int) -> Sending:
        """Send the request of a round; changed, once more, where the upstream refuses it for that."""
        compaction = self._parts.compaction if upstream_request.planned is not None else None
        return Sending(self._send, self._note, compaction, self._parts.telemetry, upstream_request, round_)

    async def call(
        self, upstream: Upstream, method: str, headers: CIMultiDict[str], body: Body, model: str = ""
    ) -> UpstreamReply:
        """The reply to a request. Raises ApiError where none came."""
        exchange = self._exchange
        trace, is_chat = exchange.trace, exchange.kind == "chat"
        trace.call(upstream.host, exchange.route.dialect if is_chat else "", model, headers)
        try:
            reply = await upstream.send(method, exchange.rest, headers, body, model)
        except ApiError as error:
            trace.replied(0, error.code)
            raise
        trace.replied(reply.status)
        exchange.upstream_status = reply.status
        await self._parts.addons.answered(exchange, reply.status, reply.headers)
        return reply

    async def _send(self, upstream_request: UpstreamRequest, suffix: str) -> UpstreamReply:
        """Send one request. Headers that name a request end with the suffix."""
        exchange, client_request = self._exchange, upstream_request.client_request
        exchange.upstream_request, body, planned = upstream_request, upstream_request.body, upstream_request.planned
        model = client_request.model or (planned.context.request.model if planned else exchange.model)
        upstream = self._parts.upstreams[client_request.upstream]
        option = exchange.usage_option if model not in upstream.without_usage else None
        asking = option.ask(body) if option is not None else None
        unchanged = asking is None and (body is client_request.body or body == client_request.body)
        headers = self._headers(upstream_request, suffix, unchanged)
        if option is not None and asking is not None:
            reply = await self.call(upstream, "POST", headers.copy(), asking, model)
            if not await _refuses(option, reply):
                return reply
            reply.close()
        exchange.usage_option = None
        reply = await self.call(upstream, "POST", headers, exchange.raw if unchanged else body, model)
        if asking is not None and reply.status < 400:
            upstream.without_usage[model] = True
        return reply

    def _headers(self, upstream_request: UpstreamRequest, suffix: str, unchanged: bool) -> CIMultiDict[str]:
        """The headers that go upstream."""
        assert self._exchange.head is not None
        headers = self._exchange.head.forwarded.copy()
        for name in () if unchanged else _DESCRIBES_BYTES:
            headers.popall(name, None)
        for name, value in upstream_request.upstream_headers.items():
            values = headers.getall(name, ())
            headers[name] = ", ".join(values if any(value in each for each in values) else [*values, value])
        if self.is_read and "Accept-Encoding" in headers:
            headers["Accept-Encoding"] = "identity"
        for name in _REQUEST_NAMES.intersection(map(str.lower, headers)) if suffix else ():
            headers[name] = f"{headers[name]}{suffix}"
        return headers

    async def _note(self, upstream_request: UpstreamRequest, reply: UpstreamReply) -> UpstreamRequest:
        """The upstream has begun to answer. Returns the request, with what the reply's headers say now."""
        client_request, states = upstream_request.client_request, self._parts.admission.states
        for name in (client_request.owner, client_request.owner_there):
            states.note(name, reply.status, seconds_of(reply.headers.get("Retry-After")))
        if upstream_request.planned is not None and self._parts.compaction is not None:
            upstream_request = await self._parts.compaction.answered(upstream_request, reply.status)
        return upstream_request


async def _refuses(option: UsageOption, reply: UpstreamReply) -> bool:
    """Whether the upstream does not take the option by which usage is asked for."""
    return reply.status in _REFUSALS and reply.received_encoding in READABLE and option.name in await error_of(reply)
