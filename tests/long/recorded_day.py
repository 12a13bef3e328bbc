"""`make recorded-day`: a day as it was recorded, many times as fast, through two Narrows that keep warm. At noon one of
them is killed.

All have one fast clock: the provider, by which its cache expires, and both Narrows, which share one Redis. Clients hold
their conversations as `narrows load --as-recorded` does, over a balancer, and each has a credential of its own. Then
`narrows replay` plays the same texts at the same times. The exit code is 1 where a conversation is refused anything, a
prompt is pinged twice in its lifetime, or what the provider has counted is further from what the replay foretells than
the bound, without the share of the Narrows that was killed: what was in flight there, and the pings that it owed.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Annotated

import aiohttp
import typer
from rich.console import Console
from yarl import URL

from policies.model.tokens import Counter, encoding_for
from policies.money.catalog import prices_for
from proxy.console.output import plain_table, refusing
from proxy.event_loop import run_fast
from proxy.lab.load.client import ALL, BEHIND, FIRST_REQUEST
from proxy.lab.load.command import measure
from proxy.lab.load.plan import LoadPlan, Salt, SessionScript, script_of
from proxy.lab.load.report import LoadReport
from proxy.lab.provider import APIS, Running
from proxy.lab.provider import start as start_provider
from proxy.lab.replay.environment import Options
from proxy.lab.replay.recorded import Session, session_of, timed
from proxy.lab.replay.runs import replay_all
from proxy.lab.replay.times import RECORDED, RequestTimes
from tests.kit.clocks import FastClock
from tests.kit.forms import plain, to_anthropic
from tests.kit.redis_servers import Park, park, soon
from tests.long.bench_stage import Server, Stage
from tests.long.recorded_log import Conversation, LoggingProvider, conversations, problems
from tests.long.recorded_replica import KEEP_WARM, MARK_LIFETIME

MODEL = "claude-opus-5-5"
LONGEST_PAUSE = 5_400.0
"""Seconds: a longer pause, a night, is cut to this."""
BOUND = 0.03
_IN_FLIGHT = 1.0
"""Seconds, by a real clock, that a request takes at most."""


# --- who speaks, and when ---


@dataclass(frozen=True, slots=True)
class Person:
    session: Session
    """Its texts and its times, as its conversation has them."""
    script: SessionScript
    begin: float

    @property
    def credential(self) -> str:
        return self.script.headers["x-api-key"]


def recorded(path: Path, pauses: str) -> Session:
    """A recording in the form of Anthropic's API, whose prompts can be kept warm. Raises ValueError."""
    content = json.loads(path.read_bytes())
    body = {**to_anthropic(plain(content)), "model": MODEL}
    kept = {name: content[name] for name in ("times", "started_at") if name in content}
    session = timed(session_of(json.dumps({**body, **kept}).encode(), path.stem, str(path)), pauses)
    if not session.times:
        raise ValueError(f"{path} does not say when its requests were sent; name times with --pauses")
    gaps = (later.sent - earlier.sent for earlier, later in pairwise(session.times))
    passed = accumulate((min(gap, LONGEST_PAUSE) for gap in gaps), initial=0.0)
    return replace(session, times=tuple(map(RequestTimes, passed)))


def people(sessions: Sequence[Session], number: int, hours: float) -> list[Person]:
    """So many, each with a session whose texts are spelled anew as a load does. They come evenly over the time in which
    they can end within the day."""
    made = []
    for at in range(number):
        session = sessions[at % len(sessions)]
        script = script_of(session, f"sk-ant-api03-person-{at}", MODEL)
        messages = (*session.messages[: script.shared], *map(Salt(at).message, session.messages[script.shared :]))
        begin = max(0.0, hours * 3_600 - session.times[-1].sent) * at / max(1, number - 1)
        made.append(Person(replace(session, messages=messages, name=f"{session.name}-{at}"), script, begin))
    return made


# --- the day ---


class Balancer:
    """Gives each connection to the next Narrows that takes one."""

    def __init__(self, replicas: Sequence[Server]) -> None:
        self._ports = deque(URL(each.url).port or 0 for each in replicas)

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(len(self._ports)):
            self._ports.rotate()
            with suppress(ConnectionError):
                there, back = await asyncio.open_connection("127.0.0.1", self._ports[0])
                await asyncio.gather(_pass(reader, back), _pass(there, writer))
                return
        writer.close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while content := await reader.read(2**16):
            writer.write(content)
            await writer.drain()
    writer.close()


@dataclass(slots=True)
class Day:
    report: LoadReport
    by_credential: Mapping[str, Conversation]
    killed: float
    """When one was killed, by the clock of the day."""
    killed_replica: str
    outcomes: Sequence[Mapping[str, float]]
    """What came of pings, as each Narrows counts it: the one that was killed until then."""


async def day(those: Sequence[Person], speed: float) -> Day:
    clock = FastClock(time.time(), speed)
    replies = {each.credential: APIS[each.session.dialect].recorded_answers(each.session.messages) for each in those}
    provider = LoggingProvider(
        prices_for, Counter(encoding_for(MODEL)), clock=clock, keep=1, model=MODEL, replies=replies
    )
    async with AsyncExitStack() as parts:
        stage = await parts.enter_async_context(Stage.opened(relay=False))
        store = parts.enter_context(park())
        doors = [await parts.enter_async_context(await start_provider(provider)) for _ in range(2)]
        replicas = await _replicas(stage, store, doors, clock)
        listening = await asyncio.start_server(Balancer(replicas), "127.0.0.1")
        parts.callback(listening.close)
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
        scripts, begins = [each.script for each in those], [each.begin for each in those]
        plan = LoadPlan(url, scripts, len(those), begins=begins, speed=speed, once=True)
        killing = asyncio.create_task(_kill(replicas[1], provider, plan.span / 2))
        report = await measure(plan, 1, lambda: None)
        killed, before = await killing
        await asyncio.sleep(KEEP_WARM / speed)  # for those who do not return
        outcomes = [await _outcomes(replicas[0]), before]
        print(stage.log(), file=sys.stderr)
        place = f"127.0.0.1:{doors[1].port}"
        return Day(report, conversations(provider.log), killed, place, outcomes)


async def _replicas(stage: Stage, store: Park, doors: Sequence[Running], clock: FastClock) -> list[Server]:
    redis = store.server()
    words = ("-m", "tests.long.recorded_replica", repr(clock.origin), repr(clock.speed))
    return [await stage.start("narrows", *words, door.url, redis.url) for door in doors]


async def _kill(server: Server, provider: LoggingProvider, after: float) -> tuple[float, Mapping[str, float]]:
    """So many seconds of the day after its first request; when that was, and what had come of its pings."""
    await soon(lambda: provider.log, 120)
    noon = provider.log[0].at + after
    while provider.clock() < noon:  # noqa: ASYNC110 - time has no event
        await asyncio.sleep(0.05)
    outcomes = await _outcomes(server)
    os.kill(server.pid, signal.SIGKILL)
    return provider.clock(), outcomes


async def _outcomes(server: Server) -> Mapping[str, float]:
    async with aiohttp.ClientSession() as http, http.get(URL(server.url).origin() / "metrics") as reply:
        lines = (await reply.text()).splitlines()
    rows = (line.split('"')[1::2] + line.split()[-1:] for line in lines if line.startswith("narrows_pings_total{"))
    return {outcome: float(value) for outcome, value in rows if float(value)}


# --- what was foretold, and what it came to ---


def foretold(session: Session) -> tuple[float, int]:
    """What a replay says that a session costs, in dollars, and its faults."""
    options = Options(prices=(MODEL,), no_marks=True, keep_warm=KEEP_WARM, mark_lifetime=MARK_LIFETIME)
    (report,) = asyncio.run(replay_all([session], options))
    return report.whole_bill.with_, report.faults


@dataclass(frozen=True, slots=True)
class Outcome:
    person: Person
    conversation: Conversation
    expected: float
    """Dollars."""
    is_struck: bool
    """True where the end of a Narrows took something of it."""

    @property
    def missing(self) -> int:
        return len(self.person.session.turns) - self.conversation.requests

    @property
    def ratio(self) -> float:
        return self.conversation.dollars / self.expected


def outcomes(those: Sequence[Person], one: Day, bills: Sequence[float], speed: float) -> list[Outcome]:
    made = []
    for person, expected in zip(those, bills, strict=True):
        conversation = one.by_credential.get(person.credential, Conversation(()))
        outcome = Outcome(person, conversation, expected, False)
        is_struck = outcome.missing > 0 or conversation.is_struck(one.killed_replica, one.killed, _IN_FLIGHT * speed)
        made.append(replace(outcome, is_struck=is_struck))
    return made


def show(all_: Sequence[Outcome], one: Day) -> float:
    """Print the figures. Returns the bill as a share of what was foretold, without what the killed one had to do."""
    grid, ratio = (
        plain_table("", "conversations", "requests", "pings", "pings $", "provider $", "replay $", "ratio"),
        1.0,
    )
    for name, part in (("all", all_), ("without the share of the killed", [o for o in all_ if not o.is_struck])):
        paid, expected = sum(o.conversation.dollars for o in part), sum(o.expected for o in part)
        pings = Conversation([row for o in part for row in o.conversation.pings])
        ratio = paid / expected if expected else 1.0
        counts = (len(part), sum(o.conversation.requests for o in part), len(pings.rows))
        dollars = (pings.dollars, paid, expected)
        grid.add_row(name, *(f"{each:,}" for each in counts), *(f"{each:.2f}" for each in dollars), f"{ratio:.4f}")
    Console(width=120, highlight=False, markup=False).print(grid)
    furthest = max((o for o in all_ if not o.is_struck), key=lambda o: abs(o.ratio - 1))
    print(f"furthest from what was foretold: {furthest.person.session.name}, {furthest.ratio:.4f}")
    for row in one.report.latencies:
        if row.kind in (ALL, FIRST_REQUEST, BEHIND):
            shown = ", ".join(f"{at} {value:,.0f}" for at, value in row.percentiles.items())
            print(f"{row.kind}, ms: {shown}, longest {row.longest:,.0f}")
    print(f"pings as the Narrows that lives counts them, and the killed one: {[dict(each) for each in one.outcomes]}")
    print(f"clients saw errors: {dict(one.report.errors)}; requests that never reached the provider: ", end="")
    print(sum(o.missing for o in all_))
    return ratio


def faults(all_: Sequence[Outcome], one: Day, replayed: int, ratio: float) -> Iterator[str]:
    yield from problems(one.by_credential)
    if replayed:
        yield f"{replayed} faults in the replays"
    if broken := {kind: number for kind, number in one.report.errors.items() if kind != "cut"}:
        yield f"clients saw errors beside what was in flight at the killed one: {broken}"
    if any(o.missing > 0 and one.report.errors.get("cut", 0) < o.missing for o in all_):
        yield "requests are missing that were not in flight at the killed one"
    if abs(ratio - 1) > BOUND:
        yield f"the bill is {ratio:.4f} of what was foretold"


def main(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Recorded sessions, in chat completions.")],
    pauses: Annotated[
        str, typer.Option(metavar="recorded|PATH", help="Their times, as `replay` takes them.")
    ] = RECORDED,
    number: Annotated[int, typer.Option("--conversations", metavar="N")] = 40,
    speed: Annotated[float, typer.Option(metavar="N", help="How many times as fast.")] = 60.0,
    hours: Annotated[float, typer.Option(metavar="H", help="How long the day is.")] = 10.0,
) -> None:
    with refusing():
        those = people([recorded(path, pauses) for path in files], number, hours)
    one = run_fast(day(those, speed))
    with ProcessPoolExecutor(2) as pool:
        bills = list(pool.map(foretold, [each.session for each in those]))
    all_ = outcomes(those, one, [dollars for dollars, _ in bills], speed)
    wrong = list(faults(all_, one, sum(number for _, number in bills), show(all_, one)))
    print(*wrong, sep="\n")
    raise typer.Exit(int(bool(wrong)))


if __name__ == "__main__":
    typer.run(main)
