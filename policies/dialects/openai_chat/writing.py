"""A text asked for in chat completions."""

from collections.abc import Sequence
from typing import Any

import msgspec

from policies.dialects.writing import Json, Writing, is_completion_limited, limit, text_of
from policies.text.summary_checks import End


class _Message(msgspec.Struct):
    content: str | list[dict[str, Any]] | None = None
    refusal: str | None = None
    tool_calls: list[Any] | None = None
    function_call: Any = None
    reasoning: Any = None
    reasoning_content: Any = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


def bodies(model: str, instructions: str, text: str, most: int) -> Sequence[Json]:
    """Where the name of a model does not say which limit it takes, its refusal does."""
    request = {
        "model": model,
        "messages": [
            {"role": "system", "content": instructions},
            {"role": "user", "content": text},
        ],
    }
    plain = {**request, "max_tokens": limit(most, model)}
    thinks = {**request, "max_completion_tokens": limit(most, model, thinks=True)}
    return (thinks, plain) if is_completion_limited(model) else (plain, thinks)


def answer(reply: Json) -> tuple[str, End]:
    choice = msgspec.convert(reply.get("choices"), list[_Choice])[0]
    message, finish = choice.message, (choice.finish_reason or "stop").lower()
    text = text_of(message.content if isinstance(message.content, list) else [{"text": message.content}])
    if message.refusal or finish == "content_filter":
        return text, "refusal"
    if message.tool_calls or message.function_call or finish in ("tool_calls", "function_call"):
        return text, "calls"
    if finish == "length":
        return text, "length"
    if not text and (message.content or message.reasoning or message.reasoning_content):
        return text, "reasoning"
    return text, "stop" if finish in ("stop", "end_turn", "eos", "stop_sequence") else "other"


WRITING = Writing(bodies=bodies, answer=answer)
