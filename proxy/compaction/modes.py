"""`observe` and `off`, as wrappers around the one path by which requests are compacted."""

from dataclasses import replace

from policies.dialects import DIALECTS, Reply
from proxy.compaction.prepare import Compactor, unchanged
from proxy.requests import ClientRequest, UpstreamRequest
from proxy.summaries.background import Waiting


class Bypass:
    """`mode = off`: plans nothing, remembers nothing and needs no store."""

    async def prepare(self, client_request: ClientRequest, waiting: Waiting | None = None, /) -> UpstreamRequest:
        """The client's own bytes."""
        return unchanged(client_request, "bypassed", "bypassed")

    async def preview(self, client_request: ClientRequest, /) -> UpstreamRequest:
        """The client's own bytes."""
        return unchanged(client_request, "bypassed", "bypassed")

    def reply(self, upstream_request: UpstreamRequest, /) -> Reply:
        """A reader that only tells where a reply breaks off."""
        return DIALECTS[upstream_request.client_request.dialect].reply(None)

    async def next_round(self, upstream_request: UpstreamRequest, reply: Reply, choice: int, /) -> UpstreamRequest:
        """The same request: nothing is recalled."""
        return upstream_request

    async def remember_recalls(self, upstream_request: UpstreamRequest, reply: Reply, choice: int, /) -> None:
        """Nothing was recalled."""

    async def record(self, upstream_request: UpstreamRequest, reply: Reply, status: int, /) -> None:
        """Nothing is learned."""


class ByMode:
    """Serves each request in its own mode."""

    def __init__(self, compactor: Compactor) -> None:
        self._compactor = compactor
        self.reply = compactor.reply
        self.next_round = compactor.next_round
        self.remember_recalls = compactor.remember_recalls
        self.record = compactor.record

    async def prepare(self, client_request: ClientRequest, waiting: Waiting | None = None, /) -> UpstreamRequest:
        """The request that goes upstream: compacted, or the client's own bytes."""
        match client_request.mode:
            case "on":
                return await self._compactor.prepare(client_request, waiting)
            case "observe":
                return await self._compactor.observe(client_request)
            case "off":
                return _bypassed(client_request)

    async def preview(self, client_request: ClientRequest, /) -> UpstreamRequest:
        """The request that would go upstream if this were sent now."""
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
