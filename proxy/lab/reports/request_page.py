"""The page of one request: what it weighs, layer by layer and message by message, and what was left out of it."""

from collections.abc import Sequence
from itertools import pairwise

from proxy.drawing import charts
from proxy.drawing.charts import FOLDED, asides, figures, folded, row, rows, shortened
from proxy.drawing.figures import change_of, counted, money, percent, short
from proxy.drawing.html import Markup, element, table, together
from proxy.drawing.words import WHY
from proxy.lab.breakdown import TOOLS, MessageSize, PolicyEffect
from proxy.lab.explain import EditSummary, Explanation
from proxy.lab.reports.session_page import kind_class, legend_of_kinds, message_columns, stack_of_kinds


def lead(explanation: Explanation) -> Markup:
    """The sizes before and after, and why."""
    before, after = explanation.tokens.before, explanation.tokens.after
    written, sent = explanation.layers[0].characters, explanation.layers[-1].characters
    tokens = element("strong", f"{before:,} → {after:,} tokens")
    why = "Why now" if explanation.edits else "Nothing to shorten"
    return together(
        element("p", tokens, f", {change_of(before, after)}; {written:,} → {sent:,} characters.", class_="lead"),
        element("p", f"{why}: {explanation.verdict}.", class_="verdict"),
        element(
            "p",
            f"Request {explanation.requests_in_history:,} of its history, to {shortened(explanation.model)}, by the "
            f"preset {explanation.preset} with the aim {explanation.aim}. A dry run: planned as by a proxy "
            "with an empty store.",
            class_="aside",
        ),
    )


# --- layer by layer ---


def layers(effects: Sequence[PolicyEffect], idle: Sequence[str] = ()) -> Markup:
    """Stacked bars by one scale: what the client wrote, and what each policy leaves of it."""
    scale = max(layer.tokens for layer in effects)
    first = effects[0]
    lines: list[Markup] = []
    for before, layer in pairwise([first, *effects]):
        share = percent(layer.tokens / first.tokens if first.tokens else 1.0)
        kinds = {**before.kinds, **layer.kinds}
        changes = {kind: layer.kinds.get(kind, 0) - before.kinds.get(kind, 0) for kind in kinds}
        moved = ", ".join(f"{kind} {'+' if n > 0 else '−'}{abs(n):,}" for kind, n in changes.items() if n)
        note = f"{counted(layer.edits, 'edit')}: {moved}" if layer.edits else moved
        label = [element("b", layer.after), element("small", note) if note else ""]
        drawn = stack_of_kinds(layer.kinds, scale)
        tokens, characters = figures(layer.tokens, "tokens"), figures(layer.characters, "characters")
        lines.append(row("" if layer is first else share, label, drawn, tokens, characters))
    heads = ("", "after", f"full width: {scale:,} tokens", "tokens", "characters")
    return together(
        legend_of_kinds({kind for layer in effects for kind in layer.kinds}),
        rows(heads, lines),
        element("p", f"No effect: {', '.join(idle)}.", class_="aside") if idle else "",
    )


# --- message by message ---


def messages(sizes: Sequence[MessageSize]) -> Markup:
    """One bar for each message."""
    scale = max((max(size.tokens.before, size.tokens.after) for size in sizes), default=0) or 1
    heads = ("no.", "message", f"full width: {scale:,} tokens", "tokens", "characters")
    lines: list[Markup] = []
    for size in sizes:
        label = together(element("b", size.kind), f" {shortened(size.tool)}" if size.tool else "")
        tokens = figures(size.tokens.before, "tokens", size.tokens.after)
        place, characters = "", element("span", class_="n")
        if size.message is not None:
            place = str(size.message)
            characters = figures(size.characters.before, "characters", size.characters.after)
        lines.append(
            row(
                place,
                label,
                charts.bar(size.tokens.before, size.tokens.after, scale, kind_class(size.kind)),
                tokens,
                characters,
            )
        )
    count = sum(size.kind != TOOLS for size in sizes)
    drawn = charts.plot(message_columns(sizes), f"{short(scale)} tokens", charts.count_ticks(len(sizes)))
    skyline = element("figure", drawn) if len(sizes) > FOLDED else ""
    legend = [
        charts.legend({"ink": "solid: sent", "ink gone": "pale: left out"}),
        legend_of_kinds({size.kind for size in sizes}),
    ]
    return together(legend, skyline, folded(f"{count:,} messages, one bar each", rows(heads, lines), len(sizes)))


# --- what was left out ---


def edits(explanation: Explanation) -> Markup:
    """What each policy left out and why, in the order of the policies; then every edit in the order of the request."""
    summaries = explanation.edits
    if not summaries:
        return element("p", "Nothing was left out.")
    reasons: list[Markup] = []
    for layer in explanation.layers:
        if own := [edit.tokens for edit in summaries if edit.policy == layer.after]:
            before, after = sum(tokens.before for tokens in own), sum(tokens.after for tokens in own)
            sizes = f" {counted(len(own), 'edit')}, {before:,} → {after:,} tokens"
            reasons.append(element("dt", element("b", layer.after), sizes))
            reasons.append(element("dd", WHY.get(layer.after, layer.after)))
    each = element("div", [_edit(edit) for edit in summaries], class_="changes")
    heading = f"{counted(len(summaries), 'edit')}, in the order of the request"
    return together(element("dl", reasons), folded(heading, each, len(summaries)))


def _edit(edit: EditSummary) -> Markup:
    what = together(element("b", edit.policy), f" {edit.kind} {shortened(edit.tool)}".rstrip())
    head = element(
        "summary",
        element("span", what, class_="label"),
        element("span", shortened(edit.where), class_="where"),
        figures(edit.tokens.before, "tokens", edit.tokens.after),
    )
    since = "; new in this request" if edit.new_in_this_request else "; since an earlier request"
    ref = together("Reference ", element("code", edit.ref)) if edit.ref else "No reference"
    text = edit.becomes[:4_000]
    more = len(edit.becomes) - len(text)
    rest = element("p", f"… and {more:,} more characters, unchanged.", class_="aside") if more else ""
    why = element("p", edit.why, since, ". ", ref, ". It is replaced by:", class_="aside")
    return element("details", head, why, element("pre", text), rest, class_="change")


# --- the bill ---


def bills(explanation: Explanation) -> Markup:
    """The input at both ends: nothing of it cached, and all of it."""
    lines = [
        (f"{end.removesuffix('_cached')} of it cached", [money(cost) for cost in (bill.before, bill.after)])
        for end, bill in explanation.input_bill_of_this_request.items()
    ]
    note = f"At the prices of {shortened(explanation.prices)}. The true bill is between the two."
    return together(
        table(("input", "as written", "as sent"), lines, "bill"),
        asides([*explanation.foretold, note, *explanation.notes]),
    )
