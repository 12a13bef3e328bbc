"""Bars: inline SVG, to scale.

Laws
  Widths and heights are in proportion to what they stand for, in one picture all by one scale; nothing is rounded up.
  What is sent is solid, what is left out is pale: no colour is needed to read it. All figures stand as text beside it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from proxy.drawing.html import Markup, Node, element, together

MARKS: Mapping[str, tuple[str, float]] = {
    "first": ("begun", 0.25),
    "extended": ("held", 0.25),
    "tail-cut": ("cut", 0.6),
    "client-changed": ("theirs", 0.8),
    "checkpoint": ("moved", 1.0),
    "refused": ("refused", 1.0),
}
"""How a word about the prefix is drawn: by the class of its colour, and by its height."""
_TALL = 100
_APART = 0.14
"""Space between two columns, as a share of the width of one."""
_FEWEST = 12
"""A picture has room for so many columns, so that a single one does not fill it."""
_EDGE = 0.04
"""Words that are nearer to an end of the picture (as a share of its width) are aligned with it."""


def bar(before: float, after: float, scale: float, name: str) -> Markup:
    """One bar: solid as far as it is sent, pale as far as it was."""
    pale = _across(before, 0, scale, f"{name} gone") if before > after else ""
    return element("svg", pale, _across(after, 0, scale, name), class_="bar", aria_hidden="true")


def stack(parts: Iterable[tuple[str, float]], scale: float) -> Markup:
    drawn: list[Markup] = []
    start = 0.0
    for name, size in parts:
        drawn += [_across(size, start, scale, name)] if size else []
        start += size
    return element("svg", drawn, class_="bar stack", aria_hidden="true")


def legend(samples: Mapping[str, str]) -> Markup:
    """A legend of the class of each sample."""
    items = [element("li", swatch(name), " ", meaning) for name, meaning in samples.items()]
    return element("ul", items, class_="legend")


def swatch(name: str) -> Markup:
    return element("svg", _across(1, 0, 1, name), class_="swatch", aria_hidden="true")


def skyline(sizes: Sequence[tuple[float, float, str]]) -> Markup:
    """Columns side by side: before, after, and their class."""
    scale = max((max(before, after) for before, after, _ in sizes), default=0) or 1
    drawn: list[Markup] = []
    for at, (before, after, name) in enumerate(sizes):
        drawn += [_upright(at, before / scale, f"{name} gone")] if before > after else []
        drawn.append(_upright(at, after / scale, name))
    return _columns(drawn, len(sizes), "chart")


def interval(low: float, middle: float, high: float, end: float) -> Markup:
    """A difference with its interval, on an axis from -`end` to `end` with a line at 0."""
    whole, thin = 2 * end, 0.006 * end
    drawn = [
        _across(high - low, low + end, whole, "ink gone"),
        _across(thin, end - thin / 2, whole, "zero"),
        _across(4 * thin, middle + end - 2 * thin, whole, "moved" if high < 0 else "seen"),
    ]
    return element("svg", drawn, class_="bar interval", aria_hidden="true")


def strip(prefixes: Sequence[str]) -> Markup:
    """One mark for each request, below its column: what its reply said of the prefix."""
    drawn = [_upright(at, tall, name) for at, (name, tall) in enumerate(map(mark, prefixes))]
    return _columns(drawn, len(prefixes), "strip")


def mark(prefix: str) -> tuple[str, float]:
    """The class and the height of a word about the prefix."""
    return MARKS.get(prefix.partition(":")[0], ("other", 0.4))


def legend_of_prefixes(prefixes: Sequence[str]) -> Markup:
    """A legend of the marks of these prefixes, each colour once, with how often it was so."""
    items: dict[str, list[str]] = {}
    for word, count in Counter(prefixes).items():
        items.setdefault(mark(word)[0], []).append(f"{word or 'not reported'} {count:,}")
    return legend({name: ", ".join(words) for name, words in items.items()})


def stacked_columns(columns: Sequence[Sequence[tuple[str, float]]]) -> Markup:
    """One column of several parts for each of these, the first part lowest; each part has its class."""
    scale = max((sum(size for _, size in parts) for parts in columns), default=0) or 1
    drawn: list[Markup] = []
    for at, parts in enumerate(columns):
        start = 0.0
        for name, size in parts:
            drawn += [_upright(at, size / scale, name, start / scale)] if size else []
            start += size
    return _columns(drawn, len(columns), "chart")


def plot(picture: Markup, top: str, ticks: Iterable[tuple[float, str]]) -> Markup:
    """A picture with its axes: what its full height stands for, and words along its width, each at its share of it."""
    marks: list[Markup] = []
    for place, word in ticks:
        x, anchor = f"{100 * place:.3f}%", "start" if place < _EDGE else "end" if place > 1 - _EDGE else "middle"
        marks.append(element("line", x1=x, x2=x, y1="0", y2="5"))
        marks.append(element("text", word, x=x, y="18", text_anchor=anchor))
    scale = element("div", element("span", top), element("span", "0"), class_="scale")
    axis = element("svg", marks, class_="ticks", aria_hidden="true")
    return element("div", scale, element("div", picture, axis, class_="drawn"), class_="plot", aria_hidden="true")


def count_ticks(count: int) -> list[tuple[float, str]]:
    """Some round numbers from 1 to `count`, each below the middle of its column."""
    step = next((step for size in range(9) for step in (10**size, 2 * 10**size, 5 * 10**size) if count <= 6 * step), 1)
    numbers = [1, *range(step, count + 1, step)] if step > 1 else [*range(1, count + 1)]
    return [((number - 0.5) / max(count, _FEWEST), f"{number:,}") for number in numbers]


def _across(size: float, start: float, scale: float, name: str) -> Markup:
    width, x = (f"{100 * part / (scale or 1):.4f}%" for part in (size, start))
    return element("rect", x=x, width=width, height="100%", class_=name)


def _upright(at: int, share: float, name: str, start: float = 0.0) -> Markup:
    tall = share * _TALL
    x, y = f"{at + _APART / 2:g}", f"{_TALL - start * _TALL - tall:.3f}"
    return element("rect", class_=name, x=x, y=y, width=f"{1 - _APART:g}", height=f"{tall:.3f}")


def _columns(drawn: Sequence[Markup], count: int, name: str) -> Markup:
    return element(
        "svg",
        drawn,
        class_=name,
        viewBox=f"0 0 {max(count, _FEWEST)} {_TALL}",
        preserveAspectRatio="none",
        aria_hidden="true",
    )


# --- the lines of a picture: what each is called, its bar, and its figures ---

FOLDED = 40
"""Lines above which a list is folded."""


def shortened(text: str, most: int = 120) -> str:
    """The text, cut after so many characters."""
    return text if len(text) <= most else f"{text[:most]}…"


def figures(before: int, unit: str, after: int | None = None) -> Markup:
    """Before and, where it is another one, after; `unit` is for those who do not see the column's head."""
    left = f"{before:,}" if after in (None, before) else f"{before:,} → {after:,}"
    return element("span", left, element("span", f" {unit}", class_="unseen"), class_="n")


def asides(notes: Iterable[str]) -> Sequence[Markup]:
    """Notes on the figures above, each once."""
    return [element("p", note, class_="aside") for note in dict.fromkeys(notes)]


def row(place: str, label: Node, drawn: Markup, *columns: Markup) -> Markup:
    return element("li", element("span", place, class_="at"), element("span", label, class_="label"), drawn, *columns)


def rows(heads: Sequence[str], lines: Sequence[Markup], name: str = "rows") -> Markup:
    """The lines under what their columns are called."""
    classes = ("at", "label", "scale", *("n" for _ in heads[3:]))
    head = [element("span", text, class_=name) for text, name in zip(heads, classes, strict=True)]
    return together(element("p", head, class_=f"heads {name}", aria_hidden="true"), element("ol", lines, class_=name))


def folded(summary: str, inside: Markup, count: int) -> Markup:
    """A list that a reader opens; a short one is open."""
    return element("details", element("summary", summary), inside, open=count <= FOLDED)
