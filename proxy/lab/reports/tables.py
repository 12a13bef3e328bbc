"""What tables show, for a terminal and for a page alike: their columns."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from proxy.drawing.figures import UNKNOWN_PRICE, dollars, money, percent, short
from proxy.lab.quality import Tally
from proxy.lab.results import Compared, ComparedBill


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


def _bills(bill: ComparedBill) -> str:
    if not bill.prices_known:
        return UNKNOWN_PRICE
    return f"{dollars(bill.with_)}/{dollars(bill.without)}"


def _stop(ratio: float) -> str:
    """A ratio; 0 is none at all."""
    return f"{ratio:.3f}" if ratio else "-"


def _share(share: float | None) -> str:
    return "-" if share is None else percent(share)


def _visible(tally: Tally) -> str:
    return _share(tally.share_visible if tally.used else None)


_ratio, _count = "{:.3f}".format, "{:,}".format
_END = Column("end", "worst_input_bill_ratio", _ratio)
_STOPS = (
    Column("past 20", "worst_ratio_past_request_20", _stop),
    Column("any stop", "worst_ratio_at_any_stop", _ratio),
)
_RATIO = Column("ratio", "input_bill.ratio", _ratio)
_WHOLE = Column("whole", "whole_bill.ratio", _ratio)
_TOKENS = Column("sent/none", "tokens_sent", _pair(short))
_PEAK = Column("peak/none", "peak_context", _pair(short))
_RECALLS = Column("recalls", "recall_share_of_input_bill", percent)
_TALLIES = {
    "all": "visible",
    "rare": "rare",
    "at_risk_rare": "rare at risk",
    "quoted": "quoted",
    "quoted_lines": "lines",
    "at_risk_quoted_lines": "lines at risk",
}
_SIGHT = {name: Column(head, f"used_by_later_turns.{name}", _visible) for name, head in _TALLIES.items()}
_SHARES = {
    name: Column(head, "share_visible" if name == "all" else f"share_visible_{name}", _share)
    for name, head in _TALLIES.items()
}
_NEEDS = (
    Column("needs", "needs.share_out_of_sight", _share),
    Column("edits", "needs.share_edits_out_of_sight", _share),
)
_NEEDS_TOGETHER = tuple(Column(head, path.removeprefix("needs."), written) for head, path, written in _NEEDS)
"""Beside every bill: what it was paid for with."""
_LOST = Column("lost", "used_by_later_turns.all.lost", _count)

COSTS: Sequence[Column] = (
    Column("req", "requests", str),
    _TOKENS,
    Column("input $/none", "input_bill", _bills),
    _RATIO,
    Column("whole $/none", "whole_bill", _bills),
    Column("ratio", "whole_bill.ratio", _ratio),
    *_NEEDS,
)
"""What a session cost and what it hid, for a terminal."""
MARKS: Sequence[Column] = (
    Column("marks alone $/none", "input_bill_of_marks_alone", _bills),
    Column("ratio", "input_bill_of_marks_alone.ratio", _ratio),
    Column("with compaction $/marks alone", "input_bill_beside_marks_alone", _bills),
    Column("ratio", "input_bill_beside_marks_alone.ratio", _ratio),
)
"""What cache marks of Narrows saved in a session, and what compaction saved beside them."""
FAULTS: Sequence[Column] = (
    Column("invalid", "validity_errors", str),
    Column("no reply", "unanswered", str),
    Column("undeclared", "undeclared_prefix_changes", str),
    Column("fail-open", "failed_open", str),
    Column("chkp", "checkpoints", str),
    *(_LOST, *_STOPS),
)
"""What went wrong in a session, its checkpoints, and its worst bills."""
SIGHT: Sequence[Column] = (*_SIGHT.values(), _RECALLS, _PEAK)
"""What was in sight, the share of recall rounds, and the largest prompt."""
SESSION_BILLS: Sequence[Column] = (
    Column("input bill", "input_bill", lambda bill: f"{money(bill.dollars_without)} → {money(bill.dollars_with)}"),
    *(_RATIO, _WHOLE, *_STOPS),
)
SESSION_SIGHT: Sequence[Column] = (
    *(_SIGHT["all"], _NEEDS[0], _LOST),
    Column("breaks", "prefix_changes", _count),
)
"""A session in two lines, for a page."""
AVERAGE_BILLS: Sequence[Column] = (
    Column("sessions", "sessions", _count),
    Column("ratio", "input_bill_ratio", _ratio),
    Column("whole", "whole_bill_ratio", _ratio),
    *(_END, *_STOPS, _RECALLS),
)
AVERAGE_SIGHT: Sequence[Column] = tuple(_SHARES.values())
AVERAGE_NEEDS: Sequence[Column] = _NEEDS_TOGETHER
PRESET_BILLS: Sequence[Column] = (
    *(_TOKENS, _PEAK, _RATIO, _WHOLE, _END, *_STOPS, *_NEEDS_TOGETHER),
    Column("calls", "model_calls.total", _count),
    Column("$", "model_calls.dollars", lambda amount: money(amount).lstrip("$")),
)
PRESET_SIGHT: Sequence[Column] = (
    *_SHARES.values(),
    Column("back", "share_recoverable", percent),
    Column("lost", "lost", _count),
)
PRESET_BILLS_ON_A_PAGE: Sequence[Column] = (
    *(_RATIO, _WHOLE, _END, *_STOPS),
    Column("calls", "model_calls", lambda calls: f"{calls.total:,}, {money(calls.dollars)}" if calls.total else "0"),
)
PRESET_SIGHT_ON_A_PAGE: Sequence[Column] = (
    *(_SHARES["all"], _NEEDS_TOGETHER[0]),
    Column("recoverable", "share_recoverable", percent),
    Column("lost", "lost", _count),
)
