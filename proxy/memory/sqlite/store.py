"""The embedded store: one SQLite file, shared by the workers of one machine.

Laws
  Each operation is one statement that commits by itself: an interrupted one leaves nothing half done. Only what
  stands for itself (a text, an event, what has not been used for the time to live) is written or deleted a few rows at
  a time.
  What was not written for the time to live goes by itself, while the store is open, and delays no request.
"""

import asyncio
import json
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

from policies.model.edits import Insert
from policies.model.memory import Memory, StepRecord
from policies.model.summary_record import SummaryCost, SummaryRecord
from proxy.config.keyring import Keyring
from proxy.memory import (
    EVENTS,
    LEASE_SECONDS,
    PURSE_SECONDS,
    TEXT_KINDS,
    TTL,
    Announce,
    Event,
    Key,
    Lease,
    Purse,
    Snapshot,
    StoredText,
    StoreTrouble,
    TextKind,
    parameters,
    serialization,
    ttl,
)
from proxy.memory.serialization import Codec, Names, name_bytes, names_of, readable
from proxy.memory.sqlite import statements as sql
from proxy.memory.sqlite.bills import SqliteBills, added_functions
from proxy.memory.sqlite.connection import MEMORY as MEMORY
from proxy.memory.sqlite.connection import ExchangeAnnouncements, Row, SqliteConnection
from proxy.memory.sqlite.keys import SqliteKeys
from proxy.memory.trimming import Holding, trimmed

_AT_ONCE = 1_000
"""Texts in one statement."""
_FIRST_SWEEP = 60.0
"""Seconds from the opening to the first sweep, and to the next where one met trouble."""
_NEXT_SWEEP = 3_600.0
"""Seconds from one sweep to the next."""
_SWEEP_PAUSE = 0.02
"""Seconds between two statements of a sweep."""


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


class SqliteStore(SqliteBills, SqliteKeys):
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
        functions: Mapping[tuple[str, int], Callable[..., bytes]] = {
            ("first_text", 6): lambda tenant, conversation, kind, name, stored, new: codec.first_text(
                (tenant, conversation), TEXT_KINDS[kind], name, stored, new
            ),
            ("added", 3): self._added,
            **added_functions(codec),
        }
        super().__init__(SqliteConnection(self.path, patience, functions, announce), codec, clock)
        self._announcements = ExchangeAnnouncements(self.path)
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
                if (insert := self._codec.insert(names, at, rest[0])) is not None:
                    inserts[at] = (*inserts.get(at, ()), insert)
            elif (summary := self._codec.summary(names, at, str(rest[0]), rest[1])) is not None:
                summaries.append(summary)
        return Memory(steps, inserts, tuple(summaries))

    async def remember(self, steps: Sequence[tuple[Key, StepRecord]]) -> None:
        rows = [self._step_row(names_of(key), record) for key, record in steps]
        stored = await self._connection.run(sql.claim(len(rows)), *chain.from_iterable(rows))
        decisions = {tuple(row[3:]): row[0] for row in stored}
        for (key, record), (*names, anchor, decision, _, _, _) in zip(steps, rows, strict=True):
            first = decisions[*names, anchor]
            if first != decision and not self._codec.is_sound(names_of(key), record.anchor, first):
                await self.claim(key, record)

    async def supersede(self, key: Key, record: StepRecord) -> None:
        await self.claim(key, record, supersedes=True)

    async def claim(self, key: Key, record: StepRecord, supersedes: bool = False) -> StepRecord:
        names, anchor = names_of(key), record.anchor

        async def write(decision: bytes, sent: bytes | None) -> Row:
            (row,) = await self._connection.run(sql.claim(1), *names, anchor, decision, sent, record.at, self._clock())
            return row[:3]

        async def mend(stored: object, decision: bytes) -> None:
            await self._connection.run(sql.MEND, decision, *names, anchor, stored)

        return await self._codec.claimed(names, record, write, mend, supersedes)

    async def newest_step(self, key: Key) -> StepRecord | None:
        names = names_of(key)
        for anchor, *row in await self._connection.run(sql.NEWEST_STEP, *names):
            return self._codec.step(names, str(anchor), *row)
        return None

    async def put_snapshot(self, key: Key, snapshot: Snapshot, instead_of: str = "") -> None:
        names = names_of(key)
        content = self._codec.snapshot_bytes(names, snapshot)
        row = (*names, snapshot.fingerprint, snapshot.anchor, content, self._clock())
        await self._connection.run(sql.PUT_SNAPSHOT, *row, instead_of)

    async def snapshot(self, key: Key, fingerprint: str, anchors: Sequence[str]) -> Snapshot | None:
        names = names_of(key)
        rows = await self._connection.run(sql.SNAPSHOT, json.dumps(list(anchors)), *names, fingerprint)
        for anchor, content in rows:
            return self._codec.snapshot(names, fingerprint, str(anchor), content)
        return None

    async def insert(self, key: Key, insert: Insert) -> None:
        names = names_of(key)
        row = (insert.after, insert.reply, self._codec.insert_bytes(names, insert), self._clock())
        await self._connection.run(sql.PUT_INSERT, *names, *row)

    def announce_exchange(self) -> None:
        self._announcements.add()

    def foreign_exchanges(self) -> int | None:
        return self._announcements.foreign()

    async def put_texts(self, key: Key, kind: TextKind, texts: Sequence[StoredText], limit: int | None = None) -> None:
        names = names_of(key)
        for start in range(0, len(texts), _AT_ONCE):
            # In a thread: texts may be long, and no request waits for them.
            rows = await asyncio.to_thread(self._codec.text_rows, names, kind, texts[start : start + _AT_ONCE])
            values = ((*names, kind.name, name, size, self._clock(), *rest) for name, size, *rest in rows)
            await self._connection.run(sql.put_texts(len(rows)), *chain.from_iterable(values))
        if limit is not None:
            await self._connection.exhaust(sql.trim(kind), names[0], kind.name, limit, names[1])

    async def list_texts(self, key: Key, kind: TextKind) -> Sequence[StoredText]:
        names = names_of(key)
        rows = await self._connection.run(sql.LIST_TEXTS, *names, kind.name)
        return readable(self._codec.listed_text(names, kind, *row) for row in rows)

    async def texts(self, key: Key, kind: TextKind, names: Sequence[str]) -> Mapping[str, str]:
        texts: dict[str, str] = {}
        for start in range(0, len(names), _AT_ONCE):
            some = {name_bytes(name): name for name in names[start : start + _AT_ONCE]}
            rows = await self._connection.run(sql.texts(len(some)), *names_of(key), kind.name, *some)
            named = [(some[name], content) for name, content in rows if isinstance(name, bytes)]
            texts |= await asyncio.to_thread(self._codec.texts, names_of(key), kind, named)
        return texts

    async def conversations_with(self, tenant: str, kind: TextKind, name: str) -> Sequence[str]:
        rows = await self._connection.run(sql.CONVERSATIONS_WITH, name_bytes(tenant), kind.name, name_bytes(name))
        return readable(self._codec.read(serialization.name, each) for (each,) in rows)

    async def put_summary(self, key: Key, record: SummaryRecord, lease: Lease | None = None) -> bool:
        names = names_of(key)
        content = self._codec.summary_bytes(names, record)
        row = (*names, record.id, record.kind, record.first, content, self._clock())
        name, token = (None, None) if lease is None else (name_bytes(lease.name), lease.token)
        return bool(await self._connection.run(sql.PUT_SUMMARY, *row, name, *names, name, token))

    async def summaries(self, key: Key) -> Sequence[SummaryRecord]:
        names = names_of(key)
        rows = await self._connection.run(sql.LIST_SUMMARIES, *names)
        return readable(self._codec.summary(names, str(id), str(first), content) for id, first, content in rows)

    async def lease(self, key: Key, name: str, seconds: float) -> Lease | None:
        now = self._clock()
        # Higher than any before, even where the row of those is gone.
        row = (*names_of(key), name_bytes(name), int(now * 1e6), now + min(seconds, LEASE_SECONDS), now)
        rows = await self._connection.run(sql.LEASE, *row, LEASE_SECONDS)
        return Lease(name, int(str(rows[0][0]))) if rows else None

    async def release(self, key: Key, lease: Lease) -> None:
        await self._connection.run(sql.RELEASE, *names_of(key), name_bytes(lease.name), lease.token)

    async def spend(self, key: Key, kind: str, spent: SummaryCost) -> None:
        row = (*names_of(key), name_bytes(kind), serialization.packed("spent", kind, spent), self._clock())
        await self._connection.run(sql.SPEND, *row)

    async def spent(self, key: Key) -> Mapping[str, SummaryCost]:
        rows = await self._connection.run(sql.SPENT, *names_of(key))
        return dict(readable(self._codec.read(_spent, *row) for row in rows))

    async def take(self, purse: Purse, dollars: float, limit: float = math.inf) -> bool:
        names = map(name_bytes, (purse.tenant, purse.conversation, purse.day))
        return bool(await self._connection.run(sql.TAKE, *names, dollars, self._clock(), limit))

    async def note(self, tenant: str, event: Event) -> None:
        names = (name_bytes(tenant), name_bytes(event.conversation))
        await self._connection.run(sql.NOTE, *names, serialization.packed("event", event), self._clock())

    async def events(self, tenant: str | None, conversation: str | None, most: int) -> Sequence[tuple[str, Event]]:
        wanted = [name_bytes(name) for name in (tenant, conversation) if name is not None]
        statement = sql.events(tenant=tenant is not None, conversation=conversation is not None)
        rows = await self._connection.run(statement, *wanted, max(0, min(most, EVENTS)))
        return readable(self._codec.read(_event, *row) for row in reversed(rows))

    async def own(self, key: Key, owner: str) -> None:
        await self._connection.run(sql.OWN, *names_of(key), owner, self._clock())

    async def owners(self, key: Key) -> Collection[str]:
        return {str(owner) for (owner,) in await self._connection.run(sql.OWNERS, *names_of(key))}

    async def conversations(self, tenant: str, owner: str | None = None) -> Sequence[str]:
        wanted = (sql.ALL_OF_TENANT,) if owner is None else (sql.OWNED, owner)
        rows = await self._connection.run(wanted[0], name_bytes(tenant), *wanted[1:])
        return readable(self._codec.read(serialization.name, each) for (each,) in rows)

    async def disown(self, key: Key, owner: str) -> int:
        await self._connection.run(sql.DISOWN, *names_of(key), owner)
        return len(await self.owners(key))

    async def delete_texts(self, key: Key, kind: TextKind, names: Sequence[str]) -> None:
        for start in range(0, len(names), _AT_ONCE):
            some = [name_bytes(name) for name in names[start : start + _AT_ONCE]]
            await self._connection.run(sql.delete_texts(len(some)), *names_of(key), kind.name, *some)

    async def delete_summaries(self, key: Key, ids: Collection[str]) -> None:
        await self._connection.run(sql.DELETE_SUMMARIES, *names_of(key), json.dumps(list(ids)))

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
                last = (_blob(tenant), _blob(name))
                held[last[0]] += int(float(str(of_it)))
            await asyncio.sleep(_SWEEP_PAUSE)
        return held

    async def _oldest(self, tenant: bytes) -> Sequence[Holding]:
        rows = await self._connection.run(sql.OLDEST, tenant)
        return [Holding(_blob(name), int(float(str(size)))) for _, name, size in rows]

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

    async def secret(self, name: str) -> bytes:
        ((value,),) = await self._connection.run(sql.PUT_ONCE, name, secrets.token_bytes(32))
        assert isinstance(value, bytes)
        return value

    async def _sweep_now_and_then(self) -> None:
        await asyncio.sleep(_FIRST_SWEEP)
        while True:
            pause = _FIRST_SWEEP
            with suppress(StoreTrouble):
                await self.sweep(self._clock() - self._ttl, _SWEEP_PAUSE)
                pause = _NEXT_SWEEP
            await asyncio.sleep(pause)

    def _step_row(self, names: Names, record: StepRecord) -> tuple[object, ...]:
        sent = None if record.sent is None else serialization.packed("sent", record.sent)
        decision = self._codec.decision_bytes(names, record)
        return *names, record.anchor, decision, sent, record.at, self._clock()

    def _added(self, kind: bytes, stored: object, more: bytes) -> bytes:
        """Two sums as one, called by SQLite; a stored one that cannot be read is a miss, and counts as nothing."""
        both = [self._codec.read(_spent, kind, each) for each in (stored, more)]
        name, *_ = (each[0] for each in both if each is not None)
        return serialization.packed("spent", name, sum((each[1] for each in both if each is not None), SummaryCost()))


def _blob(name: object) -> bytes:
    assert isinstance(name, bytes)
    return name


def _spent(kind: object, content: object) -> tuple[str, SummaryCost]:
    """What was spent, and for what. Raises UnreadableRecordError, UnicodeDecodeError."""
    name = serialization.name(kind)
    return name, serialization.spent(name, content)


def _event(tenant: object, conversation: object, content: object) -> tuple[str, Event]:
    """An event, and its tenant. Raises UnreadableRecordError, UnicodeDecodeError."""
    return serialization.name(tenant), serialization.event(conversation, content)
