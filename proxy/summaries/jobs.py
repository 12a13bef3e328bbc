"""What is wanted of a summarizer: a summary of turns, for the prompt or for people, or a digest of one output.

Laws
  A task says all that it takes to carry it out, and how its records are known again.
  A summary is made of what the client sent, with the summary before it or without; never of that one alone.
  A digest is made of one output and its call: it is as good wherever the same owner is given the same output.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

from policies.context import NO_EXCEPTIONS, DigestWant, Exceptions, TokenCounter, Want
from policies.model.conversation import Block, Conversation
from policies.model.identifiers import mentioned
from policies.model.summary_record import Kind, SummaryRecord, source_of
from policies.presets import Writing
from policies.rules.digest import section, told
from policies.text.summary_checks import SHORTEST, verdict
from policies.text.transcript import transcript
from proxy.store import Key
from proxy.summaries.prompts import DIGESTS, Prompt, prompt_of
from proxy.summaries.summarizer import Written

_ENTRY_TOKENS = 300
"""Tokens of a summary for people, at most: it is an entry in a list."""
_FEW = 20
"""Characters of an entry, or of a digest: a few words do."""
_LETTERS = 4
"""Characters that count as a token of a digest."""

Details = Mapping[str, str | int | float]
Place = tuple[Key, str]
"""Under which name something is being made, and is at hand once it is."""
W = TypeVar("W", Want, DigestWant)


@dataclass(frozen=True, slots=True)
class Draft:
    """What a model is shown, `text`; all that it may name, `sources`; and what it is of: these blocks and messages. Of
    a file the lines from the first to the last of `lines` are not for it to say: they stay as they are."""

    text: str
    sources: Sequence[str]
    blocks: Sequence[Block]
    messages: tuple[str, ...]
    previous: SummaryRecord | None = None
    lines: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Order(ABC, Generic[W]):
    """Something that is wanted, and all that it takes to make it. `known` are records that it may go on from."""

    key: Key
    conversation: Conversation
    want: W
    model: str
    auth: Mapping[str, str] = field(repr=False)
    owner: str
    count: TokenCounter
    policy: str
    known: tuple[SummaryRecord, ...] = ()
    dialect: str = "openai_chat"
    exceptions: Exceptions = NO_EXCEPTIONS
    writing: Writing = field(default_factory=Writing)
    kind: Kind = "compaction"

    event: ClassVar[str]
    """What its events are about."""

    @property
    @abstractmethod
    def place(self) -> Place:
        """Where it is at hand: what is wanted twice there is made once."""

    @property
    @abstractmethod
    def lease(self) -> str:
        """The right to make it, in its conversation."""

    @property
    @abstractmethod
    def first(self) -> str:
        """What its records begin with."""

    @property
    @abstractmethod
    def last(self) -> str:
        """What its records end with."""

    @property
    @abstractmethod
    def prompt(self) -> Prompt:
        """What is told to whoever writes it."""

    @abstractmethod
    def most(self, tokens: int) -> int:
        """Tokens that it may have, where the settings allow so many."""

    @abstractmethod
    def fits(self, record: SummaryRecord) -> bool:
        """Whether a record of its kind is what is wanted."""

    @abstractmethod
    def noted(self) -> Details:
        """What its events say of it."""

    @abstractmethod
    def draft(self, known: Sequence[SummaryRecord]) -> Draft:
        """What it is made of."""

    @abstractmethod
    def verdict(self, written: Written, draft: Draft, before: int, after: int, most: int) -> str:
        """Why an answer may not be used; empty where it may. The sizes are in tokens."""


@dataclass(frozen=True, slots=True)
class Task(Order[Want]):
    """A summary of turns is wanted, of kind `compaction` or `history`."""

    event = "summary"

    @property
    def place(self) -> Place:
        return self.key, self.first if self.kind == "compaction" else f"{self.kind}:{self.first}:{self.last}"

    @property
    def lease(self) -> str:
        return f"{'summary' if self.kind == 'compaction' else self.kind}:{self.first}"

    @property
    def first(self) -> str:
        return self.want.first

    @property
    def last(self) -> str:
        return self.want.last

    @property
    def prompt(self) -> Prompt:
        return prompt_of(self.kind, self.writing.prompt)

    def most(self, tokens: int) -> int:
        allowed = self.writing.tokens or tokens
        return allowed if self.kind == "compaction" else min(allowed, _ENTRY_TOKENS)

    def fits(self, record: SummaryRecord) -> bool:
        """Whether it reaches as far into the history as is wanted; one that was rejected counts, because it was paid
        for. People get what covers exactly these messages, and may have it tried again."""
        if self.kind == "history" and (record.last != self.last or record.rejected):
            return False
        where = self.conversation.index
        return record.first == self.first and where.get(record.last, -1) >= where.get(self.last, len(where))

    def noted(self) -> Details:
        span, blocks = self._span, self.conversation.blocks
        messages = blocks[span.stop - 1].message - blocks[span.start].message + 1
        return {"reason": self.want.reason, "first": self.first, "last": self.last, "messages": messages}

    def draft(self, known: Sequence[SummaryRecord]) -> Draft:
        conversation, compacts = self.conversation, self.kind == "compaction"
        previous = next((each for each in known if self._goes_on(each)), None) if compacts else None
        span = [i for i in range(self._span.stop) if self._is_covered(i)]
        since = conversation.index[self.want.since] if previous else 0
        before = previous.content if previous else ""
        text = transcript(conversation, [i for i in span if i >= since], self.count, before, self.exceptions)
        blocks = tuple(conversation.blocks[i] for i in span)
        covered = dict.fromkeys(block.message for block in blocks)
        messages = tuple(source_of(conversation, at) for at in covered)
        return Draft(
            text, [said for block in blocks for said in (block.text, block.tool) if said], blocks, messages, previous
        )

    def verdict(self, written: Written, draft: Draft, before: int, after: int, most: int) -> str:
        if self.kind == "compaction":
            return verdict(written.text, written.end, draft.sources, before, after, most, SHORTEST)
        # for people it may be shorter, and need not be smaller than a conversation of a few words
        return verdict(written.text, written.end, draft.sources, max(before, after + 1), after, most, _FEW)

    @property
    def _span(self) -> range:
        """The blocks that it covers."""
        where = self.conversation.index
        return range(where[self.first], where[self.last] + 1)

    def _is_covered(self, at: int) -> bool:
        """Whether a summary of the span stands for a block, too: for system text only where the preset says so."""
        block = self.conversation.blocks[at]
        return self.exceptions.may_fold_system(block) if block.kind == "system" else at in self._span

    def _goes_on(self, record: SummaryRecord) -> bool:
        """Whether it is the one to go on from, and nothing is left out between it and what is new."""
        want, where = self.want, self.conversation.index
        since = where.get(want.since, len(where))
        right = record.id == want.previous and record.first == want.first and record.kind == "compaction"
        return right and record.content != "" and since <= where.get(record.last, -1) + 1 and since <= where[want.last]


@dataclass(frozen=True, slots=True)
class Digest(Order[DigestWant]):
    """A digest of one output is wanted."""

    kind: Kind = "digest"

    event = "digest"

    @property
    def place(self) -> Place:
        return digest_place(self.key.tenant, self.owner, self.first)

    @property
    def lease(self) -> str:
        return f"digest:{self.first}"

    @property
    def first(self) -> str:
        return self.want.text_digest

    @property
    def last(self) -> str:
        return self.want.at

    @property
    def prompt(self) -> Prompt:
        return DIGESTS[self.want.kind]

    def most(self, tokens: int) -> int:
        return -(-self.want.most // _LETTERS)

    def fits(self, record: SummaryRecord) -> bool:
        return record.first == self.first

    def noted(self) -> Details:
        return {"tool": self.want.kind, "first": self.first, "last": self.last, "characters": len(self._block.text)}

    def draft(self, known: Sequence[SummaryRecord]) -> Draft:
        said, block = self.conversation, self._block
        call = said.blocks[block.answers].text if block.answers is not None else ""
        named = mentioned(said, said.ends[max(0, said.steps - 2)] - 1, said.steps - 1)
        kept = section(block.text, self.want.kind, self.want.source, named)
        text = told(block.text, self.want.kind, call, self.want.source, kept)
        lines = (kept.first, kept.last) if kept else (0, 0)
        return Draft(text, (text, block.tool), (block,), (source_of(said, block.message),), lines=lines)

    def verdict(self, written: Written, draft: Draft, before: int, after: int, most: int) -> str:
        size, sources = len(written.text.strip()), draft.sources
        return verdict(written.text, written.end, sources, len(self._block.text), size, self.want.most, _FEW)

    @property
    def _block(self) -> Block:
        return self.conversation.blocks[self.conversation.index[self.want.at]]


def digest_place(tenant: str, owner: str, said: str) -> Place:
    """Where a digest is at hand: in whichever conversation the same owner is given the same."""
    return Key(tenant, ""), f"digest:{owner}:{said}"
