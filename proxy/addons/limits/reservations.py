"""Replies that go on without their client (`background` in Responses): charged at once as much as they may come to, and
corrected by what they came to when somebody fetches them.

Laws
  A reply is corrected once, by whichever replica first hears what it came to, for the key that asked for it, whoever
  fetches it. What nobody fetches within a day stays charged as it was.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from proxy.memory import RESERVATIONS, Key, Purse, Store, StoredText, StoreTrouble, conversation_id

_TENANT = "key:"
"""Under which reservations are stored; no tenant is called so."""
_BYTES = 2**22
"""Of all reservations; the oldest go first."""
_SECONDS = 86_400


class ReplyReservation(msgspec.Struct, frozen=True):
    """What a key was charged for a reply that is not over."""

    key: str
    model: str
    dollars: float
    at: float
    """When, in seconds since 1970."""

    @property
    def day(self) -> str:
        return time.strftime("%Y-%m-%d", time.gmtime(self.at))


class Reservations:
    """Those of all who share the store; without one, none, and every charge stays as it was."""

    def __init__(self, store: Store | None, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._writing: set[asyncio.Task[None]] = set()

    def put(self, name: str, reservation: ReplyReservation) -> None:
        """Remember what was charged for a reply of this name. Never waits."""
        if self._store is not None:
            task = asyncio.create_task(self._write(self._store, conversation_id(name), reservation))
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)

    async def take(self, name: str) -> ReplyReservation | None:
        """What was charged for this reply, to the first who asks. Raises StoreTrouble."""
        await self.close()
        key = Key(_TENANT, conversation_id(name))
        texts = await self._store.texts(key, RESERVATIONS, [key.conversation]) if self._store is not None else {}
        if self._store is None or key.conversation not in texts:
            return None
        row = msgspec.json.decode(texts[key.conversation], type=ReplyReservation)
        is_first = await self._store.take(Purse(_TENANT + key.conversation, day=row.day), 1.0, 1.0)
        await self._store.delete(key)
        return row if is_first and self._clock() - row.at < _SECONDS else None

    async def close(self) -> None:
        """Wait for what is being written."""
        if self._writing:  # whoever stops waiting here does not stop the writing
            await asyncio.wait(self._writing)

    async def _write(self, store: Store, name: str, reservation: ReplyReservation) -> None:
        text = StoredText(name, msgspec.json.encode(reservation).decode(), {})
        with suppress(StoreTrouble):  # it stays charged as it is
            await store.put_texts(Key(_TENANT, name), RESERVATIONS, [text], _BYTES)
