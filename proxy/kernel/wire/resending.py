"""A request that its upstream refuses for what Narrows can change: sent once more, changed.

Two refusals are known: the upstream does not take cache marks of ours, and the prompt is too long. Each is answered
once for a request, in whatever order they come.

Laws
  Nothing is sent again but what the upstream surely did not process, and whose reply the client has seen nothing of.
  Where a smaller prompt is refused as well, the client gets the first refusal, as it came.
  Only the beginning of a reply is waited for, only where its prompt may be too long, and not for long.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress

from policies.dialects.overflow import STATUSES, Overflow, overflow_in
from proxy.errors import ApiError
from proxy.kernel.outgoing import without_marks
from proxy.kernel.reply import STREAM, Compaction, SentRequest
from proxy.requests import UpstreamRequest
from proxy.sse import Copy, data, decoded
from proxy.telemetry import Telemetry
from proxy.upstreams.upstream import READABLE, UpstreamReply

_LONGEST_ERROR = 2**20
"""Bytes of an error that are read to learn what the upstream refuses."""
_LONGEST_BEGINNING = 64 * 2**10
"""Bytes of a reply that succeeds by its head, read to learn whether it holds an error alone."""
_PATIENCE = 5.0
"""Seconds for that."""
_EMPTY = (b'"response.created"', b'"response.queued"', b'"response.in_progress"', b'"ping"')
"""Types of events that come before the prompt was looked at."""
_TYPE_WITHIN = 200
"""Bytes of an event in which its type is looked for."""

Attempt = Callable[[UpstreamRequest, str], Awaitable[SentRequest]]
"""Sends a request once; the suffix tells its name from those of others of the same reply."""


class Sending:
    """A request sent upstream, as a context that closes every reply to it; changed, and sent once more, where the
    upstream refuses it for that."""

    def __init__(
        self,
        send: Callable[[UpstreamRequest, str], Awaitable[UpstreamReply]],
        note: Callable[[UpstreamRequest, UpstreamReply], Awaitable[UpstreamRequest]],
        compaction: Compaction | None,
        telemetry: Telemetry,
        upstream_request: UpstreamRequest,
        round_: int,
    ) -> None:
        self._send = send
        self._note = note
        self._compaction = compaction
        self._telemetry = telemetry
        self._upstream_request = upstream_request
        self._round = round_
        self._replies: list[UpstreamReply] = []

    async def __aenter__(self) -> SentRequest:
        compaction = self._compaction
        try:
            sent = await self._attempt(self._upstream_request, f"-{self._round}" if self._round else "")
            if compaction is not None and (sent.reply.status >= 400 or self._upstream_request.may_overflow):
                sent = await settled(compaction, self._telemetry, sent, self._round, self._attempt)
        except BaseException:
            await self.__aexit__()
            raise
        return sent

    async def __aexit__(self, *_: object) -> None:
        for reply in self._replies:
            reply.close()

    async def _attempt(self, request: UpstreamRequest, suffix: str) -> SentRequest:
        reply = await self._send(request, suffix)
        self._replies.append(reply)
        return SentRequest(await self._note(request, reply), reply)


async def settled(
    compaction: Compaction, telemetry: Telemetry, sent: SentRequest, round_: int, attempt: Attempt
) -> SentRequest:
    """What counts of a request that was sent, and of those that were sent in its place."""
    marked: UpstreamRequest | None = None
    too_long: SentRequest | None = None
    first: Overflow | None = None
    while True:
        overflow = await _overflow_of(sent)
        first = first or overflow
        if marked is None and await _refuses_marks(sent):
            telemetry.metrics.count("marks_refused")
            marked = sent.request
            changed, suffix = without_marks(marked), "unmarked"
        elif overflow and too_long is None:
            smaller = await compaction.compact_harder(sent.request, overflow)
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
    if marked is not None and sent.reply.status < 400:
        compaction.learn_refused_marks(marked)
    return sent


def _report(telemetry: Telemetry, outcome: str, overflow: Overflow | None, *requests: UpstreamRequest) -> None:
    telemetry.metrics.count("overflows", outcome)
    tokens = [request.tokens_sent for request in requests]
    window = overflow.window if overflow else None
    telemetry.log.warning("overflow", outcome=outcome, window=window, tokens=tokens[0], retried_tokens=tokens[-1])


async def _refuses_marks(sent: SentRequest) -> bool:
    """Whether the upstream answers 400 and names the field of our cache marks."""
    marks, reply = sent.request.marks, sent.reply
    if not marks or reply.status != 400 or reply.received_encoding not in READABLE:
        return False
    return marks.encode() in await error_of(reply)


async def _overflow_of(sent: SentRequest) -> Overflow | None:
    """What the reply says of a prompt that is too long."""
    request, reply = sent
    is_ours = request.planned is not None and request.may_change
    if not is_ours or reply.status not in STATUSES or reply.received_encoding not in READABLE:
        return None
    if reply.status != 200:
        return overflow_in(reply.status, await error_of(reply))
    may_be = reply.kind in (STREAM, "application/json") and request.may_overflow
    return overflow_in(200, await _beginning(reply)) if may_be else None


async def error_of(reply: UpstreamReply) -> bytes:
    """The body of an error; empty where it does not come in time."""
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
    """The data of an event; empty where it says nothing of the prompt."""
    text = data(event) or b""
    return b"" if any(empty in text[:_TYPE_WITHIN] for empty in _EMPTY) else text
