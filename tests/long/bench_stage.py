"""The processes of the benchmark: a sink, a relay, any number of Narrows, and what a load on one of them cost it."""

import asyncio
import os
import re
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

from proxy.lab.load.client import ALL, STREAMED, ClientResult, Clients, Latencies
from proxy.lab.load.plan import LoadPlan
from proxy.lab.load.report import sample, use
from tests.kit.paths import ROOT

SETTLING = 0.4
"""Seconds in which work in the background ends, before and after a load."""
START = 60


@dataclass(frozen=True, slots=True)
class Server:
    """A process that listens."""

    name: str
    url: str
    pid: int

    def processes(self) -> list[int]:
        """It and those that it started."""
        found, todo = [], [self.pid]
        while todo:
            pid = todo.pop()
            found.append(pid)
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                try:
                    todo += map(int, task.read_text().split())
                except OSError:  # a thread that has ended
                    continue
        return found

    def cpu(self) -> float:
        """Seconds of processor time so far, with those of its processes that have ended."""
        stat = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        total = sum(map(int, stat[13:15])) * 10**9 // os.sysconf("SC_CLK_TCK")
        for pid in self.processes():
            for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                try:
                    total += int(task.read_text().split()[0])
                except OSError:
                    continue
        return total / 1e9

    def rss(self) -> float:
        """MiB in memory."""
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.processes())
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def forget_peak(self) -> None:
        """What was most in memory counts from now on."""
        for pid in self.processes():
            Path(f"/proc/{pid}/clear_refs").write_text("5")

    def peak(self) -> float:
        """MiB in memory at most, of each of its processes."""
        sizes = [re.search(r"VmHWM:\s+(\d+)", _status(pid)) for pid in self.processes()]
        return sum(int(size[1]) for size in sizes if size) / 1024

    @property
    def is_alive(self) -> bool:
        return bool(_status(self.pid)) and "State:\tZ" not in _status(self.pid)


def _status(pid: int) -> str:
    """Empty where there is no such process."""
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a load cost a server, and how long its clients waited."""

    cpu_us: float
    """Per request."""
    cpu_us_per_event: float
    p50: float
    p99: float
    rps: float
    requests: int
    longest_stop: float | None

    def as_json(self) -> dict[str, Any]:
        stop = {"longest_stop_ms": self.longest_stop} if self.longest_stop is not None else {}
        event = {"cpu_us_per_event": round(self.cpu_us_per_event, 2)} if self.cpu_us_per_event else {}
        figures = {"cpu_us": round(self.cpu_us), "p50_ms": round(self.p50, 3), "p99_ms": round(self.p99, 3)}
        return {**figures, "rps": round(self.rps, 1), "requests": self.requests, **event, **stop}


class Stage:
    """A sink, a relay before it, and a folder; all that is started ends with it."""

    def __init__(self, parts: AsyncExitStack, folder: Path) -> None:
        self._parts = parts
        self._log = parts.enter_context((folder / "log").open("ab"))
        self._stores = 0
        self.folder = folder
        self.sink = self.relay = Server("", "", 0)

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, events: int = 50, sink: str = "proxy.lab.load.sink", relay: bool = True
    ) -> AsyncIterator["Stage"]:
        async with AsyncExitStack() as parts:
            stage = cls(parts, Path(parts.enter_context(TemporaryDirectory(prefix="narrows-bench-"))))
            stage.sink = await stage.start("sink", "-m", sink, str(events))
            if relay:
                stage.relay = await stage.start("relay", "-m", "tests.long.bench_relay", stage.sink.url)
            yield stage

    async def narrows(self, *options: str, store: str = "") -> Server:
        """A Narrows before the sink, as it comes but for its port and its store."""
        self._stores += 1
        store = store or f"sqlite:///{self.folder}/{self._stores}.db"
        words = ("-m", "proxy.console.cli", "serve", "--port", "0", "--no-summaries", "--store", store)
        return await self.start("narrows", *words, "--upstream", self.sink.url, *options)

    async def start(self, name: str, *words: str) -> Server:
        """A process of this project that prints its address."""
        process = await self.process(sys.executable, *words, environment=_environment())
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), START)).decode()
        address = re.search(r"http://\S+", line)
        if address is None:
            raise RuntimeError(f"{name} did not start: {self.log()}")
        return Server(name, address[0], process.pid)

    async def process(self, *command: str, environment: Mapping[str, str], quiet: bool = False) -> Process:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=DEVNULL, stdout=self._log if quiet else PIPE, stderr=self._log, cwd=ROOT, env=environment
        )
        self._parts.push_async_callback(_ended, process)
        return process

    def log(self) -> str:
        """The end of what the processes have written to stderr."""
        return (self.folder / "log").read_text(errors="replace")[-1000:]


def _environment() -> dict[str, str]:
    """That of this process, without its settings of Narrows and its HTTP proxies."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("NARROWS_")}
    return {**own, "no_proxy": "*"}


async def _ended(process: Process) -> None:
    if process.returncode is None:
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), 10)
    except TimeoutError:
        process.kill()
        await process.wait()


async def loaded(server: Server, plan: LoadPlan) -> Cost:
    """A load on a server, and what it cost."""
    async with Clients(replace(plan, url=server.url)) as clients:
        return await running(server, clients)


async def running(server: Server, clients: Clients) -> Cost:
    await clients.prepare()
    await asyncio.sleep(SETTLING)
    is_narrows = server.name == "narrows"
    before = await sample(server.url) if is_narrows else None
    began = server.cpu()
    results = await clients.run()
    await asyncio.sleep(SETTLING)
    cpu = server.cpu() - began
    after = await sample(server.url) if is_narrows else None
    stop = use(before, after, 1, 1, 1, 1).longest_stop_ms if before and after else None
    return cost(results, cpu, stop, server.name)


def cost(results: Sequence[ClientResult], cpu: float, stop: float | None, name: str) -> Cost:
    failed = {kind: count for each in results for kind, count in each.errors.items()}
    if failed:
        raise RuntimeError(f"{name} failed: {failed}")
    latencies = Latencies(each.latencies[ALL] for each in results)
    requests, events = sum(each.answered for each in results), sum(each.events for each in results)
    cuts = latencies.percentiles((50.0, 99.0))
    rps = requests / max(each.seconds for each in results)
    streamed = any(STREAMED in each.latencies for each in results)
    per_event = cpu * 1e6 / events if streamed and events else 0.0
    return Cost(cpu * 1e6 / requests, per_event, cuts[50.0], cuts[99.0], rps, requests, stop)


async def in_turn(loads: Mapping[str, tuple[Server, LoadPlan]], rounds: int = 2) -> dict[str, Cost]:
    """Several loads, one after the other and again, so that whatever else the machine does falls on all of them."""
    costs: dict[str, list[Cost]] = {name: [] for name in loads}
    for round_ in range(rounds):
        for name, (server, plan) in loads.items():
            # other texts in each round: a conversation of the last one would be known already
            costs[name].append(await loaded(server, replace(plan, seed=plan.seed + 10_000 * round_)))
    return {name: together(each) for name, each in costs.items()}


def together(costs: Sequence[Cost]) -> Cost:
    """Several rounds of the same load as one: the median of waits, the mean of CPU."""
    stops = [each.longest_stop for each in costs if each.longest_stop is not None]
    return Cost(
        cpu_us=fmean(each.cpu_us for each in costs),
        cpu_us_per_event=fmean(each.cpu_us_per_event for each in costs),
        p50=median(each.p50 for each in costs),
        p99=median(each.p99 for each in costs),
        rps=median(each.rps for each in costs),
        requests=sum(each.requests for each in costs),
        longest_stop=max(stops) if stops else None,
    )
