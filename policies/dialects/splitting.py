"""From a body to its Request, in the same way for every API: the messages are found, not read; and how much one request
may hold to be worked on. Real long sessions have about a thousand messages and some hundred tools; reading one message
or part takes some 20 microseconds, so what is allowed here takes about a second.

Laws
  A body is refused before any list of what it holds is made: the cost is some milliseconds for each MB that is new,
  and counting ends at the first bound that is passed.
  What an accepted request has in common with an earlier accepted one is not counted again.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from policies.dialects.common import Request, member
from policies.model.rawjson import Span, UnreadableError, items, members, shared

LIMITS: Mapping[str, int] = {
    "messages": 20_000,  # messages, or input items
    "parts": 40_000,  # elements of `content` lists, of which each becomes a block; so in system text
    "calls": 20_000,  # elements of `tool_calls` lists
    "tools": 2_000,
    "fields": 120_000,  # members of the messages themselves: one that is not known becomes a block
    "values": 400_000,  # members and elements of everything else: arguments, schemas, metadata
    "parameters": 1_000,  # members of the body itself
}
_BY_KEY = {b"content": "parts", b"output": "parts", b"system": "parts", b"tool_calls": "calls", b"tools": "tools"}
"""The kind of the elements of a list, by its key; elements of other lists are values."""
_LEVELS = 900
"""Lists and objects inside one another: the JSON decoder refuses some more than these."""
_NEXT = re.compile(rb'(?:[^"\[\]{},]++|"[^"]{0,4095}+")*+(?:([\[\]{},"])|\Z)')
"""Up to the next bracket or comma outside strings, which have no escaped quotes; or up to the beginning of a long
string, whose end is found in a hundredth of the time."""
_PIECE = 2**18
"""Bytes that are looked through at once, for some 0.2 ms."""


class TooManyError(ValueError):
    """The body holds more of something than is worked on; `what` is a key of LIMITS, or levels."""

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(f"the body has more than {limit} {what}")
        self.what = what
        self.limit = limit


def check_size(body: bytes, start: int = 0, end: int | None = None, messages: int = 0) -> None:
    """Count what stands at body[start:end] and raise TooManyError at the first bound that is passed. Where `start` is
    not 0, it is the end of a message after which the list of messages goes on, and `messages` is how many they are up
    to there. Text that is not JSON passes: that is for the decoder to find out."""
    room = dict(LIMITS)
    room["messages"] -= messages
    open_ = ["parameters", "messages"] if start else []
    at, text = 0, _without_escapes(body[start:end])
    while at < len(text):
        tokens, at = _NEXT.finditer(text, at), len(text)
        for token in tokens:
            bracket = token[1]
            if bracket == b",":
                kind = open_[-1] if open_ else "values"
            elif bracket == b"{":
                kind = "parameters" if not open_ else "fields" if open_[-1] == "messages" else "values"
                open_.append(kind)
            elif bracket == b"[":
                key = token[0].partition(b'"')[2].partition(b'"')[0]
                is_history = len(open_) == 1 and key in (b"messages", b"input")
                kind = "messages" if is_history else _BY_KEY.get(key, "values")
                open_.append(kind)
            elif bracket == b'"':
                at = text.find(b'"', token.end()) + 1 or len(text)
                break
            elif bracket and len(open_) > 1:
                open_.pop()
                continue
            else:
                return
            room[kind] -= 1
            if room[kind] < 0:
                raise TooManyError(kind, LIMITS[kind])
            if len(open_) > _LEVELS:
                raise TooManyError("levels", _LEVELS)


def _without_escapes(text: bytes) -> bytes:
    """The text without escaped backslashes and quotes; piece by piece, so that others have their turn."""
    if b"\\" not in text:
        return text
    pieces, at = list[bytes](), 0
    while at < len(text):
        piece = text[at : at + _PIECE]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece = piece[:-1] or piece  # at the end of the text one may stand alone
        at += len(piece)
        pieces.append(piece.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in piece else piece)
    return b"".join(pieces)


@dataclass(frozen=True, slots=True)
class RequestFields:
    """The members of a request by the names of an API."""

    history: str
    reserve: Sequence[str]
    """The limits of the answer, the first that is set counts."""
    lead: str = ""
    """The text that leads the prompt outside the messages."""
    elsewhere: Sequence[str] = ()
    """Members that say that the provider holds the history."""
    takes_text: bool = False
    """True where the history may be one string, which is then the only message."""
    names_conversations: bool = True
    """True where a field gives the id of the conversation."""


def split_request(body: bytes, earlier: Request | None, bounded: bool, fields: RequestFields) -> Request | None:
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
    conversation = metadata.get("conversation_id") if isinstance(metadata, dict) else None
    if fields.names_conversations and not conversation:
        conversation = member(text, spans, "prompt_cache_key")

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
        conversation=conversation if isinstance(conversation, str) and conversation else None,
        shared=common,
        lead=in_body(spans[fields.lead]) if _is_set(text, spans, fields.lead) else (0, 0),
        members={name: in_body(span) for name, span in spans.items()} if skipped else spans,
    )


def _is_set(body: bytes, spans: Mapping[str, Span], name: str) -> bool:
    return name in spans and body[slice(*spans[name])] != b"null"
