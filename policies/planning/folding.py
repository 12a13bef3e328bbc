"""Folds in the books: which stand, what they stand for, and what the ledger has of them.

Law: a block counts as folded exactly as long as a fold stands for it.
"""

from collections.abc import Sequence

from policies.context import Context, TokenCounter
from policies.laws import may_fold, protected_users
from policies.model.conversation import Conversation
from policies.model.edits import Fold
from policies.planning.state import PlanState


class Folding:
    """Puts folds into the books of one step, and takes them out."""

    def __init__(self, conversation: Conversation, plan_state: PlanState, count: TokenCounter) -> None:
        self._conversation = conversation
        self._plan_state = plan_state
        self._count = count

    def run(self, fold: Fold) -> range:
        """The blocks that a fold stands for."""
        return range(self._conversation.index[fold.first], self._conversation.index[fold.last] + 1)

    def size(self, at: int, text: str) -> int:
        """Tokens of a text in the place of a block."""
        return self._count(text) + self._conversation.blocks[at].frame

    def summarized(self) -> frozenset[int]:
        """The blocks that the summary stands for."""
        return frozenset(at for fold in self._plan_state.folds.values() if fold.origin for at in self.run(fold))

    def fold(self, fold: Fold) -> bool:
        """From now on it stands; folds inside it no longer do. Whether that is new."""
        run, ledger = self.run(fold), self._plan_state.ledger
        if self._plan_state.folds.get(run.start) == fold:
            return False
        if fold.origin is None and not self.summarized().isdisjoint(run):
            self.drop()
        for at in run:
            ledger.change(at, 0)
        ledger.change(run.start, self.size(run.start, fold.text))
        self._plan_state.folds = {at: old for at, old in self._plan_state.folds.items() if at not in run}
        self._plan_state.folds[run.start] = fold
        self._plan_state.folded.update(run)
        self._plan_state.touch(run.start)
        return True

    def drop(self) -> None:
        """Take back the summary that stands."""
        self._unfold()
        self._plan_state.rent, self._plan_state.saving, self._plan_state.dropped = 0.0, 0, True

    def stand(self, folds: Sequence[Fold]) -> None:
        """Have the folds of a summary stand, in the place of one before."""
        self._unfold()
        for fold in folds:
            self.fold(fold)
        self._plan_state.ledger.paid += folds[0].origin.cost if folds[0].origin else 0.0
        self._plan_state.rent, self._plan_state.saving = 0.0, 0

    def may_stand(self, folds: Sequence[Fold], context: Context) -> bool:
        """Whether the laws allow it, and no other fold stands in part where these would."""
        runs = [self.run(fold) for fold in folds]
        there = frozenset(at for run in runs for at in run)
        for fold in self._plan_state.folds.values():
            run = self.run(fold)
            inside = any(each.start <= run.start and run.stop <= each.stop for each in runs)
            if fold.origin is None and not inside and not there.isdisjoint(run):
                return False
        protected = protected_users(self._conversation, context.step)
        return all(may_fold(self._conversation, fold, context, protected) for fold in folds)

    def saving(self, folds: Sequence[Fold]) -> int:
        """Tokens that go where these stand; what a summary before them stands for comes back."""
        if not folds:
            return 0
        sent, runs = self._plan_state.ledger.sent, [self.run(fold) for fold in folds]
        there = frozenset(at for run in runs for at in run)
        span = range(runs[0].start, runs[-1].stop)
        back = sum(self._whole(at) - sent[at] for at in self.summarized() if at in span and at not in there)
        new = sum(self.size(run.start, fold.text) for run, fold in zip(runs, folds, strict=True))
        return sum(sum(sent[run.start : run.stop]) for run in runs) - back - new

    def _unfold(self) -> None:
        """What the summary stood for is there again, as it was cut before."""
        plan_state = self._plan_state
        for first, fold in [(at, fold) for at, fold in plan_state.folds.items() if fold.origin]:
            del plan_state.folds[first]
            for at in self.run(fold):
                plan_state.folded.discard(at)
                plan_state.ledger.change(at, self._whole(at))
                if at in plan_state.offers:
                    plan_state.ledger.offer(at, plan_state.ledger.sent[at] - self.size(at, plan_state.offers[at].text))
            plan_state.touch(first)

    def _whole(self, at: int) -> int:
        """Tokens of a block that no fold hides."""
        edit, block = self._plan_state.edits.get(at), self._conversation.blocks[at]
        return self.size(at, edit.text) if edit else block.tokens + block.frame
