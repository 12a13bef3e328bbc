"""Edits and cache marks written into the items of OpenAI Responses: `prompt_cache_breakpoint` on parts that are input,
and what other servers take."""

from collections.abc import Sequence

from policies.dialects.base import Request
from policies.dialects.common import as_json, parsed
from policies.dialects.openai import edited, marked_list, marked_text
from policies.dialects.openai_responses.messages import AS_JSON, marks_of, role_of
from policies.model.conversation import Block, Conversation
from policies.model.edits import Edit, Fold
from policies.model.rawjson import UnreadableError, members
from policies.money.marks import MarkStyle


def splice(request: Request, conversation: Conversation, edits: Sequence[Edit]) -> dict[int, bytes]:
    return edited(request, conversation, edits, _value, _stub, marks_of)


def _value(block: Block, text: str) -> bytes:
    """The arguments of some calls are JSON; all else is text."""
    is_json = block.kind == "call" and block.path[-1] in AS_JSON
    return text.encode() if is_json else as_json(text)


def _stub(fold: Fold, role: str, style: MarkStyle) -> bytes:
    """An assistant's message cannot have a mark (SDK types: prompt_cache_breakpoint is a field of input parts only)."""
    role = "user" if style and role == "assistant" else role
    stub = as_json({"type": "message", "role": role, "content": fold.text})
    return marked(stub, style) or stub


def marked(raw: bytes, style: MarkStyle) -> bytes | None:
    """The item with a mark on the end of its content; None where it has one or cannot carry one."""
    if not style or not raw.startswith(b"{") or f'"{style}"'.encode() in raw:
        return None
    try:
        fields = members(raw)
        content = fields["content"] if "content" in fields else fields["output"]
        role = role_of(parsed(raw))
        if role == "assistant" and style == "prompt_cache_breakpoint":
            return None
        if raw.startswith(b'"', content[0]):
            kind = b'"output_text","annotations":[]' if role == "assistant" else b'"input_text"'
            return marked_text(raw, content, style, kind)
        return marked_list(raw, content, style)
    except (UnreadableError, LookupError):
        return None
