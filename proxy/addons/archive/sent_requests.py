"""What was sent, request by request, as entries of the log: pieces of the texts that are logged, by their names.

Laws
  An entry holds what its request has beyond the one before it in its branch, and now and then all of it.
  It holds the digest of the body that was sent, so that whoever puts the body together again knows whether it is the
  same.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import takewhile

from policies.dialects import DIALECTS, Request
from policies.dialects.common import as_json
from policies.dialects.segments import LEAD, TOOLS, Piece, Segment, pieces_of, raw_of, rest_in, segments
from proxy.memory import StoredText

BESIDE: Mapping[str, int] = {"lead": -1, "tools": -2, "frame": -3, "request": -4}
"""Places in the log of what is no message: the text that leads the prompt, the tools, the request with its parameters
but without all these, and what was sent."""
_LONGEST_CHAIN = 64
"""Entries that follow from each other, at most."""


@dataclass(slots=True)
class SentTrail:
    """The newest request of a branch whose entry is in the log."""

    entry: str = ""
    """Its name; empty where there is none."""
    length: int = 0
    """How many entries it follows from."""
    round: int = 0
    names: Sequence[str] = ()
    """Of the messages that the client sent."""
    parts: list[tuple[int, int, int]] = field(default_factory=list)
    """For each segment of the body a hash, the newest message that stands up to it, and how many are of the rest."""


@dataclass(frozen=True, slots=True)
class SentBody:
    """A body that was sent, and what of it follows from the request before."""

    digest: str
    segments: Sequence[Segment]
    hashes: Sequence[int]
    common: int
    """With how many segments both begin."""
    newest: int
    """The newest message among these."""


def read_body(dialect: str, body: bytes, received: Request, names: Sequence[str], trail: SentTrail) -> SentBody:
    """A body in segments, compared with the request before it. `received`: what the client sent, `names`: those of its
    messages."""
    request = DIALECTS[dialect].split(body, received, False)
    parts: list[Segment] = [("rest", body)] if request is None else [*segments(request)]
    hashes = [hash(raw) for _, raw in parts]
    before = trail.parts if trail.entry and trail.length < _LONGEST_CHAIN else []
    same = common_items(trail.names, names)
    before = list(takewhile(lambda part: part[1] < same, before))
    common = common_items([part[0] for part in before], hashes)
    return SentBody(sha256(body).hexdigest(), parts, hashes, common, before[common - 1][1] if common else -1)


def entry_of(
    sent: SentBody, texts: Mapping[int, bytes], names: Sequence[str], beside: Mapping[str, str], trail: SentTrail
) -> str:
    """The text of an entry; the trail goes on behind it. `texts`: those of the messages after the newest one that the
    bodies have in common, and beside them."""
    before = trail.parts[: sent.common]
    _, newest, rest = before[-1] if before else (0, -1, 0)
    pieces: list[Piece] = []
    parts = list(before)
    rows = pieces_of(sent.segments[sent.common :], texts, newest, rest)
    for digest, (piece, at, count) in zip(sent.hashes[sent.common :], rows, strict=True):
        pieces.append(piece)
        parts.append((digest, at, count))
    is_whole = not sent.common
    shared = 0 if is_whole else common_items(trail.names, names)
    trail.length = 0 if is_whole else trail.length + 1
    trail.names, trail.parts = names, parts
    content = {"names": [shared, list(names[shared:])], "pieces": [sent.common, pieces], **beside}
    return as_json(content).decode()


def common_items(old: Sequence[object], new: Sequence[object]) -> int:
    """How many leading items are the same."""
    pairs = zip(old, new, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(old), len(new)))


@dataclass(frozen=True, slots=True)
class RequestEntry:
    """An entry, put together with those before it: the names of the messages that the client sent, the pieces of what
    was sent, and the names of tools, leading text and frame."""

    names: Sequence[str]
    pieces: Sequence[Piece]
    beside: Mapping[str, str]


def read_entries(texts: Sequence[str]) -> RequestEntry:
    """The last of these entries, each of which follows from the one before. Raises ValueError for what is none."""
    names: list[str] = []
    pieces: list[Piece] = []
    beside: dict[str, str] = {}
    try:
        for text in texts:
            content = json.loads(text)
            (shared, more), (common, new) = content["names"], content["pieces"]
            names = [*names[:shared], *more]
            pieces = [*pieces[:common], *new]
            beside = {name: str(content[name]) for name in ("tools", "lead", "frame") if name in content}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError("an entry of the log cannot be read") from error
    return RequestEntry(names, pieces, beside)


def beside_texts(beside: Mapping[str, str], texts: Mapping[str, str]) -> dict[int, bytes]:
    """Tools, leading text and frame by their numbers. Raises KeyError where one is missing."""
    numbered = {
        number: raw_of(texts[beside[name]]) for name, number in (("tools", TOOLS), ("lead", LEAD)) if name in beside
    }
    return numbered | rest_in(json.loads(texts[beside["frame"]]) if "frame" in beside else ())


def is_message(text: StoredText) -> bool:
    """Whether an entry of the log is a message, or text that leads the prompt."""
    return int(text.about["index"]) >= -1
