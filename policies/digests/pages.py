"""HTML as text: headings, paragraphs, list items, cells and links by their words, and an excerpt of that.

Law: the parser sees whole tags only, each short and without another inside; it takes quadratic time for others.
"""

import re
from collections.abc import Iterator
from html.parser import HTMLParser

from policies.digests.rows import Source
from policies.excerpt import excerpt
from policies.tools import HEAD

_LOOKED_AT = 64_000
_START = re.compile(r"\s{0,200}(?:<\?xml[^<>]{0,200}>\s{0,20})?<(?:!doctype html|html|head|body)\b", re.I)
_TAGS = re.compile(r"</(?:p|div|a|li|td|h[1-6]|span|ul|table|section)>", re.I)
_MANY = 20
_LOOSE = re.compile(r"<(?!(?:/?[a-z]|!doctype|\?)[^<>]{0,2000}>)", re.I)
_SILENT = frozenset({"script", "style", "noscript", "template", "svg", "head"})
_LEADS = {"li": "- ", "td": " | ", "th": " | ", **{f"h{depth}": "#" * depth + " " for depth in range(1, 7)}}
_BLOCKS = frozenset({*_LEADS, "p", "div", "br", "ul", "ol", "dl", "dt", "dd", "tr", "table", "section", "article"}) - {
    "td",
    "th",
} | {"header", "footer", "nav", "main", "aside", "pre", "blockquote", "form", "hr", "title"}


def as_text(source: Source) -> str:
    """An excerpt of the page's words; "" where the text is no page. What is left out is counted in those words."""
    if not (_START.match(source.text[:1000]) or len(_TAGS.findall(source.text[:_LOOKED_AT])) >= _MANY):
        return ""
    try:
        words = "\n".join(_lines(source.text))
    except (ValueError, AssertionError):  # html.parser on a number of thousands of digits, and on broken declarations
        return ""
    return excerpt(words, source.budget, HEAD[source.kind], source.mentioned, source.cost) if words else ""


def _lines(text: str) -> Iterator[str]:
    """The lines of the page that say something."""
    if len(text) > 2 * _LOOKED_AT:
        text = f"{text[:_LOOKED_AT]}\n{text[-_LOOKED_AT:]}"
    page = _Page()
    page.feed(_LOOSE.sub("&lt;", "".join(_uncommented(text))))
    page.close()
    for line in "".join(page.words).split("\n"):
        if said := " ".join(line.split()).removeprefix("| "):
            yield said


def _uncommented(text: str) -> Iterator[str]:
    """The text without comments."""
    first, *others = text.split("<!--")
    yield first
    for part in others:
        yield part.partition("-->")[2]


class _Page(HTMLParser):
    """Collects the words of a page, a line for each block of it."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self._silent = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A block begins a line; what is not for readers is silent up to its end."""
        if tag in _SILENT:
            self._silent = self._silent or tag
        self.words.append(("\n" if tag in _BLOCKS else "") + _LEADS.get(tag, ""))

    def handle_endtag(self, tag: str) -> None:
        """A block ends its line."""
        if tag == self._silent:
            self._silent = ""
        if tag in _BLOCKS:
            self.words.append("\n")

    def handle_data(self, data: str) -> None:
        """Words, but for those that are not for readers. Their line ends mean nothing."""
        if not self._silent or (self._silent == "head" and self.lasttag == "title"):
            self.words.append(data.replace("\n", " "))
