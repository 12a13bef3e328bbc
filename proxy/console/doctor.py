"""What `narrows serve` would do with these settings, looked at part by part.

Laws
  Nothing is changed, but that a store is made where there is none, as `serve` would. No key and no password is shown.
"""

import asyncio
import os
import platform
import socket
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import typer

from policies.money.catalog import prices_for
from proxy.config import ConfigurationError, Settings, load_settings
from proxy.console.arguments import (
    AsJson,
    ServedAnthropic,
    ServedConfig,
    ServedPreset,
    ServedStore,
    ServedUpstream,
    flags,
)
from proxy.console.output import console, print_json
from proxy.console.upstreams import Finding, check_upstream, upstreams_of
from proxy.memory import StoreTrouble, open_store, public_url

_LIBRARIES = ("aiohttp", "openai", "anthropic", "pydantic", "redis", "tiktoken")
_MOST_MODELS = 500
"""How many prices are looked up."""
_PATIENCE = 5.0
"""Seconds that the store has for an answer."""


async def examine(flags: Mapping[str, Any], environment: Mapping[str, str]) -> list[Finding]:
    """All checks; where the settings cannot be read, there is nothing else to check."""
    findings = [_versions()]
    try:
        settings = load_settings(flags)
    except ConfigurationError as error:
        return [*findings, *(Finding("fail", "settings", line) for line in str(error).splitlines())]
    findings += [_settings(settings), _port(settings)]
    models: list[str] | None = None
    upstreams = upstreams_of(settings)
    if not settings.upstream_rows:
        text = "`upstream` is not set; say where requests go, for example --upstream https://api.openai.com/v1"
        findings.append(Finding("fail", "upstream", text))
    for row, key_name in upstreams.values():
        try:
            check = await check_upstream(settings, row, key_name, environment)
        except ConfigurationError as error:
            findings.append(Finding("fail", "upstream", str(error)))
            continue
        findings += check.findings
        models = models if check.models is None else [*(models or ()), *check.models]
    return [*findings, await _store(settings), _marks(settings, models)]


def _versions() -> Finding:
    libraries = ", ".join(f"{name} {version(name)}" for name in _LIBRARIES)
    python = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    return Finding("ok", "versions", f"Narrows {version('narrows')}, {python}; {libraries}")


def _settings(settings: Settings) -> Finding:
    source = f" (with {settings.config})" if settings.config else ""
    if settings.only_relays:
        return Finding("warn", "settings", f"valid{source}, but mode is off: nothing is shortened; set it to on")
    summaries = "summaries on" if settings.summaries else "summaries off"
    return Finding("ok", "settings", f"valid{source}: preset {settings.preset}, mode {settings.mode}, {summaries}")


def _port(settings: Settings) -> Finding:
    where = f"{settings.host}:{settings.port}"
    try:
        for family, _, _, _, address in socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM):
            socket.create_server((address[0], settings.port), family=family).close()
    except OSError as error:
        text = f"cannot listen on {where} ({error.strerror}); does a Narrows run there? Else choose another --port"
        return Finding("warn", "port", text)
    return Finding("ok", "port", f"{where} is free")


async def _store(settings: Settings) -> Finding:
    name = public_url(settings.store)
    if settings.only_relays:
        return Finding("ok", "store", "not used, as mode is off")
    try:
        store = open_store(settings.store, patience=_PATIENCE, keyring=settings.keyring)
    except ValueError as error:
        return Finding("fail", "store", str(error))
    try:
        await store.open()
        await store.secret("tenant")  # as `serve` does first
        is_ready = await store.ready()
    except StoreTrouble as error:
        return Finding("fail", "store", str(error))
    finally:
        await store.close()
    if not is_ready:
        return Finding(
            "fail", "store", f"{name} opens, but cannot be written; check the free space and the permissions"
        )
    return Finding("ok", "store", f"{name} can be opened, written and read")


def _marks(settings: Settings, models: Sequence[str] | None) -> Finding:
    """For which models cache marks are set; `models` is None where no upstream has listed any."""
    if settings.own_marks != "auto" or settings.only_relays:
        how = "beside those of clients only" if settings.own_marks == "beside" else "never"
        return Finding("ok", "marks", f"cache marks are set {'never' if settings.only_relays else how}")
    if models is None:
        return Finding(
            "ok", "marks", "cache marks are set where a model's cache matches only at marks, as Claude's does"
        )
    taking = list(_with_marks(models[:_MOST_MODELS], settings))
    if not taking:
        return Finding(
            "ok", "marks", "cache marks are set for none of the upstream's models; none is known to need them"
        )
    text = f"cache marks are set for {len(taking):,} of the upstream's models, such as {taking[0]}"
    return Finding("ok", "marks", text)


def _with_marks(models: Sequence[str], settings: Settings) -> Iterator[str]:
    for model in models:
        try:
            if prices_for(model, settings.models).breakpoints:
                yield model
        except ValueError:  # an override that `serve` would refuse, too
            continue


def doctor(
    upstream: ServedUpstream = "",
    anthropic_upstream: ServedAnthropic = "",
    preset: ServedPreset = "",
    config: ServedConfig = None,
    store: ServedStore = "",
    as_json: AsJson = False,
) -> None:
    """Check what `narrows serve` would do with these settings.

    Settings, upstreams, keys, the store, the clock, cache marks, versions: each is ok, a warning or a failure, with
    what to do. Each upstream is asked for its models, with the key in OPENAI_API_KEY or ANTHROPIC_API_KEY; that costs
    nothing. Exit code 1 where something fails.
    """
    values = flags(upstream=upstream, anthropic_upstream=anthropic_upstream, preset=preset, config=config, store=store)
    findings = asyncio.run(examine(values, os.environ))
    if as_json:
        print_json([{"status": each.status, "about": each.about, "text": each.text} for each in findings])
    else:
        for each in findings:
            console().print(f"{each.status:4}  {each.about:9} {each.text}", soft_wrap=True)
    raise typer.Exit(int(any(each.status == "fail" for each in findings)))
