"""One package for each API: everything about its JSON. To add one: a package that keeps the contract of base.py; a
row."""

from collections.abc import Mapping

from policies.dialects import anthropic_messages, openai_chat, openai_responses
from policies.dialects.base import Added as Added
from policies.dialects.base import ChoiceResult as ChoiceResult
from policies.dialects.base import Consent as Consent
from policies.dialects.base import Dialect as Dialect
from policies.dialects.base import Fault as Fault
from policies.dialects.base import Reply as Reply
from policies.dialects.base import Request as Request
from policies.dialects.common import objects
from policies.dialects.limits import TooManyError as TooManyError
from policies.money.prices import Usage as Usage

DIALECTS: Mapping[str, Dialect] = {
    "openai_chat": openai_chat,
    "anthropic_messages": anthropic_messages,
    "openai_responses": openai_responses,
}
_BLOCKS = frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking"})
"""Kinds of content that chat completions do not have."""


def dialect_of(body: object) -> str:
    """The API of a body, by its shape: for those who have a request, or a recorded session, and no path. A body that is
    valid in two APIs means the same in both; it is taken for chat completions."""
    fields: Mapping[str, object] = body if isinstance(body, Mapping) else {}
    if "input" in fields and "messages" not in fields:
        return "openai_responses"
    blocks = (block for message in objects(fields.get("messages")) for block in objects(message.get("content")))
    has_blocks = any(str(block.get("type")) in _BLOCKS for block in blocks)
    has_schemas = any("input_schema" in tool for tool in objects(fields.get("tools")))
    return "anthropic_messages" if "system" in fields or has_schemas or has_blocks else "openai_chat"
