"""Earlier requests, found by what a later one begins with.

Conversations may begin alike for many kilobytes (the same instructions, the same tools), so an earlier request is filed
under short pieces of its body at growing offsets. A later body is looked up from its end on: the farthest piece that
both have tells them apart best.

Laws
  A request stays until one continues it, or until all of them take more than `most` bytes.
  What a look-up costs grows with the length of the body only by the comparison of its bytes.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import islice

from policies.model.conversation import Conversation
from proxy.requests import ParsedRequest

_PIECE = 64
_OFFSETS = (0, *(256 * 4**i for i in range(8)))
"""Where pieces of a body are looked at: up to 4 MB."""
_NEWEST = (1, 2, 4, 8)
"""The messages, from the last one on, at whose ends it is looked whether a body has the same bytes: a client may change
the last ones, where it moves its cache marks."""
_MOST = 256
"""Requests under one piece: the longer ones are filed under later pieces, too."""


@dataclass(frozen=True, slots=True, eq=False)
class _Filed:
    parsed: ParsedRequest
    names: tuple[Hashable, ...]
    """The pieces under which it is filed."""
    tails: tuple[tuple[int, bytes], ...]
    """The last bytes of the newest messages, and where they begin."""
    size: int


class Beginnings:
    """Parsed requests in memory."""

    def __init__(self, most: int) -> None:
        self._most, self._size = most, 0
        self._filed: OrderedDict[int, _Filed] = OrderedDict()
        """By the identity of the parsed request, the one that was used last at the end."""
        self._by_piece: dict[Hashable, dict[int, _Filed]] = {}

    def find(self, kind: Hashable, body: bytes) -> ParsedRequest | None:
        """The request of this kind with which the body has most in common; None where there is none."""
        names = reversed([*_pieces(kind, body, len(body))])
        farthest = [*islice(filter(None, map(self._by_piece.get, names)), 2)]
        for requests in farthest:  # a short piece may be the same by chance
            for filed in _extended_by(body, requests):
                return self._used(filed)
        return self._used(next(reversed(farthest[0].values()))) if farthest else None

    def put(self, kind: Hashable, parsed: ParsedRequest, size: int, earlier: ParsedRequest | None) -> None:
        """File a request, in the place of the `earlier` one where it continues that."""
        if earlier is not None and (parsed is earlier or _continues(parsed.conversation, earlier.conversation)):
            self._remove(earlier)
        body, spans = parsed.request.body, parsed.request.spans
        ends = (spans[-back][1] for back in _NEWEST if back <= len(spans))
        tails = tuple((max(0, end - _PIECE), body[max(0, end - _PIECE) : end]) for end in ends)
        filed = _Filed(parsed, tuple(_pieces(kind, body, spans[-1][1])), tails, size)
        self._filed[id(parsed)] = filed
        self._size += size
        for name in filed.names:
            requests = self._by_piece.setdefault(name, {})
            requests[id(parsed)] = filed
            if len(requests) > _MOST:
                del requests[next(iter(requests))]
        while self._size > self._most:
            self._remove(next(iter(self._filed.values())).parsed)

    def _used(self, filed: _Filed) -> ParsedRequest:
        self._filed.move_to_end(id(filed.parsed))
        return filed.parsed

    def _remove(self, parsed: ParsedRequest) -> None:
        filed = self._filed.pop(id(parsed), None)
        if filed is None:
            return
        self._size -= filed.size
        for name in filed.names:
            requests = self._by_piece[name]
            requests.pop(id(parsed), None)
            if not requests:
                del self._by_piece[name]


def _extended_by(body: bytes, requests: dict[int, _Filed]) -> Iterator[_Filed]:
    """The requests that the body extends, first those of which it has most of the newest messages."""
    for nth in range(len(_NEWEST)):
        for filed in reversed(requests.values()):
            if nth < len(filed.tails):
                at, tail = filed.tails[nth]
                whole = filed.parsed.request.body
                # as a rule the tail is another; a slice of a view is no copy
                if body.startswith(tail, at) and body.startswith(memoryview(whole)[: at + len(tail)]):
                    yield filed


def _pieces(kind: Hashable, body: bytes, end: int) -> Iterator[Hashable]:
    """The names of the pieces of body[:end]."""
    return ((kind, at, body[at : at + _PIECE]) for at in _OFFSETS if at + _PIECE <= end)


def _continues(new: Conversation, old: Conversation) -> bool:
    """Whether a request carries all that an earlier one did. Where it is of a later step, the newest turn of that may
    be another, because some clients write their last message anew each time."""
    end = old.ends[-2] if 1 < old.steps < new.steps else old.ends[-1]
    return 0 < end <= len(new.blocks) and new.blocks[end - 1].anchor == old.blocks[end - 1].anchor
