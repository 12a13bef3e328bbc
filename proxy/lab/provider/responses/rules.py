"""What a strict Responses API answers with 400.

Laws
  What the API is known to refuse is refused, in its words: by its reference or the errors that its users report. What
  it may refuse besides is let pass; items of unknown types are.
"""

import re
from collections.abc import Mapping
from typing import Any

from policies.money.caches import CacheRule
from proxy.lab.provider.responses.items import item_faults
from proxy.lab.provider.responses.order import order_faults, reasoning_faults
from proxy.lab.provider.responses.prompt import items
from proxy.lab.provider.rules import (
    BREAKPOINT,
    MAX_TOOLS,
    Check,
    Fits,
    Json,
    Violation,
    Violations,
    breakpoint_formed,
    cache_options,
    is_count,
    is_flag,
    is_list,
    is_number,
    is_object,
    is_text,
    mapping,
    misfits,
    missing,
    model_named,
    unknown,
    wrong_type,
)

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]+")
PLAIN: Mapping[str, Fits] = {
    "input": (lambda value: isinstance(value, str | list), "a string or an array of items"),
    "instructions": (is_text, "a string"),
    "tools": (is_list, "an array"),
    "include": (is_list, "an array"),
    "stream": (is_flag, "a boolean"),
    "store": (is_flag, "a boolean"),
    "background": (is_flag, "a boolean"),
    "parallel_tool_calls": (is_flag, "a boolean"),
    "max_output_tokens": (is_count, "a positive integer"),
    "temperature": (is_number, "a number"),
    "top_p": (is_number, "a number"),
    "reasoning": (is_object, "an object"),
    "text": (is_object, "an object"),
    "stream_options": (is_object, "an object"),
    "prompt_cache_options": (is_object, "an object"),
    "previous_response_id": (is_text, "a string"),
}
KNOWN = frozenset(PLAIN) | {
    # the other parameters of the official SDK, and one that the official command-line agent sends
    "access_programs", "background_options", "client_metadata", "context_management", "conversation", "image",
    "max_tool_calls", "metadata", "model", "moderation", "personality", "prompt", "prompt_cache_key",
    "prompt_cache_retention", "safety_identifier", "service_tier", "tool_choice", "top_logprobs", "truncation", "user",
}  # fmt: skip
ELSEWHERE = ("previous_response_id", "conversation", "prompt")
"""What says that there is more than the input."""
INCLUDABLE = frozenset({
    # the values of the official SDK's ResponseIncludable
    "file_search_call.results", "web_search_call.results", "web_search_call.action.sources",
    "message.input_image.image_url", "computer_call_output.output.image_url", "code_interpreter_call.outputs",
    "reasoning.encrypted_content", "message.output_text.logprobs",
})  # fmt: skip


def is_elsewhere(body: Json) -> bool:
    """Whether the history is not all in the request."""
    return any(body.get(name) is not None for name in ELSEWHERE)


def _fields(body: Json, _: CacheRule) -> Violations:
    yield from (unknown(name) for name in body.keys() - KNOWN)
    yield from misfits(body, PLAIN)
    if body.get("input") is None and not is_elsewhere(body):
        yield missing("input")
    for value in body.get("include") or ():
        if value not in INCLUDABLE:
            yield Violation(f"Invalid value: '{value}'.", "include", "invalid_value")
    if body.get("previous_response_id") is not None and body.get("conversation") is not None:
        said = "'previous_response_id' and 'conversation' are mutually exclusive."
        yield Violation(said, None, "mutually_exclusive_parameters")


def _items(body: Json, _: CacheRule) -> Violations:
    for i, item in enumerate(items(body)):
        yield from item_faults(item, f"input[{i}]")


def _order(body: Json, _: CacheRule) -> Violations:
    yield from order_faults(items(body), whole=not is_elsewhere(body))


def _reasoning(body: Json, _: CacheRule) -> Violations:
    yield from reasoning_faults(items(body))


def _tools(body: Json, _: CacheRule) -> Violations:
    tools = body.get("tools") or ()
    if len(tools) > MAX_TOOLS:
        said = f"Invalid 'tools': array too long. Expected an array with maximum length {MAX_TOOLS}, but got an array"
        yield Violation(f"{said} with length {len(tools)} instead.", "tools", "array_above_max_length")
    for i, tool in enumerate(tools):
        yield from _tool(tool, f"tools[{i}]")


def _tool(tool: Any, at: str) -> Violations:
    if not isinstance(tool, dict):
        yield wrong_type(at, "an object")
    elif not isinstance(tool.get("type"), str):
        yield missing(f"{at}.type")
    elif tool["type"] in ("function", "custom"):
        if not isinstance(tool.get("name"), str):
            yield missing(f"{at}.name")
        elif not TOOL_NAME.fullmatch(tool["name"]):
            said = f"Invalid '{at}.name': string does not match pattern. Expected a string that matches the pattern"
            yield Violation(f"{said} '^{TOOL_NAME.pattern}$'.", f"{at}.name", "invalid_value")
        if tool.get("parameters") is not None and not isinstance(tool["parameters"], dict):
            yield wrong_type(f"{at}.parameters", "an object")


def _breakpoints(body: Json, rule: CacheRule) -> Violations:
    for i, item in enumerate(items(body)):
        for field in ("content", "output"):
            parts = item.get(field)
            for j, part in enumerate(parts if isinstance(parts, list) else ()):
                if mapping(part).get(BREAKPOINT) is not None:
                    at = f"input[{i}].{field}[{j}].{BREAKPOINT}"
                    known = rule.mark == BREAKPOINT and str(part.get("type")).startswith("input_")
                    yield from (breakpoint_formed(at, part) if known else (unknown(at),))


CHECKS: tuple[Check, ...] = (
    model_named,
    _fields,
    _items,
    _tools,
    _order,
    _reasoning,
    _breakpoints,
    cache_options,
)
COUNT_CHECKS = CHECKS
