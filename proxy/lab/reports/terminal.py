"""What is drawn on a terminal: plain tables, and bars to scale.

Laws: bars of one picture have one scale; what is sent is solid and what is left out is light, so that no colour is
needed to read them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.text import Text

from proxy.console.output import printable
from proxy.lab.breakdown import BeforeAfter, MessageSize

STYLES: Mapping[str, str] = {
    "tools": "bright_black",
    "system": "bright_black",
    "user": "green",
    "assistant": "cyan",
    "call": "magenta",
    "result": "yellow",
    "opaque": "blue",
}
MOST_BARS = 60
"""A longer history is drawn with its untouched neighbours together."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar, with its tokens and what names it; of a run of untouched messages, the place is their first and last."""

    place: str
    kind: str
    tool: str
    tokens: BeforeAfter


def bars(drawn: Sequence[Bar], width: int, plain: bool) -> Iterator[Text]:
    """One line for each, all by one scale: where, what, tokens before and after where they differ, and the bar, solid
    for what is sent, light for what is left out, a sliver for what is too small to draw."""
    scale = max((max(bar.tokens.before, bar.tokens.after) for bar in drawn), default=0) or 1
    solid, light, sliver = ("#", ".", "|") if plain else ("█", "░", "▏")
    for bar in drawn:
        before, after = bar.tokens.before, bar.tokens.after
        label = printable(f"{bar.kind} {bar.tool}".strip(), 18)
        new = f"-> {after:>7,}" if after != before else ""
        line = Text(f"{bar.place:>9}  {label:<18} {before:>8,} {new:<10}  ")
        room = max(10, width - len(line))
        whole = round(max(before, after) * room / scale)
        sent = min(whole, round(after * room / scale))
        picture = solid * sent + light * (whole - sent) or (sliver if before else "")
        yield line.append_text(Text(picture, style=STYLES.get(bar.kind, "")))


def message_bars(messages: Sequence[MessageSize]) -> list[Bar]:
    """A bar for each message; where there are many, one for each run of untouched neighbours."""
    drawn: list[Bar] = []
    for untouched, run in groupby(messages, lambda m: m.tokens.before == m.tokens.after and m.message is not None):
        members = list(run)
        if untouched and len(members) > 1 and len(messages) > MOST_BARS:
            tokens = sum(message.tokens.before for message in members)
            place = f"{members[0].message}..{members[-1].message}"
            drawn.append(Bar(place, f"{len(members)} untouched", "", BeforeAfter(tokens, tokens)))
            continue
        for message in members:
            place = "" if message.message is None else str(message.message)
            drawn.append(Bar(place, message.kind, message.tool, message.tokens))
    return drawn


def kind_bars(kinds: Mapping[str, BeforeAfter]) -> list[Bar]:
    """A bar for each kind of block, the largest first."""
    return [Bar("", kind, "", tokens) for kind, tokens in sorted(kinds.items(), key=lambda item: -item[1].before)]


def legend(plain: bool) -> str:
    """What solid and light mean."""
    return "# sent  . left out" if plain else "█ sent  ░ left out"


def columns(sizes: Sequence[BeforeAfter], height: int, plain: bool) -> Iterator[str]:
    """One column for each pair, all by one scale, from the top line to the bottom one: solid for what is sent, light
    for what would have been, and `+` for what is more than that."""
    scale = max((max(size.before, size.after) for size in sizes), default=0) or 1
    solid, light = ("#", ".") if plain else ("█", "░")
    for line in reversed(range(height)):
        level = (line + 0.5) * scale / height
        yield "".join(
            (solid if size.before > level else "+") if size.after > level else light if size.before > level else " "
            for size in sizes
        ).rstrip()
