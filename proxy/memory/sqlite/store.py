"""The embedded store: one SQLite file, shared by the workers of one machine.

Laws
  Each operation is one statement or one transaction: an interrupted one leaves nothing half done. Only what stands for
  itself (a text, an event, what has not been used for the time to live) is written or deleted a few rows at a time.
  What was not written for the time to live goes by itself, while the store is open, and delays no request.
"""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from proxy.config.keyring import Keyring
from proxy.memory import TTL, parameters, ttl
from proxy.memory.bills import day_of
from proxy.memory.decisions import PURSE_SECONDS, Announce, Key, StoreTrouble
from proxy.memory.records import ADDED_SECONDS, DAYS
from proxy.memory.serialization import Codec, Names, name_bytes, names_of
from proxy.memory.sqlite import statements as sql
from proxy.memory.sqlite.connection import MEMORY, SqliteConnection
from proxy.memory.sqlite.decisions import SqliteDecisionStore
from proxy.memory.sqlite.records import SqliteRecordStore
from proxy.memory.store import Store
from proxy.memory.trimming import Holding, trimmed

_FIRST_SWEEP = 60.0
"""Seconds from the opening to the first sweep, and to the next where one met trouble."""
_NEXT_SWEEP = 3_600.0
"""Seconds from one sweep to the next."""
_SWEEP_PAUSE = 0.02
"""Seconds between two statements of a sweep."""
_SHARE_OF_DAYS = 0.1
"""Of the limit for all that is stored, what the sums of days may take."""


def from_url(
    url: str, *, patience: float = 0.05, keyring: Keyring | None = None, announce: Announce = lambda _: None
) -> "SqliteStore":
    """`sqlite:///relative.db`, `sqlite:////absolute.db`, `sqlite://` (in memory); behind a question mark `ttl=30d`.

    Raises ValueError.
    """
    rest, _, query = url[len("sqlite:") :].partition("?")
    seconds = ttl(parameters(query, {"ttl"}))
    file = rest.removeprefix("//")
    if file in ("", "/", f"/{MEMORY}"):
        path = MEMORY
    elif not rest.startswith("///") or "\0" in rest:
        raise ValueError(f"{url!r} names no file: write sqlite:///relative.db or sqlite:////absolute.db")
    else:
        path = file[1:]
    return SqliteStore(path, patience=patience, ttl=seconds, keyring=keyring, announce=announce)


class SqliteStore(SqliteDecisionStore, Store):
    """A Store in one file; see the contract for what each method promises."""

    def __init__(
        self,
        path: str = MEMORY,
        *,
        patience: float = 0.05,
        ttl: float = TTL,
        clock: Callable[[], float] = time.time,
        keyring: Keyring | None = None,
        announce: Announce = lambda _: None,
    ) -> None:
        self.path = path if path == MEMORY else str(Path(path).expanduser())
        self._ttl = ttl
        codec = Codec(keyring)
        super().__init__(SqliteConnection(self.path, patience, announce), codec, clock)
        self._records = SqliteRecordStore(self._connection, codec, clock)
        self._sweeping: asyncio.Task[None] | None = None

    @property
    def shared(self) -> bool:
        return self.path != MEMORY

    @property
    def misses(self) -> int:
        return self._codec.misses

    async def open(self) -> None:
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(self._sweep_now_and_then())
        await self._connection.open()

    async def close(self) -> None:
        task, self._sweeping = self._sweeping, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._connection.close()

    async def ready(self) -> bool:
        try:
            await self._connection.run(sql.PROBE)
        except StoreTrouble:
            return False
        return True

    async def secret(self, name: str) -> bytes:
        ((value,),) = await self._connection.run(sql.PUT_ONCE, name, secrets.token_bytes(32))
        assert isinstance(value, bytes)
        return value

    async def delete(self, key: Key, *, with_events: bool = True) -> int:
        return await self._delete(names_of(key), with_events)

    async def _delete(self, names: Names, with_events: bool = True) -> int:
        for statement in sql.DELETE_FIRST[0 if with_events else 1 :]:
            await self._connection.exhaust(statement, *names)
        return len(await self._connection.run(sql.DELETE, *names))

    async def trim(self, limit: int) -> tuple[int, int] | None:
        gone = 0
        while True:
            ((pages,),) = await self._connection.run(sql.PAGES)
            size = int(str(pages))
            if size <= limit:
                return size, gone
            await self._trim_days(limit)
            # again: what goes frees fewer pages than its share of the file
            _, more = await trimmed(size, limit, await self._held(), self._oldest, self._delete)
            gone += more
            if not more:
                return size, gone

    async def _held(self) -> Counter[bytes]:
        """About how many bytes each tenant holds."""
        held, last = Counter[bytes](), (b"", b"")
        while rows := await self._connection.run(sql.HELD, *last):
            for tenant, name, of_it in rows:
                last = (tenant, name)
                held[last[0]] += int(float(str(of_it)))
            await asyncio.sleep(_SWEEP_PAUSE)
        return held

    async def _oldest(self, tenant: bytes) -> Sequence[Holding]:
        rows = await self._connection.run(sql.OLDEST, tenant)
        return [Holding(name, int(float(str(size)))) for _, name, size in rows]

    async def delete_tenant(self, tenant: str, *, with_events: bool = True) -> int:
        for statement in sql.DELETE_TENANT_FIRST[0 if with_events else 1 :]:
            await self._connection.exhaust(statement, name_bytes(tenant))
        return len(await self._connection.run(sql.DELETE_TENANT, name_bytes(tenant)))

    async def sweep(self, older_than: float, pause: float = 0.0) -> int:
        """`pause`: seconds after each statement."""
        swept = 0
        while True:
            for statement in sql.SWEEP_FIRST:
                await self._connection.exhaust(statement, older_than, pause=pause)
            count = len(await self._connection.run(sql.SWEEP, older_than))
            await asyncio.sleep(pause)
            if not count:
                break
            swept += count
        await self._connection.run(sql.SWEEP_PURSES, self._clock() - PURSE_SECONDS)
        await self._sweep_days(pause)
        for statement in sql.SWEEP_NUMBERED:
            await self._connection.exhaust(statement, older_than, pause=pause)
        return swept

    async def _sweep_days(self, pause: float) -> None:
        """Delete the sums of days that are too long ago, and the ids of bills that nobody adds again. `pause`: seconds
        after each statement."""
        await self._connection.exhaust(
            sql.SWEEP_DAYS, b"\xff" + day_of(self._clock() - DAYS * 86_400).encode(), pause=pause
        )
        await self._connection.exhaust(sql.SWEEP_ADDED, self._clock() - ADDED_SECONDS, pause=pause)

    async def _trim_days(self, limit: int) -> None:
        """Delete the sums of the oldest days, where they take more than their share of the limit."""
        while True:
            ((held, oldest),) = await self._connection.run(sql.BYTES_OF_DAYS)
            if float(held) <= limit * _SHARE_OF_DAYS:
                return
            await self._connection.exhaust(sql.SWEEP_DAYS, oldest + b"~")  # and what is sorted behind it

    async def _sweep_now_and_then(self) -> None:
        await asyncio.sleep(_FIRST_SWEEP)
        while True:
            pause = _FIRST_SWEEP
            with suppress(StoreTrouble):
                await self.sweep(self._clock() - self._ttl, _SWEEP_PAUSE)
                pause = _NEXT_SWEEP
            await asyncio.sleep(pause)
