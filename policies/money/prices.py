"""What a model costs, and what one call cost: the one place where tokens become money."""

from dataclasses import dataclass

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
        """Prompt tokens that were neither read from the cache nor written to it."""
        return max(0, self.prompt - self.cached - self.written)


@dataclass(frozen=True, slots=True)
class Cost:
    """What calls cost, in dollars."""

    input: float = 0.0
    output: float = 0.0

    @property
    def total(self) -> float:
        return self.input + self.output


@dataclass(frozen=True, slots=True)
class Prices:
    """What a model costs. `input` and `output` are dollars per million tokens; `read` and `write` are what a token
    read from the cache or written to it costs relative to `input`."""

    model: str = ""
    input: float = 1.0
    output: float = 4.0
    read: float = 0.1
    write: float = 1.0
    breakpoints: bool = False
    """Whether the cache matches only where a request set a mark (else: any prefix)."""
    tiers: Tiers = ()
    """For the whole input of a request; for its output too where `output_tiers` is empty."""
    window: int | None = None
    listed: bool = False
    """Whether the prices are listed or configured; else they are assumed, and no dollars are reported."""
    longer: float = 1.0
    """What a write for the longer of two lifetimes costs relative to `write`."""
    output_tiers: Tiers = ()
    """For the output of a request, by its prompt tokens."""

    def cost(self, usage: Usage) -> Cost:
        """What a call cost with this usage, tiers and cache writes included."""
        written = usage.written + usage.written_longer * (self.longer - 1.0)
        tokens = usage.uncached + usage.cached * self.read + written * self.write
        return Cost(
            tokens * self.input * _factor(self.tiers, usage.prompt) / 1e6,
            usage.completion * self.output * _factor(self.output_tiers or self.tiers, usage.prompt) / 1e6,
        )


def _factor(tiers: Tiers, prompt: int) -> float:
    """The factor of the highest tier that a prompt of so many tokens is in."""
    return next((factor for start, factor in reversed(tiers) if prompt > start), 1.0)
