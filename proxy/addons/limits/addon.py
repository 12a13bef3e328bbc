from multidict import CIMultiDict

from policies.dialects import DIALECTS
from policies.model.summary_record import SummaryCost
from policies.money.bills import Labels
from proxy.addons.limits.charges import PricesOf, summary_dollars
from proxy.addons.limits.limits import PATIENCE, Admitted, Counts, Limits
from proxy.addons.limits.metering import Meter, charge_relayed, charge_reply, limited_key
from proxy.addons.limits.team_counts import TeamCounts
from proxy.addons.limits.windows import LocalWindows
from proxy.config import ConfigurationError
from proxy.kernel.addons import Addon, Exchange
from proxy.kernel.services import Services
from proxy.memory import Key


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
                await charge_relayed(self.limits, admitted, meter, exchange, self._prices)
            elif meter is not None and admitted is not None and exchange.rounds:
                charge_reply(admitted, meter, exchange, self._prices)
        finally:
            if admitted is not None:
                admitted.close()

    def charge_summary(self, key: Key, labels: Labels, spent: SummaryCost) -> None:
        """A summary was made for a conversation of this owner."""
        self.limits.charge_owner(labels.owner, spent.prompt + spent.completion, summary_dollars(spent))

    def _listen(self, exchange: Exchange) -> None:
        meter = self._meters[exchange] = Meter()
        exchange.listener = meter.hear


async def start(services: Services) -> KeyLimits | None:
    """What counts what keys use; None where no keys are taken. Raises ConfigurationError."""
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
