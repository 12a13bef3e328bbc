"""What `narrows serve` says at its start: lines that can be pasted, and nothing that is not so."""

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest

from proxy.config import Settings
from proxy.config.clients import CLIENTS
from proxy.console.serve import greeting, say

ADDRESS = "http://127.0.0.1:8787"
OPENAI, CLAUDE = "https://api.openai.com/v1", "https://api.anthropic.com"
ROWS = [
    {"name": f"gpu{at}", "url": f"http://gpu{at}.example:8000/v1", "apis": ["chat"], "models": [f"m{at}"]}
    for at in range(4)
]


def lines(base_url: str = f"{ADDRESS}/v1", **settings: Any) -> list[str]:
    return greeting(Settings(**settings), base_url).splitlines()


def exports(text: list[str]) -> dict[str, str]:
    """What a shell makes of the lines to paste."""
    script = "\n".join([*(line for line in text if line.startswith("  export ")), "env"])
    out = subprocess.run(["sh", "-c", script], env={}, capture_output=True, text=True, check=True).stdout
    return {name: value for name, _, value in (line.partition("=") for line in out.splitlines()) if "BASE_URL" in name}


@pytest.mark.parametrize(
    ("settings", "names", "has_codex"),
    [
        ({"upstream": OPENAI}, {"OPENAI_BASE_URL"}, True),
        ({"anthropic_upstream": CLAUDE}, {"ANTHROPIC_BASE_URL"}, False),
        ({"upstream": f"{CLAUDE}/v1"}, {"OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"}, False),
        ({"upstream": OPENAI, "anthropic_upstream": CLAUDE}, {"OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"}, True),
        ({"upstream": "http://127.0.0.1:11434/v1"}, {"OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"}, True),
        ({"upstreams": ROWS}, {"OPENAI_BASE_URL"}, False),
    ],
)
def test_what_is_pasted_is_what_an_upstream_speaks(
    settings: Mapping[str, Any], names: set[str], has_codex: bool
) -> None:
    text = lines(**settings)
    addresses = {"OPENAI_BASE_URL": f"{ADDRESS}/v1", "ANTHROPIC_BASE_URL": ADDRESS}
    assert exports(text) == {name: addresses[name] for name in names}
    assert any('eval "$(narrows env codex)"' in line for line in text) == has_codex


def test_another_address_stands_in_every_line() -> None:
    text = lines("http://[::1]:9000/v1", upstream="http://u/v1", host="::1")
    assert exports(text) == {"OPENAI_BASE_URL": "http://[::1]:9000/v1", "ANTHROPIC_BASE_URL": "http://[::1]:9000"}
    assert """narrows env codex --url 'http://[::1]:9000/v1')""" in "\n".join(text)
    assert "  page:      http://[::1]:9000/narrows/ shows what is saved" in text


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])  # noqa: S104 - nothing listens
def test_an_address_for_all_is_no_address_to_ask(host: str) -> None:
    text = lines(f"http://{f'[{host}]' if ':' in host else host}:8787/v1", upstream=OPENAI, host=host, auth="keys")
    assert exports(text) == {"OPENAI_BASE_URL": f"{ADDRESS}/v1"}
    whole = " ".join(" ".join(text).split())
    assert "elsewhere: other machines use this machine's name in place of 127.0.0.1, or the address of the" in whole
    assert "keys: clients show keys of this gateway as their API keys; `narrows keys` makes them" in whole


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"auth": "both"}, "keys: clients show their own API keys, or keys of this gateway"),
        ({}, "keys: your clients' API keys stay as they are, and go on to the upstream"),
        ({"mode": "observe"}, "mode: observe: requests pass untouched, and what would be saved is reported"),
        ({"mode": "off"}, "mode: off: every request passes untouched"),
        ({"host": "192.0.2.7"}, "elsewhere: other machines use this address, or the address of the https front"),
        ({"preset": "rolling"}, "preset: rolling"),
        (
            {"preset": "chat"},
            "roles: chat: summaries are system text; templates of Gemma, Mistral and Qwen refuse that",
        ),
        ({"upstreams": ROWS}, "gpu3 (http://gpu3.example:8000/v1), default (http://u/v1)"),
    ],
)
def test_what_is_done_is_said(settings: Mapping[str, Any], words: str) -> None:
    text = lines(upstream="http://u/v1", store="sqlite://", **settings)
    assert words in " ".join(" ".join(text).split())
    assert max(map(len, text)) <= 80


def test_a_key_of_the_gateways_own_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_OF_OURS", "sk-secret")
    row = {"name": "ours", "url": "http://u/v1", "auth": "bearer", "key_env": "KEY_OF_OURS"}
    text = " ".join(" ".join(lines(upstreams=[row])).split())
    assert "clients here need none where the upstream has a key of the gateway's own" in text
    assert "sk-secret" not in text


def test_the_line_for_codex_is_a_command_that_there_is() -> None:
    assert "codex" in CLIENTS
    assert next(CLIENTS["codex"].lines(ADDRESS, {})).startswith("codex -c model_provider=narrows ")


def test_a_full_pipe_that_nobody_reads_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.console.serve._PATIENCE", 0.01)
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    with suppress(BlockingIOError):
        while os.write(writes, b"x" * 65_536):
            pass
    os.set_blocking(writes, True)
    with os.fdopen(reads), os.fdopen(writes, "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        say("hello")
        monkeypatch.undo()
