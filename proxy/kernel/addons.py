"""Addons: features that only want to know of requests. Each overrides the hooks that it needs, and subscribes by its
line in `proxy/generation.py`, in whose order hooks are awaited.

    admit      the head is there: refuse the request (ApiError), or set `exchange.answer`, and it is answered from here
    planned    it is decided what goes upstream, and nothing was sent yet
    answered   the upstream has answered with this status and these headers, which may be changed; once for each
               request that was sent
    finished   all is over, and the exchange complete

Laws
  An addon decides nothing about the bytes that go upstream.
  What fails in an addon fails no request, but for what it refuses.
  A request that no addon wants to know of costs nothing here.
"""

import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from aiohttp import web
from multidict import CIMultiDict

from policies.dialects import DEFAULT, Reply
from policies.dialects.dialect import UsageOption
from policies.money.bills import RequestBill
from proxy.config.routes import Route
from proxy.identity.who import IDENTITY, Identity
from proxy.kernel.admission import VISIT, Visit
from proxy.requests import ClientRequest, ReplyRound, RequestHead, UpstreamRequest
from proxy.telemetry import Telemetry
from proxy.upstreams.model_lists import Reach
from proxy.upstreams.upstream import Upstream

if TYPE_CHECKING:
    from proxy.kernel.wire.downstream import Upload
    from proxy.telemetry.spans import RequestSpans

# --- an exchange: one request that has reached Narrows, and what became of it ---
# It is filled in on its way, stage by stage, and complete once the request is over.

_UNKNOWN = Route(DEFAULT)


@dataclass(frozen=True, slots=True)
class RelayedRequest:
    """A request that is relayed as it comes, and where it goes."""

    reach: Reach
    upload: "Upload | None" = None
    lists: Sequence[Upstream] = ()
    """The upstreams whose lists of models are the answer; none where one upstream answers."""
    upstream: Upstream | None = None
    body: "Upload | bytes | None" = None
    model: str = ""


class HeldReply:
    """The bytes of a reply as its client receives them: none of them where there are more than `limit`."""

    def __init__(self, limit: int) -> None:
        self.limit = self._room = limit
        self._pieces: list[bytes] = []

    @property
    def content(self) -> bytes:
        return b"".join(self._pieces)

    @property
    def size(self) -> int:
        return sum(map(len, self._pieces))

    def add(self, pieces: Sequence[bytes]) -> None:
        if self._room >= 0:
            self._room -= sum(map(len, pieces))
            self._pieces.extend(pieces)
            if self._room < 0:
                self._pieces.clear()


def request_id() -> str:
    """A UUID of version 7: in the order of their ids requests are in the order of their times."""
    chance = secrets.randbits(74)
    first, last = chance >> 62, chance & (1 << 62) - 1
    return str(UUID(int=time.time_ns() // 1_000_000 << 80 | 7 << 76 | first << 64 | 2 << 62 | last))


@dataclass(slots=True, eq=False)
class Exchange:
    request: web.BaseRequest
    id: str
    """In the bill; in the reply and the log as well, but for `request_id`."""
    read: Callable[["Exchange"], Awaitable[None]] = field(repr=False)
    """Reads the body, and finds where the request goes."""

    # what is asked: the target of the request

    route: Route = field(default=_UNKNOWN)
    path: str = ""
    """Decoded and normalized."""
    is_api: bool = True
    """True where it is of an API; anything else can only be answered from here."""
    rest: str = ""
    """The target as it came, after /v1."""
    deployment: str = ""
    kind: str = "other"
    """chat, count, relay, compress or page, once it is let in."""
    answer: Callable[[], Awaitable[web.StreamResponse]] | None = None
    """Answers it from here; None where it goes upstream."""

    # what is asked: the body, and what goes with it

    head: RequestHead | None = None
    client_request: ClientRequest | None = None
    """Of a request that is compacted or counted, once its body is read."""
    raw: bytes = field(default=b"", repr=False)
    """Its body as it was on the wire."""
    relayed: RelayedRequest | None = None
    tenant: str = ""
    model: str = ""
    """Of a request that is not planned, where somebody has to know it."""
    received: int = 0

    # what addons want of it

    asks_usage: bool = False
    listener: Callable[[bytes], None] | None = None
    """Hears each event of the reply, or the body of one that is not streamed, as the upstream has sent it."""
    reply: HeldReply | None = None
    own_headers: Mapping[str, str] = field(default_factory=dict)
    """Headers that a response has, too, which no upstream begins."""

    # what becomes of it

    usage_option: UsageOption | None = None

    trace: "RequestSpans | None" = None
    upstream: str = ""
    upstream_request: UpstreamRequest | None = None
    upstream_status: int = 0
    rounds: list[ReplyRound] = field(default_factory=list)
    reader: Reply | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """The x-narrows headers of the response."""
    bill: RequestBill | None = None
    status: int = 0
    """Of the response to the client."""
    is_whole: bool = False
    """True once the client has all of the response."""
    replied: int = 0
    added_ms: float = 0.0
    ms: float = 0.0
    trouble: str = ""
    unread: str = ""
    """Why the reply could not be read while it was forwarded."""

    @property
    def access(self) -> Identity | None:
        return self.request.get(IDENTITY)

    @property
    def request_id(self) -> str:
        """In the reply and the log: a trusted gateway in front may have named the request, perhaps twice."""
        return (self.access.request_id if self.is_api and self.access is not None else "") or self.id

    @property
    def came_at(self) -> float:
        """When it came, in seconds since 1970."""
        return (UUID(self.id).int >> 80) / 1000

    @property
    def model_name(self) -> str:
        """The model that is asked, as far as anybody had to know it: "" where the request was not read."""
        request = self.upstream_request
        if request is not None and request.planned is not None:
            return request.planned.context.request.model
        if self.model or request is None:
            return self.model
        return request.model or request.client_request.model

    @property
    def visit(self) -> Visit:
        return self.request[VISIT]

    async def receive(self) -> None:
        """Have the body read, if nobody has, and if it is not answered from here. Raises ApiError."""
        if self.answer is None and self.client_request is None and self.relayed is None:
            await self.read(self)

    def hold_reply(self, limit: int) -> None:
        """Have the bytes of the reply held, `limit` of them at least."""
        if self.reply is None or self.reply.limit < limit:
            self.reply = HeldReply(limit)


class Addon:
    async def admit(self, exchange: Exchange, /) -> None:
        """A request has come. `exchange.receive` has its body read. Raises ApiError where it is refused."""

    async def planned(self, exchange: Exchange, /) -> None: ...

    async def answered(self, exchange: Exchange, status: int, headers: CIMultiDict[str], /) -> None: ...

    async def finished(self, exchange: Exchange, /) -> None: ...


class Addons:
    """Those of one generation: what answers where no API is asked (`pages`), who looks at the head of a request
    (`door`), and who is told of it once there is a place for it (`inner`)."""

    def __init__(
        self, pages: Sequence[Addon], door: Sequence[Addon], inner: Sequence[Addon], telemetry: Telemetry
    ) -> None:
        self._telemetry = telemetry
        self._pages, self._door, self._inner = pages, door, [each for each in inner if _has(each, "admit")]
        self._listeners = {
            hook: [each for each in (*pages, *door, *inner) if _has(each, hook)]
            for hook in ("planned", "answered", "finished")
        }

    async def knock(self, exchange: Exchange) -> None:
        """Raises ApiError where one refuses the request at the door."""
        for addon in self._door if exchange.is_api else self._pages:
            await addon.admit(exchange)

    async def admit(self, exchange: Exchange) -> None:
        """Raises ApiError where an inner one refuses the request."""
        for addon in self._inner:
            await addon.admit(exchange)

    async def planned(self, exchange: Exchange) -> None:
        for addon in self._listeners["planned"]:
            with self._guarded():
                await addon.planned(exchange)

    async def answered(self, exchange: Exchange, status: int, headers: CIMultiDict[str]) -> None:
        for addon in self._listeners["answered"]:
            with self._guarded():
                await addon.answered(exchange, status, headers)

    async def finished(self, exchange: Exchange) -> None:
        for addon in self._listeners["finished"]:
            with self._guarded():
                await addon.finished(exchange)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._telemetry.log.error("unexpected", error=type(error).__name__, exc_info=error)


def _has(addon: Addon, hook: str) -> bool:
    return getattr(type(addon), hook) is not getattr(Addon, hook)
