"""What `narrows serve` says to people: the greeting once everything listens, and what the day came to at the end."""

import os
import select
import sys
import time
from collections.abc import Mapping
from functools import partial
from shlex import quote
from textwrap import wrap
from urllib.parse import urlsplit

from policies.dialects import DIALECTS
from policies.presets import WritingOptions
from policies.rules.summarize import Summarize
from proxy.config import Mode, Settings, SummarizerSettings
from proxy.config.clients import CLIENTS, DEFAULT_ADDRESS
from proxy.config.groups.summaries import SAME
from proxy.config.upstreams import is_public, spoken_at
from proxy.drawing.figures import bill_in_words
from proxy.memory import open_store, public_url
from proxy.usage.report import UsageQuery, read_usage

_COLUMNS, _INDENT = 80, " " * 13
_PATIENCE = 1.0
"""Seconds that printing may wait for whoever reads it."""
_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 - nothing is bound here
_MODES: Mapping[Mode, str] = {
    "on": "",
    "observe": "observe: requests pass untouched, and what would be saved is reported",
    "off": "off: every request passes untouched",
}


def greeting(settings: Settings, base_url: str) -> str:
    """What is printed once everything listens, for 80 columns: lines to paste, and what is done with requests."""
    bind = urlsplit(base_url)
    everywhere = bind.hostname in _WILDCARDS
    address = f"http://127.0.0.1:{bind.port}" if everywhere else base_url.removesuffix("/v1")
    lines = [f"Narrows is up at {address}/v1", "Paste this into the shell where your client starts:", ""]
    apis = {api for row in settings.upstream_rows for api in spoken_at(row)}
    for client in ("openai", "anthropic"):
        spoken = {api.label for api in DIALECTS.values() if api.provider == client}
        lines += [f"  {line}" for line in CLIENTS[client].lines(address, {}) if apis & spoken]
    lines += [""] if lines[3:] else []
    url = "" if address == DEFAULT_ADDRESS else f" --url {quote(f'{address}/v1')}"
    rows = {
        "Codex": f'eval "$(narrows env codex{url})"' if "responses" in apis else "",
        "elsewhere": _elsewhere_greeting(settings, everywhere),
        "keys": _keys_greeting(settings),
        "page": "" if settings.only_relays else f"{address}/narrows/ shows what is saved",
        "upstream": _upstreams_greeting(settings),
        "mode": _MODES[settings.mode],
        "preset": "" if settings.only_relays else settings.preset,
        "summaries": _summaries_greeting(settings),
        "roles": _roles_greeting(settings),
        "store": "" if settings.only_relays else public_url(settings.store),
        "holdout": _holdout_greeting(settings),
        "recording": _recording_greeting(settings),
        "agreement": _shadows_greeting(settings),
    }
    row = partial(wrap, width=_COLUMNS, subsequent_indent=_INDENT, break_long_words=False, break_on_hyphens=False)
    for name, text in rows.items():
        lines += row(text, initial_indent=f"  {name}:".ljust(len(_INDENT)))
    return "\n".join(lines)


def _elsewhere_greeting(settings: Settings, everywhere: bool) -> str:
    """By which address others ask, where they can."""
    if not is_public(settings.host):
        return ""
    there = "this machine's name in place of 127.0.0.1" if everywhere else "this address"
    return f"other machines use {there}, or the address of the https front before it"


def _keys_greeting(settings: Settings) -> str:
    """What a client shows as its API key."""
    if settings.auth == "keys":
        return "clients show keys of this gateway as their API keys; `narrows keys` makes them"
    if settings.auth == "both":
        return "clients show their own API keys, or keys of this gateway"
    if any(row.has_key for row in settings.upstream_rows):
        return "clients here need none where the upstream has a key of the gateway's own"
    return "your clients' API keys stay as they are, and go on to the upstream"


def _upstreams_greeting(settings: Settings) -> str:
    """Where requests go."""
    if settings.upstreams:
        return ", ".join(f"{row.name} ({row.url})" for row in settings.upstream_rows)
    return " and ".join(dict.fromkeys(filter(None, map(settings.upstream_of, DIALECTS))))


def _holdout_greeting(settings: Settings) -> str:
    """How much is not compacted, so that what the rest saves is measured."""
    if not settings.holdout or settings.only_relays:
        return ""
    return f"{settings.holdout:.1%} of the conversations pass as their clients wrote them"


def _recording_greeting(settings: Settings) -> str:
    """What is recorded, where anything is."""
    if settings.record is None or settings.only_relays:
        return ""
    how = "sealed" if settings.encryption_key_env else "as plain text"
    return f"{settings.record_share:.0%} of the conversations are written to {settings.record}, {how}"


def _shadows_greeting(settings: Settings) -> str:
    """Who pays for shadow requests, where any are made."""
    if not settings.agree_share or settings.only_relays:
        return ""
    keys = " and ".join(filter(None, (settings.agree_key_env, settings.agree_anthropic_key_env)))
    how = f"with the key in {keys}, for at most ${settings.agree_budget:g} a day"
    return f"{settings.agree_share:.1%} of shortened requests are asked again {how}"


def _roles_greeting(settings: Settings) -> str:
    """What refuses the presets that send system text in the middle of a history, where one is chosen."""
    policies = [(name, policy) for name in _presets_of(settings) for policy in settings.all_presets()[name].policies]
    named = [name for name, policy in policies if isinstance(policy, Summarize) and policy.as_system]
    if not named or not settings.summaries:
        return ""
    where = "`as_system = false` puts them elsewhere"
    return f"{', '.join(named)}: summaries are system text; templates of Gemma, Mistral and Qwen refuse that; {where}"


def _presets_of(settings: Settings) -> list[str]:
    """The names of the presets that requests may get."""
    ruled = (rule.preset for rule in settings.rules if rule.preset)
    return list(dict.fromkeys((settings.preset, *ruled, *settings.request_presets)))


def _summaries_greeting(settings: Settings) -> str:
    """Which models would be asked for summaries, and who pays."""
    if not settings.summaries or "on" not in (settings.mode, *(rule.mode for rule in settings.rules)):
        return "no model is asked"
    presets, names = settings.all_presets(), _presets_of(settings)
    wanting = [each for each in map(presets.__getitem__, names) if each.summarizes or each.digests is not None]
    if not wanting:
        return f"no model is asked, as preset {' or '.join(names)} wants none"
    writers = (_writer(each, preset.writing, settings) for preset in wanting for each in settings.summarizers)
    return f"asked of {', then '.join(dict.fromkeys(writers))}; --no-summaries turns them off"


def _writer(entry: SummarizerSettings, writing: WritingOptions, settings: Settings) -> str:
    """The model of an entry of `summarizers`, where it is asked and with whose key."""
    names = dict.fromkeys((entry.model,) if entry.model else [name for _, name in writing.models])
    named = ["the model of each conversation" if name == SAME else name for name in names]
    model = " or ".join(named) or "the small sibling of each conversation's model (gpt-5.4 -> gpt-5.4-mini)"
    where = f" at {entry.base_url}" if entry.base_url else ""
    if not entry.key_env:
        keyed = [] if where else [row.name for row in settings.upstream_rows if row.has_key]
        ours = f"with the gateway's own key at {', '.join(keyed)}" if keyed else ""
        kind = "API key" if settings.summary_credential == "client-key" else "credential"
        theirs = f"with the client's own {kind}" if len(keyed) < len(settings.upstream_rows) else ""
        return ", ".join(filter(None, (f"{model}{where}", ours, f"else {theirs}" if ours and theirs else theirs)))
    is_spent = settings.summary_allow or not is_public(settings.host)
    return f"{model}{where}, with the key in {entry.key_env}{'' if is_spent else ' for nobody (see summary_allow)'}"


async def print_day(settings: Settings) -> None:
    """What today came to, of all who share the store, in two lines; nothing where nothing was billed. Raises
    StoreTrouble."""
    store = open_store(settings.store, keyring=settings.keyring)
    try:
        await store.open()
        report = await read_usage(store, UsageQuery.read("day", "1d", time.time()))
    finally:
        await store.close()
    sums = report.total.sums
    if sums.requests:
        first, second = bill_in_words(sums)
        command = f"narrows usage --config {settings.config}" if settings.config else "narrows usage"
        say(f"Today ({report.until}, UTC): {first}\n  {second}; `{command}` says more")


def say(text: str) -> None:
    """Print it. Serving goes on where that fails: a full disk, a closed pipe, a terminal that has not all letters."""
    if not _takes_text():
        return
    try:
        encoding = sys.stdout.encoding
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except OSError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - else its text is tried again at the end


def _takes_text() -> bool:
    """Whether printing does not hang: a pipe that nobody reads may be full, and a terminal be stopped by Ctrl-S."""
    try:
        return bool(select.select([], [sys.stdout], [], _PATIENCE)[1])
    except (OSError, ValueError):  # not a file of the system, or one that Windows cannot wait for
        return True
