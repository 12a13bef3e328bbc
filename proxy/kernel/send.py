"""The stage `send`: each round of an exchange goes upstream, as the client wrote it where nothing changes.

Laws
  Headers that name a request differ from round to round: each is another request.
  A client that has not asked for usage has it asked for on behalf of its key, until an upstream refuses that.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass

from multidict import CIMultiDict

from policies.dialects.dialect import UsageOption
from policies.dialects.overflow import STATUSES, Overflow, overflow_in
from proxy.errors import ApiError
from proxy.identity.credential import seconds_of
from proxy.kernel.addons import Exchange
from proxy.kernel.follow_up import FollowUp
from proxy.kernel.prepare import without_marks
from proxy.kernel.reply import STREAM, SentRequest
from proxy.kernel.services import KernelParts
from proxy.requests import RequestHead, UpstreamRequest
from proxy.sse import Copy, data, decoded
from proxy.telemetry import Telemetry
from proxy.upstreams.upstream import READABLE, Body, Upstream, UpstreamReply

_DESCRIBES_BYTES = frozenset({"content-encoding", "content-md5", "digest", "content-digest"})
_REQUEST_NAMES = frozenset({"idempotency-key", "x-idempotency-key"})
_REFUSALS = (400, 422)


@dataclass(slots=True, eq=False)
class Sender:
    """Sends the requests of one exchange."""

    parts: KernelParts
    exchange: Exchange
    is_read: bool = False
    """True where the reply is read on its way, so that it is to come uncompressed."""

    @asynccontextmanager
    async def __call__(self, upstream_request: UpstreamRequest, round_: int) -> AsyncIterator[SentRequest]:
        """Send the request of a round; changed, once more, where it is refused for that. Every reply is closed."""
        follow_up = self.parts.follow_up if upstream_request.planned is not None else None
        replies = list[UpstreamReply]()

        async def attempt(request: UpstreamRequest, suffix: str) -> SentRequest:
            reply = await self._send(request, suffix)
            replies.append(reply)
            return SentRequest(await self._note(request, reply), reply)

        try:
            sent = await attempt(upstream_request, f"-{round_}" if round_ else "")
            if follow_up is not None and (sent.reply.status >= 400 or upstream_request.notes.may_overflow):
                sent = await settled(follow_up, self.parts.telemetry, sent, round_, attempt)
            yield sent
        finally:
            for reply in replies:
                reply.close()

    async def call(
        self, upstream: Upstream, method: str, headers: CIMultiDict[str], body: Body, model: str = ""
    ) -> UpstreamReply:
        """The reply to a request. Raises ApiError where none came."""
        exchange = self.exchange
        trace = exchange.trace
        if trace is not None:
            trace.call(upstream.host, exchange.route.dialect if exchange.kind == "chat" else "", model, headers)
        try:
            reply = await upstream.send(method, exchange.rest, headers, body, model)
        except ApiError as error:
            if trace is not None:
                trace.replied(0, error.code)
            raise
        if trace is not None:
            trace.replied(reply.status)
        exchange.upstream_status = reply.status
        await self.parts.addons.answered(exchange, reply.status, reply.headers)
        return reply

    async def _send(self, upstream_request: UpstreamRequest, suffix: str) -> UpstreamReply:
        exchange, client_request = self.exchange, upstream_request.client_request
        exchange.upstream_request, body, planned = upstream_request, upstream_request.body, upstream_request.planned
        model = client_request.model or (planned.context.request.model if planned else exchange.model)
        upstream = self.parts.upstreams.by_name[client_request.upstream]
        option = exchange.usage_option if model not in upstream.without_usage else None
        asking = option.ask(body) if option is not None else None
        unchanged = asking is None and (body is client_request.body or body == client_request.body)
        assert exchange.head is not None
        headers = headers_of(exchange.head, upstream_request.upstream_headers, suffix, is_unchanged=unchanged)
        if self.is_read and "Accept-Encoding" in headers:
            headers["Accept-Encoding"] = "identity"
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

    async def _note(self, upstream_request: UpstreamRequest, reply: UpstreamReply) -> UpstreamRequest:
        """The upstream has begun to answer. Returns the request, with what the reply's headers say now."""
        client_request, states = upstream_request.client_request, self.parts.admission.states
        retry_after = seconds_of(reply.headers.get("Retry-After"))
        states.note(client_request.sender.owner, reply.status, retry_after, client_request.upstream)
        if upstream_request.planned is not None and self.parts.follow_up is not None:
            upstream_request = await self.parts.follow_up.answered(upstream_request, reply.status)
        return upstream_request


def headers_of(
    head: RequestHead, more: Mapping[str, str], suffix: str, *, is_unchanged: bool = False
) -> CIMultiDict[str]:
    """The headers of a request that goes upstream, with `more` of its own. The `suffix` tells its name from those of
    others for the same request of a client."""
    headers = head.forwarded.copy()
    for name in () if is_unchanged else _DESCRIBES_BYTES:
        headers.popall(name, None)
    for name, value in more.items():
        values = headers.getall(name, ())
        headers[name] = ", ".join(values if any(value in each for each in values) else [*values, value])
    for name in _REQUEST_NAMES.intersection(map(str.lower, headers)) if suffix else ():
        headers[name] = f"{headers[name]}{suffix}"
    return headers


async def _refuses(option: UsageOption, reply: UpstreamReply) -> bool:
    """True where the upstream does not take the option by which usage is asked for."""
    return reply.status in _REFUSALS and reply.received_encoding in READABLE and option.name in await error_of(reply)


# --- a request that its upstream refuses for what Narrows can change: sent once more, changed ---
# Three refusals can be answered so: the upstream does not take cache marks of ours, or deferred definitions, and the
# prompt is too long. Each is answered once for a request, in whatever order they come.
# Laws
#   Nothing is sent again but what the upstream surely did not process, and whose reply the client has seen nothing of.
#   Where a smaller prompt is refused as well, the client gets the first refusal, as it came.
#   Only the beginning of a reply is waited for, only where its prompt may be too long, and not for long.

_LONGEST_ERROR = 2**20
_LONGEST_BEGINNING = 64 * 2**10
_PATIENCE = 5.0
"""Seconds for that."""
_EMPTY = (b'"response.created"', b'"response.queued"', b'"response.in_progress"', b'"ping"')
_TYPE_WITHIN = 200

Attempt = Callable[[UpstreamRequest, str], Awaitable[SentRequest]]
"""Sends a request once; the suffix tells its name from those of others of the same reply."""


async def settled(
    follow_up: FollowUp, telemetry: Telemetry, sent: SentRequest, round_: int, attempt: Attempt
) -> SentRequest:
    """The request and the reply that count, of one that was sent and of those that were sent in its place."""
    marked: UpstreamRequest | None = None
    deferring: UpstreamRequest | None = None
    too_long: SentRequest | None = None
    first: Overflow | None = None
    while True:
        overflow = await _overflow_of(sent)
        first = first or overflow
        if marked is None and await _refuses_marks(sent):
            telemetry.metrics.count("marks_refused")
            marked = sent.request
            changed, suffix = without_marks(marked), "unmarked"
        elif deferring is None and await _refuses_tools(sent):
            telemetry.metrics.count("tools_refused")
            deferring = sent.request
            whole = await follow_up.keep_tools(deferring)
            if whole is None:
                break
            changed, suffix = without_marks(whole) if marked and whole.marks else whole, "whole"
        elif overflow and too_long is None:
            smaller = await follow_up.compact_harder(sent.request, overflow)
            if smaller is None:
                _report(telemetry, "later_round" if round_ else "no_room", overflow, sent.request)
                break
            too_long, suffix = sent, "shorter"
            changed = without_marks(smaller) if marked and smaller.marks else smaller
        else:
            break
        try:
            sent = await attempt(changed, f"-{round_}-{suffix}")
        except ApiError:
            if too_long is None:
                raise
            break
    if too_long is not None:
        is_refused = sent is too_long or sent.reply.status >= 400 or overflow is not None
        _report(telemetry, "failed" if is_refused else "retried", first, too_long.request, changed)
        sent = too_long if is_refused else sent
    if deferring is not None and sent.reply.status >= 400:
        follow_up.compactor.learned.note_refused("tools", deferring, False)
    if marked is not None and sent.reply.status < 400:
        telemetry.log.warning("marks_refused", field=marked.marks)
        follow_up.compactor.learned.note_refused("marks", marked)
    return sent


def _report(telemetry: Telemetry, outcome: str, overflow: Overflow | None, *requests: UpstreamRequest) -> None:
    telemetry.metrics.count("overflows", outcome)
    tokens = [request.tokens_sent for request in requests]
    window = overflow.window if overflow else None
    telemetry.log.warning("overflow", outcome=outcome, window=window, tokens=tokens[0], retried_tokens=tokens[-1])


async def _refuses_marks(sent: SentRequest) -> bool:
    """True where the upstream answers 400 and names the field of our cache marks."""
    marks, reply = sent.request.marks, sent.reply
    if not marks or reply.status != 400 or reply.received_encoding not in READABLE:
        return False
    return marks.encode() in await error_of(reply)


async def _refuses_tools(sent: SentRequest) -> bool:
    """True where the upstream refuses the request and names what deferred definitions need."""
    planned, reply = sent.request.planned, sent.reply
    tools = planned.context.tools.tools if planned is not None else None
    if tools is None or reply.status not in _REFUSALS or reply.received_encoding not in READABLE:
        return False
    error = await error_of(reply)
    return any(word in error for word in tools.form.refused)


async def _overflow_of(sent: SentRequest) -> Overflow | None:
    request, reply = sent
    if not request.may_change or reply.status not in STATUSES or reply.received_encoding not in READABLE:
        return None
    if reply.status != 200:
        return overflow_in(reply.status, await error_of(reply))
    may_be = reply.kind in (STREAM, "application/json") and request.notes.may_overflow
    return overflow_in(200, await _beginning(reply)) if may_be else None


async def error_of(reply: UpstreamReply) -> bytes:
    body = b""
    with suppress(ValueError, TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            body = await reply.read_ahead(_LONGEST_ERROR)
        body = decoded(body, reply.received_encoding, _LONGEST_ERROR) if reply.received_encoding else body
    return body


async def _beginning(reply: UpstreamReply) -> bytes:
    """The data of the first event that says anything of the prompt, or a short body; empty where there is none yet."""
    texts: list[bytes] = []

    def show(event: bytes) -> None:
        text = _substance(event) if reply.kind == STREAM else event
        if text:
            texts.append(text)

    copy, size = Copy(show, reply.kind, reply.received_encoding, _LONGEST_BEGINNING), 0
    with suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            async with aclosing(reply.ahead()) as pieces:
                async for piece in pieces:
                    copy.feed(piece)
                    size += len(piece)
                    if texts or copy.trouble or size > _LONGEST_BEGINNING:
                        break
                else:
                    copy.close()
                    show(copy.rest)
    return texts[0] if texts else b""


def _substance(event: bytes) -> bytes:
    text = data(event) or b""
    return b"" if any(empty in text[:_TYPE_WITHIN] for empty in _EMPTY) else text
