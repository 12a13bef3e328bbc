"""What decisions follow from, where the replay of a history stands, and what comes of it: as data."""

from dataclasses import dataclass, field, replace

from policies.context import NO_EXCEPTIONS, NO_TOOLS, DigestWant, Exceptions, Policy, Summarizing, TokenCounter, Want
from policies.finished import Topic
from policies.model.edits import Edit, Fold, Replace
from policies.money.budget import Budget
from policies.money.ledger import Ledger
from policies.money.marks import MarkStyle
from policies.money.prices import Prices
from policies.tools import Toolbox


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """What decisions follow from besides the history. `head` is what stands before it, in tokens; `factor` turns exact
    counts into the provider's, and moves the hard marks only."""

    policies: tuple[Policy, ...]
    prices: Prices
    budget: Budget
    count: TokenCounter
    text_protocol: bool = False
    marks: MarkStyle = ""
    slots: int = 2
    head: int = 0
    factor: float = 1.0
    cold: bool = False
    recall: bool = False
    """Whether the request carries the recall tool."""
    only_to_fit: bool = False
    """Whether nothing is changed as long as the request fits: nobody could get back what is hidden."""
    summarizing: Summarizing | None = None
    """Set where summaries are wanted."""
    exceptions: Exceptions = NO_EXCEPTIONS
    """What the preset may do that others may not."""
    digesting: Prices | None = None
    """What a model costs that can be asked for digests; None where none can."""
    toolbox: Toolbox = NO_TOOLS
    """What is known of the tools before they are called."""


@dataclass
class PlanState:
    """Where the replay of a history stands: everything the next step needs. Copied before it is continued."""

    ledger: Ledger
    step: int = 0
    edits: dict[int, Replace] = field(default_factory=dict)
    offers: dict[int, Replace] = field(default_factory=dict)
    folds: dict[int, Fold] = field(default_factory=dict)
    folded: set[int] = field(default_factory=set)
    rent: float = 0.0
    """What was paid so far to send again what a summary could stand for."""
    saving: int = 0
    """Tokens of it that a summary would have taken away."""
    stale: str = ""
    """Why the summary that stood until now, or might have, does not count."""
    cramped: int = 0
    """What was left the last time when room was wanted and not enough could be made."""
    peak: int = 0
    """The most tokens that the history had when a request came in."""
    topic: Topic = field(default_factory=Topic)
    """Where the work at hand begins."""
    wants: list[Want] = field(default_factory=list)
    digests: list[DigestWant] = field(default_factory=list)
    asked: float = 0.0
    """What the digests cost that were wanted so far by who has these books, in input tokens: a bound on its asking."""
    dropped: bool = False
    """Whether this step took a summary back."""
    offered: bool = False
    """Whether one could have stood from this step on."""
    reason: str = ""
    changed: int | None = None
    """The first block that this step changed."""
    marks: tuple[int, ...] = ()
    """The messages that are to carry a cache mark of ours."""

    def copy(self) -> "PlanState":
        """The same books, to be continued apart."""
        return replace(
            self,
            ledger=self.ledger.copy(),
            edits=dict(self.edits),
            offers=dict(self.offers),
            folds=dict(self.folds),
            folded=set(self.folded),
            wants=[],
            digests=[],
            stale="",
            dropped=False,
            offered=False,
            reason="",
            changed=None,
        )

    def touch(self, at: int) -> None:
        """This step changes a block."""
        self.changed = at if self.changed is None else min(self.changed, at)

    @property
    def summary(self) -> Fold | None:
        """The summary that stands: the first of its folds, which has its text."""
        return next((fold for _, fold in sorted(self.folds.items()) if fold.origin), None)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to change in a request, and why. `before` and `after` are tokens of the history without its head."""

    edits: tuple[Edit, ...]
    new: tuple[Edit, ...]
    wants: tuple[Want, ...]
    reason: str
    marks: tuple[int, ...]
    before: int
    after: int
    state: PlanState
    digests: tuple[DigestWant, ...] = ()
    """Digests of single outputs that would help."""

    @property
    def summary(self) -> Fold | None:
        """The summary that stands in the request: the first of its folds."""
        return self.state.summary

    @property
    def adopted(self) -> bool:
        """Whether it stands there for the first time."""
        return self.summary is not None and self.summary in self.new
