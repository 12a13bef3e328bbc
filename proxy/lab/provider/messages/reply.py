"""What the model says, as the Messages API says it (types of the official SDK: Message, RawMessageStreamEvent)."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from proxy.lab.provider import jsontext
from proxy.lab.provider.answers import Json, Reply, Say, Turn, call_texts, framed, pieces_of, streamed, whole
from proxy.lab.provider.messages.bound import prefix_of, transformations
from proxy.lab.provider.messages.prompt import blocks
from proxy.lab.provider.messages.signatures import sign, thought_of
from proxy.lab.provider.rules import Violation, mapping

STOPS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens", "content_filter": "refusal"}
KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
}
_THOUGHT = "What is asked for, and what is there?"


def meant(say: Say, asked: Json) -> Say:
    """What is said to such a request: a model whose thinking is turned on thinks first, and one whose thinking is off
    does not."""
    kind = mapping(asked.get("thinking")).get("type")
    if kind == "disabled":
        return replace(say, thinking=())
    return replace(say, thinking=(_THOUGHT,)) if kind == "enabled" and not say.thinking else say


def reply(turn: Turn) -> Reply:
    """The reply to a request: one message, or a stream of events where the request asks for one."""
    headers = (("request-id", turn.identity("req_")),)
    wire = turn.say.wire
    if turn.asked.get("stream"):
        events = [framed(jsontext.write(event), wire, event["type"]) for event in _events(turn)]
        return streamed(events, headers, wire)
    return whole(_message(turn, list(_content(turn)), _stop(turn), turn.usage.completion), headers, wire)


def _message(turn: Turn, content: list[Json], stop: str | None, completion: int) -> dict[str, Any]:
    return {
        "id": turn.identity("msg_"),
        "type": "message",
        "role": "assistant",
        "model": turn.asked["model"],
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": _usage(turn, completion) | {"service_tier": "standard"},
        **transformations(turn.asked, turn.headers),
    }


def _stop(turn: Turn) -> str:
    return STOPS.get(turn.say.reason, turn.say.reason)


def _usage(turn: Turn, completion: int) -> dict[str, Any]:
    """Usage in the API's own words: what was read from the cache or written to it is no input."""
    usage = turn.usage
    return {
        "input_tokens": usage.prompt - usage.cached - usage.written,
        "cache_creation_input_tokens": usage.written,
        "cache_read_input_tokens": usage.cached,
        "cache_creation": {
            "ephemeral_5m_input_tokens": usage.written - usage.written_longer,
            "ephemeral_1h_input_tokens": usage.written_longer,
        },
        "output_tokens": completion,
    }


def _content(turn: Turn) -> Iterator[Json]:
    yield from _thoughts(turn)
    if turn.say.content:
        yield {"type": "text", "text": turn.say.content}
    for call in turn.say.calls:
        name, text = call_texts(call)
        yield {"type": "tool_use", "id": call["id"], "name": name, "input": jsontext.read(_object(text))}


def _thoughts(turn: Turn) -> Iterator[Json]:
    omitted = mapping(turn.asked.get("thinking")).get("display") == "omitted"
    prefix = prefix_of(turn.asked) if turn.say.thinking else None
    for thought in turn.say.thinking:
        signature = sign(thought, prefix.digest if prefix else "")
        block = {"type": "thinking", "thinking": "" if omitted else thought, "signature": signature}
        if prefix:
            prefix.add("assistant", block)
        yield block


def _object(text: str) -> str:
    """Arguments as the object that this API has for them."""
    try:
        read = jsontext.read(text)
    except jsontext.NotJSONError:
        read = text
    return text if isinstance(read, dict) else jsontext.write({"input": read}).decode()


def _events(turn: Turn) -> Iterator[dict[str, Any]]:
    yield {"type": "message_start", "message": _message(turn, [], None, 1)}
    for index, block in enumerate(_content(turn)):
        at = {"index": index}
        start, deltas = DELTAS[block["type"]](turn.say, block)
        yield {"type": "content_block_start", **at, "content_block": start}
        if not index:
            yield {"type": "ping"}
        for delta in deltas:
            yield {"type": "content_block_delta", **at, "delta": delta}
        yield {"type": "content_block_stop", **at}
    delta = {"stop_reason": _stop(turn), "stop_sequence": None}
    usage = _usage(turn, turn.usage.completion)
    del usage["cache_creation"]
    yield {"type": "message_delta", "delta": delta, "usage": usage}
    yield {"type": "message_stop"}


Grown = tuple[Json, Iterator[Json]]
"""A block as it begins, and what is added to it."""


def _thinking(say: Say, block: Json) -> Grown:
    thoughts = ({"type": "thinking_delta", "thinking": piece} for piece in pieces_of(block["thinking"], say.pieces))
    signature = {"type": "signature_delta", "signature": block["signature"]}
    return {**block, "thinking": "", "signature": ""}, iter([*thoughts, signature])


def _text(say: Say, block: Json) -> Grown:
    return {**block, "text": ""}, (
        {"type": "text_delta", "text": piece} for piece in pieces_of(block["text"], say.pieces)
    )


def _tool_use(say: Say, block: Json) -> Grown:
    written = next(call_texts(call)[1] for call in say.calls if call["id"] == block["id"])
    pieces = ["", *pieces_of(_object(written), say.pieces)]
    return {**block, "input": {}}, ({"type": "input_json_delta", "partial_json": piece} for piece in pieces)


DELTAS = {"thinking": _thinking, "text": _text, "tool_use": _tool_use}


def refused(violation: Violation) -> bytes:
    """The body of an error reply; what the parameter is, its message says."""
    error = {"type": KINDS.get(violation.status, "invalid_request_error"), "message": violation.message}
    return jsontext.write({"type": "error", "error": error})


def overflow(tokens: int, window: int) -> Violation:
    """The prompt does not fit the window."""
    return Violation(f"prompt is too long: {tokens} tokens > {window} maximum", "messages")


def choices_of(_: Json) -> int:
    """This API gives one answer."""
    return 1


def answers(messages: Sequence[Json]) -> list[Say]:
    """What the model says in a recorded session, one answer after the other."""
    return [_said(blocks(message["content"])) for message in messages if message["role"] == "assistant"]


def _said(content: Sequence[Json]) -> Say:
    texts = [block["text"] for block in content if block["type"] == "text"]
    calls = [
        {"id": b["id"], "type": "function", "function": {"name": b["name"], "arguments": _arguments(b["input"])}}
        for b in content
        if b["type"] == "tool_use"
    ]
    thoughts = [_thought(block) for block in content if block["type"] == "thinking"]
    return Say("".join(texts) if texts else None, tuple(calls), thinking=tuple(thoughts))


def _arguments(value: Json) -> str:
    return jsontext.write(value).decode()


def _thought(block: Json) -> str:
    text: str = block["thinking"]
    return text or thought_of(block.get("signature"))


def answered(body: Json) -> int:
    """How many answers the history of a request holds."""
    return sum(1 for message in body["messages"] if message["role"] == "assistant")
