"""The request of OpenAI Responses: read, and written back.

Laws: `split` and `splice` never re-serialise what was not edited; a body whose history is the provider's, or that
cannot be read, is not ours to judge. An `input` that is a text stays one, unless something has to stand beside it.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from policies.context import TokenCounter
from policies.dialects.base import Added, Request
from policies.dialects.common import REMEMBERED, as_json, member, parsed, tool_tokens, written
from policies.dialects.common import joined as joined_list
from policies.dialects.openai_responses.items import AS_JSON, marks_of, read
from policies.dialects.openai_responses.marks import marked
from policies.model.conversation import Block, Conversation, Message
from policies.model.edits import Edit, Fold
from policies.model.rawjson import Change, Span, UnreadableError, items, members, shared

_ELSEWHERE = ("previous_response_id", "conversation")
"""What says that the provider holds the history."""


def split(body: bytes, earlier: Request | None = None) -> Request | None:
    """Find the items; None where the body is not a request with its own history that we understand."""
    known = shared(body, earlier.body, earlier.spans) if earlier else 0
    try:
        spans = members(body)
        entries = _entries(body, spans["input"], earlier.spans[:known] if earlier else ())
        model = member(body, spans, "model")
    except (UnreadableError, KeyError):
        return None
    if not entries or not isinstance(model, str) or any(_is_said(body, spans, name) for name in _ELSEWHERE):
        return None
    reserve = member(body, spans, "max_output_tokens")
    return Request(
        body,
        tuple(entries),
        model,
        spans.get("tools", (0, 0)),
        reserve if isinstance(reserve, int) and reserve > 0 else None,
        member(body, spans, "stream") is True,
        _conversation_id(body, spans),
        known,
        spans["instructions"] if _is_said(body, spans, "instructions") else (0, 0),
    )


def _entries(body: bytes, span: Span, known: Sequence[Span]) -> list[Span]:
    """Where the items stand; none where one of them is no object."""
    if body[span[0] : span[0] + 1] == b'"':
        return [span]
    found = items(body, *span, known)
    return [] if any(body[start : start + 1] != b"{" for start, _ in found[len(known) :]) else found


def _is_said(body: bytes, spans: Mapping[str, Span], name: str) -> bool:
    return name in spans and body[slice(*spans[name])] != b"null"


def _conversation_id(body: bytes, spans: Mapping[str, Span]) -> str | None:
    metadata = member(body, spans, "metadata")
    found = metadata.get("conversation_id") if isinstance(metadata, dict) else None
    found = found or member(body, spans, "prompt_cache_key")
    return found if isinstance(found, str) and found else None


def head_tokens(request: Request, messages: Sequence[Message], count: TokenCounter) -> int:
    """Tokens of what stands before the conversation: tool schemas, instructions and leading system text."""
    total = tool_tokens(request.tool_list, count)
    if lead := request.instructions:
        total += (_remembered if len(lead) < REMEMBERED else _lead_tokens)(lead, count)
    for message in messages:
        if message.role not in ("system", "developer"):
            break
        total += message.overhead + sum(part.tokens for part in message.parts)
    return total


def _lead_tokens(lead: bytes, count: TokenCounter) -> int:
    """The instructions count as the message that they are."""
    message = read(b'{"role":"system","content":' + lead + b"}", count)
    return message.overhead + sum(part.tokens for part in message.parts)


# a pure function of its arguments, so remembering changes nothing but the time it takes
_remembered = lru_cache(maxsize=64)(_lead_tokens)


def splice(request: Request, conversation: Conversation, edits: Sequence[Edit]) -> dict[int, bytes]:
    """The new bytes of each item that the edits touch; empty bytes where an item goes."""
    return written(request, conversation, edits, _value, _folded)


def _value(block: Block, text: str) -> bytes:
    """What some tools are called with is JSON; all else is text."""
    as_it_stands = block.kind == "call" and block.path[-1] in AS_JSON
    return text.encode() if as_it_stands else as_json(text)


def _folded(request: Request, conversation: Conversation, fold: Fold) -> dict[int, bytes]:
    first = conversation.blocks[conversation.index[fold.first]].message
    last = conversation.blocks[conversation.index[fold.last]].message
    bearing = (i for i in range(first, last + 1) if conversation.messages[i].marks)
    style = next((mark for i in bearing for mark in marks_of(parsed(request.raw(i)))), None)
    after = conversation.messages[last + 1].role if last + 1 < len(conversation.messages) else ""
    # before a person's words the stub is the assistant's, so that roles alternate; but what the assistant says cannot
    # carry a mark (SDK types: prompt_cache_breakpoint is a field of input parts only)
    role = "system" if fold.system else "assistant" if after == "user" and not style else "user"
    stub = as_json({"type": "message", "role": role, "content": fold.text})
    return {first: (style and marked(stub, style)) or stub, **dict.fromkeys(range(first + 1, last + 1), b"")}


def joined(
    request: Request, changed: Mapping[int, bytes], added: Added | None = None, beside: Change | None = None
) -> bytes:
    """The body with the changed items in their places and what is added, every other byte as it came. An `input` that
    is a text becomes a list where items follow it."""
    said = request.raw(0)
    new = changed.get(0, b"")
    if said.startswith(b'"') and new.startswith(said) and len(new) > len(said):
        first = b'{"type":"message","role":"user","content":' + said + b"}"
        changed = {0: b"[" + first + new[len(said) :] + b"]"}
    return joined_list(request, changed, added, beside)
