"""How a client of an API writes its requests and marks them for the cache, beside what the API itself says."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from policies.dialects import Dialect

Json = Mapping[str, Any]
MARK = {"cache_control": {"type": "ephemeral"}}
ANYTHING = {"type": "object", "properties": {}}
"""The schema of arguments of any kind."""
_TEXT_FIELDS = {"text": "text", "tool_result": "content"}
"""Parts that can carry a mark where this field is not empty."""
_WITHOUT_TEXT = ("tool_use", "image", "document")
"""Parts that can always carry one."""


@dataclass(frozen=True, slots=True)
class ClientApi:
    """One API as its clients use it."""

    dialect: Dialect
    options: Json
    """Other fields of each request of a replay: it streams, and wants to know its usage."""
    tool: Callable[[str], Json]
    """The barest definition of a tool of this name."""
    marked: Callable[[Json], Json] = lambda body: body
    """The request with cache marks where real clients set them."""


def newest_marked(messages: Sequence[Json]) -> Sequence[Json]:
    """With a mark on the last block that can carry one, as far back as that may be: an empty result cannot."""
    for at in reversed(range(len(messages))):
        content = messages[at].get("content")
        if (with_mark := marked(content)) is not content:
            return [*messages[:at], {**messages[at], "content": with_mark}, *messages[at + 1 :]]
    return messages


def marked(content: Any) -> Any:
    """With a mark on its last part that can carry one; as it is where none can."""
    if isinstance(content, str) and content:
        return [{"type": "text", "text": content, **MARK}]
    for at in reversed(range(len(content))) if isinstance(content, list) else ():
        part = content[at]
        kind = part.get("type", "")
        if kind in _WITHOUT_TEXT or part.get(_TEXT_FIELDS.get(kind, "")):
            return [*content[:at], {**part, **MARK}, *content[at + 1 :]]
    return content
