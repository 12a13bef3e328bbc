"""Earlier requests, found by what a later one begins with.

Conversations may begin alike for many kilobytes (the same instructions, the same tools), so an earlier request is filed
under short pieces of its body at growing offsets. A later body is looked up from its end on: the farthest piece that
both have tells them apart best.

Laws
  A request stays until one continues it, or until all of them take more than `most` bytes.
  Those unused for longest are packed once the others take more than `most_unpacked`: then only the body stays,
  compressed, and the rest follows from it again. To forget or to pack costs time only.
  What a look-up costs grows with the length of the body only by the comparison of its bytes, and that is bounded,
  however many requests end alike.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple
from zlib import crc32

import zstandard

from policies.dialects import Dialect
from policies.model.conversation import Conversation
from policies.model.converse import converse
from policies.model.tokens import Counter
from proxy.memory import Key
from proxy.requests import ParsedRequest

_PIECE = 64
_OFFSETS = (0, *(256 * 4**i for i in range(8)))
"""Where pieces of a body are looked at: up to 4 MB."""
_NEWEST = (1, 2, 4, 8)
"""The messages, from the last one on, at whose ends it is looked whether a body has the same bytes: a client may change
the last ones, where it moves its cache marks."""
_MOST = 256
"""Requests under one piece: the longer ones are filed under later pieces, too."""
_COMPARED = 64 * 2**20
"""Bytes that are compared in one look-up, beyond those of the body: a few milliseconds."""
_LEVEL = 1
_PACKED = 3_000
"""Bytes of memory that a packed request takes beside its body."""
_AT_ONCE = 32
"""Requests that are packed together."""


class PackedRequest(NamedTuple):
    """A request that was not used for a while."""

    body: bytes
    """Compressed."""
    count: Counter
    checks: Sequence[int]
    """Checksums of the body up to each of the tails."""

    @classmethod
    def of(cls, filed: "Filed") -> "PackedRequest":
        parsed = filed.parsed
        checks = [crc32(memoryview(parsed.request.body)[: at + len(tail)]) for at, tail in filed.tails]
        # a copy: what is compressed stands at the beginning of a buffer as large as the body, which would stay
        body = bytes(memoryview(zstandard.ZstdCompressor(_LEVEL).compress(parsed.request.body)))
        return cls(body, parsed.count, checks)

    def unpacked(self, dialect: Dialect) -> ParsedRequest:
        body = zstandard.ZstdDecompressor().decompress(self.body)
        request = dialect.split(body, None, False)
        assert request is not None  # it was one when it was packed
        messages = [dialect.read(request.raw(at), self.count) for at in range(len(request.spans))]
        return ParsedRequest(request, self.count, converse(messages))


@dataclass(slots=True, eq=False)
class Filed:
    """An earlier request."""

    content: ParsedRequest | PackedRequest
    names: Sequence[Hashable]
    """The pieces under which it is filed."""
    tails: Sequence[tuple[int, bytes]]
    """The last bytes of the newest messages, and where they begin."""
    size: int
    key: Key | None = None
    """The conversation, by which it is forgotten."""

    @property
    def parsed(self) -> ParsedRequest:
        assert isinstance(self.content, ParsedRequest)
        return self.content


class _Comparison:
    """Compares a body with earlier ones, until it has cost too much: then none is the same any more."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._left = len(body) + _COMPARED
        self._checks: dict[int, int] = {}
        """Checksums of the body up to some places: of requests that end alike, many end at the same one."""

    def extends(self, filed: Filed, nth: int) -> bool:
        """Whether the body has the same bytes up to the end of this tail; of a packed one, as far as is known."""
        at, tail = filed.tails[nth]
        if not self._body.startswith(tail, at):  # as a rule it is another
            return False
        end, content = at + len(tail), filed.content
        is_known = isinstance(content, PackedRequest) and end in self._checks
        self._left -= 0 if is_known else end
        if self._left < 0:
            return False
        if isinstance(content, PackedRequest):
            if not is_known:
                self._checks[end] = crc32(memoryview(self._body)[:end])
            return self._checks[end] == content.checks[nth]
        return self._body.startswith(memoryview(content.request.body)[:end])  # a slice of a view is no copy


@dataclass(slots=True)
class _Shelf:
    """Requests, the one that was used last at the end, and what they take together."""

    size: int = 0
    requests: OrderedDict[int, Filed] = field(default_factory=OrderedDict)
    """By their identity."""

    def add(self, filed: Filed) -> None:
        self.requests[id(filed)] = filed
        self.size += filed.size

    def remove(self, filed: Filed) -> bool:
        is_here = self.requests.pop(id(filed), None) is not None
        self.size -= filed.size if is_here else 0
        return is_here


class Beginnings:
    """Earlier requests in memory."""

    def __init__(self, most: int, most_unpacked: int) -> None:
        self._most, self._most_unpacked = most, most_unpacked
        self._parsed, self._packed = _Shelf(), _Shelf()
        self._by_piece: dict[Hashable, dict[int, Filed]] = {}

    def find(self, kind: Hashable, body: bytes) -> tuple[Filed | None, bool]:
        """The request of this kind with which the body has most in common, and whether it extends that: a packed one is
        not given else. None where there is none."""
        names = reversed([*_pieces(kind, body, len(body))])
        farthest, comparison = [*islice(filter(None, map(self._by_piece.get, names)), 2)], _Comparison(body)
        for requests in farthest:  # a short piece may be the same by chance
            for nth in range(len(_NEWEST)):  # first those of which it has most of the newest messages
                for filed in reversed(requests.values()):
                    if nth < len(filed.tails) and comparison.extends(filed, nth):
                        return self._used(filed), True
        alike = reversed(farthest[0].values()) if farthest else ()
        return next((self._used(each) for each in alike if isinstance(each.content, ParsedRequest)), None), False

    def put(
        self,
        kind: Hashable,
        parsed: ParsedRequest,
        size: int,
        earlier: Filed | None,
        before: Conversation | None,
        key: Key | None = None,
    ) -> None:
        """File a request, in the place of the `earlier` one where it continues its conversation `before`."""
        if earlier is not None and before is not None and _continues(parsed.conversation, before):
            self._remove(earlier)
        body, spans = parsed.request.body, parsed.request.spans
        ends = (spans[-back][1] for back in _NEWEST if back <= len(spans))
        tails = tuple((max(0, end - _PIECE), body[max(0, end - _PIECE) : end]) for end in ends)
        filed = Filed(parsed, tuple(_pieces(kind, body, spans[-1][1])), tails, size, key)
        self._parsed.add(filed)
        for name in filed.names:
            requests = self._by_piece.setdefault(name, {})
            requests[id(filed)] = filed
            if len(requests) > _MOST:
                del requests[next(iter(requests))]
        self._make_room()

    def forget(self, tenant: str, conversation: str | None) -> None:
        """Drop the requests of a conversation, or of all of a tenant."""
        for filed in [*self._parsed.requests.values(), *self._packed.requests.values()]:
            if filed.key and filed.key.tenant == tenant and conversation in (None, filed.key.conversation):
                self._remove(filed)

    def to_pack(self) -> list[Filed]:
        """Those whose turn it is to be packed; never the newest one."""
        excess, oldest = self._parsed.size - self._most_unpacked, list[Filed]()
        for filed in islice(self._parsed.requests.values(), _AT_ONCE):
            if excess <= 0 or len(oldest) == len(self._parsed.requests) - 1:
                break
            oldest.append(filed)
            excess -= filed.size
        return oldest

    def pack(self, filed: Filed, packed: PackedRequest) -> None:
        """Keep no more of a request than this."""
        if self._parsed.remove(filed):
            filed.content, filed.size = packed, _PACKED + len(packed.body)
            self._packed.add(filed)
            self._make_room()

    def unpack(self, filed: Filed, parsed: ParsedRequest, size: int) -> None:
        """It is used again."""
        if self._packed.remove(filed):
            filed.size = size
            self._parsed.add(filed)
        filed.content = parsed
        self._make_room()

    def _make_room(self) -> None:
        while self._parsed.size + self._packed.size > self._most:
            oldest = self._packed.requests or self._parsed.requests
            self._remove(next(iter(oldest.values())))

    def _used(self, filed: Filed) -> Filed:
        shelf = self._parsed if id(filed) in self._parsed.requests else self._packed
        shelf.requests.move_to_end(id(filed))
        return filed

    def _remove(self, filed: Filed) -> None:
        if not (self._parsed.remove(filed) or self._packed.remove(filed)):
            return
        for name in filed.names:
            requests = self._by_piece[name]
            requests.pop(id(filed), None)
            if not requests:
                del self._by_piece[name]


def _pieces(kind: Hashable, body: bytes, end: int) -> Iterator[Hashable]:
    """The names of the pieces of body[:end]."""
    return ((kind, at, body[at : at + _PIECE]) for at in _OFFSETS if at + _PIECE <= end)


def _continues(new: Conversation, old: Conversation) -> bool:
    """Whether a request carries all that an earlier one did. Where it is of a later step, the newest turn of that may
    be another, because some clients write their last message anew each time."""
    end = old.ends[-2] if 1 < old.steps < new.steps else old.ends[-1]
    return 0 < end <= len(new.blocks) and new.blocks[end - 1].anchor == old.blocks[end - 1].anchor
