"""`narrows run` and `narrows env`: what a command is told, what reaches it, and what is said at its end."""

import asyncio
import json
import os
import re
import stat
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from policies.money.catalog import prices_for
from proxy.config.clients import CLIENTS, environment_for, words_for
from proxy.console.env import settings_for_clients
from proxy.lab.provider import Provider, start
from tests.console.test_cli import told
from tests.kit.paths import ROOT

NARROWS = (sys.executable, "-m", "proxy.console.cli")
AGENT = """
import sys, openai
print(sys.argv[1:], sys.stdin.read(), flush=True)
with openai.OpenAI(api_key="sk-1", max_retries=0) as client:
    for question in ("one", "two"):
        client.chat.completions.create(model="gpt-5.4", messages=[{"role": "user", "content": question}])
print("done", file=sys.stderr)
sys.exit(7)
"""
PATIENT = """
import os, sys, time, urllib.request
try:
    print("terminal" if os.isatty(0) and os.isatty(2) else "no terminal", "ready", flush=True)
    time.sleep(30)
except KeyboardInterrupt:
    with urllib.request.urlopen(os.environ["OPENAI_BASE_URL"] + "/models") as reply:
        print("interrupted, and still served:", reply.status, flush=True)
    sys.exit(5)
"""
IN_A_TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"


def read_private(log: Path) -> str:
    """The event of the log's first line. It is deleted."""
    try:
        assert stat.S_IMODE(log.stat().st_mode) == 0o600
        event: str = json.loads(log.read_text().splitlines()[0])["event"]
        return event
    finally:
        log.unlink()


async def program(*words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


async def test_an_agent_runs_behind_a_narrows_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    provider = Provider(prices=prices_for, count=len)
    async with await start(provider) as running:
        (tmp_path / "narrows.toml").write_text('auth = "keys"')  # of the gateway, and not of this one
        options = ("--upstream", running.url, "--store", f"sqlite:///{tmp_path}/narrows.db")
        options += ("--config", str(tmp_path / "narrows.toml"))
        command = (sys.executable, str(tmp_path / "agent.py"), "--upstream", "its own")
        process = await program(*NARROWS, "run", *options, "--", *command)
        out, err = await process.communicate(b"from stdin")
    assert process.returncode == 7
    assert out.decode() == "['--upstream', 'its own'] from stdin\n"
    done, first, second = err.decode().splitlines()
    assert done == "done"
    assert re.fullmatch(r"narrows: 2 requests, \d+ prompt tokens received, \d+ sent; paid \$\S+", first)
    assert re.fullmatch(
        r"  by an estimate .* without Narrows \(\$\S+\): the prompts got no shorter, as in most short sessions", second
    )
    assert [received.path for received in provider.requests] == ["/v1/chat/completions"] * 2
    assert (tmp_path / "narrows.db").exists()


async def test_ctrl_c_is_the_commands_and_narrows_goes_on(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(PATIENT)
    async with await start(Provider(prices=prices_for, count=len)) as running:
        run = (*NARROWS, "run", "--upstream", running.url, "--", sys.executable, str(tmp_path / "agent.py"))
        process = await program(sys.executable, "-c", IN_A_TERMINAL, *run)
        assert process.stdin is not None
        assert process.stdout is not None
        assert (await process.stdout.readline()).strip() == b"terminal ready"
        process.stdin.write(b"\x03")
        out = (await process.stdout.read()).decode()
        code = await process.wait()
    assert code == 5
    assert out.split("\r\n") == ["^Cinterrupted, and still served: 200", ""]  # and nothing of ours: nothing was billed


async def test_a_command_that_a_signal_ends_and_one_that_warns() -> None:
    """SIGTERM reaches the command; a trouble of ours is in the file that the last line names."""
    script = "kill -TERM $PPID; exec sleep 30"
    process = await program(*NARROWS, "run", "--store", "redis://127.0.0.1:1", "--", "sh", "-c", script)
    out, err = await process.communicate()
    assert (process.returncode, out) == (128 + 15, b"")
    found = re.fullmatch(r"narrows: there were warnings; they are in (/\S+\.log)\n", err.decode())
    assert found
    assert await asyncio.to_thread(read_private, Path(found[1])) == "store_unavailable"


@pytest.mark.parametrize(
    ("name", "code", "sentence"),
    [
        ("no-such-command", 127, "there is no command no-such-command"),
        (".", 126, "it is a folder"),
        ("plain.txt", 126, "it is not executable"),
        ("broken", 126, "check its first line"),
    ],
)
def test_what_cannot_be_started_is_one_sentence(
    name: str, code: int, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plain.txt").write_text("words")
    (tmp_path / "broken").write_text("#!/no/such/interpreter\n")
    (tmp_path / "broken").chmod(0o755)
    word = name if code == 127 else str(tmp_path / name)
    status, out, err = told(capsys, "run", "--", word)
    assert (status, out, err.count("\n")) == (code, "", 1)
    assert sentence in err


ADDRESS = "http://127.0.0.1:4000"


def test_every_client_is_told_the_address_in_its_own_way() -> None:
    before = {"PATH": "/bin", "OPENCODE_CONFIG_CONTENT": '{"theme":"x","provider":{"openai":{"options":{"a":1}}}}'}
    environment = environment_for(ADDRESS, {**before, "HTTPS_PROXY": "", "ALL_PROXY": "http://p", "NO_PROXY": "a.b"})
    assert environment["OPENAI_BASE_URL"] == environment["OPENAI_API_BASE"] == f"{ADDRESS}/v1"
    assert environment["ANTHROPIC_BASE_URL"] == ADDRESS
    assert (environment["NO_PROXY"], environment["no_proxy"], environment["PATH"]) == (
        "a.b,127.0.0.1",
        "127.0.0.1",
        "/bin",
    )
    assert json.loads(environment["OPENCODE_CONFIG_CONTENT"]) == {
        "theme": "x",
        "provider": {
            "openai": {"options": {"a": 1, "baseURL": f"{ADDRESS}/v1"}},
            "anthropic": {"options": {"baseURL": f"{ADDRESS}/v1"}},
        },
    }
    assert "NO_PROXY" not in environment_for(ADDRESS, before)
    for strange in ("{// words\n}", "[]", '{"provider": 1}'):
        assert environment_for(ADDRESS, {"OPENCODE_CONFIG_CONTENT": strange})["OPENCODE_CONFIG_CONTENT"] == strange


def test_codex_is_told_by_options_before_its_own() -> None:
    assert words_for(ADDRESS, ["python", "codex"]) == ["python", "codex"]
    program, *words, last = words_for(ADDRESS, ["/usr/bin/codex", "exec"])
    assert (program, last, words[:3]) == ("/usr/bin/codex", "exec", ["-c", "model_provider=narrows", "-c"])
    name, _, table = words[3].partition("=")
    provider = tomllib.loads(f"{name} = {table}")["model_providers"]["narrows"]
    assert provider == {
        "name": "Narrows",
        "base_url": f"{ADDRESS}/v1",
        "env_key": "OPENAI_API_KEY",
        "wire_api": "responses",
        "supports_websockets": False,
    }


@pytest.mark.parametrize(
    ("settings", "before", "searches"),
    [
        ({}, {}, "true"),
        ({"NARROWS_ANTHROPIC_UPSTREAM": "https://api.anthropic.com"}, {}, "true"),
        ({}, {"ENABLE_TOOL_SEARCH": "auto:5"}, "auto:5"),
        ({"NARROWS_UPSTREAM": "https://gateway.example/v1"}, {}, None),
        ({"NARROWS_ANTHROPIC_UPSTREAM": "https://api.anthropic.com.example"}, {}, None),
        ({}, {"ANTHROPIC_BASE_URL": "https://gateway.example"}, None),
    ],
)
def test_claude_code_goes_on_searching_tools_where_anthropic_answers_and_the_person_has_not_decided(
    settings: Mapping[str, str],
    before: Mapping[str, str],
    searches: str | None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {**settings, **before}.items():
        monkeypatch.setenv(name, value)
    code, script, _ = told(capsys, "env", "claude-code")
    shell = [*("env", "-u", "ENABLE_TOOL_SEARCH"), *(f"{name}={value}" for name, value in before.items())]
    run = subprocess.run(
        [*shell, "sh", "-c", script + 'printf %s "${ENABLE_TOOL_SEARCH-none}"'], capture_output=True, check=True
    )
    assert (code, run.stdout.decode()) == (0, searches or "none")
    upstream = settings_for_clients({}, os.environ).upstream_of("anthropic_messages") or ""
    assert environment_for(ADDRESS, before, upstream).get("ENABLE_TOOL_SEARCH") == searches


@pytest.mark.parametrize(
    ("flags", "environment", "upstreams"),
    [
        ({}, {}, ("https://api.openai.com/v1", "https://api.anthropic.com/v1")),
        ({"upstream": "http://a/v1"}, {}, ("http://a/v1", "http://a/v1")),
        ({"upstream": "http://a/v1"}, {"ANTHROPIC_BASE_URL": "http://b"}, ("http://a/v1", "http://b/v1")),
        ({"anthropic_upstream": "http://c"}, {"OPENAI_BASE_URL": "http://d/v1"}, ("http://d/v1", "http://c/v1")),
    ],
)
def test_requests_go_where_the_settings_say_and_else_where_the_client_asks(
    flags: Mapping[str, str], environment: Mapping[str, str], upstreams: tuple[str, str]
) -> None:
    settings = settings_for_clients(flags, environment)
    assert (settings.upstream_of("openai_chat"), settings.upstream_of("anthropic_messages")) == upstreams


def test_the_lines_of_a_client_can_be_pasted_into_a_shell(capsys: pytest.CaptureFixture[str]) -> None:
    *listed, last = told(capsys, "env")[1].splitlines()
    assert "narrows env CLIENT" in last
    assert len(listed) == len(CLIENTS)
    for name in CLIENTS:
        code, out, _ = told(capsys, "env", name, "--url", "http://127.0.0.1:9/v1")
        assert (code, "http://127.0.0.1:9" in out) == (0, True)
        assert subprocess.run(["sh", "-n", "-c", out], check=True).returncode == 0
    script = told(capsys, "env", "opencode")[1] + 'printf %s "$OPENCODE_CONFIG_CONTENT"'
    exported = subprocess.run(["sh", "-c", script], capture_output=True, check=True).stdout
    assert json.loads(exported)["provider"]["openai"]["options"]["baseURL"] == "http://127.0.0.1:8787/v1"
    code, _, err = told(capsys, "env", "codx")
    assert (code, "did you mean codex?" in err) == (2, True)
