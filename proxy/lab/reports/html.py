"""HTML, built from elements, and the page that it stands on: one file that needs nothing else.

Laws
  Text is escaped whatever it holds, also in attributes: only `element` makes markup, and no name of an element or of an
  attribute comes from outside.
  What cannot be seen (control characters, direction marks, halves of surrogate pairs) is shown as �: it neither hides
  nor reorders anything, and every page can be written as UTF-8.
  A page loads nothing, runs nothing and sends nothing: its policy forbids all but its own style, which is named by
  digest.
  Whether a page can be written is tried before anything is run; what was there before is replaced when the page is
  there.
"""

import base64
from collections.abc import Iterable, Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Literal


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


Node = str | Iterable["Node"]
"""Text, markup, or several of them."""


def element(name: str, /, *inside: Node, **attributes: str | int | bool | None) -> Markup:
    """One element. `class_` is the attribute class, `aria_label` is aria-label; True is an attribute without a value,
    and None or False is none."""
    opening = name
    for key, value in attributes.items():
        if value is not None and value is not False:
            attribute = key.removesuffix("_").replace("_", "-")
            opening += f" {attribute}" if value is True else f' {attribute}="{escape(visible(str(value)))}"'
    return Markup(f"<{opening}>" if name == "meta" else f"<{opening}>{together(*inside)}</{name}>")


def together(*inside: Node) -> Markup:
    """Several nodes, one after the other."""
    markup = ""
    for node in inside:
        text = together(*node) if not isinstance(node, str) else node
        markup += text if isinstance(text, Markup) else escape(visible(text))
    return Markup(markup)


def table(heads: Iterable[str], rows: Iterable[tuple[Node, Iterable[Node]]], name: str) -> Markup:
    """A table: what its columns are called, and rows of a label and the other cells."""
    head = element("tr", [element("th", text, scope="col") for text in heads])
    body = [
        element("tr", element("th", label, scope="row"), [element("td", cell) for cell in cells])
        for label, cells in rows
    ]
    return element("table", element("thead", head), element("tbody", body), class_=name)


def visible(text: str) -> str:
    """The text with every character that cannot be seen, but for line ends and tabs, replaced."""
    text = text.replace("\r\n", "\n")
    return text if text.isprintable() else "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)


def document(title: str, *inside: Node) -> str:
    """The whole page."""
    style = (files("proxy.lab.reports") / "page.css").read_text(encoding="utf-8")
    digest = base64.b64encode(sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", title),
        element("style", Markup(style)),
    )
    return f"<!doctype html>\n{element('html', head, element('body', element('main', *inside)), lang='en')}\n"


def writable(name: str | None, sources: Sequence[str | Path] = ()) -> Path | None:
    """The file that a page is to be written to, if there is to be one. Raises ValueError where it cannot be written, or
    is one of the sources."""
    if name is None:
        return None
    path = Path(name)
    if name in ("", "-"):
        raise ValueError(f"--html needs the name of a file; {name or 'nothing'} is none")
    if path.exists() and any(Path(source).exists() and path.samefile(source) for source in sources):
        raise ValueError(f"--html {name} would write over what it is about; name another file")
    is_new = not path.exists()
    if is_new or not (path.is_char_device() or path.is_fifo()):
        write(path, "", "ab")
    if is_new:
        path.unlink()
    return path


def write(path: Path, page: str, mode: Literal["ab", "wb"] = "wb") -> None:
    """Write the page. Raises ValueError, with a sentence, where that fails."""
    try:
        with path.open(mode) as file:
            file.write(page.encode())
    except OSError as error:
        raise ValueError(f"cannot write {path} ({error.strerror}); name a file that can be written") from error
