"""What the model says, as chat completions say it. What it thinks is billed and not shown."""

from collections.abc import Iterator, Sequence
from typing import Any

from proxy.lab.provider import jsontext
from proxy.lab.provider.answers import (
    CREATED,
    Json,
    Reply,
    Say,
    Turn,
    call_texts,
    framed,
    pieces_of,
    streamed,
    whole,
)


def spoken(turn: Turn) -> Reply:
    """The reply to a chat completion: one object, or a stream of chunks where the request asks for one."""
    identity = turn.identity("chatcmpl-")
    head = {"id": identity, "created": CREATED, "model": turn.asked["model"]}
    headers = (("x-request-id", identity.replace("chatcmpl-", "req_")),)
    wire = turn.say.wire
    if turn.asked.get("stream"):
        events = [framed(jsontext.write(chunk), wire) for chunk in _chunks(turn, head)]
        return streamed([*events, framed(b"[DONE]", wire)], headers, wire)
    return whole(_completion(turn, head), headers, wire)


def _completion(turn: Turn, head: Json) -> dict[str, Any]:
    choice = {"message": _message(turn.say), "logprobs": None, "finish_reason": turn.say.reason}
    choices = [{"index": index, **choice} for index in range(choices_of(turn.asked))]
    return {**head, "object": "chat.completion", "choices": choices, "usage": _usage(turn)}


def _message(say: Say) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": say.content, "refusal": None}
    return message | ({"tool_calls": list(say.calls)} if say.calls else {})


def meant(say: Say, _: Json) -> Say:
    """What is said to such a request."""
    return say


def choices_of(asked: Json) -> int:
    """How many answers are asked for at once."""
    return asked.get("n") or 1


def _chunks(turn: Turn, head: Json) -> Iterator[dict[str, Any]]:
    """Every chunk of the stream; where usage was asked for, all carry the field and one more fills it."""
    asks_usage = bool((turn.asked.get("stream_options") or {}).get("include_usage"))
    ahead = {**head, "object": "chat.completion.chunk"}
    behind: dict[str, Any] = {"usage": None} if asks_usage else {}
    for index in range(choices_of(turn.asked)):
        for delta, reason in _deltas(turn.say):
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
            yield {**ahead, "choices": [choice], **behind}
    if asks_usage:
        yield {**ahead, "choices": [], "usage": _usage(turn)}


def _deltas(say: Say) -> Iterator[tuple[dict[str, Any], str | None]]:
    yield {"role": "assistant", "content": "" if say.content is not None else None, "refusal": None}, None
    for text in pieces_of(say.content or "", say.pieces):
        yield {"content": text}, None
    for index, call in enumerate(say.calls):
        for fragment in _call_fragments(call, say.pieces):
            yield {"tool_calls": [{"index": index, **fragment}]}, None
    yield {}, say.reason


def _call_fragments(call: Json, pieces: int) -> Iterator[dict[str, Any]]:
    """First who is called, then the growing text of the arguments (or of a custom tool's input)."""
    kind = call["type"]
    key = "arguments" if kind == "function" else "input"
    name, text = call_texts(call)
    yield {"id": call["id"], "type": kind, kind: {"name": name, key: ""}}
    for piece in pieces_of(text, pieces):
        yield {kind: {key: piece}}


def _usage(turn: Turn) -> dict[str, Any]:
    """Usage in the API's own words. Writes are reported as OpenAI does from GPT-5.6 on, and for how long they are kept
    as LiteLLM does."""
    usage = turn.usage
    created = {
        "ephemeral_5m_input_tokens": usage.written - usage.written_longer,
        "ephemeral_1h_input_tokens": usage.written_longer,
    }
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {
            "cached_tokens": usage.cached,
            "cache_write_tokens": usage.written,
            "cache_creation_token_details": created,
            "audio_tokens": 0,
        },
        "completion_tokens_details": {"reasoning_tokens": turn.thought, "audio_tokens": 0},
    }


def answers(messages: Sequence[Json]) -> list[Say]:
    """What the model says in a recorded session, one answer after the other."""
    return [
        Say(_text(message.get("content")), tuple(message.get("tool_calls") or ()))
        for message in messages
        if message["role"] == "assistant"
    ]


def _text(content: Any) -> str | None:
    """What a recorded message says: an answer has no parts."""
    return "".join(part.get("text", "") for part in content) if isinstance(content, list) else content


def answered(body: Json) -> int:
    """How many answers the history of a request holds."""
    return sum(1 for message in body["messages"] if message["role"] == "assistant")
