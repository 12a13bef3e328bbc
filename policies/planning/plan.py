"""plan(): from a conversation and what is remembered of it to plain data that says what changes and why.

A history is replayed step by step, one pass, from the newest step whose books are at hand. At each step the policies
offer edits on what has just come of age; the ledger says from which block on the offers are worth carrying out. What a
step decided earlier is taken from memory; what memory does not hold is decided again, and comes out the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import TypeVar

from policies.context import Context, DigestWant, Want
from policies.laws import keeps_shape, may_edit, may_fold
from policies.model.conversation import Block, Conversation
from policies.model.edits import Edit, Fold, Replace
from policies.model.memory import Memory, StepRecord
from policies.model.summary_record import NO_SUMMARIES, stale, usable_summaries
from policies.money.ledger import SMALLEST, Ledger, digest_pays
from policies.money.marks import own_marks
from policies.planning.folding import Folding
from policies.planning.state import Plan, PlanSettings, PlanState
from policies.tools import RECALL

E = TypeVar("E", Replace, Fold)

_NOTHING = Memory()
_GROWN = 1.02
"""Where not enough room could be made, it is tried again when the request has grown by so much."""
_SOON = 0.8
"""The share of the high mark at which a summary is asked for, so that it is there when room must be made."""
_LEAST = 15
"""An offer that saves fewer tokens is not worth a word."""


def plan(
    conversation: Conversation, setup: PlanSettings, memory: Memory | None = None, plan_state: PlanState | None = None
) -> Plan:
    """Serve every step of the history that `books` does not hold yet; the last one is the request at hand."""
    plan_state = plan_state.copy() if plan_state else PlanState(Ledger(setup.prices))
    known = memory.steps if memory else {}
    edits: dict[int, Replace] = {}
    folds: dict[int, Fold] = {}
    for step in range(plan_state.step, conversation.steps):
        if step == conversation.steps - 1:
            edits, folds = dict(plan_state.edits), dict(plan_state.folds)
        record = known.get(conversation.end_anchor(step))
        _Step(conversation, setup, plan_state, step).serve(record, memory or _NOTHING)
    # also what a summary hides at once: it counts again where the summary is taken back
    new: list[Edit] = [*_changed(plan_state.edits, edits), *_changed(plan_state.folds, folds)]
    return Plan(
        _ordered(plan_state),
        tuple(new),
        tuple(plan_state.wants),
        plan_state.reason,
        plan_state.marks,
        plan_state.ledger.original,
        plan_state.ledger.total,
        plan_state,
        tuple(plan_state.digests),
    )


def _ordered(plan_state: PlanState) -> tuple[Edit, ...]:
    edits: dict[int, Edit] = {i: edit for i, edit in plan_state.edits.items() if i not in plan_state.folded}
    return tuple(edit for _, edit in sorted((edits | plan_state.folds).items()))


def _changed(now: Mapping[int, E], before: Mapping[int, E]) -> list[E]:
    return [edit for at, edit in sorted(now.items()) if before.get(at) != edit]


def _at(edit: Edit) -> str:
    return edit.at if isinstance(edit, Replace) else edit.first


class _Step:
    """One step of a history: what arrives, what is offered, what is decided."""

    def __init__(self, conversation: Conversation, setup: PlanSettings, plan_state: PlanState, step: int) -> None:
        self._conversation = conversation
        self._setup = setup
        self._plan_state = plan_state
        self._step = step
        self._ledger = plan_state.ledger
        self._folding = Folding(conversation, plan_state, setup.count)
        start, topic = self._start(step), plan_state.topic
        plan_state.topic = topic.after(self._arrived(step), start)
        self._context = Context(
            step,
            setup.prices,
            setup.budget,
            setup.count,
            sizes=self._ledger.sent,
            text_protocol=setup.text_protocol,
            recall=setup.recall,
            newest=self._newest,
            summarizing=setup.summarizing,
            exceptions=setup.exceptions,
            peak=plan_state.peak,
            topics=(topic.mark, plan_state.topic.mark),
            digesting=setup.digesting if self._newest else None,
            toolbox=setup.toolbox,
        )
        self._summary: list[Fold] = []
        """The folds of a summary that could stand from now on."""
        self._want: Want | None = None
        plan_state.reason, plan_state.changed, plan_state.step = "", None, step + 1
        plan_state.dropped = plan_state.offered = False
        plan_state.wants.clear()
        plan_state.digests.clear()

    def serve(self, record: StepRecord | None, memory: Memory) -> None:
        """Decide this step, or do again what the record says was decided. The memory is what is known now."""
        self._arrive()
        self._look(memory)
        if record is not None and record.dropped and self._plan_state.summary:
            self._folding.drop()
        self._collect(self._context)
        self._plan_state.offered = bool(self._summary)
        self._plan_state.peak = max(self._plan_state.peak, self._ledger.total)
        self._ledger.charge()
        if record is not None and record.recall == self._setup.recall:
            self._repeat(record)
        elif self._tokens() >= self._setup.budget.floor:
            self._decide()
        if self._plan_state.dropped and not self._plan_state.reason.startswith("checkpoint:"):
            self._plan_state.reason = "checkpoint:summary-stale"
        self._true_up()
        self._send()
        self._wish()

    def _arrive(self) -> None:
        head, arrived = self._conversation.head, self._arrived(self._step)
        loose = self._setup.exceptions.loose(self._conversation) if self._step == 0 else ()
        places = range(self._start(self._step), self._conversation.ends[self._step])
        tokens = [self._conversation.tokens((i,)) if i >= head or i in loose else 0 for i in places]
        ours = sum(b.tokens + b.frame for b in arrived if b.tool == RECALL)
        self._ledger.arrive(tokens, ours, asked=not self._is_round(self._step))

    def _collect(self, context: Context) -> None:
        for policy in self._setup.policies:
            for item in policy(self._conversation, context):
                if isinstance(item, Replace):
                    self._offer(item, context)
                elif isinstance(item, Want):
                    self._want = item
                elif isinstance(item, DigestWant):
                    self._ask(item)
                elif item.origin is not None:
                    self._summary.append(item)
                elif may_fold(self._conversation, item, context):
                    new = self._folding.fold(item)
                    self._plan_state.reason = self._plan_state.reason or ("checkpoint:window" if new else "")

    def _offer(self, edit: Replace, context: Context) -> None:
        at = self._conversation.index[edit.at]
        if at in self._plan_state.folded or not may_edit(self._conversation, at, edit.by, context):
            return
        if not keeps_shape(self._conversation.blocks[at], edit):
            return
        saving = self._ledger.sent[at] - self._folding.size(at, edit.text)
        if saving >= max(_LEAST, self._ledger.saving.get(at, 0) + 1):
            self._plan_state.offers[at] = edit
            self._ledger.offer(at, saving)

    def _ask(self, want: DigestWant) -> None:
        """Ask for a digest where it will pay, and something may be changed at all."""
        at = self._conversation.index[want.at]
        saving = self._ledger.sent[at] - self._folding.size(at, "") - want.tokens
        untouched = self._setup.only_to_fit or self._is_round(self._step) or self._tokens() < self._setup.budget.floor
        pays = not untouched and digest_pays(self._setup.prices, saving, want.cost)
        if pays and self._ledger.affords(self._plan_state.asked + want.cost):
            self._plan_state.digests.append(want)
            self._plan_state.asked += want.cost

    def _decide(self) -> None:
        if self._setup.exceptions.first_sight and not self._setup.only_to_fit:  # what was never sent costs no rewrite
            self._fire(self._start(self._step), self._plan_state.reason)
        if self._tokens() * self._factor > self._setup.budget.high:
            if self._tokens() >= self._plan_state.cramped * _GROWN:
                self._make_room()
        elif self._setup.only_to_fit or self._is_round(self._step):
            return
        elif self._setup.cold and self._newest:
            self._fire(0, "checkpoint:cold")
            self._adopt("checkpoint:cold")
        else:
            # what came before recall rounds could not be cut in them
            back = 2 + sum(1 for _ in takewhile(self._is_round, range(self._step - 1, 0, -1)))
            last, since = (self._conversation.ends[max(0, self._step - n)] if self._step > 1 else 0 for n in (2, back))
            point = self._ledger.best_point(since)
            if point is not None:
                self._fire(point, "tail-cut" if point >= last else "checkpoint:paid")
            if self._summary_pays():
                self._adopt("checkpoint:summary")

    def _make_room(self) -> None:
        """A hard mark is reached: everything on offer goes, then the oldest turns, until the low mark."""
        self._fire(0, "checkpoint:window")
        low = self._setup.budget.low / self._factor
        if self._tokens() > low:
            self._adopt("checkpoint:window")
        excess = int(self._tokens() - low)
        if excess > 0:
            sizes, self._summary = tuple(self._ledger.sent), []
            self._collect(replace(self._context, sizes=sizes, excess=excess, summarized=self._folding.summarized()))
            self._fire(0, "checkpoint:window")

        self._plan_state.cramped = self._tokens() if self._tokens() * self._factor > self._setup.budget.high else 0

    def _fire(self, point: int, reason: str) -> None:
        fired = [at for at in self._plan_state.offers if at >= point and at not in self._plan_state.folded]
        for at in fired:
            self._change(at, self._plan_state.offers.pop(at))
        if fired:
            self._plan_state.reason = reason

    def _change(self, at: int, edit: Replace) -> None:
        # whose words these are no history tells
        self._plan_state.offered |= self._newest and edit.by == "digest" and self._setup.digesting is not None
        self._plan_state.edits[at] = edit
        self._ledger.change(at, self._folding.size(at, edit.text))
        self._plan_state.touch(at)

    def _look(self, memory: Memory) -> None:
        """What of the digests and summaries known now may be used, and whether the one that stands still counts."""
        summarizing, standing = self._setup.summarizing, self._plan_state.summary
        if self._newest and memory.digests:
            self._context = replace(self._context, digests=memory.digests)
        if not self._newest or (summarizing is None and standing is None):
            self._context = replace(self._context, summary=standing) if standing else self._context
            return
        known = NO_SUMMARIES
        if summarizing:
            known = usable_summaries(self._conversation, memory.summaries, summarizing.criteria, summarizing.now)
        reason = self._stale(standing) if standing else known.stale
        if standing and reason:
            self._folding.drop()
        self._plan_state.stale = reason
        self._context = replace(
            self._context, summaries=known.sound, tried=known.tried, summary=self._plan_state.summary
        )

    def _stale(self, fold: Fold) -> str:
        summarizing, origin = self._setup.summarizing, fold.origin
        if summarizing is None or origin is None:  # by now nobody wants summaries
            return "policy"
        return stale(origin, summarizing.criteria, summarizing.now)

    def _summary_pays(self) -> bool:
        """Whether the summary on offer has earned the rewrite. Where everything behind it changes anyway, it costs
        nothing more."""
        saving = self._folding.saving(self._summary)
        if saving <= 0:
            return False
        first, stop = self._folding.run(self._summary[0]).start, self._folding.run(self._summary[-1]).stop
        if self._plan_state.changed is not None and self._plan_state.changed <= first:
            return True
        origin = self._summary[0].origin
        later, rent = self._ledger.pending(stop)
        cost = origin.cost if origin else 0.0
        return self._ledger.pays(first, saving + later, self._plan_state.rent + rent, cost, ahead=False)

    def _adopt(self, reason: str) -> None:
        """Have the summary on offer stand, and with it all that was to be cut behind it."""
        folds = self._summary
        if self._folding.saving(folds) > 0 and self._folding.may_stand(folds, self._context):
            self._folding.stand(folds)
            self._want = None  # it was wanted of a history that was longer
            self._fire(self._folding.run(folds[0]).start, reason)
            self._plan_state.reason = reason

    def _wish(self) -> None:
        """Ask for a summary ahead of need: before the hard mark is reached, and where it will have paid for itself. It
        stands with the next request at the earliest, so what counts is how the cache is after this one."""
        want, plan_state = self._want, self._plan_state
        if self._setup.only_to_fit or self._is_round(self._step):
            return
        saving = max(0, self._would_save(want) if want else self._folding.saving(self._summary))
        if saving < plan_state.saving:  # what others have cut meanwhile was no rent for a summary to save
            plan_state.rent *= saving / plan_state.saving
        plan_state.rent, plan_state.saving = plan_state.rent + self._ledger.rent(saving), saving
        if want is None or saving < SMALLEST or not self._newest:
            return
        soon = self._tokens() * self._factor >= _SOON * self._setup.budget.high
        first, last = (self._conversation.index[at] for at in (want.first, want.last))
        later, rent = self._ledger.pending(last + 1)
        if soon or self._ledger.pays(first, saving + later, plan_state.rent + rent, want.cost, ahead=True):
            plan_state.wants.append(replace(want, reason="window" if soon else want.reason))

    def _would_save(self, want: Want) -> int:
        first, last = (self._conversation.index[at] for at in (want.first, want.last))
        return sum(self._ledger.sent[first : last + 1]) - want.tokens

    def _repeat(self, record: StepRecord) -> None:
        summary: list[Fold] = []
        for edit in record.edits:
            at = self._conversation.index.get(_at(edit))
            if at is None or (isinstance(edit, Fold) and edit.last not in self._conversation.index):
                continue
            if isinstance(edit, Replace):
                if keeps_shape(self._conversation.blocks[at], edit):
                    self._plan_state.offers.pop(at, None)
                    self._change(at, edit)
            elif edit.origin is not None:
                summary.append(edit)
            elif may_fold(self._conversation, edit, self._context):
                self._folding.fold(edit)
        if summary and not (self._newest and self._stale(summary[0])):
            self._folding.stand(summary)
        self._plan_state.reason = record.reason

    def _true_up(self) -> None:
        """Texts that speak of a block which no longer stands whole say something else from now on."""
        for at, edit in list(self._plan_state.edits.items()):
            if edit.needs and at not in self._plan_state.folded and not self._stands(edit.needs):
                self._change(at, replace(edit, text=edit.otherwise, needs="", otherwise=""))

    def _stands(self, anchor: str) -> bool:
        """Whether a block's text can still be read in the request: there, or where a pointer in its place leads."""
        while anchor:
            at = self._conversation.index.get(anchor)
            if at is None or at in self._plan_state.folded:
                return False
            edit = self._plan_state.edits.get(at)
            if edit is None:
                return True
            anchor = edit.needs  # always further up, so this ends
        return False

    def _send(self) -> None:
        carried = self._conversation.ends[self._step]
        changed = carried if self._plan_state.changed is None else self._plan_state.changed
        standing = self._ledger.standing(changed) if changed < carried else None
        style = self._setup.marks if self._tokens() >= self._setup.budget.floor else ""
        ours = self._is_round(self._step)
        slots, last = self._setup.slots, self._start(self._step - 1) if self._step else 0
        marks = own_marks(self._conversation, self._step, standing, style, slots, ours, tail=changed >= last)
        self._plan_state.marks = tuple(self._conversation.blocks[at].message for at in marks)
        self._ledger.send(changed, [at + 1 for at in marks])

    def _tokens(self) -> int:
        return self._setup.head + self._ledger.total

    def _start(self, step: int) -> int:
        return self._conversation.ends[step - 1] if step else 0

    def _arrived(self, step: int) -> Sequence[Block]:
        """What a step adds to the history."""
        return self._conversation.blocks[self._start(step) : self._conversation.ends[step]]

    def _is_round(self, step: int) -> bool:
        """Whether a request only brings what was recalled: the client never asked it, and has had the words about its
        reply already, so nothing is decided."""
        results = [block.tool for block in self._arrived(step) if block.kind == "result"]
        return bool(results) and all(tool == RECALL for tool in results)

    @property
    def _newest(self) -> bool:
        return self._step == self._conversation.steps - 1

    @property
    def _factor(self) -> float:
        """What the provider reported moves the mark of the request at hand only; earlier steps come out the same."""
        return self._setup.factor if self._newest else 1.0
