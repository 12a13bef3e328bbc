"""How many tokens a request may have: the marks at which room is made for it."""

from dataclasses import dataclass

from policies.money.prices import Prices

RESERVE, FLOOR = 8_192, 3_000
"""Tokens reserved for the answer where the request does not say, and tokens below which nothing is worth touching."""
HIGH = 0.9
"""The high mark, as a share of what the window leaves for the prompt; the low one is two thirds of it."""
_TIER = 0.97
"""The high mark stays below a price tier by this factor."""


@dataclass(frozen=True, slots=True)
class Budget:
    """In tokens: act at the `high` mark, stop at the `low` one; nothing is touched below `floor`."""

    window: int
    reserve: int
    high: int
    low: int
    floor: int = FLOOR

    @classmethod
    def of(
        cls,
        prices: Prices,
        *,
        unknown_window: int,
        window: int | None = None,
        reserve: int | None = None,
        high: float = HIGH,
        low: float | None = None,
        floor: int = FLOOR,
    ) -> "Budget":
        """The marks for a model: shares `high` and `low` of what the window leaves for the prompt. A price tier is a
        hard mark like the window. `window` caps the model's own; `unknown_window` is used where that is not listed."""
        listed = prices.window or unknown_window
        capped = min(listed, window or listed)
        reserved = min(RESERVE if reserve is None else reserve, capped // 2)
        upper = min([int((capped - reserved) * high), *(int(start * _TIER) for start, _ in prices.tiers if start)])
        lower = int(upper * (low / high if low else 2 / 3))
        return cls(capped, reserved, upper, min(lower, upper - 1), floor)
