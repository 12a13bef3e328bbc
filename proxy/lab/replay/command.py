"""`narrows replay`: its options, and what it prints."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from policies.keep import patterns_of
from proxy.console.arguments import AsJson, Config
from proxy.console.output import as_json as values_of
from proxy.console.output import console, explains_columns, print_json, progress, refusing
from proxy.lab.arguments import (
    PRESET,
    AimOption,
    AsListed,
    Cache,
    Chain,
    ContextTokens,
    CredentialEnv,
    Files,
    Groups,
    Html,
    Keep,
    NoMarks,
    PresetNames,
    PriceTables,
    Refetch,
    ShowNeeds,
    SummaryModel,
    TextProtocol,
    Upstream,
    check_billed,
    credential,
    custom_presets,
    presets_named,
)
from proxy.lab.replay.comparison import averages, preset_results, timing
from proxy.lab.replay.environment import Options
from proxy.lab.replay.recorded import Session, chained, chains, grouped, load_all
from proxy.lab.replay.report import Report
from proxy.lab.replay.runs import replay_each
from proxy.lab.reports import page
from proxy.lab.reports.page_file import print_page, writable
from proxy.lab.reports.text import by_place, print_needs, print_replays


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
    concurrency: Annotated[int, typer.Option(min=1, metavar="N", help="How many sessions run at once.")] = 1,
    repeat: Annotated[int, typer.Option(min=1, metavar="M", help="How often each session runs.")] = 1,
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

    Turn by turn, and every reply is checked. Shows the bill with and without Narrows, what stayed in sight, and what
    the next step needed that did not. With --refetch the built-in provider's model recalls hidden text at that share of
    its uses. The bill includes recalls and summaries. More than one --preset ends with a table, more than one run with
    times. Exit code 1 if a request or recall had no answer, the prefix changed undeclared, or something was lost.
    """
    with refusing():
        own = custom_presets(config)
        names = presets_named(preset or [PRESET], own)
        check_billed([*(prices or ()), *([summary_model] if summary_model else [])], upstream, refetch)
        sessions = _arranged(files, chain, as_listed, group or [])
        options = Options(
            prices=tuple(dict.fromkeys(prices or ())),
            cache=cache or "",
            aim=aim,
            context_tokens=context_tokens,
            keep=patterns_of(keep or ()),
            concurrency=concurrency,
            repeat=repeat,
            upstream=upstream,
            credential=credential(credential_env),
            text_protocol=text_protocol,
            refetch=refetch,
            no_marks=no_marks,
            summary_model=summary_model,
            own=own,
        )
        path = writable(html, files)
    with progress(len(names) * options.requests(sessions)) as advance:
        reports = asyncio.run(replay_each(sessions, names, options, advance))
    _print_reports(reports, path, as_json, needs, timed=concurrency > 1 or repeat > 1)
    raise typer.Exit(int(any(report.faults for report in reports)))


def _print_reports(reports: Sequence[Report], path: Path | None, as_json: bool, needs: bool, timed: bool) -> None:
    means, results = averages(reports), preset_results(reports)
    if as_json:
        rows = by_place(reports) if needs else values_of(reports)
        print_json({"sessions": rows, **values_of({"means": means, "presets": results, "timing": timing(reports)})})
    else:
        if needs:
            print_needs(console(), reports)
        print_replays(console(), reports, means, timed, results)
    if path is not None:
        print_page(path, page.replayed(reports, means, results), as_json)


def _arranged(files: Sequence[Path], chain: bool, as_listed: bool, groups: Sequence[str]) -> list[Session]:
    """The sessions of the files in their groups, or the chains that they make."""
    if as_listed and not chain:
        raise ValueError("--as-listed is the order of a chain; give it with --chain")
    sessions = load_all(files)
    if not chain:
        return grouped(sessions, groups)
    return [chained(sessions)] if as_listed else chains(sessions)
