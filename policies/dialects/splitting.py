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
    is_list = bool(before) and body.startswith(b"{", before[0][0])
    if bounded:
        rest = earlier.body[earlier.spans[-1][1] :] if earlier and is_list else b""
        end = len(body) - (len(rest) if body.endswith(rest) else 0)
        check_size(body, before[-1][1] if is_list else 0, end, common)
    text, at, skipped = body, 0, 0
    if is_list:  # a number stands for all that an earlier request showed to be messages
        at, end = before[0][0], before[-1][1]
        text, skipped = body[:at] + b"0" + body[end:], end - at - 1
    try:
        spans = members(text)
        history = spans[fields.history]
        is_text = fields.takes_text and text.startswith(b'"', history[0])
        new = [history] if is_text else items(text, *history)[is_list:]
    except (UnreadableError, KeyError):
        return None
    if not is_text and any(not text.startswith(b"{", start) for start, _ in new):
        return None
    model, is_empty = member(text, spans, "model"), not (new or is_list)
    if is_empty or not isinstance(model, str) or any(_is_set(text, spans, name) for name in fields.elsewhere):
        return None
    reserve = next(filter(None, (member(text, spans, name) for name in fields.reserve)), None)
    metadata = member(text, spans, "metadata") if fields.names_conversations else None
    named = metadata.get("conversation_id") if isinstance(metadata, dict) else None
    if fields.names_conversations and not named:
        named = member(text, spans, "prompt_cache_key")

    def in_body(span: Span) -> Span:
        start, end = span
        return start + skipped if start > at else start, end + skipped if end > at else end

    return Request(
        body=body,
        spans=(*before, *map(in_body, new)) if is_list else tuple(new),
        model=model,
        tools=in_body(spans.get("tools", (0, 0))),
        reserve=reserve if isinstance(reserve, int) and reserve > 0 else None,
        streams=member(text, spans, "stream") is True,
        conversation=named if isinstance(named, str) and named else None,
        shared=common,
        lead=in_body(spans[fields.lead]) if _is_set(text, spans, fields.lead) else (0, 0),
        members={name: in_body(span) for name, span in spans.items()} if skipped else spans,
    )


def _is_set(body: bytes, spans: Mapping[str, Span], name: str) -> bool:
    return name in spans and body[slice(*spans[name])] != b"null"
