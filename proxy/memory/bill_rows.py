"""What both back ends do with bills: the rows in which their sums are stored, added and returned."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

from msgspec import structs

from policies.money.bills import BillSums, ConversationRow, DayRow, Labels, RequestBill, arm_of
from proxy.memory import OTHER


@dataclass(frozen=True, slots=True)
class DaySum:
    """A row of a day as it is stored: what requests under the same labels came to whose prefix ended alike."""

    day: str
    labels: Labels
    prefix: str
    sums: BillSums


def day_of(at: float) -> str:
    """As in 2026-01-31, UTC."""
    return time.strftime("%Y-%m-%d", time.gmtime(at))


def others(labels: Labels) -> Labels:
    """The labels of what a day has no more rows for."""
    return structs.replace(labels, owner=OTHER, key="", model=OTHER)


def row_of(bill: RequestBill) -> ConversationRow:
    """The row of a conversation with this bill alone."""
    return ConversationRow(
        conversation=bill.conversation,
        labels=bill.labels,
        arm=bill.arm,
        first_at=bill.at,
        at=bill.at,
        sums=bill.sums,
    )


def joined(row: ConversationRow, more: ConversationRow) -> ConversationRow:
    """Both as one, in whatever order they come."""
    first, later = (more, row) if more.first_at < row.first_at else (row, more)
    newest = more if more.at >= row.at else row
    arm = arm_of(first.arm, later.arm)
    return structs.replace(newest, arm=arm, first_at=first.first_at, sums=row.sums + more.sums)


def summed(bills: Sequence[RequestBill]) -> ConversationRow | None:
    """The row of a conversation with these bills; None where there are none."""
    return reduce(joined, map(row_of, bills)) if bills else None


def day_rows(stored: Iterable[DaySum]) -> list[DayRow]:
    """The rows of days, in their order, as people ask for them: with the outcomes of the prefix side by side."""
    rows: dict[tuple[str, Labels], DayRow] = {}
    for each in stored:
        row = rows.get((each.day, each.labels)) or DayRow(day=each.day, labels=each.labels, sums=BillSums())
        requests, rewritten = row.prefixes.get(each.prefix, (0, 0))
        outcome = {each.prefix: (requests + each.sums.requests, rewritten + each.sums.rewritten)} if each.prefix else {}
        rows[each.day, each.labels] = structs.replace(
            row, sums=row.sums + each.sums, prefixes={**row.prefixes, **outcome}
        )
    return sorted(rows.values(), key=lambda row: row.day)
