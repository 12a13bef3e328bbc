"""`narrows check`: settings in a few lines; nobody is asked, and nothing is made."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from policies.money.caches import ANTHROPIC, OPENAI
from proxy.config import KeyRow, Settings, load_settings
from proxy.config.units import duration
from proxy.config.upstreams import spoken_at
from proxy.console.arguments import flags
from proxy.console.output import console
from proxy.generation import check_settings
from proxy.kernel.defer import may_defer
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
    for name, text in notices(settings).items():
        yield f"{name}: {text}"
    for each in settings.keys:
        yield f"key {each.name}: {'; '.join(filter(None, (scope_of(each), limits_of(each) or 'no limits')))}"
    if settings.auth != "passthrough":
        yield "keys in the store are valid, too: narrows keys list"


def notices(settings: Settings) -> dict[str, str]:
    """What spends money while nobody asks, and what leaves out a client's tools, where a person has asked for it."""
    notes = {"keep_warm": _pings(settings)} if settings.keep_warm else {}
    if may_defer(settings):
        where = "unless a rule or preset keeps them" if settings.tools == "defer" else "where a rule or preset says so"
        notes["tools"] = f"definitions are left out until the model looks for them, {where}"
    return notes


def _pings(settings: Settings) -> str:
    """For whom pings are sent, until when, and for how much; or why none are."""
    if reason := _why_no_ping(settings):
        return f"no ping will be sent: {reason}"
    whose = "API keys" if settings.keep_warm_credential == "client-key" else "credentials"
    return (
        f"prompts that wait for a person or a tool are sent again for up to {duration(settings.keep_warm)} while "
        f"nobody asks, with the clients' own {whose}, for at most ${settings.keep_warm_budget:g} a tenant and day; "
        "over 12 recorded sessions that was 3 % of a bill that fell by 7 %; where nobody returns it saves nothing"
    )


def _why_no_ping(settings: Settings) -> str:
    lives = {"messages": ANTHROPIC.seconds, "responses": OPENAI.seconds}
    times = [lives[api] for row in settings.upstream_rows for api in spoken_at(row) & lives.keys()]
    shortest = settings.cold_seconds or min(times, default=0)
    if "on" not in (settings.mode, *(rule.mode for rule in settings.rules), *(key.mode for key in settings.keys)):
        return f"the mode is {settings.mode}"
    if not times:
        return f"no upstream speaks {' or '.join(lives)}, for which alone vendors name one"
    if settings.keep_warm < shortest:
        return f"caches live {duration(shortest)} without any; name a longer time"
    return "" if settings.keep_warm_budget else "keep_warm_budget is 0"


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
