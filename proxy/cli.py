"""The command `narrows`: the options of each command, which then does its work in `proxy.lab.commands`.

Laws: what cannot work in a configuration ends with one line on stderr and exit code 2. `serve` loads nothing of the
lab. A secret is never a word of the command line.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from policies.presets import PRESETS
from proxy.config import ConfigurationError, Settings, load_settings

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
    from proxy.lab import commands

    if ref or part:
        return commands.print_original(file, model, ref, part, html, as_json)
    return commands.explain(
        file,
        model,
        preset=preset,
        config=config,
        prices=prices,
        text_protocol=text_protocol,
        html=html,
        as_json=as_json,
    )


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
    from proxy.lab import commands

    commands.replay(
        files,
        preset or [PRESET],
        prices=prices or [],
        cache=cache or "",
        config=config,
        chain=chain,
        concurrency=concurrency,
        repeat=repeat,
        upstream=upstream,
        credential_env=credential_env,
        text_protocol=text_protocol,
        refetch=refetch,
        summary_model=summary_model,
        html=html,
        as_json=as_json,
    )


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
    from proxy.lab import commands

    commands.presets(name, config, as_json)


@app.command()
def demo(
    prices: Annotated[str, typer.Option(metavar="MODEL", help="Bill by this model's prices.")] = "gpt-5.4",
) -> None:
    """Drive two shipped sessions through a real Narrows.

    With the official client, streaming: bars before and after, the bills, and the proof that the prefix held. Needs no
    network and no key, and ends by itself; exit code 1 where the prefix did not hold.
    """
    from proxy.lab import commands

    commands.demo(prices)


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
    from proxy.lab import commands

    commands.audit(conversation, store, config, tenant, limit, as_json)


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
