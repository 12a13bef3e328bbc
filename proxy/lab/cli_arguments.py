"""What the words of commands may be: presets, models whose prices are known, variables that hold a key.

Law: what cannot be meant raises ValueError, whose text says what to say instead.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from policies.money.catalog import prices_for
from policies.presets import PRESETS
from proxy.config.errors import unknown
from proxy.config.presets import ALL, Own
from proxy.lab.preset_descriptions import presets_in


def own_presets(config: Path | None) -> Mapping[str, Own]:
    """The presets of one's own that a file says; the environment has no say."""
    return presets_in(config) if config else {}


def check_preset(name: str, own: Iterable[str]) -> None:
    """There has to be a preset of this name."""
    known = {*PRESETS, *own}
    if name not in known:
        raise ValueError(unknown("preset", name, known))


def presets_named(names: Sequence[str], own: Iterable[str]) -> Sequence[str]:
    """Each once; all that come with Narrows in the place of `all`."""
    found = list(dict.fromkeys(each for name in names for each in (PRESETS if name == ALL else [name])))
    for name in found:
        check_preset(name, own)
    return found


def check_prices(models: Iterable[str]) -> None:
    """The prices of these models have to be known."""
    for model in models:
        if not prices_for(model).listed:
            raise ValueError(f"nobody knows the prices of {model!r}; name a model such as gpt-5.4 or claude-sonnet-5")


def check_billed(models: Iterable[str], upstream: str, refetch: float) -> None:
    """A real upstream bills as it does, and its model recalls when it wants."""
    if upstream and refetch:
        raise ValueError("--refetch is for the built-in provider; the model of a real upstream recalls as it wants")
    check_prices(() if upstream else models)


def credential(variable: str) -> str:
    """The key, which is never a word of the command line."""
    if not variable:
        return ""
    key = os.environ.get(variable, "")
    if not key:
        raise ValueError(f"the environment variable {variable} is empty or not set; put the upstream's key there")
    return key
