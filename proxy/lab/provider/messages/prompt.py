"""Anthropic messages as what is said in them: the results of tools are said by tools, as elsewhere."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from proxy.lab.provider import jsontext
from proxy.lab.provider.messages.signatures import thought_of
from proxy.lab.provider.prompt import (
    FILE,
    IMAGE,
    Json,
    Leaf,
    Spoken,
    call_leaf,
    marks_of,
    part_leaf,
    tool_leaf,
    unmarked,
)

_TEXTS = {"text": "text"}
_SIZES = {"image": IMAGE, "document": FILE}


def spoken(message: Json) -> Iterator[Spoken]:
    """What a message says: in one of a user's, tools and a person may speak in turn."""
    if message["role"] != "user":
        yield Spoken(message["role"], tuple(_leaves(message["content"])), joins=True)
        return
    for is_result, parts in groupby(blocks(message["content"]), _is_result):
        if is_result:
            yield from map(_result, parts)
        else:
            yield Spoken("user", tuple(map(_leaf, parts)), joins=True)


def blocks(content: Any) -> list[Json]:
    """The content as blocks: a string is short for one."""
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []


def _is_result(block: Json) -> bool:
    return bool(block["type"] == "tool_result")


def _result(block: Json) -> Spoken:
    extras = {"is_error": True} if block.get("is_error") else {}
    return Spoken("tool", tuple(_leaves(block.get("content"))), block["tool_use_id"], extras, marks_of(block))


def _leaves(content: Any) -> Iterable[Leaf]:
    return map(_leaf, blocks(content))


def _leaf(block: Json) -> Leaf:
    if block["type"] == "tool_use":
        return call_leaf(block["id"], block["name"], jsontext.write(block["input"]).decode(), marks_of(block))
    if block["type"] == "thinking":
        return Leaf("thinking", thought_of(block["signature"]), markable=False)
    if block["type"] == "redacted_thinking":
        return Leaf("redacted_thinking", beside=block["data"], markable=False)
    return part_leaf(block, _TEXTS, _SIZES)


def tool(definition: Json) -> Leaf:
    """A tool's definition, in the words of chat completions; a tool of the server as it stands."""
    plain = unmarked(definition)
    if "input_schema" in plain:
        plain.pop("type", None)
        renamed = {"parameters" if key == "input_schema" else key: value for key, value in plain.items()}
        plain = {"type": "function", "function": renamed}
    return tool_leaf(plain, marks_of(definition))


def top_mark(body: Json) -> frozenset[str]:
    """Automatic caching: the mark comes to stand at the last block that can carry it."""
    return marks_of(body)


def marks_on_blocks(body: Json) -> list[Any]:
    """What the marks on tools, system text and blocks say, in order; those on blocks within blocks, too."""
    return [mark for key in ("tools", "system", "messages") for mark in _marks_in(body.get(key))]


def _marks_in(value: Any) -> list[Any]:
    if isinstance(value, list):
        return [mark for item in value for mark in _marks_in(item)]
    if not isinstance(value, dict):
        return []
    own = [value["cache_control"]] if value.get("cache_control") is not None else []
    return [*_marks_in(value.get("content")), *own]
