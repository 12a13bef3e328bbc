"""Requests as they go upstream: as the client wrote them, or as planned."""

from msgspec import structs

from policies.money.bills import Arm
from policies.render import body_of
from proxy.kernel.warnings import warning_header
from proxy.requests import ClientRequest, PlannedRequest, UpstreamRequest


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


def without_marks(upstream_request: UpstreamRequest) -> UpstreamRequest:
    """The same request without cache marks of ours, for an upstream that answers 400 to them."""
    planned, spent = upstream_request.planned, upstream_request.spent
    assert planned is not None  # else there are none
    body, edits = rendered_body(planned, marked=False), planned.plan.edits
    if spent is not None:
        body = planned.context.dialect.recall.next_round(body, spent)
    headers = {**upstream_request.headers, "x-narrows-mode": "compacted" if edits else "untouched"}
    warnings = [headers.get("x-narrows-warning", ""), "marks-refused"]
    return structs.replace(upstream_request, body=body, marks="", headers=headers | warning_header(warnings))
