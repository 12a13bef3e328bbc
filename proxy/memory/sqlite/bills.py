"""Bills in SQLite; `statements` says in which tables."""

import asyncio
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from policies.money.bills import ConversationRow, DayRow, RequestBill
from proxy.memory import BILLS, DAYS, Key, serialization
from proxy.memory.bill_rows import DaySum, day_of, day_rows, joined, others, row_of, summed
from proxy.memory.serialization import Codec, name_bytes, names_of, readable
from proxy.memory.sqlite.connection import SqliteConnection

_AT_ONCE = 100
"""Bills in one statement."""
_SHARE_OF_DAYS = 0.1
"""Of the limit for all that is stored, what the sums of days may take."""

_ADD = "INSERT INTO bill_added VALUES {}"
_ROW = f"({', '.join('?' * 14)})"
_BILLS = "SELECT content FROM bill WHERE tenant = ? AND conversation = ? ORDER BY used DESC, number DESC LIMIT ?"
_DAY_ROWS = "SELECT tenant, day, content FROM bill_day WHERE day >= ? AND {}"
_CONVERSATIONS = "SELECT tenant, conversation, content FROM bill_conversation WHERE {} ORDER BY at DESC LIMIT ?"
_DELETE_BILLS = "DELETE FROM bill WHERE tenant = ? AND conversation = ? AND id IN (SELECT value FROM json_each(?))"
_SET_CONVERSATION = "UPDATE bill_conversation SET owner = ?, at = ?, content = ? WHERE tenant = ? AND conversation = ?"
_DELETE_CONVERSATION = "DELETE FROM bill_conversation WHERE tenant = ? AND conversation = ?"
_BYTES_OF_DAYS = "SELECT total(2 * length(name) + length(content) + 100) FROM bill_day"
_OLDEST_DAY = "SELECT min(day) FROM bill_day"
_SWEEP_DAYS = "DELETE FROM bill_day WHERE rowid IN (SELECT rowid FROM bill_day WHERE day < ? LIMIT 50) RETURNING 1"


class SqliteBills:
    """The part of the store that holds bills, and what it needs."""

    def __init__(self, connection: SqliteConnection, codec: Codec, clock: Callable[[], float]) -> None:
        self._connection = connection
        self._codec = codec
        self._clock = clock

    async def add_bills(self, bills: Sequence[RequestBill]) -> None:
        for start in range(0, len(bills), _AT_ONCE):
            rows = await asyncio.to_thread(_rows, bills[start : start + _AT_ONCE], self._clock())
            statement = _ADD.format(", ".join([_ROW] * len(rows)))
            await self._connection.run(statement, *chain.from_iterable(rows))

    async def day_rows(self, since: str, tenant: str | None = None, owner: str | None = None) -> Sequence[DayRow]:
        wanted = _wanted(tenant, owner)
        rows = await self._connection.run(_DAY_ROWS.format(_terms(wanted)), since, *wanted.values())
        return await asyncio.to_thread(
            lambda: day_rows(readable(self._codec.read(serialization.day_sum, *row) for row in rows))
        )

    async def conversation_rows(
        self, tenant: str | None = None, owner: str | None = None, before: float | None = None, most: int = 50
    ) -> Sequence[ConversationRow]:
        wanted = _wanted(tenant, owner) | ({} if before is None else {"at < ?": before})
        rows = await self._connection.run(_CONVERSATIONS.format(_terms(wanted)), *wanted.values(), max(0, most))
        return readable(self._codec.read(serialization.conversation_row, *row) for row in rows)

    async def request_bills(self, key: Key) -> Sequence[RequestBill]:
        names = names_of(key)
        rows = await self._connection.run(_BILLS, *names, BILLS) if key.conversation else ()
        return readable(self._codec.read(serialization.bill, *names, content) for (content,) in reversed(rows))

    async def delete_bills(self, key: Key, ids: Collection[str]) -> None:
        names = names_of(key)
        await self._connection.run(_DELETE_BILLS, *names, json.dumps(list(ids)))
        if row := summed(await self.request_bills(key)):
            columns = row.labels.owner, row.at, serialization.packed("conversation", row)
            await self._connection.run(_SET_CONVERSATION, *columns, *names)
        else:
            await self._connection.run(_DELETE_CONVERSATION, *names)

    async def _sweep_days(self, pause: float) -> None:
        """Delete the sums of days that are too long ago. `pause`: seconds after each statement."""
        await self._connection.exhaust(_SWEEP_DAYS, day_of(self._clock() - DAYS * 86_400), pause=pause)

    async def _trim_days(self, limit: int) -> None:
        """Delete the sums of the oldest days, where they take more than their share of the limit."""
        while True:
            ((held,),), ((oldest,),) = [await self._connection.run(each) for each in (_BYTES_OF_DAYS, _OLDEST_DAY)]
            if float(str(held)) <= limit * _SHARE_OF_DAYS:
                return
            await self._connection.exhaust(_SWEEP_DAYS, f"{oldest}~")  # and what is sorted behind it


def added_functions(codec: Codec) -> Mapping[tuple[str, int], Callable[[object, bytes], bytes]]:
    """What SQLite calls to add up two rows; a stored one that cannot be read is a miss, and counts as nothing."""

    def day_sums(stored: object, more: bytes) -> bytes:
        before = codec.read(serialization.record_of, "day", stored)
        new: DaySum = serialization.record_of("day", more)
        return more if before is None else serialization.packed("day", replace(new, sums=before.sums + new.sums))

    def conversation_sums(stored: object, more: bytes) -> bytes:
        before = codec.read(serialization.record_of, "conversation", stored)
        new: ConversationRow = serialization.record_of("conversation", more)
        return more if before is None else serialization.packed("conversation", joined(before, new))

    return {("day_sums", 2): day_sums, ("conversation_sums", 2): conversation_sums}


def _rows(bills: Sequence[RequestBill], now: float) -> list[tuple[object, ...]]:
    """The columns of the view, of each bill."""
    return [tuple(_columns(bill, now)) for bill in bills]


def _columns(bill: RequestBill, now: float) -> Iterator[object]:
    labels, day = bill.labels, day_of(bill.at)
    tenant, conversation = name_bytes(labels.tenant), name_bytes(bill.conversation)
    yield from (tenant, conversation, bill.id, bill.at, serialization.packed("bill", bill), now, day)
    for each in (labels, others(labels)):
        yield serialization.packed("labels", each, bill.prefix)
        yield each.owner
        yield serialization.packed("day", DaySum(day, each, bill.prefix, bill.sums))
    yield serialization.packed("conversation", row_of(bill))


def _wanted(tenant: str | None, owner: str | None) -> dict[str, object]:
    """The values of the terms of a WHERE."""
    wanted = {"tenant = ?": None if tenant is None else name_bytes(tenant), "owner = ?": owner}
    return {term: value for term, value in wanted.items() if value is not None}


def _terms(wanted: Mapping[str, object]) -> str:
    return " AND ".join(wanted) or "true"
