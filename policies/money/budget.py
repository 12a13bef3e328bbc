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


@dataclass(frozen=True, slots=True)
class BudgetLimits:
    """What a person allows, in tokens; `high` and `low` are shares of what the window leaves for the prompt."""

    window: int | None = None
    """A cap on the window of any model."""
    unknown_window: int = 128_000
    """The window of a model that is not listed."""
    context_tokens: int | None = None
    """The prompt's size to keep below, where that is less than the window allows."""
    reserve: int | None = None
    """Tokens kept for the answer, whatever the request allows for it."""
    high: float = HIGH
    low: float | None = None
    floor: int = FLOOR

    def budget(self, prices: Prices, reserve: int | None = None) -> Budget:
        """The marks for a model. `reserve` is what the request allows for the answer; None where it does not say. A
        price tier is a hard mark like the window."""
        listed = prices.window or self.unknown_window
        window = min(listed, self.window or listed)
        wanted = next((tokens for tokens in (self.reserve, reserve) if tokens is not None), RESERVE)
        reserved = min(wanted, window // 2)
        limits = [int(limit * _TIER) for limit, _ in prices.tiers if limit]
        upper = min([int((window - reserved) * self.high), *limits, self.context_tokens or listed])
        lower = int(upper * (self.low / self.high if self.low else 2 / 3))
        return Budget(window, reserved, upper, min(lower, upper - 1), self.floor)


NO_LIMITS = BudgetLimits()
