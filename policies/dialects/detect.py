"""Which API a body is of, by its shape: for those who have a request, or a recorded session, and no path.

A body that is valid in two APIs means the same in both; it is taken for chat completions.
"""

from collections.abc import Mapping

from policies.dialects.common import objects

_BLOCKS = frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking"})
"""Kinds of content that chat completions do not have."""


def dialect_of(body: object) -> str:
    """The name of the dialect."""
    fields: Mapping[str, object] = body if isinstance(body, Mapping) else {}
    if "input" in fields and "messages" not in fields:
        return "openai_responses"
    blocks = (block for message in objects(fields.get("messages")) for block in objects(message.get("content")))
    has_blocks = any(str(block.get("type")) in _BLOCKS for block in blocks)
    has_schemas = any("input_schema" in tool for tool in objects(fields.get("tools")))
    return "anthropic_messages" if "system" in fields or has_schemas or has_blocks else "openai_chat"
