"""Folds in the state of a plan: which stand, which blocks they replace, and their entries in the ledger.

Law: a block counts as folded exactly as long as a fold stands for it.
"""

from collections.abc import Iterable, Sequence

from policies.context import Context, TokenCounter
from policies.laws import may_fold, protected_users
from policies.model.conversation import Conversation
from policies.model.edits import Fold
from policies.model.summary_record import SummaryRecord
from policies.planning.state import PlanSettings, PlanState

LEAST = 15
"""Tokens that an offer must save."""


class Folding:
    """Adds folds to the state of one step, and removes them."""

    def __init__(self, conversation: Conversation, state: PlanState, count: TokenCounter) -> None:
        self._conversation = conversation
        self._state = state
        self._count = count

    def run(self, fold: Fold) -> range:
        """The blocks that a fold replaces."""
        return range(self._conversation.index[fold.first], self._conversation.index[fold.last] + 1)

    def runs(self) -> tuple[range, ...]:
        """The blocks of each fold that stands or is on offer, and is no summary."""
        folds = (*self._state.folds.values(), *self._state.offered_folds.values())
        return tuple(self.run(fold) for fold in folds if fold.origin is None)

    def size(self, at: int, text: str) -> int:
        """Tokens of a text in the place of a block."""
        return self._count(text) + self._conversation.blocks[at].frame

    def summarized(self) -> frozenset[int]:
        """The blocks that the standing summary replaces."""
        return frozenset(at for fold in self._state.folds.values() if fold.origin for at in self.run(fold))

    def offer(self, fold: Fold) -> None:
        """Take a fold as an offer: a text for a run of turns. It replaces the offers on blocks inside it, and has their
        rent. A block is in one such offer at most, and in none once it is folded."""
        state, run = self._state, self.run(fold)
        busy = state.folded.union(*map(self.run, state.offered_folds.values()))
        if busy.isdisjoint(run) and self._saving(fold) >= LEAST:
            for at in run:
                state.offers.pop(at, None)
            state.offered_folds[run.start] = fold
            state.ledger.merge(run, self._saving(fold))

    def offered(self, at: int) -> Fold | None:
        """The fold on offer that a block is in."""
        return next((fold for fold in self._state.offered_folds.values() if at in self.run(fold)), None)

    def weigh(self, at: int) -> None:
        """Enter the new saving of the fold on offer that a block is in: the block was changed."""
        if (fold := self.offered(at)) and at not in self._state.folded:
            self._state.ledger.saving[self.run(fold).start] = self._saving(fold)

    def fire(self, point: int, arrived: int) -> bool:
        """Add the folds on offer that begin at a block or behind it; whether there were any. Those wait that hold what
        the blocks from `arrived` on point to: the model has not seen these yet."""
        state = self._state
        named = {at for at, by in state.used_by.items() if by >= arrived}
        folds = [(at, fold) for at, fold in state.offered_folds.items() if at >= point and at not in state.folded]
        due = [at for at, fold in folds if named.isdisjoint(self.run(fold))]
        for at in due:
            self.fold(state.offered_folds.pop(at))
        return bool(due)

    def fold(self, fold: Fold) -> bool:
        """Add a fold, in the place of folds inside it; False where it is there already. Where it is a summary, those
        wait as offers for the time when it is removed."""
        state, run = self._state, self.run(fold)
        if state.folds.get(run.start) == fold:
            return False
        if fold.origin is None and not self.summarized().isdisjoint(run):
            self.drop()
        self._set_aside(fold)
        for at in run:
            state.ledger.change(at, 0)
            if fold.origin is None:  # it stays for good
                state.offers.pop(at, None)
        state.ledger.change(run.start, self.size(run.start, fold.text))
        state.folds = {at: old for at, old in state.folds.items() if at not in run} | {run.start: fold}
        state.folded.update(run)
        state.touch(run.start)
        return True

    def _set_aside(self, fold: Fold) -> None:
        """Withdraw the offers of folds that this one overlaps. Inside a summary they wait until it is removed, and so
        do folds that stand there."""
        state, run = self._state, self.run(fold)
        if fold.origin:
            state.offered_folds |= {at: old for at, old in state.folds.items() if at in run and not old.origin}
        for at, offered in list(state.offered_folds.items()):
            other = self.run(offered)
            inside = run.start <= other.start and other.stop <= run.stop
            if other.start < run.stop and run.start < other.stop and not (fold.origin and inside):
                del state.offered_folds[at]
                state.ledger.saving.pop(at, None)

    def drop(self) -> None:
        """Remove the summary from the request."""
        self._unfold()
        self._state.rent, self._state.saving, self._state.dropped = 0.0, 0, True

    def stand(self, folds: Sequence[Fold]) -> None:
        """Add the folds of a summary, in the place of an earlier summary."""
        self._unfold()
        for fold in folds:
            self.fold(fold)
        origin = folds[0].origin
        if origin is not None and origin.id not in self._state.booked:
            self._state.ledger.paid += origin.cost
            self._state.booked |= {origin.id}
        self._state.rent, self._state.saving = 0.0, 0

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
        new = sum(self.size(run.start, fold.text) for run, fold in zip(runs, folds, strict=True))
        return sum(sum(sent[run.start : run.stop]) for run in runs) - back - new

    def _unfold(self) -> None:
        """Bring back what the summary replaces, with the edits that were made on it before."""
        state = self._state
        for first, fold in [(at, fold) for at, fold in state.folds.items() if fold.origin]:
            del state.folds[first]
            for at in self.run(fold):
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
        return sum(self._state.ledger.sent[run.start : run.stop]) - self.size(run.start, fold.text)

    def _unfolded(self, at: int) -> int:
        """Tokens of a block outside of any fold."""
        edit, block = self._state.edits.get(at), self._conversation.blocks[at]
        return self.size(at, edit.text) if edit else block.tokens + block.frame
