"""Which API a body is of, by its shape: for those who have a request, or a recorded session, and no path.

A body that is valid in two APIs means the same in both; it is taken for chat completions.
"""

from collections.abc import Callable, Mapping

from policies.dialects.common import objects

_BLOCKS = frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking"})
"""Kinds of content that chat completions do not have."""


def _has_items(body: Mapping[str, object]) -> bool:
    return "input" in body and "messages" not in body


def _has_blocks(body: Mapping[str, object]) -> bool:
    if "system" in body or any("input_schema" in tool for tool in objects(body.get("tools"))):
        return True
    blocks = (block for message in objects(body.get("messages")) for block in objects(message.get("content")))
    return any(str(block.get("type")) in _BLOCKS for block in blocks)


SHAPES: Mapping[str, Callable[[Mapping[str, object]], bool]] = {
    "openai_responses": _has_items,
    "anthropic_messages": _has_blocks,
}
"""How the others differ from chat completions."""


def dialect_of(body: object) -> str:
    """The name of the dialect."""
    fields: Mapping[str, object] = body if isinstance(body, Mapping) else {}
    return next((dialect for dialect, fits in SHAPES.items() if fits(fields)), "openai_chat")
