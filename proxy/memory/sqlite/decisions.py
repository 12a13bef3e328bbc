"""Decisions in SQLite: each operation is one statement, or one transaction."""

import json
import math
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain

from policies.model.edits import Insert
from policies.model.memory import Memory, StepRecord
from policies.model.summary_record import SummaryCost, SummaryRecord
from proxy.memory import serialization
from proxy.memory.decisions import LEASE_SECONDS, Key, Lease, Purse, Snapshot
from proxy.memory.serialization import Codec, Names, name_bytes, names_of, readable
from proxy.memory.sqlite import statements as sql
from proxy.memory.sqlite.connection import ExchangeAnnouncements, Row, SqliteConnection


class SqliteDecisionStore:
    """A DecisionStore in one file."""

    def __init__(self, connection: SqliteConnection, codec: Codec, clock: Callable[[], float]) -> None:
        self._connection = connection
        self._codec = codec
        self._clock = clock
        self._announcements = ExchangeAnnouncements(connection.path)

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
        there, now = (*names_of(key), name_bytes(kind)), self._clock()

        def add(database: sqlite3.Connection) -> None:
            rows = database.execute(sql.SPENT_ON, there).fetchall()
            before = readable(self._codec.read(_spent, there[2], content) for (content,) in rows)
            content = serialization.packed("spent", kind, sum((cost for _, cost in before), spent))
            database.execute(sql.SPEND, (*there, content, now))

        await self._connection.transact(add)

    async def spent(self, key: Key) -> Mapping[str, SummaryCost]:
        rows = await self._connection.run(sql.SPENT, *names_of(key))
        return dict(readable(self._codec.read(_spent, *row) for row in rows))

    async def take(self, purse: Purse, dollars: float, limit: float = math.inf) -> bool:
        names = map(name_bytes, (purse.tenant, purse.conversation, purse.day))
        return bool(await self._connection.run(sql.TAKE, *names, dollars, self._clock(), limit))

    async def delete_summaries(self, key: Key, ids: Collection[str]) -> None:
        await self._connection.run(sql.DELETE_SUMMARIES, *names_of(key), json.dumps(list(ids)))

    def _step_row(self, names: Names, record: StepRecord) -> tuple[object, ...]:
        sent = None if record.sent is None else serialization.packed("sent", record.sent)
        decision = self._codec.decision_bytes(names, record)
        return *names, record.anchor, decision, sent, record.at, self._clock()


def _spent(kind: object, content: object) -> tuple[str, SummaryCost]:
    """What was spent, and for what. Raises UnreadableRecordError, UnicodeDecodeError."""
    name = serialization.name(kind)
    return name, serialization.spent(name, content)
