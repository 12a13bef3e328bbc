"""HTML as text: headings, paragraphs, list items, cells and links by their words, and an excerpt of that.

Law: linear, whatever the page holds: a tag ends before the next one begins.
"""

import re
from collections.abc import Iterator
from html import unescape
from itertools import islice

from policies.digests.rows import Source
from policies.text.excerpt import excerpt
from policies.tools import HEAD

_END = 32_000
"""Of a longer page than two of them, these at both ends are read."""
_LOOKED_AT = 64_000
_START = re.compile(r"\s{0,200}(?:<\?xml[^<>]{0,200}>\s{0,20})?<(?:!doctype html|html|head|body)\b", re.I)
_CLOSED = re.compile(r"</(?:p|div|a|li|td|h[1-6]|span|ul|table|section)>", re.I)
_MANY = 20
_TAG = re.compile(
    r"<(?:(/?)([a-z][^\s/<>]{0,80})(?>[^<>\"']{1,2000}|\"[^<\"]{0,2000}\"|'[^<']{0,2000}'|[\"']){0,2000}|[!?][^<>]{0,2000})>",
    re.I,
)
_SILENT = frozenset({"script", "style", "noscript", "template", "svg", "head"})
_NO_TAGS = ("script", "style")
"""What stands in these is no markup."""
_LEADS = {"li": "- ", "td": " | ", "th": " | ", **{f"h{depth}": "#" * depth + " " for depth in range(1, 7)}}
_BLOCKS = frozenset({*_LEADS, "p", "div", "br", "ul", "ol", "dl", "dt", "dd", "tr", "table", "section", "article"}) - {
    "td",
    "th",
} | {"header", "footer", "nav", "main", "aside", "pre", "blockquote", "form", "hr", "title"}


def as_text(source: Source) -> str:
    """An excerpt of the page's words; "" where the text is no page. What is left out is counted in those words."""
    if not (_START.match(source.text[:1000]) or _closes(source.text[:_LOOKED_AT])):
        return ""
    words = "\n".join(_lines(source.text))
    return excerpt(words, source.budget, HEAD[source.kind], source.mentioned, source.cost) if words else ""


def _lines(text: str) -> Iterator[str]:
    """The lines of the page that say something."""
    if len(text) > 2 * _END:
        text = f"{text[:_END]}\n{text[-_END:]}"
    for line in "".join(_words("".join(_uncommented(text)))).split("\n"):
        if said := " ".join(line.split()).removeprefix("| "):
            yield said


def _uncommented(text: str) -> Iterator[str]:
    """The text without comments."""
    first, *others = text.split("<!--")
    yield first
    for part in others:
        yield part.partition("-->")[2]


def _closes(text: str) -> bool:
    """Whether so much markup is closed that it is no accident."""
    return text.count("</") >= _MANY and len([*islice(_CLOSED.finditer(text), _MANY)]) == _MANY


def _words(page: str) -> Iterator[str]:
    """The words of a page, a line for each block of it. What is not for readers is silent up to its end."""
    silent, last, done = "", "", 0
    for tag in _TAG.finditer(page):
        yield _said(page[done : tag.start()], silent, last)
        done, name = tag.end(), (tag[2] or "").lower()
        if name in _SILENT and not tag[1]:
            silent = silent or name
        if silent not in _NO_TAGS and name:
            yield "\n" * (name in _BLOCKS) + ("" if tag[1] else _LEADS.get(name, ""))
            last = last if tag[1] else name
        if name == silent and (tag[1] or tag[0].endswith("/>")):
            silent = ""
    yield _said(page[done:], silent, last)


def _said(words: str, silent: str, tag: str) -> str:
    """Words below a tag, but for those that are not for readers. Their line ends mean nothing."""
    if silent and not (silent == "head" and tag == "title"):
        return ""
    return (unescape(words) if "&" in words else words).replace("\n", " ")
