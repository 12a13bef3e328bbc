"""From a body to its messages: only what is new in a request is digested and read.

Laws
  A message is what its bytes say: equal bytes are read once, and a request that begins with the bytes of an earlier one
  of the same tenant takes over what was read there.
  What is cached is bounded in bytes; forgetting costs time and nothing else. Of a large request of a credential that
  was not accepted nothing stays, until its upstream has accepted it.
"""

import asyncio
from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import asynccontextmanager, nullcontext
from hashlib import sha256

from cachetools import LRUCache

from policies.dialects import DIALECTS, Dialect, Request
from policies.model.conversation import Message
from policies.model.converse import converse
from policies.model.tokens import Counter, encoding_for
from proxy.event_loop import in_thread
from proxy.kernel.beginnings import Beginnings, Filed, PackedRequest
from proxy.memory import Key, conversation_id
from proxy.requests import ParsedRequest

_LARGE_BYTES = 200_000
"""More unread text than this is read in a thread, so that nobody else waits."""
_NEW_BYTES = 50_000
"""More of a body than this, beyond what an earlier one has, is split in a thread: it may hold thousands of messages."""
_HUGE_BYTES = 1_000_000
"""A larger body is always split in a thread: an earlier one that begins alike may share little with it."""
_MANY_MESSAGES, _TOO_MANY = 150, 1_000
"""More new messages are read and put together in a thread, too, however small they are; and none of still more of them
is looked up one by one."""
_AT_ONCE = 2
"""Large bodies that are worked on at once: more threads would only keep the interpreter from the event loop."""
_HUGE_NEW_BYTES = 4_000_000
"""Of bodies in which more is new, one is worked on at once: it takes some five times as much memory meanwhile."""
_MESSAGES_BYTES = 16 * 2**20
"""Messages that no remembered request may hold: what many conversations begin with, and what comes back."""
_UNPROVEN_BYTES = 2**20
"""A larger request is only remembered for a credential that an upstream has accepted."""
_REQUESTS_BYTES, _UNPACKED_BYTES = 256 * 2**20, 64 * 2**20
"""Requests with their conversations: some 50 of 100,000 tokens as they are used, and 1,500 packed."""


_Kind = tuple[str, str, str | None, bool]
"""API, tenant, what a header names the conversation, and whether recall exchanges were put back."""


class RequestParser:
    """Splits and reads requests, and caches what it has read."""

    def __init__(self) -> None:
        self._counters: dict[str, Counter] = {}
        self._messages: LRUCache[tuple[Dialect, str, bytes], Message] = LRUCache(
            _MESSAGES_BYTES, getsizeof=_message_bytes
        )
        self._requests = Beginnings(_REQUESTS_BYTES, _UNPACKED_BYTES)
        self._packing: asyncio.Task[None] | None = None
        self._large, self._huge = asyncio.Semaphore(_AT_ONCE), asyncio.Semaphore(1)
        self._unproven, self._unproven_large = asyncio.Semaphore(1), asyncio.Semaphore(1)
        """Of credentials that were not accepted one body is worked on at once, so that others find a place; one that is
        not large waits for no large one: it may be the first of an honest client."""

    async def parse(
        self,
        dialect: str,
        body: bytes,
        tenant: str,
        named: str | None = None,
        *,
        restored: bool = False,
        is_accepted: bool = True,
    ) -> ParsedRequest | None:
        """The request and its conversation; None where the body is not one of the dialect's. What a header has `named`
        continues what it named before; a body with recall exchanges `restored` in it an earlier one of its kind.
        `is_accepted`: its credential was accepted. Raises TooManyError where the body holds more than a limit."""
        kind = (dialect, tenant, named, restored)
        filed, is_extended = await self._find(kind, DIALECTS[dialect], body)
        earlier = None if filed is None else filed.parsed
        new = len(body) - (len(earlier.request.body) if earlier and is_extended else 0)
        async with self._turn(new, is_accepted):
            parsed = await self._parsed(DIALECTS[dialect], body, earlier, new, bounded=not restored)
        if parsed is not None and (is_accepted or _request_bytes(parsed) <= _UNPROVEN_BYTES):
            self._keep(kind, parsed, filed, earlier)
        return parsed

    def keep(self, dialect: str, parsed: ParsedRequest, tenant: str, named: str | None) -> None:
        """The credential of this request has been accepted: it is remembered, if it was not yet."""
        if _request_bytes(parsed) > _UNPROVEN_BYTES:
            kind = (dialect, tenant, named, False)
            filed, _ = self._requests.find(kind, parsed.request.body)
            earlier = filed.content if filed and isinstance(filed.content, ParsedRequest) else None
            if earlier is not parsed:
                self._keep(kind, parsed, filed, earlier)

    def forget(self, tenant: str, conversation: str | None) -> None:
        """A conversation is deleted, or all of a tenant: nobody can say of which a single message is, so all go."""
        self._requests.forget(tenant, conversation)
        self._messages.clear()

    def _keep(self, kind: _Kind, parsed: ParsedRequest, filed: Filed | None, earlier: ParsedRequest | None) -> None:
        """Remember a request, in the place of the `earlier` one that it continues."""
        if (size := _request_bytes(parsed)) <= _REQUESTS_BYTES // 8:
            before, key = earlier.conversation if earlier else None, key_of(*kind[:3], parsed)
            self._requests.put(kind, parsed, size, filed, before, key)
            if self._packing is None and self._requests.to_pack():
                self._packing = asyncio.create_task(self._pack())

    @asynccontextmanager
    async def _turn(self, new: int, is_accepted: bool) -> AsyncIterator[None]:
        """Wait for others, where so many bytes are new."""
        unproven = self._unproven_large if new > _LARGE_BYTES else self._unproven
        async with (
            unproven if new > _NEW_BYTES and not is_accepted else nullcontext(),
            self._huge if new > _HUGE_NEW_BYTES else nullcontext(),
            self._large if new > _LARGE_BYTES else nullcontext(),
        ):
            yield

    async def _parsed(
        self, dialect: Dialect, body: bytes, earlier: ParsedRequest | None, new: int, *, bounded: bool
    ) -> ParsedRequest | None:
        """The request, which begins like an `earlier` one; so many bytes of it are `new`. `bounded`: whether it is
        held to the limits. What is put back was bounded where it was made: a round of recalls is not to fail
        at the last message."""
        before = earlier.request if earlier else None
        if len(body) > _HUGE_BYTES or new > _NEW_BYTES:
            request = await in_thread(dialect.split, body, before, bounded)
        else:
            request = dialect.split(body, before, bounded)
        if request is None:
            return None
        count = await self.counter(request.model)
        conversation = earlier.conversation if earlier and earlier.count is count else None
        shared = conversation.messages[: request.shared] if conversation else ()
        messages = shared + tuple(await self._read(dialect, request, len(shared), count))
        if len(messages) - len(shared) > _MANY_MESSAGES:
            conversation = await in_thread(converse, messages)
        else:
            conversation = converse(messages, conversation, len(shared))
        return ParsedRequest(request, count, conversation)

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
        new = range(start, len(request.spans))
        if len(new) > _TOO_MANY:
            return await in_thread(lambda: [dialect.read(request.raw(i), count) for i in new])
        raws = [request.raw(i) for i in new]
        names = [(dialect, count.encoding, sha256(raw).digest()) for raw in raws]
        messages = [self._messages.get(name) for name in names]
        unread = [i for i, message in enumerate(messages) if message is None]
        if len(unread) > _MANY_MESSAGES or sum(len(raws[i]) for i in unread) > _LARGE_BYTES:
            fresh = await in_thread(lambda: [dialect.read(raws[i], count) for i in unread])
        else:
            fresh = [dialect.read(raws[i], count) for i in unread]
        for i, message in zip(unread, fresh, strict=True):
            messages[i] = message
            if _message_bytes(message) <= _MESSAGES_BYTES // 8:
                self._messages[names[i]] = message
        return [message for message in messages if message is not None]


def key_of(dialect: str, tenant: str, named: str | None, received: ParsedRequest) -> Key:
    """Which conversation this is: named by the client, or else by all that stands before the first reply, and by the
    API: what was sent in one API is nothing that another could extend."""
    named = named or received.request.conversation
    beginning = f"{dialect}\0{received.conversation.end_anchor(0)}"
    return Key(tenant, conversation_id(named) if named else sha256(beginning.encode()).hexdigest()[:32])


def _packed(requests: Sequence[Filed]) -> list[PackedRequest]:
    return [*map(PackedRequest.of, requests)]


def _request_bytes(parsed: ParsedRequest) -> int:
    """About what it takes in memory: its bytes, its texts, and its blocks with their indexes."""
    return 2 * len(parsed.request.body) + 1_500 * len(parsed.conversation.blocks)


def _message_bytes(message: Message) -> int:
    return 500 + sum(200 + len(part.text) * 2 for part in message.parts)
