"""What models cost, and how large their windows are, by upstream: as its row says, then the setting `models`, then what
the upstream itself lists, then the catalog.

A model that the catalog does not list, at a local address, is taken for one of a person's own, whatever family its name
is of: it has no price, and its window is what the server there says. What the usage of replies shows of a cache, where
that is not what the table says, moves nothing but the time after which it counts as cold, which is a declared
checkpoint.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from cachetools import LRUCache

from policies.money.caches import MINUTE
from policies.money.catalog import Overrides, prices_for
from policies.money.prices import CAUTIOUS, Prices, Usage
from proxy.config import Settings, UpstreamRow
from proxy.requests import UpstreamRequest

_MODELS = 1024
_STREAK = 5
"""Replies in a row that must show the same before it is believed."""


class PriceBook:
    """The prices in force. One book for all who plan, bill and charge, so that they agree."""

    def __init__(self, settings: Settings, before: "PriceBook | None" = None) -> None:
        """`before`: the one of the settings before; what an upstream has listed counts on until it lists anew."""
        self._settings = settings
        self._configured = {row.name: {**settings.models, **row.overrides} for row in settings.upstream_rows}
        self._in_force: dict[str, Overrides] = {**self._configured}
        self._prices: LRUCache[tuple[str, str], Prices] = LRUCache(_MODELS)
        self._lists: dict[tuple[str, str], Overrides] = {}
        self._local = {row.name for row in settings.upstream_rows if row.is_local}
        self._windows: LRUCache[tuple[str, str], int | None] = LRUCache(_MODELS)
        """Of models at local addresses, as far as their servers were asked."""
        self.ask_window: Callable[[str, str], Awaitable[None]] | None = None
        """Asks the server at a local address for the window of a model, which it then enters here."""
        for row in settings.upstream_rows:
            models = before._lists.get((row.name, row.url)) if before is not None and row.look_up_models else None
            if models is not None:
                self.take_list(row, models)

    def prices(self, model: str, upstream: str) -> Prices:
        """What a model costs at an upstream; assumed prices where nobody knows."""
        prices = self._prices.get((model, upstream))
        if prices is None:
            prices = prices_for(model, self._in_force.get(upstream, self._settings.models))
            if upstream in self._local and not prices.listed:
                window = prices.window or self._windows.get((model, upstream))
                prices = replace(CAUTIOUS, model=model, input=0.0, output=0.0, window=window, is_local=True)
            self._prices[model, upstream] = prices
        return prices

    async def settle(self, model: str, upstream: str) -> None:
        """Have the model's server asked for its window, where nobody else knows it and that was not done before."""
        if self.ask_window is None or upstream not in self._local or (model, upstream) in self._windows:
            return
        prices = self.prices(model, upstream)
        if prices.is_local and prices.window is None:
            await self.ask_window(model, upstream)

    def take_window(self, model: str, upstream: str, window: int | None) -> None:
        """The server says so; None where it says nothing of it."""
        self._windows[model, upstream] = window
        self._prices.pop((model, upstream), None)

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


class LearnedCaches:
    """Where the usage of replies is not what the table of caches has foretold, by model and upstream."""

    def __init__(self) -> None:
        self._streaks: LRUCache[tuple[str, str, str], int] = LRUCache(_MODELS)
        self._seconds: LRUCache[tuple[str, str], float] = LRUCache(_MODELS)
        self._pauses: LRUCache[tuple[str, str, str], float] = LRUCache(_MODELS)
        """The shortest of each streak."""
        self._reporting: LRUCache[tuple[str, str], bool] = LRUCache(_MODELS)
        """Those that have reported cached tokens: of others nobody knows what they have forgotten."""

    def lifetime(self, model: str, upstream: str, usual: float) -> float:
        """Seconds of disuse after which the cache has forgotten a prompt."""
        return self._seconds.get((model, upstream), usual)

    def note(self, upstream_request: UpstreamRequest, usage: Usage) -> str:
        """Take notice of a reply. Returns what it shows where that has now been seen often enough: `longer` or
        `shorter` (the lifetime), `uncached`, `unmarked` (read without marks) or `least` (read below it); else ""."""
        planned, record = upstream_request.planned, upstream_request.record
        is_extended = upstream_request.headers.get("x-narrows-prefix") == "extended"
        if planned is None or planned.previous is None or record is None or not is_extended:
            return ""
        context = planned.context
        name = (context.request.model, upstream_request.client_request.upstream)
        if usage.cached > 0:
            self._reporting[name] = True
        rule, pause = context.plan_settings.cache, record.at - planned.previous.at
        kind, differs = "uncached", usage.cached == 0
        if rule.mark and not context.plan_settings.prices.breakpoints:  # it has none, and so has the one before
            kind, differs = "unmarked", usage.cached > 0
        elif usage.prompt < rule.least:
            kind, differs = "least", usage.cached > 0
        elif context.conversation.steps < 3:  # the first request gets no mark of ours
            return ""
        elif pause > self.lifetime(*name, context.lifetime):
            kind, differs = "longer", usage.cached > 0
        elif pause > MINUTE:
            kind, differs = "shorter", differs and name in self._reporting
        streak = self._streaks[*name, kind] = self._streaks.get((*name, kind), 0) + 1 if differs else 0
        if streak:
            pause = self._pauses[*name, kind] = min(
                pause, self._pauses.get((*name, kind), pause) if streak > 1 else pause
            )
        if streak >= _STREAK and kind in ("longer", "shorter"):
            self._seconds[name] = pause
        return kind if streak == _STREAK else ""
