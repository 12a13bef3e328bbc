"""What a reply comes to for a key that has limits, read as it passes: its text, where no usage is reported; and, in
Responses, whether the model goes on without its client.

Law: a client that has not asked for usage sees none of the usage that was asked for here.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from msgspec import structs

from policies.dialects import DIALECTS, Reply
from policies.dialects.common import list_at, member, object_at
from policies.dialects.dialect import UsageOption
from policies.dialects.events import Json, is_plain, read_event
from policies.model.rawjson import UnreadableError, members
from policies.money.bills import RequestBill
from policies.money.prices import Usage
from proxy.addons.archive.replies import ReplyAround
from proxy.addons.billing.charges import PricesOf, charge_of, dollars_of
from proxy.addons.limits.limits import Admitted, Limits
from proxy.config import KeyRow
from proxy.config.routes import Route
from proxy.identity.who import Identity
from proxy.kernel.wire.resending import error_of
from proxy.kernel.wire.upstream import READABLE, UpstreamReply
from proxy.requests import ReplyRound

_RUNNING = ("queued", "in_progress")
_MOST_OUTPUT = 128_000
"""Tokens of an answer without a limit: no listed model writes more."""
_COUNTED_BYTES, _BYTES_A_TOKEN = 100_000, 3
"""A longer text is not counted but estimated, so that nobody waits for that."""
_REFUSALS = (400, 422)


class MeteredReply(ReplyAround):
    """`option`: the one by which the upstream is asked for usage that the client has not asked for."""

    def __init__(self, reply: Reply, option: UsageOption | None = None) -> None:
        super().__init__(reply)
        self.option = option
        self._texts: list[str] = []
        self.response: Json = {}
        """The object of Responses, as it came last."""
        self._is_stream = False

    @property
    def response_id(self) -> str:
        return str(self.response.get("id") or "")

    @property
    def is_running(self) -> bool:
        """Whether the model goes on when the reply is over."""
        is_background = not self._is_stream or self.response.get("background") is True
        return is_background and self.response.get("status") in _RUNNING

    def most_output(self, limit: int | None) -> int:
        """Tokens that the answer may come to, by the response or by the `limit` of the request."""
        most = self.response.get("max_output_tokens") or limit
        return most if isinstance(most, int) and most > 0 else _MOST_OUTPUT

    def tokens(self, count: Callable[[str], int] | None) -> int:
        """About how many tokens of an answer have come."""
        text = "".join(self._texts)
        size = len(text.encode("utf-8", "surrogatepass"))
        return count(text) if count is not None and size <= _COUNTED_BYTES else -(-size // _BYTES_A_TOKEN)

    def feed(self, event: bytes, /) -> list[bytes]:
        if content := read_event(event):
            self._read(content, is_plain(event))
        pieces = super().feed(event)
        if self.option is None or is_plain(event):
            return pieces
        return [rest for piece in pieces if (rest := self.option.hide(piece))]

    def feed_all(self, events: bytes, /) -> list[bytes] | None:
        return None

    def _read(self, content: Json, is_whole: bool) -> None:
        self._is_stream = not is_whole
        response = content if is_whole else object_at(content, "response")
        if response.get("object") == "response":
            self.response = {**response, "output": None}
        if is_whole:
            pieces = [content.get(name) for name in ("choices", "output", "content")]
        else:
            pieces = [content.get("delta"), *(object_at(choice, "delta") for choice in list_at(content, "choices"))]
        self._texts += _texts(pieces)


def _texts(value: object, depth: int = 12) -> Iterator[str]:
    """All texts inside a value, down to where answers have some."""
    if isinstance(value, str):
        yield value
    for each in value if isinstance(value, list) else value.values() if isinstance(value, dict) else ():
        yield from _texts(each, depth - 1) if depth else ()


def charge_reply(
    admitted: Admitted,
    meter: MeteredReply,
    rounds: Sequence[ReplyRound],
    bill: RequestBill | None,
    model: str,
    is_whole: bool,
    prices: PricesOf,
) -> None:
    """Charge a reply that is over, and as much as it may come to where the model goes on. `model`: of a request that
    was not planned; `is_whole`: whether the client has received all of it; `prices`: by model and upstream."""
    planned, upstream, answered = rounds[0].request.planned, rounds[0].request.client_request.upstream, 0
    if planned is not None:
        model = planned.context.request.model
    is_lost = not rounds[-1].status and _went_on_alone(rounds[-1].request.body)
    if is_lost:
        rounds = [*rounds[:-1], structs.replace(rounds[-1], status=200)]
    if meter.is_running or is_lost:
        answered = meter.most_output(planned.context.request.reserve if planned is not None else None)
    elif not is_whole or rounds[-1].usage is None:
        answered = meter.tokens(planned.context.received.count if planned is not None else None)
    tokens, dollars = charge_of(rounds, bill, model, lambda name: prices(name, upstream), answered)
    admitted.charge(tokens, dollars)
    if meter.is_running:
        admitted.reserve(meter.response_id, model, dollars)


def _went_on_alone(body: bytes) -> bool:
    """Whether the client has left before the head of a reply that the model goes on with."""
    if b'"background"' not in body or not isinstance(sys.exception(), asyncio.CancelledError):
        return False
    with suppress(UnreadableError):
        return member(body, members(body), "background") is True
    return False


async def charge_relayed(
    limits: Limits,
    admitted: Admitted | None,
    meter: MeteredReply,
    model: str,
    upstream: str,
    prices: PricesOf,
    sent: int,
) -> None:
    """Charge what a relayed reply of Responses has come to: a history made shorter to whoever asks for that, a reply
    that was fetched to whoever asked for it first. `sent`: bytes of the request; 0 where it was refused."""
    usage, spends = meter.usage, admitted is not None and admitted.spends  # to fetch a reply spends nothing
    if usage is None and spends and sent and not meter.response_id:
        usage = Usage(-(-sent // _BYTES_A_TOKEN), 0, 0, meter.tokens(None))
    if usage is None or meter.is_running:
        return
    if meter.response_id:
        await limits.settle(meter.response_id, lambda name: dollars_of(usage, name, prices, upstream))
    elif admitted is not None:
        admitted.charge(usage.prompt + usage.completion, dollars_of(usage, model, prices, upstream))


def limited_key(access: Identity, route: Route, rest: str) -> KeyRow | None:
    """The key whose limits count. To fetch a reply costs nothing, and needs nothing left of a budget. `rest`: the
    target, after /v1."""
    api, path = DIALECTS[route.dialect].http, f"/v1{rest.partition('?')[0]}"
    if access.key is None or not api.stored_path or route != Route(route.dialect) or path == api.compact_path:
        return access.key
    row: KeyRow = access.key.model_copy(update={"tpm": None, "usd_per_day": None})
    return row


async def refuses(option: UsageOption, reply: UpstreamReply) -> bool:
    """Whether the upstream does not take the option by which usage is asked for."""
    return reply.status in _REFUSALS and reply.received_encoding in READABLE and option.name in await error_of(reply)
