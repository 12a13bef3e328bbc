"""One reply over all its rounds: recall calls in it are held back and answered, and the upstream is asked to go on.

How a recall call is held back in a stream: `RecallLoop.events` feeds each raw event to the dialect's `Reply`, which
returns the bytes that the client may have now. It returns nothing for the events of a recall call. When the model has
ended its turn with such calls, the choice is pending: `_next_round` has the answers put behind the request and sends it
again, and the events of that round continue the same stream.

Laws
  The client sees one reply: nothing of a recall call, no seam between the rounds.
  An event goes on as soon as it is complete. Only the events of a recall call are held back.
  A round that fails is reported as if the first one had failed; no end is invented.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from policies.dialects import Reply
from policies.dialects.replies import is_plain
from proxy.errors import FailedError, RefusedError
from proxy.kernel.addons import Exchange
from proxy.kernel.follow_up import FollowUp
from proxy.requests import ReplyRound, UpstreamRequest
from proxy.sse import BOM, Copy, Events
from proxy.upstreams.upstream import CutError, UpstreamReply

if TYPE_CHECKING:
    from proxy.telemetry.spans import RequestSpans

STREAM = "text/event-stream"
_LONGEST = 256 * 2**20
"""Bytes of one event, or of a reply that is no stream, that are read as one."""


class SentRequest(NamedTuple):
    """A request that the upstream has answered: the last one, where it was changed and sent again."""

    request: UpstreamRequest
    reply: UpstreamReply


Send = Callable[[UpstreamRequest, int], AbstractAsyncContextManager[SentRequest]]
"""Sends a request upstream, as the round of this number of its reply."""


class WatchedReply:
    """A reader around the one of the dialect, for an exchange of which somebody wants to know the reply: it is heard as
    it comes, and held as the client receives it, without a usage that this has not asked for."""

    def __init__(self, reply: Reply, exchange: Exchange) -> None:
        self._reply = reply
        self._exchange = exchange

    def feed(self, event: bytes, /) -> list[bytes]:
        exchange = self._exchange
        if exchange.listener is not None:
            exchange.listener(event)
        pieces = self._reply.feed(event)
        if exchange.usage_option is not None and not is_plain(event):
            pieces = [rest for piece in pieces if (rest := exchange.usage_option.hide(piece))]
        if exchange.reply is not None:
            exchange.reply.add(pieces)
        return pieces

    def feed_all(self, events: bytes, /) -> list[bytes] | None:
        exchange = self._exchange
        if exchange.listener is not None or exchange.usage_option is not None:
            return None  # each event is to be seen
        pieces = self._reply.feed_all(events)
        if pieces is not None and exchange.reply is not None:
            exchange.reply.add(pieces)
        return pieces

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reply, name)


@dataclass(slots=True, eq=False)
class RecallLoop:
    follow_up: FollowUp | None
    send: Send
    upstream_request: UpstreamRequest
    """The one that was sent last."""
    reply: Reply
    trace: "RequestSpans | None"
    ended: list[ReplyRound]
    status: int = 0
    """The upstream's in the current round; 0 as long as it has not replied."""
    _first: UpstreamRequest = field(init=False)
    _remembered: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._first = self.upstream_request

    def begin(self, sent: SentRequest) -> None:
        self._first = self.upstream_request = sent.request
        self.status = sent.reply.status

    async def events(self, upstream_reply: UpstreamReply, continues: bool = False) -> AsyncGenerator[bytes, None]:
        """The bytes of a streamed reply for the client, as it comes. `continues`: it has received events before."""
        byte_order_mark = BOM if continues else b""  # only at the very beginning is it no part of a line
        async for piece in self._round(upstream_reply):
            yield piece.removeprefix(byte_order_mark)
            byte_order_mark = b""
        while self.reply.pending:
            async with self._next_round() as following:
                if following.status != 200 or following.kind != upstream_reply.kind:
                    raise RefusedError(following.status, await _read(following))
                async for piece in self._round(following):
                    yield piece

    async def refusal(self, upstream_reply: UpstreamReply) -> RefusedError:
        """The error for a response that has begun where this reply cannot be its continuation."""
        try:
            body = await _read(upstream_reply)
        except CutError:
            body = b""
        return RefusedError(upstream_reply.status, body, f"upstream_{upstream_reply.status}")

    async def whole(self, upstream_reply: UpstreamReply) -> tuple[UpstreamReply, bytes]:
        """The body of a reply that is not streamed, and the upstream reply whose head belongs to it."""
        pieces = self._feed(await _read(upstream_reply))
        while self.reply.pending:
            async with self._next_round() as following:
                body = await _read(following)
                if following.status != 200 or following.kind != upstream_reply.kind:
                    return following, body
                pieces = self._feed(body)
        await self._remember()
        return upstream_reply, b"".join(pieces)

    async def _round(self, upstream_reply: UpstreamReply) -> AsyncIterator[bytes]:
        """The events of one round without those of recall calls."""
        pieces: list[bytes] = []

        def receive(events: bytes) -> list[bytes] | None:
            received = self.reply.feed_all(events)
            pieces.extend(received or ())
            return received

        encoding = upstream_reply.received_encoding
        copy = Copy(lambda event: pieces.extend(self.reply.feed(event)), STREAM, encoding, _LONGEST, receive)
        async for chunk in upstream_reply.chunks():
            copy.feed(chunk)
            if copy.trouble:
                raise CutError(f"The upstream's reply cannot be read ({copy.trouble}).")
            if not (len(pieces) == 1 and pieces[0] is chunk):  # what passes at once ends no choice
                await self._remember()
            if pieces:
                yield b"".join(pieces)
                pieces.clear()
        if not copy.close(upstream_reply.delimited):
            raise CutError("The upstream ended its reply in the middle.")
        last = self.reply.feed(copy.rest) if copy.rest else ()  # an event without its empty line
        await self._remember()
        for piece in last if not self.reply.pending else ():
            yield piece

    def _feed(self, body: bytes) -> list[bytes]:
        if body.removeprefix(BOM).lstrip()[:1] == b"{":
            return self.reply.feed(body)
        events = Events()
        pieces = [piece for event in events.feed(body) for piece in self.reply.feed(event)]
        return pieces + (self.reply.feed(events.rest) if events.rest else [])

    async def _remember(self) -> None:
        """Store exchanges before the client knows that a choice is over, and comes back with it."""
        for choice in set(self.reply.over) - self._remembered:
            self._remembered.add(choice)
            if self.follow_up is not None:
                await self.follow_up.remember_recalls(self._first, self.reply, choice)

    @asynccontextmanager
    async def _next_round(self) -> AsyncIterator[UpstreamReply]:
        follow_up, choice = self.follow_up, self.reply.pending[0]
        assert follow_up is not None  # else nothing is recalled
        try:
            if self.trace is not None:
                self.trace.round_over(self.reply.usage)
            with self.trace.recall() if self.trace is not None else nullcontext():
                following = await follow_up.next_round(self._first, self.reply, choice)
        except Exception as error:
            message = "Narrows failed to answer a recall in this reply; its log says why."
            raise FailedError(500, message, "narrows_failed") from error
        follow_up.learn(self.upstream_request, self.reply, 200)
        self.ended.append(ReplyRound(self.upstream_request, 200, self.reply.usage))
        self.reply.resume(choice)
        self.upstream_request = following
        self.status = 0
        async with self.send(following, len(self.ended)) as sent:
            self.upstream_request = sent.request
            self.status = sent.reply.status
            yield sent.reply


async def _read(upstream_reply: UpstreamReply) -> bytes:
    """The decoded body of a reply. Raises CutError where it ends in the middle."""
    if not upstream_reply.received_encoding and (body := upstream_reply.all_here()) is not None:
        return body
    pieces: list[bytes] = []
    copy = Copy(pieces.append, "application/json", upstream_reply.received_encoding, _LONGEST)
    async for chunk in upstream_reply.chunks():
        copy.feed(chunk)
    if not copy.close(upstream_reply.delimited) or copy.trouble:
        raise CutError("The upstream ended its reply in the middle.")
    return b"".join(pieces)


def is_stream(upstream_reply: UpstreamReply, upstream_request: UpstreamRequest) -> bool:
    """True where the reply is one of events, whatever its media type says."""
    planned = upstream_request.planned
    asked_for = planned is not None and planned.context.request.streams
    return upstream_reply.kind == STREAM or (asked_for and upstream_reply.kind != "application/json")
