"""`narrows env`: the lines that make a client ask Narrows."""

import os
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from proxy.config import Settings, load_settings
from proxy.config.clients import CLIENTS, DEFAULT_ADDRESS
from proxy.config.errors import unknown
from proxy.console.arguments import offers
from proxy.console.output import refusing

OPENAI, ANTHROPIC = "https://api.openai.com/v1", "https://api.anthropic.com"
"""Where clients ask that were told nothing else."""


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
