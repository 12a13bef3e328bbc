"""What the live page shows, gathered from the sums of the store: as values, and as JSON.

Laws
  All of it is of the viewer: of all tenants, or of one owner alone.
  Saved is an estimate, said with the error of what it is reckoned from; what a holdout measured is said to be measured.
"""

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec.structs import asdict

from policies.model.summary_record import SummaryRecord
from policies.money.bills import ArmCounts, BillSums, ConversationRow, MeasuredSaving
from proxy.addons.pages.answers import PageParts
from proxy.addons.pages.export import moment
from proxy.addons.pages.summaries import statuses_in
from proxy.identity.who import Grant
from proxy.memory import Key
from proxy.telemetry.metrics import MINUTES, AnswerCounts
from proxy.usage.report import UsageQuery, read_usage

DAYS = 30
"""Days of the live page, today included."""
LISTED = 20
"""Conversations of the live page."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """How often the prefix of a request became this, and how many tokens were written again for it."""

    outcome: str
    requests: int
    rewritten: int


@dataclass(frozen=True, slots=True)
class StandingSummary:
    """A summary that stands in the newest request of its conversation, without its text."""

    key: Key
    model: str
    kind: str
    created_at: float
    messages: int
    tokens_before: int
    tokens_after: int


@dataclass(frozen=True, slots=True)
class UpstreamState:
    """An upstream, as this process sees it."""

    name: str
    host: str
    answers: AnswerCounts
    """Of the last minutes."""
    next_try: float | None
    """Seconds until it is tried again, where it could not be connected to for a while."""


@dataclass(frozen=True, slots=True)
class Overview:
    """The live page as values."""

    viewer: Grant
    at: float
    days: Sequence[tuple[str, BillSums]]
    """All days, the oldest first, those without a request too."""
    prefixes: Sequence[Prefix]
    """Those of DAYS days, most tokens first."""
    summaries: Sequence[StandingSummary]
    """Of the conversations below."""
    conversations: Sequence[ConversationRow]
    following: float | None
    """The cursor of the conversations that follow, where there are any."""
    arms: ArmCounts | None = None
    """Of a holdout, where there is one."""
    measured: MeasuredSaving | None = None
    """What it measures; None where it has too few conversations for that."""
    upstreams: Sequence[UpstreamState] = ()
    """In the order of the settings; none for who does not see all tenants, and may not use all of them either."""

    @property
    def today(self) -> BillSums:
        return self.days[-1][1]

    @property
    def whole(self) -> BillSums:
        """All days together."""
        return sum((sums for _, sums in self.days), BillSums())


async def overview(parts: PageParts, viewer: Grant) -> Overview:
    """What the live page shows to this viewer. Raises ApiError where the store is in trouble."""
    now = parts.clock()
    dates = [(datetime.fromtimestamp(now, UTC) - timedelta(days=back)).date().isoformat() for back in range(DAYS)]
    query = UsageQuery("day", dates[-1], dates[0], viewer.tenant, viewer.owner)
    usage = await parts.ask("usage", read_usage(parts.store, query))
    conversations, following = await newest(parts, viewer, None, LISTED)
    keys = [Key(row.labels.tenant, row.conversation) for row in conversations]
    standing = await asyncio.gather(*(_standing(parts, key, viewer, now) for key in keys))
    by_day = {row.name: row.sums for row in usage.rows}
    return Overview(
        viewer=viewer,
        at=now,
        days=[(day, by_day.get(day, BillSums())) for day in reversed(dates)],
        prefixes=_worst(usage.total.prefixes),
        summaries=[summary for each in standing for summary in each],
        conversations=conversations,
        following=following,
        arms=usage.holdout,
        measured=usage.measured,
        upstreams=_upstreams(parts) if viewer.tenant is None else (),
    )


def _upstreams(parts: PageParts) -> list[UpstreamState]:
    upstreams = parts.telemetry.metrics.upstreams()
    return [
        UpstreamState(each.name, each.host, each.answers(), None if each.is_up else each.next_try) for each in upstreams
    ]


async def newest(
    parts: PageParts, viewer: Grant, before: float | None, most: int
) -> tuple[Sequence[ConversationRow], float | None]:
    """So many conversations, the newest first, and the cursor of those that follow. Raises ApiError."""
    query = parts.store.conversation_rows(viewer.tenant, viewer.owner, before, most + 1)
    rows = await parts.ask("conversation_rows", query)
    return rows[:most], rows[most - 1].at if len(rows) > most else None


async def _standing(parts: PageParts, key: Key, viewer: Grant, now: float) -> list[StandingSummary]:
    """The summaries that stand in the newest request of a conversation."""
    records = await parts.ask("summaries", parts.store.summaries(key))
    visible = [record for record in records if viewer.owner in (None, record.owner)]
    if not visible:
        return []
    status_of = await parts.ask("newest_step", statuses_in(parts.store, key, visible, now))
    return [_summary(key, each) for each in visible if each.id in status_of and status_of[each.id].state == "stands"]


def _summary(key: Key, record: SummaryRecord) -> StandingSummary:
    return StandingSummary(
        key=key,
        model=record.model,
        kind=record.kind,
        created_at=record.created_at,
        messages=len(record.sources),
        tokens_before=record.tokens_before,
        tokens_after=record.tokens_after,
    )


def _worst(prefixes: Mapping[str, tuple[int, int]]) -> list[Prefix]:
    """What became of prefixes, the most tokens written again first."""
    worst = [Prefix(name, *both) for name, both in prefixes.items()]
    return sorted(worst, key=lambda each: (-each.rewritten, -each.requests))


def overview_json(view: Overview, version: str) -> dict[str, Any]:
    """The live page as JSON."""
    return {
        **imprint_json("Narrows", view.at, version, covers(view)),
        "today": sums_json(view.today),
        "days": [{"day": day, **sums_json(sums)} for day, sums in view.days],
        "all_days": sums_json(view.whole),
        "holdout": _holdout_json(view),
        "upstreams": [
            {"name": each.name, "host": each.host, "is_up": each.next_try is None, "next_try_seconds": each.next_try}
            | {"minutes": MINUTES, **each.answers._asdict()}
            for each in view.upstreams
        ],
        "prefixes": [{"outcome": e.outcome, "requests": e.requests, "rewritten": e.rewritten} for e in view.prefixes],
        "summaries": [
            {"tenant": each.key.tenant, "conversation": each.key.conversation, "kind": each.kind, "model": each.model}
            | {"created_at": moment(each.created_at), "messages": each.messages}
            | {"tokens_before": each.tokens_before, "tokens_after": each.tokens_after}
            for each in view.summaries
        ],
        **list_json(view.conversations, view.following),
    }


def _holdout_json(view: Overview) -> dict[str, Any] | None:
    if view.arms is None:
        return None
    measured = view.measured
    share = {"share": measured.share, "low": measured.low, "high": measured.high} if measured else None
    return {"conversations": dataclasses.asdict(view.arms), "measured": share}


def covers(view: Overview) -> str:
    """What the live page covers, in words."""
    whose = "all tenants" if view.viewer.tenant is None else "the requests of your credential"
    return f"{whose}, {view.days[0][0]} to {view.days[-1][0]} (days in UTC)"


def imprint_json(name: str, at: float, version: str, what: str) -> dict[str, Any]:
    return {"name": name, "at": moment(at), "version": version, "covers": what}


def list_json(rows: Sequence[ConversationRow], following: float | None) -> dict[str, Any]:
    """Conversations, and the cursor of those that follow."""
    return {"conversations": [row_json(row) for row in rows], "next": following}


def row_json(row: ConversationRow) -> dict[str, Any]:
    times = {"first_at": moment(row.first_at), "at": moment(row.at)}
    return {"conversation": row.conversation, **asdict(row.labels), "arm": row.arm, **times, **sums_json(row.sums)}


def sums_json(sums: BillSums) -> Mapping[str, Any]:
    return {**asdict(sums), "saved": sums.saved}
