"""The command `narrows`: one function per command, each of which reads its words and hands over.

Laws: what a person got wrong ends with one line on stderr and exit code 2; what was found wrong in a replay or in the
demo, with exit code 1. A secret is never a word of the command line.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from policies.presets import PRESETS
from proxy.config import ConfigurationError, Settings, load_settings

if TYPE_CHECKING:  # each command imports what it needs when it runs: the others start faster
    from proxy.lab.explain import Told
    from proxy.lab.replay.bills import Report
    from proxy.lab.replay.recorded import Session
    from proxy.lab.replay.stage import Options

WIDE = 100
"""Columns of what is not printed to a terminal."""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="An OpenAI-compatible reverse proxy that makes long conversations shorter in flight.",
)

PRESET = str(Settings.model_fields["preset"].default)
Preset = Annotated[str, typer.Option(help=f"The list of policies to use: {', '.join(sorted(PRESETS))}.")]
Compared = Annotated[
    list[str] | None,
    typer.Option(
        "--preset",
        metavar="NAME",
        help=f"The list of policies to use, or all; can be repeated: {', '.join(sorted(PRESETS))}. Default: {PRESET}.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of pictures and tables.")]
TextProtocol = Annotated[
    bool,
    typer.Option("--text-protocol", help="Shorten sessions without tool calls too, where commands travel as text."),
]
Refetch = Annotated[
    float,
    typer.Option(min=0, max=1, metavar="RATE", help="How often hidden text is recalled before it is used, 0 to 1."),
]
SummaryModel = Annotated[
    str, typer.Option(metavar="MODEL", help="Who writes summaries, where the preset wants any. Default: the same.")
]
Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="The TOML file with presets of your own.")
]
Files = Annotated[
    list[Path], typer.Argument(metavar="FILE...", help="Sessions, in the form of any API. Skips *.usage.json.")
]
Billed = Annotated[
    list[str] | None,
    typer.Option(metavar="MODEL", help="Bill by this model's prices; can be repeated. Default: each session's."),
]
Cache = Annotated[
    Literal["prefix", "breakpoint", "none"] | None,
    typer.Option(help="How the provider's cache matches: any prefix, at marks, not at all. Default: by model."),
]
Upstream = Annotated[
    str,
    typer.Option(metavar="URL", help="A real upstream instead of the built-in provider, /v1 included. It bills."),
]
CredentialEnv = Annotated[
    str, typer.Option(metavar="NAME", help="The environment variable that holds the upstream's key.")
]
Html = Annotated[
    str | None,
    typer.Option("--html", metavar="FILE", help="Write it as a page, too: one file that needs nothing else."),
]


@app.command(
    add_help_option=False,  # the settings print their own
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def serve(context: typer.Context) -> None:
    """Run the proxy. `narrows serve --help` shows every setting."""
    settings = load_settings(context.args)
    from proxy import app as running

    running.serve(settings)


@app.command()
def explain(
    file: Annotated[
        str, typer.Argument(metavar="FILE|-", help="The JSON body of a request of any API, or a session; - is stdin.")
    ],
    model: Annotated[str, typer.Option(help="The model to ask, where the file names none or another.")] = "",
    preset: Preset = PRESET,
    config: Config = None,
    prices: Annotated[str, typer.Option(metavar="MODEL", help="Take the prices of this model.")] = "",
    text_protocol: TextProtocol = False,
    html: Html = None,
    ref: Annotated[str, typer.Option(help="Print what this reference stands for, exactly as it was.")] = "",
    part: Annotated[str, typer.Option(help='Of that, only "lines 9-80", "chars 0-999" or "find REGEX".')] = "",
    as_json: AsJson = False,
) -> None:
    """Show what would become of one saved request.

    What would go and why, message by message, with tokens and the input bill before and after. Nothing is sent.
    With --html all of it as a page; what its history has cost so far is found out by replaying that.
    With --ref, the original that a reference stands for in it.
    """
    from policies.money.catalog import prices_for
    from proxy.lab.cli_arguments import check_preset, check_prices, custom_presets
    from proxy.lab.explain import explained, referred, request_from
    from proxy.lab.replay.stage import Options
    from proxy.lab.reports import explanation, page

    if ref or part:
        with _clearly():
            if not ref:
                raise ValueError("--part is a part of what --ref names; give that too")
            if html is not None:
                raise ValueError("--html shows the whole request; give it without --ref")
            _print_original(referred(request_from(file, model), ref, part), as_json)
        return
    with _clearly():
        own = custom_presets(config)
        check_preset(preset, own)
        check_prices([prices] if prices else [])
        place, body = _place(html, [file]), request_from(file, model)
        listed, chosen = prices_for(prices) if prices else None, own[preset].preset if preset in own else None
        told = explained(body, preset=preset, prices=listed, text_protocol=text_protocol, own=chosen)
    if as_json:
        _print_json(told.as_json())
    else:
        explanation(_console(), told)
    if place is not None:
        options = Options((prices,) if prices else (), preset=preset, text_protocol=text_protocol, own=own)
        _print_page(place, page.explained(_named(file), told, _past(body, _named(file), options)), as_json)


def _named(file: str) -> str:
    return "a request" if file == "-" else Path(file).name


def _past(body: bytes, name: str, options: "Options") -> "Report | str":
    """What became of the session until this request; or why that cannot be told."""
    from proxy.lab.replay.runs import past, replay_all

    session = past(body, name)
    if isinstance(session, str):
        return session
    with _progress(_total([session], options)) as advance:
        return asyncio.run(replay_all([session], options, advance))[0]


@app.command()
def replay(
    files: Files,
    prices: Billed = None,
    cache: Cache = None,
    preset: Compared = None,
    config: Config = None,
    chain: Annotated[bool, typer.Option("--chain", help="Run the sessions as one conversation.")] = False,
    concurrency: Annotated[int, typer.Option(min=1, metavar="N", help="How many sessions run at once.")] = 1,
    repeat: Annotated[int, typer.Option(min=1, metavar="M", help="How often each session runs.")] = 1,
    upstream: Upstream = "",
    credential_env: CredentialEnv = "",
    text_protocol: TextProtocol = False,
    refetch: Refetch = 0.0,
    summary_model: SummaryModel = "",
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Run recorded sessions, turn by turn, through a real Narrows.

    Shows the bill with and without, what was in sight, and whatever went wrong: every reply is checked.
    With --refetch the built-in provider's model recalls hidden text at that share of its uses, and the bill says what
    that costs. Summaries, which it copies together by rule, are on the bill too, whatever becomes of them. Exit code 1
    where a request was refused or not answered, the prefix changed undeclared, a recall was not answered, or something
    was lost.
    With more than one --preset all of them stand in one table at the end; a star marks those that none other beats.
    With --html all of it is on a page too, with the bars of each session's last request.
    With more than one run at once or each, the times are shown too: client, Narrows and provider share one process.
    """
    from proxy.lab.cli_arguments import check_billed, credential, custom_presets, presets_named
    from proxy.lab.replay.recorded import chained, load_all
    from proxy.lab.replay.stage import Options

    with _clearly():
        own = custom_presets(config)
        presets = presets_named(preset or [PRESET], own)
        check_billed([*(prices or ()), *([summary_model] if summary_model else [])], upstream, refetch)
        sessions = load_all(files)
        options = Options(
            prices=tuple(dict.fromkeys(prices or ())),
            cache=cache or "",
            concurrency=concurrency,
            repeat=repeat,
            upstream=upstream,
            credential=credential(credential_env),
            text_protocol=text_protocol,
            refetch=refetch,
            summary_model=summary_model,
            own=own,
        )
        place = _place(html, files)
    _play([chained(sessions)] if chain else sessions, presets, options, as_json, place)


def _play(
    sessions: "Sequence[Session]", presets: Sequence[str], options: "Options", as_json: bool, place: Path | None
) -> None:
    """Replay, show what was found, and end with the exit code that says so."""
    from proxy.lab.replay.averages import means
    from proxy.lab.replay.comparison import standings
    from proxy.lab.replay.runs import replay_each
    from proxy.lab.reports import page

    with _progress(len(presets) * _total(sessions, options)) as advance:
        found = asyncio.run(replay_each(sessions, presets, options, advance))
    _show(found, as_json, timed=options.concurrency > 1 or options.repeat > 1)
    if place is not None:
        _print_page(place, page.replayed(found, means(found), standings(found)), as_json)
    raise typer.Exit(int(any(report.faults for report in found)))


def _show(found: "Sequence[Report]", as_json: bool, timed: bool) -> None:
    from proxy.lab.replay.averages import means, timing
    from proxy.lab.replay.comparison import standings
    from proxy.lab.reports import reports

    if not as_json:
        return reports(_console(), found, means(found), timed, standings(found))
    rows = [report.as_json() for report in found]
    averages, presets = ([row.as_json() for row in table] for table in (means(found), standings(found)))
    return _print_json({"sessions": rows, "means": averages, "presets": presets, "timing": timing(found)})


@app.command()
def presets(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Only this one, with everything that it does.")] = "",
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """List the presets, or say what one of them does.

    With NAME: its policies in their order and their parameters, its exceptions to the laws, and who writes its
    summaries. Those of your own come from --config or NARROWS_CONFIG; what differs from their base is marked.
    """
    from proxy.lab.preset_descriptions import describe, describe_all, presets_in
    from proxy.lab.reports.presets import print_preset, print_presets

    with _clearly():
        own = presets_in(config)
        described = [describe(name, own)] if name else describe_all(own)
    if as_json:
        return _print_json(asdict(described[0]) if name else [asdict(each) for each in described])
    return print_preset(_console(), described[0]) if name else print_presets(_console(), described)


@app.command()
def demo(
    prices: Annotated[str, typer.Option(metavar="MODEL", help="Bill by this model's prices.")] = "gpt-5.4",
) -> None:
    """Drive two shipped sessions through a real Narrows.

    With the official client, streaming: bars before and after, the bills, and the proof that the prefix held. Needs no
    network and no key, and ends by itself; exit code 1 where the prefix did not hold.
    """
    from proxy.lab.cli_arguments import check_prices
    from proxy.lab.demo import demonstrate, total
    from proxy.lab.reports import demonstration

    with _clearly():
        check_prices([prices])
    with _progress(total()) as advance:
        acts = asyncio.run(demonstrate(prices, advance))
    demonstration(_console(), acts)
    raise typer.Exit(int(not all(act.held for act in acts)))


@app.command()
def audit(
    conversation: Annotated[
        str, typer.Argument(metavar="CONVERSATION", help="Only this conversation, and its summaries too.")
    ] = "",
    store: Annotated[
        str, typer.Option(metavar="URL", help="The store to read. Default: as `narrows serve` would find it.")
    ] = "",
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="The TOML file that names the store.")] = None,
    tenant: Annotated[str, typer.Option(help="Only this tenant, whole as --json prints it. Default: all.")] = "",
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="The newest so many events.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Show what became of summaries, and what was deleted, oldest first.

    With CONVERSATION also its summaries: which messages they cover, by which model, policy and prompt, and what they
    cost. Reads the store itself, so that `narrows serve` need not run. NARROWS_STORE and NARROWS_CONFIG count here
    too. No text of a conversation is shown.
    """
    from proxy.lab.audit import Question, audited, placed

    with _clearly():
        question = Question(placed(store, config), conversation or None, tenant or None, limit)
        told = asyncio.run(audited(question))
    if as_json:
        return _print_json(told.as_json())
    from proxy.lab.reports import history

    return history(_console(), told)


@contextmanager
def _clearly() -> Iterator[None]:
    """What is wrong with the words or the files, on one line."""
    try:
        yield
    except ValueError as error:
        print(f"narrows: {' '.join(str(error).split())}", file=sys.stderr)
        raise typer.Exit(2) from error


def _total(sessions: Sequence["Session"], options: "Options") -> int:
    tables = options.tables(sessions).values()
    return options.repeat * sum(len(session.turns) for members in tables for session in members)


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr, where that is a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("requests"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda: progress.advance(task)


def _console() -> Console:
    """It takes no word of a request for a style."""
    plain = partial(Console, highlight=False, markup=False, emoji=False)
    console = plain()
    return console if console.is_terminal else plain(width=WIDE)


def _print_original(told: "Told", as_json: bool) -> None:
    """The bytes, and no more. Raises ValueError where there is nothing."""
    if as_json:
        _print_json(told.as_json())
    if not told.found:
        raise ValueError(told.text)
    if not as_json:
        sys.stdout.buffer.write(told.text.encode("utf-8", "surrogatepass"))


def _place(html: str | None, sources: Sequence[str | Path]) -> Path | None:
    """Where the page goes, if there is to be one."""
    from proxy.lab.reports.html import place

    return None if html is None else place(html, sources)


def _print_page(place: Path, page: str, as_json: bool) -> None:
    from proxy.lab.reports.drawing import printable
    from proxy.lab.reports.html import printed

    with _clearly():
        printed(place, page)
    if not as_json:
        print(f"The page is in {printable(str(place))}")


def _print_json(found: object) -> None:
    print(json.dumps(found, indent=1))


def main(words: Sequence[str] | None = None) -> None:
    """The entry point: a configuration that cannot work ends with a sentence, not with a traceback."""
    try:
        app(args=words)
    except ConfigurationError as error:
        for line in str(error).splitlines():
            print(f"narrows: {line}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
