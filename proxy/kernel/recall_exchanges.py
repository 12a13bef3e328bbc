"""The recall exchanges of conversations: put back into what the client sends, and remembered.

Laws
  The store holds the calls, and what else the model's message carried; the answers are found again in the request.
  Where the store is in trouble an exchange is missing, the reply says so, and nothing else happens.
"""

from dataclasses import dataclass

from policies.dialects import DIALECTS, ChoiceResult
from policies.model.edits import Insert
from policies.recall import RecallAnswer
from policies.restore import DialectRequest, ReplyInProgress, reply_digest, restore
from proxy.event_loop import in_thread
from proxy.kernel.request_parser import RequestParser
from proxy.memory.cached import StoreWriter
from proxy.memory.conversation import Inserts, LiveConversation, ParsedRequest, restored_weight
from proxy.requests import ClientRequest, PlannedRequest

_RESTORED_BYTES = 8 * 2**20
"""What is remembered of what was put back in one conversation."""


@dataclass(frozen=True, slots=True)
class RestoredRequest:
    """A request with its recall exchanges back in their places."""

    parsed: ParsedRequest
    lost: bool = False
    """Whether the newest reply had an exchange, and the client returned another reply."""
    answers: tuple[RecallAnswer, ...] = ()
    """The answers to the recall calls of the reply in progress."""


class RecallExchanges:
    def __init__(self, parser: RequestParser, writer: StoreWriter) -> None:
        self._parser = parser
        self._writer = writer

    async def restore(
        self,
        client_request: ClientRequest,
        live: LiveConversation,
        received: ParsedRequest,
        exchanges: Inserts,
        in_progress: ReplyInProgress | None,
    ) -> RestoredRequest:
        """The request as the model was sent it, with the exchange of the reply that is being given, if any."""
        reading = DialectRequest(
            DIALECTS[client_request.dialect], received.request, received.conversation, received.count
        )
        remembered = dict(live.restored)  # which belongs to the event loop, the copy to the thread
        with received.conversation.carried.held():
            whole = await in_thread(restore, reading, exchanges, remembered, in_progress)
        live.restored = remembered if restored_weight(remembered) < _RESTORED_BYTES else {}
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
        context.live.add_exchanges(exchange.dialect, after, digest, together, complete=complete)
        if result.rounds:
            await self._writer.store_exchange(context.key, exchange)
