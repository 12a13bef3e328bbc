"""What its provider's prompt cache means for one request: at what prices it is planned, and which marks it may carry.

Law: all of it follows from the bytes of the request and the model's prices, so the same request comes out the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from policies.dialects import Dialect, Request
from policies.model.conversation import Message
from policies.money.caches import CacheRequest, rule_for
from policies.money.marks import MarkStyle
from policies.money.prices import Prices


@dataclass(frozen=True, slots=True)
class Caching:
    """A request and the cache that it meets."""

    prices: Prices
    """What the cache charges this request; else those of the model."""
    marks: MarkStyle
    """The kind of marks of ours that it may carry."""
    slots: int
    """How many of these there is room for."""
    lifetime: float
    """Seconds of disuse after which nothing of the request is cached any more."""


def caching(
    dialect: Dialect, request: Request, messages: Sequence[Message], listed: Prices, own_marks: bool = True
) -> Caching:
    """How a request is cached, at the model's `listed` prices. Marks are of the kind that the client uses itself: proof
    that the upstream takes them."""
    used = dialect.mark_style(request, messages) if listed.breakpoints else ""
    rule, marks = rule_for(request.model, listed), (message.marks for message in messages)
    asks = CacheRequest.of(request.body, (request.tools, request.lead), request.spans, marks, bool(used))
    style = used if own_marks and rule.takes_marks(asks) else ""
    slots = dialect.free_slots(request, messages) if style else 0
    return Caching(rule.charged(listed, asks), style, slots, rule.lifetime(asks))
