"""From a body to its messages: only what is new in a request is digested and read.

Laws
  A request that begins with the bytes of an earlier one of the same tenant takes over what was read there.
  Of a large request of a credential that was not accepted nothing stays, until its upstream has accepted it.
"""

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager, nullcontext
from hashlib import sha256

from policies.dialects import DIALECTS, Dialect
from policies.model.conversation import Conversation, Message
from policies.model.converse import converse
from policies.model.tokens import Counter, encoding_for
from proxy.event_loop import in_thread
from proxy.memory import Key, conversation_id
from proxy.memory.conversation import Branch, PackedRequest, ParsedRequest
from proxy.memory.conversations import Conversations

_LARGE_BYTES = 200_000
"""More unread text than this is read in a thread, so that nobody else waits."""
_NEW_BYTES = 50_000
"""More of a body than this, beyond what an earlier one has, is split in a thread: it may hold thousands of messages."""
_HUGE_BYTES = 1_000_000
"""A larger body is always split in a thread: an earlier one that begins alike may share little with it."""
_MANY_MESSAGES = 150
"""More new messages are read and put together in a thread, too, however small they are."""
_AT_ONCE = 2
"""Large bodies that are worked on at once: more threads would only keep the interpreter from the event loop."""
_HUGE_NEW_BYTES = 4_000_000
"""Of bodies in which more is new, one is worked on at once: it takes some five times as much memory meanwhile."""
_UNPROVEN_BYTES = 2**20
"""A larger request is only remembered for a credential that an upstream has accepted."""

_Kind = tuple[str, str, str | None, bool]
"""API, tenant, what a header names the conversation, and whether recall exchanges were put back."""


class RequestParser:
    """Splits and reads requests, and remembers what it has read."""

    def __init__(self, conversations: Conversations) -> None:
        self._conversations = conversations
        self._counters: dict[str, Counter] = {}
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
        branch, is_extended = await self._find(kind, DIALECTS[dialect], body)
        earlier = None if branch is None else branch.parsed
        new = len(body) - (len(earlier.request.body) if earlier and is_extended else 0)
        async with self._turn(new, is_accepted):
            parsed = await self._parsed(kind, body, earlier, new)
        if parsed is not None and (is_accepted or parsed.size <= _UNPROVEN_BYTES):
            self._conversations.put(kind, parsed, branch, earlier.conversation if earlier else None)
        return parsed

    def keep(self, dialect: str, parsed: ParsedRequest, tenant: str, named: str | None) -> None:
        """The credential of this request has been accepted: it is remembered, if it was not yet."""
        if parsed.size > _UNPROVEN_BYTES:
            kind = (dialect, tenant, named, False)
            branch, _ = self._conversations.find(kind, parsed.request.body)
            earlier = branch.content if branch and isinstance(branch.content, ParsedRequest) else None
            if earlier is not parsed:
                self._conversations.put(kind, parsed, branch, earlier.conversation if earlier else None)

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

    async def _parsed(self, kind: _Kind, body: bytes, earlier: ParsedRequest | None, new: int) -> ParsedRequest | None:
        """The request, which begins like an `earlier` one; so many bytes of it are `new`. It is held to the limits; but
        what is put back was bounded where it was made: a round of recalls is not to fail at the last message."""
        before, dialect, bounded = earlier.request if earlier else None, DIALECTS[kind[0]], not kind[3]
        if len(body) > _HUGE_BYTES or new > _NEW_BYTES:
            request = await in_thread(dialect.split, body, before, bounded)
        else:
            request = dialect.split(body, before, bounded)
        if request is None:
            return None
        count = await self.counter(request.model)
        conversation = earlier.conversation if earlier and earlier.count is count else None
        shared = conversation.messages[: request.shared] if conversation else ()
        fresh = range(len(shared), len(request.spans))
        unread = request.spans[-1][1] - request.spans[fresh.start][0] if fresh else 0

        def read() -> tuple[Message, ...]:
            return shared + tuple(dialect.read(request.raw(at), count) for at in fresh)

        is_long = len(fresh) > _MANY_MESSAGES
        messages = await in_thread(read) if is_long or unread > _LARGE_BYTES else read()
        if is_long:
            conversation = await in_thread(converse, messages)
        else:
            conversation = converse(messages, conversation, len(shared))
        key = _key(kind[0], kind[1], kind[2] or request.conversation, conversation)
        return ParsedRequest(request, count, conversation, key)

    async def _find(self, kind: Hashable, dialect: Dialect, body: bytes) -> tuple[Branch | None, bool]:
        """The earlier request that the body has most in common with, as it is used; and whether the body extends it."""
        branch, is_extended = self._conversations.find(kind, body)
        if branch is not None and isinstance(branch.content, PackedRequest):
            self._conversations.unpack(branch, await asyncio.to_thread(branch.content.unpacked, dialect, branch.key))
        return branch, is_extended

    async def counter(self, model: str) -> Counter:
        encoding = encoding_for(model)
        if encoding not in self._counters:  # a third of a second to load its vocabulary, once in a process
            self._counters[encoding] = await asyncio.to_thread(Counter, encoding)
        return self._counters[encoding]


def _key(dialect: str, tenant: str, name: str | None, conversation: Conversation) -> Key:
    """Which conversation this is: named by the client, or else by all that stands before the first reply, and by the
    API: what was sent in one API is nothing that another could extend."""
    beginning = f"{dialect}\0{conversation.end_anchor(0)}"
    return Key(tenant, conversation_id(name) if name else sha256(beginning.encode()).hexdigest()[:32])
