"""A message of OpenAI chat completions, read into parts.

Laws: only fields that are known are looked at, the rest is opaque; reading never fails.
"""

from collections.abc import Iterator, Mapping
from hashlib import sha256

from policies.context import TokenCounter
from policies.dialects.common import IMAGE, as_json, list_at, message_of, object_at, opaque_fields, parsed, text_at
from policies.dialects.openai import MARKS, ROLES, marks_on
from policies.model.conversation import Kind, Message, Part
from policies.money.marks import MarkStyle

_ROLES: Mapping[str, Kind] = {**ROLES, "tool": "result", "function": "result"}
_READ = frozenset({"role", "content", "tool_calls", "tool_call_id", "name", "refusal", *MARKS})
"""Any other field of a message (reasoning, signatures, provider items) is opaque."""
_MEDIA = frozenset({"image_url", "input_audio", "file", "image", "video_url"})


def read(raw: bytes, count: TokenCounter) -> Message:
    message = parsed(raw)
    role = text_at(message, "role")
    parts = [*opaque_fields(message, _READ, count), *_contents(message, role, count)]
    if role == "assistant":
        parts += [_call(call, at, count) for at, call in enumerate(list_at(message, "tool_calls"))]
    return message_of(raw, role, parts, _digest(message, raw), len(marks_of(message)))


def _digest(message: Mapping[str, object], raw: bytes) -> bytes:
    """Of the message without spacing and without its cache marks, and without the list that only a mark needs: a client
    moves its marks from one request to the next, and that changes no prompt."""
    content = message.get("content")
    if isinstance(content, list):
        bare = [{k: v for k, v in p.items() if k not in MARKS} if isinstance(p, dict) else p for p in content]
        if len(bare) == 1 and isinstance(bare[0], dict) and bare[0].keys() == {"type", "text"}:
            bare = bare[0]["text"]
        message = {**message, "content": bare}
    try:
        return sha256(as_json({k: v for k, v in message.items() if k not in MARKS})).digest()
    except RecursionError:
        return sha256(raw).digest()


def _contents(message: Mapping[str, object], role: str, count: TokenCounter) -> Iterator[Part]:
    kind = _ROLES.get(role, "opaque")
    tool, call_id = str(message.get("name") or ""), str(message.get("tool_call_id") or "")
    content = message.get("content")
    if isinstance(content, str):
        yield Part(kind, content, ("content",), count(content), tool, call_id)
    for at, part in enumerate(list_at(message, "content")):
        if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
            yield Part(kind, part["text"], ("content", at, "text"), count(part["text"]), tool, call_id)
        else:
            text = as_json(part).decode()
            yield Part("opaque", text, ("content", at), IMAGE if text_at(part, "type") in _MEDIA else count(text))


def _call(call: object, at: int, count: TokenCounter) -> Part:
    function = object_at(call, "function")
    arguments = function.get("arguments")
    if not isinstance(call, dict) or not isinstance(arguments, str):
        text = as_json(call).decode()
        return Part("opaque", text, ("tool_calls", at), count(text))
    tool = str(function.get("name") or "")
    path = ("tool_calls", at, "function", "arguments")
    return Part("call", arguments, path, count(arguments) + count(tool), tool, str(call.get("id") or ""))


def marks_of(holder: object) -> list[MarkStyle]:
    """The marks on a message, a part or a tool, and on what it holds one level down."""
    if not isinstance(holder, dict):
        return []
    return marks_on([holder, holder.get("function"), *list_at(holder, "content")])
