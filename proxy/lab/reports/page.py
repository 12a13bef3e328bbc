"""The two pages: what becomes of one request, and what became of replayed sessions.

Laws
  A page says what the values say, and nothing that is not in them; every figure stands as text.
  Nothing that a request, a session or the name of a file says becomes markup, a style or an address.
"""

from collections.abc import Iterator, Sequence

from proxy.lab.explain import Explanation
from proxy.lab.replay.averages import Mean
from proxy.lab.replay.bills import GROUPS, Report
from proxy.lab.replay.comparison import Standing
from proxy.lab.reports import contents, session_page
from proxy.lab.reports.contents import named
from proxy.lab.reports.drawing import UNKNOWN_PRICES, dollars, percent
from proxy.lab.reports.html import sheet
from proxy.lab.reports.markup import Markup, Node, element, together


def explained(name: str, told: Explanation, past: Report | str) -> str:
    """The dry run of a request, and what became of the session so far; or a sentence why nothing is known of it."""
    return sheet(
        f"Narrows: {named(name)}",
        element("h1", named(name)),
        _lead(told),
        _section("Layer by layer", contents.layers(told.layers, told.idle)),
        _section("Message by message", contents.messages(told.shares)),
        _section("What is left out, and why", contents.changes(told.changes, [layer.after for layer in told.layers])),
        _section("The bill of this request", _ends(told)),
        _section("The session until here", _past(past)),
        _colophon(),
    )


def replayed(found: Sequence[Report], averages: Sequence[Mean], presets: Sequence[Standing] = ()) -> str:
    """Replayed sessions: all in one table, then one after the other."""
    sections = [_session(at, report) for at, report in enumerate(found, 1)]
    return sheet(
        "Narrows: replayed sessions",
        element("h1", "Replayed sessions"),
        element("p", "Recorded sessions, turn by turn through a real Narrows, against doing nothing.", class_="lead"),
        _table(found),
        _section("Averages", _means(averages)),
        _section("Presets beside each other", _presets(presets)) if len({each.preset for each in presets}) > 1 else "",
        sections,
        _colophon(),
    )


def _section(title: Node, *inside: Node, **attributes: str) -> Markup:
    return element("section", element("h2", title), *inside, **attributes)


def _colophon() -> Markup:
    said = "Drawn by Narrows. This page loads nothing and runs no script; all bars of one picture have one scale."
    return element("footer", element("p", said, class_="aside"))


# --- one request ---


def _lead(told: Explanation) -> Markup:
    saved = 1 - told.after / told.before if told.before else 0.0
    less = f"{abs(saved):.0%} {'less' if saved >= 0 else 'more, for the recall tool'}"
    written, sent = told.layers[0].characters, told.layers[-1].characters
    tokens = element("strong", f"{told.before:,} → {told.after:,} tokens")
    why = "Why now" if told.changes else "Nothing to shorten"
    return together(
        element("p", tokens, f", {less}; {written:,} → {sent:,} characters.", class_="lead"),
        element("p", f"{why}: {told.verdict}.", class_="verdict"),
        element(
            "p",
            f"Request {told.steps:,} of its history, to {named(told.model)}, by the preset {told.preset}. A dry run: "
            "planned as the proxy plans it where its store knows nothing.",
            class_="aside",
        ),
    )


def _ends(told: Explanation) -> Markup:
    """The input at both ends: nothing of it cached, and all of it."""
    known = "" if told.prices.listed else UNKNOWN_PRICES
    head = element("tr", [element("th", text, scope="col") for text in ("its input", "as written", "as sent")])
    body = [
        element(
            "tr",
            element("th", said, scope="row"),
            [element("td", f"${dollars(told.bill(tokens, cached))}") for tokens in (told.before, told.after)],
        )
        for said, cached in (("nothing of it cached", False), ("all of it cached", True))
    ]
    note = f"At the prices of {named(told.prices.model)}{known}. The true bill lies between the two."
    table = element("table", element("thead", head), element("tbody", body), class_="bill")
    return together(table, element("p", note, class_="aside"))


def _past(past: Report | str) -> Markup:
    if isinstance(past, str):
        return element("p", past)
    said = (
        f"The {past.requests:,} requests of this file that were answered, turn by turn through a real Narrows and the "
        "built-in provider with its prompt cache."
    )
    return together(element("p", said), _replay(past))


# --- replays ---


def _replay(report: Report) -> Markup:
    parts = (
        ("In sight", session_page.sight(report)),
        ("The bill", session_page.bill(report)),
        ("The prefix, request by request", session_page.prefix(report)),
    )
    return together(session_page.faults(report), [[element("h3", title), drawn] for title, drawn in parts])


def _session(at: int, report: Report) -> Markup:
    weights: Node = ""
    if report.last is not None:
        layers, messages = contents.layers(report.last.layers), contents.messages(report.last.shares)
        title = "Its last request, layer by layer and message by message"
        weights = together(element("h3", title), layers, messages)
    runs = f" in {report.runs:,} runs" if report.runs > 1 else ""
    words = (
        f" {report.requests:,} requests{runs}, by the preset {report.preset}, at the prices of {named(report.model)}"
    )
    title = together(named(report.name), element("small", words))
    return _section(title, _replay(report), weights, id=f"session-{at}")


def _table(found: Sequence[Report]) -> Markup:
    heads = ("session", "input bill", "ratio", "worst", "visible", "lost", "breaks")
    head = element("tr", [element("th", text, scope="col") for text in heads])
    body = [element("tr", list(_summary(at, report))) for at, report in enumerate(found, 1)]
    return element("table", element("thead", head), element("tbody", body), class_="sessions")


def _summary(at: int, report: Report) -> Iterator[Markup]:
    link = element("a", named(report.name), href=f"#session-{at}")
    said = f"{report.requests:,} requests, {report.preset}, {named(report.model)}"
    wrong = element("small", element("strong", f" {report.faults:,} faults")) if report.faults else ""
    yield element("th", link, element("small", said), wrong, scope="row")
    yield element("td", f"${dollars(report.baseline.input)} → ${dollars(report.input)}")
    cells = (f"{report.ratio:.3f}", f"{report.worst:.3f}", percent(report.seen.all.share), f"{report.seen.all.lost:,}")
    yield together([element("td", text) for text in cells])
    yield element("td", f"{report.changed:,}")


def _means(averages: Sequence[Mean]) -> Markup:
    heads = ("means of", "sessions", "ratio", "worst", "visible", "rare", "quoted")
    head = element("tr", [element("th", text, scope="col") for text in heads])
    body = [
        element(
            "tr",
            element("th", GROUPS[mean.group], element("small", f"{mean.preset}, {named(mean.prices)}"), scope="row"),
            [element("td", text) for text in (f"{mean.sessions:,}", f"{mean.ratio:.3f}", f"{mean.worst:.3f}")],
            [element("td", percent(share)) for share in (mean.visible, mean.rare, mean.quoted)],
        )
        for mean in averages
    ]
    return element("table", element("thead", head), element("tbody", body), class_="sessions")


def _presets(rows: Sequence[Standing]) -> Markup:
    heads = ("preset", "ratio", "worst", "visible", "recoverable", "lost", "calls")
    head = element("tr", [element("th", text, scope="col") for text in heads])
    body = [element("tr", _preset(row)) for row in rows]
    table = element("table", element("thead", head), element("tbody", body), class_="sessions")
    return together(table, element("p", AHEAD, class_="aside"))


AHEAD = (
    "★ no other preset has a bill as low and as much in sight. Calls of a model are those that the sessions themselves "
    "did not make; what they cost is on the bill."
)


def _preset(row: Standing) -> list[Markup]:
    star = " ★" if row.ahead else ""
    name = element("th", row.preset, star, element("small", named(row.prices)), scope="row")
    shares = [percent(share) for share in (row.seen.share, row.recoverable)]
    times = sum(row.calls.values())
    calls = f"{times:,}, ${dollars(row.spent)}" if times else "0"
    cells = (f"{row.ratio:.3f}", f"{row.worst:.3f}", *shares, f"{row.seen.lost:,}", calls)
    return [name, *(element("td", text) for text in cells)]
