"""Rows for people and accounts in SQLite: for each kind a table, as `statements` has made it."""

import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from proxy.memory import serialization
from proxy.memory.records import (
    ADDED,
    BILL,
    DAY,
    KEY,
    OWNER,
    TOTAL,
    Change,
    KeyEntry,
    Kind,
    Rows,
    TextKind,
    TextRow,
)
from proxy.memory.serialization import Codec, readable
from proxy.memory.sqlite import statements as sql
from proxy.memory.sqlite.connection import SqliteConnection

_Values = tuple[Any, ...]


class SqliteRecords:
    """A RecordStore in one file."""

    def __init__(self, connection: SqliteConnection, codec: Codec, clock: Callable[[], float]) -> None:
        self._connection = connection
        self._codec = codec
        self._clock = clock

    async def change(self, changes: Sequence[Change]) -> None:
        def make(database: sqlite3.Connection) -> None:
            for change in changes:
                self._make(database, change)

        await self._connection.transact(make)

    async def read(self, kind: Kind, tenant: bytes, place: bytes, names: Sequence[bytes]) -> Rows:
        statement = sql.table(kind).select
        return await self._connection.do(lambda database: self._rows(database, statement, kind, tenant, place, names))

    async def rows(self, kind: Kind, tenant: bytes, place: bytes) -> Rows:
        return await self._connection.do(lambda database: self._all(database, kind, tenant, place))

    async def find(self, tenant: bytes, kind: Kind | None = None, name: bytes = b"") -> Sequence[bytes]:
        if kind is None:
            rows = await self._connection.run(sql.ALL_OF_TENANT, tenant)
        elif kind == OWNER:
            rows = await self._connection.run(sql.OWNED, tenant, name.decode())
        else:
            rows = await self._connection.run(sql.CONVERSATIONS_WITH, tenant, kind.name, name)
        return [conversation for (conversation,) in rows]

    async def search(
        self,
        kind: Kind,
        tenant: bytes | None,
        owner: str | None,
        since: str = "",
        before: float | None = None,
        most: int | None = None,
    ) -> Sequence[Any]:
        terms = {"tenant = ?": tenant, "owner = ?": owner, "day >= ?": since or None, "at < ?": before}
        wanted = {term: value for term, value in terms.items() if value is not None}
        statement = sql.search(kind, list(wanted), -1 if most is None else most)
        read = serialization.day_sum if kind == DAY else serialization.conversation_row

        def rows(database: sqlite3.Connection) -> list[Any]:
            stored = database.execute(statement, tuple(wanted.values()))
            return readable(self._codec.read(read, *row) for row in stored)

        return await self._connection.do(rows)

    async def drop_oldest(self, kind: Kind, tenant: bytes, place: bytes, limit: int) -> int:
        if isinstance(kind, TextKind):
            return len(await self._connection.run(sql.drop_texts(kind), tenant, kind.name, limit, place))
        return len(await self._connection.run(sql.DROP_BILLS, tenant, place, limit))

    async def note(self, tenant: bytes, conversation: bytes, event: bytes) -> None:
        await self._connection.run(sql.NOTE, tenant, conversation, event, self._clock())

    async def events(
        self, tenant: bytes | None, conversation: bytes | None, most: int
    ) -> Sequence[tuple[bytes, bytes, bytes]]:
        wanted = [name for name in (tenant, conversation) if name is not None]
        statement = sql.events(tenant=tenant is not None, conversation=conversation is not None)
        return [(row[0], row[1], row[2]) for row in reversed(await self._connection.run(statement, *wanted, most))]

    def _make(self, database: sqlite3.Connection, change: Change) -> None:
        tenant, place, reads, rule = change
        there = {}
        for kind, names in reads.items():
            table = sql.table(kind)
            if names is None:
                there[kind] = self._all(database, kind, tenant, place)
            else:
                statement = table.select if getattr(kind, "first_stays", True) else table.select_light
                there[kind] = self._rows(database, statement, kind, tenant, place, names)
            there[kind].count = partial(_count, database, table.count, _place(kind, tenant, place))
        now = self._clock()
        for kind, rows in rule(there).items():
            table, at = sql.table(kind), _place(kind, tenant, place)
            deletions = [(*at, _name(kind, place, name)) for name, value in rows.items() if value is None]
            database.executemany(table.delete, deletions)
            values = ((name, _columns(kind, value, now)) for name, value in rows.items() if value is not None)
            database.executemany(table.put, [(*at, _name(kind, place, name), *columns) for name, columns in values])
            if kind == BILL and len(deletions) < len(rows):
                database.execute(sql.USE, (tenant, place, now))

    def _rows(
        self,
        database: sqlite3.Connection,
        statement: str,
        kind: Kind,
        tenant: bytes,
        place: bytes,
        names: Sequence[bytes],
    ) -> Rows:
        """The rows of these names."""
        at, rows = _place(kind, tenant, place), Rows()
        for name in names:
            for _, *columns in database.execute(statement, (*at, _name(kind, place, name))):
                rows[name] = self._value(kind, tenant, place, columns)
        return rows

    def _all(self, database: sqlite3.Connection, kind: Kind, tenant: bytes, place: bytes) -> Rows:
        rows = Rows()
        for name, *columns in database.execute(sql.table(kind).select_all, _place(kind, tenant, place)):
            rows[name.encode() if isinstance(name, str) else name] = self._value(kind, tenant, place, columns)
        return rows

    def _value(self, kind: Kind, tenant: bytes, place: bytes, columns: Sequence[Any]) -> Any:
        """What stands in these columns, as `records` says; None where it cannot be read."""
        if kind == BILL:
            return self._codec.read(serialization.bill, tenant, place, columns[0])
        if kind == TOTAL:
            return self._codec.read(serialization.conversation_row, tenant, place, columns[0])
        if kind == DAY:
            return self._codec.read(serialization.day_sum, tenant, place.decode(), columns[0])
        if kind == KEY:
            return KeyEntry(*columns)
        return TextRow(*columns) if isinstance(kind, TextKind) else ""


def _place(kind: Kind, tenant: bytes, place: bytes) -> _Values:
    """The values of the columns that name a place."""
    if kind in (DAY, ADDED):
        return tenant, place.decode()
    if kind == TOTAL:
        return (tenant,)
    if kind == KEY:
        return ()
    return (tenant, place, kind.name) if isinstance(kind, TextKind) else (tenant, place)


def _name(kind: Kind, place: bytes, name: bytes) -> bytes | str:
    """The value of the column of names."""
    if kind == TOTAL:
        return place
    return name if kind == DAY or isinstance(kind, TextKind) else name.decode()


def _columns(kind: Kind, value: Any, now: float) -> _Values:
    """The values of a row's other columns."""
    if kind == BILL:
        return value.at, serialization.packed("bill", value)
    if kind == TOTAL:
        return value.labels.owner, value.at, serialization.packed("conversation", value)
    if kind == DAY:
        return value.labels.owner, serialization.packed("day", value)
    if isinstance(kind, TextKind):
        return value.size, now, value.about, value.content
    return tuple(value) if kind == KEY else (now,)


def _count(database: sqlite3.Connection, statement: str, place: _Values) -> int:
    ((count,),) = database.execute(statement, place)
    return int(count)
