"""The request of OpenAI Responses: read, and written back.

Laws: `split` and `splice` never re-serialise what was not edited; a body whose history is the provider's, or that
cannot be read, is not ours to judge. An `input` that is a text stays one, unless something has to stand beside it.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from policies.context import TokenCounter
from policies.dialects.base import Added, Request
from policies.dialects.common import REMEMBERED, as_json, parsed, tool_tokens, written
from policies.dialects.common import joined as joined_list
from policies.dialects.openai_responses.items import AS_JSON, marks_of, read
from policies.dialects.openai_responses.marks import marked
from policies.dialects.splitting import RequestFields, split_request
from policies.model.conversation import Block, Conversation, Message
from policies.model.edits import Edit, Fold
from policies.model.rawjson import Change

_FIELDS = RequestFields(
    "input",
    reserve=("max_output_tokens",),
    lead="instructions",
    elsewhere=("previous_response_id", "conversation"),
    takes_text=True,
)


def split(body: bytes, earlier: Request | None = None, bounded: bool = True) -> Request | None:
    """Find the items; None where the body is not a request of this API that has its own history."""
    return split_request(body, earlier, bounded, _FIELDS)


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
