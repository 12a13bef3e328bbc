"""What a reply comes to for a key that has limits, read as it passes: its text, where no usage is reported; and, in
Responses, whether the model goes on without its client."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from msgspec import structs

from policies.dialects import DIALECTS
from policies.dialects.common import list_at, member, object_at
from policies.dialects.replies import Json, is_plain, read_event
from policies.model.rawjson import UnreadableError, members
from policies.money.prices import Usage
from proxy.addons.limits.charges import PricesOf, charge_of, dollars_of
from proxy.addons.limits.limits import Admitted, Limits
from proxy.config import KeyRow
from proxy.config.routes import Route
from proxy.identity.who import Identity
from proxy.kernel.addons import Exchange
from proxy.requests import ReplyRound

_RUNNING = ("queued", "in_progress")
_MOST_OUTPUT = 128_000
"""Tokens of an answer without a limit: no listed model writes more."""
_COUNTED_BYTES, _BYTES_A_TOKEN = 100_000, 3
"""A longer text is not counted but estimated, so that nobody waits for that."""
_LEFT = ("client_left", "shutting_down")


class Meter:
    """Hears a reply as the upstream sends it."""

    def __init__(self) -> None:
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

    def hear(self, event: bytes) -> None:
        if content := read_event(event):
            self._read(content, is_plain(event))

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


def charge_reply(admitted: Admitted, meter: Meter, exchange: Exchange, prices: PricesOf) -> None:
    """Charge a reply that is over, and as much as it may come to where the model goes on. `prices`: by model and
    upstream."""
    rounds: Sequence[ReplyRound] = exchange.rounds
    first, planned, answered = rounds[0].request, rounds[0].request.planned, 0
    model = planned.context.request.model if planned is not None else exchange.model
    is_lost = not rounds[-1].status and exchange.trouble in _LEFT and _is_background(rounds[-1].request.body)
    if is_lost:
        rounds = [*rounds[:-1], structs.replace(rounds[-1], status=200)]
    if meter.is_running or is_lost:
        answered = meter.most_output(planned.context.request.reserve if planned is not None else None)
    elif not exchange.is_whole or rounds[-1].usage is None:
        answered = meter.tokens(planned.context.received.count if planned is not None else None)
    upstream = first.client_request.upstream
    tokens, dollars = charge_of(rounds, exchange.bill, model, lambda name: prices(name, upstream), answered)
    admitted.charge(tokens, dollars)
    if meter.is_running:
        admitted.reserve(meter.response_id, model, dollars)


def _is_background(body: bytes) -> bool:
    """Whether the model goes on with the reply, though its client has left before the head of it."""
    if b'"background"' not in body:
        return False
    with suppress(UnreadableError):
        return member(body, members(body), "background") is True
    return False


async def charge_relayed(
    limits: Limits, admitted: Admitted | None, meter: Meter, exchange: Exchange, prices: PricesOf
) -> None:
    """Charge what a relayed reply of Responses has come to: a history made shorter to whoever asks for that, a reply
    that was fetched to whoever asked for it first."""
    usage = exchange.reader.usage if exchange.reader is not None else None
    spends = admitted is not None and admitted.spends  # to fetch a reply spends nothing
    sent, model, upstream = exchange.received, exchange.model, exchange.upstream
    if usage is None and spends and sent and 200 <= exchange.upstream_status < 300 and not meter.response_id:
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
    api = DIALECTS[route.dialect].http
    is_fetched = bool(api.stored_path) and route == Route(route.dialect) and rest.partition("?")[0] != api.compact_path
    if access.key is None or not is_fetched:
        return access.key
    row: KeyRow = access.key.model_copy(update={"tpm": None, "usd_per_day": None})
    return row
