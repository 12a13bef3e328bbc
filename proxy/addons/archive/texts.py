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
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING

from cachetools import LRUCache

from policies.model.conversation import Block, Conversation
from policies.model.edits import Edit, Replace
from policies.model.summary_record import source_of
from policies.recall import call_answered_by, original
from policies.text.stubs import refs_named
from policies.tools import OURS
from proxy.errors import ApiError
from proxy.event_loop import in_thread
from proxy.memory import ARTIFACTS, ORIGINALS, Key, StoredText, StoreTrouble, TextKind
from proxy.memory.cached import PendingWrite, WriteBehindQueue
from proxy.memory.forgetting import ForgetRegistry
from proxy.memory.opening import StoreAccess

if TYPE_CHECKING:
    from proxy.addons.archive.message_log import LogBranch
    from proxy.addons.archive.recordings import Recording

_QUEUED, _HELD = 256, 32 * 2**20
"""Requests whose texts may wait, and the characters of these texts; beyond it they are dropped."""
_PORTION = 2**20
"""Characters that are handed to the store at once, but for a longer text."""
_NAMES = 10
_REFERENCE = re.compile(r"[0-9]{6,24}(\+[0-9]{1,9})?")
LARGEST = 16 * 2**20
"""Characters of an artifact, at most; longer outputs are counted and not kept."""
_KNOWN = 100_000
"""Messages, requests and recordings, in all conversations of which something is known here."""
_LONGEST = 200
"""Characters of a tool's name: it comes from clients."""

Make = Callable[[], Awaitable[Iterable[StoredText]]]


@dataclass(slots=True)
class ArchivedConversation:
    """The memory of a conversation, by who sent it, so that a request costs what is new in it: the branches of
    its log, the newest first; the anchors of blocks up to which outputs are stored; and the recordings that go on, by
    how they begin, too."""

    branches: "dict[str, tuple[LogBranch, ...]]" = field(default_factory=dict)
    anchors: set[tuple[str, str]] = field(default_factory=set)
    recordings: "dict[tuple[str, str], list[Recording]]" = field(default_factory=dict)

    @property
    def size(self) -> int:
        messages = sum(1 + len(branch.digests) for row in self.branches.values() for branch in row)
        return 1 + messages + len(self.anchors) + sum(map(len, self.recordings.values()))


class ArchiveMemory:
    """Those that were asked about last. What is deleted is forgotten, and its recordings are not written any more."""

    def __init__(self, forgets: ForgetRegistry) -> None:
        self._memory: LRUCache[Key, ArchivedConversation] = LRUCache(_KNOWN, getsizeof=lambda each: each.size)
        forgets.register(self.forget)

    def of(self, key: Key) -> ArchivedConversation:
        return self._memory.get(key) or ArchivedConversation()

    def put(self, key: Key, entry: ArchivedConversation) -> None:
        """It has changed. One that alone is too large is forgotten."""
        self._memory.pop(key, None)
        if entry.size < _KNOWN:
            self._memory[key] = entry

    def forget(self, tenant: str, conversation: str | None = None) -> None:
        for key in [key for key in self._memory if key.tenant == tenant and conversation in (None, key.conversation)]:
            for row in self._memory.pop(key).recordings.values():
                for recording in row:
                    recording.is_deleted = True


def common_items(old: Sequence[object], new: Sequence[object]) -> int:
    pairs = zip(old, new, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(old), len(new)))


class TextQueue:
    """`name` is what log lines and metrics call it; `limit`: bytes that stay in the store of a bounded kind."""

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
        """True where they will be written. `size`: their characters. `on_give_up`: where they were not."""
        return self._writes.put(PendingWrite(key, partial(self._write, make), size, on_give_up))

    async def close(self) -> None:
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
    """The text of a reference, and a conversation that has it."""

    conversation: str
    text: str


class Originals:
    def __init__(self, services: StoreAccess) -> None:
        self._services = services
        self.queue = TextQueue(services, "originals", ORIGINALS)

    def keep(self, key: Key, owner: str, conversation: Conversation, new: Sequence[Edit]) -> None:
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
        """The text of a reference in what this owner sent, in all its conversations or in the one given.

        Raises ApiError where there is nothing, or more than one thing, or no store to ask.
        """
        name, store = f"{owner}.{ref}", self._services.store
        conversations: Sequence[str] = [conversation] if conversation is not None else []
        try:
            if not _REFERENCE.fullmatch(ref):
                conversations = []
            elif conversation is None:
                conversations = await store.conversations_with(tenant, ORIGINALS, name)
            rows = {each: await store.texts(Key(tenant, each), ORIGINALS, [name]) for each in conversations}
        except StoreTrouble as error:
            self._services.telemetry.metrics.store_trouble("original")
            message = "The store does not answer, so nothing can be looked up; try again in a moment."
            raise ApiError(503, message, "store_trouble", headers={"Retry-After": "5"}) from error
        texts = {each: some[name] for each, some in rows.items() if name in some}
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
    names = refs_named(edit.text)
    return next((ref for ref in refs if ref in names), "")


def hidden(conversation: Conversation, edits: Sequence[Edit]) -> Iterator[tuple[str, str]]:
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
    first, last = (edit.at, edit.at) if isinstance(edit, Replace) else (edit.first, edit.last)
    return slice(conversation.index[first], conversation.index[last] + 1)


class Artifacts:
    """Stores outputs of tools, and finds them for people. `limit`: bytes of a tenant."""

    def __init__(self, services: StoreAccess, memory: ArchiveMemory, limit: int) -> None:
        self._services, self._memory = services, memory
        self._longest = min(LARGEST, limit)
        self.queue = TextQueue(services, "artifacts", ARTIFACTS, limit)

    def keep(self, key: Key, owner: str, conversation: Conversation) -> None:
        entry, ends = self._memory.of(key), range(len(conversation.blocks), 0, -1)
        first = next((end for end in ends if (owner, conversation.blocks[end - 1].anchor) in entry.anchors), 0)
        blocks = conversation.blocks[first:]
        outputs = [
            block
            for block in blocks
            if block.text and block.tool not in OURS and (block.kind == "result" or block.answers is not None)
        ]
        fitting = [block for block in outputs if len(block.text) <= self._longest]
        if len(fitting) < len(outputs):
            self._services.telemetry.metrics.store_trouble("artifacts_large")
        size = sum(len(block.text) for block in fitting)
        make = partial(asyncio.to_thread, self._texts, owner, conversation, fitting, self._services.clock())
        if blocks and (not fitting or self.queue.put(key, size, make, entry.anchors.clear)):
            entry.anchors.add((owner, blocks[-1].anchor))
            self._memory.put(key, entry)

    def name_of(self, owner: str, digest: str) -> str:
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
        """One for each text, as it first stands. Messages are named as summaries name them, blocks as digests do."""
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
