"""What models cost, and how large their windows are, by upstream: as its row says, then the setting `models`, then what
the upstream itself lists, then the catalog.
"""

from cachetools import LRUCache

from policies.money.catalog import Overrides, prices_for
from policies.money.prices import Prices
from proxy.config import Settings, UpstreamRow

_MODELS = 1024


class PriceBook:
    """The prices in force. One book for all who plan, bill and charge, so that they agree."""

    def __init__(self, settings: Settings, before: "PriceBook | None" = None) -> None:
        """`before`: the one of the settings before; what an upstream has listed counts on until it lists anew."""
        self._settings = settings
        self._configured = {row.name: row.overrides_over(settings.models) for row in settings.upstream_rows}
        self._in_force: dict[str, Overrides] = {**self._configured}
        self._prices: LRUCache[tuple[str, str], Prices] = LRUCache(_MODELS)
        self._lists: dict[tuple[str, str], Overrides] = {}
        for row in settings.upstream_rows:
            models = before._lists.get((row.name, row.url)) if before is not None and row.look_up_models else None
            if models is not None:
                self.take_list(row, models)

    def prices(self, model: str, upstream: str) -> Prices:
        """What a model costs at an upstream; assumed prices where nobody knows."""
        prices = self._prices.get((model, upstream))
        if prices is None:
            prices = prices_for(model, self._in_force.get(upstream, self._settings.models))
            self._prices[model, upstream] = prices
        return prices

    def take_list(self, upstream: UpstreamRow, models: Overrides) -> bool:
        """An upstream lists its models so: from now on that counts where no setting names the model. Returns whether
        that changes anything."""
        name, own = upstream.name, self._configured[upstream.name]
        self._lists[name, upstream.url] = models
        in_force = {model: each for model, each in models.items() if not {model, model.rpartition("/")[2]} & own.keys()}
        in_force.update(own)
        if in_force == self._in_force[name]:
            return False
        self._in_force[name] = in_force
        self._prices.clear()
        return True
