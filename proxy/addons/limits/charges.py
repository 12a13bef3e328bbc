"""Charges of keys: counted here at once, and written behind the requests where all see it; and reservations
for replies that go on without their client (`background` in Responses): charged at once as much as they may come to,
and corrected by what they came to when somebody fetches them.

Laws
  Dollars that could not be stored are stored later. Where an answer is lost they are sent again, and count once.
  A reply is corrected once, by whichever replica first hears what it came to, for the key that asked for it, whoever
  fetches it. What nobody fetches within a day stays charged as it was.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import nextafter
from secrets import token_hex
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from proxy.addons.limits.windows import LocalWindows, TeamCounts, WindowUse
from proxy.breaker import Breaker
from proxy.config import KeyRow
from proxy.memory import RESERVATIONS, Key, Purse, Store, StoredText, StoreTrouble, conversation_id

if TYPE_CHECKING:  # it imports for a tenth of a second what only keys with limits need
    from proxy.addons.limits.redis_windows import SharedWindows

_PAUSE = 0.05
"""Seconds between two writes of what was charged, so that many charges are written together."""
_CLOSING_SECONDS = 2.0
_TENANT = "key:"
"""Under which reservations are stored; no tenant is called so."""
_RESERVATION_BYTES = 2**22
"""Of all reservations; the oldest go first."""
DAY = 86_400


class Refusal(NamedTuple):
    """A key's requests are refused until then (seconds since 1970): nothing comes free before."""

    limit: str
    allowed: float
    """The limit as it was: where the key has another one, this counts no more."""
    until: float
    use: WindowUse
    since: float = 0.0
    """When it was found, where that matters."""


@dataclass(slots=True)
class Counts:
    """Counts of this process, by the name of the key. A reload hands it on to the next Narrows."""

    windows: LocalWindows
    running: dict[str, int] = field(default_factory=dict)
    spent: dict[str, tuple[str, float]] = field(default_factory=dict)
    """The newest day, and the dollars that were charged here on it."""
    budgets: dict[str, tuple[str, float, bool]] = field(default_factory=dict)
    """The day and the limit for which the store was asked last, and whether the limit was reached."""
    owed: dict[tuple[str, str], float] = field(default_factory=dict)
    """Dollars of a key and a day that are still to be stored."""
    refusals: dict[str, Refusal] = field(default_factory=dict)

    def owe(self, whose: tuple[str, str], dollars: float) -> None:
        self.owed[whose] = self.owed.get(whose, 0.0) + dollars

    def is_used_up(self, key: KeyRow, today: str) -> bool:
        """True where the dollars of the day are used up, by what is known here."""
        if key.usd_per_day is None:
            return False
        day, spent = self.spent.get(key.name, ("", 0.0))
        budget = self.budgets.get(key.name)
        return budget == (today, key.usd_per_day, True) or (day == today and spent >= key.usd_per_day)


class ReplyReservation(msgspec.Struct, frozen=True):
    """The charge for a reply that is not over, and its time in seconds since 1970."""

    key: str
    model: str
    dollars: float
    at: float


class Reservations:
    """Those of all who share the store; without one, none, and every charge stays as it was."""

    def __init__(self, store: Store | None) -> None:
        self._store = store
        self._writing: set[asyncio.Task[None]] = set()

    def put(self, name: str, reservation: ReplyReservation) -> None:
        if self._store is not None:
            task = asyncio.create_task(self._write(self._store, conversation_id(name), reservation))
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)

    async def take(self, name: str, now: float) -> ReplyReservation | None:
        """The charge for this reply, for the first who asks. Raises StoreTrouble."""
        await self.close()
        key = Key(_TENANT, conversation_id(name))
        texts = await self._store.texts(key, RESERVATIONS, [key.conversation]) if self._store is not None else {}
        if self._store is None or key.conversation not in texts:
            return None
        row = msgspec.json.decode(texts[key.conversation], type=ReplyReservation)
        is_first = await self._store.take(Purse(_TENANT + key.conversation, day=_day(row.at)), 1.0, 1.0)
        await self._store.delete(key)
        return row if is_first and now - row.at < DAY else None

    async def close(self) -> None:
        """Wait for what is being written."""
        if self._writing:  # whoever stops waiting here does not stop the writing
            await asyncio.wait(self._writing)

    async def _write(self, store: Store, name: str, reservation: ReplyReservation) -> None:
        text = StoredText(name, msgspec.json.encode(reservation).decode(), {})
        with suppress(StoreTrouble):  # it stays charged as it is
            await store.put_texts(Key(_TENANT, name), RESERVATIONS, [text], _RESERVATION_BYTES)


class KeyCharges:
    def __init__(
        self,
        counts: Counts,
        breaker: Breaker,
        store: Store | None,
        shared: "SharedWindows | None",
        team: TeamCounts | None,
        clock: Callable[[], float],
    ) -> None:
        self._counts, self._breaker, self.clock = counts, breaker, clock
        self._store, self._shared, self._team = store, shared, team
        self.owed_tokens: dict[str, int] = {}
        self.sending: dict[tuple[str, str], tuple[str, float]] = {}
        """Dollars of a key and a day that are on their way, with the mark by which they are known."""
        self.writing: asyncio.Task[None] | None = None
        self.reservations = Reservations(store)

    def today(self) -> str:
        return _day(self.clock())

    def charge(self, key: KeyRow, tokens: int, dollars: float) -> None:
        if key.tpm is not None and tokens > 0:
            self._counts.windows.charge(key.name, tokens)
            if self._shared is not None:
                self.owed_tokens[key.name] = self.owed_tokens.get(key.name, 0) + tokens
            elif self._team is not None:
                self._team.charge(key.name, tokens)
        if key.usd_per_day is not None and dollars > 0:
            today = self.today()
            day, spent = self._counts.spent.get(key.name, (today, 0.0))
            self._counts.spent[key.name] = today, dollars + (spent if day == today else 0.0)
            if self._store is not None or self._shared is not None:
                self._counts.owe((key.name, today), dollars)
        self.write_soon()

    async def is_full(self, purse: Purse, limit: float) -> bool:
        """True where the store has so many dollars in a purse, or more. Raises StoreTrouble."""
        return self._store is not None and not await self._store.take(purse, 0.0, nextafter(limit, 0.0))

    def write_soon(self) -> None:
        """Store what is owed; what is charged meanwhile goes with it."""
        is_owed = self._counts.owed or self.sending or self.owed_tokens
        if is_owed and (self.writing is None or self.writing.done()):
            self.writing = asyncio.create_task(self._write())

    async def close(self) -> None:
        """Store what is still to be stored, for a moment at most; the rest is owed again."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSING_SECONDS):
                await self.reservations.close()
                self.write_soon()
                if self.writing is not None and not self.writing.done():
                    await self.writing
        for whose, (_, dollars) in self.sending.items():
            self._counts.owe(whose, dollars)

    async def _write(self) -> None:
        while self._counts.owed or self.sending or self.owed_tokens:
            if not self._breaker.admits():
                self.owed_tokens.clear()  # they count for a minute, and here they are counted
                return
            if not self.sending:
                self.sending = {whose: (token_hex(16), sum_) for whose, sum_ in self._counts.owed.items()}
                self._counts.owed.clear()
            tokens, self.owed_tokens = self.owed_tokens, {}
            try:
                await self._send(tokens)
            except StoreTrouble as error:
                self._breaker.failed(str(error))
                return
            self._breaker.succeeded()
            await asyncio.sleep(_PAUSE)

    async def _send(self, tokens: Mapping[str, int]) -> None:
        """Charge what is owed where all see it. Raises StoreTrouble; dollars go again then, under the same mark."""
        if self._shared is not None:
            dollars = [(purse_of(*whose), mark, sum_) for whose, (mark, sum_) in self.sending.items()]
            await self._shared.charge(tokens, dollars)
            self.sending = {}
        while self.sending and self._store is not None:
            (name, day), (_, sum_) = next(iter(self.sending.items()))
            await self._store.take(purse_of(name, day), sum_)
            del self.sending[name, day]
            _, limit, is_full = self._counts.budgets.get(name, ("", 0.0, True))
            if not is_full:  # what others have stored, or a process before this one, counts too
                self._counts.budgets[name] = day, limit, await self.is_full(purse_of(name, day), limit)

    def reserve(self, name: str, key: KeyRow, model: str, dollars: float) -> None:
        if key.usd_per_day is not None:
            self.reservations.put(name, ReplyReservation(key.name, model, dollars, self.clock()))

    async def settle(self, name: str, dollars_of: Callable[[str], float]) -> None:
        """It is known what the reply of this name used, which went on: its key is charged for that, and no more for
        what it might have used. `dollars_of`: its price, by the model."""
        with suppress(StoreTrouble):
            if (reserved := await self.reservations.take(name, self.clock())) is not None:
                key, difference = reserved.key, dollars_of(reserved.model) - reserved.dollars
                day, spent = self._counts.spent.get(key, ("", 0.0))
                if day == _day(reserved.at):
                    self._counts.spent[key] = day, max(0.0, spent + difference)
                self._counts.owe((key, _day(reserved.at)), difference)
                self._counts.budgets.pop(key, None)
                self._counts.refusals.pop(key, None)
                self.write_soon()


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(at))


def purse_of(name: str, day: str) -> Purse:
    """Dollars of a key on a day. No tenant has such a name."""
    return Purse(tenant=f"key:{name}", day=day)
