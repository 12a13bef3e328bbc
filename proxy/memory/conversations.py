"""The conversations that this process remembers, and their earlier requests, found by what a later one begins with.

Conversations may begin alike for many kilobytes (the same instructions, the same tools), so an earlier request is filed
under short pieces of its body at growing offsets. A later body is looked up from its end on: the farthest piece that
both have tells them apart best.

Laws
  What is remembered is bounded by one number, `most` bytes: those unused for longest go. They are packed once the
  others take more than `most_awake`.
  A request stays until one continues it. No conversation takes more than a quarter of the room.
  What a look-up costs grows with the length of the body only by the comparison of its bytes, and that is bounded,
  however many requests end alike.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from zlib import crc32

from policies.model.conversation import Conversation
from proxy.memory import Key
from proxy.memory.conversation import Branch, LiveConversation, PackedRequest, ParsedRequest, pack

_MOST, _MOST_AWAKE = 320 * 2**20, 88 * 2**20
"""Bytes: some 40 conversations of 100,000 tokens as they are used, and 1,500 packed."""
_AT_ONCE = 32
"""Conversations that are packed together."""
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


@dataclass(slots=True)
class _Shelf:
    """Conversations, the one that was used last at the end, and what they take together."""

    size: int = 0
    by_key: OrderedDict[Key, LiveConversation] = field(default_factory=OrderedDict)

    def put(self, live: LiveConversation) -> None:
        """Add it, or weigh it anew."""
        if self.by_key.get(live.key) is live:
            self.size -= live.weight
        live.weight = live.weigh()
        self.size += live.weight
        self.by_key[live.key] = live

    def take(self, key: Key) -> LiveConversation | None:
        live = self.by_key.pop(key, None)
        self.size -= live.weight if live else 0
        return live


class Conversations:
    """All that is remembered in memory, by conversation."""

    def __init__(self, most: int = _MOST, most_awake: int = _MOST_AWAKE) -> None:
        self._most, self._most_awake = most, most_awake
        self._awake, self._resting = _Shelf(), _Shelf()
        self._index = _Index()
        self._packing: asyncio.Task[None] | None = None

    def of(self, key: Key) -> LiveConversation:
        """What is remembered of a conversation; it is used now."""
        live = self._awake.by_key.get(key)
        if live is None:
            live = self._resting.take(key) or LiveConversation(key)
            self._awake.put(live)
        self._awake.by_key.move_to_end(key)
        live.is_idle = False
        return live

    def get(self, key: Key) -> LiveConversation | None:
        """The same; None where nothing is remembered."""
        return self.of(key) if key in self._awake.by_key or key in self._resting.by_key else None

    def owned(self, tenant: str, owner: str) -> set[Key]:
        """The conversations that this owner has sent to this process lately: the store may not have them yet."""
        every = chain(self._awake.by_key.items(), self._resting.by_key.items())
        return {key for key, live in every if key.tenant == tenant and owner in live.owners}

    def settle(self, live: LiveConversation) -> None:
        """Weigh a conversation anew after it has changed, and make room."""
        if self._awake.by_key.get(live.key) is not live:
            return  # it was forgotten meanwhile
        self._awake.put(live)
        while live.weight > self._most // 4 and live.branches:
            self._drop(live, live.branches[0])
            self._awake.put(live)
        while self._awake.size + self._resting.size > self._most:
            oldest = self._resting if self._resting.by_key else self._awake
            self._remove(oldest, next(iter(oldest.by_key)))
        if self._packing is None and self._awake.size > self._most_awake and len(self._awake.by_key) > 1:
            self._packing = asyncio.create_task(self._pack())

    def find(self, kind: Hashable, body: bytes) -> tuple[Branch | None, bool]:
        """The earlier request of this kind with which the body has most in common, and whether it extends that: a
        packed one is not given else. None where there is none."""
        return self._index.find(kind, body)

    def put(self, kind: Hashable, parsed: ParsedRequest, earlier: Branch | None, before: Conversation | None) -> None:
        """Remember a request, in the place of the `earlier` one where it continues its conversation `before`."""
        if parsed.size > self._most // 8:
            return
        if earlier is not None and before is not None and _continues(parsed.conversation, before):
            holder = self._awake.by_key.get(earlier.key) or self._resting.by_key.get(earlier.key)
            if holder is not None and earlier in holder.branches:
                self._drop(holder, earlier)
        live = self.of(parsed.key)
        live.branches.append(self._index.add(kind, parsed))
        self.settle(live)

    def unpack(self, branch: Branch, parsed: ParsedRequest) -> None:
        """A packed request is used again."""
        if isinstance(branch.content, PackedRequest):  # nobody else was faster
            branch.content = parsed
            if (live := self.get(branch.key)) is not None:
                self.settle(live)

    def forget(self, tenant: str, conversation: str | None = None) -> None:
        """Forget a conversation, or all of a tenant."""
        for shelf in (self._awake, self._resting):
            for key in [*shelf.by_key]:
                if key.tenant == tenant and conversation in (None, key.conversation):
                    self._remove(shelf, key)

    async def _pack(self) -> None:
        """Pack those that were not used for longest."""
        try:
            while idle := self._idle():
                work = [([*live.branches], next(reversed(live.steps.items()), None)) for live in idle]
                results = await asyncio.to_thread(lambda work: [pack(*each) for each in work], work)
                for live, packed in zip(idle, results, strict=True):
                    if live.is_idle and self._awake.by_key.get(live.key) is live:
                        self._awake.take(live.key)
                        live.rest(packed)
                        self._resting.put(live)
        finally:
            self._packing = None

    def _idle(self) -> list[LiveConversation]:
        """Those whose turn it is to be packed; never the newest one."""
        excess, idle = self._awake.size - self._most_awake, list[LiveConversation]()
        for live in islice(self._awake.by_key.values(), min(_AT_ONCE, len(self._awake.by_key) - 1)):
            if excess > 0:
                live.is_idle = True
                idle.append(live)
                excess -= live.weight
        return idle

    def _remove(self, shelf: _Shelf, key: Key) -> None:
        live = shelf.take(key)
        for branch in live.branches if live else ():
            self._index.remove(branch)

    def _drop(self, live: LiveConversation, branch: Branch) -> None:
        live.branches.remove(branch)
        self._index.remove(branch)


# --- how an earlier request is found ---


class _Comparison:
    """Compares a body with earlier ones, until it has cost too much: then none is the same any more."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._left = len(body) + _COMPARED
        self._checks: dict[int, int] = {}
        """Checksums of the body up to some places: of requests that end alike, many end at the same one."""

    def extends(self, branch: Branch, nth: int) -> bool:
        """Whether the body has the same bytes up to the end of this tail; of a packed one, as far as is known."""
        at, tail = branch.tails[nth]
        if not self._body.startswith(tail, at):  # as a rule it is another
            return False
        end, content = at + len(tail), branch.content
        is_known = isinstance(content, PackedRequest) and end in self._checks
        self._left -= 0 if is_known else end
        if self._left < 0:
            return False
        if isinstance(content, PackedRequest):
            if not is_known:
                self._checks[end] = crc32(memoryview(self._body)[:end])
            return self._checks[end] == content.checks[nth]
        return self._body.startswith(memoryview(content.request.body)[:end])  # a slice of a view is no copy


class _Index:
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
        farthest, comparison = [*islice(filter(None, map(self._by_piece.get, names)), 2)], _Comparison(body)
        for branches in farthest:  # a short piece may be the same by chance
            for nth in range(len(_NEWEST)):  # first those of which it has most of the newest messages
                for branch in reversed(branches.values()):
                    if nth < len(branch.tails) and comparison.extends(branch, nth):
                        return branch, True
        alike = reversed(farthest[0].values()) if farthest else ()
        return next((each for each in alike if isinstance(each.content, ParsedRequest)), None), False


def _pieces(kind: Hashable, body: bytes, end: int) -> Iterator[Hashable]:
    """The names of the pieces of body[:end]."""
    return ((kind, at, body[at : at + _PIECE]) for at in _OFFSETS if at + _PIECE <= end)


def _continues(new: Conversation, old: Conversation) -> bool:
    """Whether a request carries all that an earlier one did. Where it is of a later step, the newest turn of that may
    be another, because some clients write their last message anew each time."""
    end = old.ends[-2] if 1 < old.steps < new.steps else old.ends[-1]
    return 0 < end <= len(new.blocks) and new.blocks[end - 1].anchor == old.blocks[end - 1].anchor
