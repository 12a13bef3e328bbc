"""The part of a page that shows a replayed session: what was in sight, the bill, and what became of the prefix."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from proxy.console.output import printable
from proxy.drawing import charts
from proxy.drawing.charts import asides, figures, folded, legend, row, rows, shortened, skyline, stack, strip
from proxy.drawing.figures import counted, money, percent, short
from proxy.drawing.html import Markup, Node, element, table, together
from proxy.drawing.words import outcome, term
from proxy.lab.breakdown import TOOLS, MessageSize
from proxy.lab.quality import Tally
from proxy.lab.replay.report import REFUSED, Report, RequestResult
from proxy.lab.reports.sentences import against_nothing, recalls, recorded_usage, summaries
from proxy.lab.results import Compared, ComparedBill

# --- the pictures of requests and their messages ---

KINDS: Mapping[str, str] = {
    TOOLS: "tool schemas",
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "call": "call: the arguments of a tool",
    "result": "result: the output of a tool",
    "opaque": "opaque: images, thinking and the like",
}
"""What the kinds of a message are, in the order of every stack."""


def stack_of_kinds(tokens: Mapping[str, int], scale: int) -> Markup:
    """One bar of the kinds of blocks, each in its colour."""
    return stack(((kind_class(kind), tokens.get(kind, 0)) for kind in KINDS), scale)


def legend_of_kinds(present: Collection[str]) -> Markup:
    """What the colours of bars mean, for the kinds that there are."""
    return legend({kind_class(kind): meaning for kind, meaning in KINDS.items() if kind in present})


def message_columns(sizes: Sequence[MessageSize]) -> Markup:
    """One column for each message, so that many are seen at once."""
    return skyline([(size.tokens.before, size.tokens.after, kind_class(size.kind)) for size in sizes])


def request_columns(results: Sequence[RequestResult]) -> Markup:
    """One column for each request: its tokens as sent, and behind it as they would have been; below it, one mark: what
    its reply said of the prefix."""
    columns = skyline([(result.tokens_sent.without, result.tokens_sent.with_, "ink") for result in results])
    return together(columns, strip([result.prefix for result in results]))


def kind_class(kind: str) -> str:
    """The class of a kind, which says its colour."""
    return f"k-{kind}" if kind in KINDS else "k-other"


TALLIES: Mapping[str, str] = {
    "all": "all that later turns used",
    "rare": "of these, rare ones (at most three earlier occurrences)",
    "at_risk_rare": "of these, last seen more than five turns ago",
    "quoted": "old text that edits quote",
    "quoted_lines": "lines of old text",
    "at_risk_quoted_lines": "of these, last seen more than five turns ago",
}
_SAMPLES: Mapping[str, str] = {"seen": "visible", "seen gone": "recoverable", "cut": "stubbed", "refused": "lost"}
"""How it is drawn where what was used can stand."""


def faults(report: Report) -> Markup:
    """What went wrong in the replay, where anything did."""
    counts = (
        (report.validity_errors, "refused as invalid"),
        (report.unanswered, "not answered"),
        (report.undeclared_prefix_changes, "changed the prefix without declaring it"),
        (report.failed_open, "failed open"),
        (report.recalls.refused, "recalls not answered"),
    )
    words = [f"{count:,} {what}" for count, what in counts if count]
    if not words:
        return together()
    refusal = f". The first refusal: {shortened(report.first_refusal)}" if report.first_refusal else ""
    return element("p", element("strong", "Faults: "), ", ".join(words), refusal, class_="fault")


# --- in sight ---


def sight(report: Report) -> Markup:
    """Where that stood which later turns used."""
    lines: list[Markup] = []
    for name, label in TALLIES.items():
        tally: Tally = getattr(report.used_by_later_turns, name)
        counts = (tally.visible, tally.recoverable, tally.behind_a_stub_without_way_back, tally.lost)
        drawn = charts.stack(zip(_SAMPLES, counts, strict=True), tally.used)
        words = (
            f"{tally.visible:,} visible, {tally.recoverable:,} recoverable ({tally.recoverable_by_recall:,} by recall, "
            f"{tally.recoverable_by_running_again:,} by running a tool again), "
            f"{tally.behind_a_stub_without_way_back:,} replaced by a stub that names no way back, {tally.lost:,} lost"
        )
        share = percent(tally.share_visible) if tally.used else ""
        named = [element("b", label), element("small", words)]
        lines.append(row(share, named, drawn, figures(tally.used, "used")))
    heads = ("visible", "paths, identifiers, numbers", "full width: all of them", "used")
    return together(charts.legend(_SAMPLES), rows(heads, lines, "rows sight"))


# --- the bill ---


def bill(report: Report) -> Markup:
    """Doing nothing against Narrows."""

    def measure(both: Compared) -> tuple[str, str, str]:
        sizes = (both.dollars_without, both.dollars_with) if isinstance(both, ComparedBill) else None
        cells = [money(each) for each in sizes] if sizes else [f"{each:,}" for each in (both.without, both.with_)]
        return cells[0], cells[1], f"{both.ratio:.3f}" if both.without else ""

    calls = report.model_calls
    names = {"recall rounds": calls.recall_rounds, "summaries": calls.summaries, "digests": calls.digests}
    words = ", ".join(f"{times:,} {name}" for name, times in names.items() if times)
    recalled = report.recall_share_of_input_bill
    stops = {
        "worst ratio if it had ended at any request": report.worst_ratio_at_any_stop,
        "the same past request 20": report.worst_ratio_past_request_20,
    }
    beside = report.input_bill_beside_marks_alone
    cached = [percent(each.share_cached) for each in (report.baseline, report.bill)]
    lines: list[tuple[Node, Iterable[Node]]] = [
        ("tokens sent", measure(report.tokens_sent)),
        ("of these, read from the cache", (*cached, "")),
        ("largest prompt, tokens", measure(report.peak_context)),
        (term("input bill"), (*measure(report.input_bill)[:2], f"{report.input_bill.ratio:.3f}")),
        *([("with cache marks alone", measure(report.input_bill_of_marks_alone))] if report.marks_matter else []),
        *([("with compaction, relative to marks alone", measure(beside))] if report.marks_matter else []),
        (term("whole bill"), measure(report.whole_bill)),
        *([(f"of this, {words}", ("", money(calls.dollars), ""))] if words else []),
        *([("share of recall rounds in the input bill", ("", percent(recalled), ""))] if recalled else []),
        *((words, ("", "", f"{ratio:.3f}")) for words, ratio in stops.items() if ratio),
    ]
    name = printable(report.session, 60)
    extra = [recalls([report])] if report.recalls.rounds or report.recalls.rate else []
    extra += [*summaries([report]), *against_nothing([report]), *recorded_usage([report])]
    return together(
        table(("", "without Narrows", "with Narrows", term("ratio")), lines, "bill"),
        asides([f"At the prices of {shortened(report.prices)}.", *report.notes]),
        asides(f"{line if line.startswith(name) else line[0].upper() + line[1:]}." for line in map(str.strip, extra)),
    )


# --- the prefix ---


def prefix(report: Report) -> Markup:
    """Request by request: the tokens, and what the reply said of the prefix."""
    results = report.each_request
    words = [result.prefix for result in results]
    given_up = sum(result.cached_tokens_given_up for result in results)
    caption = (
        f"{len(results):,} requests; {given_up:,} tokens in the provider's cache were given up. Above: the tokens "
        "of each prompt; solid is what was sent, pale what would have been sent. Below: what became of the prefix; the "
        "taller the mark, the less of the prefix was kept."
    )
    most = max((max(each.tokens_sent.without, each.tokens_sent.with_) for each in results), default=0)
    drawn = charts.plot(request_columns(results), f"{short(most)} tokens", charts.count_ticks(len(results)))
    figure = element("figure", drawn, element("figcaption", caption))
    breaks: list[tuple[str, list[Node]]] = []
    for at, result in enumerate(results, 1):
        if result.prefix not in ("first", "extended"):
            sizes = (result.cached_tokens_given_up, result.tokens_sent.with_, result.tokens_sent.without)
            cells: list[Node] = ["" if result.prefix == REFUSED else f"{size:,}" for size in sizes]
            breaks.append((str(at), [outcome(result.prefix), *cells]))
    listed = element("p", "Every request began with all of the one before.")
    if breaks:
        heads = ("request", "outcome", term("written again", "given up"), term("sent"), "without Narrows")
        summary = f"{counted(len(breaks), 'request')} that did not begin with all of the one before"
        listed = folded(summary, table(heads, breaks, "breaks"), len(breaks))
    return together(figure, charts.legend_of_prefixes(words), listed)
