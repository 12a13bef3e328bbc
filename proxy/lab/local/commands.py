"""The options of `narrows run`, `narrows env`, `narrows check` and `narrows doctor`, and what they print."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from policies.presets import PRESETS
from proxy.config import Settings, load_settings
from proxy.config.clients import CLIENTS, DEFAULT_ADDRESS
from proxy.config.errors import unknown
from proxy.lab.cli_arguments import AsJson, offers
from proxy.lab.cli_output import console, print_json, refusing

# --- the options that `run` and `doctor` share with `serve`, and the settings that follow from them ---

UpstreamUrl = Annotated[
    str, typer.Option("--upstream", metavar="URL", help="The client's former base_url, /v1 included.")
]
AnthropicUrl = Annotated[
    str, typer.Option("--anthropic-upstream", metavar="URL", help="Where requests in Anthropic's API go.")
]
PresetName = Annotated[
    str, typer.Option("--preset", metavar="NAME", help="The list of policies to use.", autocompletion=offers(*PRESETS))
]
ServedStore = Annotated[str, typer.Option("--store", metavar="URL", help="Where decisions are stored.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="A TOML file with the settings of `narrows serve`.")
]

OPENAI, ANTHROPIC = "https://api.openai.com/v1", "https://api.anthropic.com"
"""Where clients ask that were told nothing else."""


def flags(**options: str | Path | None) -> dict[str, Any]:
    """The options that are there, as settings."""
    return {name: value for name, value in options.items() if value}


def settings_for_clients(flags: Mapping[str, Any], environment: Mapping[str, str]) -> Settings:
    """The settings; what they leave open about upstreams is where the clients themselves would ask: at the address in
    their own variables, or at the one that they have built in. Raises ConfigurationError."""
    settings = load_settings(flags)
    added = {}
    if settings.upstream is None:
        added["upstream"] = environment.get("OPENAI_BASE_URL") or OPENAI
    if settings.anthropic_upstream is None:
        built_in = ANTHROPIC if settings.upstream is None else ""
        if address := environment.get("ANTHROPIC_BASE_URL") or built_in:
            added["anthropic_upstream"] = address
    return load_settings({**flags, **added}) if added else settings


_ALONE: Mapping[str, Any] = {"host": "127.0.0.1", "port": 0, "workers": 1}
"""For one command, on this machine, on a port that is free."""


def run(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND [ARGS]...", help="What to run, best behind --.")],
    upstream: UpstreamUrl = "",
    anthropic_upstream: AnthropicUrl = "",
    preset: PresetName = "",
    config: ConfigFile = None,
    store: ServedStore = "",
) -> None:
    """Run a command whose requests go through a Narrows of its own.

    As in `narrows run -- python agent.py`: on a free port of loopback, for as long as the command runs. What clients
    read is set (OPENAI_BASE_URL, ANTHROPIC_BASE_URL and others; `codex` gets options), the terminal is the command's,
    and so is the exit code. At the end stderr says what was saved. The settings of `narrows serve` count, by variable
    and file; without an upstream there, requests go where the client itself would ask.
    """
    from proxy.lab.local.run import run_command

    values = flags(upstream=upstream, anthropic_upstream=anthropic_upstream, preset=preset, config=config, store=store)
    with refusing():
        settings = settings_for_clients({**values, **_ALONE}, os.environ)
        settings = settings.model_copy(update={"auth": "passthrough", "keys": ()})  # the command has no key of this one
        if "log_level" not in settings.model_fields_set:
            settings = settings.model_copy(update={"log_level": "warning"})
        code = run_command(settings, command, os.environ)
    raise typer.Exit(code)


def env(
    client: Annotated[
        str,
        typer.Argument(
            metavar="CLIENT", help="Which client; without it, all are listed.", autocompletion=offers(*CLIENTS)
        ),
    ] = "",
    url: Annotated[
        str, typer.Option(metavar="URL", help="Where Narrows listens, as `narrows serve` prints it.")
    ] = f"{DEFAULT_ADDRESS}/v1",
) -> None:
    """Print what to paste into a shell so that a client asks Narrows.

    Without CLIENT the clients are listed. Nothing is changed, and no key is printed.
    """
    if not client:
        for name, each in CLIENTS.items():
            print(f"{name:12} {each.about}")
        print("`narrows env CLIENT` prints the lines to paste for one of them")
        return
    with refusing():
        if client not in CLIENTS:
            raise ValueError(unknown("client", client, CLIENTS))
        anthropic = settings_for_clients({}, os.environ).upstream_of_provider("anthropic") or ""
        lines = list(CLIENTS[client].lines(url.rstrip("/").removesuffix("/v1"), os.environ, anthropic))
        if not lines:
            raise ValueError("OPENCODE_CONFIG_CONTENT is set but is not a JSON object; put baseURL into it yourself")
    print("\n".join(lines))


def check(
    file: Annotated[
        Path | None, typer.Argument(help="A TOML file with settings; else the variables alone count.")
    ] = None,
) -> None:
    """Check settings without starting, listening or asking anybody.

    Everything that `narrows serve` and a reload would refuse: settings, prices, certificates, the store's URL. Prints
    in a few lines what they say. Exit code 2 where something cannot work.
    """
    from proxy.config import load_settings
    from proxy.generation import check_settings
    from proxy.lab.local.check import summary

    settings = load_settings(flags(config=file))
    asyncio.run(check_settings(settings))
    for line in summary(settings):
        console().print(line, soft_wrap=True, markup=False, highlight=False)


def doctor(
    upstream: UpstreamUrl = "",
    anthropic_upstream: AnthropicUrl = "",
    preset: PresetName = "",
    config: ConfigFile = None,
    store: ServedStore = "",
    as_json: AsJson = False,
) -> None:
    """Check what `narrows serve` would do with these settings.

    Settings, upstreams, keys, the store, the clock, cache marks, versions: each is ok, a warning or a failure, with
    what to do. Each upstream is asked for its models, with the key in OPENAI_API_KEY or ANTHROPIC_API_KEY; that costs
    nothing. Exit code 1 where something fails.
    """
    from proxy.lab.local.doctor import examine

    values = flags(upstream=upstream, anthropic_upstream=anthropic_upstream, preset=preset, config=config, store=store)
    findings = asyncio.run(examine(values, os.environ))
    if as_json:
        print_json([{"status": each.status, "about": each.about, "text": each.text} for each in findings])
    else:
        for each in findings:
            console().print(f"{each.status:4}  {each.about:9} {each.text}", soft_wrap=True)
    raise typer.Exit(int(any(each.status == "fail" for each in findings)))
