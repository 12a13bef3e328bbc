"""`narrows check`: settings in a few lines; nobody is asked, and nothing is made."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from proxy.config import KeyRow, Settings, load_settings
from proxy.console.arguments import flags
from proxy.console.output import console
from proxy.generation import check_settings
from proxy.memory import public_url


def summary(settings: Settings) -> Iterator[str]:
    """One line for each upstream and key, and one for the rest."""
    served = f"mode {settings.mode}, preset {settings.preset}, store {public_url(settings.store)}"
    yield f"settings {settings.digest}: {served}"
    yield f"listens on {settings.host}:{settings.port} with {settings.workers} worker(s), auth {settings.auth}"
    for row in settings.upstream_rows:
        serves = f"{', '.join(row.apis) or 'all APIs'}; {', '.join(row.models) or 'all models'}"
        key = f"with the gateway's own key ({row.auth})" if row.has_key else "with the client's credential"
        yield f"upstream {row.name}: {row.url} ({serves}), {key}"
    for each in settings.keys:
        yield f"key {each.name}: {'; '.join(filter(None, (scope_of(each), limits_of(each) or 'no limits')))}"
    if settings.auth != "passthrough":
        yield "keys in the store are valid, too: narrows keys list"


def scope_of(key: KeyRow) -> str:
    """The models, upstreams, presets and mode of a key, where it may not ask everything."""
    fields = {"models": key.models, "upstreams": key.upstreams, "presets": key.presets}
    lists = [f"{name} {' '.join(values)}" for name, values in fields.items() if values]
    return ", ".join([*lists, *([f"mode {key.mode}"] if key.mode else [])])


def limits_of(key: KeyRow) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in key.limits.items())


def check(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A TOML file with settings; else the variables alone count.")
    ] = None,
) -> None:
    """Check settings without starting, listening or asking anybody.

    Everything that `narrows serve` and a reload would refuse: settings, prices, certificates, the store's URL. Prints
    in a few lines what they say. Exit code 2 where something cannot work.
    """
    settings = load_settings(flags(config=file))
    asyncio.run(check_settings(settings))
    for line in summary(settings):
        console().print(line, soft_wrap=True, markup=False, highlight=False)
