"""What a client is: how it is installed, what it runs, and how its tools are called."""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kit.paths import ROOT

Json = dict[str, Any]

CACHE = ROOT / ".clients"
"""Where the clients are installed, each in an environment of its own."""
SCRIPTS = Path(__file__).with_name("scripts")
KEY = "AGENT_KEY"
CREDENTIAL = f"sk-{'0123456789abcdef' * 3}"
"""The key of all clients; LiteLLM refuses a weak one."""
NOWHERE = "http://127.0.0.1:9"
SECONDS = 240


def function(name: str, **arguments: str) -> Json:
    return {"type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def bash(command: str) -> Json:
    """The one tool of every script in scripts/."""
    return function("bash", command=command)


def write(path: str, text: str) -> Json:
    return bash(f"printf '%s\\n' {text} > {path}")


def nothing(_client: "Client", _home: Path, _base_url: str) -> Mapping[str, str]:
    """A client that needs no configuration but what all are given."""
    return {}


@dataclass(frozen=True, slots=True)
class Package:
    """Packages of PyPI in a virtual environment of this name, or of npm beside all others."""

    index: str
    """pypi or npm."""
    names: Sequence[str]
    """What is installed; the version of the first one is reported."""
    unaccepted: str = ""
    """Whose terms a person has to accept first: it is never installed without."""

    @property
    def environment(self) -> Path:
        name = self.names[0].partition("[")[0]
        return CACHE / "venvs" / name if self.index == "pypi" else CACHE

    @property
    def programs(self) -> Path:
        return self.environment / ("bin" if self.index == "pypi" else "node_modules/.bin")


@dataclass(frozen=True, slots=True)
class Relay:
    """A gateway of others, before Narrows or behind it: a script that is given the address it asks, prints its own, and
    serves until it is ended."""

    package: Package
    script: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a client works."""

    home: Path
    work: Path
    base_url: str
    asked: str
    """The address that a gateway in front asks; else the same."""


@dataclass(frozen=True, slots=True)
class Client:
    """A client, and the API that it speaks here."""

    name: str
    dialect: str
    package: Package
    words: Sequence[str]
    """How it is called; the task follows. A script stands in scripts/."""
    again: Sequence[str] = ()
    """How it is called to go on with what it did last; empty where one call is given both tasks."""
    model: str = "gpt-5.4"
    streams: bool = True
    hides: bool = True
    """Whether its outputs travel as outputs of tools, so that one can be hidden."""
    continues: bool = True
    """Whether it can be asked for more when its task is done."""
    calls: bool = True
    """Whether it calls tools; one that does not edits a file by what the model writes."""
    configured: Callable[["Client", Path, str], Mapping[str, str]] = nothing
    """Writes its configuration into its home, for this base_url; its environment."""
    command: Callable[[str], Json] = bash
    """The call of its tool that runs a command, without an id."""
    write: Callable[[str, str], Json] = write
    """The call of its tool that writes a file, by path and text."""
    later: Sequence[Json] = ()
    """Calls of tools whose definitions are deferred, where those that it runs commands with may not be."""
    defers: bool = False
    """Whether definitions of tools are deferred; a script has many more of them then."""
    end: Callable[[str], Json] | None = None
    """The call that ends its work with a last sentence, where a sentence alone does not end it."""
    front: Relay | None = None
    behind: Relay | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """What it sends besides."""
    arrives: Mapping[str, str] = field(default_factory=dict)
    """What must arrive at Narrows through a gateway in front."""

    @property
    def label(self) -> str:
        return f"{self.name}, deferring" if self.defers else self.name

    async def run(self, words: Sequence[str], place: Place) -> tuple[int | None, str, str]:
        """Let it do a task: exit code, and what it printed; one that does not come to its end is killed."""
        environment = {
            **plain(place.home),
            "BASE_URL": place.base_url,
            "MODEL": self.model,
            "API": self.dialect,
            "STREAM": "1" if self.streams else "",
            "MANY_TOOLS": "1" if self.defers else "",
            "HEADERS": json.dumps({name: value.format(asked=place.asked) for name, value in self.headers.items()}),
            **self.configured(self, place.home, place.base_url),
        }
        return await run(self.package, words, place.work, environment)


def plain(home: Path) -> Mapping[str, str]:
    """An environment that leads nowhere but to this machine."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        KEY: CREDENTIAL,
        **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), NOWHERE),
        "NO_PROXY": "127.0.0.1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }


def command_of(package: Package, words: Sequence[str]) -> list[str]:
    """A program of a package by its path; Node.js finds packages only from beside them, so its scripts are copied."""
    program, *rest = words
    if program == "node":
        script = CACHE / rest[0]
        script.write_bytes((SCRIPTS / rest[0]).read_bytes())
        return ["node", str(script), *rest[1:]]
    if program == "python":
        rest = [str(SCRIPTS / rest[0]), *rest[1:]]
    return [str(package.programs / program), *rest]


async def run(
    package: Package, words: Sequence[str], work: Path, environment: Mapping[str, str]
) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        *command_of(package, words),
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
