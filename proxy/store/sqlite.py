"""The embedded store: one SQLite file, shared by the workers of one machine.

Laws
  Each operation is one statement that commits by itself: who leaves half way leaves nothing half done.
  No answer takes longer than the store's patience: a lock, a full queue or a hanging disk is StoreTrouble.
  It heals: what could not be opened, or proved damaged, is opened anew for the next operation.
  The file is its owner's alone (0600).
"""

import asyncio
import json
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import aiosqlite

from policies.context import Memory, Sent, StepRecord
from proxy.store import Key, StoreTrouble, records

MEMORY = ":memory:"

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        # Keys are blobs: a conversation's name is the client's, and may hold what UTF-8 cannot.
        "CREATE TABLE conversation (tenant BLOB NOT NULL, name BLOB NOT NULL, used REAL NOT NULL,"
        " PRIMARY KEY (tenant, name)) WITHOUT ROWID",
        "CREATE INDEX conversation_used ON conversation (used)",
        "CREATE TABLE step (tenant BLOB NOT NULL, conversation BLOB NOT NULL, anchor TEXT NOT NULL,"
        " decision BLOB NOT NULL, sent BLOB, at REAL NOT NULL, used REAL NOT NULL,"
        " PRIMARY KEY (tenant, conversation, anchor))",
        "CREATE TRIGGER step_inserted AFTER INSERT ON step BEGIN"
        " INSERT INTO conversation VALUES (new.tenant, new.conversation, new.used)"
        " ON CONFLICT DO UPDATE SET used = max(used, excluded.used); END",
        "CREATE TRIGGER step_updated AFTER UPDATE ON step BEGIN"
        " INSERT INTO conversation VALUES (new.tenant, new.conversation, new.used)"
        " ON CONFLICT DO UPDATE SET used = max(used, excluded.used); END",
        "CREATE TRIGGER conversation_deleted AFTER DELETE ON conversation BEGIN"
        " DELETE FROM step WHERE tenant = old.tenant AND conversation = old.name; END",
        "CREATE TABLE secret (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
    ),
)
"""`PRAGMA user_version` says how many of them a file has seen. One that was released is never changed."""

_LOAD = """
SELECT anchor, decision, sent, at FROM step
WHERE tenant = ? AND conversation = ? AND anchor IN (SELECT value FROM json_each(?))"""

_KEEP = """
INSERT INTO step (tenant, conversation, anchor, decision, sent, at, used) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE
SET sent = coalesce(excluded.sent, sent), at = max(excluded.at, at), used = excluded.used
RETURNING decision, sent, at"""

_MEND = "UPDATE step SET decision = ? WHERE tenant = ? AND conversation = ? AND anchor = ? AND decision IS ?"

_DELETE = "DELETE FROM conversation WHERE tenant = ? AND name = ? RETURNING 1"

_DELETE_TENANT = "DELETE FROM conversation WHERE tenant = ? RETURNING 1"

# A few at a time: whoever serves a request waits no longer than for these.
_SWEEP = """
DELETE FROM conversation WHERE (tenant, name) IN
    (SELECT tenant, name FROM conversation WHERE used < ? ORDER BY used LIMIT 20)
RETURNING 1"""

_MADE_ONCE = """
INSERT INTO secret VALUES (?, ?) ON CONFLICT DO UPDATE
SET value = CASE WHEN typeof(value) = 'blob' AND length(value) = 32 THEN value ELSE excluded.value END
RETURNING value"""

# Takes the write lock and changes nothing: fails where the file is locked, read-only or gone.
_PROBE = "UPDATE secret SET value = value WHERE name IS NULL"

_OPENING = 2.0  # seconds to open a file and bring it up to date, before the first request

_ADVICE = {
    sqlite3.SQLITE_BUSY: "another program holds it locked",
    sqlite3.SQLITE_LOCKED: "another program holds it locked",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_READONLY: "it is read-only: check the permissions of the file and of its directory",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: check the permissions of the file and of its directory",
    sqlite3.SQLITE_CORRUPT: "it is damaged: move it away, and a new one is made; clients hold every original",
    sqlite3.SQLITE_NOTADB: "it is not a database of ours: move it away, and a new one is made",
}

_LASTING = frozenset(
    {
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_NOTADB,
    }
)
"""After these the file is opened anew: by then it may be another one, or mended."""

_FAULTS = (TimeoutError, sqlite3.Error, OSError, ValueError)

_Row = sqlite3.Row | tuple[object, ...]


def from_url(url: str, *, patience: float = 0.05) -> "SqliteStore":
    """`sqlite:///relative.db`, `sqlite:////absolute.db`, `sqlite://` (in memory). Raises ValueError."""
    place = url[len("sqlite:") :].removeprefix("//")
    if place in ("", "/", f"/{MEMORY}"):
        return SqliteStore(MEMORY, patience=patience)
    if not url[len("sqlite:") :].startswith("///") or "\0" in url:
        raise ValueError(f"{url!r} names no file: write sqlite:///relative.db or sqlite:////absolute.db")
    return SqliteStore(place[1:], patience=patience)


class SqliteStore:
    """A Store in one file; see the contract for what each method promises."""

    def __init__(self, path: str = MEMORY, *, patience: float = 0.05, clock: Callable[[], float] = time.time) -> None:
        self.path = path if path == MEMORY else str(Path(path).expanduser())
        self.misses = 0
        self._patience = patience
        self._clock = clock
        self._connection: aiosqlite.Connection | None = None
        self._wanted = False
        self._opening = asyncio.Lock()

    async def open(self) -> None:
        self._wanted = True
        await self._usable(_OPENING)

    async def close(self) -> None:
        self._wanted = False
        await self._drop()

    async def ready(self) -> bool:
        try:
            await self._run(_PROBE)
        except StoreTrouble:
            return False
        return True

    async def memory(self, key: Key, anchors: Sequence[str]) -> Memory:
        rows = await self._run(_LOAD, *_names(key), json.dumps(list(anchors)))
        found = (self._read(str(anchor), *rest) for anchor, *rest in rows)
        return Memory({record.anchor: record for record in found if record is not None})

    async def remember(self, key: Key, record: StepRecord) -> None:
        await self.claim(key, record)

    async def claim(self, key: Key, record: StepRecord) -> StepRecord:
        row = await self._keep(key, record)
        won = self._read(record.anchor, *row)
        if won is None:  # nobody can follow what nobody can read: the next writer is the first
            decision = records.decision_bytes(record)
            await self._run(_MEND, decision, *_names(key), record.anchor, row[0])
            won = self._read(record.anchor, *await self._keep(key, record))
        return won or record

    async def delete(self, key: Key) -> int:
        return len(await self._run(_DELETE, *_names(key)))

    async def delete_tenant(self, tenant: str) -> int:
        return len(await self._run(_DELETE_TENANT, _name(tenant)))

    async def sweep(self, older_than: float) -> int:
        swept = 0
        while gone := len(await self._run(_SWEEP, older_than)):
            swept += gone
        return swept

    async def secret(self, name: str) -> bytes:
        ((value,),) = await self._run(_MADE_ONCE, name, secrets.token_bytes(32))
        assert isinstance(value, bytes)
        return value

    async def _keep(self, key: Key, record: StepRecord) -> _Row:
        """Write what is not there; the row as it then stands."""
        decision, sent = records.decision_bytes(record), records.sent_bytes(record.sent)
        used = self._clock()
        (row,) = await self._run(_KEEP, *_names(key), record.anchor, decision, sent, record.at, used)
        return row

    def _read(self, anchor: str, decision: object, sent: object, at: object) -> StepRecord | None:
        """The record of a row, or what can be read of it; what cannot is a miss."""
        try:
            edits, reason = records.decision(anchor, decision)
        except records.UnreadableError:
            self.misses += 1
            return None
        # RETURNING gives a whole number of a REAL column as an int.
        when = float(at) if isinstance(at, int | float) else 0.0
        return StepRecord(anchor, edits, reason, self._read_sent(sent), when)

    def _read_sent(self, sent: object) -> Sent | None:
        try:
            return records.sent(sent)
        except records.UnreadableError:
            self.misses += 1
            return None

    async def _run(self, sql: str, *values: object) -> list[_Row]:
        """One statement, whole. Raises StoreTrouble."""
        try:
            async with asyncio.timeout(self._patience):
                connection = await self._usable(self._patience)
                return list(await connection.execute_fetchall(sql, values))
        except _FAULTS as error:
            if _code(error) in _LASTING:
                await self._drop()
            raise self._trouble(error) from error

    async def _usable(self, patience: float) -> aiosqlite.Connection:
        """The connection, opened where need be. Raises StoreTrouble."""
        async with self._opening:
            if not self._wanted:
                raise StoreTrouble(f"the store {self.path} is not open")
            if self._connection is None:
                self._connection = await self._opened(patience)
            return self._connection

    async def _drop(self) -> None:
        async with self._opening:
            connection, self._connection = self._connection, None
            if connection is not None:
                await _closed(connection)

    async def _opened(self, patience: float) -> aiosqlite.Connection:
        try:
            async with asyncio.timeout(patience):
                await asyncio.to_thread(_create, self.path)
                connection = await aiosqlite.connect(self.path, timeout=patience / 2, isolation_level=None)
                await self._prepare(connection)
                return connection
        except _FAULTS as error:
            raise self._trouble(error) from error

    async def _prepare(self, connection: aiosqlite.Connection) -> None:
        """Make a new connection fit for use, or close it."""
        try:
            await _bring_up_to_date(connection)
            # Half the patience, so that who waits for a lock hears of the lock and not of the time.
            await connection.execute_fetchall(f"PRAGMA busy_timeout = {round(self._patience * 500)}")
        except asyncio.CancelledError:
            connection.stop()  # not awaited: its thread may hang in what took too long
            raise
        except _FAULTS:
            await _closed(connection)
            raise

    def _trouble(self, error: Exception) -> StoreTrouble:
        if isinstance(error, TimeoutError):
            return StoreTrouble(f"the store {self.path} did not answer in time")
        return StoreTrouble(f"the store {self.path}: {_ADVICE.get(_code(error), 'it failed')} ({error})")


def _name(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _names(key: Key) -> tuple[bytes, bytes]:
    return _name(key.tenant), _name(key.conversation)


def _code(error: BaseException | None) -> int:
    """SQLite's primary result code; 0 for what is not SQLite's."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _create(path: str) -> None:
    if path != MEMORY:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        # SQLite gives its -wal and -shm files the permissions of the file itself.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


async def _closed(connection: aiosqlite.Connection) -> None:
    try:
        await connection.close()
    except (sqlite3.Error, ValueError):
        return  # the file is gone or damaged: there is nothing left to write


async def _bring_up_to_date(connection: aiosqlite.Connection) -> None:
    await connection.execute_fetchall("PRAGMA journal_mode = WAL")
    await connection.execute_fetchall("PRAGMA synchronous = NORMAL")
    if await _version(connection) == len(MIGRATIONS):
        return
    await connection.execute_fetchall("BEGIN IMMEDIATE")
    done = await _version(connection)  # another worker may have been faster
    if done > len(MIGRATIONS):
        raise ValueError(f"it was written by a newer release (schema {done}, known is {len(MIGRATIONS)})")
    for statement in (statement for migration in MIGRATIONS[done:] for statement in migration):
        await connection.execute_fetchall(statement)
    await connection.execute_fetchall(f"PRAGMA user_version = {len(MIGRATIONS)}")
    await connection.execute_fetchall("COMMIT")


async def _version(connection: aiosqlite.Connection) -> int:
    ((version,),) = await connection.execute_fetchall("PRAGMA user_version")
    return int(version)
