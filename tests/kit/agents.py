"""Coding agents from npm, as `make clients-test` runs them: where each takes its base_url, and what its tools are.

Each has a home of its own, and whatever it asks for besides its model goes to a port at which nobody listens.
"""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kit.paths import ROOT

PROGRAMS = ROOT / ".clients" / "node_modules" / ".bin"
KEY = "AGENT_KEY"
NOWHERE = "http://127.0.0.1:9"
SECONDS = 300

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Agent:
    """A program, and the API that it speaks here."""

    program: str
    dialect: str
    model: str
    words: Sequence[str]
    """How it is called; the task follows."""
    again: Sequence[str]
    """How it is called to go on with what it did last."""
    configured: Callable[["Agent", Path, str], Mapping[str, str]]
    """Writes its configuration into its home, for this base_url; its environment."""
    shell: Callable[[str], Json]
    """The call of its tool that runs a command, without an id."""
    write: Callable[[str, str], Json]
    """The call of its tool that writes a file, by path and text."""

    @property
    def name(self) -> str:
        return f"{self.program} ({self.dialect})"

    async def run(self, words: Sequence[str], home: Path, work: Path, base_url: str) -> tuple[int | None, str, str]:
        """Let it do a task: exit code, and what it printed; one that does not come to its end is killed."""
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            KEY: "none",
            **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), NOWHERE),
            "NO_PROXY": "127.0.0.1",
            **self.configured(self, home, base_url),
        }
        process = await asyncio.create_subprocess_exec(
            *(str(PROGRAMS / self.program), *words),
            cwd=work,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # npm's programs start others
        )
        try:
            stdout, stderr = await asyncio.wait_for(process.communicate(), SECONDS)
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            stdout, stderr = await process.communicate()
        return process.returncode, stdout.decode("utf-8", "replace"), stderr.decode("utf-8", "replace")


def _function(name: str, **arguments: str) -> Json:
    return {"type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def _patch(path: str, text: str) -> str:
    """A new file, as OpenAI's models write it."""
    return "\n".join(("*** Begin Patch", f"*** Add File: {path}", f"+{text}", "*** End Patch", ""))


# --- Codex CLI: Responses only ---

ALWAYS = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
"""What it is told to run is only what this project's script says."""
CODEX = (("exec", *ALWAYS), ("exec", "resume", "--last", *ALWAYS))
CODEX_TOML = """
model = "{model}"
model_provider = "narrows"
check_for_update_on_startup = false

[model_providers.narrows]
name = "Narrows"
base_url = "{url}"
env_key = "{key}"
wire_api = "responses"

[analytics]
enabled = false
"""


def _codex(agent: Agent, home: Path, base_url: str) -> Mapping[str, str]:
    (home / "config.toml").write_text(CODEX_TOML.format(model=agent.model, url=base_url, key=KEY))
    return {"CODEX_HOME": str(home)}


def _by_custom_tool(path: str, text: str) -> Json:
    """Codex writes files by a tool whose input is no JSON."""
    return {"type": "custom", "custom": {"name": "apply_patch", "input": _patch(path, text)}}


# --- opencode: each API by another package, all of which it carries ---

OPENCODE = (("run",), ("run", "--continue"))
PACKAGES: Mapping[str, str] = {
    "openai_chat": "@ai-sdk/openai-compatible",
    "openai_responses": "@ai-sdk/openai",
    "anthropic_messages": "@ai-sdk/anthropic",
}
THINKING: Mapping[str, Json] = {
    "openai_chat": {},
    "openai_responses": {"options": {"reasoningEffort": "low", "include": ["reasoning.encrypted_content"]}},
    "anthropic_messages": {"options": {"thinking": {"type": "enabled", "budgetTokens": 1024}}},
}


def _opencode(agent: Agent, home: Path, base_url: str) -> Mapping[str, str]:
    model = {"name": agent.model, "reasoning": True, "limit": {"context": 200_000, "output": 8192}}
    provider = {
        "npm": PACKAGES[agent.dialect],
        "options": {"baseURL": base_url, "apiKey": "none"},
        "models": {agent.model: model | THINKING[agent.dialect]},
    }
    chosen = {
        "autoupdate": False,
        "share": "disabled",
        "enabled_providers": ["narrows"],
        "model": f"narrows/{agent.model}",
        "small_model": f"narrows/{agent.model}",
        "provider": {"narrows": provider},
    }
    (home / "opencode.json").write_text(json.dumps(chosen))
    switches = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS")
    folders = {f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in ("DATA", "CONFIG", "STATE", "CACHE")}
    off = dict.fromkeys((f"OPENCODE_DISABLE_{switch}" for switch in switches), "1")
    return {"OPENCODE_CONFIG": str(home / "opencode.json"), **folders, **off}


def _bash(command: str) -> Json:
    return _function("bash", command=command, description="Look.")


def _by_write(path: str, text: str) -> Json:
    return _function("write", filePath=path, content=f"{text}\n")


def _by_patch(path: str, text: str) -> Json:
    """opencode offers this in the place of its other tool to OpenAI's newer models."""
    return _function("apply_patch", patchText=_patch(path, text))


AGENTS = (
    Agent("opencode", "openai_chat", "gpt-4.1", *OPENCODE, _opencode, _bash, _by_write),
    Agent("opencode", "openai_responses", "gpt-5.5", *OPENCODE, _opencode, _bash, _by_patch),
    Agent("opencode", "anthropic_messages", "claude-sonnet-4-5", *OPENCODE, _opencode, _bash, _by_write),
    Agent(
        "codex",
        "openai_responses",
        "gpt-5.5",
        *CODEX,
        _codex,
        lambda command: _function("exec_command", cmd=command),
        _by_custom_tool,
    ),
)
