"""The query of a report of usage, and how its rows are read from the store."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from policies.money.arms import arm_counts, measured_saving
from policies.money.bills import ConversationRow
from proxy.config.units import seconds
from proxy.memory import DAYS, BillStore
from proxy.memory.bills import day_of
from proxy.usage.report import BY, MOST, By, UsageReport, usage_by_conversation, usage_by_label

SINCE = "7d"
_PAGE, _COMPARED = 200, 10_000
"""Conversations that are read at once, and that a holdout is told by, the newest."""


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """By what, from which day on, and of whom: of a tenant or all, of an owner or all."""

    by: By
    since: str
    until: str
    tenant: str | None = None
    owner: str | None = None

    @classmethod
    def read(cls, by: str, since: str, now: float) -> "UsageQuery":
        """Raises ValueError."""
        for each in BY:
            if each == (by or "day"):
                return cls(each, first_day(since or SINCE, now), day_of(now))
        raise ValueError(f"`by` must be one of {', '.join(BY)}")


def first_day(since: str, now: float) -> str:
    """The first day of the report: so many days, today included (7d), or from a day on (2026-01-31), UTC.

    Raises ValueError.
    """
    today = datetime.fromtimestamp(now, UTC).date()
    with suppress(ValueError):
        days, rest = divmod(seconds(since, "d"), 86_400)
        if not rest and 1 <= days <= DAYS:
            return (today - timedelta(days=days - 1)).isoformat()
    try:
        day = datetime.strptime(since, "%Y-%m-%d").replace(tzinfo=UTC).date()
    except ValueError as error:
        raise ValueError(f"{since!r} is not a time; write 7d (up to {DAYS}d), or a day such as {today}") from error
    if day > today:
        raise ValueError(f"{since} is in the future; today is {today} (UTC)")
    return day.isoformat()


async def read_usage(store: BillStore, query: UsageQuery) -> UsageReport:
    """The report, with what a holdout measures in its time. Raises StoreTrouble."""
    if query.by == "conversation":
        rows = await _conversations(store, query, MOST + 1)
        report = await asyncio.to_thread(usage_by_conversation, rows, query.since, query.until)
    else:
        days = await store.day_rows(query.since, query.tenant, query.owner)
        report = await asyncio.to_thread(usage_by_label, days, query.by, query.since, query.until)
    newest = await _conversations(store, query, _PAGE)
    if not any(row.arm for row in newest):
        return report
    compared = await _conversations(store, query, _COMPARED)
    measured = await asyncio.to_thread(measured_saving, compared)
    return replace(report, holdout=arm_counts(compared), measured=measured)


async def _conversations(store: BillStore, query: UsageQuery, most: int) -> list[ConversationRow]:
    """The newest so many conversations that were billed in the time of the report."""
    start = datetime.fromisoformat(query.since).replace(tzinfo=UTC).timestamp()
    newest: list[ConversationRow] = []
    before: float | None = None
    while len(newest) < most:
        page = await store.conversation_rows(query.tenant, query.owner, before, min(_PAGE, most - len(newest)))
        newest += (row for row in page if row.at >= start)
        if not page or page[-1].at < start:
            break
        before = page[-1].at
    return newest
