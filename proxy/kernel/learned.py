"""What an upstream has said of a model's window, where a prompt was too long.

Laws
  A learned window only makes a budget smaller.
  It counts for an hour, and no longer once the upstream takes a prompt that is larger.
"""

from dataclasses import dataclass, replace

from policies.dialects.overflow import Overflow
from policies.money.budget import NO_MARK, Budget, BudgetLimits
from policies.money.prices import Prices

SECONDS = 3_600.0
"""Seconds for which what was said counts: an error may repeat what a client wrote, and an upstream may change."""
SHARE = 0.7
"""Where a message names no window, a prompt may be so large in the future, as a share of the one that was too long."""


@dataclass(frozen=True, slots=True)
class LearnedWindow:
    """In the upstream's own tokens."""

    window: int | None = None
    prompt: int | None = None
    """The most tokens of a prompt; None where that follows from the window."""
    with_answer: bool = False
    """Whether what a request allows for the answer counts against the window."""

    def after(self, overflow: Overflow, sent: int) -> "LearnedWindow":
        """With what is said of a prompt that had about so many tokens. The newest word on the window counts."""
        with_answer = self.with_answer or overflow.with_answer
        if overflow.window is not None:
            return LearnedWindow(overflow.window, None, with_answer)
        return LearnedWindow(self.window, min(int(SHARE * sent), self.prompt or sent), with_answer)

    def above(self, prompt: int) -> "LearnedWindow":
        """What is left of it after a prompt of so many tokens was taken: a smaller window was never the model's."""
        window = None if self.window is not None and self.window < prompt else self.window
        return replace(self, window=window, prompt=self.prompt and max(self.prompt, prompt))

    def budget(self, limits: BudgetLimits, prices: Prices, answer: int | None, *, has_floor: bool) -> Budget:
        """The budget for this model: at most what the upstream takes beside an answer of so many tokens."""
        windows = [window for window in (self.window, limits.window) if window is not None]
        limits = replace(limits, window=min(windows, default=None))
        budget = limits.budget(prices, answer, has_floor=has_floor)
        caps = [self.prompt or 0, int((self.room(answer) or 0) * limits.high)]  # where no prompt fits, none is made to
        high = min([budget.high, *filter(None, caps)])
        low, floor = budget.low * high // budget.high, budget.floor * high // budget.high
        if budget.high == NO_MARK:
            floor = min(budget.floor, high // 3)
        return budget if high == budget.high else replace(budget, high=high, low=low, floor=floor, mark="window")

    def room(self, answer: int | None) -> int | None:
        """The most tokens that a prompt may have beside an answer of so many; None where nobody has said."""
        beside = answer if self.with_answer and answer else 0
        return None if self.window is None else max(0, self.window - beside)
