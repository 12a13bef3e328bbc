"""The limits of keys: requests of these are let in, and charged for what they come to: by the usage that is reported,
else by the text, read as it passes; in Responses the model may go on without its client.

Laws
  Tokens are those of all rounds, as billed. Where nobody said how many, an estimate counts, so that there is no way to
  ask for nothing.
  Where a price is not known, the assumed one counts: that of the model's family, else a dollar for a million tokens
  that are read, four for those written. A model at a local address costs nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from msgspec import structs
from multidict import CIMultiDict

from policies.dialects import DIALECTS
from policies.dialects.common import list_at, member, object_at
from policies.dialects.replies import Json, is_plain, read_event
from policies.model.rawjson import UnreadableError, members
from policies.model.summary_record import SummaryCost
from policies.money.bills import Labels, RequestBill
from policies.money.prices import Prices, Usage
from proxy.addons.limits.charges import Counts
from proxy.addons.limits.limits import PATIENCE, Admitted, Limits
from proxy.addons.limits.windows import LocalWindows, TeamCounts
from proxy.config import ConfigurationError, KeyRow
from proxy.config.routes import Route
from proxy.identity.who import Identity
from proxy.kernel.addons import Addon, Exchange
from proxy.kernel.services import Services
from proxy.memory import Key
from proxy.requests import ReplyRound

_RUNNING = ("queued", "in_progress")
_MOST_OUTPUT = 128_000
"""Tokens of an answer without a limit: no listed model writes more."""
_COUNTED_BYTES, _BYTES_A_TOKEN, _PROMPT_BYTES_A_TOKEN = 100_000, 3, 4
"""A longer text is not counted but estimated, so that nobody waits for that."""
_LEFT = ("client_left", "shutting_down")
_UNASKED = 0.8
"""The share of each limit up to which something is sent that no client has asked for."""
PricesOf = Callable[[str, str], Prices]
_ASSUMED = Prices()


class Meter:
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
        is_background = not self._is_stream or self.response.get("background") is True
        return is_background and self.response.get("status") in _RUNNING

    def most_output(self, limit: int | None) -> int:
        """Tokens that the answer may come to, by the response or by the `limit` of the request."""
        most = self.response.get("max_output_tokens") or limit
        return most if isinstance(most, int) and most > 0 else _MOST_OUTPUT

    def tokens(self, count: Callable[[str], int] | None) -> int:
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


class KeyLimits(Addon):
    """Admits requests of keys that have limits, and charges them. `prices`: by model and upstream."""

    def __init__(self, limits: Limits, prices: PricesOf) -> None:
        self.limits = limits
        self._prices = prices
        self._admitted: dict[Exchange, Admitted] = {}
        self._meters: dict[Exchange, Meter] = {}

    async def admit(self, exchange: Exchange) -> None:
        is_fetch = exchange.kind == "relay" and bool(DIALECTS[exchange.route.dialect].http.stored_path)
        if is_fetch:  # it may be of a reply that another request has ordered
            self._listen(exchange)
        if (access := exchange.access) is None:
            return
        key, dialect = limited_key(access, exchange.route, exchange.rest), exchange.route.dialect
        self.limits.check(key, dialect)  # so far as it is known: the body need not be read then
        await exchange.receive()
        admitted = await self.limits.admit(key, access.owner, dialect)
        if admitted is None:
            return
        self._admitted[exchange], exchange.own_headers = admitted, admitted.headers
        if admitted.spends and exchange.kind == "chat":
            exchange.asks_usage = True
            self._listen(exchange)

    async def answered(self, exchange: Exchange, status: int, headers: CIMultiDict[str]) -> None:
        if (admitted := self._admitted.get(exchange)) is not None:
            admitted.put_headers(headers)

    async def finished(self, exchange: Exchange) -> None:
        admitted, meter = self._admitted.pop(exchange, None), self._meters.pop(exchange, None)
        try:
            if meter is not None and exchange.relayed is not None:
                await self._charge_relayed(admitted, meter, exchange)
            elif meter is not None and admitted is not None and exchange.rounds:
                self._charge_reply(admitted, meter, exchange)
        finally:
            if admitted is not None:
                admitted.close()

    async def admit_ping(self, key: KeyRow | None, labels: Labels) -> Admitted | None:
        """As `admit` of the limits, for a ping: whoever sends it charges and closes it. Raises LimitError."""
        return await self.limits.admit(key, labels.owner, labels.api, _UNASKED)

    def charge_summary(self, key: Key, labels: Labels, cost: SummaryCost) -> None:
        self.limits.charge_owner(labels.owner, cost.prompt + cost.completion, summary_dollars(cost))

    def _charge_reply(self, admitted: Admitted, meter: Meter, exchange: Exchange) -> None:
        """Charge a reply that is over, and as much as it may come to where the model goes on."""
        rounds: Sequence[ReplyRound] = exchange.rounds
        first, planned, answered = rounds[0].request, rounds[0].request.planned, 0
        model = exchange.model_name
        is_lost = not rounds[-1].status and exchange.trouble in _LEFT and _is_background(rounds[-1].request.body)
        if is_lost:
            rounds = [*rounds[:-1], structs.replace(rounds[-1], status=200)]
        if meter.is_running or is_lost:
            answered = meter.most_output(planned.context.request.reserve if planned is not None else None)
        elif not exchange.is_whole or rounds[-1].usage is None:
            answered = meter.tokens(planned.context.received.count if planned is not None else None)
        upstream = first.client_request.upstream
        tokens, dollars = charge_of(rounds, exchange.bill, model, lambda name: self._prices(name, upstream), answered)
        admitted.charge(tokens, dollars)
        if meter.is_running:
            admitted.reserve(meter.response_id, model, dollars)

    async def _charge_relayed(self, admitted: Admitted | None, meter: Meter, exchange: Exchange) -> None:
        """Charge what a relayed reply of Responses has come to: a history made shorter to whoever asks for that, a
        reply that was fetched to whoever asked for it first."""
        usage = exchange.reader.usage if exchange.reader is not None else None
        spends = admitted is not None and admitted.spends  # to fetch a reply spends nothing
        size, upstream = exchange.received, exchange.upstream
        if usage is None and spends and size and 200 <= exchange.upstream_status < 300 and not meter.response_id:
            usage = Usage(-(-size // _BYTES_A_TOKEN), 0, 0, meter.tokens(None))
        if usage is None or meter.is_running:
            return

        def dollars_of(model: str) -> float:
            return (self._prices(model, upstream) if model else _ASSUMED).cost(usage).total

        if meter.response_id:
            await self.limits.charges.settle(meter.response_id, dollars_of)
        elif admitted is not None:
            admitted.charge(usage.prompt + usage.completion, dollars_of(exchange.model))

    def _listen(self, exchange: Exchange) -> None:
        meter = self._meters[exchange] = Meter()
        exchange.listener = meter.hear


async def start(services: Services) -> KeyLimits | None:
    """The addon; None where no keys are taken. Raises ConfigurationError."""
    if services.settings.auth == "passthrough":
        return None
    settings, worker, before = services.settings, services.worker, services.before.get("limits")
    shared = None
    if not settings.store.startswith("sqlite:"):
        from proxy.addons.limits.redis_windows import SharedWindows  # which takes a tenth of a second

        try:
            shared = SharedWindows(settings.store, PATIENCE)
        except ValueError as error:
            raise ConfigurationError(f"store: {error}") from error
    counts = before.limits.counts if before is not None else Counts(LocalWindows())
    team = TeamCounts(worker.ask_parent, worker.tell_parent, settings.workers) if worker is not None else None
    is_alone = team is None and shared is None
    limits = Limits(services.telemetry, counts, services.store, shared, is_alone, team=team)
    services.parts.push_async_callback(limits.close)
    await limits.open()
    addon = KeyLimits(limits, services.price_book.prices)
    services.billed.append(addon.charge_summary)
    return addon


def _texts(value: object, depth: int = 12) -> Iterator[str]:
    """All texts inside a value, down to where answers have some."""
    if isinstance(value, str):
        yield value
    for each in value if isinstance(value, list) else value.values() if isinstance(value, dict) else ():
        yield from _texts(each, depth - 1) if depth else ()


def _is_background(body: bytes) -> bool:
    """True where the model goes on with the reply, though its client has left before the head of it."""
    if b'"background"' not in body:
        return False
    with suppress(UnreadableError):
        return member(body, members(body), "background") is True
    return False


def limited_key(access: Identity, route: Route, rest: str) -> KeyRow | None:
    """The key whose limits count: to fetch a reply costs nothing. `rest`: the target, after /v1."""
    api = DIALECTS[route.dialect].http
    is_fetched = bool(api.stored_path) and route == Route(route.dialect) and rest.partition("?")[0] != api.compact_path
    if access.key is None or not is_fetched:
        return access.key
    row: KeyRow = access.key.model_copy(update={"tpm": None, "usd_per_day": None})
    return row


def charge_of(
    rounds: Sequence[ReplyRound],
    bill: RequestBill | None,
    model: str,
    prices_of: Callable[[str], Prices],
    answered: int = 0,
) -> tuple[int, float]:
    """The tokens and the dollars of a reply that is over. `bill` is None where nothing was billed of it, as of a
    request that Narrows was to leave alone: then `model` counts.
    `answered`: tokens that the answers have at least, where nobody said how many: the client has left, the upstream
    reports none, or the model goes on."""
    rounds = [each for each in rounds if 200 <= each.status < 300]
    prices = prices_of(model) if model else _ASSUMED
    if bill is not None and bill.sums.prompt:
        sums = bill.sums
        usage = Usage(sums.prompt, sums.cached, sums.written, sums.output)
        dollars = sums.paid if not sums.unpriced else prices.cost(usage).total
        tokens, output = sums.prompt + sums.output, sums.output
    else:
        usages = [each.usage or Usage(len(each.request.body) // _PROMPT_BYTES_A_TOKEN, 0, 0, 0) for each in rounds]
        dollars, output = sum(prices.cost(each).total for each in usages), sum(each.completion for each in usages)
        tokens = sum(each.prompt for each in usages) + output
    more = max(0, answered - output) if rounds else 0
    return tokens + more, dollars + prices.cost(Usage(0, 0, 0, more)).total


def summary_dollars(cost: SummaryCost) -> float:
    if cost.known_dollars is not None:
        return cost.known_dollars
    return _ASSUMED.cost(Usage(cost.prompt, cost.cached, cost.written, cost.completion)).total
