"""The two pages: what becomes of one request, and what became of replayed sessions.

Laws
  A page says what the values say, and nothing that is not in them; every figure stands as text.
  Nothing that a request, a session or the name of a file says becomes markup, a style or an address.
"""

from collections.abc import Sequence

from proxy.drawing.charts import asides, shortened
from proxy.drawing.figures import change_of, counted, percent, signed
from proxy.drawing.html import Markup, Node, element, headline, section, table, together
from proxy.drawing.words import glossary, head_of, term
from proxy.lab.explain import Explanation
from proxy.lab.replay.comparison import Average, PresetResult
from proxy.lab.replay.report import Report
from proxy.lab.reports import request_page, session_page, tables
from proxy.lab.reports.page_file import sheet
from proxy.lab.reports.text import meanings
from proxy.lab.results import ComparedBill

AHEAD = (
    "★ No other preset has both a bill as low and as much still visible. Calls are those of a model for recalls, "
    "summaries and digests; their cost is part of the bill."
)

_TERMS = (
    *("any stop", "breaks", "checkpoint", "end", "estimate", "input bill", "lines", "lines at risk", "lost", "past 20"),
    *("prefix", "preset", "quoted", "rare", "rare at risk", "ratio", "recall", "recalls", "recoverable", "saved"),
    *("sent", "stubbed", "tail-cut", "visible", "whole", "whole bill", "written again"),
)


def explained(name: str, explanation: Explanation, past: Report | str) -> str:
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
        request_page.lead(explanation),
        section("Policy by policy", request_page.layers(explanation.layers, explanation.idle_policies)),
        section("Message by message", request_page.messages(explanation.messages)),
        section("What is left out, and why", request_page.edits(explanation)),
        section("The bill of this request", request_page.bills(explanation)),
        section("The session so far", until_here),
        glossary(*_TERMS),
    )


def replayed(reports: Sequence[Report], averages: Sequence[Average], presets: Sequence[PresetResult] = ()) -> str:
    """Replayed sessions: all in one table, then one after the other."""
    sessions: list[tuple[Node, object]] = []
    for at, report in enumerate(reports, 1):
        words = f"{report.requests:,} requests, {report.preset}, {shortened(report.prices)}"
        wrong = element("small", element("strong", f" {report.faults:,} faults")) if report.faults else ""
        link = element("a", shortened(report.session), href=f"#session-{at}")
        sessions.append(([link, element("small", words), wrong], report))
    groups = [([row.group, element("small", f"{row.preset}, {shortened(row.prices)}")], row) for row in averages]
    notes = asides(note for report in reports for note in report.notes)
    beside: Node = ""
    if len({each.preset for each in presets}) > 1:
        rows = [
            ([row.preset, " ★" if row.ahead else "", element("small", shortened(row.prices))], row) for row in presets
        ]
        beside = section(
            "Presets compared",
            [element("p", each.in_money) for each in presets],
            _table("preset", rows, tables.PRESET_BILLS_ON_A_PAGE),
            _table("preset", rows, tables.PRESET_SIGHT_ON_A_PAGE),
            element("p", AHEAD, class_="aside"),
            notes,
        )
    return sheet(
        "replayed sessions",
        "Replayed sessions",
        f"{counted(len({report.session for report in reports}), 'recorded session')}, replayed",
        _saved(reports),
        element(
            "p",
            "Recorded sessions, sent turn by turn through a real Narrows, compared with the same sessions without it.",
            class_="lead",
        ),
        _table("session", sessions, tables.SESSION_BILLS),
        _table("session", sessions, tables.SESSION_SIGHT),
        notes,
        section(
            "Averages",
            _table("means of", groups, tables.AVERAGE_BILLS),
            _table("means of", groups, tables.AVERAGE_SIGHT),
            element("p", f"{'; '.join(meanings(averages))}.", class_="aside"),
            notes,
        ),
        beside,
        [_session(at, report) for at, report in enumerate(reports, 1)],
        glossary(*_TERMS),
    )


def _saved(reports: Sequence[Report]) -> Node:
    """The headline: what all sessions together would have saved, by the preset and the prices of the first."""
    preset, prices = reports[0].preset, reports[0].prices
    same = [report for report in reports if (report.preset, report.prices) == (preset, prices)]
    bills = [report.whole_bill for report in same]
    words = f" in {counted(len(same), 'session')} by the preset {preset}, at the prices of {shortened(prices)}"
    return _headline(sum(bill.without for bill in bills), sum(bill.with_ for bill in bills), bills, words)


def _saved_until_here(explanation: Explanation, past: Report | str) -> Node:
    """The headline: what the session would have saved until here; of a single request, what its input could save."""
    if isinstance(past, Report):
        bill = past.whole_bill
        return _headline(bill.without, bill.with_, [bill], " in the session so far")
    least, most = (
        0.0 if bill.before is None or bill.after is None else bill.before - bill.after
        for bill in sorted(explanation.input_bill_of_this_request.values(), key=lambda bill: bill.before or 0.0)
    )
    if not explanation.prices_known:
        return ""
    words = (" ", term("saved"), " on the input of this request: the less of it is cached, the more.")
    return headline(f"{signed(least)} to {signed(most)}", *words)


def _headline(without: float, with_: float, bills: Sequence[ComparedBill], words: str) -> Node:
    """What was saved, in money; only the ratio where prices are not known."""
    ratio = f"{with_ / without:.3f}" if without else "1.000"
    if not all(bill.prices_known for bill in bills):
        return headline(ratio, " is the ", term("ratio"), " of the whole bills", words, ".")
    amounts = f" {signed(without)} → {signed(with_)}, a "
    saved = (" ", term("saved"), f"{words}, an ", term("estimate"), ":")
    return headline(signed(without - with_), *saved, amounts, term("ratio"), f" of {ratio}.")


def _why_both(explanation: Explanation, past: Report) -> str:
    """Why a request may be much shorter, and a bill only a little less."""
    tokens, bill = explanation.tokens, past.input_bill
    cached = percent(past.baseline.share_cached)
    return (
        f"This request has {counted(tokens.after, 'token')}, {change_of(tokens.before, tokens.after)}, but the input "
        f"bill of its session is still {bill.ratio:.2f} of the bill without Narrows. Without edits, {cached} of the "
        "prompts would have been read from the provider's cache, at a fraction of the price. Early requests have "
        "little to leave out. What follows a rewritten place is paid for as new."
    )


def _replay(report: Report) -> Markup:
    parts = (
        ("What stayed visible", session_page.sight(report)),
        ("The bill", session_page.bill(report)),
        ("The prefix, request by request", session_page.prefix(report)),
    )
    return together(session_page.faults(report), [[element("h3", title), drawn] for title, drawn in parts])


def _session(at: int, report: Report) -> Markup:
    last: Node = ""
    if report.last_request is not None:
        title = "The last request, policy by policy and message by message"
        layers = request_page.layers(report.last_request.layers)
        last = together(element("h3", title), layers, request_page.messages(report.last_request.messages))
    runs = f" in {report.runs:,} runs" if report.runs > 1 else ""
    prices = shortened(report.prices)
    by = f"by the preset {report.preset} with the aim {report.aim}"
    words = f" {report.requests:,} requests{runs}, {by}, at the prices of {prices}"
    title = together(shortened(report.session), element("small", words))
    return section(title, _replay(report), last, id=f"session-{at}")


def _table(head: str, rows: Sequence[tuple[Node, object]], columns: Sequence[tables.Column]) -> Markup:
    """A table whose rows are named by links, stars or small print."""
    heads = (head, *(head_of(column.head) for column in columns))
    return table(heads, [(label, [column.cell(row) for column in columns]) for label, row in rows], "sessions")
