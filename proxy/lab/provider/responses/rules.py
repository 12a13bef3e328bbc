"""What a strict Responses API answers with 400.

Laws
  What the API is documented or reported to refuse is refused, in its words: by its reference or the errors that its
  users report. Everything else is let pass; items of unknown types are.
"""

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from policies.money.caches import CacheRule
from proxy.lab.provider.responses.items import CALLS, OUTPUTS, is_of_model, items, kind_of, origin
from proxy.lab.provider.rules import (
    BREAKPOINT,
    MAX_TOOLS,
    Check,
    Json,
    Violation,
    Violations,
    cache_options,
    check_breakpoint,
    holds_object,
    invalid,
    mapping,
    misfits,
    missing,
    model_named,
    unknown,
    wrong_type,
)
from proxy.lab.provider.signatures import REASONING, unseal

# --- the body's own fields ---

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]+")
FIELDS: Mapping[str, str] = {
    "input": "a string or an array of items",
    "instructions": "a string",
    "tools": "an array",
    "include": "an array",
    "stream": "a boolean",
    "store": "a boolean",
    "background": "a boolean",
    "parallel_tool_calls": "a boolean",
    "max_output_tokens": "a positive integer",
    "temperature": "a number",
    "top_p": "a number",
    "reasoning": "an object",
    "text": "an object",
    "stream_options": "an object",
    "prompt_cache_options": "an object",
    "previous_response_id": "a string",
}
ALL_FIELDS = frozenset(FIELDS) | {
    # the other parameters of the official SDK, and one that the official command-line agent sends
    "access_programs", "background_options", "client_metadata", "context_management", "conversation", "image",
    "max_tool_calls", "metadata", "model", "moderation", "personality", "prompt", "prompt_cache_key",
    "prompt_cache_retention", "safety_identifier", "service_tier", "tool_choice", "top_logprobs", "truncation", "user",
}  # fmt: skip
INCLUDABLE = frozenset({
    # the values of the official SDK's ResponseIncludable
    "file_search_call.results", "web_search_call.results", "web_search_call.action.sources",
    "message.input_image.image_url", "computer_call_output.output.image_url", "code_interpreter_call.outputs",
    "reasoning.encrypted_content", "message.output_text.logprobs",
})  # fmt: skip


def _has_more(body: Json) -> bool:
    """Whether some of the history may stand elsewhere than in the input."""
    return any(body.get(name) is not None for name in ("previous_response_id", "conversation", "prompt"))


def _fields(body: Json, _: CacheRule) -> Violations:
    yield from (unknown(name) for name in body.keys() - ALL_FIELDS)
    yield from misfits(body, FIELDS)
    if body.get("input") is None and not _has_more(body):
        yield missing("input")
    for value in body.get("include") or ():
        if value not in INCLUDABLE:
            yield Violation(f"Invalid value: '{value}'.", "include", "invalid_value")
    if body.get("previous_response_id") is not None and body.get("conversation") is not None:
        why = "'previous_response_id' and 'conversation' are mutually exclusive."
        yield Violation(why, None, "mutually_exclusive_parameters")


# --- each item by itself ---

LONGEST_ID = 64
"""Characters."""
ID_PREFIXES = {"message": "msg", "function_call": "fc", "reasoning": "rs"}
_COMMON = frozenset({"type", "id", "status"})
ITEM_FIELDS: Mapping[str, frozenset[str]] = {
    # the fields of the official SDK's types, for the items that have no others
    "message": _COMMON | {"role", "content", "phase"},
    "function_call": _COMMON | {"call_id", "name", "arguments", "namespace", "caller", "async"},
    "function_call_output": _COMMON | {"call_id", "output", "name", "namespace", "caller"},
    "custom_tool_call": _COMMON | {"call_id", "name", "input", "namespace", "caller"},
    "custom_tool_call_output": _COMMON | {"call_id", "output", "name", "namespace", "caller"},
    "reasoning": _COMMON | {"summary", "content", "encrypted_content"},
}
PART_FIELDS: Mapping[str, frozenset[str]] = {
    "input_text": frozenset({"type", "text", BREAKPOINT}),
    "output_text": frozenset({"type", "text", "annotations", "logprobs"}),
    "refusal": frozenset({"type", "refusal"}),
}
INPUT_PARTS = ("input_text", "input_image", "input_file", "input_audio")
OUTPUT_PARTS = ("output_text", "refusal")
ROLES = {"user": INPUT_PARTS, "system": INPUT_PARTS, "developer": INPUT_PARTS, "assistant": OUTPUT_PARTS}
"""The parts that messages of each role may have."""


def _items(body: Json, _: CacheRule) -> Violations:
    for i, item in enumerate(items(body)):
        at = f"input[{i}]"
        if not isinstance(item, dict):
            yield wrong_type(at, "an object")
        elif not isinstance(item.get("type", ""), str):
            yield wrong_type(f"{at}.type", "a string")
        else:
            kind = kind_of(item)
            if kind in ITEM_FIELDS:
                yield from (unknown(f"{at}.{name}") for name in item.keys() - ITEM_FIELDS[kind])
            yield from _ids(item, kind, at)
            if kind == "message":
                role, content = item.get("role"), item.get("content")
                if role not in ROLES:
                    yield invalid(f"{at}.role", f"expected one of {', '.join(ROLES)}")
                elif content is None:
                    yield missing(f"{at}.content")
                elif not isinstance(content, str):
                    yield from _parts(content, ROLES[role], f"{at}.content")
            elif kind in CALLS:
                yield from _call(item, kind, at)
            elif kind in OUTPUTS:
                yield from _output(item, at)
            elif kind == "reasoning" and not isinstance(item.get("summary"), list):
                yield missing(f"{at}.summary")


def _ids(item: Json, kind: str, at: str) -> Violations:
    for name in ("id", "call_id"):
        value = item.get(name)
        if isinstance(value, str) and len(value) > LONGEST_ID:
            why = f"Expected a string with maximum length {LONGEST_ID}, but got a string with length {len(value)}"
            why = f"Invalid '{at}.{name}': string too long. {why} instead."
            yield Violation(why, f"{at}.{name}", "string_above_max_length")
    own, prefix = item.get("id"), ID_PREFIXES.get(kind, "")
    if isinstance(own, str) and not own.startswith(prefix):
        why = f"Invalid '{at}.id': '{own}'. Expected an ID that begins with '{prefix}'."
        yield Violation(why, f"{at}.id", "invalid_value")


def _parts(parts: Any, allowed: tuple[str, ...], at: str) -> Violations:
    if not isinstance(parts, list):
        yield wrong_type(at, "a string or an array of parts")
        return
    for i, part in enumerate(parts):
        if not isinstance(part, dict):
            yield wrong_type(f"{at}[{i}]", "an object")
        elif part.get("type") not in allowed:
            why = f"Invalid value: '{part.get('type')}'. Supported values are: {', '.join(map(repr, allowed))}."
            yield Violation(why, f"{at}[{i}]", "invalid_value")
        elif part["type"] in PART_FIELDS:
            text = "refusal" if part["type"] == "refusal" else "text"
            if not isinstance(part.get(text), str):
                yield missing(f"{at}[{i}].{text}")
            yield from (unknown(f"{at}[{i}].{name}") for name in part.keys() - PART_FIELDS[part["type"]])


def _call(item: Json, kind: str, at: str) -> Violations:
    key = CALLS[kind]
    for name in ("call_id", "name", key):
        if item.get(name) is None:
            yield missing(f"{at}.{name}")
        elif not isinstance(item[name], str):
            yield wrong_type(f"{at}.{name}", "a string")
    if kind == "function_call" and not holds_object(item[key]):
        yield invalid(f"{at}.{key}", "it must be the text of a JSON object")


def _output(item: Json, at: str) -> Violations:
    if not isinstance(item.get("call_id"), str):
        yield missing(f"{at}.call_id")
    if item.get("output") is None:
        yield missing(f"{at}.output")
    elif not isinstance(item["output"], str):
        yield from _parts(item["output"], INPUT_PARTS, f"{at}.output")


# --- the items in their order ---

_CALL_NAMES = {"function_call": "function call", "custom_tool_call": "custom tool call"}


def _order(body: Json, _: CacheRule) -> Violations:
    """Each output answers a call before it, if that must stand in the input; each call is answered, and once; no item
    comes twice."""
    waiting: dict[tuple[str, str], None] = {}
    for item in items(body):
        kind = kind_of(item)
        if kind in CALLS:
            waiting[kind, item["call_id"]] = None
        elif kind in OUTPUTS:
            called, call_id = OUTPUTS[kind], item["call_id"]
            if (called, call_id) not in waiting and not _has_more(body):
                why = f"No tool call found for {_CALL_NAMES[called]} output with call_id {call_id}."
                yield Violation(why, "input")
            waiting.pop((called, call_id), None)
    for kind, call_id in waiting:
        yield Violation(f"No tool output found for {_CALL_NAMES[kind]} {call_id}.", "input")
    ids = set[str]()
    for item in items(body):
        own = item.get("id")
        if isinstance(own, str) and kind_of(item) != "item_reference" and own in ids:
            why = f"Duplicate item found with id {own}. Remove duplicate items from your input and try again."
            yield Violation(why, "input")
        ids |= {own} if isinstance(own, str) else set()


def _reasoning(body: Json, _: CacheRule) -> Violations:
    """Reasoning comes back as it was, before the item of the same reply that it led to; where ids do not tell the
    reply, before any item of the model."""
    history = items(body)
    for item, following in pairwise([*history, {}]):
        if kind_of(item) != "reasoning":
            continue
        content = item.get("encrypted_content")
        if content is not None and unseal(REASONING, content) is None:
            why = f"The encrypted content {content[:4]}...{content[-4:]} could not be verified."
            yield Violation(why, None, "invalid_encrypted_content")
        if not is_of_model(following) or len({origin(item)[0], origin(following)[0]} - {""}) > 1:
            why = f"Item '{item.get('id')}' of type 'reasoning' was provided without its required following item."
            yield Violation(why, "input")
    for before, item in pairwise([{}, *history]):
        reply, needs_reasoning = origin(item)
        if needs_reasoning and not (kind_of(before) == "reasoning" and origin(before)[0] in ("", reply)):
            why = f"Item '{item['id']}' of type '{kind_of(item)}' was provided without its required 'reasoning' item."
            yield Violation(why, "input")


# --- tools and cache marks ---


def _tools(body: Json, _: CacheRule) -> Violations:
    tools = body.get("tools") or ()
    if len(tools) > MAX_TOOLS:
        why = f"Invalid 'tools': array too long. Expected an array with maximum length {MAX_TOOLS}, but got an array"
        yield Violation(f"{why} with length {len(tools)} instead.", "tools", "array_above_max_length")
    for i, tool in enumerate(tools):
        at = f"tools[{i}]"
        if not isinstance(tool, dict):
            yield wrong_type(at, "an object")
        elif not isinstance(tool.get("type"), str):
            yield missing(f"{at}.type")
        elif tool["type"] in ("function", "custom"):
            if not isinstance(tool.get("name"), str):
                yield missing(f"{at}.name")
            elif not TOOL_NAME.fullmatch(tool["name"]):
                why = f"Invalid '{at}.name': string does not match pattern. Expected a string that matches the pattern"
                yield Violation(f"{why} '^{TOOL_NAME.pattern}$'.", f"{at}.name", "invalid_value")
            if tool.get("parameters") is not None and not isinstance(tool["parameters"], dict):
                yield wrong_type(f"{at}.parameters", "an object")


def _breakpoints(body: Json, rule: CacheRule) -> Violations:
    for i, item in enumerate(items(body)):
        for field in ("content", "output"):
            parts = item.get(field)
            for j, part in enumerate(map(mapping, parts) if isinstance(parts, list) else ()):
                allowed = rule.mark == BREAKPOINT and str(part.get("type")).startswith("input_")
                yield from check_breakpoint(f"input[{i}].{field}[{j}]", part, allowed)


CHECKS: tuple[Check, ...] = (model_named, _fields, _items, _tools, _order, _reasoning, _breakpoints, cache_options)
