"""The events of summaries and deletions, read from the store for people.

Law: no text of a conversation is in it, but for the texts of summaries where they are asked for.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from policies.model.summary_record import SummaryRecord, SummaryStatus
from proxy.addons.pages.export import moment
from proxy.addons.pages.summaries import provenance, statuses_in
from proxy.lab.read_store import StoreSettings, read_store
from proxy.memory import Event, Key, Store, conversation_id


@dataclass(frozen=True, slots=True)
class AuditedSummary:
    """A summary or a digest, and what became of it where it is a summary for the prompt."""

    tenant: str
    record: SummaryRecord
    status: SummaryStatus | None = None


@dataclass(frozen=True, slots=True)
class Audit:
    """The events, oldest first, each with its tenant, and the summaries of one conversation."""

    events: Sequence[tuple[str, Event]]
    summaries: Sequence[AuditedSummary] = ()

    def as_json(self, with_text: bool = False) -> dict[str, Any]:
        """As `--json` prints it: times as ISO 8601 writes them; the texts of summaries only where asked for."""
        events = [
            {
                "tenant": tenant,
                "at": moment(event.at),
                "conversation": event.conversation,
                "event": event.name,
                "details": dict(event.details),
            }
            for tenant, event in self.events
        ]
        summaries = [
            {
                "tenant": each.tenant,
                **provenance(each.record, each.status),
                **({"content": each.record.content} if with_text else {}),
            }
            for each in self.summaries
        ]
        return {"events": events, "summaries": summaries}


async def read_audit(
    settings: StoreSettings, conversation: str | None = None, tenant: str | None = None, limit: int = 50
) -> Audit:
    """The newest so many events of one conversation or all, of one tenant or all; the summaries of one conversation.

    Raises ValueError where there is no store, or no answer.
    """
    return await read_store(settings, partial(_audit, settings, conversation, tenant, limit))


async def _audit(
    settings: StoreSettings, conversation: str | None, tenant: str | None, limit: int, store: Store
) -> Audit:
    conversation = conversation_id(conversation) if conversation is not None else None
    events = await store.events(tenant, conversation, limit)
    summaries: list[AuditedSummary] = []
    if conversation is not None:
        # in each tenant that it may be in: events may be gone that would name it
        tenants = {tenant} if tenant else {each for each, _ in events} | {settings.tenant or "local"}
        for each in sorted(tenants):
            key = Key(each, conversation)
            records = await store.summaries(key)
            status_of = await statuses_in(store, key, records, time.time())
            summaries += [AuditedSummary(each, record, status_of.get(record.id)) for record in records]
    return Audit(events, summaries)
