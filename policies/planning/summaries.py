"""What a model writes, in the planning of one step: which summary may stand, if it pays, when another is asked for; and
which digests of outputs are."""

from collections.abc import Sequence
from dataclasses import replace

from policies.context import LEAST_SAVING, Context, DigestWant, Want
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
from policies.planning.folding import Folding, adopted_fold, drop_summary, summary_saving
from policies.planning.state import PlanSettings
from policies.text.layout import edited_tokens

_GROWTH = 1.5
"""In a chat without tools, the next summary is asked for once the prompt has grown by half over what the last one left:
it rewrites all that people wrote, too."""


class StepSummaries:
    def __init__(self, settings: PlanSettings, folding: Folding) -> None:
        self._conversation, self._state = folding.conversation, folding.state
        self._settings = settings
        self._folding = folding
        self.ready: list[Fold] = []
        """The folds of a summary that could be adopted from now on: an offer of its own."""
        self.want: Want | None = None
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
        the cache as this request leaves it."""
        want, state, ledger = self.want, self._state, self._state.ledger
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
        if context.pressed or pays(ledger, first, saving + later, rent, cost, ahead=True, chats=limit):
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
        """The limit of the bill in a chat without tools, 0 elsewhere. Only its first summary may go beyond the guard:
        later ones spend what was saved."""
        if not self._settings.is_chat:
            return 0.0
        return GUARD if self.records else limit_of_chats(self._settings.prices)


def _id(fold: Fold) -> str:
    return fold.origin.id if fold.origin else ""
