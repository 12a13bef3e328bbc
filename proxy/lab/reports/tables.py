"""What tables show, for a terminal and for a page alike: their columns, and how figures are written."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from proxy.lab.results import Compared

UNKNOWN_PRICES = " are not known ($1 for a million tokens is assumed; --prices takes those of another model)"


def printable(text: str, most: int = 200) -> str:
    """The text on one line, without anything that a terminal obeys."""
    clean = "".join(c if c.isprintable() else "?" for c in text[: most + 1])
    return clean if len(clean) <= most else clean[: most - 1] + "~"


def dollars(amount: float) -> str:
    digits = 2 if amount >= 100 else 3 if amount >= 0.1 else 4 if amount >= 0.01 else 5
    return f"{amount:,.{digits}f}"


def short(tokens: float) -> str:
    """Three digits are enough for a table."""
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if tokens >= size:
            return f"{tokens / size:.{2 if tokens < 10 * size else 1}f}{letter}"
    return str(tokens)


def percent(share: float) -> str:
    return f"{share:.1%}"


def counted(count: int, name: str) -> str:
    """A count, and what it counts in the right number."""
    return f"{count:,} {name if count == 1 else f'{name}s'}"


def change_of(before: int, after: int) -> str:
    """How much less is sent."""
    saved = 1 - after / before if before else 0.0
    return f"{abs(saved):.0%} {'less' if saved >= 0 else 'more, for the recall tool'}"


class Column(NamedTuple):
    """What a column is called, the attribute of a row that stands in it, and how that is written."""

    head: str
    path: str
    written: Callable[[Any], str]

    def cell(self, row: object) -> str:
        """What stands in it for a row."""
        return self.written(attrgetter(self.path)(row))


def _pair(written: Callable[[float], str]) -> Callable[[Compared], str]:
    return lambda both: f"{written(both.with_)}/{written(both.without)}"


_ratio, _count = "{:.3f}".format, "{:,}".format
_WORST = Column("worst", "worst_ratio_at_any_stop", _ratio)
_RATIO = Column("ratio", "input_bill.ratio", _ratio)
_TOKENS = Column("sent/none", "tokens_sent", _pair(short))
_PEAK = Column("peak/none", "peak_context", _pair(short))
_VISIBLE, _RARE, _QUOTED = (
    Column(head, f"used_by_later_turns.{name}.share_visible", percent)
    for head, name in (("visible", "all"), ("rare", "rare"), ("quoted", "quoted"))
)
_LOST = Column("lost", "used_by_later_turns.all.lost", _count)
_SHARES = (
    Column("visible", "share_visible", percent),
    Column("rare", "share_visible_rare", percent),
    Column("quoted", "share_visible_quoted", percent),
)

COSTS: Sequence[Column] = (
    Column("req", "requests", str),
    Column("chkp", "checkpoints", str),
    _TOKENS,
    _PEAK,
    Column("input $/none", "input_bill", _pair(dollars)),
    _RATIO,
    Column("whole $/none", "whole_bill", _pair(dollars)),
)
"""What a session cost, for a terminal."""
FAULTS: Sequence[Column] = (
    Column("invalid", "validity_errors", str),
    Column("no reply", "unanswered", str),
    Column("undeclared", "undeclared_prefix_changes", str),
    Column("fail-open", "failed_open", str),
    *(_VISIBLE, _RARE, _QUOTED, _LOST, _WORST),
)
"""What went wrong in a session, and what was in sight."""
SESSION: Sequence[Column] = (
    Column("input bill", "input_bill", lambda bill: f"${dollars(bill.without)} → ${dollars(bill.with_)}"),
    *(_RATIO, _WORST, _VISIBLE, _LOST),
    Column("breaks", "prefix_changes", _count),
)
"""A session in one line, for a page."""
AVERAGES: Sequence[Column] = (
    Column("sessions", "sessions", _count),
    Column("ratio", "input_bill_ratio", _ratio),
    *(_WORST, *_SHARES),
)
PRESETS: Sequence[Column] = (
    *(_TOKENS, _RATIO, _WORST, _PEAK, *_SHARES),
    Column("back", "share_recoverable", percent),
    Column("lost", "lost", _count),
    Column("calls", "model_calls.total", _count),
    Column("$", "model_calls.dollars", dollars),
)
PRESETS_ON_A_PAGE: Sequence[Column] = (
    *(_RATIO, _WORST, _SHARES[0]),
    Column("recoverable", "share_recoverable", percent),
    Column("lost", "lost", _count),
    Column("calls", "model_calls", lambda calls: f"{calls.total:,}, ${dollars(calls.dollars)}" if calls.total else "0"),
)
