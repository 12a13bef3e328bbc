"""What each mode makes of a request: `Compactor` serves `on` and `observe`, and nothing is done to it in `off`."""

from dataclasses import replace

from policies.dialects import DIALECTS, Reply
from policies.dialects.overflow import Overflow
from proxy.compaction.prepare import Compactor, unchanged
from proxy.requests import ClientRequest, UpstreamRequest
from proxy.summaries.services import Waiting


class Bypass:
    """`mode = off`: plans nothing, remembers nothing and needs no store."""

    async def prepare(self, client_request: ClientRequest, waiting: Waiting | None = None, /) -> UpstreamRequest:
        return unchanged(client_request, "bypassed", "bypassed")

    async def preview(self, client_request: ClientRequest, /) -> UpstreamRequest:
        return unchanged(client_request, "bypassed", "bypassed")

    def reply(self, upstream_request: UpstreamRequest, /) -> Reply:
        """A reader that only tells where a reply breaks off."""
        return DIALECTS[upstream_request.client_request.dialect].reply(None)

    async def next_round(self, upstream_request: UpstreamRequest, reply: Reply, choice: int, /) -> UpstreamRequest:
        """The same request: nothing is recalled."""
        return upstream_request

    def without_marks(self, upstream_request: UpstreamRequest, /) -> UpstreamRequest:
        """The same request, because it has no marks of ours."""
        return upstream_request

    def learn_refused_marks(self, upstream_request: UpstreamRequest, /) -> None:
        """Nothing to learn: there were no marks of ours."""

    def may_overflow(self, upstream_request: UpstreamRequest, /) -> bool:
        """Nothing would follow."""
        return False

    async def compact_harder(self, upstream_request: UpstreamRequest, overflow: Overflow, /) -> UpstreamRequest | None:
        """Nothing is ever taken out."""
        return None

    async def remember_recalls(self, upstream_request: UpstreamRequest, reply: Reply, choice: int, /) -> None:
        """Nothing was recalled."""

    def answered(self, upstream_request: UpstreamRequest, status: int, retry_after: str | None, /) -> None:
        """Nothing is learned."""

    async def record(self, upstream_request: UpstreamRequest, reply: Reply, status: int, /) -> None:
        """Nothing is learned."""


class ByMode:
    """Serves each request in its own mode."""

    def __init__(self, compactor: Compactor) -> None:
        self._compactor = compactor
        self.reply = compactor.reply
        self.next_round = compactor.next_round
        self.without_marks = compactor.without_marks
        self.learn_refused_marks = compactor.learn_refused_marks
        self.may_overflow = compactor.may_overflow
        self.compact_harder = compactor.compact_harder
        self.remember_recalls = compactor.remember_recalls
        self.answered = compactor.answered
        self.record = compactor.record

    async def prepare(self, client_request: ClientRequest, waiting: Waiting | None = None, /) -> UpstreamRequest:
        match client_request.mode:
            case "on":
                return await self._compactor.prepare(client_request, waiting)
            case "observe":
                return await self._compactor.observe(client_request)
            case "off":
                return _bypassed(client_request)

    async def preview(self, client_request: ClientRequest, /) -> UpstreamRequest:
        if client_request.mode == "off":
            return _bypassed(client_request)
        upstream_request = await self._compactor.preview(client_request)
        if client_request.mode == "on" or upstream_request.body is client_request.body:
            return upstream_request
        headers = {**upstream_request.headers, "x-narrows-mode": "observed"}
        return UpstreamRequest(client_request, client_request.body, headers)


def _bypassed(client_request: ClientRequest) -> UpstreamRequest:
    upstream_request = unchanged(client_request, "bypassed", "bypassed")
    return replace(upstream_request, headers={**upstream_request.headers, "x-narrows-ms": "0.0"})
