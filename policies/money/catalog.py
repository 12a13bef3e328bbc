"""The prices of a model: from the snapshot that genai-prices carries, under what a person configured.

Laws: no clock and no network, so a model has the same prices in every replica of a release. No name can make
it fail: an unknown model has assumed relative prices, `listed=False` and no window.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import msgspec

from policies.money.caches import longer_write
from policies.money.prices import Prices

Overrides = Mapping[str, Mapping[str, object]]

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
    from policies.money.listed import listed_prices

    overrides = overrides or {}
    name = model if model in overrides else model.rpartition("/")[2]  # with the vendor in front, or without
    configured = _fields(name, overrides[name]) if name in overrides else {}
    prices = listed_prices(model)
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
