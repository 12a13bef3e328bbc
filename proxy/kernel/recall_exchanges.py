"""The recall exchanges of conversations: put back into what the client sends, and remembered.

Laws
  The store holds the calls, and what else the model's message carried; the answers are found again in the request.
  Where the store is in trouble an exchange is missing, the reply says so, and nothing else happens.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from cachetools import LRUCache

from policies.dialects import DIALECTS, ChoiceResult
from policies.model.edits import Insert
from policies.recall import RecallAnswer
from policies.restore import DialectRequest, ReplyInProgress, RestoredMessages, reply_digest, restore
from proxy.event_loop import in_thread
from proxy.kernel.request_parser import RequestParser
from proxy.memory import Key
from proxy.memory.cached import CachedStore, Inserts
from proxy.memory.forgetting import forget_in
from proxy.requests import ClientRequest, ParsedRequest, PlannedRequest

_RESTORED_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class RestoredRequest:
    """A request with its recall exchanges back in their places."""

    parsed: ParsedRequest
    lost: bool = False
    """Whether the newest reply had an exchange, and the client returned another reply."""
    answers: tuple[RecallAnswer, ...] = ()
    """The answers to the recall calls of the reply in progress."""


class RecallExchanges:
    def __init__(self, parser: RequestParser, store: CachedStore) -> None:
        self._parser = parser
        self._store = store
        self._restored: LRUCache[Key, Mapping[tuple[object, ...], RestoredMessages]] = LRUCache(
            _RESTORED_BYTES, getsizeof=_weight
        )

    def forget(self, tenant: str, conversation: str | None) -> None:
        forget_in(self._restored, tenant, conversation)

    async def restore(
        self,
        client_request: ClientRequest,
        key: Key,
        received: ParsedRequest,
        exchanges: Inserts,
        in_progress: ReplyInProgress | None,
    ) -> RestoredRequest:
        """The request as the model was sent it, with the exchange of the reply that is being given, if any."""
        reading = DialectRequest(
            DIALECTS[client_request.dialect], received.request, received.conversation, received.count
        )
        remembered = dict(self._restored.get(key, {}))  # the cache belongs to the event loop, the copy to the thread
        with received.conversation.carried.held():
            whole = await in_thread(restore, reading, exchanges, remembered, in_progress)
        if _weight(remembered) < _RESTORED_BYTES // 8:
            self._restored[key] = remembered
        else:
            self._restored.pop(key, None)
        parsed = received
        if whole.body is not received.request.body:
            kind, named = (client_request.dialect, whole.body, client_request.tenant), client_request.conversation
            is_accepted = client_request.is_accepted
            parsed = await self._parser.parse(*kind, named, restored=True, is_accepted=is_accepted) or received
        return RestoredRequest(parsed, whole.lost, whole.answers)

    async def remember(self, planned: PlannedRequest, result: ChoiceResult) -> None:
        """Store the exchange behind a choice of the reply, or remember that there is none."""
        context = planned.context
        after = context.received.conversation.end_anchor(context.received.conversation.steps - 1)
        digest = reply_digest(result.text, result.call_ids)
        exchange = Insert(after, digest, result.rounds, context.client_request.dialect)
        together = {**context.exchanges, after: (exchange,)} if result.rounds else context.exchanges
        complete = context.exchanges_complete  # else nobody may take these for all
        self._store.cache_exchanges(context.key, exchange.dialect, after, digest, together, complete=complete)
        if result.rounds:
            await self._store.store_exchange(context.key, exchange)


def _weight(remembered: Mapping[tuple[object, ...], RestoredMessages]) -> int:
    """About what they take in memory, in bytes, with the replies that they stand for."""
    return 1_000 + sum(1_000 + 4 * sum(map(len, restored.raws)) for restored in remembered.values())
