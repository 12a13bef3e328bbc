"""What replays cost, in sentences, for a terminal and for a page alike."""

from collections.abc import Iterator, Sequence

from proxy.console.output import printable
from proxy.drawing.figures import money, short
from proxy.lab.replay.bills import Moment
from proxy.lab.replay.report import Report
from proxy.lab.results import joined


def recorded_usage(reports: Sequence[Report]) -> Iterator[str]:
    """How the provider counted when the sessions were recorded, model by model."""
    recorded = [report.recorded_usage for report in reports if report.recorded_usage.requests]
    for model in dict.fromkeys(usage.model for usage in recorded):
        ratios = [usage.ratio or 0 for usage in recorded if usage.model == model]
        words = f"{min(ratios):.2f} to {max(ratios):.2f}" if len(ratios) > 1 else f"{ratios[0]:.2f}"
        yield f"recorded usage: the provider of {printable(model)} reported {words} tokens for each one counted here"


def recalls(reports: Sequence[Report]) -> str:
    """What recalls took, of all sessions together."""
    costs = joined([report.recalls for report in reports])
    uses = f"{costs.calls:,} for {costs.uses_of_hidden_text:,} uses of hidden text"
    line = f"recalls, rate {costs.rate:g}: {uses}"
    if not costs.rounds:
        return line
    input_bill = money(costs.bill.dollars_of_input)
    return f"{line}, {costs.rounds:,} rounds of {short(costs.bill.tokens)} tokens, {input_bill} of the input"


def summaries(reports: Sequence[Report]) -> Iterator[str]:
    """What summaries took, of all sessions together; nothing where none are wanted."""
    costs = joined([report.summaries for report in reports])
    if not costs.batch:
        return
    if not costs.calls and not costs.failed:
        yield "no summary was asked for"
        return
    why = ", ".join(f"{reason} {times}" for reason, times in sorted(costs.rejected_because.items()))
    yield (
        f"summaries by {printable(costs.bill.prices.model)}: {costs.accepted:,} made, {costs.adopted:,} adopted, "
        f"{costs.rejected:,} rejected{f' ({why})' if why else ''}, {costs.failed:,} failed"
    )
    yield (
        f"their {costs.calls:,} calls (at most {costs.bound:,}): {short(costs.bill.tokens)} tokens in, "
        f"{short(costs.bill.completion)} out, {money(costs.bill.dollars)}, which is on the bill"
    )


def against_nothing(reports: Sequence[Report]) -> Iterator[str]:
    """Of each session with the aim `context` or with summaries: what it cost or saved against doing nothing, when its
    first summary was asked for and adopted, how often the prefix moved, and the sizes of prompts."""
    for report in reports:
        if report.aim != "context" and not report.summaries.batch:
            continue
        bill, costs = report.input_bill, report.summaries
        saved = bill.without - bill.with_
        amount = money(abs(saved) if bill.prices_known else None)
        mean, peak = report.mean_context, report.peak_context
        paid, first = "", ""
        if costs.calls:
            rejected = money(costs.rejected_bill.dollars)
            paid = f", with {money(costs.bill.dollars)} for summaries on the bill ({rejected} of it for rejected ones)"
        if costs.first_asked or costs.calls:
            first = f"first summary {_at('asked for', costs.first_asked)}, {_at('adopted', costs.first_adopted)}; "
            first += f"{costs.calls:,} paid, {costs.adopted:,} used; "
        yield (
            f"{printable(report.session, 60)}, aim {report.aim}: {bill.ratio:.3f} of the input bill of doing nothing, "
            f"{'saved' if saved >= 0 else 'cost'} {amount}{paid}"
        )
        yield (
            f"  {first}{report.checkpoints_per_100_requests:g} checkpoints in 100 requests; prompts of "
            f"{short(mean.with_)} tokens in the mean and {short(peak.with_)} at most (doing nothing: "
            f"{short(mean.without)} and {short(peak.without)})"
        )


def _at(what: str, moment: Moment | None) -> str:
    return f"{what} at request {moment.request:,} ({moment.tokens:,} tokens)" if moment else f"never {what}"
