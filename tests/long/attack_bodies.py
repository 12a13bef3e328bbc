"""The bodies of the attack: small in bytes, large in what they hold; and a long session that is honest."""

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from policies.dialects import DIALECTS
from proxy.lab.load.plan import Salt, mapped
from proxy.lab.replay.recorded import CLIENT_APIS
from proxy.lab.sessions import load
from tests.kit.forms import to_anthropic, to_responses

Json = Mapping[str, Any]
MODEL = "gpt-5.4"
FORMS = {"openai_chat": dict, "anthropic_messages": to_anthropic, "openai_responses": to_responses}


@dataclass(frozen=True, slots=True)
class Attack:
    """A request that costs more than it looks like."""

    name: str
    dialect: str
    body: bytes
    encoding: str = ""

    def headers(self, key: str) -> dict[str, str]:
        encoding = {"Content-Encoding": self.encoding} if self.encoding else {}
        return {**DIALECTS[self.dialect].http.auth(key), "Content-Type": "application/json", **encoding}

    @property
    def decoded(self) -> bytes:
        return gzip.decompress(self.body) if self.encoding else self.body

    @property
    def path(self) -> str:
        return DIALECTS[self.dialect].http.path


def attacks(dialects: Iterable[str] = FORMS) -> Iterator[Attack]:
    """Each of them in each API."""
    for dialect in dialects:
        bomb = _around(dialect, b"[" + b",".join([b"{}"] * 4_000_000) + b"]")
        yield Attack("4,000,000 x {} in 12 kB of gzip", dialect, gzip.compress(bomb, mtime=0), "gzip")
        yield Attack("100,000 x {}", dialect, _around(dialect, b"[" + b",".join([b"{}"] * 100_000) + b"]"))
        for number in (20_000, 100_000):
            yield Attack(f"{number:,} small messages", dialect, _written(dialect, _small(number)))
        yield Attack("10,000 tool steps", dialect, _written(dialect, _steps(9_990)))
        yield Attack("10,000 calls in a message", dialect, _written(dialect, _at_once(9_990)))
        tools = [CLIENT_APIS[dialect].tool(f"tool_{at}") for at in range(10_000)]
        yield Attack("10,000 tools", dialect, _written(dialect, _small(2), tools=tools))
        yield Attack("a message of 20 MB", dialect, _written(dialect, [_user("a word, " * 2_500_000)]))
        deep = json.dumps([_user("DEEP")]).replace('"DEEP"', "[" * 100_000 + "]" * 100_000)
        yield Attack("100,000 deep", dialect, _around(dialect, deep.encode()))
        yield Attack("texts that are hard to match", dialect, _written(dialect, _steps(60, _hard)))


def _around(dialect: str, history: bytes) -> bytes:
    fields = json.dumps({"model": MODEL, "max_tokens": 100}).encode()[:-1]
    return fields + b',"' + DIALECTS[dialect].fields.history.encode() + b'":' + history + b"}"


def _written(dialect: str, messages: list[Json], **fields: Any) -> bytes:
    body = FORMS[dialect]({"model": MODEL, "messages": messages, **_bash(fields), "max_tokens": 100})
    return json.dumps({**body, **fields}, separators=(",", ":")).encode()


def _bash(fields: Json) -> Json:
    return {} if fields else {"tools": [CLIENT_APIS["openai_chat"].tool("bash")]}


def _user(text: str) -> Json:
    return {"role": "user", "content": text}


def _small(number: int) -> list[Json]:
    return [{"role": ("user", "assistant")[at % 2], "content": f"message {at}"} for at in range(number - 1)] + [
        _user("and now?")
    ]


def _call(at: int) -> Json:
    return {
        "id": f"call_{at}",
        "type": "function",
        "function": {"name": "bash", "arguments": f'{{"command":"ls {at}"}}'},
    }


def _result(at: int, text: str) -> Json:
    return {"role": "tool", "tool_call_id": f"call_{at}", "content": text}


def _steps(number: int, text: Any = "file_{}.py".format) -> list[Json]:
    steps: list[Json] = [_user("go")]
    for at in range(number):
        steps += [{"role": "assistant", "content": "", "tool_calls": [_call(at)]}, _result(at, text(at))]
    return steps


def _at_once(number: int) -> list[Json]:
    every = range(number)
    calls = {"role": "assistant", "content": "", "tool_calls": [_call(at) for at in every]}
    return [_user("go"), calls, *(_result(at, f"file_{at}.py") for at in every)]


def _hard(at: int) -> str:
    """50 kB that an expression with two ways to go on would try out."""
    unit = (
        "<div " * 9,
        "/* * ",
        "a" * 60 + "!",
        "'\\\"",
        "[[[{{{",
        " \t \n ",
        "at x (y:1:",
        "--- a\n+++ ",
        "0.0.0.",
        "=" * 50,
    )
    return (unit[at % len(unit)] * 50_000)[:50_000]


@cache
def _cut_session(longest: int) -> tuple[list[Json], list[Json]]:
    """The instructions and the rest of a recorded session, with no text longer than that."""
    messages: list[Json] = load("long_day")["messages"]
    short = [_cut(message, longest) for message in messages]
    return [each for each in short if each["role"] == "system"], [each for each in short if each["role"] != "system"]


def _cut(message: Json, longest: int) -> Json:
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(_cut_arguments(call, longest))}}
        for call in message.get("tool_calls", ())
    ]
    content = message.get("content")
    content = content[:longest] if isinstance(content, str) else content
    return {**message, "content": content, **({"tool_calls": calls} if calls else {})}


def _cut_arguments(call: Json, longest: int) -> Any:
    return mapped(lambda text: text[:longest], json.loads(call["function"]["arguments"]))


def honest(number: int, longest: int, seed: int) -> bytes:
    """So many messages of an agent's days, one like the other but in other words, as chat completions."""
    lead, rest = _cut_session(longest)
    messages, day = list(lead), 0
    while len(messages) < number:
        salt = Salt(seed + day)
        messages += [salt.message(message) for message in rest]
        day += 1
    messages = messages[:number]
    while messages[-1]["role"] == "assistant":
        messages[-1:] = [_user("and now?")]
    return json.dumps({"model": MODEL, "messages": messages, "tools": load("long_day")["tools"]}).encode()
