"""The options that `run` and `doctor` share with `serve`, and the settings that follow from them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from proxy.config import Settings, load_settings

UpstreamUrl = Annotated[
    str, typer.Option("--upstream", metavar="URL", help="The client's former base_url, /v1 included.")
]
AnthropicUrl = Annotated[
    str, typer.Option("--anthropic-upstream", metavar="URL", help="Where requests in Anthropic's API go.")
]
PresetName = Annotated[str, typer.Option("--preset", metavar="NAME", help="The list of policies to use.")]
ServedStore = Annotated[str, typer.Option("--store", metavar="URL", help="Where decisions are remembered.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="A TOML file with the settings of `narrows serve`.")
]

OPENAI, ANTHROPIC = "https://api.openai.com/v1", "https://api.anthropic.com"
"""Where clients ask that were told nothing else."""


def flags(**options: str | Path | None) -> list[str]:
    """The options that were given, as `serve` takes them."""
    return [word for name, value in options.items() if value for word in (f"--{name.replace('_', '-')}", str(value))]


def settings_for_clients(words: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """The settings; what they leave open about upstreams is where the clients themselves would ask: at the address in
    their own variables, or at the one that they have built in. Raises ConfigurationError."""
    settings = load_settings(words)
    added = []
    if settings.upstream is None:
        added += ["--upstream", environment.get("OPENAI_BASE_URL") or OPENAI]
    if settings.anthropic_upstream is None:
        built_in = ANTHROPIC if settings.upstream is None else ""
        if address := environment.get("ANTHROPIC_BASE_URL") or built_in:
            added += ["--anthropic-upstream", address]
    return load_settings([*words, *added]) if added else settings
