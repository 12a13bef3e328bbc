"""Rules of a strict Messages API, whose breach it answers with 400: of content blocks, their order, thinking, and the
request as a whole.

Laws
  What the API is documented or reported to refuse is refused, in its words: by its reference, its guides ("Handle tool
  calls", "Thinking in tool and multi-turn workflows", "Prompt caching") or the errors that its users report. Everything
  else is let pass; blocks of unknown types are.
  Thinking comes back as it was, and newer models bind it to the prompt before it ("Preserved thinking" and "Prefix
  checks on thinking blocks"; types of the official SDK: BetaThinkingBlockBindingParam, BetaInputTransformation). Such a
  thought is valid behind the tools, the system text and the blocks that it was thought behind, other thoughts among
  them. Cache marks, the order of a block's fields, and how blocks are divided into messages of one role make no
  difference, nor does a string in place of one text.
  Elsewhere it is refused, or dropped with the thoughts that follow it at once where the request asks for that. What is
  dropped is part of the prompt before later thoughts all the same: they are bound to what was sent.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import groupby, takewhile
from typing import Any

from multidict import MultiMapping

from policies.dialects.anthropic_messages.request import is_bound
from policies.money.caches import CacheRule
from proxy.lab.provider import jsontext
from proxy.lab.provider.answers import Json
from proxy.lab.provider.api import (
    MAX_MARKS,
    Check,
    Violation,
    Violations,
    expected,
    extra,
    fits,
    mapping,
    refusal,
    required,
)
from proxy.lab.provider.prompt import unmarked
from proxy.lab.provider.signatures import PREFIX_DIGEST, signed

THOUGHTS = ("thinking", "redacted_thinking")


def blocks(content: Any) -> list[Json]:
    """The content as blocks: a string is short for one."""
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []


def cache_controls(value: Any) -> list[Any]:
    """The values of all marks on blocks or tools, in order; those on blocks within blocks, too."""
    if isinstance(value, list):
        return [mark for item in value for mark in cache_controls(item)]
    if not isinstance(value, dict):
        return []
    own = [value["cache_control"]] if value.get("cache_control") is not None else []
    return [*cache_controls(value.get("content")), *own]


# --- each block by itself ---

ID = re.compile(r"[a-zA-Z0-9_-]+")
"""The ids of calls: the API names this pattern in its error."""
REQUIRED: Mapping[str, Mapping[str, str]] = {
    "text": {"text": "string"},
    "thinking": {"thinking": "string", "signature": "string"},
    "redacted_thinking": {"data": "string"},
    "tool_use": {"id": "string", "name": "string", "input": "dictionary"},
    "tool_result": {"tool_use_id": "string"},
}
"""By the type of a block: the fields it must have, and of what kind. Blocks of other types may hold anything."""
OPTIONAL: Mapping[str, Mapping[str, str]] = {"tool_result": {"content": "string or list", "is_error": "boolean"}}
UNCHECKED: Mapping[str, frozenset[str]] = {
    "text": frozenset({"cache_control", "citations"}),
    "tool_use": frozenset({"cache_control", "caller", "toolset_name"}),
    "tool_result": frozenset({"cache_control", "toolset_name"}),
}
"""Other fields of blocks of these types."""
ROLE = {"tool_use": "assistant", "thinking": "assistant", "redacted_thinking": "assistant", "tool_result": "user"}


def check_block(block: object, role: str, at: str) -> Violations:
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        yield required(f"{at}.type") if isinstance(block, dict) else expected(at, "dictionary")
        return
    kind = block["type"]
    if role != ROLE.get(kind, role):
        yield refusal(at, f"`{kind}` blocks can only be in `{ROLE[kind]}` messages")
    if role == "system" and kind != "text":
        yield refusal(f"{at}.type", "Input should be 'text'")
    if kind in REQUIRED:
        yield from _block_fields(block, kind, f"{at}.{kind}")
    if block.get("cache_control") is not None and kind == "text" and not block["text"]:
        yield refusal(f"{at}.cache_control", "cache_control cannot be set for empty text blocks")


def _block_fields(block: Json, kind: str, at: str) -> Violations:
    fields = {**REQUIRED[kind], **OPTIONAL.get(kind, {})}
    for name, of_kind in fields.items():
        if block.get(name) is None and name in REQUIRED[kind]:
            yield required(f"{at}.{name}")
        elif block.get(name) is not None and not fits(block[name], of_kind):
            yield expected(f"{at}.{name}", of_kind)
    for name in block.keys() - fields.keys() - UNCHECKED.get(kind, frozenset()) - {"type"}:
        yield extra(f"{at}.{name}")
    if kind == "tool_use" and not ID.fullmatch(block["id"]):
        yield refusal(f"{at}.id", f"String should match pattern '^{ID.pattern}$'")
    if kind == "tool_result" and isinstance(block.get("content"), list):
        for i, inner in enumerate(block["content"]):
            yield from check_block(inner, "tool_result", f"{at}.content.{i}")


def check_texts(content: Sequence[Any], at: str) -> Violations:
    """Texts are not empty, and somewhere among them there is more than blanks."""
    texts = [block["text"] for block in content if block["type"] == "text"]
    if "" in texts:
        yield refusal(at, "text content blocks must be non-empty")
    if texts and len(texts) == len(content) and not "".join(texts).strip():
        yield refusal(at, "text content blocks must contain non-whitespace text")


SERVER_CALLS = ("server_tool_use", "mcp_tool_use")
"""Calls of tools that run at the provider, or that it calls itself."""


@dataclass(frozen=True, slots=True)
class JoinedMessage:
    """Neighbouring messages of one role, and the index of the first of them."""

    at: int
    role: str
    blocks: tuple[Json, ...]

    def values(self, kind: str, key: str) -> list[str]:
        return [block[key] for block in self.blocks if block["type"] == kind]


def joined(messages: Sequence[Json]) -> Iterator[JoinedMessage]:
    """The conversation of user and model as the model sees it; system messages between them are left out."""
    conversation = [(at, message) for at, message in enumerate(messages) if message["role"] != "system"]
    for role, run in groupby(conversation, lambda pair: pair[1]["role"]):
        members = list(run)
        content = (block for _, message in members for block in blocks(message["content"]))
        yield JoinedMessage(members[0][0], role, tuple(content))


def tool_loop(messages: Sequence[Json]) -> list[JoinedMessage]:
    """The tool loop in progress, the newest message first: results, and the calls that they answer."""

    def continues(message: JoinedMessage) -> bool:
        is_result = bool(message.blocks) and message.blocks[0]["type"] == "tool_result"
        return message.role == "assistant" or is_result

    return list(takewhile(continues, reversed(list(joined(messages)))))


def _results(body: Json, _: CacheRule) -> Violations:
    """Each call is answered at the beginning of the very next message, and once; no result answers anything else."""
    before = JoinedMessage(-1, "user", ())
    for message in joined(body["messages"]):
        if message.role == "user":
            yield from _answers(message, before)
        elif before.role == "assistant":
            yield from _unanswered(before, ())
        ids = message.values("tool_use", "id")
        if len(set(ids)) < len(ids):
            yield refusal(f"messages.{message.at}", "`tool_use` ids must be unique")
        before = message
    if before.role == "assistant":  # the model is to continue its own message
        yield from _unanswered(before, ())
        if before.blocks and before.blocks[-1]["type"] in THOUGHTS:
            yield refusal(f"messages.{before.at}", "The final block in an assistant message cannot be `thinking`.")
        text = before.blocks[-1].get("text", "") if before.blocks else ""
        if text != text.rstrip():
            yield refusal("messages", "final assistant content cannot end with trailing whitespace")


def _answers(message: JoinedMessage, before: JoinedMessage) -> Violations:
    calls = before.values("tool_use", "id") if before.role == "assistant" else []
    leading = [b["tool_use_id"] for b in takewhile(lambda block: block["type"] == "tool_result", message.blocks)]
    yield from _unanswered(before, leading) if calls else ()
    seen = set[str]()
    for at, call_id in enumerate(message.values("tool_result", "tool_use_id")):
        where = f"messages.{message.at}.content.{at}"
        if call_id not in calls:
            why = f"unexpected `tool_use_id` found in `tool_result` blocks: {call_id}. Each `tool_result` block must "
            yield refusal(where, why + "have a corresponding `tool_use` block in the previous message.")
        if call_id in seen:
            why = f"each tool_use must have a single result. Found multiple `tool_result` blocks with id: {call_id}"
            yield refusal(where, why)
        seen.add(call_id)


def _unanswered(message: JoinedMessage, answered: Sequence[str]) -> Violations:
    waiting = [call_id for call_id in message.values("tool_use", "id") if call_id not in answered]
    if waiting:
        why = f"`tool_use` ids were found without `tool_result` blocks immediately after: {', '.join(waiting)}. "
        why += "Each `tool_use` block must have a corresponding `tool_result` block in the next message."
        yield refusal(f"messages.{message.at}", why)


def _system_messages(body: Json, _: CacheRule) -> Violations:
    """A system message between others follows a user's, or a server tool's result, before the model's next one."""
    messages: Sequence[Json] = body["messages"]
    roles = [message["role"] for message in messages]
    for i in (i for i, role in enumerate(roles) if role == "system"):
        before = next((messages[j] for j in range(i - 1, -1, -1) if roles[j] != "system"), None)
        after = next((role for role in roles[i + 1 :] if role != "system"), "assistant")
        content = blocks(before["content"]) if before else []
        ends_served = bool(content) and bool(_server_ids(content[-1])[1])
        if before is None or not (before["role"] == "user" or ends_served):
            why = "role 'system' must follow a 'user' message or an 'assistant' message ending in a server tool result"
            yield refusal(f"messages.{i}", why)
        elif after != "assistant":
            yield refusal(f"messages.{i}", "role 'system' must precede an 'assistant' message or end the array")


def _server_tools(body: Json, _: CacheRule) -> Violations:
    """The result of a server tool follows its call, be it in a later message; each call has its result, except in the
    tool loop in progress, where it may be still to come."""
    messages: Sequence[Json] = body["messages"]
    loop_start = min((message.at for message in tool_loop(messages)), default=len(messages))
    waiting: dict[str, Violation] = {}
    calls = set[str]()
    for message in joined(messages):
        at = f"messages.{message.at}"
        for block in message.blocks:
            call, answer = _server_ids(block)
            if call:
                calls.add(call)
                if message.at < loop_start:
                    name = "mcp" if block["type"] == "mcp_tool_use" else block.get("name")
                    why = f"`{name}` tool use with id `{block['id']}` was found without a corresponding "
                    waiting[call] = refusal(at, f"{why}`{name}_tool_result` block")
            elif answer:
                waiting.pop(answer, None)
                if answer not in calls:
                    kind = block["type"]
                    why = f"unexpected `tool_use_id` found in `{kind}` blocks: {block['tool_use_id']}. Each `{kind}` "
                    yield refusal(at, why + "block must have a corresponding `server_tool_use` block before it.")
    yield from waiting.values()


def _server_ids(block: Json) -> tuple[str, str]:
    """The id of the call of a server tool that a block makes, and of the one that it answers; "" where it does not."""
    call = block.get("id") if block["type"] in SERVER_CALLS else ""
    is_answer = block["type"].endswith("_tool_result") and block["type"] != "tool_result"
    return str(call or ""), str(block.get("tool_use_id") or "") if is_answer else ""


LEAST_BUDGET = 1_024
MODES = ("enabled", "disabled", "adaptive", "between_tools")
VERSION = "anthropic-version"
CONTROLS = "thinking-binding-controls-2026-08-01"
BEHAVIOR = "prefix_mismatch_behavior"


def check_thinking(body: Json, _: CacheRule) -> Violations:
    """Faults of how a request has the model think, and of the thoughts that it sends back."""
    thinking = mapping(body.get("thinking"))
    if thinking and thinking.get("type") not in MODES:
        yield refusal("thinking", "Input tag 'type' does not match any of the expected tags")
    for i, message in enumerate(body["messages"]):
        for j, block in enumerate(blocks(message["content"])):
            if block["type"] == "thinking":
                pair = signed(block["signature"])
                if pair is None or block["thinking"] not in ("", pair[0]):
                    yield refusal(f"messages.{i}.content.{j}", "Invalid `signature` in `thinking` block")
    yield from _check_binding(body, thinking)
    if thinking.get("type") in ("enabled", "adaptive"):
        for i, message in enumerate(body["messages"]):
            kinds = [block["type"] for block in blocks(message["content"])]
            if any(kind in THOUGHTS for kind in kinds) and kinds[0] not in THOUGHTS:
                why = "If an assistant message contains any thinking blocks, the first block must be `thinking` or "
                yield refusal(f"messages.{i}.content.0", f"{why}`redacted_thinking`. Found `{kinds[0]}`.")
    if thinking.get("type") == "enabled":
        budget, at = thinking.get("budget_tokens"), "thinking.enabled.budget_tokens"
        if not isinstance(budget, int):
            yield required(at)
        elif budget < LEAST_BUDGET:
            yield refusal(at, f"Input should be greater than or equal to {LEAST_BUDGET}")
        elif budget >= body.get("max_tokens", budget + 1):
            yield refusal("", "`max_tokens` must be greater than `thinking.budget_tokens`.")
        if body.get("temperature") not in (None, 1):
            yield refusal("", "`temperature` may only be set to 1 when thinking is enabled.")
        if mapping(body.get("tool_choice")).get("type") in ("any", "tool"):
            yield refusal("", "Thinking may not be enabled when tool_choice forces tool use.")
        yield from _loop_start(body["messages"])


def _loop_start(messages: Sequence[Json]) -> Violations:
    """In the tool loop in progress, the model's first message begins with a thought."""
    loop = tool_loop(messages)
    of_model = [message for message in loop if message.role == "assistant"]
    if not loop or loop[0].role == "assistant" or not of_model:
        return
    start = of_model[-1]
    kind = start.blocks[0]["type"] if start.blocks else "nothing"
    if kind not in THOUGHTS:
        why = f"Expected `thinking` or `redacted_thinking`, but found `{kind}`. When `thinking` is enabled, a final "
        why += "`assistant` message must start with a thinking block (preceding the lastmost set of `tool_use` and "
        yield refusal(f"messages.{start.at}.content.0.type", why + "`tool_result` blocks).")


# --- thoughts that are bound to the prompt before them ---


class PrefixDigest:
    def __init__(self, body: Json) -> None:
        self._hash = sha256()
        for tool in body.get("tools") or ():
            self.add("tool", tool)
        for block in blocks(body.get("system")):
            self.add("instructions", block)

    def add(self, role: str, block: Json) -> None:
        self._hash.update(sha256(jsontext.write([role, _comparable(block)])).digest())

    def __str__(self) -> str:
        return self._hash.hexdigest()[:PREFIX_DIGEST]

    def matches(self, thought: Json) -> bool:
        pair = signed(thought.get("signature"))
        return pair is None or pair[1] in ("", str(self))


def _comparable(block: Any) -> Any:
    if not isinstance(block, dict):
        return block
    if block.get("type") in THOUGHTS:  # the text may have been left out
        return [block.get("signature"), block.get("data")]
    fields = {key: value for key, value in sorted(unmarked(block).items()) if value is not None}
    if isinstance(fields.get("content"), str | list):
        fields["content"] = [_comparable(inner) for inner in blocks(fields["content"])]
    return fields


def bound_prefix(body: Json) -> tuple[PrefixDigest | None, list[tuple[int, int]]]:
    """The prompt that the model's next thought is bound to; None where the model binds none. And the thoughts that were
    made behind another prompt, each with those that follow it at once: the message's index, and the block's in it."""
    if not is_bound(str(body.get("model"))):
        return None, []
    prefix, mismatched, fails = PrefixDigest(body), [], False
    for i, message in enumerate(body["messages"]):
        for j, block in enumerate(blocks(message["content"])):
            fails = block["type"] in THOUGHTS and (fails or not prefix.matches(block))
            if fails:
                mismatched.append((i, j))
            prefix.add(message["role"], block)
    return prefix, mismatched


def dropped(body: Json) -> list[tuple[int, int]]:
    """The thoughts that are left out, where the request asks for that."""
    controls = mapping(mapping(body.get("thinking")).get("block_binding"))
    return bound_prefix(body)[1] if controls.get(BEHAVIOR) == "drop_block" else []


def _check_binding(body: Json, thinking: Json) -> Violations:
    at, controls = _binding_at(thinking), thinking.get("block_binding")
    if controls is not None and thinking.get("type") not in ("enabled", "adaptive"):
        yield extra(at)
    elif controls is not None and not isinstance(controls, dict):
        yield expected(at, "dictionary")
    elif controls is not None:
        for name in controls.keys() - {BEHAVIOR}:
            yield extra(f"{at}.{name}")
        if controls.get(BEHAVIOR) not in (None, "error", "drop_block"):
            yield refusal(f"{at}.{BEHAVIOR}", "Input should be 'error' or 'drop_block'")
    if mapping(controls).get(BEHAVIOR) != "drop_block":
        for i, j in bound_prefix(body)[1]:
            why = "Invalid `signature` in `thinking` block. The block is bound to a different conversation. Remove the "
            why += f'block, or set `thinking.block_binding.{BEHAVIOR}` to "drop_block".'
            yield refusal(f"messages.{i}.content.{j}", why)


def _binding_at(thinking: Json) -> str:
    return f"thinking.{thinking.get('type')}.block_binding"


# --- the headers that belong to it ---


def has_controls(headers: MultiMapping[str]) -> bool:
    """True where the request may choose what becomes of mismatched thoughts, and is told what did."""
    betas = ",".join(headers.getall("anthropic-beta", [])).split(",")
    return CONTROLS in map(str.strip, betas)


def missing_header(body: Json, headers: MultiMapping[str]) -> Violation | None:
    if VERSION not in headers:
        return Violation(f"{VERSION}: header is required")
    thinking = mapping(mapping(body).get("thinking"))
    return extra(_binding_at(thinking)) if "block_binding" in thinking and not has_controls(headers) else None


# --- the request as a whole ---

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
    if body.get("max_tokens") == 0:
        wants = {
            "stream": body.get("stream"),
            "thinking.type": mapping(body.get("thinking")).get("type") == "enabled",
            "output_config.format": mapping(body.get("output_config")).get("format"),
            "tool_choice.type": mapping(body.get("tool_choice")).get("type") in ("any", "tool"),
        }
        yield from (refusal(name, "not allowed with `max_tokens` of 0") for name, is_set in wants.items() if is_set)


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
        if tool.get("defer_loading") and tool.get("cache_control") is not None:
            yield refusal(at, "Tools with defer_loading: true cannot use prompt caching (cache_control).")
        if tool.get("name") in names:
            yield refusal("tools", "Tool names must be unique.")
        names.add(tool.get("name") or "")
    if names and all(mapping(tool).get("defer_loading") for tool in body["tools"]):
        yield refusal("tools", "At least one tool must have defer_loading=false. All tools cannot be deferred.")
    yield from _references(body, names)


def _references(body: Json, names: set[str]) -> Violations:
    """What a search of the client's has found stands among the tools."""
    for i, message in enumerate(body["messages"]):
        for block in blocks(message["content"]):
            for inner in blocks(block.get("content")) if block["type"] == "tool_result" else ():
                if inner["type"] == "tool_reference" and inner.get("tool_name") not in names:
                    why = f"Tool reference '{inner.get('tool_name')}' not found in available tools"
                    yield refusal(f"messages.{i}", why)


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


_ORDER: tuple[Check, ...] = (_results, _server_tools, _system_messages)
_SHARED = (_fields, _messages, _system, *_ORDER, _tools, _tool_choice, check_thinking, _marks)
COUNTING_CHECKS: tuple[Check, ...] = (_required, *_SHARED)
CHECKS: tuple[Check, ...] = (_required, _max_tokens, *_SHARED)
