"""A text asked for in Responses: some of OpenAI's models are offered there alone."""

from collections.abc import Mapping
from typing import Any

import msgspec

from policies.dialects.common import object_at
from policies.dialects.writing import Json, Writing, is_completion_limited, limit, text_of
from policies.text.summary_checks import End

_CUT: Mapping[str, End] = {"max_output_tokens": "length", "content_filter": "refusal"}


class _Item(msgspec.Struct):
    type: str = "message"
    content: list[dict[str, Any]] | None = None


def body(model: str, instructions: str, text: str, most: int) -> Json:
    """The provider is asked not to store the reply."""
    return {
        "model": model,
        "input": text,
        "instructions": instructions,
        "max_output_tokens": limit(most, model, is_completion_limited(model)),
        "store": False,
    }


def answer(reply: Json) -> tuple[str, End]:
    output = msgspec.convert(reply.get("output"), list[_Item])
    parts = [part for item in output if item.type == "message" for part in item.content or ()]
    text = text_of([part for part in parts if part.get("type") == "output_text"])
    if reply.get("status", "completed") != "completed":
        return text, _CUT.get(str(object_at(reply, "incomplete_details").get("reason")), "other")
    if any(part.get("type") == "refusal" for item in output for part in item.content or ()):
        return text, "refusal"
    if any(item.type.endswith("_call") for item in output):
        return text, "calls"
    return text, "reasoning" if output and not text else "stop"


WRITING = Writing(bodies=lambda *assignment: (body(*assignment),), answer=answer)
