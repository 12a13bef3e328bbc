"""The setup by which each client asks Narrows: variables of the environment, and words of its command.

Laws
  Only the address is set: no key, and no model. What else a client was told stays.
  Clients of Anthropic's API add `/v1` themselves, all others are given it.
"""

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

Address = str
"""The address of a Narrows without `/v1`, such as http://127.0.0.1:8787."""
DEFAULT_ADDRESS: Address = "http://127.0.0.1:8787"
_OPENCODE = "OPENCODE_CONFIG_CONTENT"
_PROXIES = ("http_proxy", "all_proxy")
_ANTHROPICS_HOST = "api.anthropic.com"
_TOOL_SEARCH = "ENABLE_TOOL_SEARCH"


@dataclass(frozen=True, slots=True)
class ClientSetup:
    about: str
    variables: Callable[[Address, Mapping[str, str], str], Mapping[str, str]] = lambda *_: {}
    """The variables that it reads, given the environment in which it starts and the upstream of Anthropic's API."""
    command: str = ""
    """The name of a program that reads no variable for this."""
    words: Callable[[Address], Sequence[str]] = lambda _: ()
    """Its first arguments."""

    def lines(self, address: Address, environment: Mapping[str, str], anthropic: str = "") -> Iterator[str]:
        """The lines to paste into a shell. `anthropic`: the upstream of Anthropic's API."""
        for name, value in self.variables(address, environment, anthropic).items():
            yield f"export {name}={shlex.quote(value)}"
        if self.command:
            yield shlex.join((self.command, *self.words(address)))


def _sets(variable: str, path: str = "/v1") -> Callable[[Address, Mapping[str, str], str], Mapping[str, str]]:
    return lambda address, *_: {variable: address + path}


def _claude_code(address: Address, environment: Mapping[str, str], anthropic: str) -> Mapping[str, str]:
    """At a host that is not Anthropic's, Claude Code (from 2.1.70) sends all definitions of tools instead of searching
    them. Narrows passes the search on; whether another upstream knows it, nobody can tell from here."""
    is_known = urlsplit(anthropic).hostname == _ANTHROPICS_HOST and _TOOL_SEARCH not in environment
    return {"ANTHROPIC_BASE_URL": address, **({_TOOL_SEARCH: "true"} if is_known else {})}


def _codex(address: Address) -> Sequence[str]:
    """Codex reads no variable for this, and its own provider asks by websocket: another provider is defined."""
    values = {
        "name": "Narrows",
        "base_url": f"{address}/v1",
        "env_key": "OPENAI_API_KEY",
        "wire_api": "responses",
        "supports_websockets": False,
    }
    table = ",".join(f"{name}={json.dumps(value)}" for name, value in values.items())
    return ("-c", "model_provider=narrows", "-c", f"model_providers.narrows={{{table}}}")


def _opencode(address: Address, environment: Mapping[str, str], _: str) -> Mapping[str, str]:
    """opencode merges this variable over its files. Nothing is set where it holds something that cannot be read."""
    try:
        config: Any = json.loads(environment.get(_OPENCODE) or "{}")
        for provider in ("openai", "anthropic"):
            options = config.setdefault("provider", {}).setdefault(provider, {}).setdefault("options", {})
            options["baseURL"] = f"{address}/v1"
    except (ValueError, AttributeError, TypeError):
        return {}
    return {_OPENCODE: json.dumps(config, separators=(",", ":"))}


CLIENTS: Mapping[str, ClientSetup] = {
    "openai": ClientSetup("OpenAI's SDKs, and what is built on them", _sets("OPENAI_BASE_URL")),
    "anthropic": ClientSetup("Anthropic's SDKs, and what is built on them", _sets("ANTHROPIC_BASE_URL", "")),
    "claude-code": ClientSetup("Claude Code", _claude_code),
    "codex": ClientSetup("Codex CLI", command="codex", words=_codex),
    "opencode": ClientSetup("opencode, for its providers openai and anthropic", _opencode),
    "aider": ClientSetup("aider, with models named openai/...", _sets("OPENAI_API_BASE")),
    "langchain": ClientSetup("LangChain's ChatOpenAI", _sets("OPENAI_API_BASE")),
    "litellm": ClientSetup("LiteLLM's SDK, with models named openai/...", _sets("OPENAI_API_BASE")),
}


def environment_for(address: Address, environment: Mapping[str, str], anthropic: str = "") -> dict[str, str]:
    """The environment of a command that is to ask Narrows, whatever client it is. `anthropic`: as for `lines`."""
    result = dict(environment)
    for client in CLIENTS.values():
        result |= client.variables(address, environment, anthropic)
    if any(environment.get(name) or environment.get(name.upper()) for name in _PROXIES):
        for name in ("no_proxy", "NO_PROXY"):  # else they would ask that proxy for this machine
            result[name] = ",".join(filter(None, (environment.get(name, ""), "127.0.0.1")))
    return result


def words_for(address: Address, command: Sequence[str]) -> list[str]:
    program = Path(command[0]).name
    added = [word for each in CLIENTS.values() if each.command == program for word in each.words(address)]
    return [command[0], *added, *command[1:]]
