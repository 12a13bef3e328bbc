"""One summary: what is asked for it, whether the answer may be used, and the record of it.

Laws
  It is made of what the client sent, with the summary before it or without; never of that one alone.
  An answer that may not be used leaves a record without a text, and with what was paid for it.
  Whatever grows with the history is done in a thread.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256

from policies.context import NO_EXCEPTIONS, Exceptions, TokenCounter, Want
from policies.conversation import Block, Conversation
from policies.presets import Writing
from policies.staleness import Kind, Making, SummaryRecord, source_of
from policies.transcript import transcript
from policies.verdict import invented, verdict
from proxy.config import Settings
from proxy.prompts import prompt_of
from proxy.store import Key
from proxy.summarizer import Asking, Summarizer, Written

_ENTRY_TOKENS = 300
"""Tokens of a summary for people, at most: it is an entry in a list."""
_ENTRY_SHORTEST = 20
"""Characters of one: a few words do."""


@dataclass(frozen=True, slots=True)
class Task:
    """A summary that is wanted, and all that it takes to make it. `known` are records of the same beginning, among
    them the one that it goes on from."""

    key: Key
    conversation: Conversation
    want: Want
    model: str
    auth: Mapping[str, str] = field(repr=False)
    owner: str
    count: TokenCounter
    policy: str
    known: tuple[SummaryRecord, ...] = ()
    dialect: str = "openai_chat"
    exceptions: Exceptions = NO_EXCEPTIONS
    writing: Writing = field(default_factory=Writing)


@dataclass(frozen=True, slots=True)
class _Draft:
    """What a summary is made of: `span` are the blocks that it covers, those of `fresh` no summary has covered yet."""

    task: Task
    kind: Kind
    span: Sequence[int]
    fresh: Sequence[int]
    previous: SummaryRecord | None

    @property
    def blocks(self) -> tuple[Block, ...]:
        return tuple(self.task.conversation.blocks[i] for i in self.span)


class Writer:
    """Makes records of tasks."""

    def __init__(self, settings: Settings, summarizer: Summarizer, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._summarizer = summarizer
        self._clock = clock

    def making(self, dialect: str, model: str, policy: str, kind: Kind, writing: Writing) -> Making:
        """What summaries of this kind are made with now."""
        required = self._summarizer.models(dialect, model) if self._settings.summary_same_model else ()
        return Making(policy, prompt_of(kind, writing.prompt).version, required, self._settings.summary_ttl)

    async def write(self, task: Task, kind: Kind, known: tuple[SummaryRecord, ...]) -> SummaryRecord:
        """The record that came of it, used or rejected. Raises SummarizerError."""
        draft = _draft(task, kind, known)
        text = await asyncio.to_thread(_text, draft)
        most = self._most(task, kind)
        instructions = prompt_of(kind, task.writing.prompt).filled(most)
        asking = Asking(instructions, text, most, task.model, task.auth, task.dialect)
        return await asyncio.to_thread(self._record, draft, await self._summarizer.write(asking))

    def _most(self, task: Task, kind: Kind) -> int:
        most = task.writing.tokens or self._settings.summary_tokens
        return most if kind == "compaction" else min(most, _ENTRY_TOKENS)

    def _record(self, draft: _Draft, written: Written) -> SummaryRecord:
        task, previous = draft.task, draft.previous
        content = written.text.strip()
        before = sum(block.tokens + block.frame for block in draft.blocks)
        after = task.count(content)
        rejected = self._verdict(draft, written, before, after)
        record = SummaryRecord(
            id="",
            conversation=task.key.conversation,
            first=task.want.first,
            last=task.want.last,
            sources=_sources(draft),
            model=written.model,
            content="" if rejected else content,
            tokens_before=before,
            tokens_after=0 if rejected else after,
            created_at=self._clock(),
            policy=task.policy,
            prompt=prompt_of(draft.kind, task.writing.prompt).version,
            kind=draft.kind,
            generation=task.want.generation if previous else 1,
            previous=previous.id if previous else "",
            rejected=rejected,
            owner=task.owner,
            spent=written.spent,
        )
        return replace(record, id=_id(task.key, record))

    def _verdict(self, draft: _Draft, written: Written, before: int, after: int) -> str:
        sources = [text for block in draft.blocks for text in (block.text, block.tool) if text]
        most = self._most(draft.task, draft.kind)
        if draft.kind == "compaction":
            return verdict(written.text, written.end, sources, before, after, most)
        # for people it may be shorter, and need not be smaller than a conversation of a few words
        reason = verdict(written.text, written.end, sources, max(before, after + 1), after, most)
        if reason == "short" and len(written.text.strip()) >= _ENTRY_SHORTEST:
            return "invented" if invented(written.text, sources) else ""
        return reason


def span_of(task: Task) -> range:
    """The blocks that a summary of the task covers."""
    where = task.conversation.index
    return range(where[task.want.first], where[task.want.last] + 1)


def covers(record: SummaryRecord, task: Task) -> bool:
    """Whether it reaches as far into the history as is wanted."""
    where = task.conversation.index
    return record.first == task.want.first and where.get(record.last, -1) >= where.get(task.want.last, len(where))


def _draft(task: Task, kind: Kind, known: tuple[SummaryRecord, ...]) -> _Draft:
    span = span_of(task)
    previous = next((each for each in known if _is_previous(each, task)), None) if kind == "compaction" else None
    whole = [i for i in range(span.stop) if _is_covered(task, i, span)]
    since = task.conversation.index[task.want.since] if previous else 0
    return _Draft(task, kind, whole, [i for i in whole if i >= since], previous)


def _is_covered(task: Task, at: int, span: range) -> bool:
    """Whether a summary of the span stands for a block, too: for system text only where the preset says so."""
    block = task.conversation.blocks[at]
    return task.exceptions.may_go(block) if block.kind == "system" else at in span


def _is_previous(record: SummaryRecord, task: Task) -> bool:
    """Whether it is the one to go on from, and nothing is left out between it and what is new."""
    want, where = task.want, task.conversation.index
    since = where.get(want.since, len(where))
    right = record.id == want.previous and record.first == want.first and record.kind == "compaction"
    return right and record.content != "" and since <= where.get(record.last, -1) + 1 and since <= where[want.last]


def _text(draft: _Draft) -> str:
    before = draft.previous.content if draft.previous else ""
    return transcript(draft.task.conversation, draft.fresh, draft.task.count, before, draft.task.exceptions)


def _sources(draft: _Draft) -> tuple[str, ...]:
    """The messages that it covers."""
    covered = dict.fromkeys(block.message for block in draft.blocks)
    return tuple(source_of(draft.task.conversation, at) for at in covered)


def _id(key: Key, record: SummaryRecord) -> str:
    said = (key, record.first, record.last, record.generation, record.policy, record.prompt, record.kind)
    made = (record.model, record.content, record.rejected, record.created_at)
    return sha256(repr((said, made)).encode("utf-8", "surrogatepass")).hexdigest()[:16]
