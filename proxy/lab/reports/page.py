"""The two pages: what becomes of one request, and what became of replayed sessions.

Laws
  A page says what the values say, and nothing that is not in them; every figure stands as text.
  Nothing that a request, a session or the name of a file says becomes markup, a style or an address.
"""

from collections.abc import Sequence

from proxy.lab.explain import Explanation
from proxy.lab.replay.comparison import Average, PresetResult
from proxy.lab.replay.report import Report
from proxy.lab.reports import request_page, session_page, tables
from proxy.lab.reports.html import Markup, Node, document, element, table, together
from proxy.lab.reports.request_page import shortened

AHEAD = (
    "★ no other preset has a bill as low and as much in sight. Calls of a model are those that the sessions themselves "
    "did not make; what they cost is on the bill."
)


def explained(name: str, explanation: Explanation, past: Report | str) -> str:
    """The dry run of a request, and what became of the session so far; or a sentence why that is not known."""
    order = [layer.after for layer in explanation.layers]
    return document(
        f"Narrows: {shortened(name)}",
        element("h1", shortened(name)),
        request_page.lead(explanation),
        _section("Layer by layer", request_page.layers(explanation.layers, explanation.idle_policies)),
        _section("Message by message", request_page.messages(explanation.messages)),
        _section("What is left out, and why", request_page.edits(explanation.edits, order)),
        _section("The bill of this request", request_page.bills(explanation)),
        _section("The session until here", _past(past)),
        _colophon(),
    )


def replayed(reports: Sequence[Report], averages: Sequence[Average], presets: Sequence[PresetResult] = ()) -> str:
    """Replayed sessions: all in one table, then one after the other."""
    several = len({each.preset for each in presets}) > 1
    return document(
        "Narrows: replayed sessions",
        element("h1", "Replayed sessions"),
        element("p", "Recorded sessions, turn by turn through a real Narrows, against doing nothing.", class_="lead"),
        _table("session", [(_link(at, report), report) for at, report in enumerate(reports, 1)], tables.SESSION),
        _section("Averages", _table("means of", [(_group(row), row) for row in averages], tables.AVERAGES)),
        _section("Presets beside each other", _presets(presets)) if several else "",
        [_session(at, report) for at, report in enumerate(reports, 1)],
        _colophon(),
    )


def _section(title: Node, *inside: Node, **attributes: str) -> Markup:
    return element("section", element("h2", title), *inside, **attributes)


def _colophon() -> Markup:
    words = "Drawn by Narrows. This page loads nothing and runs no script; all bars of one picture have one scale."
    return element("footer", element("p", words, class_="aside"))


def _past(past: Report | str) -> Markup:
    if isinstance(past, str):
        return element("p", past)
    words = (
        f"The {past.requests:,} requests of this file that were answered, turn by turn through a real Narrows and the "
        "built-in provider with its prompt cache."
    )
    return together(element("p", words), _replay(past))


def _replay(report: Report) -> Markup:
    parts = (
        ("In sight", session_page.sight(report)),
        ("The bill", session_page.bill(report)),
        ("The prefix, request by request", session_page.prefix(report)),
    )
    return together(session_page.faults(report), [[element("h3", title), drawn] for title, drawn in parts])


def _session(at: int, report: Report) -> Markup:
    last: Node = ""
    if report.last_request is not None:
        title = "Its last request, layer by layer and message by message"
        layers = request_page.layers(report.last_request.layers)
        last = together(element("h3", title), layers, request_page.messages(report.last_request.messages))
    runs = f" in {report.runs:,} runs" if report.runs > 1 else ""
    prices = shortened(report.prices)
    words = f" {report.requests:,} requests{runs}, by the preset {report.preset}, at the prices of {prices}"
    title = together(shortened(report.session), element("small", words))
    return _section(title, _replay(report), last, id=f"session-{at}")


def _table(head: str, rows: Sequence[tuple[Node, object]], columns: Sequence[tables.Column]) -> Markup:
    """A table whose rows are named by links, stars or small print."""
    heads = (head, *(column.head for column in columns))
    return table(heads, [(label, [column.cell(row) for column in columns]) for label, row in rows], "sessions")


def _link(at: int, report: Report) -> Node:
    words = f"{report.requests:,} requests, {report.preset}, {shortened(report.prices)}"
    wrong = element("small", element("strong", f" {report.faults:,} faults")) if report.faults else ""
    return [element("a", shortened(report.session), href=f"#session-{at}"), element("small", words), wrong]


def _group(row: Average) -> Node:
    return [row.means, element("small", f"{row.preset}, {shortened(row.prices)}")]


def _presets(presets: Sequence[PresetResult]) -> Markup:
    rows: list[tuple[Node, object]] = [
        ([row.preset, " ★" if row.ahead else "", element("small", shortened(row.prices))], row) for row in presets
    ]
    return together(_table("preset", rows, tables.PRESETS_ON_A_PAGE), element("p", AHEAD, class_="aside"))
