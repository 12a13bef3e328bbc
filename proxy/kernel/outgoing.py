"""Requests as they go upstream: as the client wrote them, or as planned."""

from collections.abc import Callable, Sequence

from msgspec import structs

from policies.dialects import DIALECTS, Reply
from policies.dialects.overflow import Overflow
from policies.money.bills import Arm
from policies.render import body_of
from proxy.kernel.warnings import warning_header
from proxy.requests import ClientRequest, PlannedRequest, ReplyRound, UpstreamRequest
from proxy.summaries.services import Waiting


def in_arm(upstream_request: UpstreamRequest, arm: Arm) -> UpstreamRequest:
    headers = {**upstream_request.headers, "x-narrows-arm": arm}
    return structs.replace(upstream_request, headers=headers, arm=arm)


def retried(refused: UpstreamRequest, smaller: UpstreamRequest) -> UpstreamRequest:
    """What is sent in the place of a request that was too long, with what its reply says of that."""
    warnings = [smaller.headers.get("x-narrows-warning", ""), "overflow-retried"]
    headers = {**smaller.headers, "x-narrows-ms": refused.headers.get("x-narrows-ms", "")}
    return structs.replace(smaller, headers=headers | warning_header(warnings))


def unchanged(client_request: ClientRequest, mode: str, prefix: str) -> UpstreamRequest:
    """The client's own bytes; `mode` and `prefix` are the values of the reply's headers."""
    headers = {"x-narrows-mode": mode, "x-narrows-prefix": prefix}
    return UpstreamRequest(client_request, client_request.body, headers)


def rendered_body(planned: PlannedRequest, marked: bool = True) -> bytes:
    context = planned.context
    return body_of(
        context.dialect,
        context.request,
        planned.plan,
        planned.rendering,
        marks=context.plan_settings.marks if marked else "",
        tool=context.tool,
        consent=context.consent,
    )


# --- `mode = off` for all requests: what stands in the place of compaction ---


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

    async def answered(
        self, upstream_request: UpstreamRequest, status: int, retry_after: str | None, /
    ) -> UpstreamRequest:
        """Nothing is learned."""
        return upstream_request

    async def record(self, upstream_request: UpstreamRequest, reply: Reply, status: int, /) -> None:
        """Nothing is learned."""

    def bill(self, rounds: Sequence[ReplyRound], /) -> None:
        """Nothing is counted."""
