"""A text asked for in Messages."""

from collections.abc import Mapping
from typing import Any

import msgspec

from policies.dialects.writing import Json, Writing, limit, text_of
from policies.text.summary_checks import End

_ENDS: Mapping[str, End] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "calls",
    "refusal": "refusal",
}


def body(model: str, instructions: str, text: str, most: int) -> Json:
    return {
        "max_tokens": limit(most, model),
        "messages": [{"role": "user", "content": text}],
        "model": model,
        "system": instructions,
    }


def answer(reply: Json) -> tuple[str, End]:
    blocks = msgspec.convert(reply.get("content"), list[dict[str, Any]])
    text = text_of([block for block in blocks if block.get("type") == "text"])
    if any(block.get("type") in ("tool_use", "server_tool_use") for block in blocks):
        return text, "calls"
    end = _ENDS.get(str(reply.get("stop_reason")), "other")
    return text, "reasoning" if end == "stop" and blocks and not text else end


WRITING = Writing(bodies=lambda *assignment: (body(*assignment),), answer=answer)
