"""What OpenAI's two APIs have in common: cache marks, and edits where a fold stands for whole messages.

Law: what was not edited is never re-serialized.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from policies.dialects.base import Request
from policies.dialects.common import decoded, objects, parsed
from policies.model.conversation import Block, Conversation, Kind, Message
from policies.model.edits import Edit, Replace
from policies.model.rawjson import Path, UnreadableError, items, members, replaced
from policies.money.marks import MarkStyle

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


def with_mark(raw: bytes, style: MarkStyle, kind: bytes, fields: Sequence[str]) -> bytes | None:
    """The message with a mark on the last text of its content, which is the first of these fields that it has; None
    where it has a mark, or cannot carry one. A content that is a text becomes a list of one part of this `kind`. Of
    several messages in the place of one, the last is marked."""
    if not style or f'"{style}"'.encode() in raw:
        return None
    try:
        spans = members(raw, items(b"[" + raw + b"]")[-1][0] - 1)
        start, end = next(spans[name] for name in fields if name in spans)
        if raw.startswith(b'"', start):
            part = b'{"type":' + kind + b',"text":' + raw[start:end] + b"," + _VALUES[style] + b"}"
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
    stub: Callable[[str, str, MarkStyle], bytes],
    marked: Callable[[bytes, MarkStyle], bytes | None],
    marks_of: Callable[[object], list[MarkStyle]],
) -> dict[int, bytes]:
    """The new bytes of each message that the edits touch, empty bytes where a message goes. `value` writes the text of
    a block; `stub` writes the message for a fold, from its text, the role it should have, and the kind of mark that it
    takes over from the messages that it stands for."""
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
        after = conversation.messages[last + 1].role if last + 1 < len(conversation.messages) else ""
        # before a person's words the stub is the assistant's, so that roles alternate in a plain chat
        role = "system" if edit.system else "assistant" if after == "user" else "user"
        end = len(edit.text) - (edit.words if edit.system else 0)
        new = stub(edit.text[:end], role, style)
        if words := edit.text[end:].strip():  # words of a person gain no rank by being repeated
            new += b"," + stub(words, "user", style)
        changed |= {first: marked(new, style) or new, **dict.fromkeys(range(first + 1, last + 1), b"")}
    for message, values in texts.items():
        with suppress(UnreadableError):  # a key is repeated: the message stays as it is
            changed[message] = replaced(request.raw(message), values)
    return changed
