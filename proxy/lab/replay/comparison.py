"""Presets beside each other: what each made of the same sessions, at the prices of one table.

Laws
  Sessions are taken as one: one bill, one tally of what turns used; peaks and the worst ratio are those of the worst.
  A preset is ahead where no other at the same prices has a bill as low and as much in sight, and better in either.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from proxy.lab.quality import Tally
from proxy.lab.replay.bills import Report


@dataclass(frozen=True, slots=True)
class Standing:
    """One preset under one price table, over all sessions; `_undone` is by doing nothing."""

    prices: str
    preset: str
    sessions: int
    tokens: int
    tokens_undone: int
    input: float
    """The input side of the bill, in dollars."""
    input_undone: float
    worst: float
    peak: int
    peak_undone: int
    seen: Tally
    rare: Tally
    quoted: Tally
    calls: Mapping[str, int]
    """Calls of a model that the sessions themselves did not make, by what for."""
    spent: float
    """Dollars of these calls."""
    ahead: bool = False

    @property
    def ratio(self) -> float:
        """The input side of the bill, against doing nothing."""
        return self.input / self.input_undone if self.input_undone else 1.0

    @property
    def recoverable(self) -> float:
        """The share of what turns used that was out of sight, and could be recalled or had by running a tool again."""
        return (self.seen.recallable + self.seen.again) / self.seen.used if self.seen.used else 0.0

    def beats(self, other: "Standing") -> bool:
        """Whether its bill is as low and it leaves as much in sight, and is better in either."""
        ours, theirs = (self.ratio, self.seen.share), (other.ratio, other.seen.share)
        return ours != theirs and ours[0] <= theirs[0] and ours[1] >= theirs[1]

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        bill = {"with": round(self.input, 6), "without": round(self.input_undone, 6), "ratio": round(self.ratio, 4)}
        return {
            "prices": self.prices,
            "preset": self.preset,
            "ahead": self.ahead,
            "sessions": self.sessions,
            "tokens_sent": {"with": self.tokens, "without": self.tokens_undone},
            "input_bill": bill,
            "worst_ratio_at_any_stop": round(self.worst, 4),
            "peak_context": {"with": self.peak, "without": self.peak_undone},
            "share_visible": round(self.seen.share, 4),
            "share_visible_rare": round(self.rare.share, 4),
            "share_visible_quoted": round(self.quoted.share, 4),
            "share_recoverable": round(self.recoverable, 4),
            "behind_a_stub_without_way_back": self.seen.stubbed,
            "lost": self.seen.lost,
            "model_calls": {**self.calls, "dollars": round(self.spent, 6)},
        }


def standings(reports: Sequence[Report]) -> list[Standing]:
    """By price table and preset, in the order in which they come; those that are ahead are marked."""
    found: dict[tuple[str, str], list[Report]] = {}
    for report in reports:
        found.setdefault((report.model, report.preset), []).append(report)
    by_prices: dict[str, list[Standing]] = {}
    for (prices, preset), members in found.items():
        by_prices.setdefault(prices, []).append(_standing(prices, preset, members))
    return [_placed(each, rivals) for rivals in by_prices.values() for each in rivals]


def _placed(each: Standing, rivals: Sequence[Standing]) -> Standing:
    return replace(each, ahead=not any(rival.beats(each) for rival in rivals))


def _standing(prices: str, preset: str, members: Sequence[Report]) -> Standing:
    calls = Counter[str]()
    for report in members:
        calls.update(report.calls)
    return Standing(
        prices,
        preset,
        len(members),
        sum(report.tokens for report in members),
        sum(report.baseline.tokens for report in members),
        sum(report.input for report in members),
        sum(report.baseline.input for report in members),
        max(report.worst for report in members),
        max(report.bill.peak for report in members),
        max(report.baseline.peak for report in members),
        _together([report.seen.all for report in members]),
        _together([report.seen.rare for report in members]),
        _together([report.seen.quoted for report in members]),
        calls,
        sum(report.spent for report in members),
    )


def _together(tallies: Sequence[Tally]) -> Tally:
    names = ("used", "visible", "recallable", "again", "stubbed", "lost")
    return Tally(*(sum(getattr(tally, name) for tally in tallies) for name in names))
