"""`narrows replay`: its options, and what it prints."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from policies.keep import patterns_of
from policies.money.caches import MarkLifetime
from proxy.config.units import seconds
from proxy.console.arguments import AsJson, Config
from proxy.console.output import as_json as values_of
from proxy.console.output import explains_columns, progress, refusing
from proxy.lab.arguments import (
    PRESET,
    AimOption,
    ContextTokens,
    CredentialEnv,
    Files,
    Html,
    Keep,
    PresetNames,
    TextProtocol,
    Tools,
    check_prices,
    credential,
    custom_presets,
    presets_named,
)
from proxy.lab.pages import replay_page
from proxy.lab.replay.display import by_place, print_needs, print_replays
from proxy.lab.replay.environment import Options
from proxy.lab.replay.recorded import Session, chained, chains, grouped, load_all, session_of, timed
from proxy.lab.replay.report import Report, averages, preset_results
from proxy.lab.replay.runs import replay_all, replay_each
from proxy.lab.replay.times import NONE, RECORDED
from proxy.lab.terminal import print_report, writable

PriceTables = Annotated[
    list[str] | None,
    typer.Option(metavar="MODEL", help="Bill by this model's prices; can be repeated. Default: each session's."),
]
Cache = Annotated[
    Literal["prefix", "breakpoint", "none"] | None,
    typer.Option(
        metavar="prefix|breakpoint|none",
        help="How the provider's cache matches: any prefix, at marks, not at all. Default: by model.",
    ),
]
Chain = Annotated[
    bool,
    typer.Option("--chain", help="Run the sessions as one conversation, in every order; of over 4, each begins one."),
]
AsListed = Annotated[bool, typer.Option("--as-listed", help="With --chain: only in the order of the files.")]
Groups = Annotated[
    list[str] | None,
    typer.Option("--group", metavar="NAME=GLOB", help="Average the sessions of these names apart; can be repeated."),
]
Pauses = Annotated[
    str,
    typer.Option(
        metavar="recorded|none|FILE",
        help="When requests are sent: as recorded, without pauses, or by a file (or a folder of NAME.json): a list "
        "with the seconds of each request.",
    ),
]
MarkLives = Annotated[
    MarkLifetime,
    typer.Option(metavar="own|auto|usual", help="As the setting `mark_lifetime`: which cache marks may live longer."),
]
KeepWarm = Annotated[
    str, typer.Option(metavar="TIME", help="As the setting `keep_warm` (15m): how long to keep waiting prompts cached.")
]
Upstream = Annotated[
    str, typer.Option(metavar="URL", help="A real upstream instead of the built-in provider, /v1 included. It bills.")
]
Refetch = Annotated[
    float,
    typer.Option(min=0, max=1, metavar="RATE", help="How often hidden text is recalled before it is used, 0 to 1."),
]
NoMarks = Annotated[
    bool, typer.Option("--no-marks", help="The client sets no cache marks, as most libraries do by default.")
]
SummaryModel = Annotated[
    str,
    typer.Option(metavar="MODEL", help="Who writes summaries. Default: the small sibling; `same`: the model itself."),
]
ShowNeeds = Annotated[
    bool,
    typer.Option("--needs", help="Print each text that a next action needed and that was out of sight, and its stub."),
]


@explains_columns(
    """
    Columns, costs, each with Narrows and without (none): req, requests; sent, tokens of all prompts; peak, tokens
    of the largest; input $ and whole $, dollars for prompts, and with replies, recalls and summaries; ratio and
    whole, these bills with Narrows divided by those without, so below 1 it saves; marks alone, the bill with cache
    marks of Narrows and nothing else; with compaction, the input bill divided by that of marks alone.

    Columns, faults, which must be 0: invalid, requests that were refused; no reply; undeclared, changes of the
    prefix that the reply did not declare; fail-open, requests sent unchanged because planning failed; lost, texts
    that later turns used, that were not in the prompt and cannot be recalled.

    Columns, bills on the way: sessions, the number of a group; chkp, checkpoints (rewrites of the prefix); end,
    past 20 and any stop, the worst ratio of the input bills at the end of a session, at any request past the 20th,
    and at any request; recalls, the share of recall rounds in the input bill.

    Columns, pauses, where it is known when requests were sent, with Narrows and without (none): expired, requests
    before which the cache had expired; cost, dollars paid to write that again, and their share of the bill; bridged,
    requests before which only the cache of doing nothing had expired; pings and their share of the bill; never expired,
    the bill of doing nothing if nothing ever expired, divided by that bill.

    Columns, in sight: visible, of the paths, names and numbers that later turns used, the share that stood in the
    prompt; rare, the same for those with at most 3 earlier occurrences; rare at risk, for rare ones that last
    occurred more than 5 turns before; quoted and lines, for the old text that edits quote, by texts and by lines;
    lines at risk, for lines that last occurred more than 5 turns before.

    Columns, out of sight: needs, of the model's next actions, the share that needs a path, name, number or old text
    which the client had sent and which stood nowhere in the prompt; edits, the same for the old text of edits.
    --needs prints each.

    Columns, presets beside each other: * where no other preset is as cheap with as much in sight; calls and $,
    those of a model for recalls and summaries; back, of what was used but not in the prompt, the share that a
    recall or another run of a tool brings back.
    """
)
def replay(
    files: Files,
    prices: PriceTables = None,
    cache: Cache = None,
    preset: PresetNames = None,
    config: Config = None,
    aim: AimOption = None,
    context_tokens: ContextTokens = None,
    keep: Keep = None,
    chain: Chain = False,
    as_listed: AsListed = False,
    group: Groups = None,
    pauses: Pauses = RECORDED,
    mark_lifetime: MarkLives = "own",
    keep_warm: KeepWarm = "0",
    tools: Tools = None,
    upstream: Upstream = "",
    credential_env: CredentialEnv = "",
    text_protocol: TextProtocol = False,
    refetch: Refetch = 0.0,
    no_marks: NoMarks = False,
    summary_model: SummaryModel = "",
    needs: ShowNeeds = False,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Run recorded sessions through a real Narrows.

    Every reply is checked. Shows the bill with and without Narrows, what stayed in sight, and what the next step needed
    that did not. With --refetch the built-in provider's model recalls hidden text at that share of its uses. Several
    --preset end with a table. Exit code 1 if a request or recall had no answer, the prefix changed undeclared, or
    something was lost.
    """
    with refusing():
        own = custom_presets(config)
        names = presets_named(preset or [PRESET], own)
        _check(upstream, [*(prices or ()), *filter(None, [summary_model])], refetch, pauses, keep_warm)
        sessions = _arranged(files, chain, as_listed, group or [], pauses)
        options = Options(
            prices=tuple(dict.fromkeys(prices or ())),
            cache=cache or "",
            aim=aim,
            context_tokens=context_tokens,
            keep=patterns_of(keep or ()),
            upstream=upstream,
            credential=credential(credential_env),
            text_protocol=text_protocol,
            refetch=refetch,
            no_marks=no_marks,
            mark_lifetime=mark_lifetime,
            keep_warm=seconds(keep_warm),
            tools=tools,
            summary_model=summary_model,
            own=own,
        )
        path = writable(html, files)
    with progress(len(names) * options.requests(sessions)) as advance:
        reports = asyncio.run(replay_each(sessions, names, options, advance))
    _print(reports, needs, as_json, path)
    raise typer.Exit(int(any(report.faults for report in reports)))


def _check(upstream: str, priced: Sequence[str], refetch: float, pauses: str, keep_warm: str) -> None:
    """Refuse models without prices, or what is for the built-in provider alone. Raises ValueError."""
    if not upstream:  # a real one has prices of its own
        check_prices(priced)
    elif refetch:
        raise ValueError("--refetch is for the built-in provider; the model of a real upstream recalls as it wants")
    elif pauses not in (RECORDED, NONE) or seconds(keep_warm):
        raise ValueError("--pauses and --keep-warm are for the built-in provider: a real one has its own time")


def _print(reports: Sequence[Report], needs: bool, as_json: bool, path: Path | None) -> None:
    means, results = averages(reports), preset_results(reports)

    def draw(paper: Console, reports: Sequence[Report]) -> None:
        if needs:
            print_needs(paper, reports)
        print_replays(paper, reports, means, results)

    def values(reports: Sequence[Report]) -> Any:
        rows = by_place(reports) if needs else values_of(reports)
        return {"sessions": rows, **values_of({"means": means, "presets": results})}

    print_report(reports, draw, lambda reports: replay_page(reports, means, results), as_json, path, values)


def replay_until(body: bytes, name: str, options: Options) -> Report | str:
    """The replay of the session that led to a request; or a sentence why none can be replayed."""
    try:
        session = session_of(body, name, name)
    except ValueError as error:
        return f"There is nothing to replay: {error}."
    if len(session.turns) < 2:  # a session that is read has one at least
        return "There is nothing to replay: its history holds 1 answered request, and it takes 2."
    with progress(options.requests([session])) as advance:
        (report,) = asyncio.run(replay_all([session], options, advance))
    return report


def _arranged(
    files: Sequence[Path], chain: bool, as_listed: bool, groups: Sequence[str], pauses: str = RECORDED
) -> list[Session]:
    """The sessions of the files in their groups, or the chains that they make, each with its times."""
    if as_listed and not chain:
        raise ValueError("--as-listed is the order of a chain; give it with --chain")
    if chain and pauses not in (RECORDED, NONE):
        raise ValueError("--pauses is for sessions alone: nobody knows what passed between those of a --chain")
    sessions = [timed(session, pauses) for session in load_all(files)]
    if not chain:
        return grouped(sessions, groups)
    return [chained(sessions)] if as_listed else chains(sessions)
