"""The request of OpenAI chat completions: its messages found, and edits and cache marks written into them."""

from collections.abc import Sequence

from policies.dialects.base import Request
from policies.dialects.common import as_json
from policies.dialects.openai import style_of, tool_marks, with_mark
from policies.dialects.openai_chat.messages import marks_of
from policies.dialects.splicing import edited
from policies.model.conversation import Conversation, Message
from policies.model.edits import Edit
from policies.money.marks import MarkStyle
from policies.text.layout import Piece
from policies.tools import RECALL


def splice(request: Request, conversation: Conversation, edits: Sequence[Edit]) -> dict[int, bytes]:
    def stub(piece: Piece) -> bytes:
        return as_json({"role": piece.role, "content": piece.text})

    def exchange(name: str, arguments: str, text: str) -> bytes:
        call = {"id": name, "type": "function", "function": {"name": RECALL, "arguments": arguments}}
        answer = {"role": "tool", "tool_call_id": name, "content": text}
        return as_json({"role": "assistant", "content": None, "tool_calls": [call]}) + b"," + as_json(answer)

    return edited(request, conversation, edits, stub, exchange, marked=marked, marks_of=marks_of)


def may_stand(request: Request) -> bool:
    """Not where the calls of the model are signed: Gemini refuses one without a signature since the newest message of a
    person (Gemini API, "Thought signatures"). In a text the quotes would be escaped."""
    return b'"thought_signature"' not in request.body


def mark_style(request: Request, messages: Sequence[Message]) -> MarkStyle:
    return style_of(request, messages, marks_of)


def slots(request: Request, messages: Sequence[Message]) -> int:
    """Anthropic and OpenAI take 4 in all."""
    return 4 - sum(message.marks for message in messages) - len(tool_marks(request.tool_list, marks_of))


def marked(raw: bytes, style: MarkStyle) -> bytes | None:
    return with_mark(raw, style, lambda _: b'"text"', fields=("content",))
