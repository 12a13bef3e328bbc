"""Costs of replayed requests, recalls and summaries, and how results add up and compare.

Laws
  Money is what a provider's usage says, at the prices of one table.
  Sums are sums, so that a fault in any of several sessions shows.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, is_dataclass
from math import ceil
from typing import Any, ClassVar, TypeVar

from policies.model.summary_record import SummaryCost, SummaryRecord
from policies.model.tokens import encoding_for
from policies.money.prices import Prices, Usage

T = TypeVar("T")
FIRST: Mapping[str, str] = {"joined": "first"}
"""Metadata of a field that has the value of the first."""
MAX: Mapping[str, str] = {"joined": "max"}
_PUBLIC_VOCABULARY = re.compile(r"(?:gpt|o\d|chatgpt|codex)\b")
"""Names of models whose vocabulary is the one that counts."""


def notes_on(prices: Prices) -> list[str]:
    """Notes on figures at these prices, in sentences."""
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
    for each_field in fields(whole):  # type: ignore[arg-type]
        each: list[Any] = [getattr(one, each_field.name) for one in values]
        if each_field.metadata == MAX:
            value = max(each)
        elif each_field.metadata == FIRST:
            value = each[0]
        elif isinstance(each[0], int | float | Counter | list):
            value = sum(each, type(each[0])())
        else:
            value = joined(each) if is_dataclass(each[0]) else next(filter(None, each), each[0])
        setattr(whole, each_field.name, value)
    return whole


# --- bills ---


@dataclass
class SessionBill:
    """The cost of requests, by what the provider counted: `input` and `output` in dollars, the others in tokens."""

    prices: Prices = field(metadata=FIRST)
    input: float = 0.0
    output: float = 0.0
    tokens: int = 0
    cached: int = 0
    written: int = 0
    peak: int = field(default=0, metadata=MAX)
    completion: int = 0

    def add(self, usage: Usage) -> None:
        cost = self.prices.cost(usage)
        self.input += cost.input
        self.output += cost.output
        self.tokens += usage.prompt
        self.cached += usage.cached
        self.written += usage.written
        self.peak = max(self.peak, usage.prompt)
        self.completion += usage.completion

    @property
    def total(self) -> float:
        return self.input + self.output

    @property
    def dollars(self) -> float | None:
        return self.total if self.prices.listed else None

    @property
    def dollars_of_input(self) -> float | None:
        return self.input if self.prices.listed else None

    @property
    def share_cached(self) -> float:
        return self.cached / self.tokens if self.tokens else 0.0


@dataclass
class RecallCosts:
    """The cost of recalls. `bill` is that of the rounds: the requests of a turn after its first."""

    JSON: ClassVar = (
        *("uses_of_hidden_text", "rate", "calls", "refused", "rounds"),
        *("tokens=bill.tokens", "input_bill=bill.dollars_of_input"),
    )

    bill: SessionBill
    rate: float = field(default=0.0, metadata=FIRST)
    """The share of the uses of hidden text at which the model is to recall it."""
    calls: int = 0
    refused: int = 0
    rounds: int = 0
    uses_of_hidden_text: int = 0
    """Turns times hidden texts that they would need."""

    def add(self, calls: int, refused: int, rounds: Iterable[Usage]) -> None:
        self.calls += calls
        self.refused += refused
        for usage in rounds:
            self.rounds += 1
            self.bill.add(usage)


@dataclass(frozen=True, slots=True)
class Moment:
    """A request of a session, counted from 1, and the tokens of its prompt as it was sent."""

    request: int
    tokens: int


@dataclass
class SummaryCosts:
    """The cost of summaries. `bill` is that of the calls, at the prices of the model that writes them."""

    JSON: ClassVar = (
        *("model=bill.prices.model", "made=accepted", "adopted", "rejected", "rejected_because", "failed", "calls"),
        *("first_asked", "first_adopted", "bound", "tokens_covered", "tokens_in=bill.tokens"),
        *("tokens_out=bill.completion", "dollars=bill.dollars", "dollars_of_rejected=rejected_bill.dollars"),
    )

    bill: SessionBill
    batch: int = field(default=0, metadata=FIRST)
    """So many tokens have to go for each; 0 where none are wanted."""
    calls: int = 0
    accepted: int = 0
    rejected_because: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    """Those wanted of which no answer came."""
    adopted: int = 0
    tokens_covered: int = 0
    """Tokens, as the client wrote them, for which any of them was to stand."""
    digests: int = 0
    """Those that are digests, each of one output."""
    bound: int = 0
    """How many calls that is worth."""
    first_asked: Moment | None = field(default=None, metadata=FIRST)
    """The request with which the first summary of turns was asked for, to be used or not."""
    first_adopted: Moment | None = field(default=None, metadata=FIRST)
    rejected_bill: SessionBill = field(init=False)
    """Of the bill, what answers cost that may not be used."""

    def __post_init__(self) -> None:
        self.rejected_bill = SessionBill(self.bill.prices)

    def add(self, record: SummaryRecord) -> None:
        self.accepted += not record.rejected
        if record.rejected:
            self.rejected_because[record.rejected] += 1
            cost = record.spent
            self.rejected_bill.add(Usage(cost.prompt, cost.cached, cost.written, cost.completion))
        if record.kind == "digest":
            self.digests += 1
        else:
            self.tokens_covered = max(self.tokens_covered, record.tokens_before)
        self.bound = self.digests + (ceil(self.tokens_covered / self.batch) if self.batch else 0)

    def note(self, moment: Moment, was_asked: bool, was_adopted: bool) -> None:
        self.first_asked = self.first_asked or (moment if was_asked else None)
        self.first_adopted = self.first_adopted or (moment if was_adopted else None)

    def charge(self, before: SummaryCost, now: SummaryCost) -> None:
        """Add the cost of one turn: mostly there is one call, or none."""
        self.calls += now.calls - before.calls
        names = ("prompt", "cached", "written", "completion")
        usage = Usage(*(getattr(now, name) - getattr(before, name) for name in names))
        if usage.prompt:
            self.bill.add(usage)

    @property
    def rejected(self) -> int:
        return self.rejected_because.total()


@dataclass
class ModelCalls:
    """Calls of a model beyond the session's own requests, by what for, and their dollars: of a recall its input,
    because what the model answers in the end is answered once."""

    recall_rounds: int
    summaries: int
    digests: int
    dollars: float | None

    @property
    def total(self) -> int:
        return self.recall_rounds + self.summaries + self.digests
