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

from policies.dialects import DIALECTS, Said
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
        self._restored: LRUCache[Key, Mapping[tuple[object, ...], Restored]] = LRUCache(
            _RESTORED_BYTES, getsizeof=_weight
        )

    async def resume(
        self, incoming: Incoming, key: Key, taken: Taken, inserts: Inserts, flight: Flight | None
    ) -> Resumed:
        """The request as the model knows it; with the exchange of the reply in `flight`, if one is being given."""
        if not inserts and flight is None:
            return Resumed(taken)
        reading = Reading(DIALECTS[incoming.dialect], taken.request, taken.conversation, taken.count)
        known = dict(self._restored.get(key, {}))  # the cache is the event loop's alone
        whole = await asyncio.to_thread(restore, reading, inserts, known, flight)  # a long text takes its time
        if _weight(known) < _RESTORED_BYTES // 8:
            self._restored[key] = known
        else:
            self._restored.pop(key, None)
        again = taken
        if whole.body is not taken.request.body:
            again = await self._intake.take(incoming.dialect, whole.body, incoming.tenant, restored=True) or taken
        return Resumed(again, whole.lost, whole.answers)

    async def keep(self, key: Key, dialect: str, after: str, before: Inserts | None, said: Said) -> None:
        """Remember the exchange behind a choice of a reply, or that there is none. `before` are those behind earlier
        replies; None where they are not known, so that nobody takes what is here for all."""
        digest = reply_digest(said.text, said.call_ids)
        insert = Insert(after, digest, said.rounds, dialect)
        if before is not None:
            together = {**before, after: (insert,)} if said.rounds else before
            self._histories.replied(key, dialect, after, digest, together)
        if said.rounds:
            await self._histories.insert(key, insert)


def _weight(known: Mapping[tuple[object, ...], Restored]) -> int:
    """About what they take in memory, in bytes, with the replies that they stand for."""
    return 1_000 + sum(1_000 + 4 * sum(map(len, restored.raws)) for restored in known.values())
