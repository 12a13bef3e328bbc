"""The whole program on loopback: Narrows before the strict built-in provider, on one SQLite file; and law 2's check.

`Stage.start` makes a Narrows (again: a restart, or a replica), `Stage.ask` sends a request through it and gives back
what the upstream then received. `moved` compares what was sent, request by request: it takes what a reply declares, and
looks at the bytes for all the rest.
"""

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from policies.dialects.openai_chat.request import TOOL
from policies.model.tokens import Counter
from policies.money.catalog import prices_for
from proxy.app import App
from proxy.config import Settings
from proxy.lab.provider import Provider, Running, start
from tests.kit.histories import TOOLS, Json
from tests.kit.spacing import indented

MODELS: dict[str, dict[str, Any]] = {
    "m": {"input": 1, "output": 1, "read": 0.5, "write": 1.0, "window": 100_000},
    "small": {"input": 1, "output": 1, "read": 0.5, "write": 1.0, "window": 3_000},
    "tiered": {"input": 1, "output": 1, "read": 0.5, "write": 1.0, "window": 100_000, "tiers": [[2_000, 2.0]]},
    "claude-marked": {"input": 1, "output": 1, "read": 0.1, "write": 1.25, "window": 100_000, "breakpoints": True},
}
"""Models at whose prices, and with the eager preset, short histories are compacted."""
_MARKS = ("cache_control", "prompt_cache_breakpoint")


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request through Narrows: what the client gave, what the upstream received, what came back."""

    given: bytes
    sent: bytes
    status: int
    headers: Mapping[str, str]
    reply: bytes

    @property
    def mode(self) -> str:
        return self.headers["x-narrows-mode"]

    @property
    def prefix(self) -> str:
        return self.headers["x-narrows-prefix"]

    @property
    def messages(self) -> list[Json]:
        """The messages that were sent."""
        messages: list[Json] = json.loads(self.sent)["messages"]
        return messages

    @property
    def text(self) -> str:
        """All messages that were sent, as one text."""
        return json.dumps(self.messages, ensure_ascii=False)

    @property
    def own(self) -> bytes:
        """What was sent but for the recall tool: below every threshold it is what the client gave."""
        return unaided(self.sent)


@dataclass(slots=True)
class Stage:
    """The provider, and every Narrows that was started before it."""

    provider: Provider
    upstream: str
    path: Path
    client: aiohttp.ClientSession
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    clock: Callable[[], float] = time.time
    """The clock of every Narrows that is started from now on."""

    async def start(self, **settings: Any) -> App:
        """A Narrows with the eager preset, on the one store of the stage. A setting that is None has its default."""
        chosen = {
            "upstream": self.upstream,
            "port": 0,
            "store": f"sqlite:///{self.path}",
            "log_level": "error",
            "preset": "eager",
            "floor": 0,
            "models": MODELS,
            **settings,
        }
        explicit = {name: value for name, value in chosen.items() if value is not None}
        return await self.stack.enter_async_context(await App.start(Settings(**explicit), clock=self.clock))

    async def ask(self, app: App, messages: Sequence[Any], *headers: tuple[str, str], **fields: Any) -> Exchange:
        """Send these messages as a client with its own spacing would."""
        return await self.post(app, body_of(messages, **fields), *headers)

    async def post(self, app: App, body: bytes, *headers: tuple[str, str]) -> Exchange:
        """Send these bytes."""
        url = f"{app.base_url}/chat/completions"
        head = {"Content-Type": "application/json", "Authorization": "Bearer k", **dict(headers)}
        async with self.client.post(url, data=body, headers=head) as reply:
            text = await reply.read()
            return Exchange(body, self.provider.requests[-1].body, reply.status, dict(reply.headers), text)

    async def grow(self, app: App, session: Sequence[Json], *headers: tuple[str, str], **fields: Any) -> list[Exchange]:
        """Every request of a session, in its order."""
        return [await self.ask(app, session[:end], *headers, **fields) for end in ends(session)]


def ends(session: Sequence[Json]) -> list[int]:
    """How many messages each request of a session holds."""
    return [i for i, message in enumerate(session) if message["role"] == "assistant"]


def body_of(
    messages: Sequence[Any], compact: bool = False, tools: Sequence[Json] | None = TOOLS, **fields: Any
) -> bytes:
    """A request, spaced like nobody's library does. `tools` None: it brings none."""
    brought = {} if tools is None else {"tools": tools}
    body = {"messages": messages, "model": "m", **brought, **fields}
    if compact:
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    return indented(body, " ,", ":  ")


@asynccontextmanager
async def staged(path: Path, models: Mapping[str, Json] = MODELS, **provider: Any) -> AsyncIterator[Stage]:
    """A stage whose store is the file `path`. `models`: as the provider has them."""
    strict = Provider(lambda model: prices_for(model, models), Counter(), **provider)
    async with AsyncExitStack() as stack:
        running: Running = await stack.enter_async_context(await start(strict))
        client = await stack.enter_async_context(aiohttp.ClientSession())
        yield Stage(strict, running.url, path, client, stack)


class _Body(msgspec.Struct):
    messages: list[msgspec.Raw]
    tools: msgspec.Raw = msgspec.Raw()


def raws(body: bytes) -> list[bytes]:
    """The messages of a body, as they are written."""
    return [bytes(raw) for raw in msgspec.json.decode(body, type=_Body).messages]


def tools_of(body: bytes) -> bytes:
    """The tools of a body, as they are written."""
    return bytes(msgspec.json.decode(body, type=_Body).tools)


def unaided(body: bytes) -> bytes:
    """The body without the recall tool, whose bytes never vary: it is the last of the tools, once, or not there."""
    before, added, after = body.partition(b"," + TOOL)
    assert b"narrows_recall" not in before + after
    assert after.startswith(b"]") or not added
    assert not added or tools_of(body).endswith(added + b"]")
    return before + after


def _same(old: bytes, new: bytes) -> bool:
    """Byte for byte, but that cache marks are compared apart: a mark may come and go."""
    return old == new or (has_mark(old + new) and _unmarked(old) == _unmarked(new))


def has_mark(raw: bytes) -> bool:
    return any(f'"{mark}"'.encode() in raw for mark in _MARKS)


def unmarked_body(body: bytes) -> Json:
    """A request with its cache marks away."""
    request: Json = json.loads(body)
    return {**request, "messages": [_unmarked(json.dumps(message).encode()) for message in request["messages"]]}


def _unmarked(raw: bytes) -> Json:
    message: Json = json.loads(raw)
    if isinstance(message.get("content"), list):
        parts = [{k: v for k, v in part.items() if k not in _MARKS} for part in message["content"]]
        whole = len(parts) == 1 and parts[0].keys() == {"type", "text"}
        message["content"] = parts[0]["text"] if whole else parts
    return {k: v for k, v in message.items() if k not in _MARKS}


def moved(exchanges: Sequence[Exchange]) -> list[int]:
    """The requests that do not extend the one before, byte for byte, though the reply declares nothing (law 2, S2)."""
    return [i for i, (old, new) in enumerate(pairwise(exchanges), 1) if not _as_declared(old, new)]


def _as_declared(old: Exchange, new: Exchange) -> bool:
    if new.prefix.startswith("checkpoint:") or new.prefix == "client-changed":
        return True
    before, after = raws(old.sent), raws(new.sent)
    if tools_of(old.sent) != tools_of(new.sent):
        return False
    if new.prefix == "tail-cut":
        answers = [i for i, message in enumerate(json.loads(old.sent)["messages"]) if message["role"] == "assistant"]
        before = before[: answers[-1]]
    elif new.prefix != "extended":
        return False
    return len(before) <= len(after) and all(map(_same, before, after))


def working(turns: int = 8, lines: int = 40) -> list[Json]:
    """A valid session: searches, a file written, parallel calls, prose and repeated outputs; ids repeat."""
    messages: list[Json] = [
        {"role": "system", "content": "You are careful."},
        {"role": "user", "content": "Please rename the parser."},
    ]
    for turn in range(turns):
        prose = (
            f"Now step {turn} of the plan. " + "The parser reads one line after the other, and then it returns. " * 8
        )
        commands = [f"grep -rn thing_{turn} src", "ls -la"] if turn % 3 == 1 else [f"grep -rn thing_{turn} src"]
        calls = [_call(i, "bash", {"command": command}) for i, command in enumerate(commands)]
        if turn % 3 == 2:
            calls.append(
                _call(len(calls), "write_file", {"path": "a.py", "content": f"value_{turn} = 1\n" * 40, "mode": 7})
            )
        messages.append({"role": "assistant", "content": prose, "tool_calls": calls})
        messages += [{"role": "tool", "tool_call_id": c["id"], "content": _output(c, turn, lines)} for c in calls]
    return [*messages, {"role": "assistant", "content": "It is done."}]


def _call(number: int, name: str, arguments: Json) -> Json:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": f"call_{number}", "type": "function", "function": function}


def _output(call: Json, turn: int, lines: int) -> str:
    if "ls -la" in call["function"]["arguments"]:
        return "\n".join(f"-rw-r--r-- 1 dev dev {n} file_{n}.py" for n in range(lines))
    return "\n".join(f"src/file_{turn}_{n}.py:{n}: value_{n * 7} = parse_line({turn})" for n in range(lines))
