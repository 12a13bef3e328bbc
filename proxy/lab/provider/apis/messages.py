"""The Messages API: how its requests are read as a prompt, and its replies written.

Types of the official SDK: Message, RawMessageStreamEvent.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from multidict import MultiMapping

from policies.dialects.anthropic_messages import ANTHROPIC_MESSAGES
from policies.money.prices import RESERVE
from proxy.lab.provider import jsontext
from proxy.lab.provider.answers import Json, ModelReply, Say, call_texts, pieces_of
from proxy.lab.provider.api import ANYTHING, MARK, Api, ClientApi, Violation, mapping, marked, newest_marked
from proxy.lab.provider.apis import messages_rules as rules
from proxy.lab.provider.apis.messages_rules import CHECKS, COUNTING_CHECKS, blocks
from proxy.lab.provider.prompt import (
    FILE,
    IMAGE,
    PromptMessage,
    PromptPiece,
    call_piece,
    marks_of,
    part_piece,
    tool_piece,
    unmarked,
)
from proxy.lab.provider.signatures import sign, thought_in

STOP_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens", "content_filter": "refusal"}
ERROR_TYPES = {401: "authentication_error", 404: "not_found_error"}
_DEFAULT_THOUGHT = "What is asked for, and what is there?"


def with_marks(body: Json) -> Json:
    """With marks on the system text, the end of the tools, and the newest message that can carry one."""
    request = {**body, "messages": newest_marked(body["messages"])}
    if body.get("system"):
        request["system"] = marked(body["system"])
    if body.get("tools"):
        request["tools"] = [*body["tools"][:-1], {**body["tools"][-1], **MARK}]
    return request


CLIENT = ClientApi(
    ANTHROPIC_MESSAGES,
    # a limit is required: what is left for an answer anyway, so that no session is planned by another one
    options={"max_tokens": RESERVE, "stream": True},
    tool=lambda name: {"name": name, "input_schema": ANYTHING},
    marked=with_marks,
)


class AnthropicMessages(Api):
    client = CLIENT
    path = "/v1/messages"
    counting_path = "/v1/messages/count_tokens"
    checks = CHECKS
    counting_checks = COUNTING_CHECKS
    request_id_header = "request-id"
    has_top_mark = True

    def missing_header(self, body: Json, headers: MultiMapping[str]) -> Violation | None:
        return rules.missing_header(body, headers)

    def overflow(self, tokens: int, window: int) -> Violation:
        return Violation(f"prompt is too long: {tokens} tokens > {window} maximum", "messages")

    def error_body(self, violation: Violation) -> bytes:
        error = {"type": ERROR_TYPES.get(violation.status, "invalid_request_error"), "message": violation.message}
        return jsontext.write({"type": "error", "error": error})

    def entries(self, body: Json) -> list[Json]:
        """The system text and the messages, as the model is shown them: without the thoughts that are dropped."""
        system = [{"role": "system", "content": body["system"]}] if body.get("system") else []
        without = frozenset(rules.dropped(body))
        messages = []
        definitions = {tool.get("name"): tool for tool in body.get("tools") or ()}
        for i, message in enumerate(body["messages"]):
            content = [_with_definitions(block, definitions) for block in blocks(message["content"])]
            message = {**message, "content": content} if b"tool_reference" in jsontext.write(message) else message
            others = [block for j, block in enumerate(content) if (i, j) not in without]
            if len(others) == len(content):
                messages.append(message)
            elif others:
                messages.append({**message, "content": others})
        return [*system, *messages]

    def messages(self, entry: Json) -> Iterator[PromptMessage]:
        """The prompt of a message: tool results become messages of the role `tool`, as in the other APIs."""
        content = blocks(entry["content"])
        if entry["role"] != "user":
            yield PromptMessage(entry["role"], tuple(map(_piece, content)), joins=True)
            return
        for is_result, run in groupby(content, lambda block: bool(block["type"] == "tool_result")):
            if not is_result:
                yield PromptMessage("user", tuple(map(_piece, run)), joins=True)
                continue
            for block in run:
                extras = {"is_error": True} if block.get("is_error") else {}
                pieces = tuple(map(_piece, blocks(block.get("content"))))
                yield PromptMessage("tool", pieces, block["tool_use_id"], extras, marks_of(block))

    def tool(self, definition: Json) -> PromptPiece:
        plain = unmarked(definition)
        if "input_schema" in plain:
            plain.pop("type", None)
            renamed = {"parameters" if key == "input_schema" else key: value for key, value in plain.items()}
            plain = {"type": "function", "function": renamed}
        return tool_piece(plain, marks_of(definition))

    def adapt(self, say: Say, body: Json) -> Say:
        """A model whose thinking is enabled thinks first, and one whose thinking is disabled does not; one that may say
        nothing does not answer."""
        if body.get("max_tokens") == 0:
            return Say(finish="length", wire=say.wire)
        kind = mapping(body.get("thinking")).get("type")
        if kind == "disabled":
            return replace(say, thinking=())
        return replace(say, thinking=(_DEFAULT_THOUGHT,)) if kind == "enabled" and not say.thinking else say

    def json_reply(self, reply: ModelReply) -> Json:
        return _message(reply, list(_content(reply)), _stop_reason(reply), reply.usage.completion)

    def events(self, reply: ModelReply) -> Iterator[dict[str, Any]]:
        yield {"type": "message_start", "message": _message(reply, [], None, 1)}
        for index, block in enumerate(_content(reply)):
            start, deltas = _grow(block, reply.say)
            yield {"type": "content_block_start", "index": index, "content_block": start}
            if not index:
                yield {"type": "ping"}
            for delta in deltas:
                yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
        usage = _usage(reply, reply.usage.completion)
        del usage["cache_creation"]
        delta = {"stop_reason": _stop_reason(reply), "stop_sequence": None}
        yield {"type": "message_delta", "delta": delta, "usage": usage}
        yield {"type": "message_stop"}

    def recorded_answers(self, history: Sequence[Json]) -> list[Say]:
        return [_recorded(blocks(message["content"])) for message in history if message["role"] == "assistant"]


# --- as a prompt ---

_TEXTS = {"text": "text"}
_SIZES = {"image": IMAGE, "document": FILE}


def _piece(block: Json) -> PromptPiece:
    if block["type"] == "tool_use":
        return call_piece(block["id"], block["name"], jsontext.write(block["input"]).decode(), marks_of(block))
    if block["type"] == "thinking":
        return PromptPiece("thinking", thought_in(block["signature"]), markable=False)
    if block["type"] == "redacted_thinking":
        return PromptPiece("redacted_thinking", beside=block["data"], markable=False)
    return part_piece(block, _TEXTS, _SIZES)


def _with_definitions(block: Json, definitions: Mapping[str, Json]) -> Json:
    """A result with the definitions of the tools that it refers to."""
    if block["type"] != "tool_result" or not isinstance(block.get("content"), list):
        return block
    content = [
        {**inner, "definition": definitions[inner["tool_name"]]} if inner["type"] == "tool_reference" else inner
        for inner in block["content"]
    ]
    return {**block, "content": content}


# --- as a reply ---


def _input_transformations(body: Json, headers: MultiMapping[str]) -> dict[str, Any]:
    """The field of the reply that lists the thoughts that were left out, where the request may have it."""
    if not rules.has_controls(headers):
        return {}
    entry = {"type": "thinking_dropped", "reason": "prefix_binding_mismatch"}
    return {"input_transformations": [{**entry, "path": f"messages.{i}.content.{j}"} for i, j in rules.dropped(body)]}


def _message(reply: ModelReply, content: list[Json], stop_reason: str | None, completion: int) -> dict[str, Any]:
    return {
        "id": reply.id("msg_"),
        "type": "message",
        "role": "assistant",
        "model": reply.request["model"],
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": _usage(reply, completion) | {"service_tier": "standard"},
        **_input_transformations(reply.request, reply.headers),
    }


def _stop_reason(reply: ModelReply) -> str:
    return STOP_REASONS.get(reply.say.finish_reason, reply.say.finish_reason)


def _usage(reply: ModelReply, completion: int) -> dict[str, Any]:
    """Tokens read from the cache or written to it are not counted as input."""
    return {
        "input_tokens": reply.usage.prompt - reply.usage.cached - reply.usage.written,
        "cache_creation_input_tokens": reply.usage.written,
        "cache_read_input_tokens": reply.usage.cached,
        "cache_creation": reply.cache_creation,
        "output_tokens": completion,
    }


def _content(reply: ModelReply) -> Iterator[Json]:
    omitted = mapping(reply.request.get("thinking")).get("display") == "omitted"
    prefix = rules.bound_prefix(reply.request)[0] if reply.say.thinking else None
    for thought in reply.say.thinking:
        signature = sign(thought, str(prefix) if prefix else "")
        block = {"type": "thinking", "thinking": "" if omitted else thought, "signature": signature}
        if prefix:
            prefix.add("assistant", block)
        yield block
    if reply.say.content:
        yield {"type": "text", "text": reply.say.content}
    for call in reply.say.calls:
        name, text = call_texts(call)
        yield {"type": "tool_use", "id": call["id"], "name": name, "input": jsontext.read(_object_text(text))}


def _object_text(text: str) -> str:
    """Arguments as the text of the object that this API requires."""
    try:
        value = jsontext.read(text)
    except jsontext.NotJSONError:
        value = text
    return text if isinstance(value, dict) else jsontext.write({"input": value}).decode()


def _grow(block: Json, say: Say) -> tuple[Json, Sequence[Json]]:
    """A block as it begins in a stream, and the deltas that complete it."""
    if block["type"] == "text":
        deltas = [{"type": "text_delta", "text": piece} for piece in pieces_of(block["text"], say.pieces)]
        return {**block, "text": ""}, deltas
    if block["type"] == "thinking":
        pieces = pieces_of(block["thinking"], say.pieces)
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces]
        signature = {"type": "signature_delta", "signature": block["signature"]}
        return {**block, "thinking": "", "signature": ""}, [*deltas, signature]
    text = next(call_texts(call)[1] for call in say.calls if call["id"] == block["id"])
    parts = ["", *pieces_of(_object_text(text), say.pieces)]
    return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": part} for part in parts]


def _recorded(content: Sequence[Json]) -> Say:
    texts = [block["text"] for block in content if block["type"] == "text"]
    calls = []
    for block in content:
        if block["type"] == "tool_use":
            function = {"name": block["name"], "arguments": jsontext.write(block["input"]).decode()}
            calls.append({"id": block["id"], "type": "function", "function": function})
    thoughts = [
        block["thinking"] or thought_in(block.get("signature")) for block in content if block["type"] == "thinking"
    ]
    return Say("".join(texts) if texts else None, tuple(calls), thinking=tuple(thoughts))
