"""The embedded store: one SQLite file, shared by the workers of one machine.

Laws
  Each operation is one statement that commits by itself: who leaves half way leaves nothing half done. Only originals,
  each of which stands for itself, are written and forgotten a few at a time.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import ParamSpec, TypeVar

import aiosqlite

from policies.context import Memory, StepRecord
from policies.edits import Insert
from proxy.store import Key, StoreTrouble, records
from proxy.store import sqlite_statements as sql

MEMORY = ":memory:"

_OPENING = 2.0  # seconds to open a file and bring it up to date, before the first request

_AT_ONCE = 1_000  # originals in one statement

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

P = ParamSpec("P")
T = TypeVar("T")

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
            await self._run(sql.PROBE)
        except StoreTrouble:
            return False
        return True

    async def memory(self, key: Key, anchors: Sequence[str]) -> Memory:
        names = _names(key)
        rows = await self._run(sql.LOAD, json.dumps(list(anchors)), *names, *names)
        steps: dict[str, StepRecord] = {}
        inserts: dict[str, tuple[Insert, ...]] = {}
        for number, anchor, *rest in sorted(rows, key=itemgetter(0)):
            at = str(anchor)
            if number == 0:
                if (record := self._read(at, *rest)) is not None:
                    steps[at] = record
            elif (insert := self._readable(records.insert, at, rest[0])) is not None:
                inserts[at] = (*inserts.get(at, ()), insert)
        return Memory(steps, inserts)

    async def remember(self, key: Key, record: StepRecord) -> None:
        await self.claim(key, record)

    async def claim(self, key: Key, record: StepRecord) -> StepRecord:
        row = await self._keep(key, record)
        won = self._read(record.anchor, *row)
        if won is None:  # nobody can follow what nobody can read: the next writer is the first
            decision = records.decision_bytes(record)
            await self._run(sql.MEND, decision, *_names(key), record.anchor, row[0])
            won = self._read(record.anchor, *await self._keep(key, record))
        return won or record

    async def insert(self, key: Key, insert: Insert) -> None:
        content = records.insert_bytes(insert)
        await self._run(sql.KEEP_INSERT, *_names(key), insert.after, insert.reply, content, self._clock())

    async def keep_originals(self, key: Key, originals: Mapping[str, str]) -> None:
        names, refs, used = _names(key), list(originals), self._clock()
        for start in range(0, len(refs), _AT_ONCE):
            some = refs[start : start + _AT_ONCE]
            rows = ((*names, _name(ref), records.original_bytes(ref, originals[ref]), used) for ref in some)
            await self._run(sql.keep_originals(len(some)), *chain.from_iterable(rows))

    async def original(self, tenant: str, ref: str, conversation: str | None) -> Mapping[str, str]:
        where = None if conversation is None else _name(conversation)
        rows = await self._run(sql.ORIGINAL, _name(tenant), _name(ref), where)
        found = (self._readable(_original, ref, *row) for row in rows)
        return dict(kept for kept in found if kept is not None)

    async def delete(self, key: Key) -> int:
        await self._exhaust(sql.DELETE_ORIGINALS, *_names(key))
        return len(await self._run(sql.DELETE, *_names(key)))

    async def delete_tenant(self, tenant: str) -> int:
        await self._exhaust(sql.DELETE_TENANT_ORIGINALS, _name(tenant))
        return len(await self._run(sql.DELETE_TENANT, _name(tenant)))

    async def sweep(self, older_than: float) -> int:
        swept, gone = 0, 1
        while gone:
            await self._exhaust(sql.SWEEP_ORIGINALS, older_than)
            gone = len(await self._run(sql.SWEEP, older_than))
            swept += gone
        return swept

    async def secret(self, name: str) -> bytes:
        ((value,),) = await self._run(sql.MADE_ONCE, name, secrets.token_bytes(32))
        assert isinstance(value, bytes)
        return value

    async def _keep(self, key: Key, record: StepRecord) -> _Row:
        """Write what is not there; the row as it then stands."""
        decision, sent = records.decision_bytes(record), records.sent_bytes(record.sent)
        used = self._clock()
        (row,) = await self._run(sql.KEEP, *_names(key), record.anchor, decision, sent, record.at, used)
        return row

    def _read(self, anchor: str, decision: object, sent: object, at: object) -> StepRecord | None:
        """The record of a row, or what can be read of it; what cannot is a miss."""
        decided = self._readable(records.decision, anchor, decision)
        if decided is None:
            return None
        # RETURNING gives a whole number of a REAL column as an int.
        when = float(at) if isinstance(at, int | float) else 0.0
        return replace(decided, sent=self._readable(records.sent, sent), at=when)

    def _readable(self, read: Callable[P, T | None], *stored: P.args, **more: P.kwargs) -> T | None:
        """What `read` makes of it; what cannot be read is a miss."""
        try:
            return read(*stored, **more)
        except (records.UnreadableError, UnicodeDecodeError):
            self.misses += 1
            return None

    async def _exhaust(self, statement: str, *values: object) -> None:
        """Run it until it has nothing more to do."""
        while await self._run(statement, *values):
            pass

    async def _run(self, statement: str, *values: object) -> list[_Row]:
        """One statement, whole. Raises StoreTrouble."""
        try:
            async with asyncio.timeout(self._patience):
                connection = await self._usable(self._patience)
                return list(await connection.execute_fetchall(statement, values))
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
            await connection.create_function("is_original", 1, records.is_original, deterministic=True)
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


def _original(ref: str, conversation: object, content: object) -> tuple[str, str]:
    """The conversation of a row, and the text that it keeps. Raises UnreadableError."""
    if not isinstance(conversation, bytes):
        raise records.UnreadableError("it belongs to no conversation")
    return conversation.decode("utf-8", "surrogatepass"), records.original(ref, content)


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
    if await _version(connection) == len(sql.MIGRATIONS):
        return
    await connection.execute_fetchall("BEGIN IMMEDIATE")
    done = await _version(connection)  # another worker may have been faster
    if done > len(sql.MIGRATIONS):
        raise ValueError(f"it was written by a newer release (schema {done}, known is {len(sql.MIGRATIONS)})")
    for statement in (statement for migration in sql.MIGRATIONS[done:] for statement in migration):
        await connection.execute_fetchall(statement)
    await connection.execute_fetchall(f"PRAGMA user_version = {len(sql.MIGRATIONS)}")
    await connection.execute_fetchall("COMMIT")


async def _version(connection: aiosqlite.Connection) -> int:
    ((version,),) = await connection.execute_fetchall("PRAGMA user_version")
    return int(version)
