"""From a body to its Request, in the same way for every API: the messages are found, not read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from policies.dialects.base import Request
from policies.dialects.common import member
from policies.dialects.limits import check_size
from policies.model.rawjson import Span, UnreadableError, items, members, shared


@dataclass(frozen=True, slots=True)
class RequestFields:
    """What an API calls the members of a request."""

    history: str
    reserve: Sequence[str]
    """The limits of the answer, the first that is set counts."""
    lead: str = ""
    """The text that leads the prompt outside the messages."""
    elsewhere: Sequence[str] = ()
    """Members that say that the provider holds the history."""
    takes_text: bool = False
    """Whether the history may be one string, which is then the only message."""
    names_conversations: bool = True
    """Whether a field gives the id of the conversation."""


def split_request(body: bytes, earlier: Request | None, bounded: bool, fields: RequestFields) -> Request | None:
    """As `split` in base.py; None also where the provider holds the history."""
    common = shared(body, earlier.body, earlier.spans) if earlier else 0
    before = earlier.spans[:common] if earlier else ()
    if bounded:
        is_list = common and body.startswith(b"{", before[0][0])
        rest = earlier.body[earlier.spans[-1][1] :] if earlier and is_list else b""
        end = len(body) - (len(rest) if body.endswith(rest) else 0)
        check_size(body, before[-1][1] if is_list else 0, end, common)
    try:
        spans = members(body)
        history = spans[fields.history]
        is_text = fields.takes_text and body.startswith(b'"', history[0])
        messages = [history] if is_text else items(body, *history, before)
    except (UnreadableError, KeyError):
        return None
    if not is_text and any(not body.startswith(b"{", start) for start, _ in messages[len(before) :]):
        return None
    model = member(body, spans, "model")
    if not messages or not isinstance(model, str) or any(_is_set(body, spans, name) for name in fields.elsewhere):
        return None
    reserve = next(filter(None, (member(body, spans, name) for name in fields.reserve)), None)
    metadata = member(body, spans, "metadata") if fields.names_conversations else None
    named = metadata.get("conversation_id") if isinstance(metadata, dict) else None
    if fields.names_conversations and not named:
        named = member(body, spans, "prompt_cache_key")
    return Request(
        body=body,
        spans=tuple(messages),
        model=model,
        tools=spans.get("tools", (0, 0)),
        reserve=reserve if isinstance(reserve, int) and reserve > 0 else None,
        streams=member(body, spans, "stream") is True,
        conversation=named if isinstance(named, str) and named else None,
        shared=common,
        lead=spans[fields.lead] if _is_set(body, spans, fields.lead) else (0, 0),
    )


def _is_set(body: bytes, spans: Mapping[str, Span], name: str) -> bool:
    return name in spans and body[slice(*spans[name])] != b"null"
