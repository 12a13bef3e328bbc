"""Replayed sessions taken together: averages of those that are alike, and presets beside each other.

Laws
  Averages are over sessions, but old text that edits quote is counted as one.
  Presets are compared over all sessions as one: one bill, one tally of what turns used; peaks and the worst ratio are
  those of the worst. A preset is ahead where no other at the same prices has a bill as low and as much in sight, and
  better in either.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, quantiles

from proxy.lab.replay.report import GROUPS, Group, ModelCalls, Report
from proxy.lab.results import Compared, ComparedBill, joined


@dataclass(frozen=True, slots=True)
class Average:
    """The sessions of one group under one price table and preset."""

    prices: str
    preset: str
    group: Group
    means: str
    """What the group is, in words."""
    sessions: int
    input_bill_ratio: float
    worst_ratio_at_any_stop: float
    share_visible: float
    share_visible_rare: float
    share_visible_quoted: float


@dataclass(frozen=True, slots=True)
class PresetResult:
    """One preset under one price table, over all sessions."""

    prices: str
    preset: str
    ahead: bool
    sessions: int
    tokens_sent: Compared
    input_bill: ComparedBill
    worst_ratio_at_any_stop: float
    peak_context: Compared
    share_visible: float
    share_visible_rare: float
    share_visible_quoted: float
    share_recoverable: float
    """Of what turns used, what was out of sight and could be recalled or had by running a tool again."""
    behind_a_stub_without_way_back: int
    lost: int
    model_calls: ModelCalls

    def beats(self, other: "PresetResult") -> bool:
        """Whether its bill is as low and it leaves as much in sight, and is better in either."""
        ratio, visible = self.input_bill.ratio, self.share_visible
        is_as_good = ratio <= other.input_bill.ratio and visible >= other.share_visible
        return is_as_good and (ratio, visible) != (other.input_bill.ratio, other.share_visible)


def averages(reports: Sequence[Report]) -> list[Average]:
    """By price table and preset, in the order in which they come, and by group."""
    return [
        Average(
            prices=prices,
            preset=preset,
            group=group,
            means=means,
            sessions=len(alike),
            input_bill_ratio=fmean(report.input_bill.ratio for report in alike),
            worst_ratio_at_any_stop=max(report.worst_ratio_at_any_stop for report in alike),
            share_visible=fmean(report.used_by_later_turns.all.share_visible for report in alike),
            share_visible_rare=fmean(report.used_by_later_turns.rare.share_visible for report in alike),
            share_visible_quoted=joined([report.used_by_later_turns.quoted for report in alike]).share_visible,
        )
        for (prices, preset), members in _by_prices_and_preset(reports).items()
        for group, means in GROUPS.items()
        if (alike := [report for report in members if report.group == group])
    ]


def preset_results(reports: Sequence[Report]) -> list[PresetResult]:
    """By price table and preset, in the order in which they come; those that are ahead are marked."""
    by_prices: dict[str, list[PresetResult]] = {}
    for (prices, preset), members in _by_prices_and_preset(reports).items():
        whole = joined([report.used_by_later_turns for report in members])
        used, bills = whole.all, [report.input_bill for report in members]
        tokens, peaks = [report.tokens_sent for report in members], [report.peak_context for report in members]
        result = PresetResult(
            prices=prices,
            preset=preset,
            ahead=False,
            sessions=len(members),
            tokens_sent=Compared(sum(each.with_ for each in tokens), sum(each.without for each in tokens)),
            input_bill=ComparedBill(sum(each.with_ for each in bills), sum(each.without for each in bills)),
            worst_ratio_at_any_stop=max(report.worst_ratio_at_any_stop for report in members),
            peak_context=Compared(max(each.with_ for each in peaks), max(each.without for each in peaks)),
            share_visible=used.share_visible,
            share_visible_rare=whole.rare.share_visible,
            share_visible_quoted=whole.quoted.share_visible,
            share_recoverable=used.recoverable / used.used if used.used else 0.0,
            behind_a_stub_without_way_back=used.behind_a_stub_without_way_back,
            lost=used.lost,
            model_calls=joined([report.model_calls for report in members]),
        )
        by_prices.setdefault(prices, []).append(result)
    return [
        replace(row, ahead=not any(rival.beats(row) for rival in rivals))
        for rivals in by_prices.values()
        for row in rivals
    ]


def _by_prices_and_preset(reports: Sequence[Report]) -> Mapping[tuple[str, str], Sequence[Report]]:
    groups: dict[tuple[str, str], list[Report]] = {}
    for report in reports:
        groups.setdefault((report.prices, report.preset), []).append(report)
    return groups


def percentiles(values: Iterable[float]) -> dict[str, float]:
    """The 50th, 90th and 99th, interpolated; zeros where there is nothing."""
    sample = sorted(values) or [0.0]
    cuts = quantiles(sample * 2 if len(sample) == 1 else sample, n=100, method="inclusive")
    return {f"p{at}": round(cuts[at - 1], 3) for at in (50, 90, 99)}


def timing(reports: Sequence[Report]) -> dict[str, dict[str, float]]:
    """In milliseconds: whole requests, and what Narrows itself added to them."""
    return {
        "request_ms": percentiles(s * 1000 for report in reports for s in report.seconds),
        "added_ms": percentiles(ms for report in reports for ms in report.added_ms),
    }
