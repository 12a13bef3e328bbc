"""`narrows doctor`: settings, port, upstreams and store, looked at one by one.

Laws
  Nothing is changed, but that a store is made where there is none, as `serve` would. No key and no password is shown.
  An upstream is asked as `serve` would ask: with the same certificates, proxies and time limits.
"""

import asyncio
import io
import json
import os
import platform
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import aclosing, closing
from datetime import UTC
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from typing import Any, Literal, NamedTuple

import typer
from multidict import CIMultiDict
from yarl import URL

from policies.dialects import DEFAULT, DIALECTS
from proxy.config import ConfigurationError, Settings, UpstreamRow, load_settings
from proxy.config.upstreams import is_public, key_in
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
from proxy.errors import ApiError
from proxy.memory import StoreTrouble, open_store, public_url
from proxy.telemetry import Telemetry
from proxy.upstreams.upstream import Upstream

Status = Literal["ok", "warn", "fail"]

_SECONDS = 15.0
"""For a whole answer."""
_MOST_BYTES = 8 * 2**20
_SKEW = 60.0
"""Seconds by which clocks may differ: both are rounded, and the answer takes its time."""


class Finding(NamedTuple):
    """One line of `narrows doctor`. Nothing works with a failure; a warning may be meant."""

    status: Status
    about: str
    text: str


class ModelsAnswer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes
    asked_at: float
    seconds: float

    @property
    def models(self) -> list[str] | None:
        """Their names; None where it is no list of models."""
        try:
            return [str(each["id"]) for each in json.loads(self.body)["data"]]
        except (ValueError, TypeError, KeyError):
            return None


_LIBRARIES = ("aiohttp", "openai", "anthropic", "pydantic", "redis", "tiktoken")
_PATIENCE = 5.0
"""Seconds that the store has for an answer."""


async def examine(flags: Mapping[str, Any], environment: Mapping[str, str]) -> list[Finding]:
    """All checks; where the settings cannot be read, there is nothing else to check."""
    libraries = ", ".join(f"{name} {version(name)}" for name in _LIBRARIES)
    python = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    findings = [Finding("ok", "versions", f"Narrows {version('narrows')}, {python}; {libraries}")]
    try:
        settings = load_settings(flags)
    except ConfigurationError as error:
        return [*findings, *(Finding("fail", "settings", line) for line in str(error).splitlines())]
    findings += [_settings(settings), _port(settings)]
    upstreams = upstreams_of(settings)
    if not settings.upstream_rows:
        text = "`upstream` is not set; say where requests go, for example --upstream https://api.openai.com/v1"
        findings.append(Finding("fail", "upstream", text))
    for row, key_name in upstreams.values():
        try:
            findings += await check_upstream(settings, row, key_name, environment)
        except ConfigurationError as error:
            findings.append(Finding("fail", "upstream", str(error)))
    return [*findings, await _store(settings)]


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
    if is_ready:
        return Finding("ok", "store", f"{name} can be opened, written and read")
    return Finding("fail", "store", f"{name} opens, but cannot be written; check the free space and the permissions")


# --- an upstream: what it answers when it is asked for its models ---


def upstreams_of(settings: Settings) -> dict[str, tuple[UpstreamRow, str]]:
    """Each upstream by its URL, with the variable that holds its key, as a rule."""
    rows: dict[str, tuple[UpstreamRow, list[str]]] = {row.url: (row, []) for row in settings.upstreams}
    for dialect in DIALECTS:
        if row := settings.upstream_row_of(dialect):
            rows.setdefault(row.url, (row, []))[1].append(dialect)
    for row in settings.upstream_rows:  # one that all others stand before
        rows.setdefault(row.url, (row, []))
    result = {}
    for base, (row, apis) in rows.items():
        is_anthropic = {DIALECTS[api].provider for api in apis} == {"anthropic"}
        is_anthropic = is_anthropic or f".{URL(base).host}".endswith(".anthropic.com")
        result[base] = row, "ANTHROPIC_API_KEY" if is_anthropic else "OPENAI_API_KEY"
    return result


async def check_upstream(
    settings: Settings, row: UpstreamRow, key_name: str, environment: Mapping[str, str]
) -> list[Finding]:
    """It is asked for its models, and again with /v1 behind its address where it does not know the question."""
    base, key = row.url, environment.get(key_name, "")
    if row.has_key:  # which the upstream's own header brings
        key, key_name = key_in(row), row.key_env or str(row.key_file)
    upstream = Upstream(settings, row, Telemetry("critical", "json", io.StringIO()))
    try:
        async with asyncio.timeout(_SECONDS):
            answer = await _ask(upstream, "/models", key_name, key)
            has_v1 = False
            if answer.status == 404 and not base.endswith("/v1"):
                has_v1 = (await _ask(upstream, "/v1/models", key_name, key)).status != 404
    except ApiError as error:
        return [Finding("fail", "upstream", error.message)]
    except TimeoutError:
        text = f"{base} did not answer within {_SECONDS:.0f} s; is a firewall or a proxy in between?"
        return [Finding("fail", "upstream", text)]
    finally:
        await upstream.close()
    findings, url = [Finding(*_verdict(base, answer, has_v1, key_name if key else ""))], URL(base)
    if url.scheme == "http" and is_public(url.host or ""):
        text = f"{base} is not https: whoever is in between reads keys and conversations"
        findings.append(Finding("warn", "upstream", text))
    is_listed = answer.status == 200
    if key:
        findings.append(Finding("ok", "key", f"{key_name} is set" + (", and accepted" if is_listed else "")))
    elif is_listed:
        findings.append(Finding("ok", "key", f"{key_name} is not set, and not needed for the list of models"))
    else:
        text = f"{key_name} is not set here, so no key was checked; each client brings its own"
        findings.append(Finding("warn", "key", text))
    return [*findings, *_clock(answer)]


async def _ask(upstream: Upstream, path: str, key_name: str, key: str) -> ModelsAnswer:
    headers = CIMultiDict({"Accept": "application/json", "User-Agent": "narrows-doctor"})
    apis = [api for api in DIALECTS.values() if api.http.key[0] == upstream.row.auth]
    apis += [api for api in DIALECTS.values() if key_name == f"{api.provider.upper()}_API_KEY"]
    http = next(iter(apis), DIALECTS[DEFAULT]).http
    headers.update(http.auth(key) if key else http.version)
    asked_at, began = time.time(), time.perf_counter()
    with closing(await upstream.send("GET", path, headers, None)) as reply:
        body = b""
        async with aclosing(reply.chunks()) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) > _MOST_BYTES:
                    break
        return ModelsAnswer(reply.status, reply.headers, body, asked_at, time.perf_counter() - began)


def _verdict(base: str, answer: ModelsAnswer, has_v1: bool, key_name: str) -> tuple[Status, str, str]:
    """A finding. `key_name`: the variable whose key was sent; empty where none was."""
    status, about = answer.status, "upstream"
    if status == 200 and answer.models is not None:
        count, milliseconds = len(answer.models), 1000 * answer.seconds
        return "ok", about, f"{base} answers in {milliseconds:.0f} ms, and has {count:,} models"
    if status == 200:
        return "warn", about, f"{base} answers, but not as an API; its address usually ends in /v1"
    if status in (401, 403) and key_name:
        return "fail", about, f"{base} refuses the key in {key_name} ({status}); is it valid, and of this provider?"
    if status in (401, 403):
        return "ok", about, f"{base} answers, and requires a key ({status})"
    if status == 404 and has_v1:
        return "fail", about, f"{base} is not the API, but {base}/v1 is; set `upstream` to that"
    if status == 404:
        text = f"{base} has no list of models (404); where chats end with 404 too, the path in `upstream` is wrong"
        return "warn", about, text
    if 300 <= status < 400:
        return "fail", about, f"{base} redirects to another address ({status}); set `upstream` to that"
    if status == 429:
        return "warn", about, f"{base} answers that there are too many requests (429); wait, or raise that limit"
    advice = "it is in trouble: try again later" if status >= 500 else "ask its operator"
    return "warn", about, f"{base} answers with {status}; {advice}"


def _clock(answer: ModelsAnswer) -> Iterator[Finding]:
    try:
        theirs = parsedate_to_datetime(answer.headers.get("Date", "")).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return  # it does not say
    ahead = answer.asked_at + answer.seconds / 2 - theirs
    if abs(ahead) <= _SKEW:
        yield Finding("ok", "clock", "agrees with the upstream's")
        return
    text = f"is {abs(ahead):,.0f} s {'ahead of' if ahead > 0 else 'behind'} the upstream's; set it (by NTP):"
    yield Finding("warn", "clock", f"{text} days of bills and expiry times depend on it")


def doctor(
    upstream: ServedUpstream = "",
    anthropic_upstream: ServedAnthropic = "",
    preset: ServedPreset = "",
    config: ServedConfig = None,
    store: ServedStore = "",
    as_json: AsJson = False,
) -> None:
    """Check what `narrows serve` would do with these settings.

    Settings, upstreams, keys, the store, the clock, versions: each is ok, a warning or a failure, with
    what to do. Each upstream is asked for its models, with the key in OPENAI_API_KEY or ANTHROPIC_API_KEY; that costs
    nothing. Exit code 1 where something fails.
    """
    values = flags(upstream=upstream, anthropic_upstream=anthropic_upstream, preset=preset, config=config, store=store)
    findings = asyncio.run(examine(values, os.environ))
    if as_json:
        print_json([each._asdict() for each in findings])
    else:
        for each in findings:
            console().print(f"{each.status:4}  {each.about:9} {each.text}", soft_wrap=True)
    raise typer.Exit(int(any(each.status == "fail" for each in findings)))
