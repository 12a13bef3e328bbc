"""What tools returned, kept in full for people: each output once in a conversation, named by its digest.

Laws
  Stored behind the request, as `TextQueue` does; a request costs what is new in it.
  An artifact is for whoever sent it. In the store it has a keyed name, so that it cannot be found out there or
  elsewhere whether anybody has a text.
  The digest that people see is the SHA-256 of the text in UTF-8.
"""

import asyncio
import hmac
from collections.abc import Iterable
from functools import partial
from hashlib import sha256

from cachetools import LRUCache

from policies.model.conversation import Block, Conversation
from policies.model.summary_record import source_of
from policies.tools import RECALL
from proxy.archive.queue import ArchiveServices, TextQueue
from proxy.store import ARTIFACTS, Key, StoredText
from proxy.store.forgetting import forget_in

LARGEST = 16 * 2**20
"""Characters of an artifact, at most; longer outputs are counted and not kept."""
_SEEN = 2**16
"""Requests that are remembered, so that what they held is not looked at again."""
_LONGEST = 200
"""Characters of a tool's name: it comes from clients."""


class Artifacts:
    """Stores outputs, and finds them for a person. `limit`: bytes of a tenant."""

    def __init__(self, services: ArchiveServices, limit: int) -> None:
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
        outputs = [block for block in blocks if _is_output(block)]
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


def _is_output(block: Block) -> bool:
    """Whether a tool of the client's returned it."""
    return bool(block.text) and block.tool != RECALL and (block.kind == "result" or block.answers is not None)
