"""The messages of a whole reply of Anthropic Messages, as a client returns them with its next request.

Law: a reply that broke off, failed or has several choices has no messages; nothing here raises.
"""

from collections.abc import Mapping

from policies.dialects.common import list_at, object_at, text_at
from policies.dialects.events import Json, document, joined_text

_TEXTS: Mapping[str, str] = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
"""Pieces of a block, and the field that they are added to."""


def whole_messages(reply: Json) -> list[Json]:
    content = reply.get("content")
    is_whole = isinstance(content, list) and bool(content) and bool(reply.get("stop_reason"))
    return [{"role": "assistant", "content": content}] if is_whole else []


def streamed_messages(events: list[Json]) -> list[Json]:
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
