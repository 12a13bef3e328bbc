"""Earlier requests, which later ones may continue, found by what these begin with.

Conversations may begin alike for many kilobytes (the same instructions, the same tools), so an earlier request is filed
under short pieces of its body at growing offsets. A later body is looked up from its end on: the farthest piece that
both have tells them apart best.

Laws
  What a look-up costs grows with the length of the body only by the comparison of its bytes, and that is bounded,
  however many requests end alike.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple
from zlib import crc32

import zstandard
from msgspec import Struct

from policies.dialects import Dialect, Request
from policies.model.conversation import Conversation
from policies.model.converse import converse
from policies.model.tokens import Counter
from proxy.memory import Key

_PACKED = 3_000
"""Bytes of memory that a packed request takes without its body."""
_PIECE = 64
_OFFSETS = (0, *(256 * 4**i for i in range(8)))
"""Where pieces of a body are looked at: up to 4 MB."""
_NEWEST = (1, 2, 4, 8)
"""The messages, from the last one on, at whose ends it is looked whether a body has the same bytes: a client may change
the last ones, where it moves its cache marks."""
_MOST_ALIKE = 256
"""Requests under one piece: the longer ones are filed under later pieces, too."""
_COMPARED = 64 * 2**20
"""Bytes that are compared in one look-up, beyond those of the body: a few milliseconds."""
_LEVEL = 1


class ParsedRequest(Struct, frozen=True):
    """A body split into messages, and the conversation they are, counted with one vocabulary."""

    request: Request
    count: Counter
    conversation: Conversation
    key: Key

    @property
    def size(self) -> int:
        """About what it takes in memory, in bytes: its body, its texts, and its blocks with their indexes."""
        return 2 * len(self.request.body) + 1_500 * len(self.conversation.blocks)


class PackedRequest(NamedTuple):
    """A request that was not used for a while."""

    body: bytes
    """Compressed."""
    count: Counter
    checks: Sequence[int]
    """Checksums of the body up to each of the tails."""

    @property
    def size(self) -> int:
        return _PACKED + len(self.body)

    def unpacked(self, dialect: Dialect, key: Key) -> ParsedRequest:
        body = zstandard.ZstdDecompressor().decompress(self.body)
        request = dialect.split(body, None, False)
        assert request is not None  # it was one when it was packed
        messages = [dialect.read(request.raw(at), self.count) for at in range(len(request.spans))]
        return ParsedRequest(request, self.count, converse(messages), key)


@dataclass(slots=True, eq=False)
class Branch:
    """An earlier request of a conversation, which later ones may continue."""

    key: Key
    content: ParsedRequest | PackedRequest
    pieces: Sequence[Hashable]
    """Names of the pieces of its body by which it is found."""
    tails: Sequence[tuple[int, bytes]]
    """The last bytes of the newest messages, and where they begin."""

    @property
    def parsed(self) -> ParsedRequest:
        assert isinstance(self.content, ParsedRequest)
        return self.content

    def packed(self) -> PackedRequest:
        if isinstance(self.content, PackedRequest):
            return self.content
        body, count = self.content.request.body, self.content.count
        checks = [crc32(memoryview(body)[: at + len(tail)]) for at, tail in self.tails]
        # a copy: what is compressed stands at the beginning of a buffer as large as the body, which would stay
        return PackedRequest(bytes(memoryview(zstandard.ZstdCompressor(_LEVEL).compress(body))), count, checks)


def _comparison(body: bytes) -> Callable[[Branch, int], bool]:
    """Compares a body with earlier ones, until it has cost too much: then none is the same any more."""
    left = len(body) + _COMPARED
    checks: dict[int, int] = {}  # of the body up to some places: of requests that end alike, many end at the same one

    def extends(branch: Branch, nth: int) -> bool:
        """Whether the body has the same bytes up to the end of this tail; of a packed one, as far as is known."""
        nonlocal left
        at, tail = branch.tails[nth]
        if not body.startswith(tail, at):  # as a rule it is another
            return False
        end, content = at + len(tail), branch.content
        is_known = isinstance(content, PackedRequest) and end in checks
        left -= 0 if is_known else end
        if left < 0:
            return False
        if isinstance(content, PackedRequest):
            if not is_known:
                checks[end] = crc32(memoryview(body)[:end])
            return checks[end] == content.checks[nth]
        return body.startswith(memoryview(content.request.body)[:end])  # a slice of a view is no copy

    return extends


class BranchIndex:
    """Requests by pieces of their bodies."""

    def __init__(self) -> None:
        self._by_piece: dict[Hashable, dict[int, Branch]] = {}

    def add(self, kind: Hashable, parsed: ParsedRequest) -> Branch:
        body, spans = parsed.request.body, parsed.request.spans
        ends = (spans[-back][1] for back in _NEWEST if back <= len(spans))
        tails = tuple((max(0, end - _PIECE), body[max(0, end - _PIECE) : end]) for end in ends)
        branch = Branch(parsed.key, parsed, tuple(_pieces(kind, body, spans[-1][1])), tails)
        for name in branch.pieces:
            alike = self._by_piece.setdefault(name, {})
            alike[id(branch)] = branch
            if len(alike) > _MOST_ALIKE:
                del alike[next(iter(alike))]
        return branch

    def remove(self, branch: Branch) -> None:
        for name in branch.pieces:
            alike = self._by_piece.get(name, {})
            alike.pop(id(branch), None)
            if not alike:
                self._by_piece.pop(name, None)

    def find(self, kind: Hashable, body: bytes) -> tuple[Branch | None, bool]:
        names = reversed([*_pieces(kind, body, len(body))])
        farthest, extends = [*islice(filter(None, map(self._by_piece.get, names)), 2)], _comparison(body)
        for branches in farthest:  # a short piece may be the same by chance
            for nth in range(len(_NEWEST)):  # first those of which it has most of the newest messages
                for branch in reversed(branches.values()):
                    if nth < len(branch.tails) and extends(branch, nth):
                        return branch, True
        alike = reversed(farthest[0].values()) if farthest else ()
        return next((each for each in alike if isinstance(each.content, ParsedRequest)), None), False


def _pieces(kind: Hashable, body: bytes, end: int) -> Iterator[Hashable]:
    """The names of the pieces of body[:end]."""
    return ((kind, at, body[at : at + _PIECE]) for at in _OFFSETS if at + _PIECE <= end)


def continues(new: Conversation, old: Conversation) -> bool:
    """Whether a request carries all that an earlier one did. Where it is of a later step, the newest turn of that may
    be another, because some clients write their last message anew each time."""
    end = old.ends[-2] if 1 < old.steps < new.steps else old.ends[-1]
    return 0 < end <= len(new.blocks) and new.blocks[end - 1].anchor == old.blocks[end - 1].anchor
