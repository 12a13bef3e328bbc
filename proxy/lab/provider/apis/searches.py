"""Tool search in OpenAI Responses, where the client executes it: the tool, the items of a search, and the rules of both
(OpenAI guide, "Tool search"). What the API says of each fault is as people have reported it: pydantic-ai #6080 and
codegraff #746 of lists, pi #7709 and copilot-cli #4519 of calls without a namespace.
"""

import re
from collections.abc import Mapping
from typing import Any

from policies.money.caches import CacheRule
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


def check_searches(body: Json, _: CacheRule) -> Violations:
    """Deferred tools and a search belong together, but for one that the client executes: that may load what the list
    has not. From then on a function that was loaded is in a namespace of its own name, and not in the default one; a
    call that stands before is taken as it is."""
    tools: list[Json] = [*(body.get("tools") or ())]
    searches = [tool for tool in tools if tool["type"] == "tool_search"]
    deferred = any(each.get("defer_loading") for tool in tools for each in [tool, *(tool.get("tools") or ())])
    for at, tool in enumerate(tools):
        yield from check_search_tool(tool, body["model"], f"tools[{at}]") if tool in searches else ()
    if deferred and not searches:
        yield Violation("Invalid Value: 'tools.defer_loading'. Deferred tools require tools.tool_search.", "tools")
    if not deferred and any(tool.get("execution") != "client" for tool in searches):
        why = "tools.tool_search requires at least one deferred tool."
        yield Violation(f"Invalid Value: 'tools.tool_search'. {why}", "tools")
    default, loaded = {tool.get("name") for tool in tools if not tool.get("defer_loading")}, set[str]()
    for at, item in enumerate(body["input"] if isinstance(body.get("input"), list) else ()):
        loaded |= loaded_by(item)
        name = item.get("name")
        if item.get("type") == "function_call" and name in loaded - default and not item.get("namespace"):
            why = f"Missing namespace for function_call '{name}'. It does not exist in the default namespace."
            again = "Round-trip the model's function_call item with its namespace field included."
            yield Violation(f"{why} {again}", f"input[{at}].namespace")


def loaded_by(*items: Json) -> set[str]:
    """The functions that these items have loaded."""
    tools = [tool for item in items if item.get("type") == "tool_search_output" for tool in item["tools"]]
    return {str(tool.get("name")) for tool in tools if tool.get("type") == "function"}


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
