"""Tool search in OpenAI Responses, where the client executes it: the tool, the items of a search, and the rules of both
(OpenAI guide, "Tool search").
"""

import re
from collections.abc import Mapping
from typing import Any

from proxy.lab.provider import jsontext
from proxy.lab.provider.answers import Json
from proxy.lab.provider.api import Violation, Violations, fits, missing, unknown, wrong_type
from proxy.lab.provider.prompt import PromptMessage, call_piece, marks_of, tool_piece

_COMMON = frozenset({"type", "id", "status", "call_id", "execution"})
SEARCHES: Mapping[str, frozenset[str]] = {
    "tool_search_call": _COMMON | {"arguments"},
    "tool_search_output": _COMMON | {"tools"},
}
"""The items, and the fields that they may have."""
_TOOL_FIELDS = frozenset({"type", "execution", "description", "parameters"})
_VERSION = re.compile(r"gpt-(\d+)(?:\.(\d+))?(?![\d.])")


def check_search_tool(tool: Json, model: str, at: str) -> Violations:
    """Only gpt-5.4 and later models support it."""
    yield from (unknown(f"{at}.{name}") for name in tool.keys() - _TOOL_FIELDS)
    version = _VERSION.match(model)
    if version is not None and (int(version[1]), int(version[2] or 0)) < (5, 4):
        yield Violation(f"Tool 'tool_search' is not supported with {model}.", "tools", "unsupported_value")


def check_search_item(item: Json, at: str) -> Violations:
    key, kind = ("arguments", "object") if item["type"] == "tool_search_call" else ("tools", "array")
    if item.get("execution") == "client" and not isinstance(item.get("call_id"), str):
        yield missing(f"{at}.call_id")
    if not fits(item.get(key), kind):
        yield wrong_type(f"{at}.{key}", f"an {kind}")


def search_message(item: Json) -> PromptMessage:
    """What is loaded stands where the search was answered."""
    if item["type"] == "tool_search_call":
        call = call_piece(item["call_id"], "tool_search", jsontext.write(item["arguments"]).decode())
        return PromptMessage("assistant", (call,), joins=True)
    return PromptMessage("tool", tuple(tool_piece(tool, marks_of(tool)) for tool in item["tools"]), item["call_id"])


def search_call(name: str, call_id: str, arguments: str) -> dict[str, Any]:
    head = {"id": name, "type": "tool_search_call", "status": "completed", "call_id": call_id}
    return {**head, "execution": "client", "arguments": jsontext.read(arguments)}
