"""The messages of a whole reply, as a client returns them with its next request.

Law: a reply that broke off, failed or has several choices has no messages; nothing here raises.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress

from policies.dialects.common import as_json, list_at, object_at, objects, text_at
from policies.dialects.events import Json, document, is_plain, joined_text, read_event, text_of

_TEXTS: Mapping[str, str] = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
"""Pieces of a block of Anthropic's, and the field that they are added to."""
_CHAT_FIELDS = ("role", "content", "refusal", "tool_calls")
_GROWING = ("arguments", "input")
"""The fields of a call that come in pieces."""
_WHOLE = ("completed", "incomplete", None)


def messages_of(dialect: str, reply: bytes) -> list[bytes]:
    """The messages of the reply to a request of an API: what its client received of it, as one text of events or as
    JSON. There are none where it is not whole."""
    if is_plain(reply):
        whole = document(text_of(reply))
        messages = _PLAIN[dialect](whole) if whole else []
    else:
        blocks = reply.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n\n")
        events = [event for event in map(read_event, blocks) if event is not None]
        messages = _STREAMED[dialect](events)
    with suppress(RecursionError):  # nested deeper than can be written
        return [as_json(message) for message in messages]
    return []


def _chat_plain(reply: Json) -> list[Json]:
    choices = list(objects(reply.get("choices")))
    if len(choices) != 1 or not choices[0].get("finish_reason"):
        return []
    return [_chat_message(object_at(choices[0], "message"))]


def _chat_message(message: Json) -> Json:
    fields = {name: message[name] for name in _CHAT_FIELDS if message.get(name)}
    return {"role": "assistant", "content": None, **fields}


def _chat_streamed(events: list[Json]) -> list[Json]:
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
    return [_chat_message({**whole, "tool_calls": [call for _, call in sorted(calls.items())]})]


def _add_call(call: Json, piece: Json) -> None:
    """Texts of what is called are added up, everything else is there once."""
    for name, value in piece.items():
        if isinstance(value, dict):
            before = object_at(call, name)
            grown = {key: text_at(before, key) + text_at(value, key) for key in _GROWING if key in value}
            call[name] = {**value, **before, **grown}
        elif name != "index" and value is not None:
            call.setdefault(name, value)


def _messages_plain(reply: Json) -> list[Json]:
    content = reply.get("content")
    is_whole = isinstance(content, list) and bool(content) and bool(reply.get("stop_reason"))
    return [{"role": "assistant", "content": content}] if is_whole else []


def _messages_streamed(events: list[Json]) -> list[Json]:
    blocks: dict[int, Json] = {}
    inputs: dict[int, list[str]] = {}
    for event in events:
        index = event.get("index")
        index = index if isinstance(index, int) else -1
        match event.get("type"):
            case "content_block_start":
                blocks[index] = dict(object_at(event, "content_block"))
            case "content_block_delta" if index in blocks:
                delta, block = object_at(event, "delta"), blocks[index]
                name = _TEXTS.get(text_at(delta, "type"), "")
                if name:
                    block[name] = text_at(block, name) + text_at(delta, name)
                elif delta.get("type") == "input_json_delta":
                    inputs.setdefault(index, []).append(text_at(delta, "partial_json"))
                elif delta.get("type") == "citations_delta":
                    block["citations"] = [*list_at(block, "citations"), delta.get("citation")]
            case "error":
                return []
            case "message_stop":
                for at, pieces in inputs.items():
                    text = joined_text(pieces).encode("utf-8", "surrogatepass")
                    blocks[at]["input"] = document(text) or {}  # one that is cut off cannot be returned
                content = [block for _, block in sorted(blocks.items())]
                return [{"role": "assistant", "content": content}] if content else []
    return []


def _responses_plain(reply: Json) -> list[Json]:
    return list(objects(reply.get("output"))) if reply.get("status") in _WHOLE else []


def _responses_streamed(events: list[Json]) -> list[Json]:
    items: list[Json] = []
    for event in events:
        kind = event.get("type")
        if kind == "response.output_item.done":
            items.append(object_at(event, "item"))
        elif kind in ("response.completed", "response.incomplete"):
            return list(objects(object_at(event, "response").get("output"))) or items
    return []


_PLAIN: Mapping[str, Callable[[Json], list[Json]]] = {
    "openai_chat": _chat_plain,
    "anthropic_messages": _messages_plain,
    "openai_responses": _responses_plain,
}
_STREAMED: Mapping[str, Callable[[list[Json]], list[Json]]] = {
    "openai_chat": _chat_streamed,
    "anthropic_messages": _messages_streamed,
    "openai_responses": _responses_streamed,
}
