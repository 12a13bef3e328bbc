"""A request's body as pieces of texts that stand elsewhere: what was sent takes little room beside what came.

Laws
  `joined(pieces, texts)` is the body from which `pieces_of` made the pieces, byte for byte, if the texts are the same.
  A text that is missing raises KeyError: nothing is guessed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from policies.dialects.common import Request
from policies.model.rawjson import Span

TOOLS, LEAD, REST = -1, -2, -3
"""The numbers of a request's texts. Messages have those from 0 on; beside them are the tools, the text that leads the
prompt, and from REST downwards what stands between all of these."""
_REFERENCE_BYTES = 40

Piece = int | str | Sequence[int | str]
_Kind = Literal["message", "tools", "lead", "between", "rest"]
Segment = tuple[_Kind, bytes]


def segments(request: Request) -> Iterator[Segment]:
    """All of a body, in order. `between` is what parts two messages, `rest` what stands around everything."""
    places: list[tuple[int, int, _Kind]] = [(*span, "message") for span in request.spans]
    beside: Sequence[tuple[Span, _Kind]] = ((request.tools, "tools"), (request.lead, "lead"))
    places += [(*span, kind) for span, kind in beside if span[0] < span[1]]
    at, before = 0, ""
    for start, end, kind in sorted(places):
        if at < start:
            yield ("between" if before == kind == "message" else "rest"), request.body[at:start]
        yield kind, request.body[start:end]
        at, before = end, kind
    yield "rest", request.body[at:]


def frame_of(request: Request) -> list[str | int]:
    """The texts around messages, tools and lead, with the numbers of these in their places; 0 for all messages."""
    history = (request.spans[0][0], request.spans[-1][1], 0)
    frame: list[str | int] = []
    at = 0
    for start, end, number in sorted([history, (*request.tools, TOOLS), (*request.lead, LEAD)]):
        if start < end:
            frame += [text_of(request.body[at:start]), number]
            at = end
    return [*frame, text_of(request.body[at:])]


def rest_in(frame: Iterable[str | int]) -> dict[int, bytes]:
    return {REST - at: raw_of(text) for at, text in enumerate(each for each in frame if isinstance(each, str))}


def pieces_of(
    parts: Iterable[Segment], texts: Mapping[int, bytes], newest: int = -1, rest: int = 0
) -> Iterator[tuple[Piece, int, int]]:
    """The segments of a body as pieces of these texts. With each piece: the newest message that stands up to it, and
    how many segments up to it are `rest`. `newest` and `rest` are these numbers before the first segment."""
    places = {text: at for at, text in texts.items() if at >= 0}
    for kind, raw in parts:
        near = {"message": newest + 1, "tools": TOOLS, "lead": LEAD, "rest": REST - rest}.get(kind)
        rest += kind == "rest"
        if kind == "message" and texts.get(newest + 1) != raw:
            near = places.get(raw, near)
        piece = text_of(raw) if near is None or near not in texts else _piece(raw, near, texts[near])
        if kind == "message" and near is not None and not isinstance(piece, str):
            newest = near
        yield piece, newest, rest


def joined(pieces: Iterable[Piece], texts: Mapping[int, bytes]) -> bytes:
    whole: list[bytes] = []
    for piece in pieces:
        match piece:
            case int():
                whole.append(texts[piece])
            case str():
                whole.append(raw_of(piece))
            case [int(at), int(first), int(last), str(middle)]:
                text = texts[at]
                whole.append(text[:first] + raw_of(middle) + text[len(text) - last :])
            case _:
                raise ValueError("this is no piece of a body")
    return b"".join(whole)


def text_of(raw: bytes) -> str:
    """The bytes of a client, UTF-8 or not, as text."""
    return raw.decode("utf-8", "surrogateescape")


def raw_of(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _piece(raw: bytes, at: int, text: bytes) -> Piece:
    if raw == text:
        return at
    first = _common(raw, text)
    last = _common(raw[first:], text[first:], ends=True)
    if first + last < _REFERENCE_BYTES:
        return text_of(raw)
    return [at, first, last, text_of(raw[first : len(raw) - last])]


def _common(one: bytes, other: bytes, ends: bool = False) -> int:
    least, most = 0, min(len(one), len(other))
    while least < most:
        middle = (least + most + 1) // 2
        same = one[-middle:] == other[-middle:] if ends else one[:middle] == other[:middle]
        least, most = (middle, most) if same else (least, middle - 1)
    return least
