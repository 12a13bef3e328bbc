"""How much one request may hold to be worked on. Real long sessions have about a thousand messages and some hundred
tools; reading one message or part takes some 20 microseconds, so what is allowed here takes about a second.

Laws
  A body is refused before any list of what it holds is made: the cost is some milliseconds for each MB that is new,
  and counting ends at the first bound that is passed.
  What an accepted request has in common with an earlier accepted one is not counted again.
"""

import re
from collections.abc import Mapping

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
"""What the elements of a list count as, by the key of the list; elements of other lists are values."""
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
    left = dict(LIMITS)
    left["messages"] -= messages
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
            left[kind] -= 1
            if left[kind] < 0:
                raise TooManyError(kind, LIMITS[kind])
            if len(open_) > _LEVELS:
                raise TooManyError("levels", _LEVELS)


def _without_escapes(text: bytes) -> bytes:
    """The text without escaped backslashes and quotes. Piece by piece, so that others have their turn; none ends within
    an escape."""
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
