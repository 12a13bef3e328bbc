"""The request of OpenAI chat completions: read, and written back.

Laws: `split` and `splice` never re-serialise what was not edited; `read` looks only at fields it knows and leaves the
rest opaque; a body that cannot be read is not ours to judge.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256

from policies.context import TokenCounter
from policies.dialects.base import Request
from policies.dialects.common import IMAGE, VOLATILE, as_json, parsed, tool_tokens, written
from policies.dialects.marking import MARK_VALUES, MARKS, marks_on, quoted, style_of, tool_marks
from policies.dialects.splitting import RequestFields, split_request
from policies.model.conversation import Conversation, Kind, Message, Part
from policies.model.edits import Edit, Fold
from policies.model.rawjson import Path, UnreadableError, items, members
from policies.money.marks import MarkStyle

_FRAMING = 4
"""Tokens around each message (OpenAI cookbook, counting tokens)."""
_ROLES: Mapping[str, Kind] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "result",
    "function": "result",
}
_KNOWN = frozenset({"role", "content", "tool_calls", "tool_call_id", "name", "refusal", *MARKS})
"""What is read; any other field of a message (reasoning, signatures, provider items) is opaque."""


_FIELDS = RequestFields("messages", reserve=("max_completion_tokens", "max_tokens"))


def split(body: bytes, earlier: Request | None = None, bounded: bool = True) -> Request | None:
    """Find the messages; None where the body is not a chat request."""
    return split_request(body, earlier, bounded, _FIELDS)


def read(raw: bytes, count: TokenCounter) -> Message:
    """Read one raw message into parts. Never fails: what is not understood is one opaque part."""
    said = parsed(raw)
    role = said.get("role")
    role = role if isinstance(role, str) else ""
    parts = [*_opaque_fields(said, count), *_contents(said, role, count), *_calls(said, role, count)]
    if not parts:
        parts = [Part("opaque", "", (), 0)]
    return Message(
        role,
        tuple(parts),
        tuple(part.digest() for part in parts),
        _digest(said, raw),
        _FRAMING,
        len(_marks_of(said)),
        sha256(raw).digest(),
    )


def _digest(said: Mapping[str, object], raw: bytes) -> bytes:
    """Of the message without spacing and without its cache marks, and without the list that only a mark needs: a client
    moves its marks from one request to the next, and that changes no prompt."""
    content = said.get("content")
    if isinstance(content, list):
        bare = [{k: v for k, v in p.items() if k not in MARKS} if isinstance(p, dict) else p for p in content]
        if len(bare) == 1 and isinstance(bare[0], dict) and bare[0].keys() == {"type", "text"}:
            bare = bare[0]["text"]
        said = {**said, "content": bare}
    try:
        return sha256(as_json({k: v for k, v in said.items() if k not in MARKS})).digest()
    except RecursionError:
        return sha256(raw).digest()


def _opaque_fields(said: Mapping[str, object], count: TokenCounter) -> list[Part]:
    found = []
    for key, value in said.items():
        if key not in _KNOWN and key not in VOLATILE and value is not None:
            text = value if isinstance(value, str) else as_json(value).decode()
            found.append(Part("opaque", text, (key,), count(text)))
    return found


def _contents(said: Mapping[str, object], role: str, count: TokenCounter) -> list[Part]:
    kind = _ROLES.get(role, "opaque")
    tool, call_id = str(said.get("name") or ""), str(said.get("tool_call_id") or "")
    content = said.get("content")
    if isinstance(content, str):
        return [Part(kind, content, ("content",), count(content), tool, call_id)]
    if not isinstance(content, list):
        return []
    return [_content_part(part, i, kind, tool, call_id, count) for i, part in enumerate(content)]


def _content_part(part: object, at: int, kind: Kind, tool: str, call_id: str, count: TokenCounter) -> Part:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        text = part["text"]
        return Part(kind, text, ("content", at, "text"), count(text), tool, call_id)
    text = as_json(part).decode()
    media = isinstance(part, dict) and part.get("type") in (
        "image_url",
        "input_audio",
        "file",
        "image",
        "video_url",
    )
    return Part("opaque", text, ("content", at), IMAGE if media else count(text))


def _calls(said: Mapping[str, object], role: str, count: TokenCounter) -> list[Part]:
    calls = said.get("tool_calls")
    if role != "assistant" or not isinstance(calls, list):
        return []
    return [_call_part(call, i, count) for i, call in enumerate(calls)]


def _call_part(call: object, at: int, count: TokenCounter) -> Part:
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict) or not isinstance(arguments, str):
        text = as_json(call).decode()
        return Part("opaque", text, ("tool_calls", at), count(text))
    path: Path = ("tool_calls", at, "function", "arguments")
    tool = str(function.get("name") or "")
    return Part("call", arguments, path, count(arguments) + count(tool), tool, str(call.get("id") or ""))


def head_tokens(request: Request, messages: Sequence[Message], count: TokenCounter) -> int:
    """Tokens of what stands before the conversation: tool schemas and leading system text."""
    total = tool_tokens(request.tool_list, count)
    for message in messages:
        if message.role not in ("system", "developer"):
            break
        total += message.overhead + sum(part.tokens for part in message.parts)
    return total


def splice(request: Request, conversation: Conversation, edits: Sequence[Edit]) -> dict[int, bytes]:
    """The new bytes of each message that the edits touch; empty bytes where a message goes."""
    return written(request, conversation, edits, lambda _, text: as_json(text), _folded)


def _folded(request: Request, conversation: Conversation, fold: Fold) -> dict[int, bytes]:
    first = conversation.blocks[conversation.index[fold.first]].message
    last = conversation.blocks[conversation.index[fold.last]].message
    gone = dict.fromkeys(range(first + 1, last + 1), b"")
    after = conversation.messages[last + 1].role if last + 1 < len(conversation.messages) else ""
    # before a person's words the stub is the assistant's, so that roles alternate in a plain chat
    role = "system" if fold.system else "assistant" if after == "user" else "user"
    stub = as_json({"role": role, "content": fold.text})
    bearing = (i for i in range(first, last + 1) if conversation.messages[i].marks)
    style = next((mark for i in bearing for mark in _marks_of(parsed(request.raw(i)))), None)
    return {first: (style and marked(stub, style)) or stub, **gone}


def mark_style(request: Request, messages: Sequence[Message]) -> MarkStyle:
    """The kind of cache mark that the client itself uses here, in its messages or its tools."""
    return style_of(request, messages, _marks_of)


def free_slots(request: Request, messages: Sequence[Message]) -> int:
    """How many more marks the provider takes in this request (Anthropic and OpenAI: 4 in all)."""
    return 4 - sum(message.marks for message in messages) - len(tool_marks(request.tool_list, _marks_of))


def _marks_of(holder: object) -> list[MarkStyle]:
    """The marks on a message, a part or a tool, and on what it holds one level down."""
    if not isinstance(holder, dict):
        return []
    inner = [holder.get("function"), *(c if isinstance(c := holder.get("content"), list) else ())]
    return marks_on([holder, *inner])


def marked(raw: bytes, style: MarkStyle) -> bytes | None:
    """The message with a mark on the end of its content; None where it has one or cannot carry one."""
    if not style or quoted(style) in raw:
        return None
    try:
        start, end = members(raw)["content"]
        if raw[start : start + 1] == b'"' and end - start > 2:
            part = b'{"type":"text","text":' + raw[start:end] + b"," + MARK_VALUES[style] + b"}"
            return raw[:start] + b"[" + part + b"]" + raw[end:]
        first, last = items(raw, start, end)[-1]
        text = members(raw, first, last)["text"]
    except (UnreadableError, KeyError, IndexError):
        return None
    if text[1] - text[0] <= 2:
        return None
    return raw[: last - 1] + b"," + MARK_VALUES[style] + raw[last - 1 :]
