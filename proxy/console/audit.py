"""The events of summaries and deletions, read from the store for people.

Law: no text of a conversation is in it, but for the texts of summaries where they are asked for.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from policies.model.summary_record import SummaryRecord, SummaryStatus
from proxy.addons.pages.answers import moment
from proxy.addons.pages.summaries import provenance, statuses_in
from proxy.console.arguments import AsJson
from proxy.console.output import console, print_json, printable, refusing
from proxy.console.read_store import StoreConfig, StoreSettings, StoreTenant, StoreUrl, read_store, settings_of
from proxy.drawing.figures import counted, money
from proxy.memory import Event, Key, Store, conversation_id

REASONS: Mapping[str, str] = {
    "age": "it is older than summaries may be",
    "asked": "a person asked for it",
    "claims": "it claims an order that no person gave",
    "fenced": "another process writes it now",
    "form": "no line of it is a sentence of a message, with its number",
    "frame": "it holds the marks of a summary",
    "garbled": "the answer could not be read",
    "invented": "it names something that the messages do not name",
    "larger": "it is no smaller than what it is about",
    "model": "another model is to write summaries now",
    "orders": "it orders its reader about",
    "originals": "from the messages themselves",
    "paused": "the summarizer is left alone after failures",
    "policy": "the preset, or a parameter of it, has changed",
    "prompt": "the instructions for summaries have changed",
    "reverses": "it says to do what was forbidden",
    "rolling": "from the summary before and the messages since",
    "source": "a message that it covers has changed",
    "window": "the prompt comes near its limit",
}
_LONGEST = 500


@dataclass(frozen=True, slots=True)
class AuditedSummary:
    tenant: str
    record: SummaryRecord
    status: SummaryStatus | None = None


@dataclass(frozen=True, slots=True)
class Audit:
    """The events, oldest first, each with its tenant, and the summaries of one conversation."""

    events: Sequence[tuple[str, Event]]
    summaries: Sequence[AuditedSummary] = ()

    def as_json(self, with_text: bool = False) -> dict[str, Any]:
        """Times are as ISO 8601 writes them; the texts of summaries are there only where asked for."""
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
    Raises ValueError where there is no store, or no answer."""
    name = conversation_id(conversation) if conversation is not None else None

    async def read(store: Store) -> Audit:
        events = await store.events(tenant, name, limit)
        summaries: list[AuditedSummary] = []
        # in each tenant that it may be in: events may be gone that would name it
        tenants = {tenant} if tenant else {each for each, _ in events} | {settings.tenant or "local"}
        for key in (Key(each, name) for each in sorted(tenants) if name is not None):
            records = await store.summaries(key)
            status_of = await statuses_in(store, key, records, time.time())
            summaries += [AuditedSummary(key.tenant, record, status_of.get(record.id)) for record in records]
        return Audit(events, summaries)

    return await read_store(settings, read)


def print_audit(console: Console, audit: Audit, with_text: bool = False) -> None:
    if not audit.events and not audit.summaries:
        console.print(Text("No summary has been made here, and nothing deleted."))
    if audit.events:
        console.print(Text(f"Events (times: {datetime.now().astimezone().tzname()})", style="bold"))
        table = Table.grid(Column(no_wrap=True), Column(overflow="fold"), padding=(0, 2))
        for tenant, event in audit.events:
            place = f"tenant {printable(tenant, 9)}" + f", conversation {event.conversation}" * bool(event.conversation)
            words = [event.name, *(f"{name} {in_words(value)}" for name, value in event.details.items()), place]
            table.add_row(_when(event.at), Text(printable(", ".join(words), _LONGEST)))
        console.print(table)
    if audit.summaries:
        console.print(Text("Summaries and digests", style="bold"))
        table = Table.grid(Column(no_wrap=True), Column(overflow="fold"), padding=(0, 2))
        for each in audit.summaries:
            lines = [about(each), *(f"| {line}" for line in each.record.content.splitlines() if with_text)]
            table.add_row(printable(each.record.id, 20), Text("\n".join(printable(line, _LONGEST) for line in lines)))
        console.print(table)


def about(each: AuditedSummary) -> str:
    """The state, range, cost and writer of a summary."""
    record, status = each.record, each.status
    state, reason = (
        (status.state, status.reason) if status else ("rejected" if record.rejected else "", record.rejected)
    )
    indexes = [source.partition(":")[0] for source in record.sources]
    words = (
        f"{record.kind} {state}".rstrip() + (f": {in_words(reason)}" if reason else ""),
        f"messages {indexes[0]} to {indexes[-1]}" if indexes else "no messages",
        f"{record.tokens_before:,} tokens" + ("" if record.rejected else f" became {record.tokens_after:,}"),
        f"cost {money(record.spent.known_dollars)} ({counted(record.spent.calls, 'call')})",
        f"{_when(record.created_at)} by {record.model} (tenant {printable(each.tenant, 9)})",
        f"policy {record.policy}, prompt {record.prompt}, generation {record.generation}",
        f"extends {record.previous}" if record.previous else "",
    )
    return "; ".join(filter(None, words))


def in_words(value: object) -> str:
    """The value of a detail; of a reason also what it means."""
    if isinstance(value, int | float):
        return f"{value:,}"
    return f"{value} ({REASONS[str(value)]})" if value in REASONS else str(value)


def _when(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S")


def audit(
    conversation: Annotated[
        str, typer.Argument(metavar="CONVERSATION", help="Only this conversation, and its summaries too.")
    ] = "",
    store: StoreUrl = "",
    config: StoreConfig = None,
    tenant: StoreTenant = "",
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="The newest so many events.")] = 50,
    text: Annotated[bool, typer.Option("--text", help="Show the texts of the summaries, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what became of summaries, and what was deleted.

    The newest events come last. With CONVERSATION also its summaries: what became of each, which messages they cover,
    by which model, policy and prompt, and what they cost. Reads the store itself, so that `narrows serve` need not run.
    NARROWS_STORE and NARROWS_CONFIG count here too. No text is shown but with --text.

    Columns: when, by this machine's clock; what happened, with its details. Of summaries: id; what became of it; which
    messages it covers (counted from 0), their tokens and its own; its cost; when and by whom it was written.
    """
    with refusing():
        settings = settings_of(StoreSettings, store, config)
        record = asyncio.run(read_audit(settings, conversation or None, tenant or None, limit))
    if as_json:
        print_json(record.as_json(text))
    else:
        print_audit(console(), record, text)
