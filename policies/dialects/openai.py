"""What OpenAI's two APIs have in common: cache marks, and edits where a fold stands for whole messages.

Law: what was not edited is never re-serialised.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from policies.dialects.base import Request
from policies.dialects.common import decoded, objects, parsed
from policies.model.conversation import Block, Conversation, Message
from policies.model.edits import Edit, Fold, Replace
from policies.model.rawjson import Path, Span, UnreadableError, items, members, replaced
from policies.money.marks import MarkStyle

MARKS: tuple[MarkStyle, ...] = ("cache_control", "prompt_cache_breakpoint")
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


def marked_text(raw: bytes, content: Span, style: MarkStyle, kind: bytes) -> bytes | None:
    """The message with its text as the one part of a list, which carries the mark; None where the text is empty. `kind`
    is the type of the part."""
    start, end = content
    if end - start <= 2:
        return None
    part = b'{"type":' + kind + b',"text":' + raw[start:end] + b"," + _VALUES[style] + b"}"
    return raw[:start] + b"[" + part + b"]" + raw[end:]


def marked_list(raw: bytes, content: Span, style: MarkStyle) -> bytes | None:
    """The message with the mark on the last part of its content; None where that has no text. Raises LookupError where
    it cannot have one, UnreadableError where it cannot be read."""
    start, end = items(raw, *content)[-1]
    text = members(raw, start, end)["text"]
    return None if text[1] - text[0] <= 2 else raw[: end - 1] + b"," + _VALUES[style] + raw[end - 1 :]


def edited(
    request: Request,
    conversation: Conversation,
    edits: Sequence[Edit],
    value: Callable[[Block, str], bytes],
    stub: Callable[[Fold, str, MarkStyle], bytes],
    marks_of: Callable[[object], list[MarkStyle]],
) -> dict[int, bytes]:
    """The new bytes of each message that the edits touch, empty bytes where a message goes. `value` writes the text of
    a block, `stub` the message that stands for a fold: of which role, as long as the API takes such a one with a
    mark, and with the mark of the messages that it stands for."""
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
        changed |= {first: stub(edit, role, style), **dict.fromkeys(range(first + 1, last + 1), b"")}
    for message, values in texts.items():
        with suppress(UnreadableError):  # a key is repeated: the message stays as it is
            changed[message] = replaced(request.raw(message), values)
    return changed
