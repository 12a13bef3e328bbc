"""Content blocks of the Messages API: how they are read as a prompt, and what each must look like by itself."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from proxy.lab.provider import jsontext
from proxy.lab.provider.prompt import FILE, IMAGE, PromptMessage, PromptPiece, call_piece, marks_of, part_piece
from proxy.lab.provider.rules import Json, Violations, expected, extra, fits, refusal, required
from proxy.lab.provider.signatures import thought_in

THOUGHTS = ("thinking", "redacted_thinking")


def blocks(content: Any) -> list[Json]:
    """The content as blocks: a string is short for one."""
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []


# --- as a prompt ---

_TEXTS = {"text": "text"}
_SIZES = {"image": IMAGE, "document": FILE}


def messages_of(message: Json) -> Iterator[PromptMessage]:
    """What a message adds to the prompt: tool results become messages of the role `tool`, as in the other APIs."""
    content = blocks(message["content"])
    if message["role"] != "user":
        yield PromptMessage(message["role"], tuple(map(_piece, content)), joins=True)
        return
    for is_result, run in groupby(content, lambda block: bool(block["type"] == "tool_result")):
        if not is_result:
            yield PromptMessage("user", tuple(map(_piece, run)), joins=True)
            continue
        for block in run:
            extras = {"is_error": True} if block.get("is_error") else {}
            pieces = tuple(map(_piece, blocks(block.get("content"))))
            yield PromptMessage("tool", pieces, block["tool_use_id"], extras, marks_of(block))


def _piece(block: Json) -> PromptPiece:
    if block["type"] == "tool_use":
        return call_piece(block["id"], block["name"], jsontext.write(block["input"]).decode(), marks_of(block))
    if block["type"] == "thinking":
        return PromptPiece("thinking", thought_in(block["signature"]), markable=False)
    if block["type"] == "redacted_thinking":
        return PromptPiece("redacted_thinking", beside=block["data"], markable=False)
    return part_piece(block, _TEXTS, _SIZES)


def cache_controls(value: Any) -> list[Any]:
    """The values of all marks on blocks or tools, in order; those on blocks within blocks, too."""
    if isinstance(value, list):
        return [mark for item in value for mark in cache_controls(item)]
    if not isinstance(value, dict):
        return []
    own = [value["cache_control"]] if value.get("cache_control") is not None else []
    return [*cache_controls(value.get("content")), *own]


# --- each block by itself ---

ID = re.compile(r"[a-zA-Z0-9_-]+")
"""The ids of calls: the API names this pattern in its error."""
REQUIRED: Mapping[str, Mapping[str, str]] = {
    "text": {"text": "string"},
    "thinking": {"thinking": "string", "signature": "string"},
    "redacted_thinking": {"data": "string"},
    "tool_use": {"id": "string", "name": "string", "input": "dictionary"},
    "tool_result": {"tool_use_id": "string"},
}
"""By the type of a block: the fields it must have, and of what kind. Blocks of other types may hold anything."""
OPTIONAL: Mapping[str, Mapping[str, str]] = {"tool_result": {"content": "string or list", "is_error": "boolean"}}
UNCHECKED: Mapping[str, frozenset[str]] = {
    "text": frozenset({"cache_control", "citations"}),
    "tool_use": frozenset({"cache_control", "caller", "toolset_name"}),
    "tool_result": frozenset({"cache_control", "toolset_name"}),
}
"""What else blocks of these types may hold."""
ROLE = {"tool_use": "assistant", "thinking": "assistant", "redacted_thinking": "assistant", "tool_result": "user"}
"""The role whose messages may hold these blocks."""


def check_block(block: object, role: str, at: str) -> Violations:
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        yield required(f"{at}.type") if isinstance(block, dict) else expected(at, "dictionary")
        return
    kind = block["type"]
    if role != ROLE.get(kind, role):
        yield refusal(at, f"`{kind}` blocks can only be in `{ROLE[kind]}` messages")
    if role == "system" and kind != "text":
        yield refusal(f"{at}.type", "Input should be 'text'")
    if kind in REQUIRED:
        yield from _fields(block, kind, f"{at}.{kind}")
    if block.get("cache_control") is not None and kind == "text" and not block["text"]:
        yield refusal(f"{at}.cache_control", "cache_control cannot be set for empty text blocks")


def _fields(block: Json, kind: str, at: str) -> Violations:
    fields = {**REQUIRED[kind], **OPTIONAL.get(kind, {})}
    for name, of_kind in fields.items():
        if block.get(name) is None and name in REQUIRED[kind]:
            yield required(f"{at}.{name}")
        elif block.get(name) is not None and not fits(block[name], of_kind):
            yield expected(f"{at}.{name}", of_kind)
    for name in block.keys() - fields.keys() - UNCHECKED.get(kind, frozenset()) - {"type"}:
        yield extra(f"{at}.{name}")
    if kind == "tool_use" and not ID.fullmatch(block["id"]):
        yield refusal(f"{at}.id", f"String should match pattern '^{ID.pattern}$'")
    if kind == "tool_result" and isinstance(block.get("content"), list):
        for i, inner in enumerate(block["content"]):
            yield from check_block(inner, "tool_result", f"{at}.content.{i}")


def check_texts(content: Sequence[Any], at: str) -> Violations:
    """Texts are not empty, and somewhere among them there is more than blanks."""
    texts = [block["text"] for block in content if block["type"] == "text"]
    if "" in texts:
        yield refusal(at, "text content blocks must be non-empty")
    if texts and len(texts) == len(content) and not "".join(texts).strip():
        yield refusal(at, "text content blocks must contain non-whitespace text")
