"""Folds in the state of a plan: which stand, which blocks they replace, and their entries in the ledger.

Laws
  A block counts as folded exactly as long as a fold stands for it.
  What a step costs does not grow with the number of folds.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from operator import attrgetter

from policies.context import LEAST_SAVING, Context, TokenCounter
from policies.laws import may_fold, protected_users
from policies.model.conversation import Conversation
from policies.model.edits import Fold
from policies.model.summary_record import SummaryRecord
from policies.planning.state import PlanSettings, PlanState
from policies.text.layout import edited_tokens, fold_tokens

_start, _stop = attrgetter("start"), attrgetter("stop")


class Folding:
    """Adds folds to the state of a plan, and removes them."""

    def __init__(self, conversation: Conversation, state: PlanState, count: TokenCounter) -> None:
        self._conversation = conversation
        self._state = state
        self._count = count
        folds = (*state.folds.values(), *state.offered_folds.values())
        self._runs = sorted((self.run(fold) for fold in folds if fold.origin is None), key=_start)
        """The blocks of each fold that stands or is on offer, and is no summary; none overlap."""
        self._summary = [at for at, fold in state.folds.items() if fold.origin]
        """The first block of each fold of the standing summary."""
        self.was_folded: dict[int, bool] = {}
        """The blocks that this step folded or unfolded, with whether they were folded before it."""

    def run(self, fold: Fold) -> range:
        """The blocks that a fold replaces."""
        return range(self._conversation.index[fold.first], self._conversation.index[fold.last] + 1)

    def runs(self) -> tuple[range, ...]:
        """The blocks of each fold that stands or is on offer, and is no summary, in order."""
        return tuple(self._runs)

    def _overlapping(self, run: range) -> Sequence[range]:
        """Those of these that a run overlaps."""
        first = bisect_right(self._runs, run.start, key=_stop)
        return self._runs[first : bisect_left(self._runs, run.stop, first, key=_start)]

    def _withdraw(self, run: range) -> Fold:
        """Remove a fold on offer."""
        del self._runs[bisect_left(self._runs, run.start, key=_start)]
        return self._state.offered_folds.pop(run.start)

    def folded_before(self) -> set[int]:
        """The blocks that folds replaced when this step began."""
        folded, was = self._state.folded, self.was_folded
        return {at for at in folded if was.get(at, True)} | {at for at, before in was.items() if before}

    def summary(self) -> Fold | None:
        """The standing summary: the first of its folds, which has its text."""
        return self._state.folds[min(self._summary)] if self._summary else None

    def size(self, at: int, text: str) -> int:
        """Tokens of a text in the place of a block."""
        return edited_tokens(self._conversation.blocks[at], text, self._count)

    def summarized(self) -> frozenset[int]:
        """The blocks that the standing summary replaces."""
        return frozenset(at for first in self._summary for at in self.run(self._state.folds[first]))

    def cuts(self, fold: Fold) -> bool:
        """Whether a fold holds a part of one that stands, but not all of it: the rest would come back."""
        run, folds = self.run(fold), self._state.folds
        around = [other for other in self._overlapping(run) if other.start in folds]
        return any(other.start < run.start or run.stop < other.stop for other in around)

    def offer(self, fold: Fold) -> None:
        """Take a fold as an offer: a text for a run of turns. It replaces the offers on blocks inside it, and has their
        rent. A block is in one such offer at most, and in none once it is folded."""
        state, run = self._state, self.run(fold)
        free = state.folded.isdisjoint(run) and not self._overlapping(run)
        if free and self._saving(fold) >= LEAST_SAVING:
            for at in run:
                state.offers.pop(at, None)
            state.offered_folds[run.start] = fold
            insort(self._runs, run, key=_start)
            state.ledger.merge(run, self._saving(fold))

    def offered(self, at: int) -> Fold | None:
        """The fold on offer that a block is in."""
        around = self._overlapping(range(at, at + 1)) if self._state.offered_folds else ()
        return self._state.offered_folds.get(around[0].start) if around else None

    def weigh(self, at: int) -> None:
        """Enter the new saving of the fold on offer that a block is in: the block was changed."""
        if (fold := self.offered(at)) and at not in self._state.folded:
            self._state.ledger.saving[self.run(fold).start] = self._saving(fold)

    def waiting(self, arrived: int) -> frozenset[int]:
        """The first blocks of the folds on offer that wait: they hold what the blocks from `arrived` on point to, and
        the model has not seen these yet."""
        new = range(arrived, len(self._state.ledger.sent)) if self._state.offered_folds else ()
        around = (self.offered(used) for at in new for used in self._state.uses.get(at, ()))
        return frozenset(self.run(fold).start for fold in around if fold)

    def fire(self, point: int, arrived: int) -> bool:
        """Add the folds on offer that begin at a block or behind it and do not wait; whether there were any."""
        state, waiting = self._state, self.waiting(arrived)
        behind = self._runs[bisect_left(self._runs, point, key=_start) :] if state.offered_folds else ()
        offered = (run for run in behind if run.start in state.offered_folds and run.start not in state.folded)
        due = [run for run in offered if run.start not in waiting]
        for run in due:
            self.fold(self._withdraw(run))
        return bool(due)

    def fold(self, fold: Fold) -> bool:
        """Add a fold, in the place of folds inside it; False where it is there already. Where it is a summary, those
        wait as offers for the time when it is removed."""
        state, run = self._state, self.run(fold)
        if state.folds.get(run.start) == fold:
            return False
        if fold.origin is None and self._summary and not self.summarized().isdisjoint(run):
            self.drop()
        self._set_aside(fold)
        for at in run:
            state.ledger.change(at, 0)
            state.folds.pop(at, None)
            self.was_folded.setdefault(at, at in state.folded)
            if fold.origin is None:  # it stays for good
                state.offers.pop(at, None)
        state.ledger.change(run.start, fold_tokens(self._conversation, fold, self._count))
        state.folds[run.start] = fold
        if fold.origin:
            self._summary.append(run.start)
        else:
            first = bisect_left(self._runs, run.start, key=_start)
            self._runs[first : bisect_left(self._runs, run.stop, first, key=_start)] = [run]
        state.folded.update(run)
        state.touch(run.start)
        return True

    def _set_aside(self, fold: Fold) -> None:
        """Withdraw the offers of folds that this one overlaps. Inside a summary they wait until it is removed, and so
        do folds that stand there."""
        state, run = self._state, self.run(fold)
        if fold.origin:
            state.offered_folds |= {at: old for at, old in state.folds.items() if at in run and not old.origin}
        for other in self._overlapping(run):
            inside = run.start <= other.start and other.stop <= run.stop
            if other.start in state.offered_folds and not (fold.origin and inside):
                self._withdraw(other)
                state.ledger.saving.pop(other.start, None)

    def drop(self) -> None:
        """Remove the summary from the request."""
        self._unfold()
        self._state.rent, self._state.saving, self._state.left, self._state.dropped = 0.0, 0, 0, True

    def stand(self, folds: Sequence[Fold]) -> None:
        """Add the folds of a summary, in the place of an earlier summary."""
        self._unfold()
        for fold in folds:
            self.fold(fold)
        origin = folds[0].origin
        if origin is not None and origin.id not in self._state.booked:
            self._state.ledger.paid += origin.cost
            self._state.booked |= {origin.id}
        self._state.rent, self._state.saving, self._state.left = 0.0, 0, self._state.ledger.total

    def lost(self, records: Iterable[SummaryRecord], settings: PlanSettings) -> float:
        """What those of these summaries cost that have not stood in the request so far, in input tokens."""
        if settings.summarizing is None:
            return 0.0
        unused = (record for record in records if record.id not in self._state.booked)
        return sum(settings.summarizing.cost(record, settings.prices) for record in unused)

    def may_stand(self, folds: Sequence[Fold], context: Context) -> bool:
        """Whether the laws allow these folds, and no other fold overlaps them in part."""
        runs = [self.run(fold) for fold in folds]
        covered = frozenset(at for run in runs for at in run)
        for fold in self._state.folds.values():
            run = self.run(fold)
            inside = any(each.start <= run.start and run.stop <= each.stop for each in runs)
            if fold.origin is None and not inside and not covered.isdisjoint(run):
                return False
        protected = protected_users(self._conversation, context.step)
        return all(may_fold(self._conversation, fold, context, protected) for fold in folds)

    def saving(self, folds: Sequence[Fold]) -> int:
        """Tokens that these folds remove; what an earlier summary replaces, and they do not, comes back."""
        if not folds:
            return 0
        sent, runs = self._state.ledger.sent, [self.run(fold) for fold in folds]
        covered = frozenset(at for run in runs for at in run)
        span = range(runs[0].start, runs[-1].stop)
        back = sum(self._unfolded(at) - sent[at] for at in self.summarized() if at in span and at not in covered)
        new = sum(fold_tokens(self._conversation, fold, self._count) for fold in folds)
        return sum(sum(sent[run.start : run.stop]) for run in runs) - back - new

    def _unfold(self) -> None:
        """Bring back what the summary replaces, with the edits that were made on it before."""
        state, summary = self._state, self._summary
        self._summary = []
        for first in summary:
            for at in self.run(state.folds.pop(first)):
                self.was_folded.setdefault(at, at in state.folded)
                state.folded.discard(at)
                state.ledger.change(at, self._unfolded(at))
                if at in state.offers:
                    state.ledger.saving[at] = state.ledger.sent[at] - self.size(at, state.offers[at].text)
            state.touch(first)
        for at, fold in state.offered_folds.items():
            if at not in state.folded:
                state.ledger.saving[at] = self._saving(fold)

    def _saving(self, fold: Fold) -> int:
        """Tokens that a fold removes from what is sent now."""
        run = self.run(fold)
        return sum(self._state.ledger.sent[run.start : run.stop]) - fold_tokens(self._conversation, fold, self._count)

    def _unfolded(self, at: int) -> int:
        """Tokens of a block outside of any fold."""
        edit, block = self._state.edits.get(at), self._conversation.blocks[at]
        return self.size(at, edit.text) if edit else block.tokens + block.frame
