"""How long a conversation's cache entries are to live: the usual lifetime, or the longer one that marks may ask for.

The longer one costs more with each write; the usual one costs the whole prompt written again after each pause that the
longer one would have bridged. It is rent or buy again (policies.money.ledger): what was paid so far for not having the
other lifetime is the rent, and once that has reached the price of changing, it is changed. No forecast is made.

Laws
  From the usual to the longer lifetime only where the cache is cold: then all is written anyway. No provider says that
  a mark lengthens an entry that it reads, so elsewhere the change could cost and bring nothing.
  Where a person pauses for longer than either lasts, the pause speaks for neither.
All amounts are tokens weighted by their price relative to plain input.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from policies.model.memory import CacheLife
from policies.money.prices import Prices

PRUDENCE = 3.0
"""How often the price of the longer lifetime must have been paid before it is chosen."""


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """The longer lifetime that a conversation's marks may have, in seconds, and the price of a write for it."""

    longer: float
    write: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """One request: seconds since the client's last, the tokens cached then, this prompt's, and those written."""

    idle: float
    cached: int
    tokens: int
    written: int


def next_life(
    life: CacheLife, traffic: Traffic, prices: Prices, lifetimes: Lifetimes, affords: Callable[[float], bool]
) -> CacheLife:
    """The life of the cache behind a request that finds it so. `affords`: whether the guard allows a cost on top."""
    more, again = lifetimes.write - prices.write, prices.write - prices.read
    if life.is_longer:
        is_bridged = life.would_be_cold and not life.is_cold
        rent = (0.0 if is_bridged else life.rent) + traffic.written * more
        is_longer = rent <= traffic.tokens * again
    else:
        is_missed = life.is_cold and traffic.idle <= lifetimes.longer
        rent = life.rent + (traffic.cached * again if is_missed else 0.0)
        price = traffic.tokens * more
        is_longer = life.is_cold and 0 < PRUDENCE * price <= rent and affords(price)
    return replace(life, is_longer=is_longer, rent=rent if is_longer == life.is_longer else 0.0)
