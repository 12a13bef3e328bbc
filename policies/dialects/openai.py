"""Common to OpenAI's two APIs: cache marks, and edits where a fold stands for whole messages.

Law: what was not edited is never re-serialized.
"""

from collections.abc import Callable, Mapping, Sequence

from policies.dialects.common import Request, decoded, objects, parsed
from policies.model.conversation import Kind, Message
from policies.model.rawjson import Span, UnreadableError, items, members
from policies.money.caches import MarkStyle

BREAKPOINT: MarkStyle = "prompt_cache_breakpoint"
MARKS: tuple[MarkStyle, ...] = ("cache_control", BREAKPOINT)
ROLES: Mapping[str, Kind] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
MOST_TOOLS = 128
"""OpenAI refuses more."""
_VALUES: Mapping[MarkStyle, bytes] = {
    "cache_control": b'"cache_control":{"type":"ephemeral"}',
    "prompt_cache_breakpoint": b'"prompt_cache_breakpoint":{"mode":"explicit"}',
}


def marks_on(holders: Sequence[object]) -> list[MarkStyle]:
    return [mark for holder in holders if isinstance(holder, dict) for mark in MARKS if holder.get(mark) is not None]


def style_of(request: Request, messages: Sequence[Message], of: Callable[[object], list[MarkStyle]]) -> MarkStyle:
    """The kind of cache mark that the client itself uses, in its messages or its tools; `of` finds those of one."""
    used = tool_marks(request.tool_list, of)
    for i, message in enumerate(messages):
        if message.marks:
            used += of(parsed(request.raw(i)))
    return next((mark for mark in MARKS if mark in used), "")


def tool_marks(tools: bytes, of: Callable[[object], list[MarkStyle]]) -> list[MarkStyle]:
    """The marks in a list of tools; `of` finds those of one tool."""
    has_marks = any(f'"{mark}"'.encode() in tools for mark in MARKS)
    return [mark for tool in objects(decoded(tools) if has_marks else None) for mark in of(tool)]


def with_mark(raw: bytes, style: MarkStyle, kind: Callable[[bytes], bytes], fields: Sequence[str]) -> bytes | None:
    """The message with a mark on the last text of its content, which is the first of these fields that it has; None
    where it has a mark, or cannot carry one. A content that is a text becomes a list of one part, whose `kind` follows
    from the role. Of several messages in the place of one, the last is marked that can be."""
    if not style or f'"{style}"'.encode() in raw:
        return None
    try:
        for start, end in reversed(items(b"[" + raw + b"]")):
            marked = _with_mark(raw, members(raw, start - 1, end - 1), style, kind, fields)
            if marked is not None:
                return marked
    except UnreadableError:
        pass
    return None


def _with_mark(
    raw: bytes, spans: Mapping[str, Span], style: MarkStyle, kind: Callable[[bytes], bytes], fields: Sequence[str]
) -> bytes | None:
    role = raw[slice(*spans.get("role", (0, 0)))]
    if role == b'"assistant"' and style == BREAKPOINT:  # SDK types: input parts only have that field
        return None
    try:
        start, end = next(spans[name] for name in fields if name in spans)
        if raw.startswith(b'"', start):
            part = b'{"type":' + kind(role) + b',"text":' + raw[start:end] + b"," + _VALUES[style] + b"}"
            return raw[:start] + b"[" + part + b"]" + raw[end:] if end - start > 2 else None
        first, last = items(raw, start, end)[-1]
        text = members(raw, first, last)["text"]
    except (UnreadableError, LookupError, StopIteration):
        return None
    return raw[: last - 1] + b"," + _VALUES[style] + raw[last - 1 :] if text[1] - text[0] > 2 else None
