"""Folds in the state of a plan: which stand, which blocks they replace, and their entries in the ledger; and the
summaries and digests that a model writes: which may stand, if they pay, and when others are asked for.

Laws
  A block counts as folded exactly as long as a fold stands for it.
  What a step costs does not grow with the number of folds.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter

from policies.context import LEAST_SAVING, Context, DigestWant, Policy, TokenCounter, Want
from policies.laws import may_fold, protected_users
from policies.model.conversation import Conversation
from policies.model.edits import Fold
from policies.model.summary_record import (
    NO_SUMMARIES,
    SummaryRecord,
    SummaryUse,
    UsableSummaries,
    stale,
    usable_summaries,
)
from policies.money.ledger import GUARD, SMALLEST, UNTRIED, affords, bears, digest_pays, limit_of_chats, pays
from policies.planning.state import PlanSettings, PlanState
from policies.text.layout import edited_tokens, fold_tokens

_start, _stop = attrgetter("start"), attrgetter("stop")


class Runs(list[range]):
    """Runs of blocks, in order; none overlap."""

    def overlapping(self, run: range) -> Sequence[range]:
        first = bisect_right(self, run.start, key=_stop)
        return self[first : bisect_left(self, run.stop, first, key=_start)]

    def since(self, point: int) -> Sequence[range]:
        return self[bisect_left(self, point, key=_start) :]

    def put(self, run: range) -> None:
        first = bisect_left(self, run.start, key=_start)
        self[first : bisect_left(self, run.stop, first, key=_start)] = [run]

    def drop(self, start: int) -> None:
        del self[bisect_left(self, start, key=_start)]


class Folding:
    def __init__(self, conversation: Conversation, state: PlanState, count: TokenCounter) -> None:
        self.conversation = conversation
        self.state = state
        self.count = count
        folds = (*state.folds.values(), *state.offered_folds.values())
        self.runs = Runs(sorted((self.run(fold) for fold in folds if fold.origin is None), key=_start))
        """The blocks of each fold that stands or is on offer, and is no summary."""
        self.summary_starts = [at for at, fold in state.folds.items() if fold.origin]
        """The first block of each fold of the adopted summary."""
        self.was_folded: dict[int, bool] = {}
        """The blocks that this step folded or unfolded, with whether they were folded before it."""

    def run(self, fold: Fold) -> range:
        return range(self.conversation.index[fold.first], self.conversation.index[fold.last] + 1)

    def saving(self, fold: Fold) -> int:
        run = self.run(fold)
        return sum(self.state.ledger.sent[run.start : run.stop]) - fold_tokens(self.conversation, fold, self.count)

    def folded_before(self) -> set[int]:
        """The blocks that folds replaced when this step began."""
        folded, was = self.state.folded, self.was_folded
        return {at for at in folded if was.get(at, True)} | {at for at, before in was.items() if before}

    def cuts(self, fold: Fold) -> bool:
        """True where a fold holds a part of one that stands, but not all of it: the rest would come back."""
        run, folds = self.run(fold), self.state.folds
        around = [other for other in self.runs.overlapping(run) if other.start in folds]
        return any(other.start < run.start or run.stop < other.stop for other in around)

    def offer(self, fold: Fold) -> None:
        """Take a fold as an offer: a text for a run of turns. It replaces the offers on blocks inside it, and has their
        rent. A block is in one such offer at most, and in none once it is folded."""
        state, run = self.state, self.run(fold)
        free = state.folded.isdisjoint(run) and not self.runs.overlapping(run)
        if free and self.saving(fold) >= LEAST_SAVING:
            for at in run:
                state.offers.pop(at, None)
            state.offered_folds[run.start] = fold
            self.runs.put(run)
            state.ledger.merge(run, self.saving(fold))

    def offered(self, at: int) -> Fold | None:
        around = self.runs.overlapping(range(at, at + 1)) if self.state.offered_folds else ()
        return self.state.offered_folds.get(around[0].start) if around else None

    def weigh(self, at: int) -> None:
        """Enter the new saving of the fold on offer that a block is in: the block was changed."""
        if (fold := self.offered(at)) and at not in self.state.folded:
            self.state.ledger.saving[self.run(fold).start] = self.saving(fold)

    def waiting(self, arrived: int) -> frozenset[int]:
        """The first blocks of the folds on offer that wait: new blocks, not seen by the model yet, point into them."""
        new = range(arrived, len(self.state.ledger.sent)) if self.state.offered_folds else ()
        around = (self.offered(used) for at in new for used in self.state.uses.get(at, ()))
        return frozenset(self.run(fold).start for fold in around if fold)

    def fire(self, point: int, arrived: int) -> bool:
        """Add the folds on offer that begin at a block or behind it and do not wait; whether there were any."""
        state, waiting = self.state, self.waiting(arrived)
        behind = self.runs.since(point) if state.offered_folds else ()
        offered = (run for run in behind if run.start in state.offered_folds and run.start not in state.folded)
        due = [run for run in offered if run.start not in waiting]
        for run in due:
            self.runs.drop(run.start)
            self.fold(state.offered_folds.pop(run.start))
        return bool(due)

    def fold(self, fold: Fold) -> bool:
        """Add a fold; False where it is there. Folds inside it go, and inside a summary wait until it is removed."""
        state, run = self.state, self.run(fold)
        if state.folds.get(run.start) == fold:
            return False
        if fold.origin is None and not summarized(self).isdisjoint(run):
            drop_summary(self)
        self._set_aside(fold)
        for at in run:
            state.ledger.change(at, 0)
            state.folds.pop(at, None)
            self.was_folded.setdefault(at, at in state.folded)
            if fold.origin is None:  # it stays for good
                state.offers.pop(at, None)
        state.ledger.change(run.start, fold_tokens(self.conversation, fold, self.count))
        state.folds[run.start] = fold
        if fold.origin:
            self.summary_starts.append(run.start)
        else:
            self.runs.put(run)
        state.folded.update(run)
        state.touch(run.start)
        return True

    def _set_aside(self, fold: Fold) -> None:
        """Withdraw the offers of folds that this one overlaps; inside a summary all wait until it is removed."""
        state, run = self.state, self.run(fold)
        if fold.origin:
            state.offered_folds |= {at: old for at, old in state.folds.items() if at in run and not old.origin}
        for other in self.runs.overlapping(run):
            inside = run.start <= other.start and other.stop <= run.stop
            if other.start in state.offered_folds and not (fold.origin and inside):
                self.runs.drop(other.start)
                del state.offered_folds[other.start]
                state.ledger.saving.pop(other.start, None)


# --- the summary that is adopted: its folds stand in the request together ---


def adopted_fold(folding: Folding) -> Fold | None:
    """The first fold of the summary, which has the text; None where none stands."""
    return folding.state.folds[min(folding.summary_starts)] if folding.summary_starts else None


def summarized(folding: Folding) -> frozenset[int]:
    return frozenset(at for first in folding.summary_starts for at in folding.run(folding.state.folds[first]))


def drop_summary(folding: Folding) -> None:
    state = folding.state
    _unfold_summary(folding)
    state.rent, state.saving, state.tokens_after_summary, state.dropped = 0.0, 0, 0, True


def put_summary(folding: Folding, folds: Sequence[Fold]) -> None:
    state, origin = folding.state, folds[0].origin
    _unfold_summary(folding)
    for fold in folds:
        folding.fold(fold)
    if origin is not None and origin.id not in state.booked:
        state.ledger.paid += origin.cost
        state.booked |= {origin.id}
    state.rent, state.saving, state.tokens_after_summary = 0.0, 0, state.ledger.total


def may_put_summary(folding: Folding, folds: Sequence[Fold], context: Context) -> bool:
    """True where the laws allow these folds, and no other fold overlaps them in part."""
    conversation, runs = folding.conversation, [folding.run(fold) for fold in folds]
    for fold in folding.state.folds.values():
        run = folding.run(fold)
        overlapping = [each for each in runs if each.start < run.stop and run.start < each.stop]
        if fold.origin is None and any(run.start < each.start or each.stop < run.stop for each in overlapping):
            return False
    protected = protected_users(conversation, context.step)
    return all(may_fold(conversation, fold, context, protected) for fold in folds)


def summary_saving(folding: Folding, folds: Sequence[Fold]) -> int:
    if not folds:
        return 0
    sent, runs = folding.state.ledger.sent, [folding.run(fold) for fold in folds]
    covered = frozenset(at for run in runs for at in run)
    span = range(runs[0].start, runs[-1].stop)
    back = sum(_unfolded(folding, at) - sent[at] for at in summarized(folding) if at in span and at not in covered)
    new = sum(fold_tokens(folding.conversation, fold, folding.count) for fold in folds)
    return sum(sum(sent[run.start : run.stop]) for run in runs) - back - new


def _unfold_summary(folding: Folding) -> None:
    """Bring back what the summary replaces, with the edits that were made on it before."""
    state, starts = folding.state, folding.summary_starts
    folding.summary_starts = []
    for first in starts:
        for at in folding.run(state.folds.pop(first)):
            folding.was_folded.setdefault(at, at in state.folded)
            state.folded.discard(at)
            state.ledger.change(at, _unfolded(folding, at))
            if at in state.offers:
                size = edited_tokens(folding.conversation.blocks[at], state.offers[at].text, folding.count)
                state.ledger.saving[at] = state.ledger.sent[at] - size
        state.touch(first)
    for at, fold in state.offered_folds.items():
        if at not in state.folded:
            state.ledger.saving[at] = folding.saving(fold)


def _unfolded(folding: Folding, at: int) -> int:
    """Tokens of a block outside of any fold."""
    edit, block = folding.state.edits.get(at), folding.conversation.blocks[at]
    return edited_tokens(block, edit.text, folding.count) if edit else block.tokens + block.frame


# --- what a model writes, in the planning of one step ---

_GROWTH = 1.5
"""In a chat, a summary rewrites all that people wrote: the next one is due when the prompt has grown by half."""


class StepSummaries:
    def __init__(self, settings: PlanSettings, folding: Folding) -> None:
        self._conversation, self._state = folding.conversation, folding.state
        self._settings = settings
        self._folding = folding
        self.ready: list[Fold] = []
        """The folds of a summary that could be adopted from now on: an offer of its own."""
        self.wanting: Policy | None = None  # a summary at this step
        self._stale: tuple[str, str] = "", ""
        """The id of the summary that does not count, and why."""
        self.records: tuple[SummaryRecord, ...] = ()
        """All summaries that were made of this history, rejected ones too."""

    def review(self, summaries: Sequence[SummaryRecord]) -> UsableSummaries:
        """The stored summaries that may be used now. Drops the adopted one where it is stale."""
        summarizing, fold, usable = self._settings.summarizing, adopted_fold(self._folding), NO_SUMMARIES
        if summarizing:
            usable = usable_summaries(self._conversation, summaries, summarizing.criteria, summarizing.now)
        self.records, self._stale = usable.records, (usable.stale_id, usable.stale)
        if fold is not None:
            self._stale = _id(fold), self.reason_stale(fold)
            if self._stale[1]:
                drop_summary(self._folding)
        return usable

    def use(self) -> SummaryUse:
        """The use of summaries by the request as it is sent."""
        summarizing, fold = self._settings.summarizing, adopted_fold(self._folding)
        adopted = _id(fold) if fold else ""
        ready = next((id for id in map(_id, self.ready) if id != adopted), "")
        return SummaryUse(adopted, ready, *self._stale, summarizing.criteria if summarizing else None)

    def reason_stale(self, fold: Fold) -> str:
        """Why the summary of this fold no longer counts; "policy" where the preset no longer wants summaries."""
        summarizing = self._settings.summarizing
        if summarizing is None or fold.origin is None:
            return "policy"
        return stale(fold.origin, summarizing.criteria, summarizing.now)

    def pay(self) -> bool:
        """True where the summary that is ready has earned its rewrite, or all behind it changes anyway."""
        state, saving = self._state, summary_saving(self._folding, self.ready)
        if saving <= 0:
            return False
        first, stop = self._folding.run(self.ready[0]).start, self._folding.run(self.ready[-1]).stop
        if state.changed is not None and state.changed <= first:
            return True
        origin = self.ready[0].origin
        later, rent = state.ledger.pending(stop)
        cost = origin.cost if origin else 0.0
        return pays(state.ledger, first, saving + later, state.rent + rent, cost, ahead=False, chats=self._limit())

    def ask(self, context: Context) -> None:
        """Ask for a summary: with the aim of the context when the policy wants it, else where it will have paid for
        itself, and before the hard mark is reached. It stands with the next request at the earliest, so what counts is
        the cache as this request leaves it, with new outputs as short as they are sent."""
        items = self.wanting(self._conversation, context) if self.wanting else ()
        want, state = next((each for each in items if isinstance(each, Want)), None), self._state
        ledger = state.ledger
        if want:
            first, last = (self._conversation.index[at] for at in (want.first, want.last))
            saving = max(0, ledger.sums[last + 1] - ledger.sums[first] - want.tokens)
        else:
            saving = max(0, summary_saving(self._folding, self.ready))
        if saving < state.saving:  # other edits have removed a part meanwhile: no summary could have saved its rent
            state.rent *= saving / state.saving
        state.rent, state.saving = state.rent + saving * self._settings.prices.read, saving
        if want is None or not context.newest:
            return
        if self.ready:  # unless it would cover twice what that one covers, that one is paid for in vain
            begin, stop = self._folding.run(self.ready[0]).start, self._folding.run(self.ready[-1]).stop
            if sum(ledger.sent[stop : last + 1]) < sum(ledger.sent[begin:stop]):
                return
        if context.aim == "context":
            state.wants.append(want)
            return
        is_early = context.head + ledger.total < _GROWTH * (context.head + state.tokens_after_summary)
        if is_early and state.tokens_after_summary and context.is_chat and not context.pressed:
            return
        # the next one has to earn the cost of those that never stood, too, and may be rejected itself
        cost = want.cost + self._lost()
        limit = self._limit()
        untried = float("inf") if context.pressed or context.summaries else limit or UNTRIED
        most = GUARD if context.rejected else untried
        if saving < context.budget.bounded(SMALLEST) or not bears(ledger, cost + state.digest_cost, most):
            return
        later, rent = ledger.pending(last + 1)
        rent += state.rent
        is_paid = context.aim == "bill" and pays(ledger, first, saving + later, rent, cost, ahead=True, chats=limit)
        if context.pressed or is_paid:
            state.wants.append(replace(want, reason="window" if context.pressed else want.reason))

    def want_digest(self, want: DigestWant) -> None:
        """Ask for a digest of one output where it will pay, in requests that may be changed at all."""
        settings, state, ledger = self._settings, self._state, self._state.ledger
        at = self._conversation.index[want.at]
        saving = ledger.sent[at] - edited_tokens(self._conversation.blocks[at], "", settings.count) - want.tokens
        cost, small = state.digest_cost + want.cost, settings.head + ledger.total < settings.budget.floor
        if small or saving < LEAST_SAVING or settings.only_to_fit:
            return
        is_earned = digest_pays(settings.prices, saving, want.cost) and affords(ledger, cost + self._lost())
        if is_earned or settings.aim == "context":
            state.digests.append(want)
            state.digest_cost = cost

    def _lost(self) -> float:
        """The cost of those summaries that have not stood in the request so far, in input tokens."""
        settings, booked = self._settings, self._state.booked
        if settings.summarizing is None:
            return 0.0
        return sum(settings.summarizing.cost(each, settings.prices) for each in self.records if each.id not in booked)

    def _limit(self) -> float:
        """The limit of the bill in a chat without tools, 0 elsewhere; later summaries spend what was saved."""
        if not self._settings.is_chat:
            return 0.0
        return GUARD if self.records else limit_of_chats(self._settings.prices)


def _id(fold: Fold) -> str:
    return fold.origin.id if fold.origin else ""
