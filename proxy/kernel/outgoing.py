"""Requests as they go upstream: as the client wrote them, or as planned."""

from collections.abc import Callable, Iterable

from msgspec import structs

from policies.laws import protected_users
from policies.money.bills import Arm
from policies.planning.out_of_sight import was_out_of_sight
from policies.render import body_of
from policies.text.stubs import MARK
from policies.tools import writes
from proxy.requests import ClientRequest, PlannedRequest, RequestContext, UpstreamRequest
from proxy.telemetry import Telemetry

# --- what the reply to a request warns of: the words of the header x-narrows-warning ---

_FEWEST_HIDDEN = 3
"""Actions that needed something out of sight before that is warned of."""
_IN_A_ROW = 3
"""Requests in a row for which room was made: then what cannot be taken away is looked at."""


class ReplyWarnings:
    """`context_tokens_of`: the size below which a request is to be kept, if any."""

    def __init__(self, telemetry: Telemetry, context_tokens_of: Callable[[ClientRequest], int | None]) -> None:
        self._telemetry = telemetry
        self._context_tokens_of = context_tokens_of

    def header(self, planned: PlannedRequest) -> dict[str, str]:
        """The header for a request; none where there is nothing to warn of."""
        context = planned.context
        limit = self._context_tokens_of(context.client_request)
        hides = planned.plan.edits and context.tool is None and not context.client_request.is_dry
        is_over = limit is not None and context.calibration.estimate(planned.tokens_sent) > limit
        return warning_header(
            [
                "marker-in-argument" if self._wrote_reference(context) else "",
                "over-context-tokens" if is_over else "",
                "no-recall" if hides else "",
                "planning-shed" if planned.plan.shed else "",
                self._thrash(planned),
                self._sight(planned),
            ]
        )

    def _wrote_reference(self, context: RequestContext) -> bool:
        """Whether the model has just written one of our references into a file."""
        conversation = context.conversation
        newest = conversation.arrived(conversation.steps - 1) if conversation.steps > 1 else range(0)
        for block in (conversation.blocks[at] for at in newest):
            if block.kind == "call" and MARK in block.text and writes(block.tool, block.text):
                self._telemetry.metrics.count("marker_in_argument")
                self._telemetry.log.warning("marker_in_argument", conversation=context.key.conversation)
                return True
        return False

    def _thrash(self, planned: PlannedRequest) -> str:
        """Words for a conversation in which room must be made again and again, because what is protected leaves too
        little: each time all behind the first change is written to the provider's cache anew."""
        context, settings = planned.context, planned.context.plan_settings
        key, step = context.key, context.conversation.steps - 1
        budget = settings.learned or settings.budget
        if planned.plan.reason != f"checkpoint:{budget.mark}":
            return ""
        before, row = context.live.cramped
        row = row if before == step else row + 1 if before == step - 1 else 1
        context.live.cramped = step, row
        protected = int(protected_tokens(planned) * settings.factor) if row >= _IN_A_ROW else 0
        if protected <= budget.low:  # room could be made for more than one request
            return ""
        share = round(100 * protected / budget.window)
        if row == _IN_A_ROW and before != step:
            self._telemetry.metrics.count("thrashing")
            self._telemetry.log.warning(
                "thrashing", conversation=key.conversation, protected=protected, window=budget.window, percent=share
            )
        return f"protected-{share}-percent"

    def _sight(self, planned: PlannedRequest) -> str:
        """A word for a conversation in which more actions than the preset allows needed what was out of sight."""
        context, most = planned.context, planned.context.plan_settings.sight
        step = context.conversation.steps - 1
        before, hidden = context.live.hidden
        if step < before:  # another history has begun under this name, or the client has gone back
            before, hidden = context.live.hidden = -1, 0
        if not most or not planned.plan.edits or context.client_request.is_dry:
            return ""
        was_beyond = hidden >= _FEWEST_HIDDEN and hidden > most * (step - 1)
        needs_it = was_out_of_sight(context.conversation, planned.plan) if before < step else None
        if needs_it is not None:
            hidden += needs_it
            self._telemetry.metrics.count("actions", "hidden" if needs_it else "shown")
        context.live.hidden = step, hidden
        if hidden < _FEWEST_HIDDEN or hidden <= most * step:
            return ""
        if not was_beyond:
            self._telemetry.log.warning(
                "out_of_sight", conversation=context.key.conversation, actions=step, hidden=hidden
            )
        return "sight"


def protected_tokens(planned: PlannedRequest) -> int:
    """Tokens of a request that are there whatever is done: tools and instructions, system text, the first and newest
    message of the user, and the newest two turns."""
    conversation, sizes = planned.context.conversation, planned.plan.state.ledger.sent
    step = conversation.steps - 1
    protected = {*protected_users(conversation, step), *conversation.kinds.get("system", ())}
    protected.update(range(conversation.start(max(0, step - 1)), conversation.ends[step]))
    tokens: int = planned.context.plan_settings.head + sum(sizes[at] for at in protected)
    return tokens


def warning_header(warnings: Iterable[str]) -> dict[str, str]:
    """All that is to be said, in one header; none where that is nothing."""
    value = ", ".join(filter(None, warnings))
    return {"x-narrows-warning": value} if value else {}


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
    planned, continues = upstream_request.planned, upstream_request.continues
    assert planned is not None  # else there are none
    body, edits = rendered_body(planned, marked=False), planned.plan.edits
    if continues is not None:
        body = planned.context.dialect.recall.next_round(body, continues[1])
    headers = {**upstream_request.headers, "x-narrows-mode": "compacted" if edits else "untouched"}
    warnings = [headers.get("x-narrows-warning", ""), "marks-refused"]
    return structs.replace(upstream_request, body=body, marks="", headers=headers | warning_header(warnings))
