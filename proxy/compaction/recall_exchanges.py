"""The recall exchanges of conversations: put back into what the client sends, and remembered.

Laws
  What was answered is found again in the request at hand: the store keeps the calls, and what else the model's message
  carried.
  Where the store is in trouble an exchange is missing, the reply says so, and nothing else happens.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from cachetools import LRUCache

from policies.dialects import DIALECTS, ChoiceResult
from policies.model.edits import Insert
from policies.recall import RecallAnswer
from policies.restore import DialectRequest, ReplyInProgress, RestoredMessages, reply_digest, restore
from proxy.compaction.request_parser import RequestParser
from proxy.requests import ClientRequest, ParsedRequest
from proxy.store import Key
from proxy.store.cached import CachedStore, Inserts

_RESTORED_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class RestoredRequest:
    """A request with its exchanges back in their places; `lost` where the newest reply had one that is not its own.
    `answers` are those of the reply in flight."""

    taken: ParsedRequest
    lost: bool = False
    answers: tuple[RecallAnswer, ...] = ()


class Recalls:
    """Puts exchanges back, and remembers new ones."""

    def __init__(self, request_parser: RequestParser, cached_store: CachedStore) -> None:
        self._request_parser = request_parser
        self._cached_store = cached_store
        self._restored: LRUCache[Key, Mapping[tuple[object, ...], RestoredMessages]] = LRUCache(
            _RESTORED_BYTES, getsizeof=_weight
        )

    async def resume(
        self,
        client_request: ClientRequest,
        key: Key,
        taken: ParsedRequest,
        inserts: Inserts,
        flight: ReplyInProgress | None,
    ) -> RestoredRequest:
        """The request as the model knows it; with the exchange of the reply in `flight`, if one is being given."""
        if not inserts and flight is None:
            return RestoredRequest(taken)
        reading = DialectRequest(DIALECTS[client_request.dialect], taken.request, taken.conversation, taken.count)
        known = dict(self._restored.get(key, {}))  # the cache is the event loop's alone
        whole = await asyncio.to_thread(restore, reading, inserts, known, flight)  # a long text takes its time
        if _weight(known) < _RESTORED_BYTES // 8:
            self._restored[key] = known
        else:
            self._restored.pop(key, None)
        again = taken
        if whole.body is not taken.request.body:
            again = (
                await self._request_parser.take(
                    client_request.dialect, whole.body, client_request.tenant, restored=True
                )
                or taken
            )
        return RestoredRequest(again, whole.lost, whole.answers)

    async def keep(self, key: Key, dialect: str, after: str, before: Inserts | None, said: ChoiceResult) -> None:
        """Remember the exchange behind a choice of a reply, or that there is none. `before` are those behind earlier
        replies; None where they are not known, so that nobody takes what is here for all."""
        digest = reply_digest(said.text, said.call_ids)
        insert = Insert(after, digest, said.rounds, dialect)
        if before is not None:
            together = {**before, after: (insert,)} if said.rounds else before
            self._cached_store.cache_exchanges(key, dialect, after, digest, together)
        if said.rounds:
            await self._cached_store.store_exchange(key, insert)


def _weight(known: Mapping[tuple[object, ...], RestoredMessages]) -> int:
    """About what they take in memory, in bytes, with the replies that they stand for."""
    return 1_000 + sum(1_000 + 4 * sum(map(len, restored.raws)) for restored in known.values())
