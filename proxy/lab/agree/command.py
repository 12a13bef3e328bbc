"""`narrows agree`: its options, and what it does."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from proxy.console.arguments import AsJson, Config
from proxy.console.output import as_json as values_of
from proxy.console.output import console, explains_columns, print_json, progress, refusing
from proxy.event_loop import interruption
from proxy.lab.arguments import (
    PRESET,
    CredentialEnv,
    Files,
    Html,
    PresetNames,
    credential,
    custom_presets,
    presets_named,
)
from proxy.lab.reports.page_file import print_page, writable

if TYPE_CHECKING:  # what it imports when it runs, so that other commands start faster
    from proxy.lab.agree.figures import AgreeReport
    from proxy.lab.agree.plan import Forecast


@explains_columns(
    """
    Columns: turns, how many were compared; model with itself, how often two replies to the same request agree; with
    Narrows, how often a reply to the shortened request agrees with them; difference, the second minus the first, in
    turns of 100; 95 % interval, which contains the true difference in 19 of 20 cases. Rows: next action, tool and
    target; tools alone; last checkpoint, by the requests since the prefix was rewritten.
    """
)
def agree(
    files: Files,
    upstream: Annotated[
        str, typer.Option(metavar="URL", show_default=False, help="Where the model is asked, /v1 included. It bills.")
    ] = "",
    model: Annotated[str, typer.Option(metavar="MODEL", show_default=False, help="The model to ask.")] = "",
    samples: Annotated[int, typer.Option(min=1, metavar="N", help="At how many turns.")] = 200,
    preset: PresetNames = None,
    config: Config = None,
    budget: Annotated[
        float, typer.Option(min=0, metavar="DOLLARS", help="Ask nothing that might cost more than this.")
    ] = 5.0,
    max_requests: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Requests at most; needed where prices are not known.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Decides which turns are sampled.")] = 1,
    concurrency: Annotated[int, typer.Option(min=1, metavar="N", help="Sessions that are run at the same time.")] = 4,
    credential_env: CredentialEnv = "",
    yes: Annotated[bool, typer.Option("--yes", help="Pay what it costs without being asked.")] = False,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Ask a model whether it does the same with Narrows.

    At sampled turns of recorded sessions: twice with what the client wrote, for the model's own noise, and once with
    what Narrows makes of it, recalls answered. The next actions are compared: same tool, same target (file, command,
    query), same kind of edit. It costs money: how much is said before anything is asked, and --budget is not passed.
    Ctrl-C ends it with the report so far. Exit code 1 where a preset loses agreement, 2 where nothing was compared.
    """
    from proxy.lab.agree.plan import AgreePlan
    from proxy.lab.replay.recorded import load_all

    with refusing():
        own = custom_presets(config)
        plan = AgreePlan(
            sessions=load_all(files),
            presets=presets_named(preset or [PRESET], own),
            own=own,
            upstream=_address(upstream),
            model=model,
            samples=samples,
            seed=seed,
            budget=budget,
            most_requests=max_requests,
            concurrency=concurrency,
            key=credential(credential_env),
        )
        plan.check()
        path = writable(html, files)
        with progress(plan.turns * len(plan.presets), "turns planned") as advance:
            forecast = asyncio.run(plan.forecast(advance))
        if forecast.sample:
            _confirm(forecast, yes)
    with progress(len(forecast.sample), "turns asked") as advance:
        report = asyncio.run(_ask(forecast, advance))
    _print_report(report, path, as_json)
    if forecast.sample and not report.samples:
        raise typer.Exit(2)
    raise typer.Exit(int(any(each.verdict == "loss" for each in report.presets)))


def _address(upstream: str) -> str:
    parts = urlsplit(upstream)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"--upstream {upstream!r} is no address; name one such as https://api.openai.com/v1")
    return upstream.rstrip("/")


def _confirm(forecast: "Forecast", yes: bool) -> None:
    """Say what it costs. Raises ValueError where nobody says that it may be paid."""
    print(f"narrows: {forecast.cost}", file=sys.stderr)
    if yes:
        return
    if not sys.stdin.isatty():
        raise ValueError("add --yes if that may be paid")
    if not typer.confirm("Ask?", err=True):
        raise typer.Exit(2)


async def _ask(forecast: "Forecast", advance: Callable[[], None]) -> "AgreeReport":
    """Ask; Ctrl-C ends it early."""
    return await forecast.ask(interruption(), advance)


def _print_report(report: "AgreeReport", path: Path | None, as_json: bool) -> None:
    from proxy.lab.agree.display import page, print_agreement

    if as_json:
        print_json(values_of(report))
    else:
        print_agreement(console(), report)
    if path is not None:
        print_page(path, page(report), as_json)
