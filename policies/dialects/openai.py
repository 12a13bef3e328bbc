"""What OpenAI's two APIs have in common: cache marks, and edits where a fold stands for whole messages.

Law: what was not edited is never re-serialized.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from policies.dialects.base import Request
from policies.dialects.common import as_json, decoded, objects, parsed
from policies.model.conversation import Block, Conversation, Kind, Message
from policies.model.edits import Edit, Replace
from policies.model.rawjson import Path, Span, UnreadableError, items, members, replaced
from policies.money.marks import MarkStyle
from policies.text.layout import Piece, call_id, pieces_of

MARKS: tuple[MarkStyle, ...] = ("cache_control", "prompt_cache_breakpoint")
ROLES: Mapping[str, Kind] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
MOST_TOOLS = 128
"""OpenAI refuses more."""
_VALUES: Mapping[MarkStyle, bytes] = {
    "cache_control": b'"cache_control":{"type":"ephemeral"}',
    "prompt_cache_breakpoint": b'"prompt_cache_breakpoint":{"mode":"explicit"}',
}


def marks_on(holders: Sequence[object]) -> list[MarkStyle]:
    """The marks on these objects themselves."""
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
    if role == b'"assistant"' and style == "prompt_cache_breakpoint":  # SDK types: input parts only have that field
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


def edited(
    request: Request,
    conversation: Conversation,
    edits: Sequence[Edit],
    value: Callable[[Block, str], bytes],
    stub: Callable[[Piece], bytes],
    exchange: Callable[[str, str, str], bytes],
    marked: Callable[[bytes, MarkStyle], bytes | None],
    marks_of: Callable[[object], list[MarkStyle]],
) -> dict[int, bytes]:
    """The new bytes of each message that the edits touch, empty bytes where a message goes. `value` writes the text of
    a block; `stub` writes a message that stands for a fold, and `exchange` a call of the recall tool with its answer,
    from an id, the arguments and the text. They take over a mark of the messages that they stand for."""
    texts: dict[int, dict[Path, bytes]] = {}
    changed: dict[int, bytes] = {}
    for edit in edits:
        if isinstance(edit, Replace):
            block = conversation.blocks[conversation.index[edit.at]]
            texts.setdefault(block.message, {})[block.path[1:]] = value(block, edit.text)
            continue
        first = conversation.blocks[conversation.index[edit.first]].message
        last = conversation.blocks[conversation.index[edit.last]].message
        bearing = (i for i in range(first, last + 1) if conversation.messages[i].marks)
        style: MarkStyle = next((mark for i in bearing for mark in marks_of(parsed(request.raw(i)))), "")
        arguments = as_json({"ref": edit.ref}).decode()
        new = b",".join(
            exchange(call_id(edit), arguments, piece.text) if piece.role == "tool" else stub(piece)
            for piece in pieces_of(conversation, edit)
        )
        changed |= {first: marked(new, style) or new, **dict.fromkeys(range(first + 1, last + 1), b"")}
    for message, values in texts.items():
        with suppress(UnreadableError):  # a key is repeated: the message stays as it is
            changed[message] = replaced(request.raw(message), values)
    return changed
