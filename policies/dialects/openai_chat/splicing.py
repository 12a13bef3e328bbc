"""Edits and cache marks written into the messages of OpenAI chat completions."""

from collections.abc import Sequence

from policies.dialects.base import Request
from policies.dialects.common import as_json
from policies.dialects.openai import edited, marked_list, marked_text
from policies.dialects.openai_chat.messages import marks_of
from policies.model.conversation import Conversation
from policies.model.edits import Edit, Fold
from policies.model.rawjson import UnreadableError, members
from policies.money.marks import MarkStyle


def splice(request: Request, conversation: Conversation, edits: Sequence[Edit]) -> dict[int, bytes]:
    return edited(request, conversation, edits, lambda _, text: as_json(text), _stub, marks_of)


def _stub(fold: Fold, role: str, style: MarkStyle) -> bytes:
    stub = as_json({"role": role, "content": fold.text})
    return marked(stub, style) or stub


def marked(raw: bytes, style: MarkStyle) -> bytes | None:
    """The message with a mark on the end of its content; None where it has one or cannot carry one."""
    if not style or f'"{style}"'.encode() in raw:
        return None
    try:
        span = members(raw)["content"]
        if raw.startswith(b'"', span[0]):
            return marked_text(raw, span, style, b'"text"')
        return marked_list(raw, span, style)
    except (UnreadableError, LookupError):
        return None
