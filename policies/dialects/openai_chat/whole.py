"""The messages of a whole reply of OpenAI chat completions, as a client returns them with its next request.

Law: a reply that broke off, failed or has several choices has no messages; nothing here raises.
"""

from policies.dialects.common import object_at, objects, text_at
from policies.dialects.events import Json, joined_text

_FIELDS = ("role", "content", "refusal", "tool_calls")
_GROWING = ("arguments", "input")
"""The fields of a call that come in pieces."""


def whole_messages(reply: Json) -> list[Json]:
    choices = list(objects(reply.get("choices")))
    if len(choices) != 1 or not choices[0].get("finish_reason"):
        return []
    return [_message(object_at(choices[0], "message"))]


def _message(message: Json) -> Json:
    fields = {name: message[name] for name in _FIELDS if message.get(name)}
    return {"role": "assistant", "content": None, **fields}


def streamed_messages(events: list[Json]) -> list[Json]:
    texts: dict[str, list[str]] = {"content": [], "refusal": []}
    calls: dict[int, Json] = {}
    is_over = False
    for event in events:
        if "error" in event:
            return []
        for choice in objects(event.get("choices")):
            if choice.get("index", 0) != 0:
                return []
            delta = object_at(choice, "delta")
            for name, pieces in texts.items():
                pieces.append(text_at(delta, name))
            for place, piece in enumerate(objects(delta.get("tool_calls"))):
                index = piece.get("index", place)
                _add_call(calls.setdefault(index if isinstance(index, int) else place, {}), piece)
            is_over = is_over or bool(choice.get("finish_reason"))
    if not is_over:
        return []
    whole: Json = {name: joined_text(pieces) for name, pieces in texts.items()}
    return [_message({**whole, "tool_calls": [call for _, call in sorted(calls.items())]})]


def _add_call(call: Json, piece: Json) -> None:
    """Texts of what is called are added up, everything else is there once."""
    for name, value in piece.items():
        if isinstance(value, dict):
            before = object_at(call, name)
            grown = {key: text_at(before, key) + text_at(value, key) for key in _GROWING if key in value}
            call[name] = {**value, **before, **grown}
        elif name != "index" and value is not None:
            call.setdefault(name, value)
