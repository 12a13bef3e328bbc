"""Which API a body is of, told by its shape: for those who have a request, or a recorded session, and no path.

A body that two APIs would take says the same in both; it is taken for chat completions.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain

_BLOCKS = frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking"})
"""Kinds of content that chat completions do not know."""


def dialect_of(body: object) -> str:
    """The name of the dialect."""
    if not isinstance(body, Mapping):
        return _USUAL
    return next((dialect for dialect, fits in SHAPES.items() if fits(body)), _USUAL)


def _has_items(body: Mapping[str, object]) -> bool:
    return "input" in body and "messages" not in body


def _has_blocks(body: Mapping[str, object]) -> bool:
    if "system" in body or any("input_schema" in tool for tool in _objects(body.get("tools"))):
        return True
    contents = chain.from_iterable(_objects(message.get("content")) for message in _objects(body.get("messages")))
    return any(str(block.get("type")) in _BLOCKS for block in contents)


def _objects(value: object) -> Iterator[Mapping[str, object]]:
    return (entry for entry in value if isinstance(entry, Mapping)) if isinstance(value, list) else iter(())


_USUAL = "openai_chat"
SHAPES: Mapping[str, Callable[[Mapping[str, object]], bool]] = {
    "openai_responses": _has_items,
    "anthropic_messages": _has_blocks,
}
"""What tells the others from chat completions."""
