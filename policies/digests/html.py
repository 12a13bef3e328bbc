"""HTML as text: the words of headings, paragraphs, list items, cells and links, and an excerpt of these.

Law: the time is linear in any page: a tag ends before the next one begins.
"""

import re
from collections.abc import Iterator
from html import unescape
from itertools import islice

from policies.digests.rows import Source
from policies.text.excerpt import excerpt
from policies.tools import HEAD

_END = 32_000
"""Of a page of more than twice as many characters, so many at either end are read."""
_LOOKED_AT = 64_000
_START = re.compile(r"\s{0,200}(?:<\?xml[^<>]{0,200}>\s{0,20})?<(?:!doctype html|html|head|body)\b", re.I)
_CLOSED = re.compile(r"</(?:p|div|a|li|td|h[1-6]|span|ul|table|section)>", re.I)
_MANY = 20
_TAG = re.compile(
    r"<(?:(/?)([a-z][^\s/<>]{0,80})(?>[^<>\"']{1,2000}|\"[^<\"]{0,2000}\"|'[^<']{0,2000}'|[\"']){0,2000}|[!?][^<>]{0,2000})>",
    re.I,
)
_SILENT = frozenset({"script", "style", "noscript", "template", "svg", "head"})
_LEADS = {"li": "- ", "td": " | ", "th": " | ", **{f"h{depth}": "#" * depth + " " for depth in range(1, 7)}}
_BLOCKS = frozenset({*_LEADS, "p", "div", "br", "ul", "ol", "dl", "dt", "dd", "tr", "table", "section", "article"}) - {
    "td",
    "th",
} | {"header", "footer", "nav", "main", "aside", "pre", "blockquote", "form", "hr", "title"}


def html_digest(source: Source) -> str:
    """An excerpt of the page's words; "" where the text is no page. What is left out is counted in those words."""
    text, beginning = source.text, source.text[:_LOOKED_AT]
    if not _START.match(text[:1000]):  # so many elements are closed only in a page
        closed = islice(_CLOSED.finditer(beginning), _MANY) if beginning.count("</") >= _MANY else ()
        if len([*closed]) < _MANY:
            return ""
    if len(text) > 2 * _END:
        text = f"{text[:_END]}\n{text[-_END:]}"
    first, *others = text.split("<!--")
    uncommented = "".join([first, *(part.partition("-->")[2] for part in others)])
    lines = (" ".join(line.split()).removeprefix("| ") for line in "".join(_words(uncommented)).split("\n"))
    words = "\n".join(filter(None, lines))
    return excerpt(words, source.budget, HEAD[source.kind], source.mentioned, source.cost) if words else ""


def _words(page: str) -> Iterator[str]:
    """The words of a page, a line for each block of it. What readers do not see is skipped up to its closing tag."""
    silent, last, start = "", "", 0
    for tag in _TAG.finditer(page):
        yield _visible(page[start : tag.start()], silent, last)
        start, name = tag.end(), (tag[2] or "").lower()
        if name in _SILENT and not tag[1]:
            silent = silent or name
        if silent not in ("script", "style") and name:  # the content of these is not markup
            yield "\n" * (name in _BLOCKS) + ("" if tag[1] else _LEADS.get(name, ""))
            last = last if tag[1] else name
        if name == silent and (tag[1] or tag[0].endswith("/>")):
            silent = ""
    yield _visible(page[start:], silent, last)


def _visible(words: str, silent: str, tag: str) -> str:
    """The words after a tag as one line; none where readers do not see them."""
    if silent and not (silent == "head" and tag == "title"):
        return ""
    return (unescape(words) if "&" in words else words).replace("\n", " ")
