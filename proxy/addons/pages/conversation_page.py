"""The page of one conversation: request by request, drawn."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from policies.money.bills import RequestBill
from proxy.addons.pages.conversation_view import ConversationView, RecallView, SummarySource, SummaryView, covers
from proxy.addons.pages.overview_page import address_of, error_of, navigation
from proxy.drawing import charts
from proxy.drawing.charts import figures, folded, row, rows, shortened
from proxy.drawing.figures import counted, money, percent, short, signed
from proxy.drawing.html import Imprint, Markup, Node, element, framed, headline, minute, section, together
from proxy.drawing.words import OUTCOMES, WHY, glossary, outcome, term

_TERMS = (
    *("baseline", "calibration error", "checkpoint", "estimate", "original", "paid", "prefix", "recall", "saved"),
    *("sent", "stands", "summaries", "tail-cut", "written again"),
)
_CAPTION = (
    "Above: the tokens of each prompt; solid is what was sent, pale what the client wrote. Below: what became of the "
    "prefix; the taller the mark, the less of the prefix was kept."
)


def conversation_page(view: ConversationView, version: str, is_logged_in: bool) -> str:
    """The page of one conversation."""
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
    )


def _log(view: ConversationView) -> Markup:
    """The way to what the log has of it."""
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
    return together(
        element(
            "figure",
            charts.plot(picture, f"{short(most)} tokens", charts.count_ticks(len(requests))),
            element("figcaption", _CAPTION),
        ),
        charts.legend_of_prefixes(prefixes),
        folded(f"{counted(len(requests), 'request')}, one bar each", rows(heads, lines, "rows bills"), 0),
    )


def _line(at: int, bill: RequestBill, before: str, most: int, recalls: Sequence[RecallView]) -> Markup:
    sums = bill.sums
    notes = [minute(bill.at), *_edits(bill.edits, before)]
    notes += [f"{sums.rewritten:,} tokens written again"] if sums.rewritten else []
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
    """What became of its prefix and why, and each policy that shortened something in the newest request."""
    prefixes = Counter(bill.prefix for bill in view.requests)
    items: list[Node] = [
        [element("dt", element("b", name or "not reported"), f" {counted(count, 'request')}"), element("dd", words)]
        for name, count in prefixes.items()
        if (words := OUTCOMES.get(name))
    ]
    newest = counts_of(view.requests[-1].edits) if view.requests else {}
    items += [
        [
            element("dt", element("b", name), f" {counted(count, 'edit')} in the newest request"),
            element("dd", WHY[name]),
        ]
        for name, count in newest.items()
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
