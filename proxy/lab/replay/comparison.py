"""Replayed sessions taken together: averages of those that are alike, and presets beside each other.

Laws
  Averages are over sessions, but what edits quote and need, what is at risk and which stubs connect is counted as one:
  many sessions hold little.
  Presets are compared over all sessions as one: one bill, one tally of what turns used; peaks and the worst ratio are
  those of the worst. A preset is ahead where no other at the same prices has a bill as low and as much in sight, and
  better in either.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor, log10
from statistics import fmean, quantiles
from typing import Any

from proxy.lab.needs import Needs
from proxy.lab.quality import Tally, Visibility
from proxy.lab.replay.bills import ModelCalls
from proxy.lab.replay.report import GROUPS, Report
from proxy.lab.results import Compared, ComparedBill, joined, notes_on

ALL = "all"
MEANINGS: Mapping[str, str] = {**GROUPS, ALL: "all sessions"}


@dataclass(frozen=True, slots=True)
class Average:
    """The sessions of one group under one price table and preset."""

    prices: str
    preset: str
    group: str
    means: str
    """What the group is, in words."""
    notes: Sequence[str]
    """What a reader has to know of the figures."""
    sessions: int
    input_bill_ratio: float
    whole_bill_ratio: float
    worst_input_bill_ratio: float
    """At the end of a session."""
    worst_ratio_past_request_20: float
    worst_ratio_at_any_stop: float
    recall_share_of_input_bill: float
    share_out_of_sight: float
    share_out_of_sight_in_calls: float
    share_edits_out_of_sight: float | None
    share_connected: float | None
    share_visible: float
    share_visible_rare: float
    share_visible_at_risk_rare: float | None
    share_visible_quoted: float | None
    share_visible_quoted_lines: float | None
    share_visible_at_risk_quoted_lines: float | None
    """None, like the others, where there was nothing to see."""


@dataclass(frozen=True, slots=True)
class PresetResult:
    """One preset under one price table, over all sessions."""

    prices: str
    preset: str
    ahead: bool
    notes: Sequence[str]
    sessions: int
    tokens_sent: Compared
    input_bill: ComparedBill
    whole_bill: ComparedBill
    worst_input_bill_ratio: float
    worst_ratio_past_request_20: float
    worst_ratio_at_any_stop: float
    peak_context: Compared
    share_out_of_sight: float
    share_out_of_sight_in_calls: float
    share_edits_out_of_sight: float | None
    share_connected: float | None
    share_visible: float
    share_visible_rare: float | None
    share_visible_at_risk_rare: float | None
    share_visible_quoted: float | None
    share_visible_quoted_lines: float | None
    share_visible_at_risk_quoted_lines: float | None
    share_recoverable: float
    """Of what turns used, what was out of sight and could be recalled or had by running a tool again."""
    behind_a_stub_without_way_back: int
    lost: int
    model_calls: ModelCalls
    in_money: str
    """What the sessions cost without Narrows and with it, in a sentence."""

    def beats(self, other: "PresetResult") -> bool:
        """Whether its bill is as low and it leaves as much in sight, and is better in either."""
        ratio, visible = self.input_bill.ratio, self.share_visible
        is_as_good = ratio <= other.input_bill.ratio and visible >= other.share_visible
        return is_as_good and (ratio, visible) != (other.input_bill.ratio, other.share_visible)


def averages(reports: Sequence[Report]) -> list[Average]:
    """By price table and preset, in the order in which they come, and by group; of several groups also over all."""
    rows: list[Average] = []
    for (prices, preset), members in _by_prices_and_preset(reports).items():
        present = {report.group for report in members}
        groups = [group for group in dict.fromkeys([*GROUPS, *sorted(present)]) if group in present]
        alike = {group: [report for report in members if report.group == group] for group in groups}
        rows += [_average(prices, preset, group, each) for group, each in alike.items()]
        rows += [_average(prices, preset, ALL, members)] if len(groups) > 1 else []
    return rows


def _average(prices: str, preset: str, group: str, reports: Sequence[Report]) -> Average:
    bills, used = [report.input_bill for report in reports], [report.used_by_later_turns for report in reports]
    return Average(
        prices=prices,
        preset=preset,
        group=group,
        means=MEANINGS.get(group, "a group of yours"),
        notes=notes_on(reports[0].bill.prices),
        sessions=len(reports),
        input_bill_ratio=fmean(bill.ratio for bill in bills),
        whole_bill_ratio=fmean(report.whole_bill.ratio for report in reports),
        recall_share_of_input_bill=fmean(report.recall_share_of_input_bill for report in reports),
        **_worst(reports),
        **_shares_visible(joined(used))
        | _shares_of_needs(joined([report.needs for report in reports]))
        | {
            "share_out_of_sight": fmean(report.needs.share_out_of_sight for report in reports),
            "share_out_of_sight_in_calls": fmean(report.needs.share_out_of_sight_in_calls for report in reports),
            "share_visible": fmean(each.all.share_visible for each in used),
            "share_visible_rare": fmean(each.rare.share_visible for each in used),
        },
    )


def _worst(reports: Sequence[Report]) -> dict[str, float]:
    """The worst bills of all sessions: at the end, past request 20, at any stop."""
    return {
        "worst_input_bill_ratio": max(report.input_bill.ratio for report in reports),
        "worst_ratio_past_request_20": max(report.worst_ratio_past_request_20 for report in reports),
        "worst_ratio_at_any_stop": max(report.worst_ratio_at_any_stop for report in reports),
    }


def _shares_visible(used: Visibility) -> dict[str, Any]:
    """By tally, as both tables name them; None where there was nothing to see."""
    tallies: Mapping[str, Tally] = {name: getattr(used, name) for name in Visibility.JSON if name != "all"}
    shares = {f"share_visible_{name}": each.share_visible if each.used else None for name, each in tallies.items()}
    return {"share_visible": used.all.share_visible, **shares}


def _shares_of_needs(needs: Needs) -> dict[str, Any]:
    """Of actions and of edits, as both tables name them; None where there was nothing to see."""
    names = ("share_out_of_sight", "share_out_of_sight_in_calls", "share_edits_out_of_sight", "share_connected")
    return {name: getattr(needs, name) for name in names}


def preset_results(reports: Sequence[Report]) -> list[PresetResult]:
    """By price table and preset, in the order in which they come; those that are ahead are marked."""
    by_prices: dict[str, list[PresetResult]] = {}
    for (prices, preset), members in _by_prices_and_preset(reports).items():
        whole = joined([report.used_by_later_turns for report in members])
        used, peaks = whole.all, [report.peak_context for report in members]
        tokens = [report.tokens_sent for report in members]
        whole_bill = _sum_of(report.whole_bill for report in members)
        result = PresetResult(
            prices=prices,
            preset=preset,
            ahead=False,
            notes=notes_on(members[0].bill.prices),
            sessions=len(members),
            tokens_sent=Compared(sum(each.with_ for each in tokens), sum(each.without for each in tokens)),
            input_bill=_sum_of(report.input_bill for report in members),
            whole_bill=whole_bill,
            **_worst(members),
            peak_context=Compared(max(each.with_ for each in peaks), max(each.without for each in peaks)),
            **_shares_visible(whole),
            **_shares_of_needs(joined([report.needs for report in members])),
            share_recoverable=used.recoverable / used.used if used.used else 0.0,
            behind_a_stub_without_way_back=used.behind_a_stub_without_way_back,
            lost=used.lost,
            model_calls=joined([report.model_calls for report in members]),
            in_money=_in_money(prices, preset, sum(report.runs for report in members), whole_bill),
        )
        by_prices.setdefault(prices, []).append(result)
    return [
        replace(row, ahead=not any(rival.beats(row) for rival in rivals))
        for rivals in by_prices.values()
        for row in rivals
    ]


def _in_money(prices: str, preset: str, runs: int, bill: ComparedBill) -> str:
    """With so many digits that the difference has two."""
    what = "this session costs" if runs == 1 else f"these {runs:,} sessions cost"
    how = f"(preset {preset}; replies, recalls and summaries included)"
    if not bill.prices_known:
        words = f"with Narrows, {what} {bill.ratio:.3f} of what {'it costs' if runs == 1 else 'they cost'} without"
        return f"The prices of {prices} are unknown, so there is no sum in money: {words} {how}."
    difference = abs(bill.without - bill.with_)
    digits = min(5, max(2, 1 - floor(log10(difference)))) if difference else 2
    without, with_ = round(bill.without, digits), round(bill.with_, digits)
    amounts = f"${without:,.{digits}f} without Narrows and ${with_:,.{digits}f} with it"
    saved = f"${abs(without - with_):,.{digits}f} {'less' if with_ < without else 'more'}, {abs(1 - bill.ratio):.1%}"
    return f"At the prices of {prices}, {what} {amounts} {how}: {saved if with_ != without else 'the same'}."


def _sum_of(bills: Iterable[ComparedBill]) -> ComparedBill:
    each = list(bills)
    is_known = all(bill.prices_known for bill in each)
    return ComparedBill(sum(bill.with_ for bill in each), sum(bill.without for bill in each), is_known)


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
