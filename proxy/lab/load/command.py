"""`narrows load`: its options, and what it does."""

import asyncio
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from importlib.resources import files
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from proxy.config.units import seconds
from proxy.console.arguments import AsJson, ServedConfig, ServedStore
from proxy.console.output import explains_columns, progress, refusing
from proxy.event_loop import interruption, run_fast
from proxy.lab import sessions as shipped
from proxy.lab.arguments import CredentialEnv, Html, credential
from proxy.lab.load.client import Clients
from proxy.lab.load.plan import SALTS, LoadPlan, begins_of, conversations_for, expected_cost, script_of
from proxy.lab.load.report import LoadReport, load_page, print_load, report_of, sample
from proxy.lab.load.sink import serve_sink
from proxy.lab.load.target import served, settings_for
from proxy.lab.replay.recorded import Session, load_all, timed
from proxy.lab.replay.times import RECORDED
from proxy.lab.terminal import print_report, writable

Sessions = Annotated[
    list[Path] | None,
    typer.Argument(metavar="SESSIONS...", help="As `replay` takes them. Default: those that come with Narrows."),
]
Rate = Annotated[
    float,
    typer.Option(min=0, metavar="R", show_default=False, help="Requests a second, answered or not; or --concurrency."),
]
Concurrency = Annotated[
    int, typer.Option(min=0, metavar="N", show_default=False, help="Requests that are on their way at once; or --rate.")
]
AsRecorded = Annotated[
    bool, typer.Option("--as-recorded", help="Or send each request when it was sent in its recording.")
]
Speed = Annotated[
    float, typer.Option(min=0.001, max=100_000, metavar="N", help="With --as-recorded: so many times as fast.")
]
Pauses = Annotated[
    str,
    typer.Option(
        metavar="recorded|PATH", help="With --as-recorded: the times in the sessions, or in a file or folder."
    ),
]
Duration = Annotated[str, typer.Option(metavar="TIME", help="How long: 60, 90s or 5m. Default: 60, or as recorded.")]
Held = Annotated[
    int | None, typer.Option(min=1, metavar="K", help="Conversations held at once. Default: as many as needed.")
]
Think = Annotated[str, typer.Option(metavar="TIME", help="Between a reply and the next request of its conversation.")]
Streamed = Annotated[float, typer.Option(min=0, max=1, metavar="SHARE", help="How many conversations stream, 0 to 1.")]
BeginAt = Annotated[
    float, typer.Option(min=0, max=1, metavar="SHARE", help="How far into its session a conversation begins.")
]
Named = Annotated[bool, typer.Option("--named", help="Name conversations in x-narrows-conversation, for a balancer.")]
Model = Annotated[str, typer.Option(metavar="MODEL", help="Ask this model. Default: that of each session.")]
Processes = Annotated[int, typer.Option(min=1, metavar="N", help="Client processes.")]
Yes = Annotated[bool, typer.Option("--yes", help="The target is not on this machine, and its cost was understood.")]
Serve = Annotated[bool, typer.Option("--serve", help="Start a target, too; no URL then.")]
BeSink = Annotated[
    bool, typer.Option("--sink", help="Be a cheap upstream for a target instead, and print its address.")
]
Port = Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="With --sink: the port; 0: any.")]
Events = Annotated[int, typer.Option(min=1, metavar="N", help="With --sink or --serve: words of a streamed reply.")]


@explains_columns(
    """
    Columns: count, of requests or events; mean; p50 to p99.9, milliseconds that so many of 100 did not exceed; max.
    """
)
def load(
    url: Annotated[str, typer.Argument(metavar="URL", help="The base URL of the target, /v1 included.")] = "",
    sessions: Sessions = None,
    rate: Rate = 0.0,
    concurrency: Concurrency = 0,
    as_recorded: AsRecorded = False,
    speed: Speed = 1.0,
    pauses: Pauses = RECORDED,
    duration: Duration = "",
    conversations: Held = None,
    think: Think = "0",
    streamed: Streamed = 0.5,
    begin_at: BeginAt = 0.0,
    named: Named = False,
    model: Model = "",
    credential_env: CredentialEnv = "",
    processes: Processes = 1,
    yes: Yes = False,
    serve: Serve = False,
    config: ServedConfig = None,
    store: ServedStore = "",
    sink: BeSink = False,
    port: Port = 0,
    events: Events = 100,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Hold many conversations at once with a target, and measure.

    For capacity planning: recorded sessions, their texts made anew for each conversation. Shows requests a second,
    latencies from p50 to p99.9 (first byte, between events, whole), errors by kind, and from the target's /metrics what
    it used: CPU per request, memory, stops. At a --rate, latency counts from when a request was due; --as-recorded says
    how late requests were. Ctrl-C ends it with the report so far. Exit code 1 where a request failed.
    """
    with refusing():
        if sys.platform == "win32":
            raise ValueError("load tests need Linux or macOS")
        if sink:
            return _be_sink(url, port, events)
        if serve:
            url, sessions = _to_serve(url, sessions or [], config, store)
        _check_company({"--speed": speed != 1, "--pauses": pauses != RECORDED}, "--as-recorded", as_recorded)
        _check_company({"--config": config, "--store": store}, "--serve", serve)
        plan = _plan(url, rate, concurrency, duration, as_recorded)
        plan = replace(plan, streamed=streamed, begin_at=begin_at, named=named, think=seconds(think))
        played, key = _sessions(sessions, pauses if as_recorded else ""), credential(credential_env)
        plan = replace(plan, scripts=[script_of(session, key, model) for session in played])
        number = conversations or 0
        plan = _as_recorded(plan, played, number, speed) if as_recorded else _at_a_pace(plan, number)
        if processes > (plan.concurrency or plan.conversations):
            raise ValueError(f"--processes {processes:,} is more than there are requests at once; take fewer")
        path = writable(html, sessions or ())
        _show_cost(plan, yes)
    with refusing(), progress(max(1, round(plan.duration)), "seconds") as advance:
        target = served(events, config, store) if serve else None
        report = run_fast(measure(plan, processes, advance, target))
    print_report(report, print_load, load_page, as_json, path)
    raise typer.Exit(int(bool(report.errors)))


def _be_sink(url: str, port: int, events: int) -> None:
    if url:
        raise ValueError("--sink is an upstream and asks no URL; give it alone, and start the target with its address")
    with suppress(KeyboardInterrupt):
        run_fast(serve_sink(port, events))


def _check_company(options: Mapping[str, object], needed: str, is_there: bool) -> None:
    """Raises ValueError where one of these is set, and what it needs is not there."""
    if not is_there and (alone := [name for name, value in options.items() if value]):
        raise ValueError(f"{alone[0]} is for {needed}; add that, or leave it out")


def _to_serve(first: str, others: list[Path], config: Path | None, store: str) -> tuple[str, list[Path]]:
    """The address of a target that is yet to be started, whose settings are checked here, and the sessions: the first
    stands in the place of a URL. Raises ValueError."""
    if "://" in first:
        raise ValueError(f"--serve starts a target of its own; leave {first} out")
    settings_for(url := "http://127.0.0.1/v1", config, store)
    return url, [Path(first), *others] if first else others


def _plan(url: str, rate: float, concurrency: int, duration: str, as_recorded: bool) -> LoadPlan:
    """Who is asked, how fast, and for how long. Raises ValueError."""
    if find_spec("hdrh") is None:
        raise ValueError("load needs a package that has no wheel for this machine: pip install hdrhistogram")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is no address of a target; name one such as http://127.0.0.1:8787/v1")
    if bool(rate) + bool(concurrency) + as_recorded != 1:
        paces = "--rate (requests a second), --concurrency (requests at once), --as-recorded (each at its own time)"
        raise ValueError(f"say how fast, in one way: {paces}")
    if not (lasts := seconds(duration or "60")):
        raise ValueError("--duration 0 is no load; say 60, 90s or 5m")
    once, seed = as_recorded and not duration, random.SystemRandom().randrange(SALTS)
    return LoadPlan(url.rstrip("/"), (), rate=rate, concurrency=concurrency, duration=lasts, once=once, seed=seed)


def _sessions(paths: Sequence[Path] | None, pauses: str) -> Sequence[Session]:
    """The sessions, with the times that `pauses` names, if it does. Raises ValueError where there are none."""
    paths = paths or [Path(str(files(shipped.__name__) / f"{name}.json")) for name in shipped.names()]
    sessions = [timed(each, pauses or RECORDED) for each in load_all(paths)]
    without = next((each.name for each in sessions if pauses and not each.times), None)
    if without is not None:
        path = next(path for path in paths if path.stem == without)
        remedy = "record it with `narrows serve --record FOLDER`, or name its times with --pauses"
        raise ValueError(f"{path} does not say when its requests were sent; {remedy}")
    return sessions


def _at_a_pace(plan: LoadPlan, conversations: int) -> LoadPlan:
    """The plan with so many conversations, or as many as it needs. Raises ValueError."""
    return replace(plan, conversations=conversations_for(plan.rate, plan.concurrency, plan.think, conversations))


def _as_recorded(plan: LoadPlan, sessions: Sequence[Session], conversations: int, speed: float) -> LoadPlan:
    """The plan with the time of each conversation. Raises ValueError."""
    conversations = conversations or len(sessions)
    if plan.think or plan.begin_at:
        raise ValueError("--think and --begin-at do not go with --as-recorded: each request has its own time")
    if conversations < len(sessions):
        raise ValueError(f"--conversations {conversations} is fewer than the {len(sessions):,} sessions; name fewer")
    begins = begins_of(sessions, conversations)
    plan = replace(plan, conversations=conversations, begins=begins, speed=speed)
    return replace(plan, duration=plan.span / speed) if plan.once else plan


def _show_cost(plan: LoadPlan, yes: bool) -> None:
    """Print the cost of a load where it is billed, on stderr. Raises ValueError where that was not agreed to."""
    if is_loopback(urlsplit(plan.url).hostname or ""):
        return
    assumed = ", if a reply takes a second" if plan.concurrency else ""
    print(f"narrows: {expected_cost(plan)}{assumed}", file=sys.stderr)
    if not yes:
        raise ValueError(f"{plan.url} is not on this machine; add --yes if it may be loaded and that may be paid")


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


async def measure(
    plan: LoadPlan, processes: int, advance: Callable[[], None], target: AbstractAsyncContextManager[str] | None = None
) -> LoadReport:
    """Run the load, on a `target` that is started; Ctrl-C ends it early. Raises ValueError where it cannot begin."""
    if target is not None:
        async with target as url:
            return await measure(replace(plan, url=url), processes, advance)
    await sample(plan.url)
    stop = interruption()
    async with Clients(plan, processes) as clients:
        await clients.prepare()
        before = await sample(plan.url)
        helpers = [asyncio.create_task(_ticking(advance)), asyncio.create_task(_stopping(clients, stop))]
        results = await clients.run()
        for helper in helpers:
            helper.cancel()
    after = None
    with suppress(ValueError):  # a target that has gone is in the errors
        after = await sample(plan.url)
    return report_of(plan, results, (before, after), not stop.is_set())


async def _ticking(advance: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(1)
        advance()


async def _stopping(clients: Clients, stop: asyncio.Event) -> None:
    await stop.wait()
    clients.stop()
