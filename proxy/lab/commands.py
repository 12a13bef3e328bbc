"""What the commands of `narrows` do, but for `serve`: check the options, run, print, and say how it ended.

Laws: what is wrong with the options or the files ends with one line on stderr and exit code 2; what goes wrong in a
replay or in the demo, with exit code 1. With `as_json` nothing is printed but one JSON object.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from proxy.lab.cli_arguments import check_billed, check_preset, check_prices, credential, custom_presets, presets_named
from proxy.lab.results import as_json as values_of

if TYPE_CHECKING:  # each command imports what it needs when it runs: the others start faster
    from proxy.lab.replay.environment import Options
    from proxy.lab.replay.recorded import Session
    from proxy.lab.replay.report import Report

WIDE = 100
"""Columns of what is not printed to a terminal."""


def print_original(file: str, model: str, ref: str, part: str, html: str | None, as_json: bool) -> None:
    """What a reference stands for in a request: the bytes, and no more."""
    from proxy.lab.explain import original_text, request_from

    with refusing():
        if not ref:
            raise ValueError("--part is a part of what --ref names; give that too")
        if html is not None:
            raise ValueError("--html shows the whole request; give it without --ref")
        original = original_text(request_from(file, model), ref, part)
        if as_json:
            print_json(values_of(original))
        if original.text is None:
            raise ValueError(original.error)
    if not as_json:
        sys.stdout.buffer.write(original.text.encode("utf-8", "surrogatepass"))


def explain(
    file: str,
    model: str,
    *,
    preset: str,
    config: Path | None,
    prices: str,
    text_protocol: bool,
    html: str | None,
    as_json: bool,
) -> None:
    """The dry run of a request; on its page also what became of the session until then."""
    from policies.money.catalog import prices_for
    from proxy.lab.explain import explained, request_from
    from proxy.lab.replay.environment import Options
    from proxy.lab.replay.runs import replay_all, session_until
    from proxy.lab.reports import page
    from proxy.lab.reports.text import print_explanation

    with refusing():
        own = custom_presets(config)
        check_preset(preset, own)
        check_prices([prices] if prices else [])
        path, body = _page_path(html, [file]), request_from(file, model)
        table, chosen = prices_for(prices) if prices else None, own[preset].preset if preset in own else None
        explanation = explained(body, preset=preset, prices=table, text_protocol=text_protocol, own=chosen)
    if as_json:
        print_json(values_of(explanation))
    else:
        print_explanation(console(), explanation)
    if path is None:
        return
    name = "a request" if file == "-" else Path(file).name
    session = session_until(body, name)
    past: Report | str
    if isinstance(session, str):
        past = session
    else:
        options = Options((prices,) if prices else (), preset=preset, text_protocol=text_protocol, own=own)
        with progress(_requests_of([session], options)) as advance:
            (past,) = asyncio.run(replay_all([session], options, advance))
    _print_page(path, page.explained(name, explanation, past), as_json)


def replay(
    files: Sequence[Path],
    presets: Sequence[str],
    *,
    prices: Sequence[str],
    cache: str,
    config: Path | None,
    chain: bool,
    concurrency: int,
    repeat: int,
    upstream: str,
    credential_env: str,
    text_protocol: bool,
    refetch: float,
    summary_model: str,
    html: str | None,
    as_json: bool,
) -> None:
    """Recorded sessions under each preset."""
    from proxy.lab.replay.comparison import averages, preset_results, timing
    from proxy.lab.replay.environment import Options
    from proxy.lab.replay.recorded import chained, load_all
    from proxy.lab.replay.runs import replay_each
    from proxy.lab.reports import page
    from proxy.lab.reports.text import print_replays

    with refusing():
        own = custom_presets(config)
        names = presets_named(presets, own)
        check_billed([*prices, *([summary_model] if summary_model else [])], upstream, refetch)
        sessions = load_all(files)
        options = Options(
            prices=tuple(dict.fromkeys(prices)),
            cache=cache,
            concurrency=concurrency,
            repeat=repeat,
            upstream=upstream,
            credential=credential(credential_env),
            text_protocol=text_protocol,
            refetch=refetch,
            summary_model=summary_model,
            own=own,
        )
        path = _page_path(html, files)
    sessions = [chained(sessions)] if chain else sessions
    with progress(len(names) * _requests_of(sessions, options)) as advance:
        reports = asyncio.run(replay_each(sessions, names, options, advance))
    means, results = averages(reports), preset_results(reports)
    if as_json:
        print_json(values_of({"sessions": reports, "means": means, "presets": results, "timing": timing(reports)}))
    else:
        print_replays(console(), reports, means, timed=concurrency > 1 or repeat > 1, presets=results)
    if path is not None:
        _print_page(path, page.replayed(reports, means, results), as_json)
    raise typer.Exit(int(any(report.faults for report in reports)))


def presets(name: str, config: Path | None, as_json: bool) -> None:
    """All presets, or what one of them does."""
    from proxy.lab.preset_descriptions import describe, describe_all, presets_in
    from proxy.lab.reports.presets import print_preset, print_presets

    with refusing():
        own = presets_in(config)
        described = [describe(name, own)] if name else describe_all(own)
    if as_json:
        print_json(values_of(described[0] if name else described))
    elif name:
        print_preset(console(), described[0])
    else:
        print_presets(console(), described)


def demo(prices: str) -> None:
    """The shipped sessions, with the official client."""
    from proxy.lab import demo
    from proxy.lab.reports.text import print_demo

    with refusing():
        check_prices([prices])
    with progress(demo.total()) as advance:
        results = asyncio.run(demo.demonstrate(prices, advance))
    print_demo(console(), results)
    raise typer.Exit(int(not all(result.is_held for result in results)))


def audit(conversation: str, store: str, config: Path | None, tenant: str, limit: int, as_json: bool) -> None:
    """What became of summaries, and what was deleted."""
    from proxy.lab.audit import read_audit, store_settings
    from proxy.lab.reports.text import print_audit

    with refusing():
        settings = store_settings(store, config)
        record = asyncio.run(read_audit(settings, conversation or None, tenant or None, limit))
    if as_json:
        print_json(record.as_json())
    else:
        print_audit(console(), record)


@contextmanager
def refusing() -> Iterator[None]:
    """What is wrong with the options or the files ends the command, with one line."""
    try:
        yield
    except ValueError as error:
        print(f"narrows: {' '.join(str(error).split())}", file=sys.stderr)
        raise typer.Exit(2) from error


def _requests_of(sessions: "Sequence[Session]", options: "Options") -> int:
    tables = options.tables(sessions).values()
    return options.repeat * sum(len(session.turns) for members in tables for session in members)


@contextmanager
def progress(total: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr, where that is a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("requests"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda: progress.advance(task)


def console() -> Console:
    """Standard output. It takes no word of a request for a style."""
    plain = partial(Console, highlight=False, markup=False, emoji=False)
    console = plain()
    return console if console.is_terminal else plain(width=WIDE)


def _page_path(html: str | None, sources: Iterable[str | Path]) -> Path | None:
    """Where the page goes, if there is to be one."""
    from proxy.lab.reports.html import writable

    return None if html is None else writable(html, list(sources))


def _print_page(path: Path, page: str, as_json: bool) -> None:
    from proxy.lab.reports.html import write
    from proxy.lab.reports.tables import printable

    with refusing():
        write(path, page)
    if not as_json:
        print(f"The page is in {printable(str(path))}")


def print_json(value: object) -> None:
    """One JSON object."""
    print(json.dumps(value, indent=1))
