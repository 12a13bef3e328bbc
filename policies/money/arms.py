"""What a holdout measures: what compacted conversations cost, compared with those that passed as the client wrote them.

Conversations differ in size by far more than compaction saves. So each arm's cost is taken in proportion to its size:
the baseline by the rules of the cache alone, which is told alike in both arms (`BillSums.by_rules`). Where these rules
are wrong, they are wrong in both, and the quotient of the two proportions is what is measured.

Law: what is said is said with an interval of 95 %. The spread is that of leaving out one conversation after the other
(the jackknife), on the logarithm of the quotient, and Student's t by how many conversations there are in each arm.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, log

from policies.money.bills import ConversationRow

FEWEST = 8
"""Conversations in each arm without which nothing is said."""
_Z = 1.959964
"""Of the normal distribution, for 95 %."""


@dataclass(frozen=True, slots=True)
class ArmCounts:
    """How many conversations are in each arm, and how many in neither."""

    on: int
    holdout: int
    left: int


@dataclass(frozen=True, slots=True)
class MeasuredSaving:
    """A share of what conversations would have cost: 0.2 is a fifth saved; less than 0, they cost more."""

    share: float
    low: float
    high: float


def arm_counts(rows: Iterable[ConversationRow]) -> ArmCounts:
    arms = [row.arm for row in rows]
    return ArmCounts(arms.count("on"), arms.count("holdout"), arms.count("left"))


def measured_saving(rows: Sequence[ConversationRow]) -> MeasuredSaving | None:
    """What the compacted ones saved; None where there are too few in either arm, or prices are not known."""
    on, out = (_Proportion.of(_costs(rows, arm)) for arm in ("on", "holdout"))
    if on is None or out is None:
        return None
    total = on.variance + out.variance
    if total:
        freedom = total**2 / (on.variance**2 / (on.count - 1) + out.variance**2 / (out.count - 1))
        spread = _student(freedom) * total**0.5
    else:
        spread = 0.0
    quotient = on.log - out.log
    return MeasuredSaving(1 - exp(quotient), 1 - exp(quotient + spread), 1 - exp(quotient - spread))


@dataclass(frozen=True, slots=True)
class _Proportion:
    """The logarithm of an arm's cost in proportion to its size, and its variance."""

    log: float
    variance: float
    count: int

    @classmethod
    def of(cls, costs: Sequence[tuple[float, float]]) -> "_Proportion | None":
        count, paid, size = len(costs), sum(cost for cost, _ in costs), sum(each for _, each in costs)
        if count < FEWEST or min(paid - max(cost for cost, _ in costs), size - max(each for _, each in costs)) <= 0:
            return None
        without = [log((paid - cost) / (size - each)) for cost, each in costs]
        mean = sum(without) / count
        variance = (count - 1) / count * sum((each - mean) ** 2 for each in without)
        return cls(log(paid / size), variance, count)


def _costs(rows: Iterable[ConversationRow], arm: str) -> list[tuple[float, float]]:
    """What each conversation of an arm cost, and its size."""
    sums = (row.sums for row in rows if row.arm == arm)
    return [(each.paid + each.summaries, each.by_rules) for each in sums if each.by_rules > 0]


def _student(freedom: float) -> float:
    """The quantile of Student's t for 95 %, by the expansion of Cornish and Fisher."""
    z, v = _Z, max(freedom, 2.0)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / v**at for at, term in enumerate(terms, 1))
