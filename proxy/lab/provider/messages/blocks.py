"""What a content block must look like by itself."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from proxy.lab.provider.messages.words import expected, extra, fault, required
from proxy.lab.provider.rules import Json, Violations, is_object, is_text

ID = re.compile(r"[a-zA-Z0-9_-]+")
"""What the ids of tools' calls are made of: the API names this pattern in its error."""


def _is_result(value: object) -> bool:
    return isinstance(value, str | list)


Fields = Mapping[str, tuple[Callable[[object], bool], str, bool]]
"""What each field of a block must be, how that is said, and whether the field must be there."""

FIELDS: Mapping[str, Fields] = {
    "text": {"text": (is_text, "string", True)},
    "thinking": {"thinking": (is_text, "string", True), "signature": (is_text, "string", True)},
    "redacted_thinking": {"data": (is_text, "string", True)},
    "tool_use": {
        "id": (is_text, "string", True),
        "name": (is_text, "string", True),
        "input": (is_object, "dictionary", True),
    },
    "tool_result": {
        "tool_use_id": (is_text, "string", True),
        "content": (_is_result, "string or list", False),
        "is_error": (lambda value: isinstance(value, bool), "boolean", False),
    },
}
OTHERS: Mapping[str, frozenset[str]] = {
    "text": frozenset({"cache_control", "citations"}),
    "thinking": frozenset(),
    "redacted_thinking": frozenset(),
    "tool_use": frozenset({"cache_control", "caller", "toolset_name"}),
    "tool_result": frozenset({"cache_control", "toolset_name"}),
}
"""What else blocks of these types may hold; blocks of other types may hold anything."""
SPEAKERS = {"tool_use": "assistant", "thinking": "assistant", "redacted_thinking": "assistant", "tool_result": "user"}
"""Whose messages may hold these blocks."""


def block_faults(block: object, role: str, at: str) -> Violations:
    """What is wrong with a block in a message of this role."""
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        yield required(f"{at}.type") if isinstance(block, dict) else expected(at, "dictionary")
        return
    kind = block["type"]
    if role != SPEAKERS.get(kind, role):
        yield fault(at, f"`{kind}` blocks can only be in `{SPEAKERS[kind]}` messages")
    if role == "system" and kind != "text":
        yield fault(f"{at}.type", "Input should be 'text'")
    if kind in FIELDS:
        yield from _known(block, kind, f"{at}.{kind}")
    if block.get("cache_control") is not None and kind == "text" and not block["text"]:
        yield fault(f"{at}.cache_control", "cache_control cannot be set for empty text blocks")


def _known(block: Json, kind: str, at: str) -> Violations:
    for name, (fits, said, needed) in FIELDS[kind].items():
        if needed and block.get(name) is None:
            yield required(f"{at}.{name}")
        elif block.get(name) is not None and not fits(block[name]):
            yield expected(f"{at}.{name}", said)
    for name in block.keys() - FIELDS[kind].keys() - OTHERS[kind] - {"type"}:
        yield extra(f"{at}.{name}")
    if kind == "tool_use" and not ID.fullmatch(block["id"]):
        yield fault(f"{at}.id", f"String should match pattern '^{ID.pattern}$'")
    if kind == "tool_result" and isinstance(block.get("content"), list):
        for i, inner in enumerate(block["content"]):
            yield from block_faults(inner, "tool_result", f"{at}.content.{i}")


def text_faults(content: Sequence[Any], where: str) -> Violations:
    """Texts are not empty, and somewhere among them there is more than blanks."""
    texts = [block["text"] for block in content if block["type"] == "text"]
    if "" in texts:
        yield fault(where, "text content blocks must be non-empty")
    if texts and len(texts) == len(content) and not "".join(texts).strip():
        yield fault(where, "text content blocks must contain non-whitespace text")
