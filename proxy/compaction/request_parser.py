"""From a body to its messages: only what is new in a request is digested and read.

Laws
  A message is what its bytes say: equal bytes are read once, and a request that begins with the bytes of an earlier one
  of the same tenant takes over what was read there.
  What is cached is bounded in bytes; forgetting costs time and nothing else.
"""

import asyncio
from collections.abc import Hashable, Sequence
from hashlib import sha256

from cachetools import LRUCache

from policies.dialects import DIALECTS, Dialect, Request
from policies.model.conversation import Message, converse
from policies.model.tokens import Counter, encoding_for
from proxy.compaction.beginnings import Beginnings, Filed, PackedRequest
from proxy.requests import ParsedRequest

_LARGE_BYTES = 200_000
"""More unread text than this is read in a thread, so that nobody else waits."""
_HUGE_BYTES = 1_000_000
"""A larger body is always split in a thread: an earlier one that begins alike may share little with it."""
_MANY_MESSAGES = 150
"""More messages of which nothing was read before are put together in a thread, too."""
_MESSAGES_BYTES = 16 * 2**20
"""Messages that no remembered request may hold: what many conversations begin with, and what comes back."""
_REQUESTS_BYTES, _UNPACKED_BYTES = 256 * 2**20, 64 * 2**20
"""Requests with their conversations: some 50 of 100,000 tokens as they are used, and 1,500 packed."""


class RequestParser:
    """Splits and reads requests, and caches what it has read."""

    def __init__(self) -> None:
        self._counters: dict[str, Counter] = {}
        self._messages: LRUCache[tuple[Dialect, str, bytes], Message] = LRUCache(
            _MESSAGES_BYTES, getsizeof=_message_bytes
        )
        self._requests = Beginnings(_REQUESTS_BYTES, _UNPACKED_BYTES)
        self._packing: asyncio.Task[None] | None = None

    async def parse(
        self, dialect: str, body: bytes, tenant: str, named: str | None = None, *, restored: bool = False
    ) -> ParsedRequest | None:
        """The request and its conversation; None where the body is not one of the dialect's. What a header has `named`
        continues what it named before; a body with recall exchanges `restored` in it an earlier one of its kind. Raises
        TooManyError where the body holds more than a limit."""
        kind = (dialect, tenant, named, restored)
        filed, is_extended = await self._find(kind, DIALECTS[dialect], body)
        earlier = None if filed is None else filed.parsed
        body_before, split = earlier.request if earlier else None, DIALECTS[dialect].split
        new = len(body) - (len(body_before.body) if body_before and is_extended else 0)
        # what is put back is bounded where it was made: a round of recalls is not to fail at the last message
        if len(body) > _HUGE_BYTES or new > _LARGE_BYTES:
            request = await asyncio.to_thread(split, body, body_before, not restored)
        else:
            request = split(body, body_before, not restored)
        if request is None:
            return None
        count = await self.counter(request.model)
        conversation = earlier.conversation if earlier and earlier.count is count else None
        before = conversation.messages[: request.shared] if conversation else ()
        messages = before + tuple(await self._read(DIALECTS[dialect], request, len(before), count))
        if not before and len(messages) > _MANY_MESSAGES:
            conversation = await asyncio.to_thread(converse, messages)
        else:
            conversation = converse(messages, conversation, len(before))
        parsed = ParsedRequest(request, count, conversation)
        if (size := _request_bytes(parsed)) <= _REQUESTS_BYTES // 8:
            self._requests.put(kind, parsed, size, filed)
            if self._packing is None and self._requests.to_pack():
                self._packing = asyncio.create_task(self._pack())
        return parsed

    async def _find(self, kind: Hashable, dialect: Dialect, body: bytes) -> tuple[Filed | None, bool]:
        """The earlier request that the body has most in common with, as it is used; and whether the body extends it."""
        filed, is_extended = self._requests.find(kind, body)
        if filed is not None and isinstance(filed.content, PackedRequest):
            parsed = await asyncio.to_thread(filed.content.unpacked, dialect)
            if isinstance(filed.content, PackedRequest):  # nobody else was faster
                self._requests.unpack(filed, parsed, _request_bytes(parsed))
        return filed, is_extended

    async def _pack(self) -> None:
        """Pack those that were not used for longest."""
        try:
            while some := self._requests.to_pack():
                for filed, packed in zip(some, await asyncio.to_thread(_packed, some), strict=True):
                    self._requests.pack(filed, packed)
        finally:
            self._packing = None

    async def counter(self, model: str) -> Counter:
        encoding = encoding_for(model)
        if encoding not in self._counters:  # a third of a second to load its vocabulary, once in a process
            self._counters[encoding] = await asyncio.to_thread(Counter, encoding)
        return self._counters[encoding]

    async def _read(self, dialect: Dialect, request: Request, start: int, count: Counter) -> list[Message]:
        """The messages from `start` on; those read before, for any client, are not read again."""
        raws = [request.raw(i) for i in range(start, len(request.spans))]
        names = [(dialect, count.encoding, sha256(raw).digest()) for raw in raws]
        messages = [self._messages.get(name) for name in names]
        unread = [i for i, message in enumerate(messages) if message is None]
        if sum(len(raws[i]) for i in unread) > _LARGE_BYTES:
            fresh = await asyncio.to_thread(lambda: [dialect.read(raws[i], count) for i in unread])
        else:
            fresh = [dialect.read(raws[i], count) for i in unread]
        for i, message in zip(unread, fresh, strict=True):
            messages[i] = message
            if _message_bytes(message) <= _MESSAGES_BYTES // 8:
                self._messages[names[i]] = message
        return [message for message in messages if message is not None]


def _packed(requests: Sequence[Filed]) -> list[PackedRequest]:
    return [*map(PackedRequest.of, requests)]


def _request_bytes(parsed: ParsedRequest) -> int:
    """About what it takes in memory: its bytes, its texts, and its blocks with their indexes."""
    return 2 * len(parsed.request.body) + 1_500 * len(parsed.conversation.blocks)


def _message_bytes(message: Message) -> int:
    return 500 + sum(200 + len(part.text) * 2 for part in message.parts)
