"""The lines of a picture: what each is called, its bar, and its figures."""

from collections.abc import Iterable, Sequence

from proxy.drawing.html import Markup, Node, element, together

FOLDED = 40
"""A longer list is folded."""


def shortened(text: str, most: int = 120) -> str:
    """A name from outside, not too long."""
    return text if len(text) <= most else f"{text[:most]}…"


def figures(before: int, unit: str, after: int | None = None) -> Markup:
    """Before and, where it is another one, after; `unit` is for those who do not see the column's head."""
    left = f"{before:,}" if after in (None, before) else f"{before:,} → {after:,}"
    return element("span", left, element("span", f" {unit}", class_="unseen"), class_="n")


def asides(notes: Iterable[str]) -> Sequence[Markup]:
    """What a reader has to know of the figures above, each once."""
    return [element("p", note, class_="aside") for note in dict.fromkeys(notes)]


def row(place: str, label: Node, drawn: Markup, *columns: Markup) -> Markup:
    """One line of a picture."""
    return element("li", element("span", place, class_="at"), element("span", label, class_="label"), drawn, *columns)


def rows(heads: Sequence[str], lines: Sequence[Markup], name: str = "rows") -> Markup:
    """The lines under what their columns are called."""
    classes = ("at", "label", "scale", *("n" for _ in heads[3:]))
    head = [element("span", text, class_=name) for text, name in zip(heads, classes, strict=True)]
    return together(element("p", head, class_=f"heads {name}", aria_hidden="true"), element("ol", lines, class_=name))


def folded(summary: str, inside: Markup, count: int) -> Markup:
    """A list that a reader opens; a short one is open."""
    return element("details", element("summary", summary), inside, open=count <= FOLDED)
