"""The conversations of the benchmark: small ones, agents, prose, of any size."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
