"""The prices of models and the sizes of their windows, by upstream: as its row says, then the setting `models`, then
what the upstream itself lists, then the catalog.

A model that the catalog does not list, at a local address, is taken for one of a person's own, whatever family its name
is of: it has no price, and its window is what the server there says.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from cachetools import LRUCache

from policies.money.catalog import Overrides, prices_for
from policies.money.prices import CAUTIOUS, Prices
from proxy.config import Settings, UpstreamRow

_MODELS = 1024


class PriceBook:
    """The prices in force. One book for all who plan, bill and charge, so that they agree."""

    def __init__(self, settings: Settings, before: "PriceBook | None" = None) -> None:
        """`before`: the one of the settings before; what an upstream has listed counts on until it lists anew."""
        self._settings = settings
        self._configured = {row.name: {**settings.models, **row.overrides} for row in settings.upstream_rows}
        self._in_force: dict[str, Overrides] = {**self._configured}
        self._prices: LRUCache[tuple[str, str], Prices] = LRUCache(_MODELS)
        self.version = 0
        """Another one after each change of a price or a window."""
        self._lists: dict[tuple[str, str], Overrides] = {}
        self.local = {row.name for row in settings.upstream_rows if row.is_local}
        self._windows: LRUCache[tuple[str, str], int | None] = LRUCache(_MODELS)
        self.ask_window: Callable[[str, str], Awaitable[None]] | None = None
        """Asks the server at a local address for the window of a model, which it then enters here."""
        for row in settings.upstream_rows:
            models = before._lists.get((row.name, row.url)) if before is not None and row.look_up_models else None
            if models is not None:
                self.take_list(row, models)

    def prices(self, model: str, upstream: str) -> Prices:
        prices = self._prices.get((model, upstream))
        if prices is None:
            prices = prices_for(model, self._in_force.get(upstream, self._settings.models))
            if upstream in self.local and not prices.listed:
                window = prices.window or self._windows.get((model, upstream))
                prices = replace(CAUTIOUS, model=model, input=0.0, output=0.0, window=window, is_local=True)
            self._prices[model, upstream] = prices
        return prices

    async def settle(self, model: str, upstream: str) -> None:
        """Have the model's server asked for its window, where nobody else knows it and that was not done before."""
        if self.ask_window is None or (model, upstream) in self._windows:
            return
        prices = self.prices(model, upstream)
        if prices.is_local and prices.window is None:
            await self.ask_window(model, upstream)

    def take_window(self, model: str, upstream: str, window: int | None) -> None:
        self._windows[model, upstream] = window
        self._prices.pop((model, upstream), None)
        self.version += 1

    def take_list(self, upstream: UpstreamRow, models: Overrides) -> bool:
        """An upstream lists its models so: that counts where no setting names the model. True where that is new."""
        name, own = upstream.name, self._configured[upstream.name]
        self._lists[name, upstream.url] = models
        in_force = {model: each for model, each in models.items() if not {model, model.rpartition("/")[2]} & own.keys()}
        in_force.update(own)
        if in_force == self._in_force[name]:
            return False
        self._in_force[name] = in_force
        self._prices.clear()
        self.version += 1
        return True
