"""The view of a policy at one step of a history (`Context`), and what it may answer: edits and wants.

A policy is a pure function `(Conversation, Context) -> edits and wants`. policies.laws says what it may not edit, and
`Exceptions` are what a preset declares beyond that.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from policies.keep import NO_PROTECTION, Protection
from policies.model.conversation import Block, Conversation, Index
from policies.model.edits import Edit, Fold, Replace
from policies.model.memory import ModelDigest
from policies.model.parameters import Keep, Trigger, begin_of
from policies.model.summary_record import Criteria, SummaryRecord
from policies.money.prices import Budget, Prices
from policies.sight import SightWindow
from policies.tools import Toolbox, ToolKind, WayBack

Aim = Literal["bill", "context", "steady"]
"""Things go when that pays (`bill`), or at the triggers and sizes that the preset names; or never once they were sent,
but at a hard mark and when the cache is cold (`steady`)."""


LEAST_SAVING = 15
"""Tokens that an edit or a fold must save."""


class TokenCounter(Protocol):
    def __call__(self, text: str, /) -> int: ...

    def __hash__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Exceptions:
    """Exceptions from law 5 that a preset declares by name: cut a result before the model has seen it, and have a
    summary replace system messages. Such a message is named by its text, or by how it begins and ends: `BEGINNING*END`,
    where neither part may stand anywhere else in it."""

    first_sight: bool = False
    system: tuple[str, ...] = ()

    def may_fold_system(self, block: Block) -> bool:
        return block.kind == "system" and any(_matches(name, block.text.strip()) for name in self.system)

    def foldable_system(self, conversation: Conversation) -> tuple[int, ...]:
        """The blocks of leading system text that a summary may replace: they count as history, not as its head."""
        head = range(conversation.head if self.system else 0)
        return tuple(i for i in head if self.may_fold_system(conversation.blocks[i]))


def _matches(name: str, text: str) -> bool:
    begins, star, ends = name.partition("*")
    if not star or len(text) < len(begins) + len(ends):
        return text == name
    inner = text[len(begins) : len(text) - len(ends)]
    return text == begins + inner + ends and not any(edge and edge in inner for edge in (begins, ends))


NO_EXCEPTIONS = Exceptions()
NO_TOOLS = Toolbox()


def _cut_kinds(kinds: dict[int, tuple[Toolbox | None, ToolKind]], _: Sequence[Block], end: int) -> None:
    for at in [at for at in kinds if at >= end]:
        del kinds[at]


_KINDS = Index[Block, dict[int, tuple[Toolbox | None, ToolKind]]](dict, lambda *_: None, _cut_kinds)
"""The kinds of outputs that were asked for, with the toolbox that they follow from."""
_UNKNOWN: tuple[None, ToolKind] = None, "command"


@dataclass(frozen=True, slots=True)
class Summarizing:
    """How summaries are made now, and with at most how many `tokens`; `now` (seconds since 1970) tells their age."""

    criteria: Criteria
    prices: Prices
    tokens: int
    now: float
    waits: bool = False
    """True where a request waits for its summary: else that stands with the next request at the earliest."""

    def cost(self, record: SummaryRecord, prices: Prices) -> float:
        dollars = record.spent.prompt * self.prices.input + record.spent.completion * self.prices.output
        return dollars / prices.input if prices.input else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The basis of decisions besides the history, for the planner and for policies."""

    prices: Prices
    budget: Budget
    count: TokenCounter
    head: int = 0
    """Tokens before the history: tools and system text."""
    text_protocol: bool = False
    """True where text protocols are shortened too: output in user messages, and the prose beside it."""
    recall: bool = False
    """True where the request carries the recall tool: then everything hidden is named by its reference."""
    exchanges: bool = False
    """True where a record may be sent as an answer of that tool: else it holds nothing that a tool returned."""
    aim: Aim = "bill"
    is_chat: bool = False
    """True where it is a chat without tools: nothing that goes could be fetched again."""
    summarizing: Summarizing | None = None
    """None where the preset wants no summaries."""
    exceptions: Exceptions = NO_EXCEPTIONS
    digesting: Prices | None = None
    """Prices of the model that writes digests of single outputs; None where there is none."""
    toolbox: Toolbox = NO_TOOLS


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(Conditions):
    step: int
    sizes: Sequence[int] = ()
    """Tokens of each block as it would be sent now; those of a fold are at its first block."""
    sums: Callable[[], Sequence[int]] | None = None
    """The tokens before each block, and in all, of these sizes; None where nobody keeps them."""
    pressed: bool = False
    """True where the hard mark is near: what makes room has to be asked for now."""
    newest: bool = True
    """True where this step is the request being served; earlier steps are replayed."""
    summaries: tuple[SummaryRecord, ...] = ()
    """The summaries that may be used now, oldest first. Only at the newest step: no history implies them."""
    tried: int = 0
    """How many blocks, from the first, a rejected summary covered."""
    rejected: int = 0
    """How many summaries in a row were rejected, up to the newest."""
    summary: Fold | None = None
    """The first fold of the summary that stands in the request."""
    summarized: Container[int] = frozenset()
    """The blocks that this summary replaces."""
    excess: int = 0
    """Tokens that must still go for the request to fit: only the last resort looks at it."""
    peak: int = 0
    """The most tokens that the history had at any step before this one."""
    digests: Mapping[str, ModelDigest] = field(default_factory=dict)
    """Digests written by that model, by `Block.text_digest` in hex. Only at the newest step."""
    protection: Protection = NO_PROTECTION
    edits: Mapping[int, Replace] = field(default_factory=dict)
    """The edits that stand in the request, by block, as of the step before."""
    folded: Container[int] = frozenset()
    """The blocks that folds replace, as of the step before."""
    runs: Sequence[range] = ()
    """The blocks of each fold that stands, or is offered, and is no summary, as of the step before, in order."""
    uses: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """The blocks that the edit of each block points to, or pointed to, in the place of lines."""
    sight: SightWindow | None = None
    """From which turn on texts stay whatever the windows of policies say; None where only these count."""
    pause: Callable[[int], object] = lambda _: None
    """Called with the number of items that a policy has worked on since: planning may be stopped there."""
    used_by: Mapping[int, int] = field(default_factory=dict)
    """The newest block that points to each block: for as long as that is new, the block is as new."""
    rereads: Mapping[int, int] = field(default_factory=dict)
    """The earlier results that answers which say that a file is unchanged point at (policies.planning.rereads)."""

    def text_at(self, conversation: Conversation, at: int) -> Block:
        """The block whose text an output shows: itself, or the earlier result that it points at, once it got that."""
        return conversation.blocks[self.rereads.get(at, at) if at in self.edits else at]

    def is_output(self, block: Block) -> bool:
        return block.answers is not None and (block.kind == "result" or self.text_protocol)

    def ref(self, conversation: Conversation, at: int) -> str:
        """The reference by which the recall tool finds a block; empty where the request does not carry that tool."""
        return conversation.ref(self.rereads.get(at, at)) if self.recall else ""

    def kind(self, conversation: Conversation, at: int) -> ToolKind:
        kinds, at = _KINDS.of(conversation), self.rereads.get(at, at)
        toolbox, kind = kinds.get(at, _UNKNOWN)
        if toolbox is not self.toolbox:
            block = conversation.blocks[at]
            call = conversation.blocks[block.answers].text if block.answers is not None else ""
            kind = self.toolbox.kind(block.tool, call, block.text)
            kinds[at] = self.toolbox, kind
        return kind

    def way_back(self, conversation: Conversation, at: int) -> WayBack:
        """How an output can be seen again without recall: a tool that said a file is unchanged may say it again."""
        kind, tool = self.kind(conversation, at), conversation.blocks[at].tool
        tools = (conversation.blocks[each].tool for each in self.rereads) if kind == "file" else ()
        return "unchanged" if tool in tools else kind

    def may_save(self, at: int) -> bool:
        """True where an edit of the block may save enough: not where next to nothing of it is sent."""
        return not self.sizes or self.sizes[at] >= LEAST_SAVING

    @property
    def tokens(self) -> int:
        return self.tokens_of(0, len(self.sizes))

    def tokens_of(self, start: int, end: int) -> int:
        """The tokens of the blocks from `start` until before `end`, as they would be sent now."""
        if self.sums is None or start >= end:
            return sum(self.sizes[start:end])
        sums = self.sums()
        return sums[end] - sums[start]

    @property
    def first_cut_age(self) -> int:
        return 0 if self.exceptions.first_sight else 1

    def aged(
        self, conversation: Conversation, keep: Keep, when: Sequence[Trigger] = (), *, step: int | None = None
    ) -> range:
        """The blocks that left the window `keep` with this very step. With triggers nothing leaves it before one of
        them holds; at the step where one first does, everything outside the window counts as having left it. `step`:
        this one, or the next one, of which nothing is there yet: neither what arrives with it nor what triggers it."""
        ahead = 0 if step is None else step - self.step
        if self.step == 0 or (ahead and (when or not keep)):
            return range(0)
        if not when and isinstance(keep, int):  # nearly always
            gone = self.turns_gone(keep - ahead)
            return range(conversation.ends[gone.start], conversation.ends[gone.stop]) if gone else range(0)
        before, now = (begin_of(conversation, keep, step, self.budget.window) for step in (self.step - 1, self.step))
        if not when or any(self.holds(conversation, each, self.step - 1, self.peak) for each in when):
            return range(before, max(before, now))
        tokens = max(self.peak, self.tokens)
        holds_now = any(self.holds(conversation, each, self.step, tokens) for each in when)
        return range(conversation.ends[0], now) if holds_now else range(0)

    def turns_gone(self, keep: int, doubling: int = 0, *, in_sight: bool = False) -> range:
        """The turns that left a window of so many turns with this very step, or one that was doubled so often.
        `in_sight`: nothing leaves it that the model's calls may still reach."""
        before, now = (max(0, step - (keep << doubling)) for step in (self.step - 1, self.step))
        if in_sight and self.sight is not None:
            before, now = min(before, self.sight.before[doubling]), min(now, self.sight.now[doubling])
        return range(before, now)

    def holds(
        self,
        conversation: Conversation,
        trigger: Trigger,
        step: int | None = None,
        tokens: int | None = None,
        since: int | None = None,
    ) -> bool:
        """True where a trigger holds, by default at this step as it is sent; `since`: the last block of a summary."""
        step, tokens = self.step if step is None else step, self.tokens if tokens is None else tokens
        return trigger.holds(conversation, step, tokens, self.budget.window, self.budget.high, since)


@dataclass(frozen=True, slots=True)
class Want:
    """A summary of the blocks from `first` to `last` (anchors) would help. It is made of the record `previous` and the
    blocks from `since` on; of all of them where `previous` is empty. `tokens` estimates its size, and `cost` what
    making it costs, in input tokens of the request's model. It may have at most `most` tokens."""

    first: str
    last: str
    reason: str
    since: str = ""
    previous: str = ""
    generation: int = 1
    tokens: int = 0
    cost: float = 0.0
    most: int = 0


@dataclass(frozen=True, slots=True)
class DigestWant:
    """A model's digest of one output would help: of the block with the anchor `at` and this `text_digest` (in hex).
    `most` and `source` are characters: of the digest, and of the output that the model reads. `tokens` estimates the
    size of what will replace the output, and `cost` what the call costs, in input tokens of the request's model."""

    at: str
    text_digest: str
    kind: ToolKind
    most: int
    source: int
    tokens: int = 0
    cost: float = 0.0


Policy = Callable[[Conversation, Context], Iterable[Edit | Want | DigestWant]]
