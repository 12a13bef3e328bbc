"""What a strict Messages API answers with 400.

Laws
  What the API is known to refuse is refused, in its words: by its reference, its guides ("Handle tool calls", "Thinking
  in tool and multi-turn workflows", "Prompt caching") or the errors that its users report. What it may refuse besides
  is let pass; blocks of unknown types are.
"""

import re
from collections.abc import Callable, Mapping
from itertools import groupby

from policies.money.caches import CacheRule
from proxy.lab.provider.messages.blocks import block_faults, text_faults
from proxy.lab.provider.messages.order import order_faults, server_faults, system_faults
from proxy.lab.provider.messages.prompt import marks_on_blocks
from proxy.lab.provider.messages.thinking import thinking_faults
from proxy.lab.provider.messages.words import expected, extra, fault, required
from proxy.lab.provider.rules import (
    MAX_MARKS,
    Check,
    Json,
    Violations,
    is_count,
    is_flag,
    is_list,
    is_number,
    is_object,
    is_text,
    mapping,
)

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
ROLES = ("user", "assistant", "system")

Shapes = Mapping[str, tuple[Callable[[object], bool], str]]

SHAPES: Shapes = {
    "model": (is_text, "string"),
    "messages": (is_list, "list"),
    "system": (lambda value: isinstance(value, str | list), "string or list"),
    "stream": (is_flag, "boolean"),
    "temperature": (is_number, "number"),
    "top_p": (is_number, "number"),
    "top_k": (is_number, "integer"),
    "stop_sequences": (is_list, "list"),
    "tools": (is_list, "list"),
    "tool_choice": (is_object, "dictionary"),
    "thinking": (is_object, "dictionary"),
    "metadata": (is_object, "dictionary"),
    "cache_control": (is_object, "dictionary"),
}
KNOWN = frozenset(SHAPES) | {
    # the other parameters of the official SDK, those of its beta among them
    "max_tokens", "container", "context_management", "diagnostics", "fallbacks", "inference_geo", "mcp_servers",
    "output_config", "output_format", "service_tier", "speed", "user_profile_id", "betas",
}  # fmt: skip


def _required(body: Json, _: CacheRule) -> Violations:
    for name in ("model", "messages"):
        if body.get(name) is None:
            yield required(name)


def _max_tokens(body: Json, _: CacheRule) -> Violations:
    if body.get("max_tokens") is None:
        yield required("max_tokens")
    elif not is_count(body["max_tokens"]) and body["max_tokens"] != 0:
        yield fault("max_tokens", "Input should be greater than or equal to 0")


def _shapes(body: Json, _: CacheRule) -> Violations:
    for name, value in body.items():
        if name not in KNOWN:
            yield extra(name)
        elif value is not None and name in SHAPES and not SHAPES[name][0](value):
            yield expected(name, SHAPES[name][1])
    if not body["messages"]:
        yield fault("messages", "at least one message is required")


def _messages(body: Json, _: CacheRule) -> Violations:
    last = len(body["messages"]) - 1
    for i, message in enumerate(body["messages"]):
        at = f"messages.{i}"
        if not isinstance(message, dict):
            yield expected(at, "dictionary")
        elif message.get("role") not in ROLES:
            yield fault(f"{at}.role", "Input should be 'user', 'assistant' or 'system'")
        else:
            yield from _content(message, at, is_last=i == last)


def _content(message: Json, at: str, is_last: bool) -> Violations:
    for name in message.keys() - {"role", "content"}:
        yield extra(f"{at}.{name}")
    content = message.get("content")
    if content is None:
        yield required(f"{at}.content")
    elif not isinstance(content, str | list):
        yield expected(f"{at}.content", "string or list")
    elif message["role"] == "user" and not content:
        yield fault(at, "user messages must have non-empty content")
    elif message["role"] == "assistant" and not content and not is_last:
        said = "all messages must have non-empty content except for the optional final assistant message"
        yield fault(at, said)
    elif isinstance(content, list):
        for j, block in enumerate(content):
            yield from block_faults(block, message["role"], f"{at}.content.{j}")
        yield from text_faults(content, "messages")
    elif message["role"] == "user" and not content.strip():
        yield fault("messages", "text content blocks must contain non-whitespace text")


def _system(body: Json, _: CacheRule) -> Violations:
    system = body.get("system")
    if isinstance(system, list):
        for i, block in enumerate(system):
            yield from block_faults(block, "system", f"system.{i}")
        yield from text_faults(system, "system")
    elif isinstance(system, str) and system and not system.strip():
        yield fault("system", "text content blocks must contain non-whitespace text")


def _order(body: Json, _: CacheRule) -> Violations:
    yield from order_faults(body["messages"])
    yield from server_faults(body["messages"])
    yield from system_faults(body["messages"])


def _thinking(body: Json, _: CacheRule) -> Violations:
    yield from thinking_faults(body)


# --- tools ---


def _tools(body: Json, _: CacheRule) -> Violations:
    seen: set[str] = set()
    for i, tool in enumerate(body.get("tools") or ()):
        at = f"tools.{i}"
        if not isinstance(tool, dict):
            yield expected(at, "dictionary")
            continue
        yield from _tool(tool, at)
        if tool.get("name") in seen:
            yield fault("tools", "Tool names must be unique.")
        seen.add(tool.get("name") or "")


def _tool(tool: Json, at: str) -> Violations:
    if tool.get("type") not in (None, "custom"):
        return  # of the server: each has its own shape
    if not isinstance(tool.get("name"), str):
        yield required(f"{at}.custom.name")
    elif not TOOL_NAME.fullmatch(tool["name"]):
        yield fault(f"{at}.custom.name", f"String should match pattern '^{TOOL_NAME.pattern}$'")
    schema = tool.get("input_schema")
    if not isinstance(schema, dict):
        yield required(f"{at}.custom.input_schema")
    elif schema.get("type") != "object":
        yield required(f"{at}.custom.input_schema.type")
    for name in tool.keys() - TOOL_FIELDS:
        yield extra(f"{at}.custom.{name}")


TOOL_FIELDS = {
    "type", "name", "description", "input_schema", "cache_control", "strict", "defer_loading", "input_examples",
    "allowed_callers", "eager_input_streaming",
}  # fmt: skip


def _tool_choice(body: Json, _: CacheRule) -> Violations:
    choice = mapping(body.get("tool_choice"))
    if choice and not body.get("tools") and choice.get("type") in ("any", "tool"):
        yield fault("tool_choice", "tool_choice may only be specified while providing tools")
    if choice.get("type") == "tool" and choice.get("name") not in [tool.get("name") for tool in body["tools"]]:
        yield fault("tool_choice", f"Tool '{choice.get('name')}' not found in provided tools")


# --- cache marks ---


def _marks(body: Json, _: CacheRule) -> Violations:
    marks, top = marks_on_blocks(body), body.get("cache_control")
    for mark in (*marks, *(() if top is None else (top,))):
        if not isinstance(mark, dict) or mark.get("type") != "ephemeral":
            yield fault("cache_control", "Input tag should be 'ephemeral'")
        elif mark.get("ttl", "5m") not in ("5m", "1h"):
            yield fault("cache_control.ttl", "Input should be '5m' or '1h'")
    count = len(marks) + (top is not None)
    if count > MAX_MARKS:
        said = f"A maximum of {MAX_MARKS} blocks with cache_control may be provided. Found {count}."
        yield fault("", said)
    lives = [mark.get("ttl", "5m") for mark in marks if isinstance(mark, dict)]
    if "1h" in [ttl for ttl, _ in groupby(lives)][1:]:
        said = "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block"
        yield fault("cache_control.ttl", said)


COUNT_CHECKS: tuple[Check, ...] = (
    _required,
    _shapes,
    _messages,
    _system,
    _order,
    _tools,
    _tool_choice,
    _thinking,
    _marks,
)
CHECKS: tuple[Check, ...] = (_required, _max_tokens, *COUNT_CHECKS[1:])
