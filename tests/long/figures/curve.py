"""`make curve`: what each client pays against what its next actions need and have not in sight, as tables and as a
picture. Exit code 1 where the default preset passes a bound of its kind, or a run has a fault.

Law: presets differ in nothing else; the same runs as those of `make figures` are measured once.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer

from proxy.console.output import refusing
from proxy.lab.arguments import PRESET, check_prices
from proxy.lab.replay.recorded import load_all
from tests.long.figures.__main__ import with_kinds
from tests.long.figures.fixed import FIXED
from tests.long.figures.kinds import kind_of
from tests.long.figures.picture import picture
from tests.long.figures.runs import ROOT, Job, Run, runs_of
from tests.long.figures.tables import put, table

BESIDE = ("eager", "lossless", *FIXED)
MARKS = {"README.md": "sight", "policies/README.md": "curve"}
PICTURE = Path("policies/sight.svg")
BOUNDS: Mapping[str, tuple[float, float]] = {
    "claude-code": (0.06, 0.05),
    "codex": (0.12, 0.15),
    "pi-opencode": (0.06, 0.11),
    "autonomous": (0.07, 0.05),
}
"""By kind: the share of actions that may need something out of sight, and of edits, at any of the prices."""


def curve(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Recorded sessions. Skips *.usage.json.")],
    prices: Annotated[list[str], typer.Option(metavar="MODEL", help="Prices; can be repeated.")],
    group: Annotated[
        list[str] | None, typer.Option(metavar="NAME=GLOB", help="The kind of sessions of these names.")
    ] = None,
    processes: Annotated[int, typer.Option(metavar="N", help="How many at once. Default: as many as cores.")] = 0,
    folder: Annotated[Path, typer.Option(metavar="FOLDER", help="Where runs are remembered.")] = ROOT / ".figures",
    print_only: Annotated[bool, typer.Option("--print", help="Print the tables, and write no file.")] = False,
) -> None:
    """Measure the default preset and those beside it, and write tables and picture."""
    with refusing():
        check_prices(prices)
        sessions = with_kinds(load_all(files), group or [])
        with_tools = [each for each in sessions if kind_of(replace(each, group="")) not in ("text", "chat")]
    jobs = [Job(session, each, (PRESET, *BESIDE)) for each in prices for session in with_tools]
    runs = runs_of(jobs, folder, processes, _progress)
    those = {"README.md": of_default(runs), "policies/README.md": of_all(runs)}
    for file, text in those.items():
        path = ROOT / file
        if print_only:
            print(text, end="\n\n")
        else:
            path.write_text(put(path.read_text(encoding="utf-8"), {MARKS[file]: text}), encoding="utf-8")
    if not print_only:
        (ROOT / PICTURE).write_text(drawn(runs), encoding="utf-8")
    wrong = [*passed(runs), *(f"{run.session}, {run.prices}, {run.preset}: faults" for run in runs if run.faults)]
    for line in wrong:
        print(line, file=sys.stderr)
    raise typer.Exit(int(bool(wrong)))


def of_default(runs: Sequence[Run]) -> str:
    """Of each kind, under the default preset: what was out of sight, and the bill, at each of the prices."""
    prices = _prices(runs)
    heads = ("sessions", *(f"{each}: {head}" for each in prices for head in ("actions", "edits", "input bill")))
    rows = [
        (f"{kind} ({len({run.session for run in alike})})", *_cells(alike, prices))
        for kind, preset, alike in _alike(runs)
        if preset == PRESET
    ]
    return table(heads, rows, left=1)


def of_all(runs: Sequence[Run]) -> str:
    """The same of each preset, with the bounds of the default one."""
    prices = _prices(runs)
    heads = ("sessions", "preset", *(f"{each}: {head}" for each in prices for head in ("actions", "edits", "bill")))
    rows = []
    for kind, preset, alike in _alike(runs):
        named = f"{kind} ({len({run.session for run in alike})})" if preset == PRESET else ""
        rows.append((named, f"`{preset}`", *_cells(alike, prices)))
        if preset == PRESET and kind in BOUNDS:
            actions, edits = (f"{100 * bound:.1f} %" for bound in BOUNDS[kind])
            rows.append(("", "its bounds", *([actions, edits, ""] * len(prices))))
    return table(heads, rows, left=2)


def drawn(runs: Sequence[Run]) -> str:
    """The picture: a row for each kind, a column for each price."""
    prices = _prices(runs)
    rows = []
    for kind in dict.fromkeys(run.kind for run in runs):
        panels = []
        for each in prices:
            own = [run for run in runs if run.kind == kind and run.prices == each]
            by_preset = {preset: alike for _, preset, alike in _alike(own)}
            points = {
                preset: (fmean(run.bill for run in alike), share(alike, "actions", "out_of_sight") or 0.0)
                for preset, alike in by_preset.items()
            }
            panels.append((f"{kind}, {each}", points))
        rows.append(panels)
    return picture(rows, "actions", PRESET, [*FIXED])


def passed(runs: Sequence[Run]) -> Iterator[str]:
    """Each bound that the default preset passes."""
    for kind, preset, alike in _alike(runs):
        if preset != PRESET or kind not in BOUNDS:
            continue
        for prices in _prices(alike):
            own = [run for run in alike if run.prices == prices]
            for (all_of, hidden), bound in zip(_SHARES, BOUNDS[kind], strict=True):
                value = share(own, all_of, hidden)
                if value is not None and value > bound:
                    yield f"{kind}, {prices}: {100 * value:.1f} % of {all_of} need what is out of sight, over {bound}"


_SHARES = (("actions", "out_of_sight"), ("edits", "edits_out_of_sight"))


def share(runs: Sequence[Run], all_of: str, hidden: str) -> float | None:
    """Of all actions or edits of these runs together; None where there are none."""
    total, out = (sum(run.needs[name] or 0 for run in runs) for name in (all_of, hidden))
    return out / total if total else None


def _cells(alike: Sequence[Run], prices: Sequence[str]) -> Iterator[str]:
    for each in prices:
        own = [run for run in alike if run.prices == each]
        for names in _SHARES:
            value = share(own, *names)
            yield "-" if value is None else f"{100 * value:.1f} %"
        yield f"{fmean(run.bill for run in own):.2f}"


def _alike(runs: Sequence[Run]) -> Iterator[tuple[str, str, Sequence[Run]]]:
    """Runs of the same kind under the same preset."""
    for kind in dict.fromkeys(run.kind for run in runs):
        for preset in dict.fromkeys(run.preset for run in runs):
            if those := [run for run in runs if (run.kind, run.preset) == (kind, preset)]:
                yield kind, preset, those


def _prices(runs: Sequence[Run]) -> Sequence[str]:
    return list(dict.fromkeys(run.prices for run in runs))


def _progress(done: int, total: int, name: str) -> None:
    print(f"curve: {done} of {total} runs, {name}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    typer.run(curve)
