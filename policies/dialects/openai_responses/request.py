"""The request of OpenAI Responses: its items found, and edits and cache marks written into them.

Law: a body whose history is the provider's is not worked on.
"""

from collections.abc import Mapping, Sequence

from policies.dialects.base import Added, Request
from policies.dialects.common import as_json, member, text_at
from policies.dialects.common import joined as joined_list
from policies.dialects.openai import BREAKPOINT, style_of, tool_marks, with_mark
from policies.dialects.openai_responses.messages import AS_JSON, marks_of
from policies.dialects.splicing import edited
from policies.model.conversation import Block, Conversation, Message
from policies.model.edits import Edit
from policies.model.rawjson import Change
from policies.money.marks import MarkStyle
from policies.text.layout import Piece
from policies.tools import RECALL


def splice(request: Request, conversation: Conversation, edits: Sequence[Edit]) -> dict[int, bytes]:
    def value(block: Block, text: str) -> bytes:
        is_json = block.kind == "call" and block.path[-1] in AS_JSON
        return text.encode() if is_json else as_json(text)

    def stub(piece: Piece) -> bytes:
        return as_json({"type": "message", "role": piece.role, "content": piece.text})

    def exchange(name: str, arguments: str, text: str) -> bytes:
        call = {"type": "function_call", "call_id": name, "name": RECALL, "arguments": arguments}
        return as_json(call) + b"," + as_json({"type": "function_call_output", "call_id": name, "output": text})

    return edited(request, conversation, edits, stub, exchange, value, marked, marks_of)


def mark_style(request: Request, messages: Sequence[Message]) -> MarkStyle:
    return style_of(request, messages, marks_of)


def slots(request: Request, messages: Sequence[Message]) -> int:
    """A request can write 4 (SDK types, response_create_params, prompt_cache_options); one of these is the provider's,
    unless the client forbids that."""
    used = sum(message.marks for message in messages) + len(tool_marks(request.tool_list, marks_of))
    if mark_style(request, messages) == BREAKPOINT:
        options = member(request.body, request.members, "prompt_cache_options")
        used += text_at(options, "mode") != "explicit"
    return 4 - used


def marked(raw: bytes, style: MarkStyle) -> bytes | None:
    if not raw.startswith(b"{"):  # the whole input is a text
        return None

    def kind(role: bytes) -> bytes:
        return b'"output_text","annotations":[]' if role == b'"assistant"' else b'"input_text"'

    return with_mark(raw, style, kind, fields=("content", "output"))


def joined(
    request: Request, changed: Mapping[int, bytes], added: Added | None = None, beside: Change | None = None
) -> bytes:
    """An `input` that is a text becomes a list where items follow it."""
    text = request.raw(0)
    new = changed.get(0, b"")
    if text.startswith(b'"') and new.startswith(text) and len(new) > len(text):
        first = b'{"type":"message","role":"user","content":' + text + b"}"
        changed = {0: b"[" + first + new[len(text) :] + b"]"}
    return joined_list(request, changed, added, beside)
