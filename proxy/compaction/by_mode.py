"""Each request in its own mode."""

from msgspec import structs

from proxy.compaction.prepare import Compactor, unchanged
from proxy.requests import ClientRequest, UpstreamRequest
from proxy.summaries.services import Waiting


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
        self.bill = compactor.bill

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
    return structs.replace(upstream_request, headers={**upstream_request.headers, "x-narrows-ms": "0.0"})
