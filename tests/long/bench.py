"""`make bench`: what Narrows adds to a request, beside a bare relay. `make bench CASES="small agent"` runs some cases.

Sink, relay, Narrows and clients are processes of their own; the clients are those of `narrows load`. CPU is that of the
process, per request; waits are compared with those through the relay, on the same machine at the same time. Prints a
list as JSON on stdout, a table on stderr, and draws both in .bench/bench.html. The upstream answers at once, with the
replies that the conversations go on with.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from proxy.lab.load.client import Clients
from proxy.lab.load.plan import SALTS, LoadPlan, SessionScript
from tests.kit.paths import ROOT
from tests.kit.redis_servers import Server as RedisServer
from tests.long.bench_stage import Cost, Server, Stage, in_turn, loaded, running
from tests.long.bench_table import Figure, drawn, printed
from tests.long.bench_texts import TOOLS, agent, chat

LARGE = 400_000
"""Bytes of a history of about 100,000 tokens."""
EVENTS = 4_000


def plan(*scripts: SessionScript, **more: Any) -> LoadPlan:
    """A load whose conversations are played to their ends, one request at a time and none streamed."""
    chosen = {"url": "", "concurrency": 1, "streamed": 0, "once": True, "echo": True, **more}
    return LoadPlan(scripts=scripts, **{"seed": time.time_ns() % SALTS, **chosen})


async def both(load: LoadPlan, rounds: int = 1) -> tuple[Cost, Cost]:
    """A load through the relay, and through a Narrows of its own."""
    async with Stage.opened() as stage:
        costs = await in_turn({"relay": (stage.relay, load), "narrows": (await stage.narrows(), load)}, rounds)
    return costs["relay"], costs["narrows"]


# --- the cases: each yields the figures that it has measured ---

Figures = AsyncIterator[Figure]


async def small() -> Figures:
    async for figure in _small("small", chat(1_000, 31, words=60)):
        yield figure


async def tools() -> Figures:
    async for figure in _small("small with tools", chat(1_000, 31, TOOLS, words=60)):
        yield figure


async def _small(name: str, script: SessionScript) -> Figures:
    load = plan(script, conversations=14, warm=1)
    async with Stage.opened() as stage:
        servers = (stage.sink, stage.relay, await stage.narrows())
        costs = await in_turn({server.name: (server, load) for server in servers}, rounds=3)
    direct, relay, narrows = (costs[server.name] for server in servers)
    added = (narrows.p50 - direct.p50) / (relay.p50 - direct.p50)
    target, beyond = (1.3, 1.0) if name == "small" else (None, None)
    yield Figure(f"{name}: added p50, of the relay's", added, "x", target, beyond, costs=costs)
    yield _of_the_relay(f"{name}: CPU per request, of the relay's", relay, narrows)


async def untouched() -> Figures:
    async for figure in _warm("100k tokens warm, untouched", chat(LARGE, 32, TOOLS, words=300), (0.5, 0.2), (3, 1)):
        yield figure


async def warm_agent() -> Figures:
    async for figure in _warm("400 kB agent, warm", agent(LARGE, 32), (1.5, 1.0), (6, 5)):
        yield figure


async def _warm(name: str, script: SessionScript, p50: tuple[float, float], p99: tuple[float, float]) -> Figures:
    relay, narrows = await both(plan(script, conversations=2, warm=2), rounds=2)
    yield Figure(f"{name}: p50 over the relay", narrows.p50 - relay.p50, "ms", *p50, costs=_costs(relay, narrows))
    yield Figure(f"{name}: p99 over the relay", narrows.p99 - relay.p99, "ms", *p99)
    yield _of_the_relay(f"{name}: CPU per request, of the relay's", relay, narrows)
    yield Figure(f"{name}: longest stop of the loop", narrows.longest_stop, "ms", 20, 5)


async def first() -> Figures:
    """The first request that this process sees of a long history."""
    cases = (
        ("agent", agent(LARGE, 1), 100, 40),
        ("prose with tools", chat(LARGE, 1, TOOLS), None, None),
        ("nothing to edit", chat(LARGE, 1), 4, 2),
    )
    for name, script, target, beyond in cases:
        relay, narrows = await both(plan(script, conversations=12))
        title = f"100k tokens first seen, {name}"
        over = narrows.p50 - relay.p50
        yield Figure(f"{title}: p50 over the relay", over, "ms", target, beyond, costs=_costs(relay, narrows))
        yield Figure(f"{title}: longest stop of the loop", narrows.longest_stop, "ms", 20, 5)


async def megabytes() -> Figures:
    relay, narrows = await both(plan(agent(5_000_000, 1)))
    yield Figure("5 MB first seen: p50", narrows.p50 / 1000, "s", 1, 0.5, costs=_costs(relay, narrows))
    yield Figure("5 MB first seen: longest stop of the loop", narrows.longest_stop, "ms", 20, 5)


async def events() -> Figures:
    """Streams of thousands of events; the request itself is a small part of it."""
    async with Stage.opened(EVENTS) as stage:
        server = await stage.narrows()
        cases = (("without the recall tool", chat(100, 1), None), ("with the recall tool", chat(100, 1, TOOLS), 1.0))
        for name, script, target in cases:
            load = plan(script, conversations=25, streamed=1, echo=False)
            costs = await in_turn({"relay": (stage.relay, load), "narrows": (server, load)})
            over = costs["narrows"].cpu_us_per_event - costs["relay"].cpu_us_per_event
            beyond = 0.3 if target else None
            yield Figure(f"per event {name}: CPU over the relay", over, "us", target, beyond, costs=costs)


async def many() -> Figures:
    """Conversations that take turns, each with the same sizes."""
    costs: dict[str, Cost] = {}
    async with Stage.opened() as stage:
        for number, turns in ((1, 60), (50, 6), (700, 3)):
            load = plan(chat(16_000, turns, TOOLS), conversations=number, warm=1)
            costs[f"{number}"] = await loaded(await stage.narrows(), load)
    one = costs["1"]
    for each, these in list(costs.items())[1:]:
        name = f"{each} conversations in turn"
        yield Figure(f"{name}: CPU, of one's", these.cpu_us / one.cpu_us, "x", 1.1, 1.0, costs=costs)
        yield Figure(f"{name}: p50, of one's", these.p50 / one.p50, "x", 1.1, 1.0)


async def alike() -> Figures:
    """Two agents of one tenant: the same instructions and tools, in turn."""
    async with Stage.opened() as stage:
        server = await stage.narrows()
        alone = plan(agent(150_000, 30), conversations=1, warm=2)
        beside = plan(agent(150_000, 30, shared=True), conversations=2, warm=2)
        costs = await in_turn({"one": (server, alone), "two": (server, beside)}, rounds=3)
    one, two = costs["one"], costs["two"]
    yield Figure("two agents that begin alike: CPU, of one's", two.cpu_us / one.cpu_us, "x", 1.1, 1.0, costs=costs)
    yield Figure("two agents that begin alike: p50, of one's", two.p50 / one.p50, "x", 1.1, 1.0)


async def long() -> Figures:
    """Short turns, of which there are more and more."""
    whole, loads = chat(1, 2_000, TOOLS), dict[str, tuple[Server, LoadPlan]]()
    async with Stage.opened() as stage:
        server = await stage.narrows()
        for turn in (100, 2_000):
            script = replace(whole, ends=whole.ends[turn - 42 : turn])
            loads[f"turn {turn}"] = server, plan(script, conversations=2, warm=2)
        costs = await in_turn(loads)
    before, after = costs["turn 100"], costs["turn 2000"]
    yield Figure("turn 2,000 against turn 100: CPU", after.cpu_us / before.cpu_us, "x", 1.3, 1.1, costs=costs)
    yield Figure("turn 2,000 against turn 100: p50", after.p50 / before.p50, "x", 1.3, 1.1)


async def takeover() -> Figures:
    """An agent's conversation goes on in another process, which shares the store."""
    whole = agent(345_000, 400)
    async with Stage.opened() as stage:
        redis = RedisServer(stage.folder / "redis")
        redis.start()
        try:
            one, other = [await stage.narrows(store=redis.url) for _ in range(2)]
            for each in (one, other):  # they are up and have their connections
                await loaded(each, plan(chat(20_000, 20, TOOLS), conversations=2, seed=1))
            before = plan(replace(whole, ends=whole.ends[:-1]), conversations=6, warm=len(whole.ends) - 2)
            at_home = await loaded(one, before)
            await asyncio.sleep(1)  # what is written behind it; a model takes as long
            cost = await loaded(other, replace(before, scripts=[replace(whole, ends=whole.ends[-1:])], warm=0))
        finally:
            redis.kill()
    costs = {"at home": at_home, "taken over": cost}
    yield Figure("takeover of 345 kB by another worker: p50", cost.p50, "ms", 25, 10, costs=costs)
    yield Figure("takeover: longest stop of the loop", cost.longest_stop, "ms", 20, 5)


async def beside() -> Figures:
    """Small requests while three clients of the same process send large ones."""
    costs: dict[str, Cost] = {}
    async with Stage.opened() as stage:
        for server in (stage.relay, await stage.narrows()):
            # with a pause, so that a fast server is not given more to do than a slow one
            pace = {"concurrency": 3, "think": 0.05, "once": False, "duration": 60, "begin_at": 0.3, "warm": 2}
            load = plan(agent(LARGE, 60), conversations=3, **pace)
            async with Clients(replace(load, url=server.url)) as large:
                await large.prepare()
                running_ = asyncio.create_task(large.run())
                costs[server.name] = await loaded(server, plan(chat(1_000, 31, words=60), conversations=20, warm=1))
                large.stop()
                together = await running_
            if not all(each.answered and not each.errors for each in together):
                raise RuntimeError(f"the large requests through {server.name} failed: {together[0].errors}")
    ratio = costs["narrows"].p50 / costs["relay"].p50
    yield Figure("small beside 3 large: p50, of the relay's", ratio, "x", 1.5, 1.2, costs=costs)
    yield Figure("small beside 3 large: p50", costs["narrows"].p50, "ms", 8, 4)
    yield Figure("small beside 3 large: p99", costs["narrows"].p99, "ms")


async def throughput() -> Figures:
    async with Stage.opened() as stage:
        servers = (stage.relay, await stage.narrows())
        costs = await in_turn({server.name: (server, _at_once()) for server in servers})
    ratio = costs["narrows"].rps / costs["relay"].rps
    yield Figure("throughput of 32 at once, of the relay's", ratio, "x", 0.8, 1.0, True, costs)


async def workers() -> Figures:
    """Two workers against one."""
    costs: dict[str, Cost] = {}
    async with Stage.opened() as stage:
        for number in (1, 2):
            costs[f"{number}"] = await loaded(await stage.narrows("--workers", str(number)), _at_once())
    one, two = costs["1"], costs["2"]
    yield Figure("2 workers: CPU per request, of one's", two.cpu_us / one.cpu_us, "x", 1.1, 1.05, costs=costs)
    cores = os.cpu_count() or 1
    target = 1.8 if cores >= 4 else None
    yield Figure(f"2 workers on {cores} cores: throughput, of one's", two.rps / one.rps, "x", target, target, True)


def _at_once() -> LoadPlan:
    script = chat(1_000, 31, words=60)
    return plan(script, conversations=64, warm=1, concurrency=32)


async def memory() -> Figures:
    """Idle, and what conversations of 100,000 tokens add, by those that there is time for."""
    async with Stage.opened() as stage:
        server = await stage.narrows()
        await asyncio.sleep(2)
        idle = server.rss()
        yield Figure("RSS idle", idle, "MiB", 90, 60)
        scripts = [*[chat(LARGE, 1, TOOLS)] * 3, agent(LARGE, 1)]
        grown: list[tuple[int, float]] = []
        for duration in (20, 30):
            load = plan(*scripts, conversations=4, concurrency=4, once=False, duration=duration, url=server.url)
            async with Clients(load, 2) as clients:
                cost = await running(server, clients)
            grown.append((cost.requests, server.rss()))
        (before, rss), (more, after) = grown
        name = f"RSS with 1,000 conversations of 100k tokens, by {before + more:,}"
        # what the first ones add besides themselves is added once
        yield Figure(name, rss + (1_000 - before) * (after - rss) / more, "MiB", 500, 250)


async def start() -> Figures:
    """The command's help, and the time until it listens."""
    helps = [await _seconds(_help) for _ in range(3)]
    yield Figure("narrows --help", median(helps), "s", 0.3, 0.15)
    async with Stage.opened() as stage:
        served = [await _seconds(stage.narrows) for _ in range(3)]
    yield Figure("serving", median(served), "s", 1.0, 0.6)


async def _seconds(what: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await what()
    return time.perf_counter() - began


async def _help() -> None:
    words = (sys.executable, "-m", "proxy.console.cli", "--help")
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.DEVNULL, cwd=ROOT)
    await process.wait()


def _costs(relay: Cost, narrows: Cost) -> Mapping[str, Cost]:
    return {"relay": relay, "narrows": narrows}


def _of_the_relay(name: str, relay: Cost, narrows: Cost) -> Figure:
    return Figure(name, narrows.cpu_us / relay.cpu_us, "x")


CASES: Mapping[str, Callable[[], Figures]] = {
    "small": small,
    "tools": tools,
    "untouched": untouched,
    "agent": warm_agent,
    "first": first,
    "5mb": megabytes,
    "events": events,
    "many": many,
    "alike": alike,
    "long": long,
    "takeover": takeover,
    "beside": beside,
    "throughput": throughput,
    "workers": workers,
    "memory": memory,
    "start": start,
}


async def main(names: Sequence[str]) -> None:
    if wrong := [name for name in names if name not in CASES]:
        sys.exit(f"there is no case {wrong[0]!r}; these are {' '.join(CASES)}")
    figures: list[Figure] = []
    for name in names or CASES:
        began = time.perf_counter()
        try:
            figures += [figure async for figure in CASES[name]()]
        except (RuntimeError, ValueError, OSError) as error:  # a case that fails is a line, and the others go on
            figures.append(Figure(f"{name}: {error}"[:200], None, ""))
        print(f"{name}: {time.perf_counter() - began:.0f} s", file=sys.stderr)
    print(json.dumps([figure.as_json() for figure in figures], indent=1))
    page = ROOT / ".bench" / "bench.html"
    page.parent.mkdir(exist_ok=True)
    page.write_text(drawn(figures), encoding="utf-8")
    printed(figures)
    print(f"The page is in {page}", file=sys.stderr)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
