"""Hours in small: replayed traffic, a tenth of it with faults of the upstream, store and processes killed, slow readers
and clients that leave. `make soak MINUTES=60`, or `python -m tests.long.soak [MINUTES]`.

Two Narrows share one Redis. One of them is killed again and again; of the other one it is measured whether its memory,
its files, its connections and its replies grow. The exit code is 1 where bytes are wrong, a conversation is refused, an
error has no cause, or something is still running when all clients have left. Nothing is asserted of times.
"""

import asyncio
import json
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import linear_regression, median

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from yarl import URL

from policies.model.tokens import Counter
from policies.money.catalog import prices_for
from proxy.console.output import plain_table
from proxy.lab.provider import Provider
from proxy.lab.provider import start as start_provider
from tests.kit.redis_servers import Server as RedisServer
from tests.long.bench_stage import Server, Stage
from tests.long.soak_clients import Clients, Place, Tally

MINUTES, CLIENTS = 2.0, 8
KILLS, STORE_KILLS = (6.0, 14.0), (8.0, 16.0)
"""Seconds between two of them, at least and at most."""
AWAY = 2.0
DRAINED = 5.0
"""Seconds after which nothing is on its way any more."""
FIGURES = ("RSS MiB", "files", "threads", "narrows_running", "narrows_connections", "narrows_bytes_in_flight")


@dataclass(frozen=True, slots=True)
class Sample:
    at: float
    figures: dict[str, float]


@dataclass(slots=True)
class Soak:
    """All that is started."""

    stage: Stage
    redis: RedisServer
    steady: Server
    places: Sequence[Place]
    tally: Tally
    chance: random.Random
    kills: int = 0
    store_kills: int = 0

    async def kill_processes(self, server: Server) -> None:
        """kill -9 of the second Narrows, and a new one in its place."""
        place = self.places[1]
        while True:
            await asyncio.sleep(self.chance.uniform(*KILLS))
            os.kill(server.pid, signal.SIGKILL)
            began, self.kills = time.monotonic(), self.kills + 1
            place.away.append((began, float("inf")))
            server = await self.stage.narrows("--log-level", "error", store=self.redis.url)
            place.urls.append(server.url)
            place.away[-1] = (began, time.monotonic())

    async def kill_stores(self) -> None:
        """Redis goes with all that it knows, or stands still, and comes back."""
        while True:
            await asyncio.sleep(self.chance.uniform(*STORE_KILLS))
            self.store_kills += 1
            if self.chance.random() < 0.3:
                with self.redis.frozen():
                    await asyncio.sleep(AWAY)
                continue
            await asyncio.to_thread(self.redis.kill)
            await asyncio.sleep(AWAY)
            await asyncio.to_thread(self.redis.start)

    async def sample(self, http: aiohttp.ClientSession) -> Sample:
        async with http.get(URL(self.steady.url).origin() / "metrics") as reply:
            page = await reply.text()
        figures = {
            "RSS MiB": self.steady.rss(),
            "files": len(os.listdir(f"/proc/{self.steady.pid}/fd")),
            "threads": len(os.listdir(f"/proc/{self.steady.pid}/task")),
        }
        for family in text_string_to_metric_families(page):
            figures |= {each.name: each.value for each in family.samples if each.name in FIGURES}
        return Sample(time.monotonic(), figures)

    async def watch(self, http: aiohttp.ClientSession, samples: list[Sample]) -> None:
        while True:
            samples.append(await self.sample(http))
            await asyncio.sleep(1)


async def soak(minutes: float, seed: int) -> tuple[Soak, list[Sample], Sample]:
    provider = Provider(prices_for, Counter(), keep=400)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with (
        Stage.opened(relay=False) as stage,
        await start_provider(provider) as running,
        aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=60)) as http,
    ):
        stage.sink = Server("provider", running.url, os.getpid())
        redis = RedisServer(stage.folder / "redis")
        redis.start()
        try:
            steady, other = [await stage.narrows("--log-level", "error", store=redis.url) for _ in range(2)]
            places = [Place([server.url]) for server in (steady, other)]
            all_ = Soak(stage, redis, steady, places, Tally(), random.Random(seed))
            samples: list[Sample] = []
            clients = Clients(provider, places, all_.tally, seed)
            tasks = [asyncio.create_task(clients.converse(http)) for _ in range(CLIENTS)]
            tasks += [asyncio.create_task(each) for each in (all_.kill_processes(other), all_.kill_stores())]
            tasks.append(asyncio.create_task(all_.watch(http, samples)))
            done, _ = await asyncio.wait(tasks, timeout=minutes * 60, return_when=asyncio.FIRST_EXCEPTION)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            all_.tally.problems += [f"the soak itself: {task.exception()!r}" for task in done if task.exception()]
            await asyncio.sleep(DRAINED)
            return all_, samples, await all_.sample(http)
        finally:
            redis.kill()


def _slope(samples: Sequence[tuple[float, float]]) -> float:
    """What is added in an hour, by the second half, in which caches are warm."""
    half = samples[len(samples) // 2 :]
    if len(half) < 2 or half[0][0] == half[-1][0]:
        return 0.0
    return linear_regression([at / 3600 for at, _ in half], [value for _, value in half]).slope


def rows(samples: Sequence[Sample], last: Sample, tally: Tally) -> list[tuple[str, float, float, float, float]]:
    """For each figure: at first, in the middle, when all have left, and what an hour adds."""
    table = []
    for name in FIGURES:
        values = [(each.at, each.figures[name]) for each in samples]
        table.append((name, values[0][1], median(v for _, v in values), last.figures[name], _slope(values)))
    waits = [(at, 1000 * seconds) for at, seconds in tally.latencies]
    third = max(1, len(waits) // 3)
    early, late = (median([wait for _, wait in part] or [0]) for part in (waits[:third], waits[-third:]))
    table.append(("reply ms, p50", early, median([wait for _, wait in waits] or [0]), late, _slope(waits)))
    return table


async def main(minutes: float) -> int:
    seed = random.randrange(10**6)
    logging.getLogger("aiohttp").setLevel(logging.CRITICAL)  # the provider's clients are cut off
    load = os.getloadavg()[0]
    all_, samples, last = await soak(minutes, seed)
    tally = all_.tally
    table = rows(samples, last, tally)
    at_rest = {"narrows_running": 1.0, "narrows_bytes_in_flight": 0.0}  # the one request asks for the metrics
    stays = [name for name, most in at_rest.items() if last.figures[name] > most]
    tally.problems += [f"{name} is {last.figures[name]:.0f} when all clients have left" for name in stays]
    report = {
        "minutes": minutes,
        "seed": seed,
        "load": [load, os.getloadavg()[0]],
        "requests": tally.requests,
        "outcomes": dict(tally.outcomes),
        "faults": dict(tally.faults),
        "kills": all_.kills,
        "store_kills": all_.store_kills,
        "looked_at": tally.looked_at,
        "problems": tally.problems[:50],
        "figures": {name: [round(value, 2) for value in values] for name, *values in table},
    }
    print(json.dumps(report, indent=1))
    grid = plain_table("of the one that lives", "first", "middle", "last", "an hour adds")
    for name, *values in table:
        grid.add_row(name.removeprefix("narrows_"), *(f"{value:,.1f}" for value in values))
    Console(stderr=True, width=110, highlight=False, markup=False).print(grid)
    kills = f"{all_.kills} processes and {all_.store_kills} stores killed"
    print(f"{tally.requests:,} requests in {minutes:g} minutes, {kills}", file=sys.stderr)
    print(f"{tally.looked_at:,} looked at for lost texts; problems: {len(tally.problems)}", file=sys.stderr)
    print(*tally.problems[:20], sep="\n", file=sys.stderr)
    return int(bool(tally.problems))


if __name__ == "__main__":
    sys.exit(asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else MINUTES)))
