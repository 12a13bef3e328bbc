"""The options that commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from policies.presets import PRESETS


def offers(*choices: str) -> Callable[[str], list[str]]:

    def complete(incomplete: str) -> list[str]:
        return [each for each in choices if each.startswith(incomplete)]

    return complete


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]
Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="The TOML file with presets of your own.")
]

# --- those that commands share with `serve`, and the settings that follow from them ---

ServedUpstream = Annotated[
    str, typer.Option("--upstream", metavar="URL", help="The client's former base_url, /v1 included.")
]
ServedAnthropic = Annotated[
    str, typer.Option("--anthropic-upstream", metavar="URL", help="Where requests in Anthropic's API go.")
]
ServedPreset = Annotated[
    str, typer.Option("--preset", metavar="NAME", help="The list of policies to use.", autocompletion=offers(*PRESETS))
]
ServedStore = Annotated[str, typer.Option("--store", metavar="URL", help="Where decisions are stored.")]
ServedConfig = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="A TOML file with the settings of `narrows serve`.")
]


def flags(**options: str | Path | None) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value}
