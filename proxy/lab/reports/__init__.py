"""What is known as values, drawn: bars and tables for a terminal here; for a browser, in `page`.

Laws
  Bars of one picture have one scale. What is sent is solid, what is left out is light: no colour is needed to read it.
  Nothing that a request or a file name says can move the cursor or change the colours.
"""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from policies.model.summary_record import SummaryRecord
from proxy.admin.export import moment
from proxy.lab.audit import Audit
from proxy.lab.demo import WINDOW, Act
from proxy.lab.explain import WHY, Change, Explanation
from proxy.lab.reports.drawing import (
    UNKNOWN_PRICES,
    bars,
    by_kind,
    dollars,
    gathered,
    legend,
    percent,
    plain_table,
    printable,
)
from proxy.lab.reports.replays import reports

__all__ = ["bars", "demonstration", "explanation", "history", "reports"]

MOST_CHANGES = 20

# --- explain ---


def explanation(console: Console, told: Explanation) -> None:
    """The dry run: bars, what would change, tokens and bill."""
    plain = console.options.ascii_only
    head = f"{printable(told.model)}, preset {told.preset}: request {told.steps} of its history"
    console.print(Text(f"{head}, tokens per message   {legend(plain)}", style="bold"))
    for line in bars(gathered(told.shares), console.width, plain):
        console.print(line, no_wrap=True, overflow="crop")
    console.print(Text("\nby kind", style="bold"))
    for line in by_kind(told.kinds, console.width, plain):
        console.print(line, no_wrap=True, overflow="crop")
    console.print()
    if told.changes:
        console.print(_changes(told.changes))
    _totals(console, told)


def _changes(changes: Sequence[Change]) -> Table:
    largest = sorted(changes, key=lambda change: change.after - change.before)
    table = plain_table("policy", "where", "what", "ref", "before", "after", "since", left=4)
    for change in largest[:MOST_CHANGES]:
        what = printable(f"{change.kind} {change.tool}".strip(), 30)
        since = "now" if change.new else "earlier"
        table.add_row(
            change.by, printable(change.at, 60), what, change.ref, f"{change.before:,}", f"{change.after:,}", since
        )
    if others := largest[MOST_CHANGES:]:
        before, after = sum(c.before for c in others), sum(c.after for c in others)
        table.add_row("", f"and {len(others)} smaller ones (--json lists all)", "", "", f"{before:,}", f"{after:,}", "")
    return table


def _totals(console: Console, told: Explanation) -> None:
    for policy in sorted({change.by for change in told.changes}):
        count = sum(change.by == policy for change in told.changes)
        console.print(Text(f"{policy:<8} {count:>4}  {WHY.get(policy, '')}"))
    console.print(Text(f"\n{'why now' if told.changes else 'nothing to shorten'}: {told.verdict}"))
    saved = 1 - told.after / told.before if told.before else 0.0
    less = "less" if saved >= 0 else "more, for the recall tool"
    console.print(
        Text(f"\ntokens of the input              {told.before:>10,} -> {told.after:>10,}  ({abs(saved):.0%} {less})")
    )
    for words, cached in (("nothing of it cached", False), ("all of it cached", True)):
        before, after = (f"${dollars(told.bill(tokens, cached))}" for tokens in (told.before, told.after))
        console.print(Text(f"its bill, {words:<22} {before:>10} -> {after:>10}"))
    prices = f"Prices of {printable(told.prices.model)}" + ("" if told.prices.listed else UNKNOWN_PRICES)
    console.print(
        Text(
            f"{prices}, for the input of this one request; its true bill lies between the two. What a whole session "
            "costs, with every rewrite of the provider's cache, is what `narrows replay` adds up.",
            style="dim",
        )
    )


# --- demo ---


def demonstration(console: Console, acts: Sequence[Act]) -> None:
    """Bars of each session's last request, the bills, and the proof."""
    plain, width = console.options.ascii_only, min(console.width, 100)
    for act in acts:
        first = act.report
        before, after = (sum(getattr(share, end) for share in act.shares) for end in ("before", "after"))
        head = f"{first.name}: the last of {first.requests} requests, {before:,} -> {after:,} tokens"
        console.print(Text(f"{head}   {legend(plain)}", style="bold"))
        few = len(act.shares) <= 2 * WINDOW
        for line in bars(act.shares, width, plain) if few else by_kind(act.kinds, width, plain):
            console.print(line, no_wrap=True, overflow="crop")
    console.print(_bills(acts))
    for act in acts:
        console.print(Text(_proof(act), style="" if act.held else "red"))
    console.print(Text(MORAL, style="dim"))


MORAL = (
    "Short sessions gain little: most of their tokens are new when they are sent. The sliding window sends the fewest "
    "tokens of a long one and pays for most of them in full, because its beginning is never the same twice."
)


def _bills(acts: Sequence[Act]) -> Table:
    model = acts[0].report.model
    known = "" if acts[0].report.bill.prices.listed else UNKNOWN_PRICES
    names = ("session", "sent", "tokens", "cached", "peak", "input bill", "ratio", "whole bill")
    table = plain_table(*names, left=2, title=f"\nThe bill at the prices of {printable(model)}{known}")
    for act in acts:
        baseline = act.report.baseline
        rows = (("as it is", baseline), ("by Narrows", act.report.bill), (f"last {WINDOW} messages", act.window))
        for name, bill in rows:
            table.add_row(
                act.report.name if bill is baseline else "",
                name,
                f"{bill.tokens:,}",
                percent(bill.cached / bill.tokens if bill.tokens else 0.0),
                f"{bill.peak:,}",
                f"${dollars(bill.input)}",
                f"{bill.input / baseline.input if baseline.input else 1.0:.2f}",
                f"${dollars(bill.total)}",
            )
    return table


def _proof(act: Act) -> str:
    report = act.report
    words = ", ".join(f"{word} {times}" for word, times in report.prefixes.items())
    kept = report.requests - 1 - report.changed
    verdict = "The prefix held" if act.held else f"THE PREFIX DID NOT HOLD ({report.faults} faults)"
    refusal = f"\n  first refusal: {printable(report.refusal)}" if report.refusal else ""
    return (
        f"{verdict} in {report.name}: {words}.\n"
        f"  The provider itself saw {kept} of {report.requests - 1} requests begin with all of the one before;\n"
        f"  {report.changed - report.undeclared} of the {report.changed} others were declared in the reply.{refusal}"
    )


# --- audit ---


def history(console: Console, told: Audit) -> None:
    """The events, then the summaries; in words where there are none."""
    if not told.events and not told.summaries:
        console.print(Text("Nothing is on record here."))
    if told.events:
        table = _folding("time", "tenant", "event", "conversation and details")
        for tenant, event in told.events:
            details = ", ".join(f"{name} {value}" for name, value in event.details.items())
            row = (moment(event.at).replace("T", " "), printable(tenant, 9), event.name)
            table.add_row(*map(_lines, row), _lines(event.conversation, details))
        console.print(table)
    if told.summaries:
        table = _folding("summary", "messages", "tokens", "dollars", "made by", title="\nIts summaries")
        for tenant, record in told.summaries:
            table.add_row(*(_lines(*cell) for cell in _summary(printable(tenant, 9), record)))
        console.print(table)


def _folding(*columns: str, title: str = "") -> Table:
    """A table whose last column takes as many lines as it needs."""
    table = plain_table(*columns, left=len(columns), title=title)
    table.columns[-1].no_wrap, table.columns[-1].overflow = False, "fold"
    return table


def _lines(*texts: str) -> Text:
    return Text("\n".join(printable(text, 500) for text in texts if text))


def _summary(tenant: str, record: SummaryRecord) -> Iterator[tuple[str, str]]:
    """The cells of two lines that say what it is. A run of messages is told by its ends."""
    indexes = [source.partition(":")[0] for source in record.sources]
    state = f"rejected: {record.rejected}" if record.rejected else f"-> {record.tokens_after:,}"
    yield printable(record.id, 20), tenant
    yield f"{indexes[0]}..{indexes[-1]} ({len(indexes)})" if indexes else "none", record.kind
    yield f"{record.tokens_before:,}", state
    yield dollars(record.spent.dollars), f"calls: {record.spent.calls}"
    yield record.model, f"{record.policy}, {record.prompt}, generation {record.generation}"
