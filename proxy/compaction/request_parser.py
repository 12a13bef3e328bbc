"""From a body to its messages: only what is new in a request is digested and read.

Laws
  A message is what its bytes say: equal bytes are read once, and a request that begins with the bytes of an earlier one
  of the same tenant takes over what was read there.
  What is kept is bounded in bytes; forgetting costs time and nothing else.
"""

import asyncio
from hashlib import sha256

from cachetools import LRUCache

from policies.dialects import DIALECTS, Dialect, Request
from policies.model.conversation import Message, converse
from policies.model.tokens import Counter, encoding_for
from proxy.requests import ParsedRequest

_COLD_BYTES = 200_000
"""More unread text than this is read in a thread, so that nobody else waits."""
_MESSAGES_BYTES = 256 * 2**20
_REQUESTS_BYTES = 256 * 2**20
_BEGINNING = 512
"""Bytes by which a request finds an earlier one that may begin alike."""


class RequestParser:
    """Splits and reads requests, and remembers what it has read."""

    def __init__(self) -> None:
        usual = Counter()  # loading a vocabulary stops everything for half a second: better before anyone asks
        self._counters = {usual.encoding: usual}
        self._messages: LRUCache[tuple[Dialect, str, bytes], Message] = LRUCache(_MESSAGES_BYTES, getsizeof=_weight)
        self._requests: LRUCache[tuple[str, str, bool, bytes], ParsedRequest] = LRUCache(
            _REQUESTS_BYTES, getsizeof=_size
        )

    async def take(self, dialect: str, body: bytes, tenant: str, restored: bool = False) -> ParsedRequest | None:
        """The request and its conversation; None where the body is not one of the dialect's. With recall exchanges
        `restored` in it, it continues another one of its kind. Raises TooManyError where it passes a limit."""
        name = (dialect, tenant, restored, body[:_BEGINNING])
        earlier = self._requests.get(name)
        before, split = earlier.request if earlier else None, DIALECTS[dialect].split
        new_bytes = len(body) - (len(before.body) if before else 0)
        # what is put back is bounded where it was made: a round of recalls is not to fail at the last message
        if new_bytes > _COLD_BYTES:
            request = await asyncio.to_thread(split, body, before, not restored)
        else:
            request = split(body, before, not restored)
        if request is None:
            return None
        count = await self.counter(request.model)
        known = earlier.conversation if earlier and earlier.count is count else None
        messages = list(known.messages[: request.shared]) if known else []
        messages += await self._read(DIALECTS[dialect], request, len(messages), count)
        taken = ParsedRequest(request, count, converse(messages, known))
        if _size(taken) <= _REQUESTS_BYTES // 8:
            self._requests[name] = taken
        return taken

    async def counter(self, model: str) -> Counter:
        """What counts for a model."""
        encoding = encoding_for(model)
        if encoding not in self._counters:  # half a second to load its vocabulary
            self._counters[encoding] = await asyncio.to_thread(Counter, encoding)
        return self._counters[encoding]

    async def _read(self, dialect: Dialect, request: Request, start: int, count: Counter) -> list[Message]:
        """The messages from `start` on; those read before, for whoever it was, are not read again."""
        raws = [request.raw(i) for i in range(start, len(request.spans))]
        names = [(dialect, count.encoding, sha256(raw).digest()) for raw in raws]
        messages = [self._messages.get(name) for name in names]
        unread = [i for i, message in enumerate(messages) if message is None]
        if sum(len(raws[i]) for i in unread) > _COLD_BYTES:
            fresh = await asyncio.to_thread(lambda: [dialect.read(raws[i], count) for i in unread])
        else:
            fresh = [dialect.read(raws[i], count) for i in unread]
        for i, message in zip(unread, fresh, strict=True):
            messages[i] = message
            if _weight(message) <= _MESSAGES_BYTES // 8:
                self._messages[names[i]] = message
        return [message for message in messages if message is not None]


def _size(taken: ParsedRequest) -> int:
    return len(taken.request.body) + 1_000 * len(taken.conversation.blocks)


def _weight(message: Message) -> int:
    """About what a message takes in memory, in bytes."""
    return 500 + sum(200 + len(part.text) * 2 for part in message.parts)
