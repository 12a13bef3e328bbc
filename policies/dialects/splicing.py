"""Edits written into a history where a fold stands for whole messages.

Law: what was not edited is never re-serialized.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress

from policies.dialects.base import Request
from policies.dialects.common import as_json, parsed
from policies.model.conversation import Block, Conversation
from policies.model.edits import Edit, Replace
from policies.model.rawjson import Path, UnreadableError, replaced
from policies.money.marks import MarkStyle
from policies.text.layout import Piece, call_id, pieces_of


def edited(
    request: Request,
    conversation: Conversation,
    edits: Sequence[Edit],
    stub: Callable[[Piece], bytes],
    exchange: Callable[[str, str, str], bytes],
    value: Callable[[Block, str], bytes] = lambda block, text: as_json(text),
    marked: Callable[[bytes, MarkStyle], bytes | None] = lambda raw, style: None,
    marks_of: Callable[[object], list[MarkStyle]] = lambda holder: [],
) -> dict[int, bytes]:
    """The new bytes of each message that the edits touch, empty bytes where a message goes. `stub` writes a message
    that stands for a fold, and `exchange` a call of the recall tool with its answer, from an id, the arguments and the
    text; `value` writes the text of a block. Where there are cache marks, `marks_of` finds those of an object, and
    `marked` sets one: a fold takes over a mark of the messages that it stands for."""
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
