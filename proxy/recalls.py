"""The recall exchanges of conversations: put back into what the client sends, and remembered.

Laws
  What an exchange says is found again in the request at hand; the store keeps the calls only.
  Where the store is in trouble an exchange is missing, the reply says so, and nothing else happens.
"""

import asyncio
from dataclasses import dataclass

from cachetools import LRUCache

from policies.dialects import DIALECTS, Reply
from policies.edits import Insert
from policies.recall import Answer
from policies.restore import Flight, Reading, Restored, reply_digest, restore
from proxy.histories import Histories, Inserts
from proxy.intake import Intake, Taken
from proxy.outgoing import Incoming
from proxy.store import Key

_RESTORED_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Resumed:
    """A request with its exchanges back in their places; `lost` where the newest reply had one that is not its own.
    `answers` are those of the reply in flight."""

    taken: Taken
    lost: bool = False
    answers: tuple[Answer, ...] = ()


class Recalls:
    """Puts exchanges back, and remembers new ones."""

    def __init__(self, intake: Intake, histories: Histories) -> None:
        self._intake = intake
        self._histories = histories
        self._restored: LRUCache[tuple[object, ...], Restored] = LRUCache(_RESTORED_BYTES, getsizeof=_weight)

    async def resume(self, incoming: Incoming, taken: Taken, inserts: Inserts, flight: Flight | None) -> Resumed:
        """The request as the model knows it; with the exchange of the reply in `flight`, if one is being given."""
        if not inserts and flight is None:
            return Resumed(taken)
        reading = Reading(DIALECTS[incoming.dialect], taken.request, taken.conversation, taken.count)
        known = dict(self._restored.items())  # the cache is the event loop's alone, and a long text takes its time
        whole = await asyncio.to_thread(restore, reading, inserts, known, flight)
        for name in known.keys() - self._restored.keys():
            if _weight(known[name]) < _RESTORED_BYTES // 8:
                self._restored[name] = known[name]
        again = taken
        if whole.body is not taken.request.body:
            again = await self._intake.take(incoming.dialect, whole.body, incoming.tenant, restored=True) or taken
        return Resumed(again, whole.lost, whole.answers)

    async def keep(self, key: Key, after: str, before: Inserts | None, reply: Reply) -> None:
        """Remember the exchanges behind the choices of a reply, or that there are none. `before` are those behind
        earlier replies; None where they are not known, so that nobody takes what is here for all."""
        for choice in reply.choices:
            said = reply.said(choice)
            digest = reply_digest(said.text, said.call_ids)
            insert = Insert(after, digest, said.rounds)
            if before is not None:
                own = {after: (insert,)} if said.rounds else {}
                self._histories.replied(key, after, digest, {**before, **own})
            if said.rounds:
                await self._histories.insert(key, insert)


def _weight(raws: Restored) -> int:
    return 200 + sum(map(len, raws))
