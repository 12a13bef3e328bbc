"""The page of one conversation: its bills, its edits, what was recalled, and its summaries beside their sources.

Laws
  Figures are of the viewer's own requests; texts are for whoever may see the conversation, and only where a setting
  (`history`, `originals`) says that texts are stored for people.
  Everything is bounded: requests, recalls, summaries, sources, and the characters of each.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from policies.dialects import DIALECTS
from policies.dialects.deferring import searches
from policies.model.summary_record import SummaryRecord, SummaryStatus
from policies.money.bills import BillSums, RequestBill
from policies.recall import RecallCall, read
from proxy.addons.pages.answers import PageParts
from proxy.addons.pages.overview import address_of, error_of, imprint_json, navigation, pauses_of, sums_json
from proxy.addons.pages.summaries import provenance, statuses_in
from proxy.drawing import charts
from proxy.drawing.charts import figures, folded, row, rows, shortened
from proxy.drawing.figures import counted, money, percent, short, signed
from proxy.drawing.html import Imprint, Markup, Node, element, framed, headline, minute, section, together
from proxy.drawing.words import OUTCOMES, WHY, glossary, outcome, term
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
    record: SummaryRecord
    status: SummaryStatus | None
    sources: Sequence[SummarySource]
    more: int
    text: str | None = None
    """None where texts are not shown."""


class RecallView(NamedTuple):
    """A recall, by the reference and the part that the model asked for; its text where that is stored and readable."""

    call: RecallCall
    text: str | None = None


@dataclass(frozen=True, slots=True)
class ConversationView:
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
    """True where the reader may read a log of it."""

    @property
    def requests(self) -> Sequence[RequestBill]:
        return [bill for bill in self.bills if bill.sums.requests]

    @property
    def sums(self) -> BillSums:
        return sum((bill.sums for bill in self.bills), BillSums())

    @property
    def is_cut(self) -> bool:
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
    """None where there is nothing for this reader. Raises ApiError where the store is in trouble."""
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
    why_no_texts = ""
    if not (parts.settings.history or parts.settings.originals):
        why_no_texts = "Texts are shown where the setting `history` or `originals` is on; neither is."
    elif not reader.reads(key):
        why_no_texts = "Texts of this conversation are not for you to read: figures hold none of them."
    summaries = []
    for record in (each for each in records if not each.rejected):
        sources = [SummarySource(int(source.partition(":")[0])) for source in record.sources[:_SOURCES]]
        more = max(0, len(record.sources) - _SOURCES)
        summaries.append(SummaryView(record, status_of.get(record.id), sources, more))
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
    """The recalls of the model, by the anchor of the request."""
    anchors = [bill.anchor for bill in bills if bill.anchor and bill.sums.rounds][-_RECALLS:]
    if not anchors:
        return {}
    inserts = (await parts.ask("memory", parts.store.memory(key, anchors))).inserts
    calls = {
        anchor: [
            read(DIALECTS[insert.dialect].recall.called(call)[1])
            for insert in each
            for round_ in insert.rounds
            for call in round_.calls
            if not searches(call)
        ]
        for anchor, each in inserts.items()
    }
    refs = sorted({call.ref for each in calls.values() for call in each if call.ref})[:_RECALLS]
    texts = await asyncio.gather(*(_original(originals, key, owner, ref) for ref in refs))
    text_of = dict(zip(refs, texts, strict=True))
    return {anchor: [RecallView(call, text_of.get(call.ref)) for call in each] for anchor, each in calls.items()}


async def _original(originals: "Originals | None", key: Key, owner: str, ref: str) -> str | None:
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


def view_json(view: ConversationView, version: str) -> dict[str, Any]:
    return {
        **imprint_json("Narrows: a conversation", view.at, version, covers(view)),
        "conversation": view.key.conversation,
        "tenant": view.key.tenant,
        "sums": sums_json(view.sums),
        "requests": [_bill_json(bill, view.recalls.get(bill.anchor, ())) for bill in view.bills],
        "texts": view.why_no_texts or "shown",
        "summary_records": [
            {**provenance(each.record, each.status), "content": each.text, "sources": [*map(asdict, each.sources)]}
            for each in view.summaries
        ],
    }


def _bill_json(bill: RequestBill, recalls: Sequence[RecallView]) -> dict[str, Any]:
    own = {name: value for name, value in msgspec.structs.asdict(bill).items() if name not in ("labels", "sums")}
    texts = [{"ref": each.call.ref, "part": each.call.part, "text": each.text} for each in recalls]
    return {**own, **msgspec.structs.asdict(bill.labels), **sums_json(bill.sums), "recalled_texts": texts}


def covers(view: ConversationView) -> str:
    newest = f"the newest {MOST_BILLS:,} bills" if view.is_cut else "all requests"
    return f"{newest} of conversation {view.key.conversation[:60]}"


# --- the same, drawn ---

_TERMS = (
    *("baseline", "calibration error", "checkpoint", "estimate", "original", "paid", "pauses", "prefix", "recall"),
    *("saved", "sent", "stands", "summaries", "tail-cut", "written again"),
)
_CAPTION = (
    "Above: the tokens of each prompt; solid is what was sent, pale what the client wrote. Below: what became of the "
    "prefix; the taller the mark, the less of the prefix was kept."
)


def conversation_page(view: ConversationView, version: str, is_logged_in: bool) -> str:
    name = shortened(view.key.conversation, 60)
    return framed(
        name,
        f"Conversation {name}",
        Imprint(view.at, version, covers(view)),
        navigation(is_logged_in),
        _headline(view),
        _log(view) if view.is_logged else "",
        section("Request by request", _requests(view)),
        section("What happened, and why", _reasons(view)),
        section("Summaries and their sources", _summaries(view)),
        glossary(*_TERMS),
        has_forms=is_logged_in,
    )


def _headline(view: ConversationView) -> Markup:
    sums, labels = view.sums, view.requests[-1].labels if view.requests else None
    share = f", {percent(sums.saved / sums.baseline)} of the " if sums.baseline else " of the "
    words = (
        *(" ", term("saved"), " in all, an ", term("estimate"), share, term("baseline")),
        *(f" ({signed(sums.baseline)}); ", term("paid"), f" {signed(sums.paid)}, "),
        *(term("summaries"), f" {signed(sums.summaries)}."),
    )
    whose = ""
    if labels is not None:
        whose = f"{shortened(labels.model)}, preset {labels.preset}, tenant {shortened(labels.tenant, 12)}. "
    sizes = (
        f"{counted(sums.requests, 'request')}, {short(sums.original)} → {short(sums.sent)} prompt tokens, "
        f"{counted(sums.recalled, 'recall')} answered ({signed(sums.recalls)}). "
    )
    cut = "Older requests are no longer stored; they are neither listed nor in these sums." if view.is_cut else ""
    return together(
        headline(signed(sums.saved), *words),
        element("p", whose, sizes, cut, class_="aside"),
        element("p", error_of(sums), class_="aside"),
        pauses_of(sums),
    )


def _log(view: ConversationView) -> Markup:
    names = {"history": "its messages", "requests": "the requests as the model saw them", "session": "the session"}
    names["changes"] = "what changed in files"
    links = [element("a", text, href=address_of(view.key.conversation, name)) for name, text in names.items()]
    return element("p", "The log has ", [[link, ", "] for link in links[:-1]], links[-1], ".", class_="aside")


def _requests(view: ConversationView) -> Markup:
    requests = view.requests
    if not requests:
        return element("p", "No request has been billed yet.")
    sizes = [(bill.sums.original, bill.sums.sent, "ink") for bill in requests]
    most = max(max(before, after) for before, after, _ in sizes)
    prefixes = [bill.prefix for bill in requests]
    picture = together(charts.skyline(sizes), charts.strip(prefixes))
    lines = [
        _line(at, bill, before, most, view.recalls.get(bill.anchor, ()))
        for at, (before, bill) in enumerate(zip(["", *(bill.edits for bill in requests)], requests, strict=False), 1)
    ]
    heads = ("no.", "request", f"full width: {most:,} tokens", "tokens", "baseline → paid")
    drawn = charts.plot(picture, f"{short(most)} tokens", charts.count_ticks(len(requests)))
    return together(
        element("figure", drawn, element("figcaption", _CAPTION)),
        charts.legend_of_prefixes(prefixes),
        folded(f"{counted(len(requests), 'request')}, one bar each", rows(heads, lines, "rows bills"), 0),
    )


def _line(at: int, bill: RequestBill, before: str, most: int, recalls: Sequence[RecallView]) -> Markup:
    sums = bill.sums
    notes = [minute(bill.at), *_edits(bill.edits, before)]
    notes += [f"{sums.rewritten:,} tokens written again"] if sums.rewritten else []
    notes += [f"cache expired ({signed(sums.pause_cost)})"] if sums.expired else []
    notes += [f"cache kept over a pause (about {signed(sums.pause_saving)} saved)"] if sums.bridged else []
    notes += ["usage estimated"] if sums.estimated else []
    notes += ["unknown price"] if sums.unpriced else []
    notes += [f"{counted(sums.recalled, 'recall')} answered ({signed(sums.recalls)})"] if sums.rounds else []
    notes += [f"{counted(sums.refused, 'recall')} of text that does not exist"] if sums.refused else []
    drawn = [_recall(each) for each in recalls]
    label = [element("b", outcome(bill.prefix)), f" {bill.mode}", element("small", "; ".join(notes)), drawn]
    tokens = figures(sums.original, "tokens", sums.sent)
    bills = element("span", f"{signed(sums.baseline)} → {signed(sums.paid)}", class_="n")
    return row(str(at), label, charts.bar(sums.original, sums.sent, most, "ink"), tokens, bills)


def _edits(edits: str, before: str) -> list[str]:
    """The edits of a request by policy, and how many more they are than in the request before."""
    counts, earlier = (counts_of(each) for each in (edits, before))
    more = {name: count - earlier.get(name, 0) for name, count in counts.items()}
    return [f"{name} {count}{f' ({more[name]:+})' if more[name] else ''}" for name, count in counts.items()]


def counts_of(edits: str) -> dict[str, int]:
    """How many edits of each policy a request carries, from what its header says."""
    pairs = (each.partition("=") for each in edits.split(";") if each)
    return {name: int(count) for name, _, count in pairs if count.isdecimal()}


def _recall(view: RecallView) -> Markup:
    words = ["recalled ", element("code", view.call.ref or "no reference")]
    part = f", {shortened(view.call.part, 60)}" if view.call.part else ""
    if view.text is None:
        return element("small", words, part)
    return element("details", element("summary", words, part), element("pre", view.text))


def _reasons(view: ConversationView) -> Markup:
    """The outcomes of its prefix, and each policy that shortened something in the newest request."""
    prefixes = Counter(bill.prefix for bill in view.requests)
    items: list[Node] = [
        [element("dt", element("b", name or "not reported"), f" {counted(count, 'request')}"), element("dd", words)]
        for name, count in prefixes.items()
        if (words := OUTCOMES.get(name))
    ]
    newest = counts_of(view.requests[-1].edits) if view.requests else {}
    items += [
        [element("dt", element("b", name), f" {counted(n, 'edit')} in the newest request"), element("dd", WHY[name])]
        for name, n in newest.items()
        if name in WHY
    ]
    return element("dl", items) if items else element("p", "Nothing was shortened.")


def _summaries(view: ConversationView) -> Markup:
    if not view.summaries:
        return element("p", "This conversation has no summary.")
    note = element("p", view.why_no_texts, class_="aside") if view.why_no_texts else ""
    return together(note, [_summary(each) for each in reversed(view.summaries)])


def _summary(view: SummaryView) -> Markup:
    record = view.record
    state = ", ".join(filter(None, view.status)) if view.status else ""
    cost = f", {money(record.spent.known_dollars)}" if record.spent.calls else ""
    sizes = f"{counted(len(record.sources), 'message')}, {short(record.tokens_before)} → {short(record.tokens_after)}"
    by = f"{sizes} tokens, {minute(record.created_at)}, {shortened(record.model)}{cost}"
    head = element("p", element("b", record.kind), f" {state} ", element("small", by))
    if view.text is None:
        return element("div", head)
    more = element("p", f"… and {counted(view.more, 'message')} more.", class_="aside") if view.more else ""
    beside = element(
        "div",
        element("div", element("h3", "Its sources"), [*_sources(view.sources)], more),
        element("div", element("h3", "The summary"), element("pre", view.text)),
        class_="beside",
    )
    return element("div", head, beside)


def _sources(sources: Sequence[SummarySource]) -> Iterator[Markup]:
    """The messages of a summary; one line for those in a row whose texts are not there."""
    for is_there, group in groupby(sources, lambda each: each.text is not None):
        run = [*group]
        if is_there:
            for each in run:
                name = f"message {each.index} {each.role}".rstrip()
                yield element("details", element("summary", name), element("pre", each.text or ""))
        else:
            first, last = run[0].index, run[-1].index
            which = f"message {first}: its text is" if first == last else f"messages {first} to {last}: their texts are"
            yield element("p", f"{which} not on record (`history` keeps them).", class_="aside")
