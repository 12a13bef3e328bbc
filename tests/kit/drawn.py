"""A page that was drawn, read as strictly as it can be."""

import base64
import re
from functools import cached_property
from hashlib import sha256
from html.parser import HTMLParser

VOID = {"input", "meta"}
ATTRIBUTES = {
    *("action", "aria-hidden", "aria-label", "autocomplete", "charset", "class", "content", "datetime", "height"),
    *("hidden", "href", "http-equiv", "id", "lang", "method", "name", "open", "preserveaspectratio", "required"),
    *("role", "scope", "tabindex", "text-anchor", "title", "type", "value", "viewbox", "width"),
    *("x", "x1", "x2", "y", "y1", "y2"),
}
HOSTILE = '</pre></style><script>alert(1)</script><img src=x onerror="alert(2)"> \'" style="x:y" &lt;b&gt;'


class Drawn(HTMLParser):
    """What a page holds, read as strictly as it can be: every element is closed where it belongs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.comments: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), (tag, attrs)
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    @cached_property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def values(self, attribute: str) -> list[str | None]:
        return [attrs[attribute] for _, attrs in self.tags if attribute in attrs]

    def count(self, tag: str, **attributes: str) -> int:
        return sum(name == tag and attributes.items() <= attrs.items() for name, attrs in self.tags)


def checked(text: str, links: str = r"#session-\d+") -> Drawn:
    """The page, which has to be well-formed, alone in the world, and without anything that could run."""
    found = Drawn(text)
    assert text.startswith('<!doctype html>\n<html lang="en">')
    assert not found.comments
    assert {name for _, attrs in found.tags for name in attrs} <= ATTRIBUTES
    assert not {tag for tag, _ in found.tags} & {"script", "img", "link", "iframe", "object"}
    assert all(re.fullmatch(links, link or "") for link in found.values("href"))
    style = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    digest = base64.b64encode(sha256(style[0].encode()).digest()).decode()
    assert len(style) == 1
    assert not re.search(r"url\(|@import|http", style[0])
    forms = "'self'" if found.count("form") else "'none'"
    assert all(re.fullmatch(r"/narrows/log(in|out)", action or "") for action in found.values("action"))
    (policy,) = (attrs["content"] or "" for _, attrs in found.tags if "http-equiv" in attrs)
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action {forms}"
    return found
