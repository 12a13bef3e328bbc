"""Texts that are kept for people: the queue in which they wait for the store, and two kinds of them. Originals are what
references stand for (the model is answered from the request in flight); artifacts are what tools returned, in full.

Laws
  Nothing waits for a text, nothing fails by one: what cannot be written is tried once more, then counted and dropped.
  What waits is bounded. No text is logged. What is deleted is not written any more.
  A tenant finds its own texts; a missing, malformed or foreign reference is refused in the same words.
  An artifact is stored once in a conversation; a request costs what is new in it. In the store it has a keyed name, so
  that nobody can find out there or elsewhere whether it holds a certain text. The digest that people see is the
  SHA-256 of the text in UTF-8.
"""

import asyncio
import hmac
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256

from cachetools import LRUCache

from policies.model.conversation import Block, Conversation
from policies.model.edits import Edit, Replace
from policies.model.summary_record import source_of
from policies.recall import call_answered_by, original
from policies.text.stubs import refs_named
from policies.tools import RECALL
from proxy.errors import ApiError
from proxy.event_loop import in_thread
from proxy.memory import ARTIFACTS, ORIGINALS, Key, StoredText, StoreTrouble, TextKind
from proxy.memory.cached import PendingWrite, WriteBehindQueue
from proxy.memory.forgetting import forget_in
from proxy.memory.opening import StoreAccess

_QUEUED, _HELD = 256, 32 * 2**20
"""Requests whose texts may wait, and the characters of these texts; beyond it they are dropped."""
_PORTION = 2**20
"""Characters that are handed to the store at once, but for a longer text."""
_NAMES = 10
"""Conversations that a refusal names."""
_REFERENCE = re.compile(r"[0-9]{6,24}(\+[0-9]{1,9})?")
LARGEST = 16 * 2**20
"""Characters of an artifact, at most; longer outputs are counted and not kept."""
_SEEN = 2**16
"""Requests that are remembered, so that what they held is not looked at again."""
_LONGEST = 200
"""Characters of a tool's name: it comes from clients."""

Make = Callable[[], Awaitable[Iterable[StoredText]]]
"""Makes the texts of a request, once it is their turn. May raise StoreTrouble."""


class TextQueue:
    """A queue of texts of one kind. `name` is what log lines and metrics call it; `limit`: bytes that stay in the store
    of a bounded kind."""

    def __init__(self, services: StoreAccess, name: str, kind: TextKind, limit: int | None = None) -> None:
        self._store = services.store
        self._telemetry = services.telemetry
        self._name = name
        self._kind = kind
        self._limit = limit
        self._writes = WriteBehindQueue(
            services.telemetry, limit=_QUEUED, size_limit=_HELD, trouble=name, full=f"{name}_full"
        )
        self.forget = self._writes.forget
        services.forgets.register(self.forget)

    def put(self, key: Key, size: int, make: Make, on_give_up: Callable[[], None] = lambda: None) -> bool:
        """Whether they will be written. `size`: their characters. `on_give_up` is called where the store would not take
        them twice."""
        return self._writes.put(PendingWrite(key, partial(self._write, make), size, on_give_up))

    async def close(self) -> None:
        """Write what is waiting, for a moment at most."""
        if lost := await self._writes.close():
            self._telemetry.log.warning(f"{self._name}_lost", requests=lost)

    async def _write(self, make: Make, pending: PendingWrite) -> None:
        """In portions, so that no other writer waits for long."""
        portions: list[list[StoredText]] = []
        size = 0
        for text in await make():
            size += len(text.text)
            if not portions or size > _PORTION:
                portions.append([])
                size = len(text.text)
            portions[-1].append(text)
        for portion in portions:
            if not pending.is_forgotten:
                await self._store.put_texts(pending.key, self._kind, portion, self._limit)


@dataclass(frozen=True, slots=True)
class Original:
    """What a reference stands for, and a conversation that has it."""

    conversation: str
    text: str


class Originals:
    """Stores the texts that edits hide, and finds them for people."""

    def __init__(self, services: StoreAccess) -> None:
        self._services = services
        self.queue = TextQueue(services, "originals", ORIGINALS)

    def keep(self, key: Key, owner: str, conversation: Conversation, new: Sequence[Edit]) -> None:
        """Store what these edits hide, for its owner. Never raises."""
        edits = [edit for edit in new if named(conversation, edit)]
        if not edits:
            return
        size = sum(len(block.text) for edit in edits for block in conversation.blocks[_place(conversation, edit)])

        def texts() -> list[StoredText]:
            originals = dict(hidden(conversation, edits))
            return [StoredText(f"{owner}.{ref}", text, {}) for ref, text in originals.items()]

        async def make() -> list[StoredText]:
            with conversation.carried.held():
                return await in_thread(texts)

        self.queue.put(key, size, make)

    async def find(self, tenant: str, owner: str, ref: str, conversation: str | None) -> Original:
        """What a reference stands for in what this owner sent, in all its conversations or in the one given.

        Raises ApiError where there is nothing, or more than one thing, or no store to ask.
        """
        name, store = f"{owner}.{ref}", self._services.store
        conversations: Sequence[str] = [conversation] if conversation is not None else []
        try:
            if not _REFERENCE.fullmatch(ref):
                conversations = []
            elif conversation is None:
                conversations = await store.conversations_with(tenant, ORIGINALS, name)
            stored = {each: await store.texts(Key(tenant, each), ORIGINALS, [name]) for each in conversations}
        except StoreTrouble as error:
            self._services.telemetry.metrics.store_trouble("original")
            message = "The store does not answer, so nothing can be looked up; try again in a moment."
            raise ApiError(503, message, "store_trouble", headers={"Retry-After": "5"}) from error
        texts = {each: some[name] for each, some in stored.items() if name in some}
        if not texts:
            raise ApiError(404, "No text is stored for this reference.", "not_found")
        if len(set(texts.values())) > 1:
            more = f" and {len(texts) - _NAMES} more" if len(texts) > _NAMES else ""
            names = ", ".join(sorted(texts)[:_NAMES]) + more
            message = f"Several conversations have different texts for this reference: {names}. Add ?conversation=ID."
            raise ApiError(409, message, "ambiguous_reference", "conversation")
        return Original(min(texts), texts[min(texts)])


def named(conversation: Conversation, edit: Edit) -> str:
    """The reference that an edit's text names for what it hides; empty where it names none."""
    refs = [_own(conversation, edit)]
    call = call_answered_by(conversation, _place(conversation, edit).start) if isinstance(edit, Replace) else None
    if call is not None:
        refs.append(call.ref)
    named = refs_named(edit.text)
    return next((ref for ref in refs if ref in named), "")


def hidden(conversation: Conversation, edits: Sequence[Edit]) -> Iterator[tuple[str, str]]:
    """Each reference that these edits name, and what it stands for."""
    for edit in edits:
        ref = named(conversation, edit)
        if ref and isinstance(edit, Replace) and ref == _own(conversation, edit):
            yield ref, conversation.blocks[conversation.index[edit.at]].text
        elif ref and (text := original(conversation, ref)) is not None:
            yield ref, text


def _own(conversation: Conversation, edit: Edit) -> str:
    """The reference of what an edit hides, whether or not the edit names it."""
    place = _place(conversation, edit)
    if isinstance(edit, Replace):
        return conversation.ref(place.start)
    return conversation.run_ref(place.start, place.stop - 1)


def _place(conversation: Conversation, edit: Edit) -> slice:
    """The blocks that an edit hides."""
    first, last = (edit.at, edit.at) if isinstance(edit, Replace) else (edit.first, edit.last)
    return slice(conversation.index[first], conversation.index[last] + 1)


class Artifacts:
    """Stores outputs of tools, and finds them for people. `limit`: bytes of a tenant."""

    def __init__(self, services: StoreAccess, limit: int) -> None:
        self._services = services
        self._longest = min(LARGEST, limit)
        self._seen: LRUCache[tuple[Key, str, str], bool] = LRUCache(_SEEN)
        """Requests by conversation, owner and anchor of the last block."""
        self.queue = TextQueue(services, "artifacts", ARTIFACTS, limit)
        services.forgets.register_cache(self._seen)

    def keep(self, key: Key, owner: str, conversation: Conversation) -> None:
        """Store the outputs that this request is the first to bring. Never raises."""
        ends = range(len(conversation.blocks), 0, -1)
        seen = next((end for end in ends if (key, owner, conversation.blocks[end - 1].anchor) in self._seen), 0)
        blocks = conversation.blocks[seen:]
        outputs = [
            block
            for block in blocks
            if block.text and block.tool != RECALL and (block.kind == "result" or block.answers is not None)
        ]
        fitting = [block for block in outputs if len(block.text) <= self._longest]
        if len(fitting) < len(outputs):
            self._services.telemetry.metrics.store_trouble("artifacts_large")
        size = sum(len(block.text) for block in fitting)
        make = partial(asyncio.to_thread, self._texts, owner, conversation, fitting, self._services.clock())
        see_again = partial(forget_in, self._seen, key.tenant, key.conversation)
        if blocks and (not fitting or self.queue.put(key, size, make, see_again)):
            self._seen[key, owner, blocks[-1].anchor] = True

    def name_of(self, owner: str, digest: str) -> str:
        """The store's name of the text with this digest that this owner sent."""
        message = f"artifact\0{owner}\0{digest}".encode("utf-8", "surrogatepass")
        return hmac.new(self._services.secret, message, "sha256").hexdigest()[:32]

    async def find(self, tenant: str, owner: str, digest: str) -> str | None:
        """The text of this digest in what this owner sent. Raises StoreTrouble."""
        name = self.name_of(owner, digest)
        for conversation in await self._services.store.conversations_with(tenant, ARTIFACTS, name):
            texts = await self._services.store.texts(Key(tenant, conversation), ARTIFACTS, [name])
            if name in texts:
                return texts[name]
        return None

    def _texts(self, owner: str, conversation: Conversation, blocks: Iterable[Block], at: float) -> list[StoredText]:
        """One for each text, as it first stands. The message is named as summaries name theirs, the block as digests
        do."""
        texts: dict[str, StoredText] = {}
        for block in blocks:
            digest = sha256(block.text.encode("utf-8", "surrogatepass")).hexdigest()
            name = self.name_of(owner, digest)
            about: dict[str, str | int | float] = {
                "tool": block.tool[:_LONGEST],
                "characters": len(block.text),
                "message": source_of(conversation, block.message),
                "text_digest": block.text_digest.hex(),
                "digest": digest,
                "owner": owner,
                "at": at,
            }
            texts.setdefault(name, StoredText(name, block.text, about))
        return list(texts.values())
