"""The embedded store: one SQLite file, shared by the workers of one machine.

Laws
  Each operation is one statement or one transaction: an interrupted one leaves nothing half done. Only what stands for
  itself (a text, an event, what has not been used for the time to live) is written or deleted a few rows at a time.
  What was not written for the time to live goes by itself, while the store is open, and delays no request.
"""

import asyncio
import json
import math
import secrets
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from policies.model.edits import Insert
from policies.model.memory import Memory, StepRecord
from policies.model.summary_record import SummaryRecord
from proxy.config.keyring import Keyring
from proxy.memory import TTL, parameters, ttl
from proxy.memory.bills import day_of
from proxy.memory.decisions import (
    LEASE_SECONDS,
    PURSE_SECONDS,
    Announce,
    Announcements,
    Key,
    Lease,
    Purse,
    Snapshot,
    StoreTrouble,
)
from proxy.memory.records import (
    ADDED,
    ADDED_SECONDS,
    BILL,
    DAY,
    DAY_LENGTH,
    DAYS,
    KEY,
    OWNER,
    SPENT,
    TOTAL,
    Change,
    Kind,
    Rows,
    TextKind,
    TextRow,
)
from proxy.memory.serialization import ClaimedSteps, Codec, Names, name_bytes, names_of, readable, row_bytes
from proxy.memory.sqlite import statements as sql
from proxy.memory.sqlite.connection import MEMORY, FileAnnouncements, Row, SqliteConnection
from proxy.memory.store import Store, trimmed

# --- decisions ---


@dataclass(eq=False)
class SqlitePart:
    """The base of each part of the store."""

    _connection: SqliteConnection
    _codec: Codec
    _clock: Callable[[], float]


class SqliteDecisionStore(SqlitePart, ClaimedSteps):
    """A DecisionStore in one file."""

    announcements: Announcements

    async def memory(self, key: Key, anchors: Sequence[str]) -> Memory:
        names = names_of(key)
        rows = await self._connection.run(sql.LOAD, json.dumps(list(anchors)), *names, *names, *names)
        steps: dict[str, StepRecord] = {}
        inserts: dict[str, tuple[Insert, ...]] = {}
        summaries: list[SummaryRecord] = []
        for table, _, name, *rest in sorted(rows, key=lambda row: row[:2]):
            at = str(name)
            if table == 0:
                if (record := self._codec.step(names, at, *rest)) is not None:
                    steps[at] = record
            elif table == 1:
                if (insert := self._codec.open_record("insert", names, [at], at, rest[0])) is not None:
                    inserts[at] = (*inserts.get(at, ()), insert)
            elif (summary := self._summary(names, at, *rest[:2])) is not None:
                summaries.append(summary)
        return Memory(steps, inserts, tuple(summaries))

    async def remember(self, steps: Sequence[tuple[Key, StepRecord]]) -> None:
        decisions = [self._stored_parts(*step) for step in steps]
        rows = [
            (*names_of(key), record.anchor, *parts, record.at, self._clock())
            for (key, record), parts in zip(steps, decisions, strict=True)
        ]
        stored = await self._connection.run(sql.claim(len(rows)), *chain.from_iterable(rows))
        firsts = {tuple(row[3:]): row[0] for row in stored}
        await self._claim_unsound(
            (*step, decision, firsts[*names_of(step[0]), step[1].anchor])
            for step, (decision, _) in zip(steps, decisions, strict=True)
        )

    async def _write_step(self, names: Names, record: StepRecord, decision: bytes, sent: bytes | None) -> Row:
        row = (*names, record.anchor, decision, sent, record.at, self._clock())
        return (await self._connection.run(sql.claim(1), *row))[0][:3]

    async def _mend_step(self, names: Names, anchor: str, stored: object, decision: bytes) -> None:
        await self._connection.run(sql.MEND, decision, *names, anchor, stored)

    async def newest_step(self, key: Key) -> StepRecord | None:
        names = names_of(key)
        for anchor, *row in await self._connection.run(sql.NEWEST_STEP, *names):
            return self._codec.step(names, str(anchor), *row)
        return None

    async def put_snapshot(self, key: Key, snapshot: Snapshot, instead_of: str = "") -> None:
        names = names_of(key)
        name = snapshot.fingerprint, snapshot.anchor
        content = self._codec.seal_record("snapshot", names, name, *name, snapshot.state)
        await self._connection.run(sql.PUT_SNAPSHOT, *names, *name, content, self._clock(), instead_of)

    async def snapshot(self, key: Key, fingerprint: str, anchors: Sequence[str]) -> Snapshot | None:
        names = names_of(key)
        rows = await self._connection.run(sql.SNAPSHOT, json.dumps(list(anchors)), *names, fingerprint)
        for anchor, content in rows:
            name = fingerprint, str(anchor)
            state = self._codec.open_record("snapshot", names, name, name, content)
            return None if state is None else Snapshot(name[1], fingerprint, state)
        return None

    async def insert(self, key: Key, insert: Insert) -> None:
        names = names_of(key)
        content = self._codec.seal_record("insert", names, [insert.after], insert)
        await self._connection.run(sql.PUT_INSERT, *names, insert.after, insert.reply, content, self._clock())

    async def put_summary(self, key: Key, record: SummaryRecord, lease: Lease | None = None) -> bool:
        names = names_of(key)
        content = self._codec.seal_record("summary", names, [record.id], record)
        row = (*names, record.id, record.kind, record.first, content, self._clock())
        name, token = (None, None) if lease is None else (name_bytes(lease.name), lease.token)
        return bool(await self._connection.run(sql.PUT_SUMMARY, *row, name, *names, name, token))

    async def summaries(self, key: Key) -> Sequence[SummaryRecord]:
        names = names_of(key)
        rows = await self._connection.run(sql.LIST_SUMMARIES, *names)
        return readable(self._summary(names, *row) for row in rows)

    async def lease(self, key: Key, name: str, seconds: float) -> Lease | None:
        now = self._clock()
        # Higher than any before, even where the row of those is gone.
        row = (*names_of(key), name_bytes(name), int(now * 1e6), now + min(seconds, LEASE_SECONDS), now)
        rows = await self._connection.run(sql.LEASE, *row, LEASE_SECONDS)
        return Lease(name, int(str(rows[0][0]))) if rows else None

    async def release(self, key: Key, lease: Lease) -> None:
        await self._connection.run(sql.RELEASE, *names_of(key), name_bytes(lease.name), lease.token)

    async def take(self, purse: Purse, dollars: float, limit: float = math.inf) -> bool:
        names = map(name_bytes, (purse.tenant, purse.conversation, purse.day))
        return bool(await self._connection.run(sql.TAKE, *names, dollars, self._clock(), limit))

    async def delete_summaries(self, key: Key, ids: Collection[str]) -> None:
        await self._connection.run(sql.DELETE_SUMMARIES, *names_of(key), json.dumps(list(ids)))

    def _summary(self, names: Names, id: object, first: object, content: object) -> SummaryRecord | None:
        record: SummaryRecord | None = self._codec.open_record(
            "summary", names, [str(id)], (str(id), str(first)), content
        )
        return record


# --- rows for people and accounts, as `statements` has made their tables ---


APART = b"\xff"
"""No name of a tenant or a conversation begins with it."""


class SqliteRecordStore(SqlitePart):
    """A RecordStore in one file."""

    async def change(self, changes: Sequence[Change]) -> None:
        def make(database: sqlite3.Connection) -> None:
            now = self._clock()
            used = [use for change in changes for use in self._make(database, change, now)]
            database.executemany(sql.USE.format("?, ?, ?"), used)

        await self._connection.transact(make)

    async def read(self, kind: Kind, tenant: bytes, place: bytes, names: Sequence[bytes] | None = None) -> Rows:
        return await self._connection.do(
            lambda database: self._rows(database, kind, tenant, place, names, names is not None)
        )

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
        of_tools: bool = False,
    ) -> Sequence[Any]:
        terms = {
            "tenant = ?": tenant,
            "about = ?": None if owner is None else owner.encode(),
            "conversation >= ?": APART + since.encode() if since else None,
            "used < ?": before,
            f"(length(conversation) > {len(APART) + DAY_LENGTH}) = ?": of_tools if kind == DAY else None,
        }
        wanted = {term: value for term, value in terms.items() if value is not None}
        values = (*wanted.values(), -1 if most is None else most)

        def rows(database: sqlite3.Connection) -> list[Any]:
            stored = database.execute(sql.search(kind.name, wanted), values)
            return readable(
                self._codec.row(kind, tenant, place[1:] if kind == DAY else place, b"", content)
                for tenant, place, content in stored
            )

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
            rows = ((name, value) for name, value in stored.items() if value is not None)
            new = [(*at, name, *_columns(kind, name, value, now)) for name, value in rows]
            if gone:
                database.executemany(sql.DELETE_ROW.format(_table(kind)), gone)
            if new:
                database.executemany(sql.PUT[_table(kind)], new)
            if new and kind in (BILL, OWNER, SPENT):
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
            rows[name] = TextRow(*row) if is_text else self._codec.row(kind, tenant, place, name, row[1])
        rows.count = lambda: database.execute(sql.COUNT, at).fetchone()[0]
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


def _columns(kind: Kind, name: bytes, value: Any, now: float) -> tuple[int, float, bytes, bytes]:
    """The values of a row's other columns."""
    if isinstance(kind, TextKind):
        return value.size, now, value.about, value.content
    content = row_bytes(kind, name, value)
    owner = value.labels.owner.encode() if kind in (TOTAL, DAY) else b""
    return len(content), value.at if kind in (BILL, TOTAL) else now, owner, content


# --- the whole ---


_FIRST_SWEEP = 60.0
"""Seconds from the opening to the first sweep, and to the next where one met trouble."""
_NEXT_SWEEP = 3_600.0
"""Seconds from one sweep to the next."""
_SWEEP_PAUSE = 0.02
"""Seconds between two statements of a sweep."""
_SHARE_OF_DAYS = 0.1
"""Of the limit for all that is stored, what the sums of days may take."""


def from_url(url: str, **options: Any) -> "SqliteStore":
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
    return SqliteStore(path, ttl=seconds, **options)


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
        parts = SqliteConnection(self.path, patience, announce), Codec(keyring), clock
        super().__init__(*parts)
        self._records = SqliteRecordStore(*parts)
        self.announcements = FileAnnouncements(self.path)
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

    async def _oldest(self, tenant: bytes) -> Sequence[tuple[bytes, int]]:
        rows = await self._connection.run(sql.OLDEST, tenant)
        return [(name, int(float(str(size)))) for _, name, size in rows]

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
        """Delete sums of days long ago, and ids of bills nobody adds again. `pause`: seconds between statements."""
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
