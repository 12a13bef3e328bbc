"""`narrows load`: its options, and what it does."""

import asyncio
import random
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.resources import files
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from proxy.config.units import seconds
from proxy.console.arguments import AsJson
from proxy.console.output import explains_columns, progress, refusing
from proxy.event_loop import interruption, run_fast
from proxy.lab import sessions as shipped
from proxy.lab.arguments import CredentialEnv, Html, credential
from proxy.lab.load.client import Clients
from proxy.lab.load.plan import SALTS, LoadPlan, conversations_for, expected_cost, script_of
from proxy.lab.load.report import LoadReport, load_page, print_load, report_of, sample
from proxy.lab.load.sink import serve_sink
from proxy.lab.replay.recorded import load_all
from proxy.lab.terminal import print_report, writable

Rate = Annotated[
    float,
    typer.Option(min=0, metavar="R", show_default=False, help="Requests a second, answered or not; or --concurrency."),
]
Concurrency = Annotated[
    int,
    typer.Option(min=0, metavar="N", show_default=False, help="Requests that are on their way at once; or --rate."),
]


@explains_columns(
    """
    Columns: count, of requests or events; mean; p50 to p99.9, milliseconds that so many of 100 did not exceed; max.
    """
)
def load(
    url: Annotated[str, typer.Argument(metavar="URL", help="The base URL of the target, /v1 included.")] = "",
    sessions: Annotated[
        list[Path] | None,
        typer.Argument(metavar="SESSIONS...", help="As `replay` takes them. Default: those that come with Narrows."),
    ] = None,
    rate: Rate = 0.0,
    concurrency: Concurrency = 0,
    duration: Annotated[str, typer.Option(metavar="TIME", help="How long: 60, 90s or 5m.")] = "60",
    conversations: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="Conversations held at once. Default: as many as needed.")
    ] = None,
    think: Annotated[
        str, typer.Option(metavar="TIME", help="Between a reply and the next request of its conversation.")
    ] = "0",
    streamed: Annotated[
        float, typer.Option(min=0, max=1, metavar="SHARE", help="How many conversations stream, 0 to 1.")
    ] = 0.5,
    begin_at: Annotated[
        float, typer.Option(min=0, max=1, metavar="SHARE", help="How far into its session a conversation begins.")
    ] = 0.0,
    named: Annotated[
        bool, typer.Option("--named", help="Name conversations in x-narrows-conversation, for a balancer.")
    ] = False,
    model: Annotated[str, typer.Option(metavar="MODEL", help="Ask this model. Default: that of each session.")] = "",
    credential_env: CredentialEnv = "",
    processes: Annotated[int, typer.Option(min=1, metavar="N", help="Client processes.")] = 1,
    yes: Annotated[
        bool, typer.Option("--yes", help="The target is not on this machine, and what it costs was understood.")
    ] = False,
    sink: Annotated[
        bool, typer.Option("--sink", help="Be a cheap upstream for a target instead, and print its address.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="With --sink: the port; 0: any.")] = 0,
    events: Annotated[int, typer.Option(min=1, metavar="N", help="With --sink: words of a streamed reply.")] = 100,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Hold many conversations at once with a target, and measure.

    For capacity planning: recorded sessions, their texts made anew for each conversation. Shows requests a second,
    latencies from p50 to p99.9 (first byte, between events, whole), errors by kind, and from the target's /metrics what
    it used: CPU per request, memory, stops. At a --rate, latency counts from when a request was due. Ctrl-C ends it
    with the report so far. Exit code 1 where a request failed.
    """
    with refusing():
        if sys.platform == "win32":
            raise ValueError("load tests need Linux or macOS")
        if sink:
            return _be_sink(url, port, events)
        plan = _plan(url, sessions, rate, concurrency, conversations, model, credential_env)
        plan = replace(_timed(plan, duration, think), streamed=streamed, begin_at=begin_at, named=named)
        if processes > (plan.concurrency or plan.conversations):
            raise ValueError(f"--processes {processes:,} is more than there are requests at once; take fewer")
        path = writable(html, sessions or ())
        _show_cost(plan, yes)
    with refusing(), progress(max(1, round(plan.duration)), "seconds") as advance:
        report = asyncio.run(measure(plan, processes, advance))
    print_report(report, print_load, load_page, as_json, path)
    raise typer.Exit(int(bool(report.errors)))


def _be_sink(url: str, port: int, events: int) -> None:
    if url:
        raise ValueError("--sink is an upstream and asks no URL; give it alone, and start the target with its address")
    with suppress(KeyboardInterrupt):
        run_fast(serve_sink(port, events))


def _plan(
    url: str,
    paths: Sequence[Path] | None,
    rate: float,
    concurrency: int,
    conversations: int | None,
    model: str,
    credential_env: str,
) -> LoadPlan:
    """Who is asked what, and how fast. Raises ValueError."""
    if find_spec("hdrh") is None:
        raise ValueError("load needs a package that has no wheel for this machine: pip install hdrhistogram")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is no address of a target; name one such as http://127.0.0.1:8787/v1")
    if bool(rate) == bool(concurrency):
        raise ValueError("say how fast: either --rate (requests a second) or --concurrency (requests at once)")
    chosen = paths or [Path(str(files(shipped.__name__) / f"{name}.json")) for name in shipped.names()]
    key = credential(credential_env)
    return LoadPlan(
        url=url.rstrip("/"),
        scripts=[script_of(session, key, model) for session in load_all(chosen)],
        conversations=conversations or 0,
        rate=rate,
        concurrency=concurrency,
        seed=random.SystemRandom().randrange(SALTS),
    )


def _timed(plan: LoadPlan, duration: str, think: str) -> LoadPlan:
    """The plan with its times, and as many conversations as these need. Raises ValueError."""
    lasts, thinks = seconds(duration), seconds(think)
    if not lasts:
        raise ValueError("--duration 0 is no load; say 60, 90s or 5m")
    number = conversations_for(plan.rate, plan.concurrency, thinks, plan.conversations)
    return replace(plan, conversations=number, duration=lasts, think=thinks)


def _show_cost(plan: LoadPlan, yes: bool) -> None:
    """Print the cost of a load where it is billed, on stderr. Raises ValueError where that was not agreed to."""
    if is_loopback(urlsplit(plan.url).hostname or ""):
        return
    print(f"narrows: {expected_cost(plan)}{'' if plan.rate else ', if a reply takes a second'}", file=sys.stderr)
    if not yes:
        raise ValueError(f"{plan.url} is not on this machine; add --yes if it may be loaded and that may be paid")


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


async def measure(plan: LoadPlan, processes: int, advance: Callable[[], None]) -> LoadReport:
    """Run the load; Ctrl-C ends it early. Raises ValueError where it cannot begin."""
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
