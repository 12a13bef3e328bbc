"""The options that commands of the lab share, and checks of their words: presets, models whose prices are known,
variables that hold a key.

Law: what cannot be meant raises ValueError, whose text says what is allowed instead.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from policies.context import Aim
from policies.model.parameters import MOST
from policies.money.catalog import prices_for
from policies.presets import PRESETS
from policies.tools.deferral import ToolLists
from proxy.config import Settings
from proxy.config.errors import unknown
from proxy.config.presets import ALL, CustomPreset
from proxy.config.rules import FEWEST_TOKENS
from proxy.console.arguments import offers
from proxy.console.presets import presets_in

PRESET = str(Settings.model_fields["preset"].default)
PresetName = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help=f"The list of policies to use: {', '.join(sorted(PRESETS))}.",
        autocompletion=offers(*PRESETS),
    ),
]
PresetNames = Annotated[
    list[str] | None,
    typer.Option(
        "--preset",
        metavar="NAME",
        help=f"The list of policies to use, or all; can be repeated: {', '.join(sorted(PRESETS))}. Default: {PRESET}.",
        autocompletion=offers(*PRESETS, ALL),
    ),
]
AimOption = Annotated[
    Aim | None, typer.Option("--aim", metavar="bill|context|steady", help="When Narrows acts. Default: by preset.")
]
ContextTokens = Annotated[
    int | None, typer.Option(min=FEWEST_TOKENS, max=MOST, metavar="N", help="Keep prompts below so many tokens.")
]
Keep = Annotated[
    list[str] | None,
    typer.Option("--keep", metavar="PATTERN", help="A tool, path or text:WORDS that is never edited; can be repeated."),
]
TextProtocol = Annotated[
    bool,
    typer.Option("--text-protocol", help="Shorten sessions without tool calls too, where commands travel as text."),
]
Tools = Annotated[
    ToolLists | None, typer.Option("--tools", metavar="keep|defer", help="As the setting `tools`. Default: by preset.")
]
Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE...", help="Sessions, as `narrows serve --record FOLDER` writes them. Skips *.usage.json."
    ),
]
CredentialEnv = Annotated[
    str, typer.Option(metavar="NAME", help="The environment variable that holds the upstream's key.")
]
Html = Annotated[
    str | None, typer.Option("--html", metavar="FILE", help="Write a page, too: one file that needs nothing else.")
]


def custom_presets(config: Path | None) -> Mapping[str, CustomPreset]:
    """The presets that a file defines; the environment is not read."""
    return presets_in(config) if config else {}


def check_preset(name: str, custom: Iterable[str]) -> None:
    presets = {*PRESETS, *custom}
    if name not in presets:
        raise ValueError(unknown("preset", name, presets))


def presets_named(names: Sequence[str], custom: Iterable[str]) -> Sequence[str]:
    """Each preset once; all built-in ones in the place of `all`."""
    selected = list(dict.fromkeys(each for name in names for each in (PRESETS if name == ALL else [name])))
    for name in selected:
        check_preset(name, custom)
    return selected


def check_prices(models: Iterable[str]) -> None:
    for model in models:
        if not prices_for(model).listed:
            raise ValueError(f"nobody knows the prices of {model!r}; name a model such as gpt-5.4 or claude-sonnet-5")


def credential(variable: str) -> str:
    """The key in an environment variable, since it is never a word of the command line; empty where none is named."""
    if not variable:
        return ""
    key = os.environ.get(variable, "")
    if not key:
        raise ValueError(f"the environment variable {variable} is empty or not set; put the upstream's key there")
    return key
