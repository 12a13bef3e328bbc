"""Requests of the Responses API as what is said in them: neighbouring items of the model are one message of its."""

from collections.abc import Iterable
from typing import Any

from proxy.lab.provider import jsontext
from proxy.lab.provider.prompt import (
    AUDIO,
    FILE,
    IMAGE,
    MARKS,
    Json,
    Leaf,
    Spoken,
    call_leaf,
    marks_of,
    part_leaf,
    tool_leaf,
    unmarked,
)
from proxy.lab.provider.sealed import opened

REASONING = "openai reasoning"
"""What encrypted content is of."""
CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
"""Where a call says what it is called with."""
OUTPUTS = {"function_call_output": "function_call", "custom_tool_call_output": "custom_tool_call"}
"""What outputs answer."""
_TEXTS = {"input_text": "text", "output_text": "text", "text": "text"}
_SIZES = {"input_image": IMAGE, "input_file": FILE, "input_audio": AUDIO}
_KNOWN = frozenset({"type", "id", "status", "role", "content"}) | MARKS
_APART = frozenset({"annotations", "logprobs"}) | MARKS


def entries(body: Json) -> list[Json]:
    """The instructions and the items of the input."""
    instructions = body.get("instructions")
    system = [{"role": "system", "content": instructions}] if instructions else []
    return [*system, *items(body)]


def items(body: Json) -> list[Json]:
    """The items of the input: a string is short for one."""
    given = body.get("input")
    if isinstance(given, list):
        return given
    return [{"role": "user", "content": given}] if given is not None else []


def kind_of(item: Json) -> str:
    """The type of an item: a message need not say it."""
    kind: str = item.get("type", "message")
    return kind


def is_of_model(item: Json) -> bool:
    """Whether the model made it."""
    kind = kind_of(item)
    if kind == "message":
        return bool(item.get("role") == "assistant")
    return not kind.endswith(("_output", "_response")) and kind not in ("item_reference", "additional_tools")


def spoken(item: Json) -> tuple[Spoken, ...]:
    """What an item says."""
    kind, joins = kind_of(item), is_of_model(item)
    if kind == "message":
        extras = {key: value for key, value in item.items() if key not in _KNOWN and value is not None}
        return (Spoken(item["role"], tuple(_leaves(item["content"])), None, extras, joins=joins),)
    if kind in CALLS:
        call = call_leaf(item["call_id"], item["name"], item[CALLS[kind]])
        return (Spoken("assistant", (call,), joins=True),)
    if kind in OUTPUTS:
        return (Spoken("tool", tuple(_leaves(item["output"])), item["call_id"]),)
    leaf = (
        Leaf("thinking", opened(REASONING, item.get("encrypted_content")) or "")
        if kind == "reasoning"
        else _other(item)
    )
    return (Spoken("assistant" if joins else "tool", (leaf,), item.get("call_id"), joins=joins),)


def _reasoning(item: Json) -> Leaf:
    return Leaf("thinking", opened(REASONING, item.get("encrypted_content")) or "")


def _other(item: Json) -> Leaf:
    """An item that is compared as a whole."""
    plain = {key: value for key, value in item.items() if key not in ("id", "status")}
    return Leaf(kind_of(item), "", plain, (jsontext.write(plain).decode(),))


def _leaves(content: Any) -> Iterable[Leaf]:
    if isinstance(content, str):
        return (Leaf("text", content),)
    return (part_leaf(part, _TEXTS, _SIZES, _APART) for part in content)


def tool(definition: Json) -> Leaf:
    """A tool's definition, in the words of chat completions."""
    plain = unmarked(definition)
    kind = plain.pop("type")
    inner = {kind: plain} if kind in ("function", "custom") else plain
    return tool_leaf({"type": kind, **inner}, marks_of(definition))


def top_mark(_: Json) -> frozenset[str]:
    """Marks stand on parts only."""
    return frozenset()
