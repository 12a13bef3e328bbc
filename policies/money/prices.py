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
    longest_prompt: int | None = None
    """Tokens of the longest prompt, where that is less than the window."""
    assumed: str = ""
    """The listed model whose cache rule and prices these are, where the model itself is not listed."""
    is_local: bool = False
    """Whether it is served by a machine of one's own, and has no price at all."""

    @property
    def origin(self) -> str:
        """Where prices are from that are not listed."""
        return "none" if self.is_local else f"assumed from {self.assumed}" if self.assumed else "assumed"

    def cost(self, usage: Usage) -> Cost:
        """What a call cost with this usage, tiers and cache writes included."""
        written = usage.written + usage.written_longer * (self.longer - 1.0)
        tokens = usage.uncached + usage.cached * self.read + written * self.write
        return Cost(
            tokens * self.input * _factor(self.tiers, usage.prompt) / 1e6,
            usage.completion * self.output * _factor(self.output_tiers or self.tiers, usage.prompt) / 1e6,
        )


CAUTIOUS = Prices(read=0.05, write=1.25)
"""For a model of which nothing is known: a rewrite pays late, at the lowest price of reading and the highest of writing
that are usual."""


def _factor(tiers: Tiers, prompt: int) -> float:
    """The factor of the highest tier that a prompt of so many tokens is in."""
    return next((factor for start, factor in reversed(tiers) if prompt > start), 1.0)
