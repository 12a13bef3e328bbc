"""Usage and its cost, from the sums of the store: a report as values, of which a table at a terminal, JSON
and CSV are renderings.

Laws
  Paid is what was billed; the baseline, and so what was saved, is an estimate, always named so, with its error beside
  it. Saved may be negative. Requests whose prices are not known are counted, and said not to be in any dollars.
"""

import asyncio
import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, get_args

from policies.model.tokens import OTHER
from policies.money.bills import (
    ArmCounts,
    BillSums,
    ConversationRow,
    DayRow,
    MeasuredSaving,
    arm_counts,
    measured_saving,
)
from proxy.config.units import seconds
from proxy.memory import DAY_ROWS, DAYS, BillStore
from proxy.memory.bills import TOOL_ROWS, day_of

By = Literal["tenant", "credential", "model", "preset", "day", "conversation", "tool"]
BY: tuple[By, ...] = get_args(By)
MOST = 1_000
TOOL_COLUMNS = ("requests", "tokens each", "cost", "calls", "last called")
_FORMULA = ("=", "+", "-", "@")
"""How a cell begins that a spreadsheet would compute."""

_NAMES: Mapping[str, str] = {"credential": "owner"}
"""The label of rows that goes by another name here."""


@dataclass(frozen=True, slots=True)
class UsageRow:
    """The sums of all requests that have one name in common."""

    name: str
    sums: BillSums
    prefixes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Of each outcome of the prefix the number of requests, and the tokens written again; empty for conversations."""
    tenant: str = ""
    """Of a conversation, whose name is one inside its tenant."""
    last_called: str = ""
    """Of a tool, the newest day on which it was called."""

    @property
    def definition_tokens(self) -> int:
        """Of a tool, in the mean of its requests."""
        return round(self.sums.sent / max(1, self.sums.requests))

    @property
    def tool_cells(self) -> Sequence[str]:
        """Of a tool, in the columns TOOL_COLUMNS."""
        counts = f"{self.sums.requests:,}", f"{self.definition_tokens:,}", f"${self.sums.paid:,.4f}"
        return (*counts, f"{self.sums.calls:,}", self.last_called or "never")

    @property
    def cache_share(self) -> float | None:
        """Of the tokens billed, those read from the provider's cache."""
        return self.sums.cached / self.sums.prompt if self.sums.prompt else None

    @property
    def checkpoints(self) -> int:
        """Requests whose prefix was rewritten by a decision of ours."""
        return sum(requests for name, (requests, _) in self.prefixes.items() if name.startswith("checkpoint:"))


@dataclass(frozen=True, slots=True)
class UsageReport:
    by: By
    since: str
    until: str
    """The first and the last day, as in 2026-01-31, UTC."""
    rows: Sequence[UsageRow]
    total: UsageRow
    is_cut: bool = False
    holdout: ArmCounts | None = None
    measured: MeasuredSaving | None = None
    """The measurement of the holdout; None where it has too few conversations."""

    @property
    def measured_in_words(self) -> str:
        if self.holdout is None:
            return ""
        counts = (
            f"{self.holdout.on:,} conversations compacted, {self.holdout.holdout:,} as their clients wrote them,"
            f" {self.holdout.left:,} in neither arm"
        )
        if self.measured is None:
            return f"holdout: nothing measured yet, with {counts}"
        saved, low, high = self.measured.share, self.measured.low, self.measured.high
        return f"holdout: measured {saved:.1%} saved (95 %: {low:.1%} to {high:.1%}), by {counts}"

    @property
    def notes(self) -> Sequence[str]:
        """Notes on the figures."""
        sums, idle = self.total.sums, [row.sums.paid for row in self.rows if not row.sums.calls]
        most = TOOL_ROWS if self.by == "tool" else DAY_ROWS
        notes = (
            (
                sums.checked,
                f"Where the baseline can be compared (unedited requests: {sums.checked:,}), it misses what was"
                f" paid by {sums.baseline_error or 0:.1%}.",
            ),
            (
                self.by != "tool" and sums.unpriced,
                f"Requests counted without dollars, as their prices are not known: {sums.unpriced:,}.",
            ),
            (sums.estimated, f"Requests whose tokens are estimated, as no usage was reported: {sums.estimated:,}."),
            (
                sums.observed,
                f"Only observed, or held out: {sums.observed:,} prompt tokens, of which {sums.observed_sent:,} would"
                " have been sent.",
            ),
            (self._has_other, f"`{OTHER}` is what came after {most:,} combinations of labels on a day."),
            (self.by == "conversation", "Each conversation is counted whole, from its first request on."),
            (
                self.by == "tool",
                f"{len(idle):,} of {len(self.rows):,} definitions were never called: ${sum(idle):,.4f}. Costs are"
                " estimates: definitions stand at the head of the prompt, and cost what its head did, read or new.",
            ),
            (self.is_cut, f"Only {MOST:,} rows are listed."),
        )
        return [note for applies, note in notes if applies]

    @property
    def _has_other(self) -> bool:
        return self.by in ("model", "credential", "tool") and any(row.name == OTHER for row in self.rows)


def usage_by_label(rows: Iterable[DayRow], by: By, since: str, until: str) -> UsageReport:
    groups: dict[str, UsageRow] = {}
    rows = list(rows)
    key_of = {row.labels.owner: row.labels.key for row in rows if row.labels.key} if by == "credential" else {}
    for row in rows:
        name = row.day if by == "day" else str(getattr(row.labels, _NAMES.get(by, by)))
        name = key_of.get(name, name)
        group = groups.get(name) or UsageRow(name, BillSums())
        last_called = row.day if row.sums.calls else group.last_called  # days come in their order
        prefixes = _added(group.prefixes, row.prefixes)
        groups[name] = UsageRow(name, group.sums + row.sums, prefixes, last_called=last_called)
    ordered = sorted(groups.values(), key=lambda row: row.name if by == "day" else (-row.sums.paid, row.name))
    return _report(by, since, until, ordered)


def usage_by_conversation(rows: Sequence[ConversationRow], since: str, until: str) -> UsageReport:
    """The report of the first MOST conversations, in the order in which they come."""
    named = [UsageRow(row.conversation, row.sums, tenant=row.labels.tenant) for row in rows[:MOST]]
    return replace(_report("conversation", since, until, named), is_cut=len(rows) > MOST)


def _report(by: By, since: str, until: str, rows: Sequence[UsageRow]) -> UsageReport:
    total = UsageRow("total", BillSums())
    for row in rows:
        total = UsageRow("total", total.sums + row.sums, _added(total.prefixes, row.prefixes))
    return UsageReport(by, since, until, rows[:MOST], total, len(rows) > MOST)


def _added(prefixes: Mapping[str, tuple[int, int]], more: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    added = dict(prefixes)
    for name, (requests, rewritten) in more.items():
        before = added.get(name, (0, 0))
        added[name] = before[0] + requests, before[1] + rewritten
    return dict(sorted(added.items()))


def as_json(report: UsageReport) -> dict[str, Any]:
    """The report as one JSON object: dollars to the millionth, shares to the ten-thousandth."""
    rows = [
        {**({"tenant": row.tenant} if row.tenant else {}), report.by: row.name, **_fields(row, report.by)}
        for row in report.rows
    ]
    return {
        "by": report.by,
        "since": report.since,
        "until": report.until,
        "rows": rows,
        "total": _fields(report.total, report.by),
        "holdout": _holdout(report),
        "notes": list(report.notes),
    }


def _holdout(report: UsageReport) -> dict[str, Any] | None:
    arms, measured = report.holdout, report.measured
    if arms is None:
        return None
    counts = {"compacted": arms.on, "as_written": arms.holdout, "in_neither_arm": arms.left}
    interval = None if measured is None else [round(measured.low, 4), round(measured.high, 4)]
    share = None if measured is None else round(measured.share, 4)
    return {"conversations": counts, "saved_share_measured": share, "interval_95": interval}


def as_csv(report: UsageReport) -> str:
    """A line for each row, below one that names the columns; outcomes of the prefix as `OUTCOME=REQUESTS`."""
    text = io.StringIO()
    names = [*(["tenant"] if report.by == "conversation" else []), report.by, *_fields(report.total, report.by)]
    table = csv.DictWriter(text, names, extrasaction="ignore")
    table.writeheader()
    for row in report.rows:
        prefixes = ";".join(f"{name}={requests}" for name, (requests, _) in row.prefixes.items())
        cells = {
            "tenant": _csv_safe(row.tenant),
            report.by: _csv_safe(row.name),
            **_fields(row, report.by),
            "prefixes": prefixes,
        }
        table.writerow(cells)
    return text.getvalue()


def _csv_safe(text: str) -> str:
    """Text on one line that a spreadsheet does not take for a formula."""
    clean = "".join(character if character.isprintable() else "?" for character in text)
    return f"'{clean}" if clean.startswith(_FORMULA) else clean


def _fields(row: UsageRow, by: By) -> dict[str, Any]:
    sums = row.sums
    if by == "tool":
        fields = {"requests": sums.requests, "definition_tokens": row.definition_tokens, "calls": sums.calls}
        return {**fields, "cost_usd_estimate": round(sums.paid, 6), "last_called": row.last_called or None}
    money = {
        "paid_usd": sums.paid,
        "recalls_usd": sums.recalls,
        "summaries_usd": sums.summaries,
        "baseline_usd_estimate": sums.baseline,
        "saved_usd_estimate": sums.saved,
        "saved_by_cache_marks_usd_estimate": sums.saved_by_marks,
        "pause_cost_usd": sums.pause_cost,
        "pause_saving_usd_estimate": sums.pause_saving,
        "ping_cost_usd": sums.ping_cost,
    }
    return {
        "requests": sums.requests,
        "original_tokens": sums.original,
        "sent_tokens": sums.sent,
        "observed_tokens": sums.observed,
        "observed_tokens_that_would_be_sent": sums.observed_sent,
        "output_tokens": sums.output,
        "cache_share": _rounded(row.cache_share, 4),
        **{name: round(value, 6) for name, value in money.items()},
        "baseline_error": _rounded(sums.baseline_error, 4),
        "requests_compared": sums.checked,
        "requests_estimated": sums.estimated,
        "requests_unpriced": sums.unpriced,
        "requests_expired": sums.expired,
        "requests_bridged": sums.bridged,
        "pings": sums.pings,
        "recalls_answered": sums.recalled,
        "rewritten_tokens": sums.rewritten,
        "checkpoints": row.checkpoints,
        "prefixes": {
            name: {"requests": requests, "rewritten_tokens": rewritten}
            for name, (requests, rewritten) in row.prefixes.items()
        },
    }


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


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
        days = await store.day_rows(query.since, query.tenant, query.owner, of_tools=query.by == "tool")
        report = await asyncio.to_thread(usage_by_label, days, query.by, query.since, query.until)
    if query.by == "tool":
        return report
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
