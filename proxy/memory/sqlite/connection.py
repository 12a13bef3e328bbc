"""The connection to an SQLite file: one thing at a time, advice where it fails, and opening the file again.

Laws
  No answer takes longer than the patience: a lock, a full queue or a hanging disk is StoreTrouble.
  What could not be opened, proved damaged or was taken away is opened anew for the next statement.
  The file is its owner's alone (0600), and so is a folder that is made for it (0700).
  Only SQLite opens a file that exists: whoever closes one drops all locks that this process has on it, so that another
  process may remove the write-ahead log that is in use (https://www.sqlite.org/howtocorrupt.html, 2.2).
  A file of release 0.1 is set aside whole, under another name.
"""

import asyncio
import errno
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from proxy.memory.decisions import Announce, Announcements, StoreTrouble
from proxy.memory.sqlite import statements as sql

MEMORY = ":memory:"
Row = tuple[Any, ...]
T = TypeVar("T")

_AT_ONCE = 0.015  # seconds: a lock that SQLite has waited for takes longer
_LOOK = 1.0  # seconds between two looks whether the file that is open is still there
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

_NO_PLACE = "no file can be made there: give this user the right to write, or name another file"
_ADVICE_BY_ERRNO = dict.fromkeys(
    (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EEXIST), _NO_PLACE
) | {errno.ENOSPC: _ADVICE[sqlite3.SQLITE_FULL], errno.EISDIR: "it is a folder: name a file in it"}

_LASTING = frozenset(
    {
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_NOTADB,
    }
)
"""After these errors the file is opened anew: by then it may be another one, or mended."""

_FAULTS = (TimeoutError, sqlite3.Error, OSError, ValueError)


class Database:
    """A connection of SQLite's, and the thread that alone uses it, one job after the other."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._jobs: SimpleQueue[tuple[asyncio.Future[Any], Callable[[Any], Any]] | None] = SimpleQueue()
        self._connection: sqlite3.Connection | None = None
        self._is_closing = False
        self.opened = self.do(lambda _: self._open(connect))
        Thread(target=self._work, daemon=True).start()

    def do(self, job: Callable[[sqlite3.Connection], T]) -> "asyncio.Future[T]":
        """The outcome of the job. Where nobody waits for it any more, it is done all the same."""
        if self._is_closing:
            raise sqlite3.ProgrammingError("it is closed")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put((future, job))
        return future

    def close(self) -> "asyncio.Future[None]":
        """Close it behind all jobs, and end the thread."""
        closed = self.do(lambda _: self._close())
        self._is_closing = True
        self._jobs.put(None)
        return closed

    def _open(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connection = connect()

    def _close(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error):  # the file is gone or damaged: there is nothing left to write
                self._connection.close()

    def _work(self) -> None:
        while (pair := self._jobs.get()) is not None:
            future, job = pair
            try:
                settle: Callable[[Any], None] = future.set_result
                outcome: Any = job(self._connection)
            except BaseException as error:
                settle, outcome = future.set_exception, error
            with suppress(RuntimeError):  # its loop is closed
                future.get_loop().call_soon_threadsafe(_settle, future, settle, outcome)


def _settle(future: "asyncio.Future[Any]", settle: Callable[[Any], None], outcome: Any) -> None:
    if not future.done():  # nobody waits any more
        settle(outcome)


class SqliteConnection:
    """Runs statements on one file."""

    def __init__(self, path: str, patience: float, announce: Announce) -> None:
        self.path = path
        self._patience = patience
        self._announce = announce
        self._database: Database | None = None
        self._is_open = False
        self._opening = asyncio.Lock()
        self._file: tuple[int, int] | None = None
        """Which file is open. One that is gone SQLite would go on to read and write."""
        self._next_look = 0.0

    async def open(self) -> None:
        """Make it usable, or StoreTrouble. From then on it is opened anew where need be."""
        self._is_open = True
        await self._usable(_OPENING)

    async def close(self) -> None:
        """Close it. Harmless where it is closed."""
        self._is_open = False
        await self._drop()

    async def run(self, statement: str, *values: object) -> list[Row]:
        """All rows of one statement. Raises StoreTrouble."""
        return await self.do(lambda database: database.execute(statement, values).fetchall())

    async def transact(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """The outcome of the job, one transaction that nobody else writes in. Raises StoreTrouble."""

        def transaction(database: sqlite3.Connection) -> T:
            database.execute("BEGIN IMMEDIATE")
            try:
                outcome = job(database)
                database.execute("COMMIT")
            finally:
                if database.in_transaction:
                    database.execute("ROLLBACK")
            return outcome

        return await self.do(transaction)

    async def do(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """The outcome of the job, which is called in the connection's thread. Raises StoreTrouble."""
        try:
            async with asyncio.timeout(self._patience):
                return await (await self._usable(self._patience)).do(job)
        except _FAULTS as error:
            if _code(error) in _LASTING:
                await self._drop()
            raise self._trouble(error) from error

    async def exhaust(self, statement: str, *values: object, pause: float = 0.0) -> None:
        """Run a statement until it returns no more rows, each time with a pause (seconds) behind it."""
        rows: list[Row] = [()]
        while rows:
            rows = await self.run(statement, *values)
            await asyncio.sleep(pause)

    async def _usable(self, patience: float) -> Database:
        """The connection, opened where need be. Raises StoreTrouble."""
        async with self._opening:
            if not self._is_open:
                raise StoreTrouble(f"the store {self.path} is not open")
            if self._database is None:
                self._database = await self._opened(patience)
                self._next_look = time.monotonic() + _LOOK
            elif time.monotonic() >= self._next_look:
                self._next_look = time.monotonic() + _LOOK
                if await asyncio.to_thread(_identity, self.path) != self._file:
                    database, self._database = self._database, None
                    await database.close()
                    raise OSError(errno.ESTALE, "its file was removed or replaced: it is opened anew")
            return self._database

    async def _drop(self) -> None:
        async with self._opening:
            database, self._database = self._database, None
            if database is not None:
                await database.close()

    async def _opened(self, patience: float) -> Database:
        def connect() -> sqlite3.Connection:
            _create(self.path, patience, self._announce)
            self._file = _identity(self.path)
            connection = sqlite3.connect(self.path, timeout=patience / 2, isolation_level=None)
            try:
                _create_schema(connection)
                # Half the patience, so that the error is about the lock and not about the time.
                connection.execute(f"PRAGMA busy_timeout = {round(self._patience * 500)}")
            except BaseException:
                connection.close()
                raise
            return connection

        database = Database(connect)
        try:
            async with asyncio.timeout(patience):
                await database.opened
        except BaseException as error:
            database.close()  # not awaited: its thread may hang in what took too long
            if isinstance(error, _FAULTS):
                raise self._trouble(error) from error
            raise
        return database

    def _trouble(self, error: Exception) -> StoreTrouble:
        if isinstance(error, TimeoutError):
            return StoreTrouble(f"the store {self.path} did not answer in time")
        advice = _ADVICE.get(_code(error)) or _ADVICE_BY_ERRNO.get(getattr(error, "errno", 0), "it failed")
        return StoreTrouble(f"the store {self.path}: {advice} ({error})")


def _identity(path: str) -> tuple[int, int] | None:
    """Which file is at a path; None where none is."""
    try:
        file = os.stat(path)
    except OSError:
        return None
    return file.st_dev, file.st_ino


def _code(error: BaseException | None) -> int:
    """SQLite's primary result code; 0 for other errors."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _create(path: str, seconds: float, announce: Announce) -> None:
    """Create the file where there is none, or one of release 0.1."""
    if path == MEMORY:
        return
    Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    until = time.monotonic() + seconds / 2
    while True:
        _touch(path)  # at each try: another worker that sets the old file aside has none here for a moment
        try:
            target = _set_aside(path)
            break
        except (sqlite3.OperationalError, FileNotFoundError):  # as above, or one of 0.1 still runs
            if time.monotonic() > until:
                raise
        time.sleep(0.005 + 0.001 * (os.getpid() % 16))  # two that try at once do not meet again
    if target:
        _touch(path)
        announce(f"{path} was written by release 0.1: it is now {target}, and a new one is begun")


def _touch(path: str) -> None:
    # SQLite gives its -wal and -shm files the permissions of the file itself.
    if not os.path.exists(path):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    elif not os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)  # at once, not after the patience


def _set_aside(path: str) -> str:
    """Rename a file of release 0.1 and return its new name; for any other file return nothing. Raises
    sqlite3.OperationalError while another process has it open."""
    before = os.stat(path)
    if not before.st_size:
        return ""
    existing = f"{Path(path).absolute().as_uri()}?mode=rw"  # never one that this would create, open to all
    with closing(sqlite3.connect(existing, timeout=0, isolation_level=None, uri=True)) as old:
        ((version,),) = old.execute("PRAGMA user_version")
        if not 0 < version < sql.SCHEMA_VERSION:
            return ""
        # The write-ahead log goes by the file's name, so it is closed before the file is renamed: which only works
        # while no other process has it open.
        old.execute("PRAGMA journal_mode = DELETE")
        old.execute("BEGIN EXCLUSIVE")
        if not os.path.samestat(before, os.stat(path)):
            raise sqlite3.OperationalError("another process has just set it aside")
        names = (f"{path}.0.1-set-aside{number}" for number in ("", *(f"-{n}" for n in range(2, 100))))
        target = next(name for name in names if not os.path.exists(name))
        os.rename(path, target)
        return target


def _create_schema(connection: sqlite3.Connection) -> None:
    soon = time.monotonic() + _AT_ONCE
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError as error:
            # Where two open a new file at once, SQLite does not wait for this one as it does for others.
            if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > soon:
                raise
        time.sleep(0.002)
    connection.execute("PRAGMA synchronous = NORMAL")
    if _is_current(connection):
        return
    connection.execute("BEGIN IMMEDIATE")
    if not _is_current(connection):  # another worker may have been faster
        tables = _tables(connection)
        carried_over = (statement for table, statement in sql.OF_0_2.items() if table in tables)
        drops = sql.DROP_OF_0_2 if tables else ()
        for statement in (*sql.SCHEMA, *carried_over, *drops, f"PRAGMA user_version = {sql.SCHEMA_VERSION}"):
            connection.execute(statement)
    connection.execute("COMMIT")


def _is_current(connection: sqlite3.Connection) -> bool:
    """True where it has all tables, and none of release 0.2. Raises ValueError."""
    ((version,),) = connection.execute("PRAGMA user_version")
    if version > sql.SCHEMA_VERSION:
        raise ValueError(f"it was written by a newer release (schema {version}, this one has {sql.SCHEMA_VERSION})")
    tables = _tables(connection)
    return version == sql.SCHEMA_VERSION and sql.TABLES.keys() <= tables and not sql.OF_0_2.keys() & tables


def _tables(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


# --- how many recall exchanges the processes on one SQLite file have had: the size of a small file beside it ---
# A store that answers late cannot say whether another process has had one meanwhile. The size of a file can be had in
# microseconds, whatever SQLite does.


class FileAnnouncements(Announcements):
    """One byte for each exchange, in a file that only grows."""

    def __init__(self, path: str) -> None:
        self._file = None if path == MEMORY else f"{path}-exchanges"
        self._own = 0

    def add(self) -> None:
        """Announce one. Where the disk takes no byte, SQLite does not take the exchange either."""
        self._own += 1
        if self._file is None:
            return
        with suppress(OSError):
            file = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(file, b"+")
            finally:
                os.close(file)

    def foreign(self) -> int | None:
        """How many others have announced; None where that cannot be read."""
        if self._file is None:
            return 0
        try:
            return os.stat(self._file).st_size - self._own
        except FileNotFoundError:
            return -self._own
        except OSError:
            return None
