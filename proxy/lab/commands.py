"""The commands of `narrows`, but for `serve`: their options, and what they do.

Laws: what is wrong with the options or the files ends with one line on stderr and exit code 2; what goes wrong in a
replay or in the demo, with exit code 1. With --json nothing is printed but one JSON object. A secret is never a word
of the command line.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from policies.keep import patterns_of
from policies.model.tokens import HIGHEST, LOWEST
from policies.presets import PRESETS
from proxy.lab.agree.command import agree as agree
from proxy.lab.cli_arguments import (
    PRESET,
    AimOption,
    AsJson,
    AsListed,
    Cache,
    Chain,
    Config,
    ContextTokens,
    CredentialEnv,
    Files,
    Groups,
    Html,
    Keep,
    NoMarks,
    Preset,
    PresetNames,
    PriceTables,
    Refetch,
    ShowNeeds,
    SummaryModel,
    TextProtocol,
    Upstream,
    check_billed,
    check_preset,
    check_prices,
    credential,
    custom_presets,
    offers,
    presets_named,
)
from proxy.lab.cli_output import console, print_json, print_page, progress, refusing
from proxy.lab.delete import delete as delete
from proxy.lab.demo_command import demo as demo
from proxy.lab.keys import keys as keys
from proxy.lab.load.command import load as load
from proxy.lab.local.commands import check as check
from proxy.lab.local.commands import doctor as doctor
from proxy.lab.local.commands import env as env
from proxy.lab.local.commands import run as run
from proxy.lab.read_store import StoreConfig, StoreUrl, store_settings
from proxy.lab.reports.columns import explains_columns
from proxy.lab.reports.page_file import writable
from proxy.lab.results import as_json as values_of
from proxy.lab.usage import usage as usage

if TYPE_CHECKING:  # each command imports what it needs when it runs: the others start faster
    from proxy.lab.replay.environment import Options
    from proxy.lab.replay.recorded import Session
    from proxy.lab.replay.report import Report


RequestFile = Annotated[
    str,
    typer.Argument(
        metavar="FILE|-",
        help="The body of a request, or a session that `narrows serve --record FOLDER` wrote; - is stdin.",
    ),
]


@explains_columns
def explain(
    file: RequestFile,
    model: Annotated[str, typer.Option(metavar="MODEL", help="The model to ask, in place of the file's.")] = "",
    preset: Preset = PRESET,
    config: Config = None,
    aim: AimOption = None,
    context_tokens: ContextTokens = None,
    keep: Keep = None,
    prices: Annotated[str, typer.Option(metavar="MODEL", help="Take the prices of this model.")] = "",
    text_protocol: TextProtocol = False,
    calibration: Annotated[
        float,
        typer.Option(
            min=LOWEST, max=HIGHEST, metavar="RATIO", help="Tokens that the provider reports for each one counted."
        ),
    ] = 1.0,
    html: Html = None,
    ref: Annotated[str, typer.Option(metavar="REF", help="Print what this reference stands for, unchanged.")] = "",
    part: Annotated[
        str, typer.Option(metavar="PART", help='Of that, only "lines 9-80", "chars 0-999" or "find REGEX".')
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Show what would become of one saved request.

    What would go and why, message by message, with tokens and the input bill before and after. Nothing is sent.
    With --html all of it as a page; what its history has cost so far is found out by replaying that.
    With --ref, the original that a reference stands for in it.
    """
    if ref or part:
        return _print_original(file, model, ref, part, html, as_json)
    from policies.money.catalog import prices_for
    from proxy.lab.explain import explained, request_from
    from proxy.lab.reports.text import print_explanation

    with refusing():
        own = custom_presets(config)
        check_preset(preset, own)
        check_prices([prices] if prices else [])
        path, body = writable(html, [file]), request_from(file, model)
        table, chosen = prices_for(prices) if prices else None, own[preset].preset if preset in own else None
        choices: dict[str, Any] = {"preset": preset, "aim": aim, "context_tokens": context_tokens}
        choices |= {"text_protocol": text_protocol, "keep": patterns_of(keep or ())}
        explanation = explained(body, prices=table, calibration=calibration, own=chosen, **choices)
    if as_json:
        print_json(values_of(explanation))
    else:
        print_explanation(console(), explanation)
    if path is not None:
        from proxy.lab.replay.environment import Options
        from proxy.lab.reports import page

        options = Options((prices,) if prices else (), own=own, **choices)
        name = "a request" if file == "-" else Path(file).name
        print_page(path, page.explained(name, explanation, _past(body, name, options)), as_json)
    return None


def _past(body: bytes, name: str, options: "Options") -> "Report | str":
    """What the history of a request has cost so far; a sentence why that cannot be said."""
    from proxy.lab.replay.runs import replay_all, session_until

    session = session_until(body, name)
    if isinstance(session, str):
        return session
    with progress(_requests_of([session], options)) as advance:
        (report,) = asyncio.run(replay_all([session], options, advance))
    return report


def _print_original(file: str, model: str, ref: str, part: str, html: str | None, as_json: bool) -> None:
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


@explains_columns
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
    from proxy.lab.replay.environment import Options
    from proxy.lab.replay.runs import replay_each

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
    with progress(len(names) * _requests_of(sessions, options)) as advance:
        reports = asyncio.run(replay_each(sessions, names, options, advance))
    _print_reports(reports, path, as_json, needs, timed=concurrency > 1 or repeat > 1)
    raise typer.Exit(int(any(report.faults for report in reports)))


def _print_reports(reports: "Sequence[Report]", path: Path | None, as_json: bool, needs: bool, timed: bool) -> None:
    from proxy.lab.replay.comparison import averages, preset_results, timing
    from proxy.lab.reports import page
    from proxy.lab.reports.text import by_place, print_needs, print_replays

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


def _arranged(files: Sequence[Path], chain: bool, as_listed: bool, groups: Sequence[str]) -> "list[Session]":
    """The sessions of the files in their groups, or the chains that they make."""
    from proxy.lab.replay.recorded import chained, chains, grouped, load_all

    if as_listed and not chain:
        raise ValueError("--as-listed is the order of a chain; give it with --chain")
    sessions = load_all(files)
    if not chain:
        return grouped(sessions, groups)
    return [chained(sessions)] if as_listed else chains(sessions)


@explains_columns
def presets(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Only this one, with everything that it does.", autocompletion=offers(*PRESETS)
        ),
    ] = "",
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """List the presets, or say what one of them does.

    With NAME: its policies in their order and their parameters, its exceptions to the laws, and who writes its
    summaries. Those of your own come from --config or NARROWS_CONFIG; what differs from their base is marked.
    """
    from proxy.lab.preset_descriptions import describe, presets_in
    from proxy.lab.reports.presets import print_preset, print_presets

    with refusing():
        own = presets_in(config)
        described = [describe(each, own) for each in ([name] if name else [*PRESETS, *own])]
    if as_json:
        print_json(values_of(described[0] if name else described))
    elif name:
        print_preset(console(), described[0])
    else:
        print_presets(console(), described)


@explains_columns
def audit(
    conversation: Annotated[
        str, typer.Argument(metavar="CONVERSATION", help="Only this conversation, and its summaries too.")
    ] = "",
    store: StoreUrl = "",
    config: StoreConfig = None,
    tenant: Annotated[
        str, typer.Option(metavar="NAME", help="Only this tenant, whole as --json prints it. Default: all.")
    ] = "",
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="The newest so many events.")] = 50,
    text: Annotated[bool, typer.Option("--text", help="Show the texts of the summaries, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what became of summaries, and what was deleted.

    The newest events come last. With CONVERSATION also its summaries: what became of each, which messages they cover,
    by which model, policy and prompt, and what they cost. Reads the store itself, so that `narrows serve` need not run.
    NARROWS_STORE and NARROWS_CONFIG count here too. No text is shown but with --text.
    """
    from proxy.lab.audit import read_audit
    from proxy.lab.reports.audit import print_audit

    with refusing():
        settings = store_settings(store, config)
        record = asyncio.run(read_audit(settings, conversation or None, tenant or None, limit))
    if as_json:
        print_json(record.as_json(text))
    else:
        print_audit(console(), record, text)


def export(
    conversation: Annotated[str, typer.Argument(metavar="CONVERSATION", help="As x-narrows-conversation names it.")],
    branch: Annotated[
        str, typer.Option(metavar="NAME", help="The newest branch with the message of this name. Default: the newest.")
    ] = "",
    store: StoreUrl = "",
    config: StoreConfig = None,
    tenant: Annotated[
        str, typer.Option(metavar="NAME", help="Whose conversation it is. Default: the configured one, or local.")
    ] = "",
) -> None:
    """Print a logged conversation as a session, for `narrows replay`.

    With `history` on, the log of a conversation holds all of it: this is its newest request with the reply, in the form
    of its API. Reads the store itself, so that `narrows serve` need not run; where it is encrypted, with the same keys.
    """
    from proxy.lab.read_store import read_session

    with refusing():
        session = asyncio.run(read_session(store_settings(store, config), conversation, tenant, branch))
    print(session.decode("utf-8", "replace"))


def generate(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="read-loop, claude-loop or chat.",
            autocompletion=offers("read-loop", "claude-loop", "chat"),
        ),
    ],
    seed: Annotated[int, typer.Option(metavar="N", help="Sizes, repetition and wording follow from it.")] = 1,
    requests: Annotated[
        int | None,
        typer.Option(min=2, metavar="N", help="How many requests a loop has. Default: 80, or 40 of claude-loop."),
    ] = None,
    turns: Annotated[
        int | None, typer.Option(min=2, metavar="N", help="How many questions and answers a chat has. Default: 60.")
    ] = None,
    answer: Annotated[
        int | None, typer.Option(min=40, metavar="TOKENS", help="How long a chat's answers are. Default: 780.")
    ] = None,
    paste: Annotated[
        int | None,
        typer.Option(min=40, metavar="TOKENS", help="How long a text each question of a chat brings. Default: none."),
    ] = None,
) -> None:
    """Print a session made by rule, for `narrows replay`.

    The same kind, seed and sizes give the same session. The loops are an agent that reads files: read-loop in chat
    completions, claude-loop in Anthropic's Messages, by a client that sets no cache marks. A chat has no tools: a
    person states facts and rules, and asks about them later.
    """
    from proxy.lab.generators.chats import ANSWER, KIND, TURNS, chat
    from proxy.lab.generators.loops import LOOPS, generated

    is_chat = kind == KIND
    with refusing():
        if not is_chat and kind not in LOOPS:
            raise ValueError(f"there is no generator {kind!r}; name one of {', '.join(sorted([KIND, *LOOPS]))}")
        if requests is not None if is_chat else (turns or answer or paste) is not None:
            raise ValueError("--requests is for loops; --turns, --answer and --paste are for chats")
        session = (
            chat(seed, turns or TURNS, answer or ANSWER, paste or 0) if is_chat else generated(kind, seed, requests)
        )
    print(json.dumps(session))


def _requests_of(sessions: "Sequence[Session]", options: "Options") -> int:
    tables = options.tables(sessions).values()
    return options.repeat * sum(len(session.turns) for members in tables for session in members)
