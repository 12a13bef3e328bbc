"""HTML, built from elements.

Laws
  Text is escaped whatever it holds, also in attributes: only `element` makes markup, and no name of an element or of an
  attribute comes from outside.
  What cannot be seen (control characters, direction marks, halves of surrogate pairs) is shown as �: it neither hides
  nor reorders anything, and every page can be written as UTF-8.
"""

from collections.abc import Iterable
from html import escape


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


Node = str | Iterable["Node"]
"""Text, markup, or several of them."""

_VOID = frozenset({"meta"})
_UNSEEN = "�"


def element(name: str, /, *inside: Node, **attributes: str | int | bool | None) -> Markup:
    """One element. `class_` is the attribute class, `aria_label` is aria-label; True is an attribute without a value,
    and None or False is none."""
    said = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None)
    if name in _VOID:
        return Markup(f"<{name}{said}>")
    return Markup(f"<{name}{said}>{together(*inside)}</{name}>")


def together(*inside: Node) -> Markup:
    """Several nodes, one after the other."""
    return Markup("".join(_markup(node) for node in inside))


def seen(text: str) -> str:
    """The text with every character that cannot be seen, but for line ends and tabs, replaced."""
    text = text.replace("\r\n", "\n")
    return text if text.isprintable() else "".join(c if c.isprintable() or c in "\n\t" else _UNSEEN for c in text)


def _markup(node: Node) -> str:
    if isinstance(node, Markup):
        return node
    return escape(seen(node)) if isinstance(node, str) else together(*node)


def _attribute(key: str, value: str | int | bool) -> str:
    name = key.removesuffix("_").replace("_", "-")
    if isinstance(value, bool):
        return f" {name}" if value else ""
    return f' {name}="{escape(seen(str(value)))}"'
