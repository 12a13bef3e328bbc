"""Prices of models, the cost of a call (the one place where tokens become money), and how many tokens a request may
have: the marks at which room is made for it.
"""

from dataclasses import dataclass, replace
from typing import Literal

Tiers = tuple[tuple[int, float], ...]
"""Pairs of prompt tokens and the factor on the price of a request with more of them, in ascending order."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call as the provider billed them; `cached` and `written` are parts of `prompt`."""

    prompt: int
    cached: int
    written: int
    completion: int
    written_longer: int = 0
    """The part of `written` that the cache keeps for the longer of its two lifetimes."""

    @property
    def uncached(self) -> int:
        return max(0, self.prompt - self.cached - self.written)


@dataclass(frozen=True, slots=True)
class Cost:
    input: float = 0.0
    output: float = 0.0

    @property
    def total(self) -> float:
        return self.input + self.output


@dataclass(frozen=True, slots=True)
class Prices:
    """The prices of a model. `input` and `output` are dollars per million tokens; `read` and `write` are those of a
    token read from the cache or written to it, relative to `input`."""

    model: str = ""
    input: float = 1.0
    output: float = 4.0
    read: float = 0.1
    write: float = 1.0
    breakpoints: bool = False
    """True where the cache matches only where a request set a mark (else: any prefix)."""
    tiers: Tiers = ()
    """For the whole input of a request; for its output too where `output_tiers` is empty."""
    window: int | None = None
    listed: bool = False
    """True where the prices are listed or configured; else they are assumed, and no dollars are reported."""
    longer: float = 1.0
    """The price of a write for the longer of two lifetimes, relative to `write`."""
    output_tiers: Tiers = ()
    """For the output of a request, by its prompt tokens."""
    longest_prompt: int | None = None
    """Tokens of the longest prompt, where that is less than the window."""
    assumed: str = ""
    """The listed model whose cache rule and prices these are, where the model itself is not listed."""
    is_local: bool = False
    """True where it is served by a machine of one's own, and has no price at all."""

    @property
    def origin(self) -> str:
        """Where prices are from that are not listed."""
        return "none" if self.is_local else f"assumed from {self.assumed}" if self.assumed else "assumed"

    def cost(self, usage: Usage) -> Cost:
        """The cost of a call with this usage, tiers and cache writes included."""
        written = usage.written + usage.written_longer * (self.longer - 1.0)
        tokens = usage.uncached + usage.cached * self.read + written * self.write
        return Cost(
            tokens * self.input * _factor(self.tiers, usage.prompt) / 1e6,
            usage.completion * self.output * _factor(self.output_tiers or self.tiers, usage.prompt) / 1e6,
        )


CAUTIOUS = Prices(read=0.05, write=1.25)
"""For an unknown model: a rewrite pays late, at the lowest usual price of reading and the highest of writing."""


def _factor(tiers: Tiers, prompt: int) -> float:
    return next((factor for start, factor in reversed(tiers) if prompt > start), 1.0)


# --- the marks of a request ---

RESERVE, FLOOR = 8_192, 3_000
"""Tokens reserved for the answer where the request does not say, and tokens below which nothing is worth touching."""
_PART, _FLOOR_PART = 8, 3
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
    """The limits that a person sets, in tokens; `high` and `low` are shares of the window without the reserve."""

    window: int | None = None
    """A cap on the window of any model."""
    unknown_window: int = 128_000
    """In the place of an unknown window where a parameter is a share of it. It is no mark."""
    context_tokens: int | None = None
    """The prompt's size to keep below, where that is less than the window allows."""
    reserve: int | None = None
    """Tokens kept for the answer, whatever the request allows for it."""
    high: float = HIGH
    low: float | None = None
    floor: int | None = None
    """None for what is usual where only the bill counts, and for nothing elsewhere."""

    def within(self, window: int | None) -> "BudgetLimits":
        """The same, for a window that is no larger than this one."""
        return replace(self, window=min((each for each in (window, self.window) if each is not None), default=None))

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
            floor = min(FLOOR, upper // _FLOOR_PART) if has_floor else 0
        return Budget(window, reserved, upper, min(lower, upper - 1), floor, mark)


NO_LIMITS = BudgetLimits()
