"""One reply on its way to the client: recall calls in it are answered, and the upstream is asked on.

Laws
  The client sees one reply: nothing of a recall call, no seam between the rounds.
  An event goes on as soon as it is whole. Only the events of a recall call are held back.
  A round that fails is told as if the first one had failed; no end is invented.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from policies.dialects import Reply
from proxy.compaction.prepare import UpstreamRequest
from proxy.errors import FailedError, RefusedError
from proxy.gateway.upstream import Answer, CutError
from proxy.requests import ClientRequest
from proxy.sse import BOM, Copy, Events
from proxy.summaries.background import Waiting

STREAM = "text/event-stream"
_WHOLE = "application/json"
_HELD = 256 * 2**20
"""Bytes of one event, or of a reply that is no stream, that are read as one."""

Ask = Callable[[UpstreamRequest, int], AbstractAsyncContextManager[Answer]]
"""Sends a request upstream, as that round of its reply."""


class Compaction(Protocol):
    """What the walk needs of compaction. It fails open: none of this raises but `again`, and `prepare` as it says."""

    async def preview(self, client_request: ClientRequest, /) -> UpstreamRequest:
        """What would go upstream if this were sent now; nothing comes of it."""

    async def prepare(self, client_request: ClientRequest, waiting: Waiting | None = None, /) -> UpstreamRequest:
        """What goes upstream instead of the client's body. Raises ApiError where a policy wants the request to
        fail."""

    def reply(self, upstream_request: UpstreamRequest, /) -> Reply:
        """What reads the reply."""

    async def again(self, upstream_request: UpstreamRequest, reply: Reply, choice: int, /) -> UpstreamRequest:
        """The request of the next round, for a choice that is pending."""

    async def keep(self, upstream_request: UpstreamRequest, reply: Reply, choice: int, /) -> None:
        """A choice has come to its end: remember the recall exchange in it, or that there is none."""

    async def record(self, upstream_request: UpstreamRequest, reply: Reply, status: int, /) -> None:
        """A round is over. `status` is the upstream's, 0 where no reply came."""


class Retrieval:
    """Reads a reply over all its rounds."""

    def __init__(self, compaction: Compaction, ask: Ask, upstream_request: UpstreamRequest) -> None:
        self._compaction = compaction
        self._ask = ask
        self._asked = upstream_request
        self._kept: set[int] = set()
        self.upstream_request = upstream_request
        """What was asked last."""
        self.reply = compaction.reply(upstream_request)
        self.rounds = 0
        self.status = 0
        """What the upstream answered in the round at hand; 0 as long as it has not."""

    @property
    def looks(self) -> bool:
        """Whether there may be recall calls in the reply: else it is only read along."""
        return self._asked.exchanged is not None

    async def events(self, answer: Answer, amid: bool = False) -> AsyncGenerator[bytes, None]:
        """What the client gets of a streamed reply, as it comes; `amid` says that it has had events before these."""
        mark = BOM if amid else b""  # only at the very beginning it is no part of a line
        async for piece in self._heard(answer):
            yield piece.removeprefix(mark)
            mark = b""
        while self.reply.pending:
            async with self._again() as following:
                if following.status != 200 or following.kind != answer.kind:
                    raise RefusedError(following.status, await self._whole(following))
                async for piece in self._heard(following):
                    yield piece

    async def refusal(self, answer: Answer) -> "RefusedError":
        """What to say where the response has begun, and this reply cannot be its continuation."""
        try:
            said = await self._whole(answer)
        except CutError:
            said = b""
        return RefusedError(answer.status, said, f"upstream_{answer.status}")

    async def whole(self, answer: Answer) -> tuple[Answer, bytes]:
        """The body of a reply that is not streamed, and the answer whose head belongs to it."""
        said = self._fed(await self._whole(answer))
        while self.reply.pending:
            async with self._again() as following:
                body = await self._whole(following)
                if following.status != 200 or following.kind != answer.kind:
                    return following, body
                said = self._fed(body)
        await self._keep()
        return answer, b"".join(said)

    async def _heard(self, answer: Answer) -> AsyncIterator[bytes]:
        """One round: what is left of its events when those of recall calls are taken out."""
        said: list[bytes] = []
        copy = Copy(lambda event: said.extend(self.reply.feed(event)), STREAM, answer.coding, _HELD)
        async for chunk in answer.chunks():
            copy.feed(chunk)
            if copy.trouble:
                raise CutError(f"The upstream's reply cannot be read ({copy.trouble}).")
            await self._keep()
            if said:
                yield b"".join(said)
                said.clear()
        if not copy.close() and not answer.delimited:
            raise CutError("The upstream ended its reply in the middle.")
        last = self.reply.feed(copy.rest) if copy.rest else ()  # an event without its empty line
        await self._keep()
        for piece in last if not self.reply.pending else ():
            yield piece

    def _fed(self, body: bytes) -> list[bytes]:
        """What the client gets of a body: JSON, or events that are not called so."""
        if body.removeprefix(BOM).lstrip()[:1] == b"{":
            return self.reply.feed(body)
        events = Events()
        said = [piece for event in events.feed(body) for piece in self.reply.feed(event)]
        return said + (self.reply.feed(events.rest) if events.rest else [])

    async def _whole(self, answer: Answer) -> bytes:
        said: list[bytes] = []
        copy = Copy(said.append, _WHOLE, answer.coding, _HELD)
        async for chunk in answer.chunks():
            copy.feed(chunk)
        if (not copy.close() and not answer.delimited) or copy.trouble:
            raise CutError("The upstream ended its reply in the middle.")
        return b"".join(said)

    async def _keep(self) -> None:
        """Before the client knows that a choice is over, and comes back with it."""
        for choice in set(self.reply.over) - self._kept:
            self._kept.add(choice)
            await self._compaction.keep(self._asked, self.reply, choice)

    @asynccontextmanager
    async def _again(self) -> AsyncIterator[Answer]:
        choice = self.reply.pending[0]
        try:
            following = await self._compaction.again(self._asked, self.reply, choice)
        except Exception as error:
            message = "Narrows failed to answer a recall in this reply; its log says why."
            raise FailedError(500, message, "narrows_failed") from error
        await self._compaction.record(self.upstream_request, self.reply, 200)
        self.reply.resume(choice)
        self.rounds += 1
        self.upstream_request = following
        self.status = 0
        async with self._ask(following, self.rounds) as answer:
            self.status = answer.status
            yield answer
