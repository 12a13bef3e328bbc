"""The conversations of the benchmark: small ones, agents, prose, of any size; and large outputs of ten shapes."""

import base64
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from proxy.lab.load.plan import SessionScript
from proxy.lab.sessions import load

MODEL = "gpt-5.4"
WORDS = (
    *("alpha", "server", "client", "tokens", "caches", "values", "indexes", "errors", "results", "modules", "classes"),
    *("functions", "paths", "lines", "tests", "cases", "numbers", "openings", "closings", "readings", "writings"),
    *("streams", "batches", "workers", "requests", "replies", "histories", "prefixes", "answers"),
)
PROPERTIES = {"path": {"type": "string"}, "number": {"type": "integer"}}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": f"tool_{at}",
            "description": "Does a thing to a file. " * 12,
            "parameters": {"type": "object", "properties": PROPERTIES},
        },
    }
    for at in range(20)
]
Message = Mapping[str, Any]


def script(messages: Sequence[Message], ends: Sequence[int], tools: Sequence[Message] = ()) -> SessionScript:
    headers = {"Authorization": "Bearer sk-bench", "Content-Type": "application/json"}
    fields = {"model": MODEL, **({"tools": list(tools)} if tools else {})}
    return SessionScript("/chat/completions", headers, fields, {"stream": True}, "messages", messages, ends)


def prose(source: random.Random, size: int) -> str:
    words = (
        source.choice(WORDS) + (str(source.randrange(999)) if source.random() < 0.2 else "") for _ in range(size // 8)
    )
    return " ".join(words)


def chat(size: int, turns: int, tools: Sequence[Message] = (), words: int = 120) -> SessionScript:
    """Prose alone: about `size` bytes, then so many turns of a question and an answer."""
    source, messages = random.Random(size), [{"role": "system", "content": "Answer briefly. " * 20}]
    total = 0
    while total < size:
        messages.append({"role": "user", "content": prose(source, min(1500, size))})
        messages.append({"role": "assistant", "content": prose(source, min(1500, size))})
        total += sum(len(str(each["content"])) + 40 for each in messages[-2:])
    ends = []
    for _ in range(turns):
        messages.append({"role": "user", "content": prose(source, words)})
        ends.append(len(messages))
        messages.append({"role": "assistant", "content": "because of scattering."})
    return script(messages, ends, tools)


def agent(size: int, turns: int, shared: bool = False) -> SessionScript:
    """A coding agent's last requests of a history that has grown to about `size` bytes."""
    session, source = load("long_day"), random.Random(size)
    lead = [each for each in session["messages"] if each["role"] == "system"]
    rest = [each for each in session["messages"] if each["role"] != "system"]
    messages: list[Message] = [*lead, {"role": "user", "content": prose(source, 500)}]
    total, round_ = 0, 0
    while total < size:
        for each in rest:
            # a day like the one before, in other files
            again = json.loads(json.dumps(each).replace("parcel", f"parcel{round_}")) if round_ else dict(each)
            if each["role"] == "tool":
                again["content"] = f"{prose(source, 80)}\n{again['content']}"
            messages.append(again)
            total += len(json.dumps(again))
            if total >= size and again["role"] == "assistant":
                break
        round_ += 1
    ends = [at for at, each in enumerate(messages) if each["role"] == "assistant"][-turns:]
    return replace(script(messages, ends, session["tools"]), shared=int(shared))


LARGE = 100_000
"""Characters of a large output."""


def _repeated(line: Callable[[int], str]) -> str:
    text, numbers = "", count()
    while len(text) < LARGE:
        text += "".join(line(next(numbers)) for _ in range(100))
    return text[:LARGE]


def large_outputs() -> Mapping[str, str]:
    """Outputs of a hundred kilobytes, by their shape."""
    row = {"name": "part", "path": "src/part.py", "ok": True, "cost": 1.5}
    deep = {"a": [{"b": {"c": [1, "one"]}}] * 3, "message": "x" * 45}
    return {
        "one line of paths": _repeated(lambda i: f"src/part_{i % 97}/of_{i}.py "),
        "CRLF": _repeated(lambda i: f"line {i} of part_{i % 31} says value={i * 7}\r\n"),
        "blank lines": _repeated(lambda i: f"row {i} is {'abcdefgh'[i % 8] * (i % 17)}\n\n\n"),
        "minified JSON": json.dumps([{"id": i, **row} for i in range(1_450)], separators=(",", ":")),
        "log": _repeated(lambda i: f"2026-01-02 10:00:{i % 60:02} INFO worker-{i % 5} served /a/{i} in {i % 300} ms\n"),
        "grep": _repeated(lambda i: f"src/part_{i % 50}.py:{i}:    total_{i} = parse(row_{i % 9})  # missing\n"),
        "tests": _repeated(lambda i: f"tests/test_part_{i}.py::test_{i % 7} {'PASSED' if i % 50 else 'FAILED'}\n"),
        "base64": base64.b64encode(random.Random(7).randbytes(LARGE * 3 // 4)).decode(),
        "unicode": _repeated(lambda i: f"строка {i} 漢字 {'é' * (i % 40)} не найдено 🙂\n"),
        "nested JSON": json.dumps({f"key_{i}": deep for i in range(320)}, indent=1),
    }
