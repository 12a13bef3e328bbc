"""One step of a history: the policies are asked, and it is decided which of their offers are carried out, or what its
record says is repeated. policies.planning.plan says what is carried out when.

Laws
  The first request of a conversation gets no cache mark of ours. Only the second proves that there are more.
  At a step at which there was no time to plan only what its record says is repeated, by every later plan too. So what
  was sent without planning is what later requests begin with, and what was given up there is decided at a later step.
"""

from collections.abc import Callable, Container, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import islice, takewhile

from policies.context import LEAST_SAVING, Conditions, Context, DigestWant, TokenCounter, Want
from policies.keep import Protection, in_force
from policies.laws import keeps_shape, may_edit, may_fold
from policies.model.conversation import Block, Conversation
from policies.model.edits import Fold, Replace
from policies.model.memory import FRESH, CacheLife, Memory, StepRecord
from policies.money.caches import CacheRule, newest_input, own_marks
from policies.money.ledger import SMALLEST, Ledger, affords, best_point, is_worth_a_break, reprice
from policies.money.lifetimes import Lifetimes, Traffic, next_life
from policies.planning.folding import (
    Folding,
    StepSummaries,
    adopted_fold,
    drop_summary,
    may_put_summary,
    put_summary,
    summarized,
    summary_saving,
)
from policies.planning.prefix import SHED, life_of
from policies.planning.rereads import REREAD, enter_answers, texts_given
from policies.planning.state import PlanSettings, PlanState, Pointers
from policies.rules.base import ConfiguredPolicy
from policies.sight import sight_window
from policies.text.layout import edited_tokens
from policies.tools import OURS

# --- which cache marks of ours the request of one step gets ---


def is_recall_round(conversation: Conversation, step: int) -> bool:
    """True where the proxy made this request to answer recall calls: the client has part of the reply already."""
    is_round = False
    for at in reversed(conversation.arrived(step)):  # the last one is mostly a result
        block = conversation.blocks[at]
        if block.kind == "result" or block.answers is not None or block.tool in OURS:
            if block.tool not in OURS:
                return False
            is_round = True
    return is_round


def ends_in_entry(settings: PlanSettings) -> bool:
    """True where each request ends with a cache entry without a mark of ours. This is assumed, too, where we set no
    marks and those of the client stand further up: then fewer rewrites seem to pay than do."""
    return settings.marks_end or not settings.marks


def may_mark(settings: PlanSettings, step: int, tokens: int) -> bool:
    return bool(settings.marks) and step > 0 and tokens >= settings.budget.floor


def chosen_marks(
    conversation: Conversation, settings: PlanSettings, state: PlanState, context: Context
) -> tuple[int, ...]:
    step, ledger = context.step, state.ledger
    if not may_mark(settings, step, settings.head + ledger.total):
        return ()
    sent = conversation.ends[step]
    changed = sent if state.changed is None else state.changed
    entry = ledger.cached_before(changed)
    is_lost = entry < oldest_in_reach(conversation, sent, settings.cache)
    stays, is_tail = _stays(conversation, settings, context), changed >= conversation.start(max(0, step - 1))
    marks = own_marks(
        conversation,
        entry=entry if changed < sent or is_lost else 0,
        stays=stays,
        style=settings.marks,
        slots=settings.slots,
        # behind many calls at once a mark there finds nothing either
        tail=is_tail and (not is_lost or entry >= oldest_in_reach(conversation, stays, settings.cache)),
    )
    return tuple(at for at in marks if settings.head + ledger.sums[at + 1] >= settings.cache.least)


def _stays(conversation: Conversation, settings: PlanSettings, context: Context) -> int:
    """The end of the blocks that the next step will send again as they are, as far as can be told now. Where the end of
    the request is a boundary anyway, one before its newest input is worth more."""
    fresh, sent = newest_input(conversation, context.step), conversation.ends[context.step]
    if is_recall_round(conversation, context.step):
        return sent
    if settings.marks_end:
        return fresh if settings.policies else 0
    if settings.only_to_fit or settings.aim == "steady":
        return sent
    policies = (policy for policy in settings.policies if isinstance(policy, ConfiguredPolicy))
    due = {at for policy in policies for at in policy.due(conversation, context, context.step + 1) if at >= fresh}
    most = sum(context.text_at(conversation, at).tokens for at in due)
    is_cut = settings.aim == "context" or is_worth_a_break(settings.prices, most)
    return min(due, default=sent) if is_cut else sent


# --- how far back a provider looks for an entry of its prompt cache, on caches that match only at boundaries ---
# A boundary is a mark, or the end of a message where the provider counts those. An entry that ends before the oldest
# position that is looked up is not found any more, although it may still be there; a mark at its end finds it again.


def oldest_in_reach(conversation: Conversation, end: int, rule: CacheRule) -> int:
    """Where the oldest entry ends that is found from a mark at the end of so many blocks, or, on a cache that takes no
    marks, by a request that ends there; as a number of blocks, 0 where all are found."""
    if not (rule.endings or rule.mark):
        return 0
    blocks = conversation.blocks
    backwards = range(end, 0, -1)
    if rule.endings:
        ends = (at for at in backwards if _ends_message(blocks, at, blocks[at] if at < end else None))
        return next(islice(ends, rule.endings - 1, None), 0)
    one = ("call", "result") if rule.joins_runs else ()
    starts = (at for at in backwards if at == 1 or not blocks[at - 1].kind == blocks[at - 2].kind in one)
    return next(islice(starts, rule.lookback - 1, None), 0)


def _ends_message(blocks: Sequence[Block], at: int, following: Block | None) -> bool:
    """True where a message of a user, or a group of results, ends before block `at`, the `following` one."""
    newest = blocks[at - 1]
    if following and following.message == newest.message:
        return False
    return newest.kind == "user" or (newest.kind == "result" and (following is None or following.kind != "result"))


# --- when planning is to stop, between steps and inside them ---

AT_ONCE = 128
"""Items that are worked on between two looks inside a step: some milliseconds. Hardly any step has so many."""


class OverdueError(Exception):
    """Planning is to stop inside a step."""


class Watch:
    """Looks whether planning is to stop: before each step, and inside of one once in so many items."""

    def __init__(self, stop: Callable[[], bool], count: TokenCounter) -> None:
        self._stop = stop
        self._count = count
        self.has_ended = False
        """True where planning was stopped: then no policy is asked any more, and nothing new is decided."""
        self._left = AT_ONCE
        self._is_long = self.was_long = False
        """True where this step, and where the one before it, has many items."""

    def is_over(self) -> bool:
        """True where planning is to stop before the next step; never once it was stopped."""
        self.was_long, self._is_long, self._left = self._is_long, False, AT_ONCE
        return not self.has_ended and self._stop()

    def pause(self, items: int = 1) -> None:
        """So many items of a step were worked on. Raises OverdueError where planning is to stop."""
        self._left -= items
        if self._left <= 0:
            self._is_long, self._left = True, AT_ONCE
            if not self.has_ended and self._stop():
                raise OverdueError

    def count(self, text: str) -> int:
        self.pause()
        return self._count(text)


def undecided_steps(conversation: Conversation, memory: Memory, first: int) -> Container[int]:
    """The steps, from `first` on, at which there was no time to plan."""
    if not any(record.shed for record in memory.steps.values()):
        return ()
    low, steps = conversation.steps, set[int]()
    for step in reversed(range(first, conversation.steps)):
        record = memory.steps.get(conversation.end_anchor(step))
        low = min(low, step + 1 - record.shed) if record and record.shed else low
        if step >= low:
            steps.add(step)
    return steps


# --- the step itself ---

_SHARE = 10
"""With the aim of the context, offers are carried out once they remove a tenth of the history together."""
_GROWN = 1.02
"""Where not enough room could be made, it is tried again when the request has grown by this factor."""
_SHARED = [each.name for each in fields(Conditions) if each.name not in ("count", "digesting")]
_SOON = 0.8
"""The share of the high mark at which a summary is asked for, so that it is there when room must be made."""


class Changes:
    """The changes of one step, which are put into the state; and what stood there before."""

    def __init__(
        self, settings: PlanSettings, step: int, folding: Folding, pointers: Pointers, summaries: StepSummaries
    ) -> None:
        self._conversation, self._state = folding.conversation, folding.state
        self._settings = settings
        self._folding, self._pointers, folding.was_folded = folding, pointers, {}
        self._summaries = summaries
        self._start = self._conversation.start(step)
        self._is_newest = step == self._conversation.steps - 1
        self.edits_before: dict[int, Replace | None] = {}
        """The blocks whose edit this step changes, with the edits that stood before."""
        self.folds_before = dict(self._state.folds) if self._is_newest else {}

    def fire(self, point: int, reason: str, context: Context) -> None:
        fired = [at for at in self._state.offers if at >= point and at not in self._state.folded]
        for at in fired:
            context.pause(1)
            if (edit := self._state.offers.pop(at, None)) is not None:  # an edit before it may have withdrawn it
                self.change(at, edit)
        if self._folding.fire(point, self._start) or fired:
            self._state.reason = reason

    def change(self, at: int, edit: Replace) -> None:
        # a digest may have a model's words, which do not follow from the history
        self._state.has_model_text |= self._is_newest and edit.by == "digest" and self._settings.digesting is not None
        before, index = self._state.edits.get(at), self._conversation.index
        self.edits_before.setdefault(at, before)
        if before and at >= self._start:  # the record of the step has the last edit alone
            edit = replace(edit, uses=edit.uses or before.uses)
        self._state.edits[at] = edit
        if edit.by == REREAD and at in self._state.rereads:
            self._state.text_in[self._state.rereads[at]] = at
        self._pointers.change(at, edit)
        self._state.refer(at, [index[anchor] for anchor in edit.uses if anchor in index])
        size = edited_tokens(self._conversation.blocks[at], edit.text, self._settings.count)
        self._state.ledger.change(at, size)
        self._state.touch(at)
        self._folding.weigh(at)

    def adopt(self, reason: str, context: Context) -> bool:
        """Put the summary that is ready into the request, and fire offers behind it; False where it saves nothing."""
        folds = self._summaries.ready
        if summary_saving(self._folding, folds) <= 0 or not may_put_summary(self._folding, folds, context):
            return False
        put_summary(self._folding, folds)
        self._summaries.wanting = None  # it was for the longer history
        self.fire(self._folding.run(folds[0]).start, reason, context)
        self._state.reason = reason
        return True

    def repeat(self, record: StepRecord, context: Context) -> None:
        """Do what the record says was decided, as far as its anchors are in this history."""
        summary: list[Fold] = []
        for edit in record.edits:
            at = self._conversation.index.get(edit.at if isinstance(edit, Replace) else edit.first)
            if at is None or (isinstance(edit, Fold) and edit.last not in self._conversation.index):
                continue
            if isinstance(edit, Fold) and edit.ref and not self._settings.exchanges:
                continue  # the request takes no exchange of ours any more, and in the model's rank it must not stand
            if isinstance(edit, Fold) and not edit.ref and record.recall and self._settings.exchanges:
                # release 0.2 stored none: its folds were no answers of the recall tool
                edit = replace(edit, ref=self._conversation.run_ref(at, self._conversation.index[edit.last]))
            if isinstance(edit, Replace):
                if keeps_shape(self._conversation.blocks[at], edit):
                    self._state.offers.pop(at, None)
                    self.change(at, edit)
            elif edit.origin is not None:
                summary.append(edit)
            elif may_fold(self._conversation, edit, context):
                self._folding.fold(edit)
        if summary and not (self._is_newest and self._summaries.reason_stale(summary[0])):
            put_summary(self._folding, summary)
        self._state.reason = record.reason

    def reword(self) -> None:
        """Where an edit's text points to a block whose text was removed since, its other wording takes over."""
        for at in sorted(self._pointers.concerned((*self.edits_before, *self._folding.was_folded))):
            edit = self._state.edits[at]
            if at not in self._state.folded and not self._pointers.stands(edit.needs):
                self.change(at, replace(edit, text=edit.otherwise, needs="", otherwise="", uses=(), lossless=False))

    def give_texts(self, context: Context, room: int) -> None:
        """Give answers that point at a hidden result its text, as far as there is room: none is made for it."""
        was_folded = self._folding.was_folded
        for edit in texts_given(self._conversation, context, self._state, self._pointers, was_folded, room):
            self.change(self._conversation.index[edit.at], edit)


class Step:
    """Plans one step of a history in the `PlanState` that it is given, which it changes."""

    def __init__(self, settings: PlanSettings, step: int, folding: Folding, pointers: Pointers, watch: Watch) -> None:
        conversation, state = folding.conversation, folding.state
        newest = step == conversation.steps - 1
        if newest and settings.learned is not None:
            settings = replace(settings, budget=settings.learned)
        self._conversation = conversation
        self._settings = settings
        self._state = state
        self._step = step
        self._watch = watch
        self._ledger = state.ledger
        self._folding, self._pointers = folding, pointers
        self._newest = newest
        self._is_recall_round = is_recall_round(conversation, step)
        # the provider's own counts move the marks of the request being served only: earlier steps come out the same
        self._factor = settings.factor if self._newest else 1.0
        self._lossless: list[int] = []  # the blocks for which this step has an offer that loses nothing
        self._summaries = StepSummaries(settings, folding)
        self.changes = Changes(settings, step, folding, pointers, self._summaries)
        state.begin(step)

    def serve(self, record: StepRecord | None, memory: Memory, *, decides: bool = True) -> None:
        """Decide this step, or repeat its record. `memory`: of the store now. `decides`: new decisions are allowed."""
        life = life_of(record) if record is not None else self._settings.life if self._newest else FRESH
        cached, self._state.life = self._tokens(), life
        _arrive(self._ledger, self._conversation, self._settings, self._step, not self._is_recall_round, life)
        reprice(self._ledger, _write_price(self._settings, self._state.life))
        self._context = self._seen()
        if self._newest:
            usable = self._summaries.review(memory.summaries)
            self._context = replace(
                self._context,
                digests=memory.digests,
                summaries=usable.sound,
                tried=usable.tried,
                rejected=usable.rejected,
                summary=adopted_fold(self._folding),
            )
        if record is not None and record.dropped and adopted_fold(self._folding):
            drop_summary(self._folding)
        if not self._watch.has_ended:
            self._collect(self._context)
        enter_answers(self._conversation, self._context, self._state, self._pointers)
        self._state.has_model_text = bool(self._summaries.ready)
        self._state.peak = max(self._state.peak, self._ledger.total)
        if not self._settings.only_to_fit:  # nothing is rewritten there because it pays
            self._ledger.charge()
        tokens = self._tokens()
        grown = tokens >= self._state.cramped * _GROWN
        repeats = record is not None and record.recall == self._settings.recall
        if record is not None and repeats:
            self.changes.repeat(record, self._context)
        elif not decides:
            self._state.reason = SHED if self._newest else ""
        elif tokens >= self._settings.budget.floor:
            self._decide(grown)
        if self._state.dropped and not self._state.reason.startswith("checkpoint:"):
            self._state.reason = "checkpoint:summary-stale"
        self._state.drop_references(self._lossless)
        if self._state.pointers and self._state.changed is not None:
            self.changes.reword()
        if decides and not repeats and self._state.rereads:
            budget = self._settings.budget
            made_room = self._state.reason == f"checkpoint:{budget.mark}"
            room = int((budget.low if made_room else budget.high) / self._factor - self._tokens())
            self.changes.give_texts(self._context, room)
        if not self._is_full():
            self._state.cramped = 0
        elif grown:
            self._state.cramped = self._tokens()
        self._send(cached, is_new=record is None)
        if self._newest:
            self._state.use = self._summaries.use()
        if not (self._watch.has_ended or self._settings.only_to_fit or self._is_recall_round):
            self._summaries.ask(replace(self._context, pressed=self._will_be_full()))

    def _seen(self) -> Context:
        state, settings, ledger = self._state, self._settings, self._ledger  # no circle may keep the history in memory
        toolbox, window, pause = settings.toolbox, settings.budget.window, self._watch.pause
        lasting = in_force(self._conversation, self._step, toolbox, window, pause)
        share, prices = settings.sight, settings.prices
        sight = sight_window(self._conversation, self._step, share, prices) if share else None
        return Context(
            **{name: getattr(settings, name) for name in _SHARED},
            count=self._watch.count,
            digesting=settings.digesting if self._newest else None,
            step=self._step,
            pause=pause,
            sizes=ledger.sent,
            sums=lambda: ledger.sums,
            pressed=self._will_be_full(),
            newest=self._newest,
            peak=state.peak,
            summary=adopted_fold(self._folding),
            protection=Protection(settings.keep, lasting, pause),
            edits=state.edits,
            folded=state.folded,
            uses=state.uses,
            used_by=state.used_by,
            rereads=state.rereads,
            runs=tuple(self._folding.runs) if settings.summarizing else (),
            sight=sight,
        )

    def _collect(self, context: Context) -> None:
        """Ask each policy, which sees what stood before this step. Where room must be made, folds are added at once."""
        if self._folding.was_folded:
            context = replace(context, folded=self._folding.folded_before())
        if edits_before := self.changes.edits_before:
            before = {at: edit for at, edit in edits_before.items() if edit}
            later = {at: edit for at, edit in self._state.edits.items() if at not in edits_before}
            context = replace(context, edits=later | before)
        for policy in self._settings.policies:
            for item in policy(self._conversation, context):
                self._watch.pause()
                if isinstance(item, Replace):
                    self._offer(item, context)
                elif isinstance(item, Want):
                    self._summaries.wanting = policy
                elif isinstance(item, DigestWant):
                    if not self._is_recall_round:
                        self._summaries.want_digest(item)
                elif item.origin is not None:
                    self._summaries.ready.append(item)
                elif not may_fold(self._conversation, item, context):
                    continue
                elif not context.excess:
                    self._folding.offer(item)
                elif not self._folding.cuts(item):
                    new = self._folding.fold(item)
                    self._state.reason = self._state.reason or (
                        f"checkpoint:{self._settings.budget.mark}" if new else ""
                    )

    def _offer(self, edit: Replace, context: Context) -> None:
        at = self._conversation.index[edit.at]
        free = at not in self._state.folded and not self._folding.offered(at)
        allowed = free and may_edit(self._conversation, at, edit.by, context, edit.lossless)
        if allowed and keeps_shape(self._conversation.blocks[at], edit):
            size = edited_tokens(self._conversation.blocks[at], edit.text, self._settings.count)
            saving = self._ledger.sent[at] - size
            if saving >= max(LEAST_SAVING, self._ledger.saving.get(at, 0) + 1):
                self._state.offers[at] = edit
                self._ledger.saving[at] = saving
                if edit.lossless:
                    self._lossless.append(at)

    def _decide(self, grown: bool) -> None:
        """Carry out the offers whose time has come: the first case counts. `grown`: enough to try for room again."""
        if not self._settings.only_to_fit and not self._is_recall_round:
            arrived = [at for at in self._state.offers if at >= self._conversation.start(self._step)]
            # what points to others first: those stay as they are, then
            for at in sorted(arrived, key=lambda at: (not self._state.offers[at].uses, at)):
                self._watch.pause()
                edit = self._state.offers.get(at)
                if edit and (edit.lossless or self._settings.exceptions.first_sight):  # it costs no rewrite
                    self.changes.change(at, self._state.offers.pop(at))
        if self._is_full():
            if grown:
                self._make_room()
        elif self._settings.only_to_fit or self._is_recall_round:
            return
        elif self._state.life.is_cold and self._newest:
            self.changes.fire(0, "checkpoint:cold", self._context)
            self.changes.adopt("checkpoint:cold", self._context)
        elif self._settings.aim != "steady":
            # nothing is cut in recall rounds, so what came before them may still be cut as the tail
            back = 2 + sum(
                1 for _ in takewhile(partial(is_recall_round, self._conversation), range(self._step - 1, 0, -1))
            )
            last, since = (self._conversation.ends[max(0, self._step - n)] if self._step > 1 else 0 for n in (2, back))
            self._ledger.waiting = self._folding.waiting(self._conversation.start(self._step))
            point = best_point(self._ledger, since)
            if point is not None:
                self.changes.fire(point, "tail-cut" if point >= last else "checkpoint:paid", self._context)
            if self._settings.aim == "context":
                # what the preset names for this moment: a summary, and offers once they make a batch
                self.changes.adopt("checkpoint:context", self._context)
                batch = max(self._settings.budget.bounded(SMALLEST), self._ledger.total // _SHARE)
                if self._ledger.pending(0)[0] >= batch:
                    self.changes.fire(0, "checkpoint:context", self._context)
            elif self._summaries.pay():
                self.changes.adopt("checkpoint:summary", self._context)

    def _make_room(self) -> None:
        """A hard mark is reached: carry out every offer, then remove the oldest turns, until the low mark. Where a
        summary has made room, the next one will in time, and nothing more is removed."""
        budget, reason = self._settings.budget, f"checkpoint:{self._settings.budget.mark}"
        self.changes.fire(0, reason, self._context)
        adopted = self._tokens() * self._factor > budget.low and self.changes.adopt(reason, self._context)
        excess = int(self._tokens() - (budget.high if adopted else budget.low) / self._factor)
        if excess > 0:
            sizes, self._summaries.ready = tuple(self._ledger.sent), []
            gone = summarized(self._folding)
            self._collect(replace(self._context, sizes=sizes, sums=None, excess=excess, summarized=gone))
            self.changes.fire(0, reason, self._context)

    def _send(self, cached: int, is_new: bool) -> None:
        """Set the marks, and enter into the ledger what is sent. `cached`: the tokens of the request before."""
        conversation, settings, state = self._conversation, self._settings, self._state
        if is_new and self._newest and settings.lifetimes is not None:
            state.life = _next_life(settings, settings.lifetimes, state, cached)
            reprice(self._ledger, _write_price(settings, state.life))
        marks = chosen_marks(conversation, settings, state, self._context)
        state.marks = tuple(conversation.blocks[at].message for at in marks)
        changed = conversation.ends[self._step] if state.changed is None else state.changed
        self._ledger.send(changed, [at + 1 for at in marks], marks_end=ends_in_entry(settings))

    def _will_be_full(self) -> bool:
        """True where one of the next two requests reaches the hard mark if each grows by as much as this one. Where
        only the bill counts, a summary waits for the mark once it is there, so it may be asked for earlier; not in a
        chat without tools, where it is adopted soon and may cost more than it saves until the mark."""
        high, tokens, ledger = self._settings.budget.high, self._tokens(), self._ledger
        arrived = sum(ledger.sent[at] for at in self._conversation.arrived(self._step))
        ahead = tokens + 2 * max(arrived, ledger.first // (self._step + 1))
        waits = self._settings.aim != "context" and not self._settings.is_chat
        is_near = waits and tokens * self._factor >= _SOON * high
        return is_near or ahead * self._factor > high

    def _is_full(self) -> bool:
        return self._tokens() * self._factor > self._settings.budget.high

    def _tokens(self) -> int:
        """Tokens of the request as it stands, its head included."""
        return self._settings.head + self._ledger.total


def _next_life(settings: PlanSettings, lifetimes: Lifetimes, state: PlanState, cached: int) -> CacheLife:
    """The life of the cache behind the newest request; `cached`: the tokens of the one before."""
    ledger, head = state.ledger, settings.head
    read = 0 if state.life.is_cold else head + ledger.sums[ledger.cached_before(ledger.cached)]
    tokens = head + ledger.total
    traffic = Traffic(settings.idle, cached, tokens, written=tokens - read)
    # the ledger knows nothing of the head, which both bills have alike
    alike = head * settings.prices.read * ledger.requests
    return next_life(state.life, traffic, settings.prices, lifetimes, partial(affords, ledger, alike=alike))


def _write_price(settings: PlanSettings, life: CacheLife) -> float:
    lifetimes = settings.lifetimes
    return lifetimes.write if life.is_longer and lifetimes else settings.prices.write


def _arrive(
    ledger: Ledger, conversation: Conversation, settings: PlanSettings, step: int, by_client: bool, life: CacheLife
) -> None:
    """Enter the blocks that came with a step into the ledger."""
    # leading system text counts as head, not as history
    head, places = conversation.head, conversation.arrived(step)
    foldable = settings.exceptions.foldable_system(conversation) if step == 0 else ()
    sizes = [conversation.tokens((i,)) if i >= head or i in foldable else 0 for i in places]
    ours = [n for n, at in enumerate(places) if conversation.blocks[at].tool in OURS]
    # a mark of ours finds any entry
    in_reach = 0 if settings.slots else oldest_in_reach(conversation, conversation.ends[step], settings.cache)
    original = settings.head + ledger.original + sum(sizes)
    marked = ends_in_entry(settings) or may_mark(settings, step, original)
    expired = {"is_cold": life.is_cold, "would_be_cold": life.would_be_cold}
    ledger.arrive(sizes, ours, by_client=by_client, in_reach=in_reach, marked=marked, **expired)
