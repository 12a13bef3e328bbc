"""The options that `run` and `doctor` share with `serve`, and the settings that follow from them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from policies.presets import PRESETS
from proxy.config import Settings, load_settings
from proxy.lab.cli_arguments import offers

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
