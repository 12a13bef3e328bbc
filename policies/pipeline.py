"""plan(): from a conversation and what is remembered of it to plain data that says what changes and why.

A history is replayed step by step, one pass, from the newest step whose books are at hand. At each step the policies
offer edits on what has just come of age; the ledger says from which block on the offers are worth carrying out. What a
step decided earlier is taken from memory; what memory does not hold is decided again, and comes out the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from policies.context import Budget, Context, Memory, Policy, Prices, StepRecord, TokenCounter, Want
from policies.conversation import Block, Conversation
from policies.economics import Ledger
from policies.edits import Edit, Fold, Replace
from policies.laws import keeps_shape, may_edit, may_fold
from policies.marks import MarkStyle, own_marks
from policies.tools import RECALL

_GROWN = 1.02
"""Where not enough room could be made, it is tried again when the request has grown by so much."""
_LEAST = 15
"""An offer that saves fewer tokens is not worth a word."""


@dataclass(frozen=True, slots=True)
class Setup:
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


@dataclass
class Books:
    """Where the replay of a history stands: everything the next step needs. Copied before it is continued."""

    ledger: Ledger
    step: int = 0
    edits: dict[int, Replace] = field(default_factory=dict)
    offers: dict[int, Replace] = field(default_factory=dict)
    folds: dict[int, Fold] = field(default_factory=dict)
    folded: set[int] = field(default_factory=set)
    cramped: int = 0
    """What was left the last time when room was wanted and not enough could be made."""
    wants: list[Want] = field(default_factory=list)
    reason: str = ""
    changed: int | None = None
    """The first block that this step changed."""
    marks: tuple[int, ...] = ()
    """The messages that are to carry a cache mark of ours."""

    def copy(self) -> "Books":
        """The same books, to be continued apart."""
        return replace(
            self,
            ledger=self.ledger.copy(),
            edits=dict(self.edits),
            offers=dict(self.offers),
            folds=dict(self.folds),
            folded=set(self.folded),
            wants=[],
            reason="",
            changed=None,
        )


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
    books: Books


def plan(conversation: Conversation, setup: Setup, memory: Memory | None = None, books: Books | None = None) -> Plan:
    """Serve every step of the history that `books` does not hold yet; the last one is the request at hand."""
    books = books.copy() if books else Books(Ledger(setup.prices))
    known = memory.steps if memory else {}
    before: dict[int, Edit] = {}
    for step in range(books.step, conversation.steps):
        if step == conversation.steps - 1:
            before = {**books.edits, **books.folds}
        record = known.get(conversation.end_anchor(step))
        _Step(conversation, setup, books, step).serve(record)
    edits = _ordered(books)
    new = tuple(edit for edit in edits if before.get(conversation.index[_at(edit)]) != edit)
    return Plan(
        edits,
        new,
        tuple(books.wants),
        books.reason,
        books.marks,
        books.ledger.whole,
        books.ledger.total,
        books,
    )


def _ordered(books: Books) -> tuple[Edit, ...]:
    edits: dict[int, Edit] = {i: edit for i, edit in books.edits.items() if i not in books.folded}
    return tuple(edit for _, edit in sorted((edits | books.folds).items()))


def _at(edit: Edit) -> str:
    return edit.at if isinstance(edit, Replace) else edit.first


class _Step:
    """One step of a history: what arrives, what is offered, what is decided."""

    def __init__(self, conversation: Conversation, setup: Setup, books: Books, step: int) -> None:
        self._conversation = conversation
        self._setup = setup
        self._books = books
        self._step = step
        self._ledger = books.ledger
        self._context = Context(
            step,
            setup.prices,
            setup.budget,
            setup.count,
            text_protocol=setup.text_protocol,
            recall=setup.recall,
        )
        books.reason, books.changed, books.step = "", None, step + 1
        books.wants.clear()

    def serve(self, record: StepRecord | None) -> None:
        """Decide this step, or do again what the record says was decided."""
        self._arrive()
        self._collect(self._context)
        self._ledger.charge()
        if record is not None and record.recall == self._setup.recall:
            self._repeat(record)
        elif self._tokens() >= self._setup.budget.floor:
            self._decide()
        self._true_up()
        self._send()

    def _arrive(self) -> None:
        head, arrived = self._conversation.head, self._arrived(self._step)
        tokens = [0 if i < head else b.tokens + b.frame for i, b in enumerate(arrived, self._start(self._step))]
        ours = sum(b.tokens + b.frame for b in arrived if b.tool == RECALL)
        self._ledger.arrive(tokens, ours, asked=not self._is_round(self._step))

    def _collect(self, context: Context) -> None:
        for policy in self._setup.policies:
            for item in policy(self._conversation, context):
                if isinstance(item, Replace):
                    self._offer(item, context)
                elif isinstance(item, Fold):
                    self._fold(item)
                else:
                    self._books.wants.append(item)

    def _offer(self, edit: Replace, context: Context) -> None:
        at = self._conversation.index[edit.at]
        if at in self._books.folded or not may_edit(self._conversation, at, edit.by, context):
            return
        if not keeps_shape(self._conversation.blocks[at], edit):
            return
        saving = self._ledger.sent[at] - self._size(at, edit.text)
        if saving >= max(_LEAST, self._ledger.saving.get(at, 0) + 1):
            self._books.offers[at] = edit
            self._ledger.offer(at, saving)

    def _decide(self) -> None:
        if self._tokens() * self._factor > self._setup.budget.high:
            if self._tokens() >= self._books.cramped * _GROWN:
                self._make_room()
        elif self._setup.only_to_fit or self._is_round(self._step):
            return
        elif self._setup.cold and self._newest:
            self._fire(0, "checkpoint:cold")
        else:
            # what came before recall rounds could not be cut in them
            back = 2 + sum(1 for _ in takewhile(self._is_round, range(self._step - 1, 0, -1)))
            last, since = (self._conversation.ends[max(0, self._step - n)] if self._step > 1 else 0 for n in (2, back))
            point = self._ledger.best_point(since)
            if point is not None:
                self._fire(point, "tail-cut" if point >= last else "checkpoint:paid")

    def _make_room(self) -> None:
        """A hard mark is reached: everything on offer goes, then the oldest turns, until the low mark."""
        self._fire(0, "checkpoint:window")
        low = self._setup.budget.low / self._factor
        excess = int(self._tokens() - low)
        if excess > 0:
            self._collect(replace(self._context, sizes=tuple(self._ledger.sent), excess=excess))
            self._fire(0, "checkpoint:window")

        self._books.cramped = self._tokens() if self._tokens() * self._factor > self._setup.budget.high else 0

    def _fire(self, point: int, reason: str) -> None:
        fired = [at for at in self._books.offers if at >= point]
        for at in fired:
            self._change(at, self._books.offers.pop(at))
        if fired:
            self._books.reason = reason

    def _change(self, at: int, edit: Replace) -> None:
        self._books.edits[at] = edit
        self._ledger.change(at, self._size(at, edit.text))
        self._touch(at)

    def _fold(self, fold: Fold) -> None:
        first, last = self._conversation.index[fold.first], self._conversation.index[fold.last]
        if not may_fold(self._conversation, first, last, self._context):
            return
        if self._books.folds.get(first) == fold:
            return
        for at in range(first, last + 1):
            self._books.offers.pop(at, None)
            self._ledger.change(at, 0)
        self._ledger.change(first, self._size(first, fold.text))
        self._books.folds = {at: old for at, old in self._books.folds.items() if not first <= at <= last}
        self._books.folds[first] = fold
        self._books.folded.update(range(first, last + 1))
        self._books.reason = "checkpoint:window"
        self._touch(first)

    def _repeat(self, record: StepRecord) -> None:
        for edit in record.edits:
            at = self._conversation.index.get(_at(edit))
            if at is None:
                continue
            if isinstance(edit, Fold):
                if edit.last in self._conversation.index:
                    self._fold(edit)
            elif keeps_shape(self._conversation.blocks[at], edit):
                self._books.offers.pop(at, None)
                self._change(at, edit)
        self._books.reason = record.reason

    def _true_up(self) -> None:
        """Texts that speak of a block which no longer stands whole say something else from now on."""
        for at, edit in list(self._books.edits.items()):
            if edit.needs and at not in self._books.folded and not self._stands(edit.needs):
                self._change(at, replace(edit, text=edit.otherwise, needs="", otherwise=""))

    def _stands(self, anchor: str) -> bool:
        """Whether a block's text can still be read in the request: there, or where a pointer in its place leads."""
        while anchor:
            at = self._conversation.index.get(anchor)
            if at is None or at in self._books.folded:
                return False
            edit = self._books.edits.get(at)
            if edit is None:
                return True
            anchor = edit.needs  # always further up, so this ends
        return False

    def _size(self, at: int, text: str) -> int:
        return self._setup.count(text) + self._conversation.blocks[at].frame

    def _touch(self, at: int) -> None:
        changed = self._books.changed
        self._books.changed = at if changed is None else min(changed, at)

    def _send(self) -> None:
        carried = self._conversation.ends[self._step]
        changed = carried if self._books.changed is None else self._books.changed
        standing = self._ledger.standing(changed) if changed < carried else None
        style = self._setup.marks if self._tokens() >= self._setup.budget.floor else ""
        ours = self._is_round(self._step)
        marks = own_marks(self._conversation, self._step, standing, style, self._setup.slots, ours)
        self._books.marks = tuple(self._conversation.blocks[at].message for at in marks)
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
