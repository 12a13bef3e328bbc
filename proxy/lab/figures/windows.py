"""`make windows`: what summaries do in small windows and in large ones, written into policies/README.md.

Law: every figure comes from real replays of generated sessions, at the listed prices of the model and of its small
sibling, which writes the summaries.
"""

import asyncio
import gc
import json
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from typing import Annotated

import typer

from proxy.lab.cli_output import refusing
from proxy.lab.figures.runs import ROOT
from proxy.lab.figures.tables import put, table
from proxy.lab.generators.chats import chat
from proxy.lab.generators.loops import generated
from proxy.lab.replay.environment import Options
from proxy.lab.replay.recorded import Session, session_of
from proxy.lab.replay.report import Report
from proxy.lab.replay.runs import replay_all

WINDOWS = (4_000, 8_000, 16_000, 32_000, 128_000, 1_000_000)
MODEL, SEEDS, TURNS, ANSWERS = "gpt-5.4", (201, 202), 90, (260, 780)
ON_CHATS = ("chat", "rolling", "adaptive", "harness", "deep", "agent-summary")
ON_LOOPS = ("rolling", "adaptive")
FILE, MARKS = ROOT / "policies" / "README.md", "windows"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of summaries in one session, under one preset, in one window."""

    first: int | None
    """The request that asks for the first one, from 1; None where none does."""
    moves: float
    """Requests in a hundred that did not begin with all of the one before."""
    paid: int
    """Calls of the model that writes them."""
    used: int
    bill: float
    """The input bill, summaries included, as a share of that of doing nothing."""
    faults: int = 0


@dataclass(frozen=True, slots=True)
class Cell:
    """A kind of session under a preset in a window, over all seeds; `answer` is 0 for a loop of reads."""

    answer: int
    preset: str
    window: int

    @property
    def kind(self) -> str:
        return f"chat, answers of {self.answer}" if self.answer else "read loop"


def cells() -> list[Cell]:
    """All that the table shows, row by row."""
    rows = [(answer, preset) for answer in ANSWERS for preset in ON_CHATS] + [(0, preset) for preset in ON_LOOPS]
    return [Cell(*row, window) for row in rows for window in WINDOWS]


@cache
def sessions(answer: int) -> Sequence[Session]:
    """Chats with answers of so many tokens, one for each seed; for 0 a loop of reads."""
    chats = [chat(seed, TURNS, answer) for seed in SEEDS] if answer else [generated("read-loop", SEEDS[0])]
    return [
        session_of(json.dumps(body).encode(), f"seed {seed}", "generated")
        for seed, body in zip(SEEDS, chats, strict=False)
    ]


def measure(cell: Cell) -> list[Result]:
    """Replay its sessions under its preset, in its window."""
    gc.collect()
    options = Options(prices=(MODEL,), preset=cell.preset, window=cell.window)
    return [result_of(report) for report in asyncio.run(replay_all(sessions(cell.answer), options))]


def result_of(report: Report) -> Result:
    summaries = report.summaries
    return Result(
        first=summaries.first_asked.request if summaries.first_asked else None,
        moves=100 * report.prefix_changes / report.requests,
        paid=summaries.calls,
        used=summaries.adopted,
        bill=report.input_bill.ratio,
        faults=report.faults,
    )


def text_of(results: Sequence[Result]) -> str:
    """A cell of the table: the range of the first requests, most moves, all summaries, and the highest bill."""
    firsts = sorted({result.first for result in results if result.first is not None})
    first = "-".join(str(each) for each in dict.fromkeys((firsts[0], firsts[-1]))) if firsts else "none"
    moves, bill = max(result.moves for result in results), max(result.bill for result in results)
    paid, used = sum(result.paid for result in results), sum(result.used for result in results)
    return f"{first} / {moves:.0f} / {paid}, {used} / {bill:.2f}"


def table_of(results: dict[Cell, Sequence[Result]]) -> str:
    """One row for each kind of session and preset, one column for each window."""
    rows = dict.fromkeys((cell.kind, cell.answer, cell.preset) for cell in results)
    lines = [
        (kind, f"`{preset}`", *(text_of(results[Cell(answer, preset, window)]) for window in WINDOWS))
        for kind, answer, preset in rows
    ]
    heads = (f"{window // 1_000:,}k" if window < 1_000_000 else f"{window // 1_000_000}M" for window in WINDOWS)
    return table(("session", "preset", *heads), lines, left=2)


def run_all(todo: Sequence[Cell], processes: int) -> Iterator[tuple[Cell, list[Result]]]:
    """Each cell as it becomes complete. Without garbage collection a run takes a third less time."""
    with ProcessPoolExecutor(processes or os.cpu_count(), get_context("spawn"), initializer=gc.disable) as pool:
        pending = {pool.submit(measure, cell): cell for cell in todo}
        yield from ((pending[future], future.result()) for future in as_completed(pending))


def windows(
    processes: Annotated[int, typer.Option(metavar="N", help="How many at once. Default: as many as cores.")] = 0,
    print_only: Annotated[bool, typer.Option("--print", help="Print the table, and write no README.")] = False,
) -> None:
    """Measure what summaries do in windows of several sizes, and write the table into policies/README.md."""
    todo, done = cells(), dict[Cell, Sequence[Result]]()
    for cell, results in run_all(todo, processes):
        done[cell] = results
        print(f"windows: {len(done)} of {len(todo)}, {cell.kind}, {cell.preset}, {cell.window}", file=sys.stderr)
    text = table_of({cell: done[cell] for cell in todo})
    if print_only:
        print(text)
    else:
        with refusing():
            FILE.write_text(put(FILE.read_text(encoding="utf-8"), {MARKS: text}), encoding="utf-8")
    raise typer.Exit(int(any(result.faults for results in done.values() for result in results)))


if __name__ == "__main__":
    typer.run(windows)
