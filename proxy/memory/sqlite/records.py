"""Rows for people and accounts in SQLite: those of all kinds in one table, as `statements` has made it."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

from proxy.memory.records import ADDED, BILL, DAY, KEY, OWNER, TOTAL, Change, Kind, Rows, TextKind, TextRow
from proxy.memory.serialization import Codec, readable, row_bytes
from proxy.memory.sqlite import statements as sql
from proxy.memory.sqlite.connection import SqliteConnection

APART = b"\xff"
"""No name of a tenant or a conversation begins with it."""


class SqliteRecordStore:
    """A RecordStore in one file."""

    def __init__(self, connection: SqliteConnection, codec: Codec, clock: Callable[[], float]) -> None:
        self._connection = connection
        self._codec = codec
        self._clock = clock

    async def change(self, changes: Sequence[Change]) -> None:
        def make(database: sqlite3.Connection) -> None:
            now = self._clock()
            used = [use for change in changes for use in self._make(database, change, now)]
            database.executemany(sql.USE, used)

        await self._connection.transact(make)

    async def read(self, kind: Kind, tenant: bytes, place: bytes, names: Sequence[bytes]) -> Rows:
        return await self._connection.do(lambda database: self._rows(database, kind, tenant, place, names, True))

    async def rows(self, kind: Kind, tenant: bytes, place: bytes) -> Rows:
        return await self._connection.do(lambda database: self._rows(database, kind, tenant, place, None))

    async def find(self, tenant: bytes, kind: Kind | None = None, name: bytes = b"") -> Sequence[bytes]:
        if kind is None:
            rows = await self._connection.run(sql.ALL_OF_TENANT, tenant)
        else:
            rows = await self._connection.run(sql.FIND.format(_table(kind), kind.name), tenant, name)
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
        terms = {
            "tenant = ?": tenant,
            "about = ?": None if owner is None else owner.encode(),
            "conversation >= ?": APART + since.encode() if since else None,
            "used < ?": before,
        }
        wanted = {term: value for term, value in terms.items() if value is not None}
        values = (*wanted.values(), -1 if most is None else most)

        def rows(database: sqlite3.Connection) -> list[Any]:
            stored = database.execute(sql.search(kind.name, wanted), values)
            return readable(self._codec.row(kind, *_at(kind, *place), content) for *place, content in stored)

        return await self._connection.do(rows)

    async def drop_oldest(self, kind: TextKind, tenant: bytes, place: bytes, limit: int) -> int:
        return len(await self._connection.run(sql.drop_texts(kind), tenant, kind.name, limit, place))

    async def note(self, tenant: bytes, conversation: bytes, event: bytes) -> None:
        await self._connection.run(sql.NOTE, tenant, conversation, event, self._clock())

    async def events(
        self, tenant: bytes | None, conversation: bytes | None, most: int
    ) -> Sequence[tuple[bytes, bytes, bytes]]:
        wanted = [name for name in (tenant, conversation) if name is not None]
        statement = sql.events(tenant=tenant is not None, conversation=conversation is not None)
        return [(row[0], row[1], row[2]) for row in reversed(await self._connection.run(statement, *wanted, most))]

    def _make(self, database: sqlite3.Connection, change: Change, now: float) -> Iterator[tuple[object, ...]]:
        """Yields the conversation, where it is used now; texts say so by themselves."""
        tenant, place, reads, rule = change
        there = {kind: self._rows(database, kind, tenant, place, names) for kind, names in reads.items()}
        for kind, stored in rule(there).items():
            at = _place(kind, tenant, place)
            gone = [(*at, name) for name, value in stored.items() if value is None]
            new = [(*at, name, *_columns(kind, value, now)) for name, value in stored.items() if value is not None]
            if gone:
                database.executemany(sql.DELETE_ROW.format(_table(kind)), gone)
            if new:
                database.executemany(sql.PUT[_table(kind)], new)
            if new and kind in (BILL, OWNER):
                yield tenant, place, now

    def _rows(
        self,
        database: sqlite3.Connection,
        kind: Kind,
        tenant: bytes,
        place: bytes,
        names: Sequence[bytes] | None,
        with_texts: bool = False,
    ) -> Rows:
        """The rows of these names; None: all."""
        at, rows, is_text = _place(kind, tenant, place), Rows(), isinstance(kind, TextKind)
        has_contents = with_texts or not is_text or (names is not None and getattr(kind, "first_stays", False))
        statement = _select(_table(kind), has_contents, None if names is None else len(names))
        for name, *row in database.execute(statement, (*at, *(names or ()))):
            rows[name] = TextRow(*row) if is_text else self._codec.row(kind, tenant, place, row[1])
        rows.count = partial(_count, database, at)
        return rows


@cache
def _select(table: str, has_contents: bool, count: int | None) -> str:
    """All rows of a place, or those of so many names."""
    names = "" if count is None else f"AND name IN ({', '.join('?' * count)})"
    return sql.ROWS.format(table, "content" if has_contents else "x''", names)


def _table(kind: Kind) -> str:
    return "text" if isinstance(kind, TextKind) else "record"


def _place(kind: Kind, tenant: bytes, place: bytes) -> tuple[str, bytes, bytes]:
    """The values of the columns that name a kind and a place."""
    return kind.name, APART if kind == KEY else tenant, APART + place if kind in (DAY, ADDED) else place


def _at(kind: Kind, tenant: bytes, place: bytes) -> tuple[bytes, bytes]:
    """A tenant and a place, as these columns name them."""
    return tenant, place[1:] if kind == DAY else place


def _columns(kind: Kind, value: Any, now: float) -> tuple[int, float, bytes, bytes]:
    """The values of a row's other columns."""
    if isinstance(kind, TextKind):
        return value.size, now, value.about, value.content
    content = row_bytes(kind, value)
    owner = value.labels.owner.encode() if kind in (TOTAL, DAY) else b""
    return len(content), value.at if kind in (BILL, TOTAL) else now, owner, content


def _count(database: sqlite3.Connection, place: Sequence[object]) -> int:
    ((count,),) = database.execute(sql.COUNT, place)
    return int(count)
