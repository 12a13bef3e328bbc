"""Bars for pages: inline SVG, to scale.

Laws
  Widths and heights are in proportion to the tokens, in one picture all by one scale; nothing is rounded up.
  What is sent is solid, what is left out is pale: no colour is needed to read it. All figures stand as text beside it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from proxy.lab.breakdown import TOOLS, BeforeAfter, MessageSize
from proxy.lab.replay.report import REFUSED, RequestResult
from proxy.lab.reports.html import Markup, element, together

KINDS: Mapping[str, str] = {
    TOOLS: "tool schemas",
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "call": "call: the arguments of a tool",
    "result": "result: the output of a tool",
    "opaque": "opaque: images, thinking and the like",
}
"""What the kinds of a message are, in the order of every stack."""
MARKS: Mapping[str, tuple[str, float]] = {
    "first": ("held", 0.25),
    "extended": ("held", 0.25),
    "tail-cut": ("cut", 0.6),
    "checkpoint": ("moved", 1.0),
    REFUSED: ("refused", 1.0),
}
"""How a word about the prefix is drawn: by the class of its colour, and by its height."""
_TALL = 100
_APART = 0.14
"""Between two columns, of the width of one."""


def bar(tokens: BeforeAfter, scale: int, kind: str) -> Markup:
    """One bar: solid as far as it is sent, pale as far as it was."""
    pale = _across(tokens.before, 0, scale, f"{_class(kind)} gone") if tokens.before > tokens.after else ""
    return element("svg", pale, _across(tokens.after, 0, scale, _class(kind)), class_="bar", aria_hidden="true")


def stack(parts: Iterable[tuple[str, int]], scale: int) -> Markup:
    """One bar of several parts, each with its class."""
    drawn: list[Markup] = []
    start = 0
    for name, tokens in parts:
        drawn += [_across(tokens, start, scale, name)] if tokens else []
        start += tokens
    return element("svg", drawn, class_="bar stack", aria_hidden="true")


def stack_of_kinds(tokens: Mapping[str, int], scale: int) -> Markup:
    """One bar of the kinds of blocks, each in its colour."""
    return stack(((_class(kind), tokens.get(kind, 0)) for kind in KINDS), scale)


def legend(samples: Mapping[str, str]) -> Markup:
    """What the class of each sample means."""
    items = [element("li", swatch(name), " ", meaning) for name, meaning in samples.items()]
    return element("ul", items, class_="legend")


def legend_of_kinds(present: Collection[str]) -> Markup:
    """What the colours of bars mean, for the kinds that there are."""
    return legend({_class(kind): meaning for kind, meaning in KINDS.items() if kind in present})


def swatch(name: str) -> Markup:
    """A small sample of a class, for a legend."""
    return element("svg", _across(1, 0, 1, name), class_="swatch", aria_hidden="true")


def messages(sizes: Sequence[MessageSize]) -> Markup:
    """One column for each message, so that many are seen at once."""
    return _skyline([(size.tokens.before, size.tokens.after, _class(size.kind)) for size in sizes])


def requests(results: Sequence[RequestResult]) -> Markup:
    """One column for each request: its tokens as sent, and behind it as they would have been; below it, one mark: what
    its reply said of the prefix."""
    columns = _skyline([(result.tokens_sent.without, result.tokens_sent.with_, "ink") for result in results])
    marks = [mark(result.prefix) for result in results]
    strip = _columns([_upright(at, tall, name) for at, (name, tall) in enumerate(marks)], len(marks), "strip")
    return together(columns, strip)


def histogram(counts: Sequence[int]) -> Markup:
    """One column for each count."""
    return _skyline([(count, count, "ink") for count in counts])


def mark(prefix: str) -> tuple[str, float]:
    """The class and the height of a word about the prefix."""
    return MARKS.get(prefix.partition(":")[0], ("other", 0.4))


def _class(kind: str) -> str:
    return f"k-{kind}" if kind in KINDS else "k-other"


def _across(tokens: int, start: int, scale: int, name: str) -> Markup:
    width, x = (f"{100 * part / (scale or 1):.4f}%" for part in (tokens, start))
    return element("rect", x=x, width=width, height="100%", class_=name)


def _upright(at: int, share: float, name: str) -> Markup:
    tall = share * _TALL
    x, y = f"{at + _APART / 2:g}", f"{_TALL - tall:.3f}"
    return element("rect", class_=name, x=x, y=y, width=f"{1 - _APART:g}", height=f"{tall:.3f}")


def _skyline(sizes: Sequence[tuple[float, float, str]]) -> Markup:
    """Columns side by side: before, after, and their class."""
    scale = max((max(before, after) for before, after, _ in sizes), default=0) or 1
    drawn: list[Markup] = []
    for at, (before, after, name) in enumerate(sizes):
        drawn += [_upright(at, before / scale, f"{name} gone")] if before > after else []
        drawn.append(_upright(at, after / scale, name))
    return _columns(drawn, len(sizes), "chart")


def _columns(drawn: Sequence[Markup], count: int, name: str) -> Markup:
    return element(
        "svg",
        drawn,
        class_=name,
        viewBox=f"0 0 {count or 1} {_TALL}",
        preserveAspectRatio="none",
        width=14 * count,  # pixels, where there is room
        aria_hidden="true",
    )
