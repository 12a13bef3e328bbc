"""Items of the Responses API, and how they are read as a prompt: neighbouring items of the model are one message."""

import re
from collections.abc import Iterable
from typing import Any

from proxy.lab.provider import jsontext
from proxy.lab.provider.answers import Json
from proxy.lab.provider.prompt import AUDIO, FILE, IMAGE, MARKS, PromptMessage, PromptPiece, call_piece, part_piece
from proxy.lab.provider.signatures import REASONING, unseal

CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
"""The field of each kind of call that holds what the tool is called with."""
OUTPUTS = {"function_call_output": "function_call", "custom_tool_call_output": "custom_tool_call"}
"""Which kind of call each kind of output answers."""
NEEDS_REASONING = "r"
"""The end of the id of an item that must not come back without the reasoning before it."""
_ID = re.compile(rf"[a-z]+_([0-9a-f]{{24}})[0-9a-f]*({NEEDS_REASONING}?)")
_TEXTS = {"input_text": "text", "output_text": "text", "text": "text"}
_SIZES = {"input_image": IMAGE, "input_file": FILE, "input_audio": AUDIO}
_MESSAGE_FIELDS = frozenset({"type", "id", "status", "role", "content"}) | MARKS
_IGNORED = frozenset({"annotations", "logprobs"}) | MARKS


def items(body: Json) -> list[Json]:
    """The items of the input: a string is short for one."""
    value = body.get("input")
    if isinstance(value, list):
        return value
    return [{"role": "user", "content": value}] if value is not None else []


def kind_of(item: Json) -> str:
    """The type of an item: a message may leave it out."""
    kind: str = item.get("type", "message")
    return kind


def is_of_model(item: Json) -> bool:
    """Whether the model wrote it."""
    kind = kind_of(item)
    if kind == "message":
        return bool(item.get("role") == "assistant")
    return not kind.endswith(("_output", "_response")) and kind not in ("item_reference", "additional_tools")


def origin(item: Json) -> tuple[str, bool]:
    """The reply that an item comes from, "" where the id is not one of this provider's; and whether the item needs the
    reasoning before it. Ids say both."""
    match = _ID.fullmatch(item.get("id") or "")
    return (match[1], bool(match[2])) if match else ("", False)


def thought_in(item: Json) -> str:
    """The thought in a reasoning item; empty where its encrypted content is not this provider's."""
    return unseal(REASONING, item.get("encrypted_content")) or ""


def message_of(item: Json) -> PromptMessage:
    kind, joins = kind_of(item), is_of_model(item)
    if kind == "message":
        extras = {key: value for key, value in item.items() if key not in _MESSAGE_FIELDS and value is not None}
        return PromptMessage(item["role"], tuple(_pieces(item["content"])), None, extras, joins=joins)
    if kind in CALLS:
        call = call_piece(item["call_id"], item["name"], item[CALLS[kind]])
        return PromptMessage("assistant", (call,), joins=True)
    if kind in OUTPUTS:
        return PromptMessage("tool", tuple(_pieces(item["output"])), item["call_id"])
    if kind == "reasoning":
        piece = PromptPiece("thinking", thought_in(item))
    else:  # an item that is compared as a whole
        plain = {key: value for key, value in item.items() if key not in ("id", "status")}
        piece = PromptPiece(kind, "", plain, (jsontext.write(plain).decode(),))
    return PromptMessage("assistant" if joins else "tool", (piece,), item.get("call_id"), joins=joins)


def _pieces(content: Any) -> Iterable[PromptPiece]:
    if isinstance(content, str):
        return (PromptPiece("text", content),)
    return (part_piece(part, _TEXTS, _SIZES, _IGNORED) for part in content)
