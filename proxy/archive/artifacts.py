"""What tools returned, kept in full for people: each output once in a conversation, named by its digest.

Laws
  Behind the request, as TextQueue says; a request costs what is new in it.
  An artifact is for whoever sent it. In the store it has a keyed name, so that nobody can find out there or elsewhere
  whether somebody has a text.
  The digest that people see is the SHA-256 of the text in UTF-8.
"""

import asyncio
import hmac
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from hashlib import sha256

from cachetools import LRUCache

from policies.model.conversation import Block, Conversation
from policies.model.summary_record import source_of
from policies.tools import RECALL
from proxy.archive.queue import ArchiveServices, TextQueue
from proxy.store import Key, Leaf
from proxy.store.forgetting import forget_in

LARGEST = 16 * 2**20
"""Characters of an artifact, at most; longer outputs are counted and not kept."""
_SEEN = 2**16
"""Ends of requests that are remembered, so that what they held is not looked at again."""
_LONGEST = 200
"""Characters of a tool's name: it comes from clients."""


class Artifacts:
    """Keeps outputs, and finds them for a person."""

    def __init__(self, services: ArchiveServices, most: int) -> None:
        """`most`: bytes of a tenant."""
        self._services = services
        self._most = most
        self._seen: LRUCache[tuple[Key, str, str], bool] = LRUCache(_SEEN)
        self.queue = TextQueue(services, "artifacts", ARTIFACTS, most)
        services.forgets.register_cache(self._seen)

    def keep(self, key: Key, owner: str, conversation: Conversation) -> None:
        """Keep the outputs that this request is the first to bring. Never raises."""
        blocks = conversation.blocks[self._known(key, owner, conversation.blocks) :]
        found = [block for block in blocks if _is_output(block)]
        fitting = [block for block in found if len(block.text) <= min(LARGEST, self._most)]
        if len(fitting) < len(found):
            self._services.telemetry.metrics.store_trouble("artifacts_large")
        size = sum(len(block.text) for block in fitting)
        made = partial(asyncio.to_thread, self._leaves, owner, conversation, fitting, self._services.clock())
        again = partial(forget_in, self._seen, key.tenant, key.conversation)
        if blocks and (not fitting or self.queue.put(key, size, made, again)):
            self._seen[key, owner, blocks[-1].anchor] = True

    def name_of(self, owner: str, digest: str) -> str:
        """How the store calls what this owner sent and has this digest."""
        said = f"artifact\0{owner}\0{digest}".encode("utf-8", "surrogatepass")
        return hmac.new(self._services.secret, said, "sha256").hexdigest()[:32]

    async def find(self, tenant: str, owner: str, digest: str) -> str | None:
        """The text of this digest in what this owner sent. Raises StoreTrouble."""
        name = self.name_of(owner, digest)
        for conversation in await self._services.store.holders(tenant, name):
            texts = await self._services.store.texts(Key(tenant, conversation), "artifact", [name])
            if name in texts:
                return texts[name]
        return None

    def _known(self, key: Key, owner: str, blocks: Sequence[Block]) -> int:
        """How many leading blocks an earlier request had."""
        for at in range(len(blocks), 0, -1):
            if (key, owner, blocks[at - 1].anchor) in self._seen:
                return at
        return 0

    def _leaves(self, owner: str, conversation: Conversation, blocks: Iterable[Block], at: float) -> list[Leaf]:
        """One for each text, as it first stands."""
        found: dict[str, Leaf] = {}
        for block in blocks:
            digest = sha256(block.text.encode("utf-8", "surrogatepass")).hexdigest()
            about = {**_about(conversation, block), "digest": digest, "owner": owner, "at": at}
            name = self.name_of(owner, digest)
            found.setdefault(name, Leaf(name, block.text, about))
        return list(found.values())


def _is_output(block: Block) -> bool:
    """Whether a tool of the client's returned it."""
    return bool(block.text) and block.tool != RECALL and (block.kind == "result" or block.answers is not None)


def _about(conversation: Conversation, block: Block) -> Mapping[str, str | int]:
    """Of what it is: the message is named as summaries name theirs, the block as digests do."""
    return {
        "tool": block.tool[:_LONGEST],
        "characters": len(block.text),
        "message": source_of(conversation, block.message),
        "said": block.text_digest.hex(),
    }
