"""The request of Anthropic Messages: its messages found, and what stands beside them."""

from collections.abc import Sequence

from policies.context import TokenCounter
from policies.dialects.anthropic_messages.messages import MARK, QUOTED, marks_of
from policies.dialects.base import Request
from policies.dialects.common import FRAMING, decoded, member, objects
from policies.dialects.splitting import RequestFields, split_request
from policies.dialects.tool_lists import leading_tokens, remembered
from policies.model.conversation import Message
from policies.model.rawjson import members
from policies.money.marks import MarkStyle

_MOST_MARKS = 4
"""Anthropic takes no more in one request, wherever they stand (prompt caching)."""
# no id of the conversation: `metadata.user_id` names a person
_FIELDS = RequestFields("messages", reserve=("max_tokens",), lead="system", names_conversations=False)


def split(body: bytes, earlier: Request | None = None, bounded: bool = True) -> Request | None:
    return split_request(body, earlier, bounded, _FIELDS)


def head_tokens(request: Request, messages: Sequence[Message], count: TokenCounter) -> int:
    return leading_tokens(request, messages, count, ("system",)) + _system_tokens(request.instructions, count)


@remembered
def _system_tokens(system: bytes, count: TokenCounter) -> int:
    value = decoded(system)
    texts = [value] if isinstance(value, str) else [block.get("text") for block in objects(value)]
    counts = [count(text) for text in texts if isinstance(text, str)]
    return sum(counts, FRAMING) if counts else 0


def mark_style(request: Request, messages: Sequence[Message]) -> MarkStyle:
    return MARK if any(message.marks for message in messages) or _marks_beside(request) else ""


def free_slots(request: Request, messages: Sequence[Message]) -> int:
    return _MOST_MARKS - sum(message.marks for message in messages) - _marks_beside(request)


def _marks_beside(request: Request) -> int:
    """The marks that no message carries: on tools and system text, and the one that asks for a mark on whatever comes
    last, which takes a slot of its own (automatic caching)."""
    if QUOTED not in request.body:
        return 0
    holders = [*objects(decoded(request.tool_list)), *objects(decoded(request.instructions))]
    automatic = member(request.body, members(request.body), MARK) is not None
    return sum(len(marks_of(holder)) for holder in holders) + automatic
