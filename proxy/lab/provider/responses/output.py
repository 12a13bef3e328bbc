"""What the model says, as items of the Responses API, and recorded items as what was said.

Ids name the reply they come from: a reasoning item and what follows it have the same name in theirs, and what needs the
reasoning before it says so at the end of its id.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from proxy.lab.provider.answers import Json, Say, Turn, call_texts
from proxy.lab.provider.responses.prompt import CALLS, REASONING, is_of_model, items, kind_of
from proxy.lab.provider.rules import mapping
from proxy.lab.provider.sealed import opened, seal

NEEDS = "r"
"""The end of the id of an item that must not come back without the reasoning before it."""


def output(turn: Turn) -> Iterator[dict[str, Any]]:
    """The items of a reply."""
    say, name = turn.say, turn.identity("")
    for at, thought in enumerate(say.thinking):
        yield _reasoning(f"rs_{name}{at:02x}", thought, bool(mapping(turn.asked.get("reasoning")).get("summary")))
    needs = NEEDS if say.thinking else ""
    if say.content is not None:
        yield _message(f"msg_{name}{needs}", say.content)
        needs = ""
    for at, call in enumerate(say.calls):
        yield _call(f"{{}}_{name}{at:02x}{needs}", call)
        needs = ""


def _reasoning(name: str, thought: str, summarized: bool) -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": thought}] if summarized else []
    return {"id": name, "type": "reasoning", "summary": summary, "encrypted_content": seal(REASONING, thought)}


def _message(name: str, text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"id": name, "type": "message", "status": "completed", "role": "assistant", "content": [part]}


def _call(name: str, call: Json) -> dict[str, Any]:
    called, text = call_texts(call)
    kind, short = ("function_call", "fc") if call["type"] == "function" else ("custom_tool_call", "ctc")
    said = {"call_id": call["id"], "name": called, CALLS[kind]: text}
    return {"id": name.format(short), "type": kind, "status": "completed", **said}


def answers(recorded: Sequence[Json]) -> list[Say]:
    """What the model says in a recorded session, one answer after the other: neighbouring items are one."""
    return [_said(list(run)) for of_model, run in groupby(recorded, is_of_model) if of_model]


def _said(run: Sequence[Json]) -> Say:
    texts = [text for item in run if kind_of(item) == "message" for text in _texts(item["content"])]
    calls = tuple(_chat_call(item) for item in run if kind_of(item) in CALLS)
    thoughts = tuple(_thought(item) for item in run if kind_of(item) == "reasoning")
    return Say("".join(texts) if texts else None, calls, thinking=thoughts)


def _texts(content: Any) -> Iterable[str]:
    return [content] if isinstance(content, str) else [part.get("text", "") for part in content]


def _chat_call(item: Json) -> dict[str, Any]:
    kind, key = ("function", "arguments") if kind_of(item) == "function_call" else ("custom", "input")
    return {"id": item["call_id"], "type": kind, kind: {"name": item["name"], key: item[key]}}


def _thought(item: Json) -> str:
    summary = "".join(part["text"] for part in item.get("summary") or ())
    return opened(REASONING, item.get("encrypted_content")) or summary


def answered(body: Json) -> int:
    """How many answers the history of a request holds."""
    return sum(1 for of_model, _ in groupby(items(body), is_of_model) if of_model)
