"""A replayed session on a page: what was in sight, the bill, and what became of the prefix."""

from collections.abc import Iterator, Mapping

from proxy.lab.quality import Tally
from proxy.lab.replay.bills import REFUSED, Answered, Report
from proxy.lab.reports.charts import mark, requests, stack, strip, swatch
from proxy.lab.reports.contents import folded, named, row, rows
from proxy.lab.reports.drawing import UNKNOWN_PRICES, dollars, percent
from proxy.lab.reports.markup import Markup, element, together
from proxy.lab.reports.replays import recalls, summaries

SIGHTS: Mapping[str, str] = {
    "all": "all that turns used",
    "rare": "of these, said three times at most",
    "quoted": "old text that edits quote",
}
_STANDS: Mapping[str, str] = {"visible": "seen", "recoverable": "seen gone", "stubbed": "cut", "lost": "refused"}
"""Where what was used can stand, and how it is drawn."""


def faults(report: Report) -> Markup:
    """What went wrong in the replay, where anything did."""
    found = (
        (report.rejected, "refused as invalid"),
        (report.failed, "not answered"),
        (report.undeclared, "changed the prefix undeclared"),
        (report.failed_open, "failed open"),
        (report.recalls.refused, "recalls not answered"),
    )
    said = [f"{count:,} {what}" for count, what in found if count]
    if not said:
        return together()
    refusal = f". The first refusal: {named(report.refusal)}" if report.refusal else ""
    return element("p", element("strong", "Faults: "), ", ".join(said), refusal, class_="fault")


# --- in sight ---


def sight(report: Report) -> Markup:
    """Where that stood which later turns used."""
    tallies = {name: getattr(report.seen, name) for name in SIGHTS}
    lines = [_tallied(SIGHTS[name], tally) for name, tally in tallies.items()]
    heads = ("visible", "paths, identifiers, numbers", "full width: all of them", "used")
    samples = [element("li", swatch(drawn), " ", where) for where, drawn in _STANDS.items()]
    return together(element("ul", samples, class_="legend"), rows(heads, lines, "rows sight"))


def _tallied(label: str, tally: Tally) -> Markup:
    counts = {
        "visible": tally.visible,
        "recoverable": tally.recallable + tally.again,
        "stubbed": tally.stubbed,
        "lost": tally.lost,
    }
    drawn = stack([(_STANDS[where], count) for where, count in counts.items()], tally.used)
    said = (
        f"{tally.visible:,} visible, {counts['recoverable']:,} recoverable ({tally.recallable:,} by recall, "
        f"{tally.again:,} by running a tool again), {tally.stubbed:,} behind a stub without a way back, "
        f"{tally.lost:,} lost"
    )
    share = percent(tally.share) if tally.used else ""
    used = element("span", f"{tally.used:,}", element("span", " used", class_="unseen"), class_="n")
    return row(share, element("b", label), drawn, used, element("small", said))


# --- the bill ---


def bill(report: Report) -> Markup:
    """Doing nothing against Narrows."""
    known = "" if report.bill.prices.listed else UNKNOWN_PRICES
    head = element("tr", [element("th", text, scope="col") for text in ("", "doing nothing", "by Narrows", "ratio")])
    body = [
        element("tr", element("th", label, scope="row"), [element("td", text) for text in cells])
        for label, cells in _measures(report)
    ]
    extra = [recalls([report])] if report.recalls.rounds or report.recalls.rate else []
    extra += summaries([report]) if report.summaries.calls else []
    return together(
        element("table", element("thead", head), element("tbody", body), class_="bill"),
        element("p", f"At the prices of {named(report.model)}{known}.", class_="aside"),
        [element("p", f"{line[0].upper()}{line[1:]}.", class_="aside") for line in extra],
    )


def _measures(report: Report) -> Iterator[tuple[str, tuple[str, str, str]]]:
    baseline, done = report.baseline, report.bill
    yield "tokens sent", (f"{baseline.tokens:,}", f"{report.tokens:,}", _ratio(report.tokens, baseline.tokens))
    cached = [percent(each.cached / each.tokens if each.tokens else 0.0) for each in (baseline, done)]
    yield "of them read from the cache", (cached[0], cached[1], "")
    yield "largest prompt, tokens", (f"{baseline.peak:,}", f"{done.peak:,}", _ratio(done.peak, baseline.peak))
    yield "input bill", (f"${dollars(baseline.input)}", f"${dollars(report.input)}", f"{report.ratio:.3f}")
    yield (
        "whole bill",
        (f"${dollars(baseline.total)}", f"${dollars(report.total)}", _ratio(report.total, baseline.total)),
    )
    if calls := ", ".join(f"{times:,} {name.replace('_', ' ')}" for name, times in report.calls.items() if times):
        yield f"of it {calls}", ("", f"${dollars(report.spent)}", "")
    yield "worst ratio, had it ended at any request", ("", "", f"{report.worst:.3f}")


def _ratio(done: float, baseline: float) -> str:
    return f"{done / baseline:.3f}" if baseline else ""


# --- the prefix ---


def prefix(report: Report) -> Markup:
    """Request by request: the tokens, and what the reply said of the prefix."""
    words = list(dict.fromkeys(one.prefix for one in report.each))
    counts = {word: sum(one.prefix == word for one in report.each) for word in words}
    samples = [element("li", swatch(mark(word)[0]), f" {word} {count:,}") for word, count in counts.items()]
    given = sum(one.given_up for one in report.each)
    said = (
        f"{len(report.each):,} requests; {given:,} tokens that were in the provider's cache were given up. Above: the "
        "tokens of each prompt, solid as sent and pale as it would have been. Below: what its reply said of the "
        "prefix, the taller the less of it was kept."
    )
    figure = element("figure", requests(report.each), strip(report.each), element("figcaption", said))
    return together(figure, element("ul", samples, class_="legend"), _breaks(report))


def _breaks(report: Report) -> Markup:
    found = [(at, one) for at, one in enumerate(report.each, 1) if one.prefix not in ("first", "extended")]
    if not found:
        return element("p", "Every request began with the whole of the one before.")
    heads = ("request", "its reply said", "given up", "sent", "doing nothing")
    head = element("tr", [element("th", text, scope="col") for text in heads])
    body = [element("tr", _break(at, one)) for at, one in found]
    table = element("table", element("thead", head), element("tbody", body), class_="breaks")
    count = f"{len(found):,} {'request' if len(found) == 1 else 'requests'}"
    return folded(f"{count} that did not begin with the whole of the one before", table, len(found))


def _break(at: int, one: Answered) -> list[Markup]:
    sizes = ("", "", "") if one.prefix == REFUSED else (f"{one.given_up:,}", f"{one.sent:,}", f"{one.baseline:,}")
    cells = [element("td", text) for text in (one.prefix, *sizes)]
    return [element("th", str(at), scope="row"), *cells]
