"""Replayed sessions taken together: the means of those that are alike, and how long requests took."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, quantiles
from typing import Any

from proxy.lab.replay.bills import GROUPS, Group, Report


@dataclass(frozen=True, slots=True)
class Mean:
    """The sessions of one group under one price table and preset: means over sessions, but quoted text is counted as
    one."""

    prices: str
    preset: str
    group: Group
    sessions: int
    ratio: float
    worst: float
    visible: float
    rare: float
    quoted: float

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "prices": self.prices,
            "preset": self.preset,
            "group": self.group,
            "means": GROUPS[self.group],
            "sessions": self.sessions,
            "input_bill_ratio": round(self.ratio, 4),
            "worst_ratio_at_any_stop": round(self.worst, 4),
            "share_visible": round(self.visible, 4),
            "share_visible_rare": round(self.rare, 4),
            "share_visible_quoted": round(self.quoted, 4),
        }


def means(reports: Sequence[Report]) -> list[Mean]:
    """By price table and preset, in the order in which they come, and by group."""
    found: dict[tuple[str, str], dict[Group, list[Report]]] = {}
    for report in reports:
        groups = found.setdefault((report.model, report.preset), {group: [] for group in GROUPS})
        groups[report.group].append(report)
    return [_mean(*under, *row) for under, groups in found.items() for row in groups.items() if row[1]]


def _mean(prices: str, preset: str, group: Group, members: Sequence[Report]) -> Mean:
    quoted = [report.seen.quoted for report in members]
    used = sum(tally.used for tally in quoted)
    return Mean(
        prices,
        preset,
        group,
        len(members),
        fmean(report.ratio for report in members),
        max(report.worst for report in members),
        fmean(report.seen.all.share for report in members),
        fmean(report.seen.rare.share for report in members),
        sum(tally.visible for tally in quoted) / used if used else 1.0,
    )


def percentiles(values: Iterable[float]) -> dict[str, float]:
    """The 50th, 90th and 99th, interpolated; zeros where there is nothing."""
    found = sorted(values) or [0.0]
    cuts = quantiles(found * 2 if len(found) == 1 else found, n=100, method="inclusive")
    return {f"p{at}": round(cuts[at - 1], 3) for at in (50, 90, 99)}


def timing(reports: Sequence[Report]) -> dict[str, dict[str, float]]:
    """In milliseconds: whole requests, and what Narrows itself added to them."""
    return {
        "request_ms": percentiles(s * 1000 for report in reports for s in report.seconds),
        "added_ms": percentiles(ms for report in reports for ms in report.added_ms),
    }
