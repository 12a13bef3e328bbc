"""Hostile requests beside healthy ones: `make attack`, or `python -m tests.long.attack [bodies|crowd|honest]...`.

Narrows runs in a process of its own with its defaults, before an upstream that answers at once. Another process asks
`/healthz` every 20 ms, and a page of a server that does nothing else: what that one waits for is the machine's.

Nothing is asserted of times. The exit code is 1 where the upstream received wrong bytes, a healthy client an error, or
Narrows failed.
"""

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from statistics import median

from rich.console import Console
from yarl import URL

from proxy.console.output import plain_table
from proxy.lab.load.client import ALL, Clients, Latencies
from proxy.lab.load.plan import LoadPlan
from tests.long.attack_bodies import Attack, attacks, honest
from tests.long.attack_crowd import Crowd, Outcome, sent, session
from tests.long.attack_probe import Probe, Waits
from tests.long.attack_sink import MADE_UP
from tests.long.bench_stage import Server, Stage
from tests.long.bench_texts import agent

CROWDED = 30
"""Seconds of healthy clients, alone and beside the crowd."""
RATE = 10
HONEST = 10_000
_CALM, _LONGEST = 0.1, 60.0
"""The share of a processor below which nothing is at work any more, and the seconds that this is waited for."""
HEALTHZ, CONTROL = "healthz", "control"


@dataclass(frozen=True, slots=True)
class Row:
    """What one attack did."""

    name: str
    dialect: str
    seconds: float
    """Until its reply."""
    cpu: float
    rss: float
    """MiB at most."""
    healthz: Waits
    control: Waits
    outcome: str = ""
    is_wrong: bool = False


@dataclass(slots=True)
class Field:
    """A Narrows under attack, and what is watched of it."""

    server: Server
    probe: Probe

    @classmethod
    @asynccontextmanager
    async def opened(cls) -> AsyncIterator["Field"]:
        async with Stage.opened(sink="tests.long.attack_sink", relay=False) as stage:
            server, control = await stage.narrows(), await stage.start("control", "-m", "proxy.lab.load.sink")
            pages = {HEALTHZ: f"{URL(server.url).origin()}/healthz", CONTROL: f"{control.url}/models"}
            async with Probe.started(pages) as probe:
                yield cls(server, probe)

    async def measured(self, name: str, dialect: str, work: Awaitable[Outcome], calms: bool = True) -> Row:
        """Do some work, and what it did to the process until all is calm again."""
        await self.probe.read()
        self.server.forget_peak()
        cpu, began = self.server.cpu(), time.perf_counter()
        outcome = await work
        seconds = time.perf_counter() - began
        if calms:
            await self._calm()
        waits = await self.probe.read()
        cpu = self.server.cpu() - cpu if self.server.is_alive else 0.0
        row = Row(name, dialect, round(seconds, 3), round(cpu, 3), self.server.peak(), waits[HEALTHZ], waits[CONTROL])
        is_wrong = outcome.is_wrong or not self.server.is_alive
        return replace(row, outcome=outcome.words if self.server.is_alive else "Narrows died", is_wrong=is_wrong)

    async def _calm(self) -> None:
        until = time.perf_counter() + _LONGEST
        while self.server.is_alive and time.perf_counter() < until:
            before = self.server.cpu()
            await asyncio.sleep(0.5)
            if self.server.is_alive and self.server.cpu() - before < 0.5 * _CALM:
                return


async def bodies() -> list[Row]:
    """Each hostile body alone, twice, with a key that nobody has."""
    rows: list[Row] = []
    async with Field.opened() as field, session() as http:
        rows.append(await field.measured("nothing", "", _idle(3)))
        for attack in attacks():
            for name in (attack.name, "  the same again"):
                work = sent(http, field.server.url, attack, f"{MADE_UP}-{random.randrange(10**9)}")
                rows.append(await field.measured(name, attack.dialect, work))
                _print(rows[-1])
    return rows


async def crowd() -> list[Row]:
    """Healthy clients alone, and beside all attackers together."""
    rows: list[Row] = []
    async with Field.opened() as field:
        rows.append(await field.measured("healthy clients alone", "openai_chat", _healthy(field.server)))
        async with Crowd(field.server.url, list(attacks())).at_work() as crowd:
            await asyncio.sleep(5)
            row = await field.measured("beside the crowd", "openai_chat", _healthy(field.server), calms=False)
            rows.append(replace(row, is_wrong=row.is_wrong or bool(crowd.wrong)))
            print(json.dumps({"open": crowd.open, **dict(crowd.outcomes.most_common())}, indent=1), file=sys.stderr)
        for each in rows:
            _print(each)
    return rows


async def _healthy(server: Server) -> Outcome:
    plan = LoadPlan(
        server.url,
        [agent(100_000, 40)],
        conversations=8,
        rate=RATE,
        duration=CROWDED,
        streamed=0.5,
        warm=1,
        echo=True,
        seed=random.randrange(10**6),
    )
    async with Clients(plan) as clients:
        try:
            await clients.prepare()
            results = await clients.run()
        except ValueError as error:
            return Outcome(0, str(error), is_wrong=True)
    errors = {kind: count for each in results for kind, count in each.errors.items()}
    latencies = Latencies(each.latencies[ALL] for each in results if ALL in each.latencies)
    cuts = latencies.percentiles((50.0, 99.0))
    words = f"p50 {cuts[50.0]:.0f} ms, p99 {cuts[99.0]:.0f} ms of {latencies.count}; errors {errors or 0}"
    return Outcome(200, words, is_wrong=bool(errors))


async def honest_sessions() -> list[Row]:
    """A long session of an agent, seen for the first time and again; the median of three."""
    rows: list[Row] = []
    async with Field.opened() as field, session("127.0.0.1") as http:
        for name, longest in ((f"{HONEST:,} messages, 2.3 MB", 50), (f"{HONEST:,} messages, 12 MB", 10**6)):
            runs: list[list[Row]] = []
            for seed in (1, 1_001, 2_001):
                attack = Attack(name, "openai_chat", honest(HONEST, longest, seed))
                runs.append(
                    [
                        await field.measured(word, "openai_chat", sent(http, field.server.url, attack, "sk-honest"))
                        for word in (name, "  the same again")
                    ]
                )
            for each in zip(*runs, strict=True):
                rows.append(_median(each))
                _print(rows[-1])
    return rows


def _median(rows: Sequence[Row]) -> Row:
    seconds, cpu = (median(getattr(row, name) for row in rows) for name in ("seconds", "cpu"))
    worst = max(rows, key=lambda row: row.healthz.longest)
    is_wrong = any(row.is_wrong or not row.outcome.startswith(("200", "503")) for row in rows)
    return replace(worst, seconds=seconds, cpu=cpu, rss=max(row.rss for row in rows), is_wrong=is_wrong)


async def _idle(seconds: float) -> Outcome:
    await asyncio.sleep(seconds)
    return Outcome(200, "")


def _print(row: Row) -> None:
    print(f"{row.dialect} {row.name}: {row.seconds:.2f} s, {row.cpu:.2f} s of CPU, {row.outcome}", file=sys.stderr)


HEADS = ("attack", "API", "wall s", "CPU s", "RSS MiB", "healthz p99", "most ms", "control p99", "most ms", "outcome")


def _printed(rows: Sequence[Row]) -> None:
    grid = plain_table(*HEADS, left=2)
    for row in rows:
        waits = (row.healthz.p99, row.healthz.longest, row.control.p99, row.control.longest)
        grid.add_row(
            row.name,
            row.dialect.partition("_")[2],
            *(f"{value:.2f}" for value in (row.seconds, row.cpu)),
            *(f"{value:.0f}" for value in (row.rss, *waits)),
            ("WRONG " if row.is_wrong else "") + row.outcome,
        )
    Console(stderr=True, width=170, highlight=False, markup=False).print(grid)


CASES = {"bodies": bodies, "crowd": crowd, "honest": honest_sessions}


async def main(names: Sequence[str]) -> int:
    if wrong := [name for name in names if name not in CASES]:
        sys.exit(f"there is no case {wrong[0]!r}; these are {' '.join(CASES)}")
    before, rows = os.getloadavg(), list[Row]()
    for name in names or CASES:
        rows += await CASES[name]()
    load = {"cores": os.cpu_count(), "load_before": before[0], "load_after": os.getloadavg()[0]}
    print(json.dumps({"machine": load, "rows": [asdict(row) for row in rows]}, indent=1))
    _printed(rows)
    print(f"Load of the machine: {before[0]:.1f} before, {os.getloadavg()[0]:.1f} after", file=sys.stderr)
    return int(any(row.is_wrong for row in rows))


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
