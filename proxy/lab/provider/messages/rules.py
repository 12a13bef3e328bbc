"""What a strict Messages API answers with 400.

Laws
  What the API is documented or reported to refuse is refused, in its words: by its reference, its guides ("Handle tool
  calls", "Thinking in tool and multi-turn workflows", "Prompt caching") or the errors that its users report. Everything
  else is let pass; blocks of unknown types are.
"""

import re
from collections.abc import Mapping
from itertools import groupby

from policies.money.caches import CacheRule
from proxy.lab.provider.messages.blocks import cache_controls, check_block, check_texts
from proxy.lab.provider.messages.order import check_order
from proxy.lab.provider.messages.thinking import check_thinking
from proxy.lab.provider.rules import (
    MAX_MARKS,
    Check,
    Json,
    Violations,
    expected,
    extra,
    fits,
    mapping,
    refusal,
    required,
)

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
ROLES = ("user", "assistant", "system")
FIELDS: Mapping[str, str] = {
    "model": "string",
    "messages": "list",
    "system": "string or list",
    "stream": "boolean",
    "temperature": "number",
    "top_p": "number",
    "top_k": "integer",
    "stop_sequences": "list",
    "tools": "list",
    "tool_choice": "dictionary",
    "thinking": "dictionary",
    "metadata": "dictionary",
    "cache_control": "dictionary",
}
ALL_FIELDS = frozenset(FIELDS) | {
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
    elif not fits(body["max_tokens"], "a positive integer") and body["max_tokens"] != 0:
        yield refusal("max_tokens", "Input should be greater than or equal to 0")


def _fields(body: Json, _: CacheRule) -> Violations:
    for name, value in body.items():
        if name not in ALL_FIELDS:
            yield extra(name)
        elif value is not None and name in FIELDS and not fits(value, FIELDS[name]):
            yield expected(name, FIELDS[name])
    if not body["messages"]:
        yield refusal("messages", "at least one message is required")


def _messages(body: Json, _: CacheRule) -> Violations:
    last = len(body["messages"]) - 1
    for i, message in enumerate(body["messages"]):
        at = f"messages.{i}"
        if not isinstance(message, dict):
            yield expected(at, "dictionary")
        elif message.get("role") not in ROLES:
            yield refusal(f"{at}.role", "Input should be 'user', 'assistant' or 'system'")
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
        yield refusal(at, "user messages must have non-empty content")
    elif message["role"] == "assistant" and not content and not is_last:
        yield refusal(at, "all messages must have non-empty content except for the optional final assistant message")
    elif isinstance(content, list):
        for j, block in enumerate(content):
            yield from check_block(block, message["role"], f"{at}.content.{j}")
        yield from check_texts(content, "messages")
    elif message["role"] == "user" and not content.strip():
        yield refusal("messages", "text content blocks must contain non-whitespace text")


def _system(body: Json, _: CacheRule) -> Violations:
    system = body.get("system")
    if isinstance(system, list):
        for i, block in enumerate(system):
            yield from check_block(block, "system", f"system.{i}")
        yield from check_texts(system, "system")
    elif isinstance(system, str) and system and not system.strip():
        yield refusal("system", "text content blocks must contain non-whitespace text")


# --- tools ---

TOOL_FIELDS = {
    "type", "name", "description", "input_schema", "cache_control", "strict", "defer_loading", "input_examples",
    "allowed_callers", "eager_input_streaming",
}  # fmt: skip


def _tools(body: Json, _: CacheRule) -> Violations:
    names: set[str] = set()
    for i, tool in enumerate(body.get("tools") or ()):
        at = f"tools.{i}"
        if not isinstance(tool, dict):
            yield expected(at, "dictionary")
            continue
        if tool.get("type") in (None, "custom"):  # a server tool has a shape of its own
            if not isinstance(tool.get("name"), str):
                yield required(f"{at}.custom.name")
            elif not TOOL_NAME.fullmatch(tool["name"]):
                yield refusal(f"{at}.custom.name", f"String should match pattern '^{TOOL_NAME.pattern}$'")
            schema = tool.get("input_schema")
            if not isinstance(schema, dict):
                yield required(f"{at}.custom.input_schema")
            elif schema.get("type") != "object":
                yield required(f"{at}.custom.input_schema.type")
            yield from (extra(f"{at}.custom.{name}") for name in tool.keys() - TOOL_FIELDS)
        if tool.get("name") in names:
            yield refusal("tools", "Tool names must be unique.")
        names.add(tool.get("name") or "")


def _tool_choice(body: Json, _: CacheRule) -> Violations:
    choice = mapping(body.get("tool_choice"))
    if choice and not body.get("tools") and choice.get("type") in ("any", "tool"):
        yield refusal("tool_choice", "tool_choice may only be specified while providing tools")
    if choice.get("type") == "tool" and choice.get("name") not in [tool.get("name") for tool in body["tools"]]:
        yield refusal("tool_choice", f"Tool '{choice.get('name')}' not found in provided tools")


# --- cache marks ---


def _marks(body: Json, _: CacheRule) -> Violations:
    marks = [mark for key in ("tools", "system", "messages") for mark in cache_controls(body.get(key))]
    top = [] if body.get("cache_control") is None else [body["cache_control"]]
    for mark in [*marks, *top]:
        if not isinstance(mark, dict) or mark.get("type") != "ephemeral":
            yield refusal("cache_control", "Input tag should be 'ephemeral'")
        elif mark.get("ttl", "5m") not in ("5m", "1h"):
            yield refusal("cache_control.ttl", "Input should be '5m' or '1h'")
    count = len(marks) + len(top)
    if count > MAX_MARKS:
        yield refusal("", f"A maximum of {MAX_MARKS} blocks with cache_control may be provided. Found {count}.")
    lifetimes = groupby(mark.get("ttl", "5m") for mark in marks if isinstance(mark, dict))
    if "1h" in [ttl for ttl, _ in lifetimes][1:]:
        why = "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block"
        yield refusal("cache_control.ttl", why)


_SHARED = (_fields, _messages, _system, check_order, _tools, _tool_choice, check_thinking, _marks)
COUNTING_CHECKS: tuple[Check, ...] = (_required, *_SHARED)
CHECKS: tuple[Check, ...] = (_required, _max_tokens, *_SHARED)
