"""The live page: what Narrows saved and what it did, drawn."""

from collections.abc import Sequence
from unicodedata import normalize
from urllib.parse import quote, urlencode

from policies.money.bills import FEWEST, BillSums, ConversationRow
from proxy.addons.pages.overview import Overview, covers
from proxy.addons.pages.targets import CONVERSATIONS
from proxy.drawing import charts
from proxy.drawing.charts import folded, row, rows, shortened
from proxy.drawing.figures import counted, percent, short, signed
from proxy.drawing.html import Imprint, Markup, Node, element, framed, headline, minute, section, table, together
from proxy.drawing.words import glossary, outcome, term
from proxy.memory import Key
from proxy.telemetry.metrics import MINUTES

HOME = "/narrows/"
_HEADS = ("requests", "tokens", "baseline → paid", "saved")
_TERMS = (
    *("baseline", "calibration error", "cache share", "checkpoint", "estimate", "holdout", "original", "paid"),
    *("prefix", "recall", "saved", "sent", "stands", "summaries", "tail-cut", "written again"),
)
_SAMPLES = {"paid": "paid", "summed": "summaries", "paid gone": "saved", "moved": "more than the baseline"}


def overview_page(view: Overview, version: str, is_logged_in: bool) -> str:
    """The live page."""
    name = "What Narrows saved"
    return framed(
        "live",
        name,
        Imprint(view.at, version, covers(view)),
        navigation(is_logged_in),
        _headline(view),
        _holdout(view),
        _upstreams(view),
        section("Day by day", _days(view)),
        section("What became of the prefix", _prefixes(view)),
        section("Recalls and summaries", _recalls(view.whole), _summaries(view)),
        section("Conversations, newest first", conversations(view.conversations), _more(view.following)),
        glossary(*_TERMS),
        has_forms=is_logged_in,
    )


def list_page(rows: Sequence[ConversationRow], following: float | None, imprint: Imprint, is_logged_in: bool) -> str:
    """Conversations, page by page."""
    drawn = [conversations(rows), _more(following)]
    return framed("conversations", "Conversations", imprint, navigation(is_logged_in), drawn, has_forms=is_logged_in)


def navigation(is_logged_in: bool) -> Markup:
    """The way to the other pages, and out."""
    links = [element("a", "Live", href=HOME), " ", element("a", "Conversations", href=CONVERSATIONS)]
    out: Node = ""
    if is_logged_in:
        out = element("form", element("button", "Log out", type="submit"), method="post", action=f"{HOME}logout")
    return element("nav", links, out, aria_label="pages")


def error_of(sums: BillSums) -> Node:
    """How well the baseline is known."""
    if sums.baseline_error is None:
        return (
            "The baseline has not been checked yet: no request has been sent unedited after others of its conversation."
        )
    requests = counted(sums.checked, "request")
    words = f" of the baseline: {percent(sums.baseline_error)}, on {requests} that were not edited."
    return together(term("calibration error", "Calibration error"), words)


def link(key: Key) -> Markup:
    """A link to the page of a conversation."""
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
    )


def _holdout(view: Overview) -> Node:
    """What the holdout measured, with its interval; no estimate."""
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
        down = "" if each.next_try is None else f"cannot be reached; next attempt in {each.next_try:.0f} s"
        lines.append(
            ([each.name, element("small", each.host)], [down or "up", *(f"{count:,}" for count in each.answers)])
        )
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
    days = [(day, sums) for day, sums in reversed(view.days) if sums.requests or sums.summaries]
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
    rows = [(outcome(each.outcome), [f"{each.requests:,}", f"{each.rewritten:,}"]) for each in view.prefixes]
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
    rows = [
        (
            link(each.key),
            [
                *(each.kind, shortened(each.model, 40), minute(each.created_at), f"{each.messages:,}"),
                f"{short(each.tokens_before)} → {short(each.tokens_after)}",
            ],
        )
        for each in view.summaries
    ]
    heads = ("summary in use in", "kind", "written by", "since", "messages", "tokens")
    return table(heads, rows, "sessions")


def conversations(listed: Sequence[ConversationRow]) -> Markup:
    """A list of conversations."""
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
