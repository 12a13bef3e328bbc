"""The frame of every page: its name, when and by which version it was drawn, and what it covers, so that it can be
filed."""

from dataclasses import dataclass
from datetime import UTC, datetime

from proxy.drawing.html import Markup, Node, document, element

_LAWS = "The page loads nothing and runs no script. All bars of a chart have the same scale."


@dataclass(frozen=True, slots=True)
class Imprint:
    """What a page is: drawn when (in seconds since 1970), by which version, and of what."""

    at: float
    version: str
    covers: str


def framed(title: str, heading: Node, imprint: Imprint, *inside: Node, has_forms: bool = False) -> str:
    """The whole page."""
    date = element("time", minute(imprint.at), datetime=minute(imprint.at).replace(" UTC", "Z").replace(" ", "T"))
    line = element("p", date, f" · {imprint.covers} · Narrows {imprint.version}", class_="aside imprint")
    words = f"Drawn by Narrows {imprint.version} at {minute(imprint.at)}. {_LAWS}"
    footer = element("footer", element("p", words, class_="aside"))
    return document(f"Narrows: {title}", element("h1", heading), line, *inside, footer, has_forms=has_forms)


def section(title: Node, *inside: Node, **attributes: str) -> Markup:
    """One part of a page, under its heading."""
    return element("section", element("h2", title), *inside, **attributes)


def headline(amount: Node, *words: Node) -> Markup:
    """The one figure that a page is about, and what it is."""
    return element("p", element("strong", amount), element("span", *words), class_="headline")


def minute(at: float) -> str:
    """A time in seconds since 1970, to the minute."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")
