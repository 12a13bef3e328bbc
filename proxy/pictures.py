"""Bars and tables for a terminal: what is known as values, drawn.

Laws
  Bars of one picture have one scale. What is sent is solid, what is left out is light: no colour is needed to read it.
  Nothing that a request or a file name says can move the cursor or change the colours.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from policies.staleness import SummaryRecord
from proxy.audit import Audit
from proxy.bills import GROUPS, Bill, Mean, Recalls, Report, timing
from proxy.conversations import moment
from proxy.demo import WINDOW, Act
from proxy.explain import WHY, Change, Explanation, Share

STYLES: Mapping[str, str] = {
    "tools": "bright_black",
    "system": "bright_black",
    "user": "green",
    "assistant": "cyan",
    "call": "magenta",
    "result": "yellow",
    "opaque": "blue",
}
MOST_BARS = 60
"""A longer history is drawn with its untouched neighbours together."""
MOST_CHANGES = 20
_LABEL = 18
_BESIDE = 72
"""Columns that stand beside the name of a session."""


def printable(text: str, most: int = 200) -> str:
    """The text on one line, without anything that a terminal obeys."""
    clean = "".join(c if c.isprintable() else "?" for c in text[: most + 1])
    return clean if len(clean) <= most else clean[: most - 1] + "~"


def _table(*columns: str, left: int = 1, title: str = "") -> Table:
    """A plain table; all but the first `left` columns hold numbers."""
    table = Table(box=box.SIMPLE_HEAD, padding=0, title=title or None, show_edge=False)
    table.title_justify, table.title_style = "left", "bold"
    for at, name in enumerate(columns):
        table.add_column(name, justify="left" if at < left else "right", no_wrap=True, overflow="ellipsis")
    return table


def _dollars(amount: float) -> str:
    digits = 2 if amount >= 100 else 3 if amount >= 0.1 else 4 if amount >= 0.01 else 5
    return f"{amount:,.{digits}f}"


def _short(tokens: int) -> str:
    """Three digits are enough for a table."""
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if tokens >= size:
            return f"{tokens / size:.{2 if tokens < 10 * size else 1}f}{letter}"
    return str(tokens)


def _percent(share: float) -> str:
    return f"{share:.1%}"


# --- bars ---


def _bar(share: Share, scale: int, width: int, plain: bool) -> Text:
    """Solid for what is sent, light for what is left out; a sliver for what is too small to draw."""
    solid, light, sliver = ("#", ".", "|") if plain else ("█", "░", "▏")
    whole = round(max(share.before, share.after) * width / scale)
    kept = min(whole, round(share.after * width / scale))
    drawn = solid * kept + light * (whole - kept)
    return Text(drawn or (sliver if share.before else ""), style=STYLES.get(share.kind, ""))


def bars(shares: Sequence[Share], width: int, plain: bool) -> Iterator[Text]:
    """One line for each share: where, what, tokens before and after where they differ, and the bar."""
    scale = max((max(share.before, share.after) for share in shares), default=0) or 1
    for share in shares:
        after = f"-> {share.after:>7,}" if share.after != share.before else ""
        label = printable(f"{share.kind} {share.tool}".strip(), _LABEL)
        line = Text(f"{_place(share):>9}  {label:<{_LABEL}} {share.before:>8,} {after:<10}  ")
        yield line.append_text(_bar(share, scale, max(10, width - len(line)), plain))


def _place(share: Share) -> str:
    if share.first < 0:
        return ""
    return str(share.first) if share.first == share.last else f"{share.first}..{share.last}"


def gathered(shares: Sequence[Share], most: int = MOST_BARS) -> list[Share]:
    """The shares; where there are many, runs of untouched neighbours as one."""
    if len(shares) <= most:
        return list(shares)
    found: list[Share] = []
    for untouched, run in groupby(shares, lambda s: s.before == s.after and s.first >= 0):
        members = list(run)
        found += [_together(members)] if untouched and len(members) > 1 else members
    return found


def _together(run: Sequence[Share]) -> Share:
    tokens = sum(share.before for share in run)
    return Share(run[0].first, run[-1].last, f"{len(run)} untouched", "", tokens, tokens)


def by_kind(kinds: Sequence[Share], width: int, plain: bool) -> Iterator[Text]:
    """One line for each kind of block, the largest first."""
    yield from bars([_placeless(share) for share in sorted(kinds, key=lambda s: -s.before)], width, plain)


def _placeless(share: Share) -> Share:
    return Share(-1, -1, share.kind, share.tool, share.before, share.after)


def _legend(plain: bool) -> str:
    return "# sent  . left out" if plain else "█ sent  ░ left out"


# --- explain ---


def explanation(console: Console, told: Explanation) -> None:
    """The dry run: bars, what would change, tokens and bill."""
    plain = console.options.ascii_only
    head = f"{printable(told.model)}, preset {told.preset}: request {told.steps} of its history"
    console.print(Text(f"{head}, tokens per message   {_legend(plain)}", style="bold"))
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
    table = _table("policy", "where", "what", "ref", "before", "after", "since", left=4)
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
        before, after = (f"${_dollars(told.bill(tokens, cached))}" for tokens in (told.before, told.after))
        console.print(Text(f"its bill, {words:<22} {before:>10} -> {after:>10}"))
    prices = f"Prices of {printable(told.prices.model)}" + ("" if told.prices.known else UNKNOWN_PRICES)
    console.print(
        Text(
            f"{prices}, for the input of this one request; its true bill lies between the two. What a whole session "
            "costs, with every rewrite of the provider's cache, is what `narrows replay` adds up.",
            style="dim",
        )
    )


UNKNOWN_PRICES = " are not known ($1 for a million tokens is assumed; --prices takes those of another model)"


# --- replay ---


def reports(console: Console, found: Sequence[Report], averages: Sequence[Mean], timed: bool) -> None:
    """All reports, by price table, then the means."""
    for model, group in groupby(found, lambda report: report.model):
        members = list(group)
        known = "" if members[0].bill.prices.known else UNKNOWN_PRICES
        console.print(Text(f"Prices of {printable(model)}{known}", style="bold"))
        console.print(_costs(members, console.width - _BESIDE))
        console.print(_holds(members, console.width - _BESIDE))
        for line in (*_out_of_sight(members), _recalls(members)):
            console.print(Text(line))
        console.print()
    for report in found:
        if report.refusal:
            console.print(Text(f"{printable(report.name)}: first refusal {printable(report.refusal)}", style="red"))
    console.print(_averages(averages))
    if timed:
        for name, marks in timing(found).items():
            words = "  ".join(f"{mark} {value:,.1f}" for mark, value in marks.items())
            console.print(Text(f"{name.replace('_', ' in '):<14} {words}"))


def _pair(bill: Bill, undone: Bill, name: str) -> str:
    """With and without."""
    if name in ("tokens", "peak"):
        return f"{_short(getattr(bill, name))}/{_short(getattr(undone, name))}"
    return f"{_dollars(getattr(bill, name))}/{_dollars(getattr(undone, name))}"


def _costs(found: Sequence[Report], room: int) -> Table:
    table = _table("session", "req", "chkp", "sent/none", "peak/none", "input $/none", "ratio", "whole $/none")
    for report in found:
        pairs = {name: _pair(report.bill, report.undone, name) for name in ("tokens", "peak", "input", "total")}
        table.add_row(
            printable(report.name, max(12, room)),
            str(report.requests),
            str(report.checkpoints),
            pairs["tokens"],
            pairs["peak"],
            pairs["input"],
            f"{report.ratio:.3f}",
            pairs["total"],
        )
    return table


def _holds(found: Sequence[Report], room: int) -> Table:
    faults = ("invalid", "no reply", "undeclared", "fail-open")
    table = _table("session", *faults, "visible", "rare", "quoted", "lost", "worst")
    for report in found:
        table.add_row(
            printable(report.name, max(12, room)),
            *map(str, (report.rejected, report.failed, report.undeclared, report.failed_open)),
            *(_percent(tally.share) for tally in (report.seen.all, report.seen.rare, report.seen.quoted)),
            str(report.seen.all.lost),
            f"{report.worst:.3f}",
        )
    return table


def _out_of_sight(found: Sequence[Report]) -> Iterator[str]:
    """Where that stood which later turns used and could not see; where there are no tools, nothing can be recalled."""
    for protocol, name in (("tools", "with tools"), ("text", "text protocol")):
        tallies = [report.seen.all for report in found if report.protocol == protocol]
        sums = {word: sum(getattr(tally, word) for tally in tallies) for word in AWAY}
        if tallies:
            counts = ", ".join(f"{sums[word]:,} {meaning}" for word, meaning in AWAY.items())
            yield f"used out of sight, {name}: {counts}"


AWAY: Mapping[str, str] = {
    "recallable": "recallable",
    "again": "by running a tool again",
    "stubbed": "without way back",
    "lost": "lost",
}


def _recalls(found: Sequence[Report]) -> str:
    """What recalls took, of all sessions together."""
    whole = Recalls(Bill(found[0].bill.prices))
    for report in found:
        whole.join(report.recalls)
    uses = sum(report.uses_of_hidden for report in found)
    said = f"recalls, rate {whole.rate:g}: {whole.calls:,} for {uses:,} uses of hidden text"
    if not whole.rounds:
        return said
    spent = f"{whole.rounds:,} rounds of {_short(whole.bill.tokens)} tokens, ${_dollars(whole.bill.input)} of the input"
    return f"{said}, {spent}"


def _averages(found: Sequence[Mean]) -> Table:
    table = _table("prices", "means of", "sessions", "ratio", "worst", "visible", "rare", "quoted", left=2)
    for mean in found:
        table.add_row(
            printable(mean.prices, 40),
            GROUPS[mean.group],
            str(mean.sessions),
            f"{mean.ratio:.3f}",
            f"{mean.worst:.3f}",
            *map(_percent, (mean.visible, mean.rare, mean.quoted)),
        )
    return table


# --- demo ---


def demonstration(console: Console, acts: Sequence[Act]) -> None:
    """Bars of each session's last request, the bills, and the proof."""
    plain, width = console.options.ascii_only, min(console.width, 100)
    for act in acts:
        first = act.report
        before, after = (sum(getattr(share, end) for share in act.shares) for end in ("before", "after"))
        head = f"{first.name}: the last of {first.requests} requests, {before:,} -> {after:,} tokens"
        console.print(Text(f"{head}   {_legend(plain)}", style="bold"))
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
    known = "" if acts[0].report.bill.prices.known else UNKNOWN_PRICES
    names = ("session", "sent", "tokens", "cached", "peak", "input bill", "ratio", "whole bill")
    table = _table(*names, left=2, title=f"\nThe bill at the prices of {printable(model)}{known}")
    for act in acts:
        undone = act.report.undone
        rows = (("as it is", undone), ("by Narrows", act.report.bill), (f"last {WINDOW} messages", act.window))
        for name, bill in rows:
            table.add_row(
                act.report.name if bill is undone else "",
                name,
                f"{bill.tokens:,}",
                _percent(bill.cached / bill.tokens if bill.tokens else 0.0),
                f"{bill.peak:,}",
                f"${_dollars(bill.input)}",
                f"{bill.input / undone.input if undone.input else 1.0:.2f}",
                f"${_dollars(bill.total)}",
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
    table = _table(*columns, left=len(columns), title=title)
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
    yield _dollars(record.spent.dollars), f"calls: {record.spent.calls}"
    yield record.model, f"{record.policy}, {record.prompt}, generation {record.generation}"
