"""HTML, built from elements, and the page that it stands on, which needs nothing else.

Laws
  Text is escaped whatever it holds, also in attributes: only `element` makes markup, and no name of an element or of an
  attribute comes from outside.
  What cannot be seen (control characters, direction marks, halves of surrogate pairs) is shown as �: it neither hides
  nor reorders anything, and every page can be written as UTF-8.
  A page loads nothing, runs nothing and sends nothing, but for the forms of one that has some, to where it came from:
  its policy forbids all but its own style, which is named by digest.
"""

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from html import escape
from importlib.resources import files

_EMPTY = ("meta", "input")
_STYLE = (files(__package__) / "page.css").read_text(encoding="utf-8")
_DIGEST = base64.b64encode(sha256(_STYLE.encode()).digest()).decode()


class Markup(str):
    __slots__ = ()


Node = str | Iterable["Node"]


def element(name: str, /, *inside: Node, **attributes: str | int | bool | None) -> Markup:
    """One element. `class_` is class, `aria_label` aria-label; True: without a value; None or False: not there."""
    opening = name
    for key, value in attributes.items():
        if value is not None and value is not False:
            attribute = key.removesuffix("_").replace("_", "-")
            opening += f" {attribute}" if value is True else f' {attribute}="{escape(visible(str(value)))}"'
    return Markup(f"<{opening}>" if name in _EMPTY else f"<{opening}>{together(*inside)}</{name}>")


def together(*inside: Node) -> Markup:
    markup = ""
    for node in inside:
        text = together(*node) if not isinstance(node, str) else node
        markup += text if isinstance(text, Markup) else escape(visible(text))
    return Markup(markup)


def table(heads: Iterable[Node], rows: Iterable[tuple[Node, Iterable[Node]]], name: str) -> Markup:
    """A table: what its columns are called, and rows of a label and the other cells."""
    head = element("tr", [element("th", text, scope="col") if text else element("td") for text in heads])
    body = [
        element("tr", element("th", label, scope="row"), [element("td", cell) for cell in cells])
        for label, cells in rows
    ]
    return element("table", element("thead", head), element("tbody", body), class_=name)


def visible(text: str) -> str:
    """The text with every character that cannot be seen, but for line ends and tabs, replaced."""
    text = text.replace("\r\n", "\n")
    return text if text.isprintable() else "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)


def policy(has_forms: bool = False) -> str:
    """The Content-Security-Policy of a page."""
    forms = "'self'" if has_forms else "'none'"
    return f"default-src 'none'; style-src 'sha256-{_DIGEST}'; base-uri 'none'; form-action {forms}"


def document(title: str, *inside: Node, has_forms: bool = False) -> str:
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy(has_forms)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        # a form from a page without a referrer has no Origin either
        element("meta", name="referrer", content="same-origin" if has_forms else "no-referrer"),
        element("title", title),
        element("style", Markup(_STYLE)),
    )
    return f"<!doctype html>\n{element('html', head, element('body', element('main', *inside)), lang='en')}\n"


# --- the frame of every page ---
# Its name, when and by which version it was drawn, and what it covers, so that it can be filed.

_LAWS = "The page loads nothing and runs no script. All bars of a chart have the same scale."


@dataclass(frozen=True, slots=True)
class Imprint:
    """The origin of a page: drawn when (in seconds since 1970), by which version, and of what."""

    at: float
    version: str
    covers: str


def framed(title: str, heading: Node, imprint: Imprint, *inside: Node, has_forms: bool = False) -> str:
    date = element("time", minute(imprint.at), datetime=minute(imprint.at).replace(" UTC", "Z").replace(" ", "T"))
    line = element("p", date, f" · {imprint.covers} · Narrows {imprint.version}", class_="aside imprint")
    words = f"Drawn by Narrows {imprint.version} at {minute(imprint.at)}. {_LAWS}"
    footer = element("footer", element("p", words, class_="aside"))
    return document(f"Narrows: {title}", element("h1", heading), line, *inside, footer, has_forms=has_forms)


def section(title: Node, *inside: Node, **attributes: str) -> Markup:
    return element("section", element("h2", title), *inside, **attributes)


def headline(amount: Node, *words: Node) -> Markup:
    """The one figure that a page is about, and what it is."""
    return element("p", element("strong", amount), element("span", *words), class_="headline")


def minute(at: float) -> str:
    """A time in seconds since 1970, to the minute."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")
