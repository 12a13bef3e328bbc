"""What the page of one conversation shows: its bills, its edits, what was recalled, and its summaries beside their
sources.

Laws
  Figures are of the viewer's own requests; texts are for whoever may see the conversation, and only where a setting
  (`history`, `originals`) says that texts are stored for people.
  Everything is bounded: requests, recalls, summaries, sources, and the characters of each.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from policies.dialects import DIALECTS
from policies.model.edits import Insert
from policies.model.summary_record import SummaryRecord, SummaryStatus
from policies.money.bills import BillSums, RequestBill
from policies.recall import RecallCall, read
from proxy.addons.pages.answers import PageParts
from proxy.addons.pages.overview import imprint_json, sums_json
from proxy.addons.pages.summaries import provenance, statuses_in
from proxy.errors import ApiError
from proxy.identity.who import Grant
from proxy.memory import MESSAGES, Key

if TYPE_CHECKING:
    from proxy.addons.archive.texts import Originals

MOST_BILLS = 1_000
"""Of a conversation the store has no more."""
_RECALLS, _SOURCES, _LONGEST = 50, 60, 4_000
"""Requests whose recalls are shown, messages beside a summary, and characters of each text."""


@dataclass(frozen=True, slots=True)
class SummarySource:
    """A message that a summary covers; its text where that is stored and may be read."""

    index: int
    role: str = ""
    text: str | None = None


@dataclass(frozen=True, slots=True)
class SummaryView:
    """A summary, what became of it, and what it was written from."""

    record: SummaryRecord
    status: SummaryStatus | None
    sources: Sequence[SummarySource]
    more: int
    """Sources that are not shown."""
    text: str | None
    """None where texts are not shown."""


@dataclass(frozen=True, slots=True)
class RecallView:
    """A recall, by the reference and the part that the model asked for; its text where that is stored and readable."""

    call: RecallCall
    text: str | None = None


@dataclass(frozen=True, slots=True)
class ConversationView:
    """The page of one conversation as values."""

    key: Key
    at: float
    bills: Sequence[RequestBill]
    """Of requests and of summaries, the oldest first."""
    recalls: Mapping[str, Sequence[RecallView]]
    """By the anchor of the request."""
    summaries: Sequence[SummaryView]
    why_no_texts: str
    """Empty where texts are shown."""
    is_logged: bool
    """Whether the reader may read a log of it."""

    @property
    def requests(self) -> Sequence[RequestBill]:
        return [bill for bill in self.bills if bill.sums.requests]

    @property
    def sums(self) -> BillSums:
        return sum((bill.sums for bill in self.bills), BillSums())

    @property
    def is_cut(self) -> bool:
        """Whether there may have been older bills."""
        return len(self.bills) >= MOST_BILLS


@dataclass(frozen=True, slots=True)
class Reader:
    """Whoever asks: whose figures it may see, and which texts it may read, if any."""

    figures: Grant
    texts: Grant | None
    owner: str

    def reads(self, key: Key) -> bool:
        return self.texts is not None and self.texts.tenant == key.tenant


async def conversation_view(
    parts: PageParts, originals: "Originals | None", key: Key, reader: Reader
) -> ConversationView | None:
    """What is shown of a conversation to this reader; None where there is nothing. Raises ApiError where the store is
    in trouble."""
    figures, now = reader.figures, parts.clock()
    if figures.tenant not in (None, key.tenant):
        return None
    bills = await parts.ask("request_bills", parts.store.request_bills(key))
    bills = [bill for bill in bills if figures.owner in (None, bill.labels.owner)]
    records = await parts.ask("summaries", parts.store.summaries(key))
    records = [record for record in records if figures.owner in (None, record.owner)]
    if not bills and not records:
        return None
    status_of = await parts.ask("newest_step", statuses_in(parts.store, key, records, now))
    why_no_texts = _why_no_texts(parts, key, reader)
    summaries = [_summary(record, status_of.get(record.id)) for record in records if not record.rejected]
    recalls: Mapping[str, Sequence[RecallView]] = {}
    if not why_no_texts and reader.texts is not None:
        summaries = await _with_texts(parts, key, summaries, reader.texts)
        recalls = await _recalls(parts, originals, key, bills, reader.owner)
    return ConversationView(
        key=key,
        at=now,
        bills=bills,
        recalls=recalls,
        summaries=summaries,
        why_no_texts=why_no_texts,
        is_logged=parts.settings.history and not why_no_texts,
    )


def _why_no_texts(parts: PageParts, key: Key, reader: Reader) -> str:
    if not (parts.settings.history or parts.settings.originals):
        return "Texts are shown where the setting `history` or `originals` is on; neither is."
    if not reader.reads(key):
        return "Texts of this conversation are not for you to read: figures hold none of them."
    return ""


def _summary(record: SummaryRecord, status: SummaryStatus | None) -> SummaryView:
    indexes = [int(source.partition(":")[0]) for source in record.sources]
    sources = [SummarySource(index) for index in indexes[:_SOURCES]]
    return SummaryView(record, status, sources, max(0, len(indexes) - _SOURCES), None)


async def _with_texts(parts: PageParts, key: Key, summaries: Sequence[SummaryView], grant: Grant) -> list[SummaryView]:
    """The summaries with their texts, and those of their sources where the log has them."""
    listed = await parts.ask("history", parts.store.list_texts(key, MESSAGES)) if parts.settings.history else []
    visible = grant.visible((str(text.about["owner"]), text) for text in listed)
    logged = {str(text.about.get("digest")): text for text in visible}
    wanted = [name.partition(":")[2] for each in summaries for name in each.record.sources[:_SOURCES]]
    names = [logged[digest].name for digest in dict.fromkeys(wanted) if digest in logged]
    texts = await parts.ask("history", parts.store.texts(key, MESSAGES, names)) if names else {}

    def source(name: str) -> SummarySource:
        index, _, digest = name.partition(":")
        if digest not in logged or logged[digest].name not in texts:
            return SummarySource(int(index))
        entry = logged[digest]
        return SummarySource(int(index), str(entry.about["role"]), _cut(texts[entry.name]))

    return [
        replace(each, text=_cut(each.record.content), sources=[source(s) for s in each.record.sources[:_SOURCES]])
        if grant.visible([(each.record.owner, each)])
        else each
        for each in summaries
    ]


async def _recalls(
    parts: PageParts, originals: "Originals | None", key: Key, bills: Sequence[RequestBill], owner: str
) -> Mapping[str, Sequence[RecallView]]:
    """What the model asked for, by the anchor of the request."""
    anchors = [bill.anchor for bill in bills if bill.anchor and bill.sums.rounds][-_RECALLS:]
    if not anchors:
        return {}
    inserts = (await parts.ask("memory", parts.store.memory(key, anchors))).inserts
    calls = {anchor: [call for insert in each for call in _calls(insert)] for anchor, each in inserts.items()}
    refs = sorted({call.ref for each in calls.values() for call in each if call.ref})[:_RECALLS]
    texts = await asyncio.gather(*(_original(originals, key, owner, ref) for ref in refs))
    text_of = dict(zip(refs, texts, strict=True))
    return {anchor: [RecallView(call, text_of.get(call.ref)) for call in each] for anchor, each in calls.items()}


async def _original(originals: "Originals | None", key: Key, owner: str, ref: str) -> str | None:
    """What a reference stands for, where this owner has sent it."""
    if originals is None:
        return None
    try:
        return _cut((await originals.find(key.tenant, owner, ref, key.conversation)).text)
    except ApiError as error:
        if error.status == 503:
            raise
        return None


def _cut(text: str) -> str:
    """The beginning of a long text, with how much of it is missing."""
    more = len(text) - _LONGEST
    return f"{text[:_LONGEST]}\n… and {more:,} more characters" if more > 0 else text


def _calls(insert: Insert) -> list[RecallCall]:
    """The recalls of an exchange."""
    arguments = DIALECTS[insert.dialect].recall.arguments
    return [read(arguments(call)) for each in insert.rounds for call in each.calls]


def view_json(view: ConversationView, version: str) -> dict[str, Any]:
    """The page of one conversation as JSON."""
    return {
        **imprint_json("Narrows: a conversation", view.at, version, covers(view)),
        "conversation": view.key.conversation,
        "tenant": view.key.tenant,
        "sums": sums_json(view.sums),
        "requests": [_bill_json(bill, view.recalls.get(bill.anchor, ())) for bill in view.bills],
        "texts": view.why_no_texts or "shown",
        "summary_records": [_summary_json(each) for each in view.summaries],
    }


def covers(view: ConversationView) -> str:
    """What the page covers, in words."""
    newest = f"the newest {MOST_BILLS:,} bills" if view.is_cut else "all requests"
    return f"{newest} of conversation {view.key.conversation[:60]}"


def _bill_json(bill: RequestBill, recalls: Sequence[RecallView]) -> dict[str, Any]:
    fields = {name: value for name, value in msgspec.structs.asdict(bill).items() if name not in ("labels", "sums")}
    recalled = [{"ref": each.call.ref, "part": each.call.part, "text": each.text} for each in recalls]
    return {**fields, **msgspec.structs.asdict(bill.labels), **sums_json(bill.sums), "recalled_texts": recalled}


def _summary_json(each: SummaryView) -> dict[str, Any]:
    texts = [{"index": source.index, "role": source.role, "text": source.text} for source in each.sources]
    return {**provenance(each.record, each.status), "content": each.text, "sources": texts}
