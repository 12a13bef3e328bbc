"""What models cost, and how large their windows are, by upstream: as its row says, then the setting `models`, then what
the upstream itself lists, then the catalog.
"""

from cachetools import LRUCache

from policies.money.catalog import Overrides, prices_for
from policies.money.prices import Prices
from proxy.config import Settings

_MODELS = 1024


class PriceBook:
    """The prices in force. One book for all who plan, bill and charge, so that they agree."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._configured = {row.name: row.overrides_over(settings.models) for row in settings.upstream_rows}
        self._in_force: dict[str, Overrides] = {**self._configured}
        self._prices: LRUCache[tuple[str, str], Prices] = LRUCache(_MODELS)

    def prices(self, model: str, upstream: str) -> Prices:
        """What a model costs at an upstream; assumed prices where nobody knows."""
        prices = self._prices.get((model, upstream))
        if prices is None:
            prices = prices_for(model, self._in_force.get(upstream, self._settings.models))
            self._prices[model, upstream] = prices
        return prices

    def take_list(self, upstream: str, models: Overrides) -> bool:
        """An upstream lists its models so: from now on that counts where no setting names the model. Returns whether
        that changes anything."""
        own = self._configured[upstream]
        listed = {name: each for name, each in models.items() if name not in own and name.rpartition("/")[2] not in own}
        in_force = {**listed, **own}
        if in_force == self._in_force[upstream]:
            return False
        self._in_force[upstream] = in_force
        self._prices.clear()
        return True
