"""The request of Anthropic Messages: found in its body, and what stands in it besides messages.

Law: a body that cannot be read is not ours to judge.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache

import msgspec

from policies.context import TokenCounter
from policies.dialects.anthropic_messages.blocks import FRAMING, MARK, QUOTED, marks_of
from policies.dialects.base import Request
from policies.dialects.common import REMEMBERED, member, tool_tokens
from policies.dialects.splitting import RequestFields, split_request
from policies.model.conversation import Message
from policies.model.rawjson import members
from policies.money.marks import MarkStyle

_MOST_MARKS = 4
"""Anthropic takes no more in one request, wherever they stand (prompt caching)."""


# no id of the conversation: `metadata.user_id` names a person
_FIELDS = RequestFields("messages", reserve=("max_tokens",), lead="system", names_conversations=False)


def split(body: bytes, earlier: Request | None = None, bounded: bool = True) -> Request | None:
    """Find the messages; None where the body is not a request of this API."""
    return split_request(body, earlier, bounded, _FIELDS)


def head_tokens(request: Request, messages: Sequence[Message], count: TokenCounter) -> int:
    """Tokens of what stands before the conversation: tool schemas and leading system text."""
    total = tool_tokens(request.tool_list, count)
    total += (_remembered if len(request.instructions) < REMEMBERED else _counted)(request.instructions, count)
    for message in messages:
        if message.role != "system":
            break
        total += message.overhead + sum(part.tokens for part in message.parts)
    return total


def _counted(system: bytes, count: TokenCounter) -> int:
    said = _decoded(system)
    texts = [said] if isinstance(said, str) else [block.get("text") for block in _objects(said)]
    found = [count(text) for text in texts if isinstance(text, str)]
    return sum(found, FRAMING) if found else 0


# a pure function of its arguments, so remembering changes nothing but the time it takes
_remembered = lru_cache(maxsize=64)(_counted)


def mark_style(request: Request, messages: Sequence[Message]) -> MarkStyle:
    """The kind of cache mark that the client itself uses here, wherever it does."""
    return MARK if any(message.marks for message in messages) or _marks_beside(request) else ""


def free_slots(request: Request, messages: Sequence[Message]) -> int:
    """How many more marks the provider takes in this request."""
    return _MOST_MARKS - sum(message.marks for message in messages) - _marks_beside(request)


def _marks_beside(request: Request) -> int:
    """The marks that no message carries: on tools and system text, and the one that asks for a mark on whatever comes
    last, which takes a slot of its own (automatic caching)."""
    if QUOTED not in request.body:
        return 0
    held = [*_objects(_decoded(request.tool_list)), *_objects(_decoded(request.instructions))]
    automatic = member(request.body, members(request.body), MARK) is not None
    return sum(len(marks_of(holder)) for holder in held) + automatic


def _objects(value: object) -> Iterator[dict[str, object]]:
    return (entry for entry in value if isinstance(entry, dict)) if isinstance(value, list) else iter(())


def _decoded(raw: bytes) -> object:
    try:
        return msgspec.json.decode(raw) if raw else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
