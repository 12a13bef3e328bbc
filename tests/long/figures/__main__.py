"""`make figures`: the tables of measured results, written into README.md and policies/README.md, without pauses."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from policies.presets import PRESETS
from proxy.console.output import refusing
from proxy.lab.arguments import PRESET, check_prices
from proxy.lab.replay.recorded import CHAIN, Session, chains, grouped, load_all
from tests.long.figures import tables
from tests.long.figures.kinds import kind_of
from tests.long.figures.runs import ROOT, Job, Run, runs_of

CHAINED = 3
"""Sessions of a chain where none are named: the longest."""


def figures(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Recorded sessions. Skips *.usage.json.")],
    prices: Annotated[list[str], typer.Option(metavar="MODEL", help="Prices by kind of session; can be repeated.")],
    preset_prices: Annotated[list[str], typer.Option(metavar="MODEL", help="Prices of every preset and session.")],
    chain: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A session of the chain, by the end of its name.")
    ] = None,
    group: Annotated[
        list[str] | None, typer.Option(metavar="NAME=GLOB", help="The kind of sessions whose shape does not tell.")
    ] = None,
    processes: Annotated[int, typer.Option(metavar="N", help="How many at once. Default: as many as cores.")] = 0,
    folder: Annotated[Path, typer.Option(metavar="FOLDER", help="Where runs are remembered.")] = ROOT / ".figures",
    print_only: Annotated[bool, typer.Option("--print", help="Print the tables, and write no README.")] = False,
) -> None:
    """Measure every preset over recorded sessions, and write the tables of the READMEs."""
    with refusing():
        check_prices([*prices, *preset_prices])
        sessions = with_kinds(load_all(files), group or [])
        if chained := in_chain(sessions, chain or []):
            sessions += chains(chained)
    jobs = jobs_of(sessions, prices, preset_prices)
    runs = runs_of(jobs, folder, processes, _progress)
    for file, those in tables_of(runs, preset_prices).items():
        if print_only:
            print("\n\n".join(f"{name}\n\n{table}" for name, table in those.items()), end="\n\n")
        else:
            path = ROOT / file
            with refusing():
                path.write_text(tables.put(path.read_text(encoding="utf-8"), those), encoding="utf-8")
    faults = [run for run in runs if run.faults]
    for run in faults:
        print(f"{run.session}, {run.prices}, {run.preset}: {run.faults} faults", file=sys.stderr)
    raise typer.Exit(int(bool(faults)))


def with_kinds(sessions: Sequence[Session], groups: Sequence[str]) -> list[Session]:
    """Each session in the group that an option names, else in that of its shape, without its pauses."""
    return [replace(each, group=kind_of(each), times=()) for each in grouped(sessions, groups)]


def in_chain(sessions: Sequence[Session], names: Sequence[str]) -> Sequence[Session]:
    """The sessions of the chain; none where there are too few long ones. Raises ValueError for a name of no session."""
    if names:
        by_name = {name: [each for each in sessions if each.name.endswith(name)] for name in names}
        if wrong := [name for name, those in by_name.items() if len(those) != 1]:
            raise ValueError(f"{len(by_name[wrong[0]])} of the sessions have a name that ends with {wrong[0]!r}")
        return [those[0] for those in by_name.values()]
    return longest(sessions)


def longest(sessions: Sequence[Session]) -> Sequence[Session]:
    """The longest of those that are long; none where these are too few for a chain."""
    those = sorted((each for each in sessions if each.group == "long"), key=lambda each: -len(each.turns))[:CHAINED]
    return those if len(those) == CHAINED else []


def jobs_of(sessions: Sequence[Session], prices: Sequence[str], preset_prices: Sequence[str]) -> list[Job]:
    """Every preset at some prices, the default one at all of them. A chain is measured only under the default one and
    those that ask no model: the others take long in each of its orders."""
    every, default = (PRESET, *(name for name in PRESETS if name != PRESET)), (PRESET,)
    alone = tuple(name for name in every if name == PRESET or not (PRESETS[name].summarizes or PRESETS[name].digests))
    return [
        Job(session, each, (alone if session.group == CHAIN else every) if each in preset_prices else default)
        for each in dict.fromkeys([*prices, *preset_prices])
        for session in sessions
    ]


def tables_of(runs: Sequence[Run], preset_prices: Sequence[str]) -> dict[str, dict[str, str]]:
    """The tables of each document."""
    by_preset = [run for run in runs if run.prices in preset_prices]
    return {
        "README.md": {"summary": tables.summary(runs, PRESET)},
        "policies/README.md": {
            "kinds": tables.kinds(runs, PRESET),
            "sessions": tables.sessions(runs, PRESET, preset_prices),
            "needs": tables.needs(runs, PRESET, preset_prices),
            "presets": tables.presets(by_preset),
        },
    }


def _progress(done: int, total: int, name: str) -> None:
    print(f"figures: {done} of {total} runs, {name}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    typer.run(figures)
