"""The results of replayed sessions: what they cost with and without Narrows, their prefix, and what was in sight; then
averages of those that are alike, and presets beside each other.

Laws
  Both bills, with Narrows and without, come from the same arithmetic.
  Averages are over sessions, but what edits quote and need, what is at risk and which stubs connect is counted as one:
  many sessions hold little.
  Presets are compared over all sessions as one: one bill, one tally of what turns used; peaks and the worst ratio are
  those of the worst. A preset is ahead where no other at the same prices has a bill as low and as much in sight, and
  better in either.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import floor, log10
from statistics import fmean
from typing import Any, ClassVar

from policies.context import Aim
from proxy.lab.breakdown import Breakdown
from proxy.lab.needs import Needs
from proxy.lab.quality import Tally, Visibility
from proxy.lab.replay.bills import (
    FIRST,
    Compared,
    ComparedBill,
    ModelCalls,
    RecallCosts,
    SessionBill,
    SummaryCosts,
    joined,
    notes_on,
)
from proxy.lab.replay.pauses import PauseCosts
from proxy.lab.replay.recorded import CHAIN

LONG = 60
"""A session with so many requests is a long one."""
EARLY = 20
"""Up to this request the bills are too small for their ratio to say much."""
GROUPS: Mapping[str, str] = {
    "long": f"{LONG} or more requests, with tools",
    "short": f"fewer than {LONG} requests, with tools",
    "text": "text protocol, without tools",
    CHAIN: "sessions as one conversation, order by order",
}
"""Groups of sessions that were given none of their own."""
REFUSED = "refused"
"""In the place of what a reply says of the prefix, where there is no reply."""


@dataclass(frozen=True, slots=True)
class RequestResult:
    prefix: str
    """The word of its reply about the prefix; `REFUSED` where it was not answered."""
    tokens_sent: Compared = field(default_factory=Compared)
    """Of its prompt, those of recall rounds included."""
    cached_tokens_given_up: int = 0
    """Tokens that were in the provider's cache and had to be sent anew because of Narrows."""
    summary: str = ""
    """The word of its reply about summaries."""
    expired_tokens: Compared = field(default_factory=Compared)
    """Tokens that had been in the provider's cache and had expired before it."""
    input_bill: ComparedBill = field(default_factory=ComparedBill)
    """Of all requests so far, with what summaries cost."""


@dataclass
class _Costs:
    """The costs of a session with Narrows, beside those of doing nothing."""

    session: str
    prices: str
    bill: SessionBill
    baseline: SessionBill
    """The bill of doing nothing."""
    requests: int = 0
    marks_alone: SessionBill = field(init=False)
    """The bill with cache marks of Narrows and nothing else of it."""
    pings: SessionBill = field(init=False)
    """Of the bill, what was sent again to keep prompts warm."""
    recalls: RecallCosts = field(init=False)
    summaries: SummaryCosts = field(init=False)
    worst_ratio_at_any_stop: float = 0.0
    """The highest ratio of the bill so far to that of doing nothing so far, at any request."""
    worst_ratio_past_request_20: float = 0.0
    """The highest after more than `EARLY` requests; 0 where there are no more."""

    @property
    def prices_known(self) -> bool:
        """True where the prices are those of the model, and not a guess."""
        return self.bill.prices.listed and self.summaries.bill.prices.listed

    @property
    def tokens_sent(self) -> Compared:
        """All input tokens, those of summaries included."""
        return Compared(self.bill.tokens + self.summaries.bill.tokens, self.baseline.tokens)

    @property
    def mean_context(self) -> Compared:
        """Tokens of a prompt in the mean; each recall round has one of its own, and pings are no requests."""
        requests, tokens = self.requests + self.recalls.rounds, self.bill.tokens - self.pings.tokens
        return Compared(round(tokens / (requests or 1)), round(self.baseline.tokens / (self.requests or 1)))

    @property
    def peak_context(self) -> Compared:
        return Compared(self.bill.peak, self.baseline.peak)

    @property
    def input_bill(self) -> ComparedBill:
        """The input side of the bill. All that summaries cost is on it: they are written to make it smaller."""
        with_narrows = self.bill.input + self.summaries.bill.total
        return ComparedBill(with_narrows, self.baseline.input, self.prices_known)

    @property
    def input_bill_of_marks_alone(self) -> ComparedBill:
        """The input bill with cache marks of Narrows alone, compared with doing nothing."""
        return ComparedBill(self.marks_alone.input, self.baseline.input, self.prices_known)

    @property
    def marks_matter(self) -> bool:
        """True where marks alone change the bill, so that both rows are worth a reader's time."""
        return self.marks_alone.input > 0 and abs(self.input_bill_of_marks_alone.ratio - 1) >= 0.005

    @property
    def input_bill_beside_marks_alone(self) -> ComparedBill:
        """The input bill compared with that of marks alone: what compaction saved."""
        return ComparedBill(self.input_bill.with_, self.marks_alone.input, self.prices_known)

    @property
    def whole_bill(self) -> ComparedBill:
        """The bill with the output, which Narrows does not change."""
        return ComparedBill(self.input_bill.with_ + self.bill.output, self.baseline.total, self.prices_known)

    @property
    def recall_share_of_input_bill(self) -> float:
        """The share of recall rounds in the input bill."""
        return self.recalls.bill.input / self.input_bill.with_ if self.input_bill.with_ else 0.0

    def compare_bills(self) -> None:
        ratio = self.input_bill.ratio
        self.worst_ratio_at_any_stop = max(self.worst_ratio_at_any_stop, ratio)
        if self.requests > EARLY:
            self.worst_ratio_past_request_20 = max(self.worst_ratio_past_request_20, ratio)

    @property
    def model_calls(self) -> ModelCalls:
        summaries = self.summaries
        digests = summaries.digests if summaries.batch else summaries.calls
        dollars = self.recalls.bill.input + summaries.bill.total if self.prices_known else None
        return ModelCalls(self.recalls.rounds, summaries.calls - digests, digests, dollars)


@dataclass
class Report(_Costs):
    """The results of one session."""

    JSON: ClassVar = (
        *("session", "group", "preset", "aim", "prices", "prices_known", "notes", "protocol", "requests"),
        *("checkpoints", "checkpoints_per_100_requests", "prefix", "cached_tokens_given_up", "each_request"),
        *("tokens_sent", "mean_context", "peak_context", "input_bill", "input_bill_of_marks_alone"),
        *("input_bill_beside_marks_alone", "whole_bill", "recall_share_of_input_bill"),
        *("worst_ratio_at_any_stop", "worst_ratio_past_request_20", "validity_errors", "unanswered", "first_refusal"),
        *("prefix_changes", "undeclared_prefix_changes", "failed_open", "recalls", "summaries"),
        "pauses",
        *("used_by_later_turns", "needs"),
    )

    preset: str = ""
    aim: Aim = "bill"
    """With which it was planned: a preset may have another one for chats without tools."""
    kind: str = ""
    changes: str = ""
    """Parts of the recording that were left out, in a sentence."""
    no_ping: str = ""
    """Why no ping can keep its prompts cached, in a sentence, where that was asked for."""
    protocol: str = "tools"
    validity_errors: int = 0
    """Requests that the provider refused as invalid."""
    unanswered: int = 0
    """Requests without a complete answer for another reason: a real upstream has many."""
    first_refusal: str | None = None
    prefix_changes: int = 0
    """Requests, rounds included, that did not begin with the whole of the one before, as the provider received them."""
    undeclared_prefix_changes: int = 0
    failed_open: int = 0
    prefix: Counter[str] = field(default_factory=Counter)
    cached_tokens_given_up: int = 0
    used_by_later_turns: Visibility = field(default_factory=Visibility)
    needs: Needs = field(default_factory=Needs)
    each_request: list[RequestResult] = field(default_factory=list)
    last_request: Breakdown | None = field(default=None, metadata=FIRST)
    """None where it went as the client sent it."""
    pauses: PauseCosts | None = None
    """None where nobody knows when its requests were sent."""

    def __post_init__(self) -> None:
        self.marks_alone, self.pings = SessionBill(self.bill.prices), SessionBill(self.bill.prices)
        self.recalls = RecallCosts(SessionBill(self.bill.prices))
        self.summaries = SummaryCosts(SessionBill(self.bill.prices))

    @property
    def notes(self) -> Sequence[str]:
        return [*notes_on(self.bill.prices), *filter(None, (self.changes, self.no_ping))]

    @property
    def checkpoints(self) -> int:
        """Declared rewrites that were not tail cuts."""
        return sum(times for word, times in self.prefix.items() if word.startswith("checkpoint"))

    @property
    def checkpoints_per_100_requests(self) -> float:
        return round(100 * self.checkpoints / self.requests, 1) if self.requests else 0.0

    @property
    def faults(self) -> int:
        """The number of faults, of which one is too many."""
        of_requests = self.validity_errors + self.unanswered + self.undeclared_prefix_changes + self.failed_open
        return of_requests + self.used_by_later_turns.all.lost + self.recalls.refused

    @property
    def group(self) -> str:
        if self.kind:
            return self.kind
        if self.protocol == "text":
            return "text"
        return "long" if self.requests >= LONG else "short"

    def refuse(self, status: int, text: str) -> None:
        """Add a request without a complete answer; a provider answers 400 to what is not valid."""
        self.requests += 1
        self.validity_errors += status == 400
        self.unanswered += status != 400
        self.first_refusal = self.first_refusal or f"{status}: {text}"
        self.each_request.append(RequestResult(REFUSED))


ALL = "all"
MEANINGS: Mapping[str, str] = {**GROUPS, ALL: "all sessions"}


@dataclass(frozen=True, slots=True)
class Average:
    prices: str
    preset: str
    group: str
    means: str
    notes: Sequence[str]
    sessions: int
    input_bill_ratio: float
    whole_bill_ratio: float
    worst_input_bill_ratio: float
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


@dataclass(frozen=True, slots=True)
class PresetResult:
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
    """The cost of the sessions without Narrows and with it, in a sentence."""

    def beats(self, other: "PresetResult") -> bool:
        """True where its bill is as low and it leaves as much in sight, and is better in either."""
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
            in_money=_in_money(prices, preset, len(members), whole_bill),
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
