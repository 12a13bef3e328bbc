"""What all pictures are drawn with: bars to scale, plain tables, numbers short enough for them."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from rich import box
from rich.table import Table
from rich.text import Text

from proxy.lab.breakdown import Share

UNKNOWN_PRICES = " are not known ($1 for a million tokens is assumed; --prices takes those of another model)"
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
_LABEL = 18


def printable(text: str, most: int = 200) -> str:
    """The text on one line, without anything that a terminal obeys."""
    clean = "".join(c if c.isprintable() else "?" for c in text[: most + 1])
    return clean if len(clean) <= most else clean[: most - 1] + "~"


def plain_table(*columns: str, left: int = 1, title: str = "") -> Table:
    """A plain table; all but the first `left` columns hold numbers."""
    table = Table(box=box.SIMPLE_HEAD, padding=0, title=title or None, show_edge=False)
    table.title_justify, table.title_style = "left", "bold"
    for at, name in enumerate(columns):
        table.add_column(name, justify="left" if at < left else "right", no_wrap=True, overflow="ellipsis")
    return table


def dollars(amount: float) -> str:
    digits = 2 if amount >= 100 else 3 if amount >= 0.1 else 4 if amount >= 0.01 else 5
    return f"{amount:,.{digits}f}"


def short(tokens: int) -> str:
    """Three digits are enough for a table."""
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if tokens >= size:
            return f"{tokens / size:.{2 if tokens < 10 * size else 1}f}{letter}"
    return str(tokens)


def percent(share: float) -> str:
    return f"{share:.1%}"


# --- bars ---


def _bar(share: Share, scale: int, width: int, plain: bool) -> Text:
    """Solid for what is sent, light for what is left out; a sliver for what is too small to draw."""
    solid, light, sliver = ("#", ".", "|") if plain else ("█", "░", "▏")
    whole = round(max(share.before, share.after) * width / scale)
    kept = min(whole, round(share.after * width / scale))
    drawn = solid * kept + light * (whole - kept)
    return Text(drawn or (sliver if share.before else ""), style=STYLES.get(share.kind, ""))


def bars(shares: Sequence[Share], width: int, plain: bool) -> Iterator[Text]:
    """One line for each share: where, what, tokens before and after where they differ, and the bar."""
    scale = max((max(share.before, share.after) for share in shares), default=0) or 1
    for share in shares:
        after = f"-> {share.after:>7,}" if share.after != share.before else ""
        label = printable(f"{share.kind} {share.tool}".strip(), _LABEL)
        line = Text(f"{_place(share):>9}  {label:<{_LABEL}} {share.before:>8,} {after:<10}  ")
        yield line.append_text(_bar(share, scale, max(10, width - len(line)), plain))


def _place(share: Share) -> str:
    if share.first < 0:
        return ""
    return str(share.first) if share.first == share.last else f"{share.first}..{share.last}"


def gathered(shares: Sequence[Share], most: int = MOST_BARS) -> list[Share]:
    """The shares; where there are many, runs of untouched neighbours as one."""
    if len(shares) <= most:
        return list(shares)
    found: list[Share] = []
    for untouched, run in groupby(shares, lambda s: s.before == s.after and s.first >= 0):
        members = list(run)
        found += [_together(members)] if untouched and len(members) > 1 else members
    return found


def _together(run: Sequence[Share]) -> Share:
    tokens = sum(share.before for share in run)
    return Share(run[0].first, run[-1].last, f"{len(run)} untouched", "", tokens, tokens)


def by_kind(kinds: Sequence[Share], width: int, plain: bool) -> Iterator[Text]:
    """One line for each kind of block, the largest first."""
    yield from bars([_placeless(share) for share in sorted(kinds, key=lambda s: -s.before)], width, plain)


def _placeless(share: Share) -> Share:
    return Share(-1, -1, share.kind, share.tool, share.before, share.after)


def legend(plain: bool) -> str:
    return "# sent  . left out" if plain else "█ sent  ░ left out"
