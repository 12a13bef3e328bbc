"""One request on a page: what it weighs, layer by layer and message by message, and what was left out of it."""

from collections.abc import Iterator, Sequence

from proxy.lab.breakdown import TOOLS, Layer, Share
from proxy.lab.explain import WHY, Change
from proxy.lab.reports import charts
from proxy.lab.reports.charts import bar, by_kind, ends, legend, stack
from proxy.lab.reports.drawing import percent
from proxy.lab.reports.markup import Markup, Node, element, together

FOLDED = 40
"""A longer list is folded."""
_TEXT = 4_000
"""Characters of a stub that are shown."""
_NAME = 120
"""Characters of a name that are shown."""


def figures(before: int, unit: str, after: int | None = None) -> Markup:
    """Before and, where it is another one, after; `unit` is for those who do not see the column's head."""
    left = f"{before:,}" if after in (None, before) else f"{before:,} → {after:,}"
    return element("span", left, element("span", f" {unit}", class_="unseen"), class_="n")


def row(place: str, label: Node, drawn: Markup, *columns: Markup) -> Markup:
    """One line of a picture."""
    return element("li", element("span", place, class_="at"), element("span", label, class_="label"), drawn, *columns)


def rows(heads: Sequence[str], lines: Sequence[Markup], name: str = "rows") -> Markup:
    """The lines under what their columns are called."""
    classes = ("at", "label", "scale", *("n" for _ in heads[3:]))
    head = [element("span", text, class_=name) for text, name in zip(heads, classes, strict=True)]
    return together(element("p", head, class_=f"heads {name}", aria_hidden="true"), element("ol", lines, class_=name))


def folded(said: str, inside: Markup, count: int) -> Markup:
    """A list that a reader opens; a short one is open."""
    return element("details", element("summary", said), inside, open=count <= FOLDED)


def named(text: str) -> str:
    """A name from outside, not too long."""
    return text if len(text) <= _NAME else f"{text[:_NAME]}…"


# --- layer by layer ---


def layers(found: Sequence[Layer], idle: Sequence[str] = ()) -> Markup:
    """Stacked bars by one scale: what the client wrote, and what each policy leaves of it."""
    scale = max(layer.tokens for layer in found)
    before = [found[0], *found[:-1]]
    lines = [_layer(*pair, found[0], scale) for pair in zip(found, before, strict=True)]
    heads = ("", "after", f"full width: {scale:,} tokens", "tokens", "characters")
    nothing = f"Nothing to do here: {', '.join(idle)}." if idle else ""
    return together(
        legend(kind for layer in found for kind in layer.kinds),
        rows(heads, lines),
        element("p", nothing, class_="aside") if nothing else "",
    )


def _layer(layer: Layer, before: Layer, first: Layer, scale: int) -> Markup:
    share = percent(layer.tokens / first.tokens if first.tokens else 1.0)
    edits = f"{layer.edits:,} {'edit' if layer.edits == 1 else 'edits'}"
    moved = ", ".join(_moved(before, layer))
    said = f"{edits}: {moved}" if layer.edits else moved
    label = [element("b", layer.after), element("small", said) if said else ""]
    drawn = stack(by_kind(layer.kinds), scale)
    share = "" if layer is first else share
    tokens, characters = figures(layer.tokens, "tokens"), figures(layer.characters, "characters")
    return row(share, label, drawn, tokens, characters)


def _moved(before: Layer, after: Layer) -> Iterator[str]:
    for kind in dict.fromkeys((*before.kinds, *after.kinds)):
        difference = after.kinds.get(kind, 0) - before.kinds.get(kind, 0)
        if difference:
            yield f"{kind} {'+' if difference > 0 else '−'}{abs(difference):,}"


# --- message by message ---


def messages(shares: Sequence[Share]) -> Markup:
    """One bar for each message."""
    scale = max((max(share.before, share.after) for share in shares), default=0) or 1
    heads = ("no.", "message", f"full width: {scale:,} tokens", "tokens", "characters")
    lines = rows(heads, [_message(share, scale) for share in shares])
    count = sum(share.kind != TOOLS for share in shares)
    skyline = element("figure", charts.messages(shares)) if len(shares) > FOLDED else ""
    return together(ends(), skyline, folded(f"{count:,} messages, one bar each", lines, len(shares)))


def _message(share: Share, scale: int) -> Markup:
    label = together(element("b", share.kind), f" {named(share.tool)}" if share.tool else "")
    characters = (
        figures(share.characters, "characters", share.left) if share.kind != TOOLS else element("span", class_="n")
    )
    drawn = bar(share.before, share.after, scale, share.kind)
    place = "" if share.kind == TOOLS else str(share.first)
    return row(place, label, drawn, figures(share.before, "tokens", share.after), characters)


# --- what was left out ---


def changes(found: Sequence[Change], order: Sequence[str]) -> Markup:
    """What each policy left out and why, and then every edit in the order of the request. `order` is that of the
    policies."""
    if not found:
        return element("p", "Nothing was left out.")
    each = element("div", [_change(change) for change in found], class_="changes")
    said = f"{len(found):,} {'edit' if len(found) == 1 else 'edits'}, in the order of the request"
    return together(element("dl", list(_reasons(found, order))), folded(said, each, len(found)))


def _reasons(found: Sequence[Change], order: Sequence[str]) -> Iterator[Markup]:
    for policy in order:
        made = [change for change in found if change.by == policy]
        if not made:
            continue
        before, after = sum(change.before for change in made), sum(change.after for change in made)
        edits = f"{len(made):,} {'edit' if len(made) == 1 else 'edits'}"
        yield element("dt", element("b", policy), f" {edits}, {before:,} → {after:,} tokens")
        yield element("dd", WHY.get(policy, policy))


def _change(change: Change) -> Markup:
    what = together(element("b", change.by), f" {change.kind} {named(change.tool)}".rstrip())
    head = element(
        "summary",
        element("span", what, class_="label"),
        element("span", named(change.at), class_="where"),
        figures(change.before, "tokens", change.after),
    )
    why = [WHY.get(change.by, change.by), "; new in this request" if change.new else "; since an earlier request"]
    ref = together("Reference ", element("code", change.ref)) if change.ref else "It names no reference"
    shown = change.text[:_TEXT]
    more = len(change.text) - len(shown)
    rest = element("p", f"… and {more:,} more characters, as they were written.", class_="aside") if more else ""
    said = element("p", why, ". ", ref, ". In its place stands:", class_="aside")
    return element("details", head, said, element("pre", shown), rest, class_="change")
