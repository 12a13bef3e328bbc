"""When a rewrite of text that was sent before pays: rent or buy at every edit point, under a guard.

The provider's cache charges `read` for the prefix that a request shares with the last one, and `write` for the rest
(policies.money.prices). To shorten text in the middle of that prefix is a rewrite: everything behind it must be written
to the cache anew. It costs (W-S)·write - W·read once, W being the cached tokens behind the newest cache entry that
survives and S what the rewrite removes. Not to rewrite costs S·read on each further request: the rent. It is added up
block by block. The point whose rent exceeds its price by most is rewritten, as in the rent-or-buy problem; what it
will save within EARLY of the history's age counts where that is more than the rent. A cut one step after a result
arrived follows from the same rule: there W is about S, and the price is nothing or less.

Neither counts for more than PAYBACK further requests save.

Laws
  The guard: no rewrite that costs anything now is made where it would take the bill so far, this request included,
  above GUARD times the bill of rewriting nothing (the baseline): each block is sent again as it was first sent, with
  the excerpts and references that it had then. So only what rewrites saved is spent. The one exception lets a saving
  begin: a rewrite that is earned back within SOON of the history's age may take the bill further, the sooner the
  further, to CAP at most. A session of age n that is met at random lasts about n more requests, so it ends before a
  rewrite is earned back about as often as the share says: what that would lose, times this share, is RISK at most. A
  summary is asked for within UNTRIED, and adopted within the limit of a rewrite. In a chat without tools, where nothing
  else could save first, it is asked for where it earns back what it costs within EARLY of the age: the first one within
  a limit of its own (`limit_of_chats`), each later one within the guard. With the aim of the context the guard does not
  count for what the preset names. Both bills follow from the history alone, so every replica decides alike. Recalls
  stand outside the guard: neither bill holds what they cost.
  What was paid for summaries and digests counts as well, also where none came of it: no further one is asked for while
  that would take the bill above the guard. It never holds back a rewrite.
  A rewrite that reaches behind the last step removes at least SMALLEST tokens; any other saves at least LEAST on each
  request.
All amounts are tokens weighted by their price relative to plain input.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from copy import copy
from itertools import accumulate
from math import inf

from policies.money.prices import Prices

GUARD, CAP = 1.02, 1.10
EARLY, SOON = 0.1, 0.2
"""Shares of the history's age, in requests: a rewrite that is earned back within the first need not wait for its rent,
one that is earned back within the second may go beyond the guard."""
AFTER_PAUSE = 0.5
"""In place of EARLY behind a pause that was bridged, where doing nothing would have had all written anew: what that
saved pays for the rewrite. A cold cache would have been rewritten there, too. On sessions of Claude Code with pauses,
1.0 takes more out of sight for the same bill."""
RISK = 0.012
"""The loss to expect of that, as a share of the bill of doing nothing: 0.06 at SOON. With 0.06 whatever the share,
sessions of Claude Code waited fifty requests for rewrites that are earned back within ten."""
PRUDENCE = 2.0
"""How often the cost of a summary must have been paid in rent before one is made: a session may end any time, and then
the cost is lost. Measured, at 2 no session gets dearer than without summaries; at 1.5 one does, by 1 %."""
UNTRIED = 1.05
"""The limit in place of GUARD for a summary that is earned back soon, and for the first one of a history, whose answer
may be rejected like any other."""
LEAST_OF_CHATS, OF_CHATS = 0.04, 1.2
"""The most that a chat's first summary may cost, as a share of the bill so far: 1.2 times the price of a read, 0.04 at
least. A summary saves reads, so this is earned back within about as many requests at each price. Chosen on a model of
126 chats (9 lengths of answers, 7 of pastes, 150 turns) at four prices, with the bill at each request from the 40th on
as an ending: with 0.12 at every price, 2 % of the endings at reads of 0.05 stood above 1.02 of doing nothing, with this
0.8 %, for the same bills of chats of long answers; less at reads of 0.1 loses these."""
SMALLEST = 2_000
LEAST = 25
"""The saving on each request for which a prefix may be broken, times what a read saves beside plain input: 475 tokens
at reads of 0.05, 25 at 0.5, any where nothing is cached. Without it, before new outputs were excerpted, recorded
sessions at reads of 0.05 were broken 1.6 times as often, for bills that were lower by 0.4 %."""
PAYBACK = 12
"""Requests within which a rewrite has to be earned back, whatever the age of its session. Recorded ones of 120 requests
went on for another 25 in the mean, but many for fewer: at 25 one of fifteen ended above 1.02 of doing
nothing at reads of 0.05."""
LASTS = 10
"""Requests within which a digest by a model has to pay: what it removes must be worth more, read so often from the
cache, than the call costs. A digest by rule removes as much for nothing: this bounds what better words may cost."""


def digest_pays(prices: Prices, saving: int, cost: float) -> bool:
    """True where a digest at this cost in input tokens is worth what it removes; always with assumed prices."""
    return saving > 0 and (not prices.listed or saving * prices.read * LASTS > cost)


def limit_of_chats(prices: Prices) -> float:
    return 1.0 + max(LEAST_OF_CHATS, OF_CHATS * prices.read)


def _limit(price: float, by_age: float) -> float:
    return min(CAP, 1.0 + RISK * by_age / max(price, 1.0)) if price <= SOON * by_age else GUARD


class Ledger:
    """The account of one history, block by block, as far as it has been served. Copy it before continuing a history."""

    def __init__(self, prices: Prices) -> None:
        self.prices = prices
        self.write = prices.write
        """The price of a write: more where marks ask for the longer lifetime."""
        self.is_cold = False
        """True where the provider's cache has expired, until the request is sent."""
        self.is_bridged = False
        """True where it is there, and would not be with nothing done, until the request is sent."""
        self.sent: list[int] = []
        self._sums = [0]
        """The sums of these up to each block, as far as no block before has changed since."""
        self.saving: dict[int, int] = {}
        self.waiting: Collection[int] = ()
        """The blocks with offers that no rewrite of this request carries out; none when it arrives."""
        self.rents: dict[int, float] = {}
        """Paid so far for not carrying out each of these."""
        self.cached = 0
        """How many blocks the previous request carried."""
        self._entries: list[int] = []
        """Ends of the provider's cache entries, as numbers of blocks, ascending."""
        self._in_reach = 0
        """Where the oldest entry ends that the provider looks for (policies.planning.step)."""
        self.requests = 0
        self.original = 0
        self.paid = 0.0
        """The bill so far, as sent, without what recalls cost: the guard compares it with the baseline."""
        self.outside = 0.0
        """The cost of recalls so far: of requests that only answer them, and of what was recalled later on."""
        self._recalled: list[int] = []
        self.apart = 0
        """Tokens recalled with this request of the client, which stand outside."""
        self._by_client = True
        self.baseline = 0.0
        """The bill of sending each block again as it was first sent."""
        self.first = self._baseline_cached = 0
        """The tokens of all blocks as they were first sent, and how many of them that bill has in the cache."""
        self._price_of_new = 0.0
        """What that bill pays for new tokens of this request."""

    def copy(self) -> "Ledger":
        twin = copy(self)
        twin.sent, twin._sums, twin._entries = list(self.sent), list(self._sums), list(self._entries)
        twin.saving, twin.rents = dict(self.saving), dict(self.rents)
        twin._recalled = list(self._recalled)
        return twin

    def arrive(
        self,
        tokens: list[int],
        ours: Collection[int] = (),
        *,
        by_client: bool = True,
        in_reach: int = 0,
        marked: bool = True,
        is_cold: bool = False,
        would_be_cold: bool = False,
    ) -> None:
        """Enter the blocks that this request adds to the history; `ours` are the places among them of recall exchanges.
        These, and requests that were not made `by_client`, are no part of the baseline, and stand outside the bill that
        the guard sees: what the model recalls must not end the saving. Cache entries that end before `in_reach` are not
        found by this request. `marked`: doing nothing would leave an entry at its end. `is_cold`: no entry is
        left. `would_be_cold`: none would be with nothing done."""
        self._in_reach, self.waiting = in_reach, ()
        self.is_cold, self.is_bridged = is_cold, would_be_cold and not is_cold
        if is_cold:
            self._entries.clear()
        if would_be_cold:
            self._baseline_cached = 0
        self.requests += by_client
        is_entry = marked or not self.prices.breakpoints
        self._price_of_new = (self.prices.write if is_entry else 1.0) * by_client
        recalled = sum(tokens[at] for at in ours)
        new = sum(tokens) - recalled
        if by_client:
            uncached = self.first + new - self._baseline_cached
            self.baseline += self._baseline_cached * self.prices.read + uncached * self._price_of_new
            again = sum(self.sent[at] for at in self._recalled)
            of_recalls = again * self.prices.read + recalled * self.write
            self.paid, self.outside = self.paid - of_recalls, self.outside + of_recalls
        self.apart = recalled if by_client else 0
        self._recalled.extend(len(self.sent) + at for at in ours)
        self._by_client = by_client
        self.original, self.first = self.original + new, self.first + new
        if is_entry:
            self._baseline_cached = self.first
        self.sent.extend(tokens)

    def charge(self) -> None:
        for block, saving in self.saving.items():
            if block < self.cached:
                self.rents[block] = self.rents.get(block, 0.0) + saving * self.prices.read

    def pending(self, start: int) -> tuple[int, float]:
        """Tokens that pending offers from a block on would remove, and the rent paid on them."""
        behind = [block for block in self.saving if block >= start and block not in self.waiting]
        return sum(self.saving[block] for block in behind), sum(self.rents.get(block, 0.0) for block in behind)

    def merge(self, blocks: range, saving: int) -> None:
        """Enter one offer for all of these blocks. It replaces those pending on them, and has their rent."""
        rent = sum(self.rents.pop(block, 0.0) for block in blocks)
        for block in blocks:
            self.saving.pop(block, None)
        self.saving[blocks.start], self.rents[blocks.start] = saving, rent

    def change(self, block: int, tokens: int) -> None:
        self.withdraw(block)
        if block >= self.cached:  # it is not sent yet
            less = self.sent[block] - tokens
            self.first, self.baseline = self.first - less, self.baseline - less * self._price_of_new
            self._baseline_cached = min(self._baseline_cached, self.first)
        self.sent[block] = tokens
        del self._sums[block + 1 :]
        del self._entries[bisect_right(self._entries, block) :]

    def withdraw(self, block: int) -> None:
        self.saving.pop(block, None)
        self.rents.pop(block, None)

    @property
    def total(self) -> int:
        return self.sums[-1]

    @property
    def sums(self) -> Sequence[int]:
        """Tokens before each block, and in all, as it is sent."""
        count = len(self._sums) - 1
        if count < len(self.sent):
            self._sums[-1:] = accumulate(self.sent[count:], initial=self._sums[-1])
        return self._sums

    def send(self, changed_from: int, entries: Iterable[int], *, marks_end: bool = True) -> None:
        """Enter that the request is sent, rewritten from a block on (if at all), and which cache entries it leaves: at
        its end too where it `marks_end`. What follows the last one is not written to the cache."""
        sums, ends = self.sums, sorted({*entries, len(self.sent)} if marks_end else entries)
        cost = _request_cost(self, sums, changed_from, 0)
        if self.prices.breakpoints:
            last = max([*ends, self.cached_before(changed_from)])
            cost -= (sums[-1] - sums[last]) * (self.write - 1.0)
        self.paid += cost
        if not self._by_client:
            self.paid, self.outside = self.paid - cost, self.outside + cost
        self.cached, self.is_cold, self.is_bridged = len(self.sent), False, False
        if self.prices.breakpoints:
            for entry in ends:
                at = bisect_left(self._entries, entry)
                if entry not in self._entries[at : at + 1]:
                    self._entries.insert(at, entry)

    def cached_before(self, point: int) -> int:
        """How many blocks the provider still has in its cache when everything from `point` on changes."""
        point = 0 if self.is_cold else min(point, self.cached)
        if not self.prices.breakpoints:
            return point
        before = bisect_right(self._entries, point)
        entry = self._entries[before - 1] if before else 0
        return entry if entry >= self._in_reach else 0


def reprice(ledger: Ledger, write: float) -> None:
    """Enter what a write of this request costs, before it is sent."""
    more = ledger.apart * (write - ledger.write)
    ledger.paid, ledger.outside, ledger.write = ledger.paid - more, ledger.outside + more, write


# --- the rule: when a rewrite, or what a model writes, pays by this account ---


def is_worth_a_break(prices: Prices, saved: int) -> bool:
    """True where so many tokens less on each request may break a prefix."""
    return saved * prices.read >= LEAST * (1.0 - prices.read)


def best_point(ledger: Ledger, tail_start: int) -> int | None:
    sums = ledger.sums
    best, point = 0.0, None
    saved, rent = 0, 0.0
    for block in sorted((b for b in ledger.saving if b < ledger.cached and b not in ledger.waiting), reverse=True):
        saved += ledger.saving[block]
        rent += ledger.rents.get(block, 0.0)
        price = _price(ledger, sums, block, saved)
        value = _earned(ledger, saved, rent) - price
        if value <= best or (block < tail_start and saved < SMALLEST) or not is_worth_a_break(ledger.prices, saved):
            continue
        limit = _limit(price, ledger.requests * saved * ledger.prices.read)
        if price <= 0 or ledger.paid + _request_cost(ledger, sums, block, saved) <= limit * ledger.baseline:
            best, point = value, block
    return point


def pays(ledger: Ledger, point: int, saved: int, rent: float, cost: float, *, ahead: bool, chats: float = 0.0) -> bool:
    """True where a rewrite from a block on that removes so much has earned its price, by the rent paid on that or by
    the history's age, and keeps within the guard with what it costs to make. `ahead`: this request is sent, it would be
    the next one that is rewritten, and the cost is still to be paid. `chats`: the limit in a chat without tools, else
    0. There only the age counts, and what is paid for waits for no guard."""
    sums = ledger.sums
    price, by_age = _price(ledger, sums, point, saved), ledger.requests * saved * ledger.prices.read
    baseline = ledger.baseline + (ledger.first * ledger.prices.read if ahead else 0.0)
    # one that was paid for should not wait for a little
    if chats:
        earned = EARLY * by_age >= price + cost if ahead else max(rent, SOON * by_age) >= price
        limit = chats if ahead else inf
    else:
        earned = _earned(ledger, saved, rent) >= price + (PRUDENCE * cost if ahead else 0.0)
        limit = _limit(price + cost, by_age)
        limit = min(UNTRIED, limit) if ahead else limit
    return earned and ledger.paid + cost + _request_cost(ledger, sums, point, saved) <= limit * baseline


def affords(ledger: Ledger, cost: float, alike: float = 0.0) -> bool:
    """True where the bill keeps within the guard with a cost on top, this request included as it stands. `alike`: what
    both bills have beside those of the ledger."""
    paid = ledger.paid + _request_cost(ledger, ledger.sums, ledger.cached, 0) + cost
    return paid + alike <= GUARD * (ledger.baseline + alike)


def bears(ledger: Ledger, cost: float, most: float = GUARD) -> bool:
    """True where the bill keeps within the guard, or `most`, if this cost is paid and saves nothing."""
    return ledger.paid + cost <= most * ledger.baseline


def _earned(ledger: Ledger, saved: int, rent: float) -> float:
    """What removing so many tokens has earned: the rent paid on them or, if more, what that saves within EARLY of the
    age; no more than it saves within PAYBACK, but behind a pause that was bridged."""
    each = saved * ledger.prices.read
    if ledger.is_bridged:
        return max(rent, AFTER_PAUSE * ledger.requests * each)
    return min(max(rent, EARLY * ledger.requests * each), min(ledger.requests, PAYBACK) * each)


def _price(ledger: Ledger, sums: Sequence[int], point: int, saved: int) -> float:
    """The price of a rewrite from a block on now, compared with sending the request as it stands."""
    cached = sums[ledger.cached] - sums[ledger.cached_before(point)]
    missing = sums[ledger.cached] - sums[ledger.cached_before(ledger.cached)]
    return (cached - missing) * (ledger.write - ledger.prices.read) - saved * ledger.write


def _request_cost(ledger: Ledger, sums: Sequence[int], point: int, saved: int) -> float:
    cached = sums[ledger.cached_before(point)]
    return cached * ledger.prices.read + (sums[-1] - cached - saved) * ledger.write
