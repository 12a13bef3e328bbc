"""The request of OpenAI Responses: its items found, and what stands beside them.

Law: a body whose history is the provider's is not worked on.
"""

from collections.abc import Mapping, Sequence

from policies.context import TokenCounter
from policies.dialects.base import Added, Request
from policies.dialects.common import joined as joined_list
from policies.dialects.common import member
from policies.dialects.openai import style_of, tool_marks
from policies.dialects.openai_responses.messages import marks_of, read
from policies.dialects.splitting import RequestFields, split_request
from policies.dialects.tool_lists import leading_tokens, remembered
from policies.model.conversation import Message
from policies.model.rawjson import Change, members
from policies.money.marks import MarkStyle

_FIELDS = RequestFields(
    "input",
    reserve=("max_output_tokens",),
    lead="instructions",
    elsewhere=("previous_response_id", "conversation"),
    takes_text=True,
)
_MOST_MARKS = 4
"""Marks that a request can write (SDK types, response_create_params, prompt_cache_options)."""


def split(body: bytes, earlier: Request | None = None, bounded: bool = True) -> Request | None:
    return split_request(body, earlier, bounded, _FIELDS)


def head_tokens(request: Request, messages: Sequence[Message], count: TokenCounter) -> int:
    lead = request.instructions
    leading = leading_tokens(request, messages, count, ("system", "developer"))
    return leading + (_instruction_tokens(lead, count) if lead else 0)


@remembered
def _instruction_tokens(lead: bytes, count: TokenCounter) -> int:
    """The instructions count as the message that they are."""
    message = read(b'{"role":"system","content":' + lead + b"}", count)
    return message.overhead + sum(part.tokens for part in message.parts)


def mark_style(request: Request, messages: Sequence[Message]) -> MarkStyle:
    return style_of(request, messages, marks_of)


def free_slots(request: Request, messages: Sequence[Message]) -> int:
    """One of four marks is the provider's own, unless the client forbids that."""
    used = sum(message.marks for message in messages) + len(tool_marks(request.tool_list, marks_of))
    if mark_style(request, messages) == "prompt_cache_breakpoint":
        options = member(request.body, members(request.body), "prompt_cache_options")
        used += not (isinstance(options, dict) and options.get("mode") == "explicit")
    return _MOST_MARKS - used


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
