"""The data of the planner: what decisions follow from, how far a history has been replayed, which edits speak of which
blocks, and the resulting plan.
"""

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import Struct

from policies.context import Conditions, DigestWant, Policy, Want
from policies.keep import Patterns
from policies.model.conversation import Conversation
from policies.model.edits import Edit, Fold, Replace
from policies.model.memory import FRESH, CacheLife
from policies.model.summary_record import NO_USE, SummaryUse
from policies.money.caches import PREFIX as ANY_PREFIX
from policies.money.caches import CacheRule, MarkStyle
from policies.money.ledger import Ledger
from policies.money.lifetimes import Lifetimes
from policies.money.prices import Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings(Conditions):
    policies: tuple[Policy, ...]
    marks: MarkStyle = ""
    """The kind of cache marks that may be added; "" for none."""
    cache: CacheRule = ANY_PREFIX
    slots: int = 2
    """How many marks the request has room for."""
    marks_end: bool = True
    """True where the end of each request is a boundary without a mark of ours: the client's mark, or the provider's."""
    factor: float = 1.0
    """The provider's tokens per exact token; it only moves the hard marks."""
    idle: float = 0.0
    """Seconds since the client's last request of this conversation; 0 where nobody knows."""
    life: CacheLife = FRESH
    """As the step before left the cache, and whether it has expired since."""
    lifetimes: Lifetimes | None = None
    """None where marks keep the lifetime that they have."""
    learned: Budget | None = None
    """That of the request being served, where its upstream has said what it takes; earlier steps do without."""
    only_to_fit: bool = False
    """True where nothing is changed as long as the request fits: hidden text could not be recalled."""
    keep: Patterns = ()
    sight: float = 0.0
    """The share of actions that may need something out of sight; 0 where windows do not follow from the history."""


@dataclass
class PlanState:
    """How far a history was replayed, with all that the next step needs. Blocks are named by their index."""

    ledger: Ledger
    step: int = 0
    edits: dict[int, Replace] = field(default_factory=dict)
    pointers: set[int] = field(default_factory=set)
    """The blocks whose edit speaks of another block."""
    offers: dict[int, Replace] = field(default_factory=dict)
    """Edits that policies proposed and that are not carried out yet."""
    offered_folds: dict[int, Fold] = field(default_factory=dict)
    uses: dict[int, Sequence[int]] = field(default_factory=dict)
    """The blocks that an edit points to, by the block edited; these entries stay when the edit changes."""
    used_by: dict[int, int] = field(default_factory=dict)
    """The newest block that points to each of these."""
    rereads: dict[int, int] = field(default_factory=dict)
    """The results that answers point at which say that a file is unchanged, by these answers, in order."""
    text_in: dict[int, int] = field(default_factory=dict)
    """The newest answer that got the text of each of these results."""
    folds: dict[int, Fold] = field(default_factory=dict)
    folded: set[int] = field(default_factory=set)
    rent: float = 0.0
    """The price so far of sending again the tokens that a summary could replace."""
    saving: int = 0
    """Tokens of it that a summary would have removed."""
    tokens_after_summary: int = 0
    """Tokens of the history as the standing summary left it; 0 where none stands."""
    cramped: int = 0
    """Tokens left the last time that not enough room could be made."""
    peak: int = 0
    """The most tokens that the history had when a request came in."""
    booked: frozenset[str] = frozenset()
    """The summaries whose cost is in the ledger: those that stood in the request once."""
    digest_cost: float = 0.0
    """The cost of the digests that were asked for since the history began, in input tokens."""
    marks: tuple[int, ...] = ()

    # of the newest step alone
    reason: str = ""
    changed: int | None = None
    """The first block that this step changed."""
    use: SummaryUse = NO_USE
    """Its use of summaries; of earlier steps nothing is said."""
    life: CacheLife = FRESH
    dropped: bool = False
    """True where an adopted summary was taken back."""
    has_model_text: bool = False
    """True where a summary, or a digest by a model, could be used from this step on."""
    wants: list[Want] = field(default_factory=list)
    digests: list[DigestWant] = field(default_factory=list)

    def copy(self) -> "PlanState":
        """The same state, to be continued independently; what concerned the newest step alone is cleared."""
        grown: dict[str, Any] = {
            name: value.copy() for name, value in vars(self).items() if isinstance(value, dict | set | Ledger)
        }
        twin = replace(self, **grown)
        twin.begin(self.step - 1)
        return twin

    def begin(self, step: int) -> None:
        self.step = step + 1
        self.reason, self.changed, self.use, self.dropped, self.has_model_text = "", None, NO_USE, False, False
        self.wants, self.digests, self.life = [], [], FRESH

    def refer(self, at: int, blocks: Sequence[int]) -> None:
        """Enter what the edit of a block points to: that is as new as the block from now on, so that offers on it are
        withdrawn. A policy offers it again once the block is old."""
        if blocks:
            self.uses[at] = blocks
        for each in blocks:
            self.used_by[each] = max(at, self.used_by.get(each, 0))
            if self.offers.pop(each, None):
                self.ledger.withdraw(each)

    def end_offers(self) -> None:
        """From now on nothing is offered, and nothing waits."""
        for at in [*self.offers, *self.offered_folds]:
            self.ledger.withdraw(at)
        self.offers, self.offered_folds = {}, {}

    def drop_references(self, offered: Iterable[int]) -> None:
        """Drop the lossless offers of this step: later they would rewrite what was sent, and the lines above may go."""
        for at in offered:
            if (offer := self.offers.get(at)) and offer.lossless:
                del self.offers[at]
                self.ledger.withdraw(at)

    def touch(self, at: int) -> None:
        self.changed = at if self.changed is None else min(self.changed, at)

    @property
    def summary(self) -> Fold | None:
        first = min((at for at, fold in self.folds.items() if fold.origin), default=None)
        return None if first is None else self.folds[first]


class Plan(Struct, frozen=True):
    """The changes to a request, and their reason. `before` and `after` are tokens of the history without its head."""

    edits: tuple[Edit, ...]
    new: tuple[Edit, ...]
    wants: tuple[Want, ...]
    reason: str
    marks: tuple[int, ...]
    """The messages that get a cache mark of ours."""
    before: int
    after: int
    state: PlanState
    digests: tuple[DigestWant, ...] = ()
    shed: int = 0
    """For so many steps, the newest last, nothing new was decided: no state is left to plan a later request from."""
    reached: PlanState | None = None
    """The state behind the last step that was planned before; None where planning began with it."""

    @property
    def summary(self) -> Fold | None:
        """The summary that stands in the request: the first of its folds."""
        return self.state.summary

    @property
    def adopted(self) -> bool:
        return self.summary is not None and self.summary in self.new


# --- edits that speak of another block ---
# Law: what a step costs here grows with what it changes, and not with how many such edits there are


class Pointers:
    """The edits whose text says that another block stands elsewhere in the request."""

    def __init__(self, conversation: Conversation, state: PlanState) -> None:
        self._index = conversation.index
        self._state = state
        self._speaking: dict[int, list[int]] = {}
        for at in state.pointers:
            self._enter(at, state.edits[at])

    def change(self, at: int, edit: Replace) -> None:
        if edit.needs:
            self._state.pointers.add(at)
            self._enter(at, edit)
        else:
            self._state.pointers.discard(at)

    def _enter(self, at: int, edit: Replace) -> None:
        if (needed := self._index.get(edit.needs)) is not None:
            self._speaking.setdefault(needed, []).append(at)

    def concerned(self, changed: Iterable[int]) -> Set[int]:
        """Those among the changed blocks, and those that lead to one of them."""
        pending, reached = [*changed], set[int]()
        while pending:
            at = pending.pop()
            if at not in reached:
                reached.add(at)
                pending += self._speaking.get(at, ())
        return reached & self._state.pointers

    def shows(self, at: int) -> bool:
        """True where all of a block's text can be read in the request: there, or where its lines point to."""
        pending, reached = [at], set[int]()
        while pending:
            block = pending.pop()
            if block in self._state.folded:
                return False
            edit = self._state.edits.get(block)
            if edit and not edit.lossless:
                return False
            if edit and block not in reached:
                reached.add(block)
                pending += (self._index[anchor] for anchor in edit.uses if anchor in self._index)
        return True

    def stands(self, anchor: str) -> bool:
        """True where a block's text can still be read in the request: there, or where a pointer in its place leads."""
        while anchor:
            at = self._index.get(anchor)
            if at is None or at in self._state.folded:
                return False
            edit = self._state.edits.get(at)
            if edit is None or (edit.lossless and not edit.needs):
                return True
            anchor = edit.needs  # always further up, so this ends
        return False
