"""Pages of one request as it would be sent, and of replayed sessions.

Laws
  A page says what the values say, and nothing that is not in them; every figure stands as text.
  Nothing that a request, a session or the name of a file says becomes markup, a style or an address.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from proxy.console.output import printable
from proxy.drawing import charts
from proxy.drawing.charts import asides, figures, folded, legend, row, rows, shortened
from proxy.drawing.figures import change_of, counted, money, percent, short, signed
from proxy.drawing.html import Markup, Node, element, headline, section, table, together
from proxy.drawing.words import WHY, glossary, head_of, outcome, term
from proxy.lab.breakdown import TOOLS, MessageSize, PolicyEffect
from proxy.lab.quality import Tally
from proxy.lab.replay import display
from proxy.lab.replay.bills import Compared, ComparedBill
from proxy.lab.replay.display import Column
from proxy.lab.replay.report import REFUSED, Average, PresetResult, Report
from proxy.lab.terminal import sheet

if TYPE_CHECKING:  # it draws itself here
    from proxy.lab.explain import EditSummary, Explanation

KINDS: Mapping[str, str] = {
    TOOLS: "tool schemas",
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "call": "call: the arguments of a tool",
    "result": "result: the output of a tool",
    "opaque": "opaque: images, thinking and the like",
}
"""Kinds of a message, in the order of every stack."""
TALLIES: Mapping[str, str] = {
    "all": "all that later turns used",
    "rare": "of these, rare ones (at most three earlier occurrences)",
    "at_risk_rare": "of these, last seen more than five turns ago",
    "quoted": "old text that edits quote",
    "quoted_lines": "lines of old text",
    "at_risk_quoted_lines": "of these, last seen more than five turns ago",
}
SIGHT: Mapping[str, str] = {"seen": "visible", "seen gone": "recoverable", "cut": "stubbed", "refused": "lost"}
"""The class of each place where a text can be that a later turn used."""
AHEAD = (
    "★ No other preset has both a bill as low and as much still visible. Calls are those of a model for recalls, "
    "summaries and digests; their cost is part of the bill."
)
_TERMS = (
    *("any stop", "breaks", "checkpoint", "end", "estimate", "input bill", "lines", "lines at risk", "lost", "past 20"),
    *("prefix", "preset", "quoted", "rare", "rare at risk", "ratio", "recall", "recalls", "recoverable", "saved"),
    *("sent", "stubbed", "tail-cut", "visible", "whole", "whole bill", "written again"),
)


def explain_page(name: str, explanation: "Explanation", past: Report | str) -> str:
    """The dry run of a request, and what became of the session so far; or a sentence why that is not known."""
    until_here: Node = element("p", past) if isinstance(past, str) else ""
    if not isinstance(past, str):
        words = (
            f"The {past.requests:,} answered requests of this file, sent turn by turn through a real Narrows to the "
            "built-in provider with its prompt cache."
        )
        until_here = [element("p", words), element("p", _why_both(explanation, past)), _replay(past)]
    return sheet(
        shortened(name),
        shortened(name),
        f"one request to {shortened(explanation.model, 60)} as it would be sent, and its session so far",
        _saved_until_here(explanation, past),
        _lead(explanation),
        section("Policy by policy", _layers(explanation.layers, explanation.idle_policies)),
        section("Message by message", _messages(explanation.messages)),
        section("What is left out, and why", _edits(explanation)),
        section("The bill of this request", _bills(explanation)),
        section("The session so far", until_here),
        glossary(*_TERMS),
    )


def replay_page(reports: Sequence[Report], averages: Sequence[Average], presets: Sequence[PresetResult] = ()) -> str:
    """Replayed sessions: all in one table, then one after the other."""
    sessions: list[tuple[Node, object]] = []
    for at, report in enumerate(reports, 1):
        words = f"{report.requests:,} requests, {report.preset}, {shortened(report.prices)}"
        wrong = element("small", element("strong", f" {report.faults:,} faults")) if report.faults else ""
        link = element("a", shortened(report.session), href=f"#session-{at}")
        sessions.append(([link, element("small", words), wrong], report))
    groups = [([each.group, element("small", f"{each.preset}, {shortened(each.prices)}")], each) for each in averages]
    notes = asides(note for report in reports for note in report.notes)
    beside: Node = ""
    if len({each.preset for each in presets}) > 1:
        names = [
            ([each.preset, " ★" if each.ahead else "", element("small", shortened(each.prices))], each)
            for each in presets
        ]
        beside = section(
            "Presets compared",
            [element("p", each.in_money) for each in presets],
            _table("preset", names, display.PRESET_BILLS_ON_A_PAGE),
            _table("preset", names, display.PRESET_SIGHT_ON_A_PAGE),
            element("p", AHEAD, class_="aside"),
            notes,
        )
    lead = "Recorded sessions, sent turn by turn through a real Narrows, compared with the same sessions without it."
    return sheet(
        "replayed sessions",
        "Replayed sessions",
        f"{counted(len({report.session for report in reports}), 'recorded session')}, replayed",
        _saved(reports),
        element("p", lead, class_="lead"),
        _table("session", sessions, display.SESSION_BILLS),
        _table("session", sessions, display.SESSION_SIGHT),
        notes,
        section(
            "Averages",
            _table("means of", groups, display.AVERAGE_BILLS),
            _table("means of", groups, display.AVERAGE_SIGHT),
            element("p", f"{'; '.join(display.meanings(averages))}.", class_="aside"),
            notes,
        ),
        beside,
        [_session(at, report) for at, report in enumerate(reports, 1)],
        glossary(*_TERMS),
    )


def _table(head: str, lines: Sequence[tuple[Node, object]], columns: Sequence[Column]) -> Markup:
    """A table whose rows are named by links, stars or small print."""
    heads = (head, *(head_of(column.head) for column in columns))
    return table(heads, [(label, [column.cell(each) for column in columns]) for label, each in lines], "sessions")


# --- the headline ---


def _saved(reports: Sequence[Report]) -> Node:
    """The savings in all sessions together, by the preset and the prices of the first."""
    preset, prices = reports[0].preset, reports[0].prices
    bills = [report.whole_bill for report in reports if (report.preset, report.prices) == (preset, prices)]
    words = f" in {counted(len(bills), 'session')} by the preset {preset}, at the prices of {shortened(prices)}"
    return _headline(bills, words)


def _saved_until_here(explanation: "Explanation", past: Report | str) -> Node:
    """The savings in the session until here; of a single request, those on its input."""
    if isinstance(past, Report):
        return _headline([past.whole_bill], " in the session so far")
    if not explanation.prices_known:
        return ""
    bills = [explanation.input_bill_of_this_request[end] for end in ("nothing_cached", "all_cached")]
    least, most = sorted((bill.before or 0.0) - (bill.after or 0.0) for bill in bills)
    words = (" ", term("saved"), " on the input of this request: the less of it is cached, the more.")
    return headline(f"{signed(least)} to {signed(most)}", *words)


def _headline(bills: Sequence[ComparedBill], words: str) -> Node:
    """The savings in money; only the ratio where prices are not known."""
    without, with_ = sum(bill.without for bill in bills), sum(bill.with_ for bill in bills)
    ratio = f"{with_ / without:.3f}" if without else "1.000"
    if not all(bill.prices_known for bill in bills):
        return headline(ratio, " is the ", term("ratio"), " of the whole bills", words, ".")
    amounts = f" {signed(without)} → {signed(with_)}, a "
    saved = (" ", term("saved"), f"{words}, an ", term("estimate"), ":")
    return headline(signed(without - with_), *saved, amounts, term("ratio"), f" of {ratio}.")


def _why_both(explanation: "Explanation", past: Report) -> str:
    """Why a request may be much shorter, and a bill only a little less."""
    tokens, cached = explanation.tokens, percent(past.baseline.share_cached)
    return (
        f"This request has {counted(tokens.after, 'token')}, {change_of(tokens.before, tokens.after)}, but the input "
        f"bill of its session is still {past.input_bill.ratio:.2f} of the bill without Narrows. Without edits, "
        f"{cached} of the prompts would have been read from the provider's cache, at a fraction of the price. Early "
        "requests have little to leave out. What follows a rewritten place is paid for as new."
    )


# --- a replayed session: what was in sight, the bill, and what became of the prefix ---


def _session(at: int, report: Report) -> Markup:
    last: Node = ""
    if report.last_request is not None:
        title = "The last request, policy by policy and message by message"
        last = [element("h3", title), _layers(report.last_request.layers), _messages(report.last_request.messages)]
    by = f"by the preset {report.preset} with the aim {report.aim}"
    words = f" {report.requests:,} requests, {by}, at the prices of {shortened(report.prices)}"
    heading = together(shortened(report.session), element("small", words))
    return section(heading, _replay(report), last, id=f"session-{at}")


def _replay(report: Report) -> Markup:
    return together(
        _faults(report),
        element("h3", "What stayed visible"),
        _sight(report),
        element("h3", "The bill"),
        _bill(report),
        element("h3", "The prefix, request by request"),
        _prefix(report),
    )


def _faults(report: Report) -> Node:
    counts = (
        (report.validity_errors, "refused as invalid"),
        (report.unanswered, "not answered"),
        (report.undeclared_prefix_changes, "changed the prefix without declaring it"),
        (report.failed_open, "failed open"),
        (report.recalls.refused, "recalls not answered"),
    )
    words = [f"{count:,} {what}" for count, what in counts if count]
    if not words:
        return ""
    refusal = f". The first refusal: {shortened(report.first_refusal)}" if report.first_refusal else ""
    return element("p", element("strong", "Faults: "), ", ".join(words), refusal, class_="fault")


def _sight(report: Report) -> Markup:
    """Where that stood which later turns used."""
    lines: list[Markup] = []
    for name, label in TALLIES.items():
        tally: Tally = getattr(report.used_by_later_turns, name)
        counts = (tally.visible, tally.recoverable, tally.behind_a_stub_without_way_back, tally.lost)
        words = (
            f"{tally.visible:,} visible, {tally.recoverable:,} recoverable ({tally.recoverable_by_recall:,} by recall, "
            f"{tally.recoverable_by_running_again:,} by running a tool again), "
            f"{tally.behind_a_stub_without_way_back:,} replaced by a stub that names no way back, {tally.lost:,} lost"
        )
        share = percent(tally.share_visible) if tally.used else ""
        drawn = charts.stack(zip(SIGHT, counts, strict=True), tally.used)
        lines.append(row(share, [element("b", label), element("small", words)], drawn, figures(tally.used, "used")))
    heads = ("visible", "paths, identifiers, numbers", "full width: all of them", "used")
    return together(legend(SIGHT), rows(heads, lines, "rows sight"))


def _bill(report: Report) -> Markup:
    """Doing nothing against Narrows."""

    def measure(both: Compared) -> tuple[str, str, str]:
        cells = [f"{each:,}" for each in (both.without, both.with_)]
        if isinstance(both, ComparedBill):
            cells = [money(both.dollars_without), money(both.dollars_with)]
        return cells[0], cells[1], f"{both.ratio:.3f}" if both.without else ""

    calls = report.model_calls
    names = {"recall rounds": calls.recall_rounds, "summaries": calls.summaries, "digests": calls.digests}
    words = ", ".join(f"{times:,} {name}" for name, times in names.items() if times)
    recalled = report.recall_share_of_input_bill
    stops = {
        "worst ratio if it had ended at any request": report.worst_ratio_at_any_stop,
        "the same past request 20": report.worst_ratio_past_request_20,
    }
    cached = [percent(each.share_cached) for each in (report.baseline, report.bill)]
    lines: list[tuple[Node, Sequence[Node]]] = [
        ("tokens sent", measure(report.tokens_sent)),
        ("of these, read from the cache", (*cached, "")),
        ("largest prompt, tokens", measure(report.peak_context)),
        (term("input bill"), (*measure(report.input_bill)[:2], f"{report.input_bill.ratio:.3f}")),
    ]
    if report.marks_matter:
        lines.append(("with cache marks alone", measure(report.input_bill_of_marks_alone)))
        lines.append(("with compaction, relative to marks alone", measure(report.input_bill_beside_marks_alone)))
    lines.append((term("whole bill"), measure(report.whole_bill)))
    lines += [("of this, for what expired in pauses", measure(report.pauses.cost))] if report.pauses else []
    lines += [(f"of this, {words}", ("", money(calls.dollars), ""))] if words else []
    lines += [("share of recall rounds in the input bill", ("", percent(recalled), ""))] if recalled else []
    lines += [(words, ("", "", f"{ratio:.3f}")) for words, ratio in stops.items() if ratio]
    name = printable(report.session, 60)
    extra = [display.recalls([report])] if report.recalls.rounds or report.recalls.rate else []
    extra = [line.strip() for line in (*extra, *display.summaries([report]), *display.against_nothing([report]))]
    return together(
        table(("", "without Narrows", "with Narrows", term("ratio")), lines, "bill"),
        _table("pauses", [("", report)], display.PAUSES) if report.pauses else "",
        asides([f"At the prices of {shortened(report.prices)}.", *report.notes]),
        asides(f"{line if line.startswith(name) else line[0].upper() + line[1:]}." for line in extra),
    )


def _prefix(report: Report) -> Markup:
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
    columns = charts.skyline([(result.tokens_sent.without, result.tokens_sent.with_, "ink") for result in results])
    drawn = charts.plot(
        together(columns, charts.strip(words)), f"{short(most)} tokens", charts.count_ticks(len(results))
    )
    breaks: list[tuple[str, list[Node]]] = []
    for at, result in enumerate(results, 1):
        if result.prefix not in ("first", "extended"):
            sizes = (result.cached_tokens_given_up, result.tokens_sent.with_, result.tokens_sent.without)
            cells = ["" if result.prefix == REFUSED else f"{size:,}" for size in sizes]
            breaks.append((str(at), [outcome(result.prefix), *cells]))
    changes = element("p", "Every request began with all of the one before.")
    if breaks:
        heads = ("request", "outcome", term("written again", "given up"), term("sent"), "without Narrows")
        summary = f"{counted(len(breaks), 'request')} that did not begin with all of the one before"
        changes = folded(summary, table(heads, breaks, "breaks"), len(breaks))
    return together(element("figure", drawn, element("figcaption", caption)), charts.legend_of_prefixes(words), changes)


# --- one request: policy by policy, message by message, and what is left out of it ---


def _lead(explanation: "Explanation") -> Markup:
    """The sizes before and after, and why."""
    before, after = explanation.tokens.before, explanation.tokens.after
    first, last = (explanation.layers[at].characters for at in (0, -1))
    tokens = element("strong", f"{before:,} → {after:,} tokens")
    why = "Why now" if explanation.edits else "Nothing to shorten"
    dry_run = (
        f"Request {explanation.requests_in_history:,} of its history, to {shortened(explanation.model)}, by the preset "
        f"{explanation.preset} with the aim {explanation.aim}. A dry run: planned as by a proxy with an empty store."
    )
    return together(
        element("p", tokens, f", {change_of(before, after)}; {first:,} → {last:,} characters.", class_="lead"),
        element("p", f"{why}: {explanation.verdict}.", class_="verdict"),
        element("p", dry_run, class_="aside"),
    )


def _class(kind: str) -> str:
    """The class of a kind of message, which says its colour."""
    return f"k-{kind}" if kind in KINDS else "k-other"


def _legend_of_kinds(present: Collection[str]) -> Markup:
    return legend({_class(kind): meaning for kind, meaning in KINDS.items() if kind in present})


def _layers(layers: Sequence[PolicyEffect], idle: Sequence[str] = ()) -> Markup:
    """Stacked bars by one scale: what the client wrote, and what each policy leaves of it."""
    first, scale = layers[0], max(layer.tokens for layer in layers)
    lines: list[Markup] = []
    for before, layer in pairwise([first, *layers]):
        share = percent(layer.tokens / first.tokens if first.tokens else 1.0)
        kinds = {**before.kinds, **layer.kinds}
        changes = {kind: layer.kinds.get(kind, 0) - before.kinds.get(kind, 0) for kind in kinds}
        note = ", ".join(f"{kind} {'+' if n > 0 else '−'}{abs(n):,}" for kind, n in changes.items() if n)
        note = f"{counted(layer.edits, 'edit')}: {note}" if layer.edits else note
        label = [element("b", layer.after), element("small", note) if note else ""]
        drawn = charts.stack(((_class(kind), layer.kinds.get(kind, 0)) for kind in KINDS), scale)
        sizes = (figures(layer.tokens, "tokens"), figures(layer.characters, "characters"))
        lines.append(row("" if layer is first else share, label, drawn, *sizes))
    heads = ("", "after", f"full width: {scale:,} tokens", "tokens", "characters")
    return together(
        _legend_of_kinds({kind for layer in layers for kind in layer.kinds}),
        rows(heads, lines),
        element("p", f"No effect: {', '.join(idle)}.", class_="aside") if idle else "",
    )


def _messages(sizes: Sequence[MessageSize]) -> Markup:
    """One bar for each message; of many also one picture, in which all are seen at once."""
    scale = max((max(size.tokens.before, size.tokens.after) for size in sizes), default=0) or 1
    lines: list[Markup] = []
    for size in sizes:
        label = together(element("b", size.kind), f" {shortened(size.tool)}" if size.tool else "")
        tokens = figures(size.tokens.before, "tokens", size.tokens.after)
        place, characters = "", element("span", class_="n")
        if size.message is not None:
            place = str(size.message)
            characters = figures(size.characters.before, "characters", size.characters.after)
        drawn = charts.bar(size.tokens.before, size.tokens.after, scale, _class(size.kind))
        lines.append(row(place, label, drawn, tokens, characters))
    heads = ("no.", "message", f"full width: {scale:,} tokens", "tokens", "characters")
    count = sum(size.kind != TOOLS for size in sizes)
    columns = charts.skyline([(size.tokens.before, size.tokens.after, _class(size.kind)) for size in sizes])
    drawn = charts.plot(columns, f"{short(scale)} tokens", charts.count_ticks(len(sizes)))
    return together(
        legend({"ink": "solid: sent", "ink gone": "pale: left out"}),
        _legend_of_kinds({size.kind for size in sizes}),
        element("figure", drawn) if len(sizes) > charts.FOLDED else "",
        folded(f"{count:,} messages, one bar each", rows(heads, lines), len(sizes)),
    )


def _edits(explanation: "Explanation") -> Markup:
    """Reasons in the order of the policies; then every edit in the order of the request."""
    edits = explanation.edits
    if not edits:
        return element("p", "Nothing was left out.")
    reasons: list[Markup] = []
    for layer in explanation.layers:
        if own := [edit.tokens for edit in edits if edit.policy == layer.after]:
            before, after = sum(tokens.before for tokens in own), sum(tokens.after for tokens in own)
            sizes = f" {counted(len(own), 'edit')}, {before:,} → {after:,} tokens"
            reasons.append(element("dt", element("b", layer.after), sizes))
            reasons.append(element("dd", WHY.get(layer.after, layer.after)))
    each = element("div", [_edit(edit) for edit in edits], class_="changes")
    heading = f"{counted(len(edits), 'edit')}, in the order of the request"
    return together(element("dl", reasons), folded(heading, each, len(edits)))


def _edit(edit: "EditSummary") -> Markup:
    head = element(
        "summary",
        element("span", element("b", edit.policy), f" {edit.kind} {shortened(edit.tool)}".rstrip(), class_="label"),
        element("span", shortened(edit.where), class_="where"),
        figures(edit.tokens.before, "tokens", edit.tokens.after),
    )
    since = "; new in this request" if edit.new_in_this_request else "; since an earlier request"
    ref = together("Reference ", element("code", edit.ref)) if edit.ref else "No reference"
    text = edit.becomes[:4_000]
    more = len(edit.becomes) - len(text)
    rest = element("p", f"… and {more:,} more characters, unchanged.", class_="aside") if more else ""
    why = element("p", edit.why, since, ". ", ref, ". It is replaced by:", class_="aside")
    return element("details", head, why, element("pre", text), rest, class_="change")


def _bills(explanation: "Explanation") -> Markup:
    """The input at both ends, nothing of it cached and all of it, and sent now and after a pause."""
    lines = [
        (end.replace("_", " "), [money(bill.before), money(bill.after)])
        for end, bill in explanation.input_bill_of_this_request.items()
    ]
    note = f"At the prices of {shortened(explanation.prices)}. Now and in ten minutes: after the request before it."
    new = [
        (kind, [f"{each.tokens.after:,}", money(each.first_sight.after), money(each.rest_of_session.after)])
        for kind, each in explanation.new.items()
    ]
    rest = f"in {counted(explanation.requests_to_come, 'request')} to come"
    return together(
        table(("input", "as written", "as sent"), lines, "bill"),
        table(("new in it, as sent", "tokens", "now", rest), new, "bill"),
        asides([*explanation.foretold, note, *explanation.notes]),
    )
