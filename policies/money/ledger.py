"""When a rewrite pays: rent or buy at every edit point, and the guard.

The provider's cache charges `read` for what extends the last request and `write` for the rest. Rewriting from a block f
on costs (W-S)·write - W·read now, W being the cached tokens behind the newest cache entry that survives and S what the
rewrite removes; keeping everything costs the rent S·read on each request. Rent is added up block by block. The point
whose rent exceeds its price by most fires (rent or buy). Cutting a result one step after its birth is
the same rule: there W is about S, and the price is nothing or less.

Laws
  Spend winnings, never capital: no rewrite that costs anything now is made where it would take the bill so far, this
  request included, above GUARD times the bill of doing nothing. Both bills follow from the history alone, so every
  replica agrees.
  Smallest checkpoint: a rewrite that reaches behind the last step removes at least SMALLEST tokens.
All amounts are tokens weighted by price relative to plain input.
"""

from collections.abc import Iterable
from copy import copy
from itertools import accumulate

from policies.money.prices import Prices

GUARD = 1.02
PRUDENCE = 2.0
"""How often the cost of a summary must have been paid in rent before one is made: a session may end any time, and then
the cost is lost. Measured, at 2 no session gets dearer than without summaries; at 1.5 one does, by 1 %."""
SMALLEST = 2_000
LASTS = 10
"""Requests for which a digest by a model has to pay: what it takes away must be worth more, sent so often from the
cache, than the call costs. One by rule takes away as much for nothing: this bounds what better words may cost."""


def digest_pays(prices: Prices, saving: int, cost: float) -> bool:
    """Whether a call for a digest that costs so much, in input tokens, is worth the tokens that it takes away. Where
    the prices are not known nobody can say, and it is."""
    return saving > 0 and (not prices.listed or saving * prices.read * LASTS > cost)


class Ledger:
    """The books of one history, block by block, as far as it has been served. Copy before continuing a history."""

    def __init__(self, prices: Prices) -> None:
        self._prices = prices
        self.sent: list[int] = []
        """Tokens of each block as it stands in the request."""
        self.saving: dict[int, int] = {}
        """What a pending offer would remove from a block."""
        self._rent: dict[int, float] = {}
        self._cached = 0
        """How many blocks the previous request carried."""
        self._entries: list[int] = []
        """Ends of the provider's cache entries, as numbers of blocks, ascending."""
        self._whole = 0
        """Tokens of the history as the client wrote it."""
        self.paid = 0.0
        self.baseline = 0.0
        """The bills so far: as sent, and of doing nothing."""

    def copy(self) -> "Ledger":
        """The same books, to be continued apart."""
        twin = copy(self)
        twin.sent, twin._entries = list(self.sent), list(self._entries)
        twin.saving, twin._rent = dict(self.saving), dict(self._rent)
        return twin

    def arrive(self, tokens: list[int], ours: int = 0, asked: bool = True) -> None:
        """The blocks that this request adds to the history; a step begins, and rent falls due on what is pending.

        Without us the `ours` tokens of recall exchanges would not be there, and a request that the client has not
        `asked` would not be made.
        """
        whole, new = self._whole, sum(tokens) - ours
        if asked:
            self.baseline += whole * self._prices.read + new * self._prices.write
        self._whole = whole + new
        self.sent.extend(tokens)

    def offer(self, block: int, saving: int) -> None:
        """A block could be shorter by so much from now on."""
        self.saving[block] = saving

    def withdraw(self, block: int) -> None:
        """A block shall stay after all."""
        self.saving.pop(block, None)
        self._rent.pop(block, None)

    def charge(self) -> None:
        """Add the rent of this request to every pending offer on what is cached."""
        for block, saving in self.saving.items():
            if block < self._cached:
                self._rent[block] = self._rent.get(block, 0.0) + saving * self._prices.read

    def best_point(self, last_step: int) -> int | None:
        """The block from which a rewrite pays most, if any does. `last_step` is where a tail cut may begin."""
        sums = [0, *accumulate(self.sent)]
        best, found = 0.0, None
        saved, rent = 0, 0.0
        for block in sorted((b for b in self.saving if b < self._cached), reverse=True):
            saved += self.saving[block]
            rent += self._rent.get(block, 0.0)
            price = self._price(sums, block, saved)
            if rent - price <= best or (block < last_step and saved < SMALLEST):
                continue
            if price <= 0 or self._within_guard(sums, block, saved):
                best, found = rent - price, block
        return found

    def pays(self, point: int, saved: int, rent: float, cost: float, *, ahead: bool) -> bool:
        """Whether a rewrite from a block on that removes so much has earned its price, by the rent paid on that, and
        keeps within the guard with what it costs to make.

        `ahead`: this request is sent, it would be the next one that is rewritten, and the cost is still to be paid.
        """
        sums = [0, *accumulate(self.sent)]
        price = self._price(sums, point, saved)
        baseline = self.baseline + (self._whole * self._prices.read if ahead else 0.0)
        earned = rent >= price + (PRUDENCE * cost if ahead else 0.0)
        return earned and self.paid + cost + self._rewritten(sums, point, saved) <= GUARD * baseline

    def affords(self, cost: float) -> bool:
        """Whether the bill keeps within the guard with a cost on top, this request included as it stands."""
        sums = [0, *accumulate(self.sent)]
        return self.paid + self._rewritten(sums, self._cached, 0) + cost <= GUARD * self.baseline

    def pending(self, start: int) -> tuple[int, float]:
        """What pending offers from a block on would remove, and the rent paid on them."""
        behind = [block for block in self.saving if block >= start]
        return sum(self.saving[block] for block in behind), sum(self._rent.get(block, 0.0) for block in behind)

    def rent(self, tokens: int) -> float:
        """What it costs to send so many cached tokens once more."""
        return tokens * self._prices.read

    def change(self, block: int, tokens: int) -> None:
        """A block that has this many tokens from now on, whatever was pending."""
        self.withdraw(block)
        self.sent[block] = tokens
        self._entries = [entry for entry in self._entries if entry <= block]

    @property
    def total(self) -> int:
        """Tokens of the history as it stands in the request."""
        return sum(self.sent)

    @property
    def original(self) -> int:
        """Tokens of the history as the client wrote it."""
        return self._whole

    def send(self, changed_from: int, entries: Iterable[int]) -> None:
        """The request goes out, rewritten from a block on (if at all), and leaves cache entries behind."""
        sums = [0, *accumulate(self.sent)]
        kept = self.standing(changed_from)
        self.paid += sums[kept] * self._prices.read + (sums[-1] - sums[kept]) * self._prices.write
        self._cached = len(self.sent)
        if self._prices.breakpoints:
            self._entries = sorted({*self._entries, *entries, self._cached})

    def standing(self, point: int) -> int:
        """How many blocks the provider still has in its cache when everything from `point` on changes."""
        point = min(point, self._cached)
        if not self._prices.breakpoints:
            return point
        return max((entry for entry in self._entries if entry <= point), default=0)

    def _price(self, sums: list[int], point: int, saved: int) -> float:
        cached = sums[self._cached] - sums[self.standing(point)]
        lost = sums[self._cached] - sums[self.standing(self._cached)]
        return (cached - lost) * (self._prices.write - self._prices.read) - saved * self._prices.write

    def _within_guard(self, sums: list[int], point: int, saved: int) -> bool:
        return self.paid + self._rewritten(sums, point, saved) <= GUARD * self.baseline

    def _rewritten(self, sums: list[int], point: int, saved: int) -> float:
        """The bill of a request that is rewritten from a block on."""
        kept = sums[self.standing(point)]
        return kept * self._prices.read + (sums[-1] - kept - saved) * self._prices.write
