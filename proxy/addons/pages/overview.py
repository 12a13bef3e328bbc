"""The live page, gathered from the sums of the store: as values, as JSON, and drawn.

Laws
  All of it is of the viewer: of all tenants, or of one owner alone.
  Saved is an estimate, said with the error of what it is reckoned from; what a holdout measured is said to be measured.
"""

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from unicodedata import normalize
from urllib.parse import quote, urlencode

from msgspec.structs import asdict

from policies.model.summary_record import SummaryRecord
from policies.money.bills import FEWEST, ArmCounts, BillSums, ConversationRow, MeasuredSaving
from proxy.addons.pages.answers import CONVERSATIONS, PageParts, moment
from proxy.addons.pages.summaries import statuses_in
from proxy.drawing import charts
from proxy.drawing.charts import folded, row, rows, shortened
from proxy.drawing.figures import counted, pauses_in_words, percent, short, signed
from proxy.drawing.html import Imprint, Markup, Node, element, framed, headline, minute, section, table, together
from proxy.drawing.words import glossary, outcome, term
from proxy.identity.who import Grant
from proxy.memory import Key
from proxy.telemetry.metrics import MINUTES, AnswerCounts
from proxy.usage.report import TOOL_COLUMNS, UsageQuery, UsageReport, as_json, read_usage

DAYS = 30
LISTED = 20


class UpstreamState(NamedTuple):
    """An upstream, as this process sees it; seconds until the next try, where it could not be connected to."""

    name: str
    host: str
    answers: AnswerCounts
    next_try: float | None


@dataclass(frozen=True, slots=True)
class Overview:
    viewer: Grant
    at: float
    days: Sequence[tuple[str, BillSums]]
    """All days, the oldest first, those without a request too."""
    prefixes: Sequence[tuple[str, int, int]]
    """Outcome, requests, and tokens that were written again for it; most tokens first."""
    summaries: Sequence[tuple[Key, SummaryRecord]]
    conversations: Sequence[ConversationRow]
    following: float | None
    """The cursor of the conversations that follow, where there are any."""
    arms: ArmCounts | None = None
    measured: MeasuredSaving | None = None
    """The saving that it measures; None where it has too few conversations for that."""
    upstreams: Sequence[UpstreamState] = ()
    """In the order of the settings; none for who does not see all tenants, and may not use all of them either."""
    tools: UsageReport | None = None

    @property
    def today(self) -> BillSums:
        return self.days[-1][1]

    @property
    def whole(self) -> BillSums:
        return sum((sums for _, sums in self.days), BillSums())


async def overview(parts: PageParts, viewer: Grant) -> Overview:
    """The live page of this viewer. Raises ApiError where the store is in trouble."""
    now = parts.clock()
    dates = [(datetime.fromtimestamp(now, UTC) - timedelta(days=back)).date().isoformat() for back in range(DAYS)]
    query = UsageQuery("day", dates[-1], dates[0], viewer.tenant, viewer.owner)
    usage = await parts.ask("usage", read_usage(parts.store, query))
    tools = await parts.ask("usage", read_usage(parts.store, dataclasses.replace(query, by="tool")))
    conversations, following = await newest(parts, viewer, None, LISTED)
    keys = [Key(row.labels.tenant, row.conversation) for row in conversations]
    in_use = await asyncio.gather(*(_standing(parts, key, viewer, now) for key in keys))
    prefixes = [(name, *both) for name, both in usage.total.prefixes.items()]
    by_day = {row.name: row.sums for row in usage.rows}
    return Overview(
        viewer=viewer,
        at=now,
        days=[(day, by_day.get(day, BillSums())) for day in reversed(dates)],
        prefixes=sorted(prefixes, key=lambda each: (-each[2], -each[1])),
        summaries=[summary for each in in_use for summary in each],
        conversations=conversations,
        following=following,
        arms=usage.holdout,
        measured=usage.measured,
        tools=tools,
        upstreams=[
            UpstreamState(each.name, each.host, each.answers(), None if each.is_up else each.next_try)
            for each in (parts.telemetry.metrics.upstreams() if viewer.tenant is None else ())
        ],
    )


async def newest(
    parts: PageParts, viewer: Grant, before: float | None, most: int
) -> tuple[Sequence[ConversationRow], float | None]:
    """So many conversations, the newest first, and the cursor of those that follow. Raises ApiError."""
    query = parts.store.conversation_rows(viewer.tenant, viewer.owner, before, most + 1)
    rows = await parts.ask("conversation_rows", query)
    return rows[:most], rows[most - 1].at if len(rows) > most else None


async def _standing(parts: PageParts, key: Key, viewer: Grant, now: float) -> list[tuple[Key, SummaryRecord]]:
    records = await parts.ask("summaries", parts.store.summaries(key))
    visible = [record for record in records if viewer.owner in (None, record.owner)]
    if not visible:
        return []
    status_of = await parts.ask("newest_step", statuses_in(parts.store, key, visible, now))
    return [(key, each) for each in visible if each.id in status_of and status_of[each.id].state == "stands"]


def overview_json(view: Overview, version: str) -> dict[str, Any]:
    measured = view.measured
    share = {"share": measured.share, "low": measured.low, "high": measured.high} if measured else None
    return {
        **imprint_json("Narrows", view.at, version, covers(view)),
        "today": sums_json(view.today),
        "days": [{"day": day, **sums_json(sums)} for day, sums in view.days],
        "all_days": sums_json(view.whole),
        "holdout": view.arms and {"conversations": dataclasses.asdict(view.arms), "measured": share},
        "upstreams": [
            {"name": each.name, "host": each.host, "is_up": each.next_try is None, "next_try_seconds": each.next_try}
            | {"minutes": MINUTES, **each.answers._asdict()}
            for each in view.upstreams
        ],
        "prefixes": [dict(zip(("outcome", "requests", "rewritten"), each, strict=True)) for each in view.prefixes],
        "summaries": [
            {"tenant": key.tenant, "conversation": key.conversation, "kind": each.kind, "model": each.model}
            | {"created_at": moment(each.created_at), "messages": len(each.sources)}
            | {"tokens_before": each.tokens_before, "tokens_after": each.tokens_after}
            for key, each in view.summaries
        ],
        "tools": view.tools and as_json(view.tools)["rows"][:LISTED],
        **list_json(view.conversations, view.following),
    }


def covers(view: Overview) -> str:
    whose = "all tenants" if view.viewer.tenant is None else "the requests of your credential"
    return f"{whose}, {view.days[0][0]} to {view.days[-1][0]} (days in UTC)"


def imprint_json(name: str, at: float, version: str, what: str) -> dict[str, Any]:
    return {"name": name, "at": moment(at), "version": version, "covers": what}


def list_json(rows: Sequence[ConversationRow], following: float | None) -> dict[str, Any]:
    listed = [
        {"conversation": row.conversation, **asdict(row.labels), "arm": row.arm}
        | {"first_at": moment(row.first_at), "at": moment(row.at), **sums_json(row.sums)}
        for row in rows
    ]
    return {"conversations": listed, "next": following}


def sums_json(sums: BillSums) -> Mapping[str, Any]:
    return {**asdict(sums), "saved": sums.saved}


# --- The live page: what Narrows saved and what it did, drawn.

HOME = "/narrows/"
_HEADS = ("requests", "tokens", "baseline → paid", "saved")
_TERMS = (
    *("baseline", "calibration error", "cache share", "checkpoint", "estimate", "holdout", "original", "paid"),
    *("pauses", "prefix", "recall", "saved", "sent", "stands", "summaries", "tail-cut", "written again"),
)
_SAMPLES = {"paid": "paid", "summed": "summaries", "paid gone": "saved", "moved": "more than the baseline"}


def overview_page(view: Overview, version: str, is_logged_in: bool) -> str:
    return framed(
        "live",
        "What Narrows saved",
        Imprint(view.at, version, covers(view)),
        navigation(is_logged_in),
        _headline(view),
        _holdout(view),
        _upstreams(view),
        section("Day by day", _days(view)),
        section("What became of the prefix", _prefixes(view)),
        section("Recalls and summaries", _recalls(view.whole), _summaries(view)),
        section("Tools", _tools(view.tools)) if view.tools and view.tools.rows else "",
        section("Conversations, newest first", conversations(view.conversations), _more(view.following)),
        glossary(*_TERMS),
        has_forms=is_logged_in,
    )


def list_page(rows: Sequence[ConversationRow], following: float | None, imprint: Imprint, is_logged_in: bool) -> str:
    drawn = [conversations(rows), _more(following)]
    return framed("conversations", "Conversations", imprint, navigation(is_logged_in), drawn, has_forms=is_logged_in)


def navigation(is_logged_in: bool) -> Markup:
    links = [element("a", "Live", href=HOME), " ", element("a", "Conversations", href=CONVERSATIONS)]
    out: Node = ""
    if is_logged_in:
        out = element("form", element("button", "Log out", type="submit"), method="post", action=f"{HOME}logout")
    return element("nav", links, out, aria_label="pages")


def error_of(sums: BillSums) -> Node:
    if sums.baseline_error is None:
        why = "no request has been sent unedited after others of its conversation"
        return f"The baseline has not been checked yet: {why}."
    requests = counted(sums.checked, "request")
    words = f" of the baseline: {percent(sums.baseline_error)}, on {requests} that were not edited."
    return together(term("calibration error", "Calibration error"), words)


def pauses_of(sums: BillSums) -> Node:
    words = pauses_in_words(sums)
    return element("p", term("pauses", "Pauses"), f": {words}.", class_="aside") if words else ""


def link(key: Key) -> Markup:
    address = address_of(key.conversation)
    address += f"{'&' if '?' in address else '?'}{urlencode({'tenant': key.tenant})}"
    return element("a", shortened(key.conversation, 60), href=address)


def address_of(name: str, page: str = "") -> str:
    """Where a conversation is, or one of its pages; a name that cannot be in a path is a parameter."""
    below = f"/{page}" if page else ""
    plain = normalize("NFKC", name)  # as paths are checked
    if not (plain.strip(" .") and name.isprintable()) or any(character in plain for character in "/\\;%"):
        return f"{CONVERSATIONS}{below}?{urlencode({'id': name}, errors='surrogatepass')}"
    return f"{CONVERSATIONS}/{quote(name, safe='', errors='surrogatepass')}{below}"


def _headline(view: Overview) -> Markup:
    today, whole = view.today, view.whole
    share = f", {percent(abs(today.saved) / today.baseline)} of the " if today.baseline else " of the "
    cost_more = today.saved <= -5e-6
    what = ("more than without Narrows",) if cost_more else (term("saved"),)
    words = (
        *(" ", *what, " today, an ", term("estimate"), share, term("baseline")),
        f" ({signed(today.baseline)}); ",
        *(term("paid"), f" {signed(today.paid)} for {counted(today.requests, 'request')}"),
        *((", ", term("summaries"), f" {signed(today.summaries)}") if today.summaries else ()),
        ".",
    )
    marks = whole.saved_by_marks
    parts = f"In all {len(view.days)} days {signed(whole.saved)} saved: {signed(whole.saved - marks)} by compaction"
    parts += f", {signed(marks)} by cache marks." if abs(marks) >= 1e-9 else "."
    unknown = ""
    if whole.observed:
        unknown += f" Of {short(whole.observed)} prompt tokens that were only observed or held out,"
        unknown += f" {short(whole.observed_sent)} would have been sent."
    if whole.unpriced:
        unknown += f" {counted(whole.unpriced, 'request')} went to models of unknown price and are not in the dollars."
    if whole.estimated:
        unknown += f" The tokens of {counted(whole.estimated, 'request')} are estimated, because no usage was reported."
    return together(
        headline(signed(abs(today.saved)), *words),
        element("p", error_of(whole), class_="aside"),
        element("p", parts, unknown, class_="aside"),
        pauses_of(whole),
    )


def _holdout(view: Overview) -> Node:
    arms, measured = view.arms, view.measured
    if arms is None:
        return ""
    counts = f"{counted(arms.on, 'conversation')} compacted, {arms.holdout:,} passed as the client wrote them"
    counts += f"; {arms.left:,} in neither arm, because they came near the window." if arms.left else "."
    name = term("holdout", "Holdout")
    if measured is None:
        words = f": not measured yet; this needs {FEWEST} conversations in each arm. {counts}"
        return element("p", name, words, class_="aside")
    share, low, high = (percent(each) for each in (measured.share, measured.low, measured.high))
    end = max(abs(measured.low), abs(measured.high), 0.1)
    heads = ("saved", "measured, with a 95 % interval", f"−{percent(end)} to {percent(end)}", "interval")
    line = row(
        share,
        together(element("b", name), element("small", counts)),
        charts.interval(measured.low, measured.share, measured.high, end),
        element("span", f"{low} to {high}", class_="n"),
    )
    return section("Measured, not estimated", rows(heads, [line], "rows sight measured"))


def _upstreams(view: Overview) -> Node:
    """How upstreams do; nothing for who may not know of all of them."""
    if not view.upstreams:
        return ""
    lines: list[tuple[Node, Sequence[Node]]] = []
    for each in view.upstreams:
        state = "up" if each.next_try is None else f"cannot be reached; next attempt in {each.next_try:.0f} s"
        lines.append(([each.name, element("small", each.host)], [state, *(f"{count:,}" for count in each.answers)]))
    words = f"Replies that this process received in the last {MINUTES} minutes. A 4xx is usually a fault of the client."
    heads = ("upstream", "state", "1xx to 3xx", "4xx", "5xx", "no answer")
    return section("Upstreams", element("p", words, class_="aside"), table(heads, lines, "sessions"))


def _days(view: Overview) -> Markup:
    columns = [_parts(sums) for _, sums in view.days]
    most = max(sum(size for _, size in parts) for parts in columns)
    places = range(0, len(view.days), 7)
    ticks = [((at + 0.5) / len(view.days), view.days[at][0][5:]) for at in places]
    present = {name for parts in columns for name, size in parts if size}
    samples = charts.legend({name: words for name, words in _SAMPLES.items() if name in present})
    drawn = element("figure", charts.plot(charts.stacked_columns(columns), signed(most), ticks))
    days = [(day, sums) for day, sums in reversed(view.days) if sums.requests or sums.summaries or sums.pings]
    title = f"{counted(len(days), 'day')} with requests, as a table"
    lines = table(("day", *_HEADS), [(day, sums_cells(sums)) for day, sums in days], "sessions sums")
    return together(samples, drawn, folded(title, lines, len(days)))


def sums_cells(sums: BillSums) -> list[Node]:
    """The columns of what requests came to: their number, tokens, both bills, and the difference."""
    cached = f"{percent(sums.cached / sums.prompt)} cached" if sums.prompt else ""
    beside = f"plus summaries {signed(sums.summaries)}" if sums.summaries else ""
    return [
        f"{sums.requests:,}",
        [f"{short(sums.original)} → {short(sums.sent)}", element("small", cached)],
        [f"{signed(sums.baseline)} → {signed(sums.paid)}", element("small", beside)],
        signed(sums.saved),
    ]


def _parts(sums: BillSums) -> list[tuple[str, float]]:
    """The parts of the column of a day: as high as the baseline, or as what was paid where that is more."""
    over = max(0.0, -sums.saved)
    return [
        ("paid", max(0.0, sums.paid - over)),
        ("summed", max(0.0, sums.summaries - max(0.0, over - sums.paid))),
        ("moved", over),
        ("paid gone", max(0.0, sums.saved)),
    ]


def _prefixes(view: Overview) -> Markup:
    if not view.prefixes:
        return element("p", "No requests yet.")
    rows = [(outcome(name), [f"{count:,}", f"{rewritten:,}"]) for name, count, rewritten in view.prefixes]
    words = "How often each outcome occurred, and how many cached tokens had to be paid for as new."
    drawn = table(("outcome", "requests", "written again"), rows, "bill")
    return together(element("p", words, class_="aside"), drawn)


def _recalls(sums: BillSums) -> Markup:
    if not sums.rounds:
        return element("p", "No recalls yet.")
    words = f"{counted(sums.recalled, 'recall')} answered in {counted(sums.rounds, 'round')}"
    refused = f"; {sums.refused:,} asked for text that does not exist" if sums.refused else ""
    return element("p", words, f", {signed(sums.recalls)} of what was paid", refused, ".")


def _summaries(view: Overview) -> Markup:
    if not view.summaries:
        return element("p", "No summary is in use in the conversations below.")
    rows: list[tuple[Node, Sequence[Node]]] = []
    for key, each in view.summaries:
        tokens = f"{short(each.tokens_before)} → {short(each.tokens_after)}"
        written = (shortened(each.model, 40), minute(each.created_at), f"{len(each.sources):,}")
        rows.append((link(key), [each.kind, *written, tokens]))
    heads = ("summary in use in", "kind", "written by", "since", "messages", "tokens")
    return table(heads, rows, "sessions")


def _tools(report: UsageReport) -> Markup:
    lines = [(shortened(row.name, 60), row.tool_cells) for row in report.rows[:LISTED]]
    words = f"{' '.join(report.notes)} The {LISTED} that cost most are listed."
    return together(element("p", words, class_="aside"), table(("tool", *TOOL_COLUMNS), lines, "sessions"))


def conversations(listed: Sequence[ConversationRow]) -> Markup:
    if not listed:
        return element("p", "No conversations yet. A conversation appears some seconds after its first reply.")
    lines: list[tuple[Node, Sequence[Node]]] = []
    for each in listed:
        labels = each.labels
        words = filter(None, (shortened(labels.model, 40), labels.preset, shortened(labels.tenant, 12), each.arm))
        under = [element("small", minute(each.at)), element("small", ", ".join(words))]
        lines.append(([link(Key(labels.tenant, each.conversation)), under], sums_cells(each.sums)))
    return table(("conversation", *_HEADS), lines, "sessions sums")


def _more(following: float | None) -> Node:
    if following is None:
        return ""
    address = f"{CONVERSATIONS}?{urlencode({'before': repr(following)})}"
    return element("p", element("a", "Older conversations", href=address))
