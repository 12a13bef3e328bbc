"""How many tokens a request may have: the marks at which room is made for it."""

from dataclasses import dataclass
from typing import Literal

from policies.money.prices import Prices

RESERVE, FLOOR = 8_192, 3_000
"""Tokens reserved for the answer where the request does not say, and tokens below which nothing is worth touching."""
_PART, _FLOOR = 8, 3
"""Both are less in small windows: an eighth of the window, and a third of the high mark at most."""
HIGH = 0.9
"""The high mark, as a share of what the window leaves for the prompt; the low one is two thirds of it."""
_TIER = 0.97
"""The high mark stays below a price tier by this factor."""
NO_MARK = 900_000_000
"""The high mark where nothing is known that sets one: more tokens than any request has."""


@dataclass(frozen=True, slots=True)
class Budget:
    """In tokens: act at the `high` mark, stop at the `low` one; nothing is touched below `floor`. `mark`: what sets the
    high mark. Where that is a size to keep below, it is the `window` as well. An unknown window sets no mark: what is a
    share of the `window` is then one of `BudgetLimits.unknown_window`."""

    window: int
    reserve: int
    high: int
    low: int
    floor: int = FLOOR
    mark: Literal["window", "context"] = "window"

    def bounded(self, tokens: int) -> int:
        """So many tokens, but in small windows an eighth of the high mark at most."""
        return min(tokens, self.high // _PART)


@dataclass(frozen=True, slots=True)
class BudgetLimits:
    """What a person allows, in tokens; `high` and `low` are shares of what the window leaves for the prompt."""

    window: int | None = None
    """A cap on the window of any model."""
    unknown_window: int = 128_000
    """What stands for an unknown window where a parameter is a share of it. It is no mark."""
    context_tokens: int | None = None
    """The prompt's size to keep below, where that is less than the window allows."""
    reserve: int | None = None
    """Tokens kept for the answer, whatever the request allows for it."""
    high: float = HIGH
    low: float | None = None
    floor: int | None = None
    """None for what is usual where only the bill counts, and for nothing elsewhere."""

    def budget(self, prices: Prices, reserve: int | None = None, *, has_floor: bool = True) -> Budget:
        """The marks for a model. `reserve` is what the request allows for the answer; None where it does not say. A
        price tier is a hard mark like the window. `has_floor`: whether there is a floor where none is given."""
        window = min((each for each in (prices.window, self.window) if each), default=0)
        has_mark, window = bool(window), window or self.unknown_window
        usual = min(RESERVE, window // _PART)
        wanted = next((tokens for tokens in (self.reserve, reserve) if tokens is not None), usual)
        reserved = min(wanted, window // 2)
        room = min(window - reserved, prices.longest_prompt or window)
        limits = [int(room * self.high) if has_mark else NO_MARK, *(int(s * _TIER) for s, _ in prices.tiers if s)]
        upper = min(limits)
        mark: Literal["window", "context"] = "window"
        if self.context_tokens is not None and self.context_tokens < upper:
            window, upper, mark = self.context_tokens, self.context_tokens, "context"
        lower = int(upper * (self.low / self.high if self.low else 2 / 3))
        floor = self.floor
        if floor is None:
            floor = min(FLOOR, upper // _FLOOR) if has_floor else 0
        return Budget(window, reserved, upper, min(lower, upper - 1), floor, mark)


NO_LIMITS = BudgetLimits()
