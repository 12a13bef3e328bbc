"""What an upstream answers when it is asked for its models, and what that means for the settings.

Laws
  It is asked as `serve` would ask: with the same certificates, proxies and time limits. A key is sent, and never shown.
"""

import asyncio
import io
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Literal

from multidict import CIMultiDict
from yarl import URL

from policies.dialects import DEFAULT, DIALECTS
from proxy.config import Settings, UpstreamRow
from proxy.config.upstreams import is_public, key_in
from proxy.errors import ApiError
from proxy.telemetry import Telemetry
from proxy.upstreams.upstream import Upstream

Status = Literal["ok", "warn", "fail"]

_SECONDS = 15.0
"""For a whole answer."""
_MOST_BYTES = 8 * 2**20
_SKEW = 60.0
"""Seconds by which clocks may differ: both are rounded, and the answer takes its time."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `narrows doctor`. Nothing works with a failure; a warning may be meant."""

    status: Status
    about: str
    text: str


@dataclass(frozen=True, slots=True)
class ModelsAnswer:
    """An answer to the question for models."""

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


@dataclass(frozen=True, slots=True)
class UpstreamCheck:
    """What was found about an upstream, and the models that it has; None where it did not say."""

    findings: list[Finding]
    models: list[str] | None = None


def upstreams_of(settings: Settings) -> dict[str, tuple[UpstreamRow, str]]:
    """Each upstream by its URL, with the variable that holds its key, as a rule."""
    rows: dict[str, tuple[UpstreamRow, list[str]]] = {row.url: (row, []) for row in settings.upstreams}
    for dialect in DIALECTS:
        if row := settings.upstream_row_of(dialect):
            rows.setdefault(row.url, (row, []))[1].append(dialect)
    for row in settings.upstream_rows:  # one that all others stand before
        rows.setdefault(row.url, (row, []))
    return {base: (row, _variable(base, apis)) for base, (row, apis) in rows.items()}


def _variable(base: str, apis: Sequence[str]) -> str:
    """The variable that holds the key of an upstream for these APIs."""
    is_anthropic = {DIALECTS[api].provider for api in apis} == {"anthropic"}
    is_anthropic = is_anthropic or f".{URL(base).host}".endswith(".anthropic.com")
    return "ANTHROPIC_API_KEY" if is_anthropic else "OPENAI_API_KEY"


async def check_upstream(
    settings: Settings, row: UpstreamRow, key_name: str, environment: Mapping[str, str]
) -> UpstreamCheck:
    """Ask it once; once more with /v1 behind its address where it does not know the question."""
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
        return UpstreamCheck([Finding("fail", "upstream", error.message)])
    except TimeoutError:
        text = f"{base} did not answer within {_SECONDS:.0f} s; is a firewall or a proxy in between?"
        return UpstreamCheck([Finding("fail", "upstream", text)])
    finally:
        await upstream.close()
    findings = [_verdict(base, answer, has_v1, key_name if key else ""), *_plain(base), _key(key_name, key, answer)]
    return UpstreamCheck([*findings, *_clock(answer)], answer.models if answer.status == 200 else None)


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


def _verdict(base: str, answer: ModelsAnswer, has_v1: bool, key_name: str) -> Finding:
    """`key_name`: the variable whose key was sent; empty where none was."""
    status = answer.status
    if status == 200 and answer.models is not None:
        count, milliseconds = len(answer.models), 1000 * answer.seconds
        return Finding("ok", "upstream", f"{base} answers in {milliseconds:.0f} ms, and has {count:,} models")
    if status == 200:
        return Finding("warn", "upstream", f"{base} answers, but not as an API; its address usually ends in /v1")
    if status in (401, 403):
        if key_name:
            text = f"{base} refuses the key in {key_name} ({status}); is it valid, and of this provider?"
            return Finding("fail", "upstream", text)
        return Finding("ok", "upstream", f"{base} answers, and requires a key ({status})")
    if status == 404 and has_v1:
        return Finding("fail", "upstream", f"{base} is not the API, but {base}/v1 is; set `upstream` to that")
    if status == 404:
        text = f"{base} has no list of models (404); where chats end with 404 too, the path in `upstream` is wrong"
        return Finding("warn", "upstream", text)
    if 300 <= status < 400:
        return Finding("fail", "upstream", f"{base} redirects to another address ({status}); set `upstream` to that")
    if status == 429:
        return Finding(
            "warn", "upstream", f"{base} answers that there are too many requests (429); wait, or raise that limit"
        )
    text = (
        f"{base} answers with {status}; {'it is in trouble: try again later' if status >= 500 else 'ask its operator'}"
    )
    return Finding("warn", "upstream", text)


def _plain(base: str) -> Iterator[Finding]:
    url = URL(base)
    if url.scheme == "http" and is_public(url.host or ""):
        yield Finding("warn", "upstream", f"{base} is not https: whoever is in between reads keys and conversations")


def _key(name: str, key: str, answer: ModelsAnswer) -> Finding:
    if key:
        return Finding("ok", "key", f"{name} is set" + (", and accepted" if answer.status == 200 else ""))
    if answer.status == 200:
        return Finding("ok", "key", f"{name} is not set, and not needed for the list of models")
    return Finding("warn", "key", f"{name} is not set here, so no key was checked; each client brings its own")


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
