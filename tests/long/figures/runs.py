"""All runs that the tables need: on all cores, each remembered by what it follows from.

Laws
  A run that is remembered is the run of this very code: the name of its file is a digest of the sources, of the price
  data, of the session, the prices and the preset.
  What is complete is stored at once: an interrupted command goes on where it was.
"""

import asyncio
import gc
import json
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from proxy.lab.needs import Needs
from proxy.lab.quality import Visibility
from proxy.lab.replay.recorded import Session
from proxy.lab.replay.report import Report
from proxy.lab.replay.runs import replay_all
from tests.long.figures.fixed import options_for
from tests.long.figures.simulated import simulated

ROOT = Path(__file__).parents[3]
_DRAWING = (
    "tests/long/figures/tables.py",
    "tests/long/figures/__main__.py",
    "tests/long/figures/windows.py",
    "tests/long/figures/curve.py",
    "tests/long/figures/peers.py",
    "tests/long/figures/picture.py",
    "proxy/console/",
    "proxy/lab/replay/display.py",
    "proxy/lab/terminal.py",
)
"""Sources that only write these figures down, or measure others."""
_DATA = ("genai-prices", "toktok-rs")
"""Packages whose data the figures follow from."""
_TOGETHER, _LONGEST = 4, 200
"""Presets that one process runs at once over sessions of so many requests or more, so that none ends long after all."""


@dataclass(frozen=True, slots=True)
class Run:
    """The figures of one session under one preset, at the prices of one model."""

    session: str
    kind: str
    preset: str
    prices: str
    requests: int
    bill: float
    """The input bill as a share of that of doing nothing, as the next four."""
    marks_alone: float
    """Of cache marks of Narrows and nothing else of it."""
    whole_bill: float
    worst_past_request_20: float
    worst_at_any_stop: float
    sent: int
    """Input tokens, those for summaries included."""
    peak: int
    breaks: int
    """Requests that did not begin with all of the one before."""
    calls: int
    """Of a model, for summaries and digests."""
    faults: int
    sight: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """By tally: how many items turns used, and how many of them stood in sight."""
    needs: Mapping[str, float | None] = field(default_factory=dict)
    """What actions needed that was out of sight, as `Needs` names it."""


@dataclass(frozen=True, slots=True)
class Job:
    """Presets that are to be run over a session at the prices of a model."""

    session: Session
    prices: str
    presets: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.session.name}, {self.prices}, {', '.join(self.presets)}"


_Missing = tuple[int, Job]
"""A job, by its place among all."""


def runs_of(
    jobs: Sequence[Job], folder: Path, processes: int = 0, progress: Callable[[int, int, str], None] = lambda *_: None
) -> list[Run]:
    """The runs of all jobs, in their order: those in the folder as they are, all others now."""
    results: dict[tuple[int, str], Run] = {}
    places: dict[tuple[int, str], Path] = {}
    missing: list[_Missing] = []
    for at, job in enumerate(jobs):
        places |= {(at, preset): place for preset, place in _places(folder, job).items()}
        stored = {preset: _stored(places[at, preset]) for preset in job.presets}
        results |= {(at, preset): run for preset, run in stored.items() if run is not None}
        wanted = [preset for preset, run in stored.items() if run is None]
        missing += [(at, Job(job.session, job.prices, presets)) for presets in _parts(wanted, len(job.session.turns))]
    missing.sort(key=lambda each: -len(each[1].session.turns))  # the longest first, so that all processes end together
    total = sum(len(job.presets) for job in jobs)
    for (at, job), new in _now(missing, processes or os.cpu_count() or 1):
        for run in new:
            _store(places[at, run.preset], run)
            results[at, run.preset] = run
        progress(len(results), total, job.name)
    return [results[at, preset] for at, job in enumerate(jobs) for preset in job.presets]


def _now(missing: Sequence[_Missing], processes: int) -> Iterator[tuple[_Missing, list[Run]]]:
    """The runs of jobs, as they become complete."""
    if processes == 1 or len(missing) < 2:
        yield from (((at, job), run_job(job)) for at, job in missing)
        return
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, spawning, initializer=gc.disable) as pool:  # a third of the time of a run
        pending = {pool.submit(run_job, job): (at, job) for at, job in missing}
        yield from ((pending[future], future.result()) for future in as_completed(pending))


def run_job(job: Job) -> list[Run]:
    """Its runs, without sockets where that gives the same figures."""
    gc.collect()  # what the one before has left behind
    try:
        reports = simulated(job.session, job.presets, job.prices)
        for preset in job.presets:
            if preset not in reports:
                (reports[preset],) = asyncio.run(replay_all([job.session], options_for(preset, job.prices)))
    except Exception as error:
        error.add_note(f"in the run of {job.name}")
        raise
    return [figures_of(reports[preset], job.session.group) for preset in job.presets]


def figures_of(report: Report, kind: str) -> Run:
    used = report.used_by_later_turns
    return Run(
        session=report.session,
        kind=kind,
        preset=report.preset,
        prices=report.prices,
        requests=report.requests,
        bill=report.input_bill.ratio,
        marks_alone=report.input_bill_of_marks_alone.ratio,
        whole_bill=report.whole_bill.ratio,
        worst_past_request_20=report.worst_ratio_past_request_20,
        worst_at_any_stop=report.worst_ratio_at_any_stop,
        sent=int(report.tokens_sent.with_),
        peak=report.bill.peak,
        breaks=report.prefix_changes,
        calls=report.summaries.calls,
        faults=report.faults,
        needs={name: getattr(report.needs, name) for name in Needs.JSON},
        sight={name: [getattr(used, name).used, getattr(used, name).visible] for name in Visibility.JSON},
    )


def _parts(presets: Sequence[str], requests: int) -> Iterator[tuple[str, ...]]:
    most = _TOGETHER if requests >= _LONGEST else max(len(presets), 1)
    for start in range(0, len(presets), most):
        yield tuple(presets[start : start + most])


# --- what is remembered ---


def _places(folder: Path, job: Job) -> dict[str, Path]:
    """The file of each run of a job."""
    session = sha256(repr(job.session).encode("utf-8", "surrogatepass")).hexdigest()
    names = {preset: sha256(f"{session} {job.prices} {preset}".encode()).hexdigest() for preset in job.presets}
    return {preset: folder / revision() / f"{name[:32]}.json" for preset, name in names.items()}


def _stored(path: Path) -> Run | None:
    try:
        return Run(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):  # there is none, or one that was cut short
        return None


def _store(path: Path, run: Run) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(run)))


@cache
def revision() -> str:
    """A digest of all that decides what a run comes to, but for the session."""
    whole = sha256(" ".join(version(package) for package in _DATA).encode())
    for path in _sources():
        whole.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return whole.hexdigest()[:16]


def _sources() -> Iterable[Path]:
    every = (
        path for folder in ("policies", "proxy", "tests/long/figures") for path in sorted((ROOT / folder).rglob("*.py"))
    )
    return (path for path in every if not path.relative_to(ROOT).as_posix().startswith(_DRAWING))
