"""The tables of measured results, and their places in the READMEs.

Laws
  A figure of a group stands beside the worst of its sessions, and each session has a row of its own.
  Bills, visible and rare are means over sessions; what is at risk and what edits quote is counted over all of them,
  because many sessions hold little of it.
  The same runs give the same text: no date, no machine, no path.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean

from proxy.drawing.figures import short
from proxy.lab.replay.recorded import CHAIN
from tests.long.figures.kinds import KINDS
from tests.long.figures.runs import Run

Runs = Sequence[Run]
_SIGHT = ("all", "rare", "at_risk_rare", "quoted", "at_risk_quoted_lines")
_SIGHT_HEADS = "visible / rare / rare at risk / quoted / quoted lines at risk"


def put(text: str, tables: Mapping[str, str]) -> str:
    """A document with each table between its marks. Raises ValueError where marks and tables do not fit each other."""
    for name, table in tables.items():
        marks = re.compile(rf"(<!-- figures: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if not marks.search(text):
            raise ValueError(f"no '<!-- figures: {name} -->' with '<!-- end -->' behind it")
        text = marks.sub(lambda match, table=table: f"{match[1]}\n{table}\n\n{match[2]}", text)  # type: ignore[misc]
    return text


def summary(runs: Runs, preset: str) -> str:
    """Input and whole bills by kind of session and prices, and the rare names in sight, of one preset."""
    runs = [run for run in runs if run.preset == preset]
    prices = _order(run.prices for run in runs)
    rows = [
        (_sessions(alike), *(_both_bills(_at(alike, each)) for each in prices), _rare_range(alike, prices))
        for kind in _kinds(runs)
        if (alike := [run for run in runs if run.kind == kind])
    ]
    return table(("sessions", *prices, "rare"), rows, left=1)


def kinds(runs: Runs, preset: str) -> str:
    """Bills and what was in sight, by kind of session and prices, of one preset."""
    heads = (
        "sessions",
        "prices",
        "input bill",
        "marks alone",
        "past request 20",
        "whole bill",
        _SIGHT_HEADS,
        "lowest rare",
        "breaks",
    )
    rows = [
        (
            _sessions(alike) if first else "",
            f"{prices}",
            _bill(each),
            _mean(each, lambda run: run.marks_alone),
            _past_20(each),
            f"{fmean(run.whole_bill for run in each):.2f}",
            _sight(each),
            _lowest_rare(each),
            f"{100 * sum(run.breaks for run in each) / sum(run.requests for run in each):.1f}",
        )
        for kind in _kinds(runs)
        if (alike := [run for run in runs if run.preset == preset and run.kind == kind])
        for first, prices in _firsts(_order(run.prices for run in alike))
        if (each := _at(alike, prices))
    ]
    return table(heads, rows, left=2)


def sessions(runs: Runs, preset: str, prices: Sequence[str]) -> str:
    """Each session by itself, and each order of a chain, of one preset."""
    runs = [run for run in runs if run.preset == preset]
    names = _order(run.session for kind in _kinds(runs) for run in runs if run.kind == kind)
    heads = (
        "session",
        "requests",
        *(head for each in prices for head in (f"{each}: bill", "past request 20", _SIGHT_HEADS)),
    )
    rows = []
    for name in names:
        own = [run for run in runs if run.session == name]
        cells = (cell for each in prices for cell in _cells(_at(own, each)))
        rows.append((f"{_short_name(name)} ({own[0].kind})", f"{own[0].requests}", *cells))
    return table(heads, rows, left=1)


def needs(runs: Runs, preset: str, prices: Sequence[str]) -> str:
    """What the next actions of each session needed and had not in sight, beside its bill, of one preset."""
    runs = [run for run in runs if run.preset == preset and run.kind != CHAIN]
    heads = (
        "session",
        *(f"{each}: {head}" for each in prices for head in ("bill", "actions", "edits", "connected", "turns ago")),
    )
    rows = []
    for name in _order(run.session for kind in _kinds(runs) for run in runs if run.kind == kind):
        own = [run for run in runs if run.session == name]
        cells = (cell for each in prices for cell in _cells_of_needs(_at(own, each)))
        rows.append((f"{_short_name(name)} ({own[0].kind})", *cells))
    return table(heads, rows, left=1)


def presets(runs: Runs) -> str:
    """Every preset by kind of session and prices, and what it leaves in sight over all sessions but chains."""
    present = _kinds(runs)
    heads = ("preset", "prices", *present, "worst end", "past request 20", _SIGHT_HEADS, "lowest rare", "peak", "calls")
    rows = []
    for preset in _order(run.preset for run in runs):
        mine = [run for run in runs if run.preset == preset]
        for first, prices in _firsts(_order(run.prices for run in mine)):
            each = _at(mine, prices)
            single = [run for run in each if run.kind != CHAIN]
            bills = ([run for run in each if run.kind == kind] for kind in present)
            rows.append(
                (
                    f"`{preset}`" if first else "",
                    prices,
                    *(_mean(alike, lambda run: run.bill) for alike in bills),
                    f"{max(run.bill for run in single):.2f}",
                    _past_20(single),
                    _sight(single),
                    _lowest_rare(single),
                    short(max(run.peak for run in single)),
                    f"{sum(run.calls for run in single):,}",
                )
            )
    return table(heads, rows, left=2)


# --- cells ---


def _sessions(alike: Runs) -> str:
    """What a group is, with the number of its sessions."""
    return f"{alike[0].kind} ({len({run.session for run in alike})})"


def _bill(alike: Runs) -> str:
    """The mean, and the worst beside it."""
    if not alike:
        return "-"
    mean = f"{fmean(run.bill for run in alike):.2f}"
    return mean if len(alike) == 1 else f"{mean} (worst {max(run.bill for run in alike):.2f})"


def _both_bills(alike: Runs) -> str:
    """The means of the input bills and of the whole bills; behind them the worst of each."""
    both = [(run.bill, run.whole_bill) for run in alike]
    if len(both) < 2:
        return "/".join(f"{bill:.2f}" for bill in both[0]) if both else "-"
    bills = list(zip(*both, strict=True))
    return f"{'/'.join(f'{fmean(each):.2f}' for each in bills)} ({'/'.join(f'{max(each):.2f}' for each in bills)})"


def _rare_range(alike: Runs, prices: Sequence[str]) -> str:
    """The mean share of rare names in sight: the lowest and the highest of these prices."""
    shares = sorted({share for each in prices if (share := _mean_share(_at(alike, each), "rare")) != "-"})
    return "-".join(dict.fromkeys(share[:4] for share in (shares[0], shares[-1]))) if shares else "-"


def _past_20(alike: Runs) -> str:
    """The worst bill at any stop past request 20."""
    worst = max((run.worst_past_request_20 for run in alike), default=0.0)
    return f"{worst:.2f}" if worst else "-"


def _mean(alike: Runs, figure: Callable[[Run], float]) -> str:
    return f"{fmean(map(figure, alike)):.2f}" if alike else "-"


def _cells(one: Runs) -> tuple[str, str, str]:
    return (f"{one[0].bill:.3f}", _past_20(one), _sight(one)) if one else ("-", "-", "-")


def _cells_of_needs(one: Runs) -> Sequence[str]:
    """Of one run; how many of how many, and the median of turns."""
    if not one:
        return ["-"] * 5
    found, pairs = (
        one[0].needs,
        (("out_of_sight", "actions"), ("edits_out_of_sight", "edits"), ("connected", "hidden_texts")),
    )
    shares = (f"{found[part]} of {found[whole]}" if found[whole] else "-" for part, whole in pairs)
    ago = found["median_turns_ago"]
    return (f"{one[0].bill:.3f}", *shares, "-" if ago is None else f"{ago:g}")


def _sight(alike: Runs) -> str:
    """Shares in sight; means over sessions of the first two, of all items together of the others."""
    return " / ".join(
        [*(_mean_share(alike, name) for name in _SIGHT[:2]), *(_share(alike, name) for name in _SIGHT[2:])]
    )


def _lowest_rare(alike: Runs) -> str:
    """Of the session with least of its rare items in sight: a mean hides it."""
    shares = [visible / used for run in alike for used, visible in [run.sight["rare"]] if used]
    return f"{min(shares):.3f}" if shares else "-"


def _mean_share(alike: Runs, tally: str) -> str:
    shares = [visible / used for run in alike for used, visible in [run.sight[tally]] if used]
    return f"{fmean(shares):.3f}" if shares else "-"


def _share(alike: Runs, tally: str) -> str:
    used, visible = (sum(run.sight[tally][at] for run in alike) for at in (0, 1))
    return f"{visible / used:.3f}" if used else "-"


# --- rows ---


def _at(runs: Runs, prices: str) -> Runs:
    return [run for run in runs if run.prices == prices]


def _order(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _kinds(runs: Runs) -> list[str]:
    """The kinds of these sessions: those that follow from the shape, then groups that a person named."""
    present = _order(run.kind for run in runs)
    return sorted(present, key=lambda kind: [*KINDS].index(kind) if kind in KINDS else len(KINDS))


def _firsts(values: Sequence[str]) -> Iterable[tuple[bool, str]]:
    return ((at == 0, value) for at, value in enumerate(values))


def _short_name(name: str) -> str:
    """The name of a recording without the owner of what it works on; of a chain, that of each of its sessions."""
    return " + ".join(part.rpartition("__")[2] for part in name.split("+"))


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    """A table of markdown whose first columns are of words."""
    rule = ["---"] * left + ["--:"] * (len(heads) - left)
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, *rows)).replace("\n", f"\n|{'|'.join(rule)}|\n", 1)
