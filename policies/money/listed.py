"""The prices that genai-prices lists, from the snapshot that it carries. Loading it takes a while: the catalog does
that when it is asked for its first model.
"""

from decimal import Decimal
from functools import lru_cache

from genai_prices.data_snapshot import find_provider_by_id, get_snapshot
from genai_prices.types import ModelInfo, ModelPrice, Provider, TieredPrices, TimeOfDateConstraint

from policies.money.caches import marks_only
from policies.money.prices import Prices

_LONGEST_NAME = 256


def listed_prices(model: str) -> Prices:
    """The prices of the snapshot; assumed ones for a model that it does not list, or lists without a price."""
    info = _find(model.lower()) if len(model) <= _LONGEST_NAME else None
    if info is None:
        return Prices(model=model)
    price = _current_price(info)
    paid = _base(price.input_mtok)
    if not paid:
        return Prices(model=model, window=info.context_window)
    read, write = _base(price.cache_read_mtok), _base(price.cache_write_mtok)
    return Prices(
        model=model,
        input=float(paid),
        output=float(_base(price.output_mtok) or 0),
        read=0.1 if read is None else float(read / paid),
        write=1.0 if write is None else float(write / paid),
        breakpoints=marks_only(info.id, write is not None),
        tiers=_tiers(price.input_mtok),
        output_tiers=_tiers(price.output_mtok),
        window=info.context_window,
        listed=True,
    )


@lru_cache(maxsize=256)  # a pure function; it tries the patterns of some hundred models
def _find(name: str) -> ModelInfo | None:
    """By the maker's own name, then by a vendor in front of it, then as OpenRouter spells it. Not through the
    snapshot's own lookup: that one remembers every name it was ever asked for."""
    providers = get_snapshot().providers
    vendor, _, rest = name.partition("/")
    bare = name.rpartition("/")[2]
    tries = (
        (_maker(providers, name), name),
        (find_provider_by_id(providers, vendor) if rest else None, rest),
        (_maker(providers, bare), bare),
        (find_provider_by_id(providers, "openrouter"), name),
    )
    for provider, ref in tries:
        if provider is not None and (model := provider.find_model(ref, all_providers=providers)) is not None:
            return model
    return None


def _maker(providers: list[Provider], name: str) -> Provider | None:
    return next((p for p in providers if p.model_match is not None and p.model_match.is_match(name)), None)


def _current_price(model: ModelInfo) -> ModelPrice:
    """The newest price; where it depends on the time of day, the highest of the day."""
    if isinstance(model.prices, ModelPrice):
        return model.prices
    current = [model.prices[0].prices]
    for entry in model.prices:
        earlier = current if isinstance(entry.constraint, TimeOfDateConstraint) else []
        current = [*earlier, entry.prices]
    return max(current, key=lambda price: _base(price.input_mtok) or Decimal(0))


def _base(price: Decimal | TieredPrices | None) -> Decimal | None:
    return price.base if isinstance(price, TieredPrices) else price


def _tiers(price: Decimal | TieredPrices | None) -> tuple[tuple[int, float], ...]:
    if not isinstance(price, TieredPrices):
        return ()
    return tuple((tier.start, float(tier.price / price.base)) for tier in price.tiers)
