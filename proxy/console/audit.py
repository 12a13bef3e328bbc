"""The events of summaries and deletions, read from the store for people.

Law: no text of a conversation is in it, but for the texts of summaries where they are asked for.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from policies.model.summary_record import SummaryRecord, SummaryStatus
from proxy.addons.pages.export import moment
from proxy.addons.pages.summaries import provenance, statuses_in
from proxy.console.arguments import AsJson
from proxy.console.output import console, explains_columns, print_json, print_last_line, printable, refusing
from proxy.console.read_store import StoreConfig, StoreSettings, StoreUrl, read_store, store_settings
from proxy.drawing.figures import dollars
from proxy.memory import Event, Key, Store, conversation_id

_LAST_LINE = """
    Messages are counted from 0, as in the request. A cost is that of the model that wrote, at list prices. `--text`
    shows the texts of summaries.
"""


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


# --- for a terminal ---

_STALE: Mapping[str, str] = {
    "source": "a message that it covers has changed",
    "policy": "the preset, or a parameter of it, has changed",
    "prompt": "the instructions for summaries have changed",
    "model": "another model is to write summaries now",
    "age": "it is older than summaries may be",
}
_REJECTED: Mapping[str, str] = {
    "empty": "it is empty",
    "short": "it is too short to say anything",
    "long": "it is too long",
    "larger": "it is no smaller than what it is about",
    "cut": "it was cut off",
    "refusal": "the model refused",
    "calls": "it is a call of a tool",
    "reasoning": "it holds thoughts only",
    "frame": "it holds the marks of a summary",
    "invented": "it names something that the messages do not name",
    "orders": "it orders its reader about",
    "claims": "it claims an order that no person gave",
    "reverses": "it says to do what was forbidden",
    "form": "no line of it is a sentence of a message, with its number",
    "other": "it ended in an unknown way",
}
_FAILED: Mapping[str, str] = {
    "timeout": "there was no answer in time",
    "limited": "the summarizer is limiting its rate",
    "server": "the summarizer is in trouble",
    "refused": "the summarizer refused the request",
    "garbled": "the answer could not be read",
    "unreachable": "the summarizer cannot be reached",
    "paused": "the summarizer is left alone after failures",
    "budget": "the budget for summaries is used up",
    "busy": "too many summaries are being written",
    "stopped": "Narrows was shutting down, or the conversation was deleted",
    "fenced": "another process writes it now",
}
_WANTED: Mapping[str, str] = {
    "originals": "from the messages themselves",
    "rolling": "from the summary before and the messages since",
    "window": "because the prompt comes near its limit",
    "asked": "for a person who asked for it",
}
REASONS: Mapping[str, Mapping[str, str]] = {
    "wanted": _WANTED,
    "rejected": _REJECTED,
    "failed": _FAILED,
    "stale": _STALE,
}
"""What a reason means, by what became of the summary."""
_STATES: Mapping[str, str] = {
    "stands": "stands in the newest request",
    "ready": "is ready, and waits for its moment",
    "stale": "is stale: {why}",
    "superseded": "was superseded by a newer one",
    "branch": "covers messages that the newest request does not have",
    "rejected": "was rejected: {why}",
}
_BUDGETS: Mapping[str, str] = {
    "conversation": "what one conversation may cost",
    "tenant": "what a tenant may cost in a day",
    "day": "what all may cost in a day",
}
_KINDS: Mapping[str, str] = {"compaction": "for the prompt", "history": "for people", "digest": "of one output"}
_CENTS = 0.0001
"""Dollars: less is no figure for people."""
_LONGEST = 500
"""Characters of a sentence."""


def print_audit(console: Console, audit: Audit, with_text: bool = False) -> None:
    """The events, then the summaries; in words where there are none."""
    if not audit.events and not audit.summaries:
        console.print(Text("No summary has been made here, and nothing deleted."))
        return
    records = {(each.tenant, each.record.id): each.record for each in audit.summaries}
    places = {(tenant, event.conversation) for tenant, event in audit.events}
    if audit.events:
        where = f" in {_place(*next(iter(places)))}" if len(places) == 1 else ""
        console.print(_lines(f"What happened{where} (times: {datetime.now().astimezone().tzname()})", style="bold"))
        table = Table.grid(Column(no_wrap=True), Column(overflow="fold"), padding=(0, 2))
        for tenant, event in audit.events:
            record = records.get((tenant, str(event.details.get("id"))))
            place = _place(tenant, event.conversation) if len(places) > 1 else ""
            table.add_row(_when(event.at), _lines(sentence(event, record), place))
        console.print(table)
    if audit.summaries:
        console.print(Text(f"{chr(10) if audit.events else ''}Its summaries and digests", style="bold"))
        table = Table.grid(Column(no_wrap=True), Column(overflow="fold"), padding=(0, 2))
        for each in audit.summaries:
            texts = each.record.content.splitlines() if with_text else ()
            table.add_row(printable(each.record.id, 20), _lines(*_about(each), *(f"| {text}" for text in texts)))
        console.print(table)
    print_last_line(console, _LAST_LINE)


def sentence(event: Event, record: SummaryRecord | None = None) -> str:
    """An event in words; `record` is the summary that it names, where that is there."""
    details, (subject, _, outcome) = event.details, event.name.partition(".")
    id, model, about = details.get("id", ""), details.get("model", "a model"), _range_of(event, record)
    why, cost = _reason(outcome, str(details.get("reason", ""))), _cost(details)
    is_for_people = " for people" if details.get("kind") == "history" else ""
    match event.name:
        case "conversation.deleted":
            return "Everything that was stored of the conversation was deleted."
        case "tenant.deleted":
            return f"Everything that was stored of {details.get('conversations', 'all')} conversations was deleted."
        case "summary.budget":
            limit = _BUDGETS.get(str(details.get("limit")), "the budget")
            return f"No more summaries are made for now: {limit}, {_money(_amount(details))}, is used up."
        case "agreement":
            itself = "did" if details.get("noise") == "same" else "did not"
            with_ = f"With Narrows the model did the same as {details.get('same')} of 2 replies without"
            return f"Sampled: {with_}, which {itself} agree."
        case "summary.adopted":
            return f"Summary {id} stands in the prompt from now on."
        case "digest.adopted":
            return "A digest stands for an output from now on."
        case "summary.stale":
            return f"Summary {id} may not be used any more: {why}."
        case "summary.wanted":
            return f"A summary{is_for_people}{about} is asked for, {why}."
        case "digest.wanted":
            return f"A digest{about} is asked for: {_number(details.get('characters'))} characters of an output."
        case "summary.made" | "digest.made":
            sizes = f"{_number(details.get('before'))} tokens became {_number(details.get('after'))}"
            return f"{subject.title()} {id}{is_for_people}{about} was written by {model}: {sizes}. {cost}".strip()
        case "summary.rejected" | "digest.rejected":
            return f"The {subject} {id}{about} by {model} was rejected: {why}. {cost}".strip()
        case "summary.failed" | "digest.failed":
            return f"No {subject}{about} came: {why}. {cost}".strip()
    return ", ".join([event.name, *(f"{name} {value}" for name, value in details.items())])


def messages(indexes: tuple[object, object]) -> str:
    """A range of messages, by their indexes in the request."""
    first, last = indexes
    return f"message {first}" if first == last else f"messages {first} to {last}"


def _place(tenant: str, conversation: str) -> str:
    return f"{conversation} (tenant {printable(tenant, 9)})" if conversation else f"tenant {printable(tenant, 9)}"


def _range_of(event: Event, record: SummaryRecord | None) -> str:
    """Of which messages an event speaks, as the end of a phrase; empty where nobody can say."""
    details = event.details
    if "since" in details and "until" in details:
        return f" of {messages((details['since'], details['until']))}"
    return f" of {messages(_ends(record))}" if record and record.sources else ""


def _ends(record: SummaryRecord) -> tuple[str, str]:
    indexes = [source.partition(":")[0] for source in record.sources]
    return indexes[0], indexes[-1]


def _about(each: AuditedSummary) -> Iterator[str]:
    """What a summary is, what it covers and cost, and who wrote it."""
    record, spent = each.record, each.record.spent
    kind = f"{'a digest' if record.kind == 'digest' else 'a summary'} {_KINDS[record.kind]}"
    state = each.status.state if each.status else "rejected" if record.rejected else ""
    why = _reason(state, each.status.reason if each.status else record.rejected)
    yield f"{kind}, {_STATES[state].format(why=why)}" if state else kind
    became = "" if record.rejected else f", which became {record.tokens_after:,}"
    covers = messages(_ends(record)) if record.sources else "no messages"
    calls = f"{spent.calls} call{'' if spent.calls == 1 else 's'}"
    price = "unknown" if spent.known_dollars is None else _money(spent.known_dollars)
    yield f"{covers}, {record.tokens_before:,} tokens{became}; cost: {price} ({calls})"
    extends = f", extends {record.previous}" if record.previous else ""
    yield f"{_when(record.created_at)} by {record.model} (tenant {printable(each.tenant, 9)})"
    yield f"policy {record.policy}, prompt {record.prompt}, generation {record.generation}{extends}"


def _reason(outcome: str, reason: str) -> str:
    """A reason in words; the word itself where it has none."""
    return REASONS.get(outcome, {}).get(reason, reason or "no reason is on record")


def _cost(details: Mapping[str, str | int | float]) -> str:
    if "dollars" in details:
        return f"Cost: {_money(_amount(details))}."
    return "Cost: unknown." if "price" in details else ""


def _amount(details: Mapping[str, str | int | float]) -> float:
    amount = details.get("dollars")
    return amount if isinstance(amount, int | float) else 0.0


def _money(amount: float) -> str:
    return f"less than ${_CENTS}" if 0 < amount < _CENTS else f"${dollars(amount)}"


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "some"


def _when(at: float) -> str:
    """A time as a clock in this place shows it."""
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S")


def _lines(*texts: str, style: str = "") -> Text:
    return Text("\n".join(printable(text, _LONGEST) for text in texts if text), style=style)


@explains_columns(
    """
    Columns: when, by this machine's clock; what happened, with its reason and cost. Of summaries: id; what became
    of it; which messages it covers (counted from 0), their tokens and its own; its cost; when and by whom it was
    written.
    """
)
def audit(
    conversation: Annotated[
        str, typer.Argument(metavar="CONVERSATION", help="Only this conversation, and its summaries too.")
    ] = "",
    store: StoreUrl = "",
    config: StoreConfig = None,
    tenant: Annotated[
        str, typer.Option(metavar="NAME", help="Only this tenant, whole as --json prints it. Default: all.")
    ] = "",
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="The newest so many events.")] = 50,
    text: Annotated[bool, typer.Option("--text", help="Show the texts of the summaries, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what became of summaries, and what was deleted.

    The newest events come last. With CONVERSATION also its summaries: what became of each, which messages they cover,
    by which model, policy and prompt, and what they cost. Reads the store itself, so that `narrows serve` need not run.
    NARROWS_STORE and NARROWS_CONFIG count here too. No text is shown but with --text.
    """
    with refusing():
        settings = store_settings(store, config)
        record = asyncio.run(read_audit(settings, conversation or None, tenant or None, limit))
    if as_json:
        print_json(record.as_json(text))
    else:
        print_audit(console(), record, text)
