"""Chat completions: what a strict provider answers with 400, how messages are read and replies are written.

Laws
  Thoughts are billed and not shown.
  A tool-call id names a call within one assistant message only: real clients use it again in a later one.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from policies.dialects.openai_chat import OPENAI_CHAT
from policies.money.caches import CacheRule
from proxy.lab.provider.answers import CALL_TEXTS, CREATED, Json, ModelReply, Say, call_texts, pieces_of
from proxy.lab.provider.api import (
    ANYTHING,
    BREAKPOINT,
    MAX_MARKS,
    MAX_TOOLS,
    Api,
    Check,
    ClientApi,
    Violation,
    Violations,
    cache_options,
    check_breakpoint,
    empty,
    holds_object,
    invalid,
    mapping,
    marked,
    misfits,
    missing,
    model_named,
    newest_marked,
    wrong_type,
)
from proxy.lab.provider.prompt import (
    AUDIO,
    FILE,
    IMAGE,
    MARKS,
    PromptMessage,
    PromptPiece,
    call_piece,
    marks_of,
    part_piece,
    tool_piece,
    unmarked,
)

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def _messages(body: Json, _: CacheRule) -> Violations:
    messages = body.get("messages")
    if messages is None:
        yield missing("messages")
    elif not isinstance(messages, list):
        yield wrong_type("messages", "an array of objects")
    elif not messages:
        yield empty("messages", "message")


# --- each message by itself ---


ROLES = ("system", "developer", "user", "assistant", "tool")
ASSISTANT_FIELDS = ("content", "tool_calls", "function_call", "refusal", "audio")
"""An assistant message must have one of them."""


def _shapes(body: Json, _: CacheRule) -> Violations:
    for i, message in enumerate(body["messages"]):
        at = f"messages[{i}]"
        if not isinstance(message, dict):
            yield wrong_type(at, "an object")
        elif str(message.get("role")) not in ROLES:
            yield invalid(f"{at}.role", f"expected one of {', '.join(ROLES)}")
        elif message["role"] == "assistant":
            if all(message.get(key) is None for key in ASSISTANT_FIELDS):
                yield invalid(f"{at}.content", "one of content and tool calls is required")
            if message.get("content") is not None:
                yield from _content(message["content"], f"{at}.content")
            if message.get("tool_calls") is not None:
                yield from _calls(message["tool_calls"], f"{at}.tool_calls")
        else:
            if message["role"] == "tool" and not isinstance(message.get("tool_call_id"), str):
                yield missing(f"{at}.tool_call_id")
            yield from _content(message.get("content"), f"{at}.content")


def _content(content: object, at: str) -> Violations:
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        yield wrong_type(at, "a string or an array of content parts")
    elif not content:
        yield empty(at, "part")
    else:
        for i, part in enumerate(content):
            if not isinstance(part, dict) or not isinstance(part.get("type"), str):
                yield wrong_type(f"{at}[{i}]", "an object with a 'type'")
            elif part["type"] == "text" and not isinstance(part.get("text"), str):
                yield wrong_type(f"{at}[{i}].text", "a string")


def _calls(calls: object, at: str) -> Violations:
    if not isinstance(calls, list):
        yield wrong_type(at, "an array of objects")
        return
    if not calls:
        yield empty(at, "call")
    ids: set[str] = set()
    for i, call in enumerate(calls):
        yield from _call(call, f"{at}[{i}]")
        if call["id"] in ids:
            yield invalid(f"{at}[{i}].id", f"'{call['id']}' is the id of an earlier call of the same message")
        ids.add(call["id"])


def _call(call: object, at: str) -> Violations:
    if not isinstance(call, dict):
        yield wrong_type(at, "an object")
        return
    kind = str(call.get("type"))
    inner = mapping(call.get(kind))
    name, text = inner.get("name"), inner.get(CALL_TEXTS.get(kind, ""))
    if not isinstance(call.get("id"), str) or not call["id"]:
        yield missing(f"{at}.id")
    elif kind not in CALL_TEXTS:
        yield invalid(f"{at}.type", f"expected one of {', '.join(CALL_TEXTS)}")
    elif kind == "custom":
        if not isinstance(name, str) or not isinstance(text, str):
            yield wrong_type(f"{at}.custom", "an object with a 'name' and an 'input'")
    elif not isinstance(name, str) or not name:
        yield missing(f"{at}.function.name")
    elif not isinstance(text, str):
        yield wrong_type(f"{at}.function.arguments", "a string")
    elif not holds_object(text):
        yield invalid(f"{at}.function.arguments", "it must be the text of a JSON object")


# --- the messages in their order ---


def _order(body: Json, _: CacheRule) -> Violations:
    """Each result answers a call of the nearest assistant message, each call is answered, and once."""
    waiting: dict[str, str] = {}
    """By the id of a call without an answer: the message that made it."""
    answered: set[str] = set()
    for i, message in enumerate(body["messages"]):
        at = f"messages[{i}]"
        if message["role"] != "tool":
            yield from _unanswered(waiting)
            calls = message.get("tool_calls") or () if message["role"] == "assistant" else ()
            waiting, answered = {call["id"]: at for call in calls}, set()
            continue
        call_id = message["tool_call_id"]
        if call_id in answered:
            yield invalid(f"{at}.tool_call_id", f"the call '{call_id}' is answered already")
        elif call_id not in waiting:
            why = f"a 'tool' message must answer one of the 'tool_calls' before it, and none of them is '{call_id}'"
            yield invalid(f"{at}.tool_call_id", why)
        waiting.pop(call_id, None)
        answered.add(call_id)
    yield from _unanswered(waiting)


def _unanswered(waiting: Mapping[str, str]) -> Violations:
    for call_id, at in waiting.items():
        why = f"each of them must be followed by a 'tool' message that answers it, and '{call_id}' is not"
        yield invalid(f"{at}.tool_calls", why)


# --- tools ---


def _tools(body: Json, _: CacheRule) -> Violations:
    tools = body.get("tools")
    if tools is None:
        return
    if not isinstance(tools, list) or not tools:
        yield wrong_type("tools", "an array of at least one object")
        return
    if len(tools) > MAX_TOOLS:
        why = f"'tools' holds {len(tools)} tools; {MAX_TOOLS} are allowed."
        yield Violation(why, "tools", "array_above_max_length")
    names = set[object]()
    for i, tool in enumerate(tools):
        at = f"tools[{i}]"
        is_named = isinstance(tool, dict) and str(tool.get("type")) in CALL_TEXTS
        name = mapping(tool.get(tool["type"])).get("name") if is_named else None
        if not isinstance(name, str):
            yield wrong_type(at, "an object with a 'type' and a named 'function' or 'custom' tool")
        elif not TOOL_NAME.fullmatch(name):
            yield invalid(at, f"the name does not match ^{TOOL_NAME.pattern}$")
        elif name in names:
            yield invalid(at, f"'{name}' is the name of an earlier tool")
        names.add(name)


def _tool_choice(body: Json, _: CacheRule) -> Violations:
    if body.get("tool_choice") is not None and not body.get("tools"):
        yield Violation("'tool_choice' is only allowed when 'tools' are given.", "tool_choice")


# --- cache marks ---


def _markable(body: Json) -> Iterator[tuple[str, str, Json]]:
    """Where a mark may stand: the address, the role (`part:ROLE` for a content part), the object."""
    for i, tool in enumerate(body.get("tools") or ()):
        yield f"tools[{i}]", "tools", tool
        yield f"tools[{i}].{tool['type']}", "tools", tool[tool["type"]]
    for i, message in enumerate(body["messages"]):
        yield f"messages[{i}]", message["role"], message
        if isinstance(message.get("content"), list):
            for j, part in enumerate(message["content"]):
                yield f"messages[{i}].content[{j}]", f"part:{message['role']}", part


def _cache_control(body: Json, _: CacheRule) -> Violations:
    places = _markable(body)
    marks = [(f"{at}.cache_control", holder) for at, _, holder in places if holder.get("cache_control") is not None]
    for at, holder in marks:
        if "type" not in mapping(holder["cache_control"]):
            yield wrong_type(at, "an object with a 'type'")
        if "" in (holder.get("text"), holder.get("content")):
            yield invalid(at, "an empty text cannot be marked")
    if len(marks) > MAX_MARKS:
        yield invalid(marks[MAX_MARKS][0], f"{len(marks)} blocks are marked, and {MAX_MARKS} may be")


BREAKPOINT_ROLES = ("part:system", "part:developer", "part:user", "part:tool")


def _breakpoints(body: Json, rule: CacheRule) -> Violations:
    for at, role, holder in _markable(body):
        yield from check_breakpoint(at, holder, allowed=rule.mark == BREAKPOINT and role in BREAKPOINT_ROLES)


# --- the rest of the body ---

FIELDS: Mapping[str, str] = {
    "temperature": "a number",
    "top_p": "a number",
    "max_tokens": "a positive integer",
    "max_completion_tokens": "a positive integer",
    "n": "a positive integer",
    "stream": "a boolean",
    "stream_options": "an object",
    "prompt_cache_options": "an object",
}


def _fields(body: Json, _: CacheRule) -> Violations:
    yield from misfits(body, FIELDS)
    if body.get("stream_options") is not None and not body.get("stream"):
        yield Violation("'stream_options' is only allowed when 'stream' is true.", "stream_options")


CHECKS: tuple[Check, ...] = (
    model_named,
    _messages,
    _fields,
    _shapes,
    _order,
    _tools,
    _tool_choice,
    _cache_control,
    _breakpoints,
    cache_options,
)

# --- prompts and replies ---

_FIELDS = frozenset({"role", "content", "tool_calls", "tool_call_id"}) | MARKS
_TEXTS = {"text": "text"}
_SIZES = {"image_url": IMAGE, "input_audio": AUDIO, "file": FILE}


def with_marks(body: Json) -> Json:
    """With marks on the first message (system text where there is any) and on the newest that can carry one."""
    first, *others = body["messages"]
    return {**body, "messages": [{**first, "content": marked(first.get("content"))}, *newest_marked(others)]}


CLIENT = ClientApi(
    OPENAI_CHAT,
    options={"stream": True, "stream_options": {"include_usage": True}},
    tool=lambda name: {"type": "function", "function": {"name": name, "parameters": ANYTHING}},
    marked=with_marks,
)


class OpenAIChat(Api):
    client = CLIENT
    path = "/v1/chat/completions"
    checks = CHECKS
    stream_end = (b"[DONE]",)
    choices_field = "n"

    def overflow(self, tokens: int, window: int) -> Violation:
        why = f"This model's context window is {window} tokens, and the messages and tools hold {tokens}."
        return Violation(why, "messages", "context_length_exceeded")

    def messages(self, entry: Json) -> tuple[PromptMessage, ...]:
        extras = {key: value for key, value in entry.items() if key not in _FIELDS and value is not None}
        content, calls = entry.get("content"), entry.get("tool_calls") or ()
        pieces: list[PromptPiece] = []
        if isinstance(content, list):
            pieces = [part_piece(part, _TEXTS, _SIZES) for part in content]
        elif content or (content is not None and not calls):
            pieces = [PromptPiece("text", content)]
        pieces += (call_piece(call["id"], *call_texts(call), marks_of(call)) for call in calls)
        return (PromptMessage(entry["role"], tuple(pieces), entry.get("tool_call_id"), extras, marks_of(entry)),)

    def tool(self, definition: Json) -> PromptPiece:
        inner = definition[definition["type"]]
        plain = unmarked(definition) | {definition["type"]: unmarked(inner)}
        return tool_piece(plain, marks_of(definition) | marks_of(inner))

    def json_reply(self, reply: ModelReply) -> Json:
        say = reply.say
        message: dict[str, Any] = {"role": "assistant", "content": say.content, "refusal": None}
        if say.calls:
            message["tool_calls"] = list(say.calls)
        choice = {"message": message, "logprobs": None, "finish_reason": say.finish_reason}
        choices = [{"index": index, **choice} for index in range(reply.request.get("n") or 1)]
        return {**_head(reply), "object": "chat.completion", "choices": choices, "usage": _usage(reply)}

    def events(self, reply: ModelReply) -> Iterator[dict[str, Any]]:
        """Every chunk; where the request wants usage, all carry the field and one more fills it."""
        with_usage = bool((reply.request.get("stream_options") or {}).get("include_usage"))
        head = {**_head(reply), "object": "chat.completion.chunk"}
        tail: dict[str, Any] = {"usage": None} if with_usage else {}
        for index in range(reply.request.get("n") or 1):
            for delta, reason in _deltas(reply.say):
                choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
                yield {**head, "choices": [choice], **tail}
        if with_usage:
            yield {**head, "choices": [], "usage": _usage(reply)}

    def recorded_answers(self, history: Sequence[Json]) -> list[Say]:
        answers = []
        for message in history:
            if message["role"] == "assistant":
                content = message.get("content")
                if isinstance(content, list):  # an answer has no parts
                    content = "".join(part.get("text", "") for part in content)
                answers.append(Say(content, tuple(message.get("tool_calls") or ())))
        return answers


def _head(reply: ModelReply) -> Json:
    return {"id": reply.id("chatcmpl-"), "created": CREATED, "model": reply.request["model"]}


def _deltas(say: Say) -> Iterator[tuple[dict[str, Any], str | None]]:
    """The addition of each chunk to the message, and the finish reason of the last."""
    yield {"role": "assistant", "content": "" if say.content is not None else None, "refusal": None}, None
    for text in pieces_of(say.content or "", say.pieces):
        yield {"content": text}, None
    for index, call in enumerate(say.calls):
        kind, key = call["type"], CALL_TEXTS[call["type"]]
        name, text = call_texts(call)
        yield {"tool_calls": [{"index": index, "id": call["id"], "type": kind, kind: {"name": name, key: ""}}]}, None
        for piece in pieces_of(text, say.pieces):
            yield {"tool_calls": [{"index": index, kind: {key: piece}}]}, None
    yield {}, say.finish_reason


def _usage(reply: ModelReply) -> dict[str, Any]:
    """Writes are reported as OpenAI does from GPT-5.6 on, and their lifetimes as LiteLLM does."""
    usage = reply.usage
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {
            "cached_tokens": usage.cached,
            "cache_write_tokens": usage.written,
            "cache_creation_token_details": reply.cache_creation,
            "audio_tokens": 0,
        },
        "completion_tokens_details": {"reasoning_tokens": reply.reasoning_tokens, "audio_tokens": 0},
    }
