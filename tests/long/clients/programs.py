"""Programs with a configuration of their own: where each takes its base_url, and what its tools are.

Each has a home of its own, and whatever it asks for besides its model goes to a port at which nobody listens.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.long.clients.client import CREDENTIAL, KEY, SCRIPTS, Client, Json, function


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


def codex(client: Client, home: Path, base_url: str) -> Mapping[str, str]:
    (home / "config.toml").write_text(CODEX_TOML.format(model=client.model, url=base_url, key=KEY))
    return {"CODEX_HOME": str(home)}


def by_custom_tool(path: str, text: str) -> Json:
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


def opencode(client: Client, home: Path, base_url: str) -> Mapping[str, str]:
    model = {"name": client.model, "reasoning": True, "limit": {"context": 200_000, "output": 8192}}
    provider = {
        "npm": PACKAGES[client.dialect],
        "options": {"baseURL": base_url, "apiKey": CREDENTIAL},
        "models": {client.model: model | THINKING[client.dialect]},
    }
    chosen: Json = {
        "autoupdate": False,
        "share": "disabled",
        "enabled_providers": ["narrows"],
        "model": f"narrows/{client.model}",
        "small_model": f"narrows/{client.model}",
        "provider": {"narrows": provider},
    }
    if client.defers:
        server = {"type": "local", "command": [sys.executable, str(SCRIPTS / "many_tools.py")], "timeout": 30_000}
        chosen["mcp"] = {"many": server}
    (home / "opencode.json").write_text(json.dumps(chosen))
    switches = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS")
    folders = {f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in ("DATA", "CONFIG", "STATE", "CACHE")}
    off = dict.fromkeys((f"OPENCODE_DISABLE_{switch}" for switch in switches), "1")
    return {"OPENCODE_CONFIG": str(home / "opencode.json"), **folders, **off}


def of_server(prefix: str = "") -> Json:
    """A call of one of the tools of another server, whose names may have a prefix."""
    return function(f"{prefix}archive_issue", identifier="7", reason="It is old.")


def opencode_bash(command: str) -> Json:
    return function("bash", command=command, description="Look.")


def by_write(path: str, text: str) -> Json:
    return function("write", filePath=path, content=f"{text}\n")


def by_patch(path: str, text: str) -> Json:
    """opencode offers this in the place of its other tool to OpenAI's newer models."""
    return function("apply_patch", patchText=_patch(path, text))


# --- llm: a command whose tools are Python functions ---

LLM_MODELS = """
- model_id: narrows
  model_name: {model}
  api_base: {url}
  api_key_name: narrows
  supports_tools: true
"""
LLM_TOOL = """
import subprocess
def bash(command: str) -> str:
    "Run a command."
    return subprocess.run(command, shell=True, capture_output=True, text=True).stdout
"""


def llm(client: Client, home: Path, base_url: str) -> Mapping[str, str]:
    (home / "extra-openai-models.yaml").write_text(LLM_MODELS.format(model=client.model, url=base_url))
    (home / "keys.json").write_text(json.dumps({"narrows": CREDENTIAL}))
    return {"LLM_USER_PATH": str(home)}


# --- mini-swe-agent: LiteLLM below, and a command that ends its work ---


def mini(client: Client, home: Path, base_url: str) -> Mapping[str, str]:
    return {
        "MSWEA_GLOBAL_CONFIG_DIR": str(home),
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_SILENT_STARTUP": "1",
        "OPENAI_API_BASE": base_url,
        "OPENAI_API_KEY": CREDENTIAL,
    }


def submitted(text: str) -> Json:
    return function("bash", command=f"echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo '{text}'")


# --- smolagents: a tool of its own ends the work ---


def final_answer(text: str) -> Json:
    return function("final_answer", answer=text)


# --- Claude Code: only where a person has installed it, and so accepted its terms ---


def claude_code(client: Client, home: Path, base_url: str) -> Mapping[str, str]:
    return {
        "ANTHROPIC_BASE_URL": base_url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": CREDENTIAL,
        "ANTHROPIC_MODEL": client.model,
        "CLAUDE_CONFIG_DIR": str(home),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "IS_SANDBOX": "1",
    }


def claude_bash(command: str) -> Json:
    return function("Bash", command=command, description="Look.")


def claude_write(path: str, text: str) -> Json:
    return function("Write", file_path=path, content=f"{text}\n")
