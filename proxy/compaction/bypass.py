"""`mode = off` for all requests: what stands in the place of compaction."""

from collections.abc import Callable, Sequence

from policies.dialects import DIALECTS, Reply
from policies.dialects.overflow import Overflow
from proxy.compaction.outgoing import unchanged
from proxy.requests import ClientRequest, ReplyRound, UpstreamRequest
from proxy.summaries.services import Waiting


class Bypass:
    """`mode = off`: plans nothing, remembers nothing and needs no store."""

    async def prepare(self, client_request: ClientRequest, waiting: Waiting | None = None, /) -> UpstreamRequest:
        return unchanged(client_request, "bypassed", "bypassed")

    async def preview(self, client_request: ClientRequest, /) -> UpstreamRequest:
        return unchanged(client_request, "bypassed", "bypassed")

    def reply(self, upstream_request: UpstreamRequest, around: Callable[[Reply], Reply], /) -> Reply:
        """A reader that only tells where a reply breaks off."""
        return around(DIALECTS[upstream_request.client_request.dialect].reply(None))

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

    def answered(self, upstream_request: UpstreamRequest, status: int, retry_after: str | None, /) -> UpstreamRequest:
        """Nothing is learned."""
        return upstream_request

    async def record(self, upstream_request: UpstreamRequest, reply: Reply, status: int, /) -> None:
        """Nothing is learned."""

    def bill(self, rounds: Sequence[ReplyRound], /) -> None:
        """Nothing is counted."""
