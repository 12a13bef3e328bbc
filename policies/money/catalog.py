"""What a model costs: from the snapshot that genai-prices carries, under what a person configured.

Laws: no clock and no network, so a model has the same prices in every replica of a release. No name can make
it fail: an unknown model has assumed relative prices, `listed=False` and no window.
"""

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Annotated

import msgspec
from genai_prices.data_snapshot import find_provider_by_id, get_snapshot
from genai_prices.types import ModelInfo, ModelPrice, Provider, TieredPrices, TimeOfDateConstraint

from policies.money.caches import longer_write, marks_only
from policies.money.prices import Prices

Overrides = Mapping[str, Mapping[str, object]]

_LONGEST_NAME = 256
_Price = Annotated[float, msgspec.Meta(ge=0, lt=1e9)]
_Paid = Annotated[float, msgspec.Meta(gt=0, lt=1e9)]


class _Override(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of Prices that a person may set."""

    input: _Paid | msgspec.UnsetType = msgspec.UNSET
    output: _Price | msgspec.UnsetType = msgspec.UNSET
    read: _Price | msgspec.UnsetType = msgspec.UNSET
    write: _Paid | msgspec.UnsetType = msgspec.UNSET
    breakpoints: bool | msgspec.UnsetType = msgspec.UNSET
    tiers: tuple[tuple[int, _Price], ...] | msgspec.UnsetType = msgspec.UNSET
    output_tiers: tuple[tuple[int, _Price], ...] | msgspec.UnsetType = msgspec.UNSET
    window: Annotated[int, msgspec.Meta(gt=0)] | msgspec.UnsetType | None = msgspec.UNSET
    listed: bool | msgspec.UnsetType = msgspec.UNSET


def prices_for(model: str, overrides: Overrides | None = None) -> Prices:
    """The prices of `model`. Looks through the whole snapshot (up to a millisecond): cache the result. Raises
    ValueError, which names the field, for an invalid override."""
    overrides = overrides or {}
    name = model if model in overrides else model.rpartition("/")[2]  # with the vendor in front, or without
    configured = _fields(name, overrides[name]) if name in overrides else {}
    prices = _listed(model)
    configured.setdefault("listed", prices.listed or "input" in configured)
    prices = replace(prices, **configured)  # type: ignore[arg-type]  # converted to the fields' types
    return replace(prices, longer=longer_write(prices))


def check_overrides(overrides: Overrides) -> None:
    """Raise ValueError, which names model and field, for an invalid override."""
    for model, fields in overrides.items():
        _fields(model, fields)


def _fields(model: str, fields: Mapping[str, object]) -> dict[str, object]:
    try:
        override = msgspec.convert(dict(fields), _Override)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise ValueError(f"prices of {model!r}: {error}") from error
    return {name: value for name, value in msgspec.structs.asdict(override).items() if value is not msgspec.UNSET}


def _listed(model: str) -> Prices:
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
