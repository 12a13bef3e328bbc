"""Checks of the words of commands: presets, models whose prices are known, variables that hold a key.

Law: what cannot be meant raises ValueError, whose text says what is allowed instead.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from policies.money.catalog import prices_for
from policies.presets import PRESETS
from proxy.config.errors import unknown
from proxy.config.presets import ALL, CustomPreset
from proxy.lab.preset_descriptions import presets_in


def custom_presets(config: Path | None) -> Mapping[str, CustomPreset]:
    """The presets that a file defines; the environment is not read."""
    return presets_in(config) if config else {}


def check_preset(name: str, custom: Iterable[str]) -> None:
    """Refuse a name that is no preset's."""
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
    """Refuse models whose prices are not in the catalog."""
    for model in models:
        if not prices_for(model).listed:
            raise ValueError(f"nobody knows the prices of {model!r}; name a model such as gpt-5.4 or claude-sonnet-5")


def check_billed(models: Iterable[str], upstream: str, refetch: float) -> None:
    """Refuse what only the built-in provider can do where there is a real upstream, which has prices of its own."""
    if upstream and refetch:
        raise ValueError("--refetch is for the built-in provider; the model of a real upstream recalls as it wants")
    check_prices(() if upstream else models)


def credential(variable: str) -> str:
    """The key in an environment variable, since it is never a word of the command line; empty where none is named."""
    if not variable:
        return ""
    key = os.environ.get(variable, "")
    if not key:
        raise ValueError(f"the environment variable {variable} is empty or not set; put the upstream's key there")
    return key
