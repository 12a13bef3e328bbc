"""The two pages: what becomes of one request, and what became of replayed sessions.

Laws
  A page says what the values say, and nothing that is not in them; every figure stands as text.
  Nothing that a request, a session or the name of a file says becomes markup, a style or an address.
"""

from collections.abc import Sequence

from proxy.drawing.html import Markup, Node, document, element, table, together
from proxy.drawing.rows import asides, shortened
from proxy.lab.explain import Explanation
from proxy.lab.replay.comparison import Average, PresetResult
from proxy.lab.replay.report import Report
from proxy.lab.reports import request_page, session_page, tables
from proxy.lab.reports.text import meanings

AHEAD = (
    "★ no other preset has a bill as low and as much in sight. Calls of a model are those that the sessions themselves "
    "did not make; what they cost is on the bill."
)


def explained(name: str, explanation: Explanation, past: Report | str) -> str:
    """The dry run of a request, and what became of the session so far; or a sentence why that is not known."""
    until_here: Node = element("p", past) if isinstance(past, str) else ""
    if not isinstance(past, str):
        words = (
            f"The {past.requests:,} requests of this file that were answered, turn by turn through a real Narrows and "
            "the built-in provider with its prompt cache."
        )
        until_here = [element("p", words), _replay(past)]
    return _page(
        shortened(name),
        shortened(name),
        request_page.lead(explanation),
        _section("Layer by layer", request_page.layers(explanation.layers, explanation.idle_policies)),
        _section("Message by message", request_page.messages(explanation.messages)),
        _section("What is left out, and why", request_page.edits(explanation)),
        _section("The bill of this request", request_page.bills(explanation)),
        _section("The session until here", until_here),
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
        beside = _section(
            "Presets beside each other",
            _table("preset", rows, tables.PRESET_BILLS_ON_A_PAGE),
            _table("preset", rows, tables.PRESET_SIGHT_ON_A_PAGE),
            element("p", AHEAD, class_="aside"),
            notes,
        )
    return _page(
        "replayed sessions",
        "Replayed sessions",
        element("p", "Recorded sessions, turn by turn through a real Narrows, against doing nothing.", class_="lead"),
        _table("session", sessions, tables.SESSION_BILLS),
        _table("session", sessions, tables.SESSION_SIGHT),
        notes,
        _section(
            "Averages",
            _table("means of", groups, tables.AVERAGE_BILLS),
            _table("means of", groups, tables.AVERAGE_SIGHT),
            element("p", f"{'; '.join(meanings(averages))}.", class_="aside"),
            notes,
        ),
        beside,
        [_session(at, report) for at, report in enumerate(reports, 1)],
    )


def _page(title: str, heading: str, *inside: Node) -> str:
    words = "Drawn by Narrows. This page loads nothing and runs no script; all bars of one picture have one scale."
    footer = element("footer", element("p", words, class_="aside"))
    return document(f"Narrows: {title}", element("h1", heading), *inside, footer)


def _section(title: Node, *inside: Node, **attributes: str) -> Markup:
    return element("section", element("h2", title), *inside, **attributes)


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
    by = f"by the preset {report.preset} with the aim {report.aim}"
    words = f" {report.requests:,} requests{runs}, {by}, at the prices of {prices}"
    title = together(shortened(report.session), element("small", words))
    return _section(title, _replay(report), last, id=f"session-{at}")


def _table(head: str, rows: Sequence[tuple[Node, object]], columns: Sequence[tables.Column]) -> Markup:
    """A table whose rows are named by links, stars or small print."""
    heads = (head, *(column.head for column in columns))
    return table(heads, [(label, [column.cell(row) for column in columns]) for label, row in rows], "sessions")
