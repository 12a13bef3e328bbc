"""What results have in common: how `--json` prints them, how several runs add up, and what to know of their figures.

Laws
  The keys of the JSON are the names of the attributes: no result is written out twice.
  Sums are sums, so that a fault in any of several runs shows.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar, TypeVar

from policies.model.tokens import encoding_for
from policies.money.prices import Prices

T = TypeVar("T")
FIRST: Mapping[str, str] = {"joined": "first"}
"""Metadata of a field that has the value of the first run."""
MAX: Mapping[str, str] = {"joined": "max"}
"""Metadata of a field that has the highest value."""
_PUBLIC_VOCABULARY = re.compile(r"(?:gpt|o\d|chatgpt|codex)\b")
"""Names of models whose vocabulary is the one that counts."""


def notes_on(prices: Prices) -> list[str]:
    """What a reader has to know of figures at these prices, in sentences."""
    notes: list[str] = []
    if not prices.listed:
        whose = f"those of {prices.assumed}" if prices.assumed else "assumed prices"
        notes.append(
            f"The prices of {prices.model} are not known: ratios are by {whose}, and no dollars are shown; "
            "--prices takes those of another model."
        )
    name = prices.model.rpartition("/")[2].lower()
    if not _PUBLIC_VOCABULARY.match(name):
        notes.append(
            f"Tokens are counted with OpenAI's {encoding_for(name)}, because that of {prices.model} is not public: its "
            "provider counts others."
        )
    return notes


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure with Narrows, and without it."""

    with_: float = 0
    without: float = 0

    @property
    def ratio(self) -> float:
        """With Narrows, as a share of without; 1 where there is nothing to compare."""
        return self.with_ / self.without if self.without else 1.0


@dataclass(frozen=True, slots=True)
class ComparedBill(Compared):
    """Dollars, whose ratio is printed too. Where the prices are assumed, only the ratio is."""

    JSON: ClassVar = ("with=dollars_with", "without=dollars_without", "ratio")

    prices_known: bool = True

    @property
    def dollars_with(self) -> float | None:
        return self.with_ if self.prices_known else None

    @property
    def dollars_without(self) -> float | None:
        return self.without if self.prices_known else None


def joined(values: Sequence[T]) -> T:
    """Several of the same dataclass as one: numbers, lists and counts are sums, nested values are joined likewise, and
    of anything else the first that is not empty stands, unless the metadata of a field is `FIRST` or `MAX`."""
    whole = copy(values[0])
    for field in fields(whole):  # type: ignore[arg-type]
        each: list[Any] = [getattr(one, field.name) for one in values]
        if field.metadata == MAX:
            value = max(each)
        elif field.metadata == FIRST:
            value = each[0]
        elif isinstance(each[0], int | float | Counter | list):
            value = sum(each, type(each[0])())
        else:
            value = joined(each) if is_dataclass(each[0]) else next(filter(None, each), each[0])
        setattr(whole, field.name, value)
    return whole
