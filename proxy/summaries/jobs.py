"""Jobs of a summarizer: a summary of turns, for the prompt or for people, or a digest of one output.

Laws
  A job holds all that is needed to do it, and recognizes the records that satisfy it.
  A summary is written from what the client sent, with or without the summary before it; never from that one alone.
  A digest is written from one output and its call: it is valid wherever the same owner sends the same output.
  The instructions are versioned files: another text is another version, and what the old one gave is stale.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.resources import files
from types import MappingProxyType
from typing import ClassVar, get_args

from policies.context import NO_EXCEPTIONS, DigestWant, Exceptions, TokenCounter, Want
from policies.model.conversation import Block, Conversation
from policies.model.identifiers import mentioned
from policies.model.summary_record import Kind, SummaryRecord, sources_of
from policies.money.bills import Labels
from policies.rules.digest import section, source_text
from policies.text.summary_checks import End, Quotations, verdict
from policies.text.transcript import transcript
from policies.tools import ToolKind
from proxy.memory import Key
from proxy.summaries.endpoints import ModelRequest
from proxy.summaries.summarizer import GeneratedText

_WORDS_PER_TOKEN = 0.7
"""Few: names and numbers take more tokens than prose."""
_CHARACTERS_PER_TOKEN = 4
_HISTORY_TOKENS = 300
"""Tokens of a summary for people, at most: it is an entry in a list."""
_SHORT = 20
"""Characters that such an entry, or a digest, must have at least."""

Details = Mapping[str, str | int | float]
Place = tuple[Key, str]
"""The name of a job while it runs, and of its records in the cache."""


@dataclass(frozen=True, slots=True)
class SummaryPrompt:
    """The instructions of one kind of summary, with a placeholder for the limit in words or characters."""

    version: str
    text: str

    def filled(self, most: int) -> str:
        """The text for an answer of at most `most` tokens."""
        text = self.text.replace("{words}", str(int(most * _WORDS_PER_TOKEN)))
        return text.replace("{characters}", str(most * _CHARACTERS_PER_TOKEN))

    def limit_in(self, filled: str) -> int:
        """How many words or characters `filled` allows, if it is these instructions with a limit; else 0."""
        before, _, after = self.text.replace("{words}", "{characters}").partition("{characters}")
        limit = filled.removeprefix(before).removesuffix(after)
        return int(limit) if limit.isdecimal() and filled == before + limit + after else 0


def _read(version: str) -> SummaryPrompt:
    return SummaryPrompt(version, (files(__package__) / "prompts" / f"{version}.md").read_text("utf-8"))


PROMPTS: Mapping[Kind, SummaryPrompt] = MappingProxyType(
    {"compaction": _read("compaction-2"), "history": _read("history-1")}
)
_READ_AS: Mapping[ToolKind, ToolKind] = {"report": "web", "instructions": "file"}
"""Kinds without instructions of their own: these stay as they are, but where there is no room."""
DIGEST_PROMPTS: Mapping[ToolKind, SummaryPrompt] = MappingProxyType(
    {kind: _read(f"digest-{_READ_AS.get(kind, kind)}-1") for kind in get_args(ToolKind)}
)
_FRAME = _read("frame-2")
"""Says which part is data: added to a prompt from the configuration."""


def prompt_of(kind: Kind, own: str = "") -> SummaryPrompt:
    """The instructions for a kind of summary; `own` are those of a preset, which replace them."""
    if not own:
        return PROMPTS[kind]
    version = sha256(own.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return SummaryPrompt(f"own-{version}-2", f"{own}\n\n{_FRAME.text}")


@dataclass(frozen=True, slots=True)
class Draft:
    """The material for a summary: `text` is sent to the model; the answer may name only what `sources` hold."""

    text: str
    sources: Sequence[str]
    blocks: Sequence[Block]
    messages: tuple[str, ...]
    previous: SummaryRecord | None = None
    lines: tuple[int, int] = (0, 0)
    """In a file: the first and the last line that the answer leaves out, because they stay beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job(ABC):
    key: Key
    conversation: Conversation
    request: ModelRequest
    """For whom a model is asked; what is to be written is added when the job is done (`write_request`)."""
    count: TokenCounter
    policy: str
    records: tuple[SummaryRecord, ...] = ()
    """Records that may satisfy the job, or that it may extend."""
    received: Conversation | None = None
    """The conversation as the client sent it, where recall exchanges were put back into the other one."""

    def sources(self, messages: Sequence[int]) -> tuple[str, ...]:
        """These messages as a record names them."""
        return sources_of(self.conversation, messages, self.received or self.conversation)

    @property
    def labels(self) -> Labels:
        """Whose bill its cost is on."""
        asks, preset = self.request, self.policy.rpartition(":")[0]
        return Labels(tenant=self.key.tenant, owner=asks.owner, model=asks.model, preset=preset, api=asks.dialect)

    @property
    @abstractmethod
    def blocks(self) -> range:
        """The blocks that it is about."""

    @property
    def span(self) -> Mapping[str, int]:
        """The indexes of the first message that it is about, and of the last, in the request of the client."""
        first, last = (self.conversation.blocks[at].message for at in (self.blocks[0], self.blocks[-1]))
        ends = [int(source.partition(":")[0]) for source in self.sources(range(first, last + 1))]
        return {"since": ends[0], "until": ends[-1]} if ends else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryJob(_Job):
    """A summary of turns, of kind `compaction` or `history`; its record covers the blocks `first` to `last`."""

    want: Want
    kind: Kind = "compaction"
    exceptions: Exceptions = NO_EXCEPTIONS
    event: ClassVar[str] = "summary"
    """How the names of its events begin."""

    @property
    def place(self) -> Place:
        """A job that is started twice at one place runs once."""
        return self.key, self.first if self.kind == "compaction" else f"{self.kind}:{self.first}:{self.last}"

    @property
    def first(self) -> str:
        return self.want.first

    @property
    def last(self) -> str:
        return self.want.last

    @property
    def blocks(self) -> range:
        places = self.conversation.index
        return range(places[self.first], places[self.last] + 1)

    @property
    def prompt(self) -> SummaryPrompt:
        return prompt_of(self.kind, self.request.writing.prompt)

    def most(self, tokens: int) -> int:
        """Tokens that the answer may have, where the settings say `tokens`."""
        allowed = self.request.writing.tokens or tokens
        limit = self.want.most if self.kind == "compaction" else _HISTORY_TOKENS
        return min(allowed, limit or allowed)

    def fits(self, record: SummaryRecord) -> bool:
        """True where a record of this kind satisfies the job: it reaches at least as far into the history. A rejected
        one may, because it was paid for. People get one of exactly these messages, and may try it again."""
        if self.kind == "history" and (record.last != self.last or record.rejected):
            return False
        places = self.conversation.index
        return record.first == self.first and places.get(record.last, -1) >= places.get(self.last, len(places))

    def details(self) -> Details:
        """The details of its events."""
        first, last = (self.conversation.blocks[at].message for at in (self.blocks[0], self.blocks[-1]))
        ends: Details = {"first": self.first, "last": self.last, "messages": last - first + 1}
        return {"reason": self.want.reason, **ends, **self.span}

    def draft(self, records: Sequence[SummaryRecord]) -> Draft:
        """The material; the summary to extend is one of the records. Takes time that grows with the history."""
        conversation = self.conversation
        previous = next((record for record in records if self._extends(record)), None)
        # system text only where the preset says that a summary may stand for it, too
        own, may_fold = self.blocks, self.exceptions.may_fold_system
        all_before = enumerate(conversation.blocks[: own.stop])
        span = [i for i, block in all_before if (may_fold(block) if block.kind == "system" else i in own)]
        since, before = (conversation.index[self.want.since], previous.content) if previous else (0, "")
        text = transcript(conversation, [i for i in span if i >= since], self.count, before, self.exceptions)
        blocks = tuple(conversation.blocks[i] for i in span)
        messages = self.sources(list(dict.fromkeys(block.message for block in blocks)))
        sources = [text for block in blocks for text in (block.text, block.tool) if text]
        return Draft(text, sources, blocks, messages, previous)

    def verdict(self, text: str, end: End, draft: Draft, content: str, before: int, after: int, most: int) -> str:
        """Why an answer must not be used; empty where it may be. Sizes are in tokens: of the blocks, of the content,
        and the most that it may have."""
        if self.kind == "compaction":
            return verdict(text, end, draft.sources, before, after, most, content=content)
        # for people it may be shorter, and need not be smaller than a conversation of a few words
        return verdict(text, end, draft.sources, max(before, after + 1), after, most, shortest=_SHORT)

    def content(self, text: str, draft: Draft, most: int) -> str:
        """The part of an answer that is stored; of one for the prompt, with what its lines quote."""
        if self.kind != "compaction":
            return text
        previous = draft.previous.content if draft.previous else ""
        return Quotations(draft.blocks, previous).of(text, most, self.count)

    def _extends(self, record: SummaryRecord) -> bool:
        """True where this is the summary to extend, and no block is left out between it and the new ones."""
        want, places = self.want, self.conversation.index
        if self.kind != "compaction" or record.kind != "compaction" or not record.content:
            return False
        since = places.get(want.since, len(places))
        is_meant = record.id == want.previous and record.first == want.first
        return is_meant and since <= places.get(record.last, -1) + 1 and since <= places[want.last]


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestJob(_Job):
    """A digest of one output; its members mean the same as those of SummaryJob."""

    want: DigestWant
    kind: ClassVar[Kind] = "digest"
    event: ClassVar[str] = "digest"

    @property
    def place(self) -> Place:
        return digest_place(self.key.tenant, self.request.owner, self.first)

    @property
    def first(self) -> str:
        return self.want.text_digest

    @property
    def last(self) -> str:
        return self.want.at

    @property
    def blocks(self) -> range:
        at = self.conversation.index[self.last]
        return range(at, at + 1)

    @property
    def prompt(self) -> SummaryPrompt:
        return DIGEST_PROMPTS[self.want.kind]

    def most(self, tokens: int) -> int:
        return -(-self.want.most // _CHARACTERS_PER_TOKEN)

    def fits(self, record: SummaryRecord) -> bool:
        return record.first == self.first

    def details(self) -> Details:
        characters = len(self._block.text)
        return {"tool": self.want.kind, "first": self.first, "last": self.last, "characters": characters, **self.span}

    def draft(self, records: Sequence[SummaryRecord]) -> Draft:
        conversation, block, want = self.conversation, self._block, self.want
        call = conversation.blocks[block.answers].text if block.answers is not None else ""
        names = mentioned(conversation, conversation.ends[max(0, conversation.steps - 2)] - 1, conversation.steps - 1)
        sections = section(block.text, want.kind, want.source, names)
        text = source_text(block.text, want.kind, call, want.source, sections)
        lines = (sections.first, sections.last) if sections else (0, 0)
        return Draft(text, (text, block.tool), (block,), self.sources([block.message]), lines=lines)

    def verdict(self, text: str, end: End, draft: Draft, content: str, before: int, after: int, most: int) -> str:
        """Sizes are compared in characters, because the limit of a digest is in characters. An output may order and
        claim what it likes, because its digest stands where it stood: only what it does not name is an invention."""
        whole, characters = len(self._block.text), len(text.strip())
        return verdict(text, end, draft.sources, whole, characters, self.want.most, shortest=_SHORT)

    def content(self, text: str, draft: Draft, most: int) -> str:
        """Of an answer that is a little too long the first lines: errors that this leaves out are added there."""
        short = text[: self.want.most]
        return text if text == short else (short.rpartition("\n")[0] or short).rstrip()

    @property
    def _block(self) -> Block:
        return self.conversation.blocks[self.blocks.start]


Job = SummaryJob | DigestJob


def write_request(job: Job, records: Sequence[SummaryRecord], tokens: int) -> tuple[Draft, ModelRequest]:
    """The material, and what a model is asked for it; `tokens` are those that the settings allow for a summary. Takes
    time that grows with the history."""
    draft, most = job.draft(records), job.most(tokens)
    instructions = job.prompt.filled(most)
    size = job.count(instructions) + job.count(draft.text)
    return draft, replace(job.request, instructions=instructions, text=draft.text, tokens=size, most=most)


def record_of(job: Job, draft: Draft, answer: GeneratedText, most: int, at: float) -> SummaryRecord:
    """The record of an answer that came then (seconds since 1970). Takes time that grows with the history."""
    previous, content = draft.previous, job.content(answer.text.strip(), draft, most)
    before = sum(block.tokens + block.frame for block in draft.blocks)
    after = job.count(content)
    rejected = job.verdict(answer.text, answer.end, draft, content, before, after, most)
    record = SummaryRecord(
        id="",
        conversation=job.key.conversation,
        first=job.first,
        last=job.last,
        sources=draft.messages,
        model=answer.model,
        content="" if rejected else content,
        tokens_before=before,
        tokens_after=0 if rejected else after,
        created_at=at,
        policy=job.policy,
        prompt=job.prompt.version,
        kind=job.kind,
        generation=job.want.generation if isinstance(job, SummaryJob) and previous else 1,
        previous=previous.id if previous else "",
        rejected=rejected,
        owner=job.request.owner,
        spent=answer.spent,
        lines=draft.lines,
    )
    name = (job.key, record.first, record.last, record.generation, record.policy, record.prompt, record.kind)
    answered = (record.model, record.content, record.rejected, record.created_at)
    return replace(record, id=sha256(repr((name, answered)).encode("utf-8", "surrogatepass")).hexdigest()[:16])


def digest_place(tenant: str, owner: str, digest: str) -> Place:
    """The place of the digest of an output, by the hash of its text: the same in all conversations of an owner."""
    return Key(tenant, ""), f"digest:{owner}:{digest}"
