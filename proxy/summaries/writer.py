"""One summary: what is asked for it, whether the answer may be used, and the record of it.

Laws
  An answer that may not be used leaves a record without a text, and with what was paid for it.
  Whatever grows with the history is done in a thread.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

from policies.model.summary_record import Criteria, Kind, SummaryRecord
from policies.presets import Writing
from proxy.config import Settings
from proxy.store import Key
from proxy.summaries.jobs import Draft, Order
from proxy.summaries.prompts import Prompt, prompt_of
from proxy.summaries.summarizer import Asking, Summarizer, Written


class Writer:
    """Makes records of orders."""

    def __init__(self, settings: Settings, summarizer: Summarizer, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._summarizer = summarizer
        self._clock = clock

    def making(self, dialect: str, model: str, policy: str, kind: Kind, writing: Writing) -> Criteria:
        """What summaries of this kind are made with now."""
        return self.made_with(dialect, model, policy, prompt_of(kind, writing.prompt), writing)

    def made_with(self, dialect: str, model: str, policy: str, prompt: Prompt, writing: Writing) -> Criteria:
        """What is made with this prompt, now."""
        required = self._summarizer.models(dialect, model, writing) if self._settings.summary_same_model else ()
        return Criteria(policy, prompt.version, required, self._settings.summary_ttl)

    async def write(self, order: Order[Any], known: Sequence[SummaryRecord]) -> SummaryRecord:
        """The record that came of it, used or rejected. Raises SummarizerError."""
        draft = await asyncio.to_thread(order.draft, known)
        most = order.most(self._settings.summary_tokens)
        instructions = order.prompt.filled(most)
        asking = Asking(instructions, draft.text, most, order.model, order.auth, order.dialect, order.writing)
        return await asyncio.to_thread(self._record, order, draft, await self._summarizer.write(asking), most)

    def _record(self, order: Order[Any], draft: Draft, written: Written, most: int) -> SummaryRecord:
        previous = draft.previous
        content = written.text.strip()
        before = sum(block.tokens + block.frame for block in draft.blocks)
        after = order.count(content)
        rejected = order.verdict(written, draft, before, after, most)
        record = SummaryRecord(
            id="",
            conversation=order.key.conversation,
            first=order.first,
            last=order.last,
            sources=draft.messages,
            model=written.model,
            content="" if rejected else content,
            tokens_before=before,
            tokens_after=0 if rejected else after,
            created_at=self._clock(),
            policy=order.policy,
            prompt=order.prompt.version,
            kind=order.kind,
            generation=order.want.generation if previous else 1,
            previous=previous.id if previous else "",
            rejected=rejected,
            owner=order.owner,
            spent=written.spent,
            lines=draft.lines,
        )
        return replace(record, id=_id(order.key, record))


def _id(key: Key, record: SummaryRecord) -> str:
    said = (key, record.first, record.last, record.generation, record.policy, record.prompt, record.kind)
    made = (record.model, record.content, record.rejected, record.created_at)
    return sha256(repr((said, made)).encode("utf-8", "surrogatepass")).hexdigest()[:16]
