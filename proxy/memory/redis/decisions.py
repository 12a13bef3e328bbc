"""Decisions in Redis: each operation is one round trip; only what cannot be read costs a second one.

A request loads the fields of its own path and no others, however many share the conversation's name. Steps and
summaries that are not used for the time to live go, and so does the whole.
"""

import math
import re
import secrets
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from hashlib import sha256
from operator import itemgetter
from typing import Any

from policies.model.edits import Insert
from policies.model.memory import Memory, StepRecord
from policies.model.summary_record import Kind, SummaryCost, SummaryRecord
from proxy.memory import serialization
from proxy.memory.decisions import (
    INSERTS,
    LEASE_SECONDS,
    PURSE_SECONDS,
    SNAPSHOTS,
    SUMMARIES,
    Key,
    Lease,
    Purse,
    Snapshot,
)
from proxy.memory.redis import scripts
from proxy.memory.redis.connection import RedisConnection
from proxy.memory.redis.keys import Argument, Command, Keys, Script, fields, framed, unsealed
from proxy.memory.redis.scripts import MEND, NOTE
from proxy.memory.serialization import Codec, Names, UnreadableRecordError, name_bytes, names_of, readable

_ENTRY = re.compile(rb"(\d{1,9}):(\d{1,9}):")
_LETTERS: Mapping[Kind, str] = {"compaction": "c", "history": "h", "digest": "c"}


class RedisDecisionStore:
    """A DecisionStore in Redis."""

    def __init__(
        self, connection: RedisConnection, keys: Keys, codec: Codec, ttl: int, clock: Callable[[], float]
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._codec = codec
        self._ttl = ttl
        self._clock = clock

    async def memory(self, key: Key, anchors: Sequence[str]) -> Memory:
        if not anchors:
            return Memory()
        names = names_of(key)
        keys = self._keys.conversation(*names)
        wanted = framed([name_bytes(anchor) for anchor in anchors])
        command = scripts.READ.on((keys.steps, keys.ages, keys.summaries), self._clock(), *wanted)
        ((lengths, values),) = await self._connection.trip(command)
        steps: dict[str, StepRecord] = {}
        inserts: dict[str, tuple[Insert, ...]] = {}
        numbered: list[tuple[int, SummaryRecord]] = []
        for number, (decision, sent, at, replies, summaries) in fields(lengths, values):
            anchor = anchors[number]
            if decision is not None and (record := self._codec.step(names, anchor, decision, sent, at)) is not None:
                steps[anchor] = record
            entries = () if replies is None else _entries(self._codec, replies)
            if exchanges := readable(self._codec.insert(names, anchor, content) for _, content in entries):
                inserts[anchor] = tuple(exchanges)
            if summaries is not None:
                numbered += _summaries(self._codec, names, anchor, summaries)
        return Memory(steps, inserts, _ordered(numbered))

    async def remember(self, steps: Sequence[tuple[Key, StepRecord]]) -> None:
        decisions: list[bytes] = []
        commands: list[Command] = []
        notes: dict[tuple[Argument, ...], Command] = {}
        for key, record in steps:
            names, sent = names_of(key), b"" if record.sent is None else serialization.packed("sent", record.sent)
            decisions.append(self._codec.decision_bytes(names, record))
            row = (name_bytes(record.anchor), decisions[-1], sent, record.at)
            commands.append(self._script(names, scripts.CLAIM, *row))
            notes |= {command[3:4] + command[6:]: command for command in self._noted(*names)}
        replies = await self._connection.trip(*commands, *notes.values())
        for (key, record), decision, (first, _, _) in zip(steps, decisions, replies[: len(steps)], strict=True):
            if first != decision and not self._codec.is_sound(names_of(key), record.anchor, first):
                await self.claim(key, record)

    async def supersede(self, key: Key, record: StepRecord) -> None:
        await self.claim(key, record, supersedes=True)

    async def claim(self, key: Key, record: StepRecord, supersedes: bool = False) -> StepRecord:
        names, anchor = names_of(key), name_bytes(record.anchor)

        async def write(decision: bytes, sent: bytes | None) -> Sequence[Any]:
            row: list[Any] = await self._write(names, scripts.CLAIM, anchor, decision, sent or b"", record.at)
            return row

        async def mend(stored: bytes, decision: bytes) -> None:
            steps = self._keys.conversation(*names).steps
            await self._connection.trip(MEND.on([steps], b"d" + anchor, stored, decision))

        return await self._codec.claimed(names, record, write, mend, supersedes)

    async def newest_step(self, key: Key) -> StepRecord | None:
        names = names_of(key)
        steps = self._keys.conversation(*names).steps
        (anchor,) = await self._connection.trip(("HGET", steps, "n"))
        if (name := self._codec.read(serialization.name, anchor)) is None:
            return None
        (row,) = await self._connection.trip(("HMGET", steps, b"d" + anchor, b"s" + anchor, b"t" + anchor))
        return self._codec.step(names, name, *row)

    async def put_snapshot(self, key: Key, snapshot: Snapshot, instead_of: str = "") -> None:
        names = names_of(key)
        name, former = (_snapshot_field(snapshot.fingerprint, each) for each in (snapshot.anchor, instead_of))
        row = (name, self._codec.snapshot_bytes(names, snapshot), former if instead_of else "", SNAPSHOTS)
        command = scripts.PUT_SNAPSHOT.on([self._keys.conversation(*names).snapshots], self._ttl, *row)
        await self._connection.trip(command, *self._noted(*names))

    async def snapshot(self, key: Key, fingerprint: str, anchors: Sequence[str]) -> Snapshot | None:
        names = names_of(key)
        there = self._keys.conversation(*names).snapshots
        newest_first = anchors[::-1]
        fields = (_snapshot_field(fingerprint, anchor) for anchor in newest_first)
        (rows,) = await self._connection.trip(("HMGET", there, *fields)) if anchors else ((),)
        for anchor, row in zip(newest_first, rows, strict=True):
            if row is not None:
                return self._codec.snapshot(names, fingerprint, anchor, row)
        return None

    def announce_exchange(self) -> None:
        """Others see it once it is stored, and not before."""

    def foreign_exchanges(self) -> int | None:
        return None

    async def insert(self, key: Key, insert: Insert) -> None:
        names = names_of(key)
        content = self._codec.insert_bytes(names, insert)
        row = (name_bytes(insert.after), name_bytes(insert.reply), content, INSERTS)
        await self._write(names, scripts.INSERT, *row)

    async def put_summary(self, key: Key, record: SummaryRecord, lease: Lease | None = None) -> bool:
        names = names_of(key)
        first, field = name_bytes(record.first), name_bytes(_LETTERS[record.kind] + record.first)
        row = (first, field, name_bytes(record.id), self._codec.summary_bytes(names, record), SUMMARIES)
        fence = () if lease is None else (name_bytes(lease.name), lease.token)
        return bool(await self._write(names, scripts.PUT_SUMMARY, *row, *fence))

    async def summaries(self, key: Key) -> Sequence[SummaryRecord]:
        names = names_of(key)
        (rows,) = await self._connection.trip(("HGETALL", self._keys.conversation(*names).summaries))
        numbered: list[tuple[int, SummaryRecord]] = []
        for field, row in rows.items():
            if field != b"n" and (first := self._codec.read(serialization.name, field[1:])) is not None:
                numbered += _summaries(self._codec, names, first, row)
        return _ordered(numbered)

    async def delete_summaries(self, key: Key, ids: Collection[str]) -> None:
        summaries = self._keys.conversation(*names_of(key)).summaries
        (rows,) = await self._connection.trip(("HGETALL", summaries))
        for field, row in rows.items() if ids else ():
            left = [(name, content) for name, content in _entries(self._codec, row) if _numbered_id(name)[1] not in ids]
            row_left = b"".join(b"%d:%d:" % (len(name), len(content)) + name + content for name, content in left)
            if field != b"n" and row_left != row:
                await self._connection.trip(MEND.on([summaries], field, row, row_left))

    async def lease(self, key: Key, name: str, seconds: float) -> Lease | None:
        names = names_of(key)
        row = (name_bytes(name), min(seconds, LEASE_SECONDS), LEASE_SECONDS, secrets.token_hex(16))
        command = scripts.LEASE.on([self._keys.conversation(*names).leases], self._ttl, *row)
        (token, unreadable), *_ = await self._connection.trip(command, *self._noted(*names))
        self._codec.misses += unreadable
        return Lease(name, int(token)) if token else None

    async def release(self, key: Key, lease: Lease) -> None:
        leases = self._keys.conversation(*names_of(key)).leases
        await self._connection.trip(scripts.RELEASE.on([leases], name_bytes(lease.name), lease.token))

    async def spend(self, key: Key, kind: str, spent: SummaryCost) -> None:
        names = names_of(key)
        row = (secrets.token_hex(16), b"k" + name_bytes(kind), *astuple(spent))
        command = scripts.SPEND.on([self._keys.conversation(*names).spent], self._ttl, *row)
        unreadable, *_ = await self._connection.trip(command, *self._noted(*names))
        self._codec.misses += unreadable

    async def spent(self, key: Key) -> Mapping[str, SummaryCost]:
        (rows,) = await self._connection.trip(("HGETALL", self._keys.conversation(*names_of(key)).spent))
        return dict(readable(self._codec.read(_spent, field, row) for field, row in rows.items() if field[:1] == b"k"))

    async def take(self, purse: Purse, dollars: float, limit: float = math.inf) -> bool:
        tenant, name, day = map(name_bytes, (purse.tenant, purse.conversation, purse.day))
        key = self._keys.purse(tenant, day) if day else self._keys.conversation(tenant, name).spent
        row = (PURSE_SECONDS if day else self._ttl, secrets.token_hex(16), dollars, min(limit, sys.float_info.max))
        notes = () if day else self._noted(tenant, name)
        (added, unreadable), *_ = await self._connection.trip(scripts.TAKE.on([key], *row), *notes)
        self._codec.misses += unreadable
        return bool(added)

    async def _write(self, names: Names, script: Script, *arguments: Argument) -> Any:
        """The answer of a script on the conversation, which is noted in the indexes."""
        return (await self._connection.trip(self._script(names, script, *arguments), *self._noted(*names)))[0]

    def _noted(self, tenant: bytes, name: bytes) -> list[Command]:
        """The commands that note in the indexes that there is this conversation."""
        indexes = (self._keys.conversations(tenant), name), (self._keys.tenants, tenant)
        return [NOTE.on([index], self._ttl, self._clock(), member) for index, member in indexes]

    def _script(self, names: Names, script: Script, *arguments: Argument) -> Command:
        return script.on(self._keys.conversation(*names), self._ttl, self._clock(), *arguments)


def _summaries(codec: Codec, names: Names, first: str, row: bytes) -> Iterator[tuple[int, SummaryRecord]]:
    """The summaries of one beginning, each with its number; what cannot be read is a miss."""
    for name, content in _entries(codec, row):
        if (numbered := codec.read(_numbered_id, name)) is not None:
            summary = codec.summary(names, numbered[1], first, content)
            if summary is not None:
                yield numbered[0], summary


def _entries(codec: Codec, row: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The names and records of a row; where it breaks off is a miss."""
    at = 0
    while at < len(row):
        entry = _ENTRY.match(row, at)
        if entry is None:
            codec.misses += 1
            return
        start = entry.end() + int(entry[1])
        at = start + int(entry[2])
        yield row[entry.end() : start], row[start:at]


def _numbered_id(name: bytes) -> tuple[int, str]:
    """The number of a summary, and its id. Raises UnreadableRecordError, UnicodeDecodeError."""
    number, _, id = name.partition(b" ")
    if not number.isdigit():
        raise UnreadableRecordError("it has no number")
    return int(number), serialization.name(id)


def _ordered(numbered: list[tuple[int, SummaryRecord]]) -> tuple[SummaryRecord, ...]:
    """In the order in which they were stored."""
    return tuple(record for _, record in sorted(numbered, key=itemgetter(0)))


def _spent(kind: bytes, row: bytes) -> tuple[str, SummaryCost]:
    """What was spent, and for what. Raises UnreadableRecordError, UnicodeDecodeError."""
    *counts, dollars = map(float, unsealed(kind, row).split())
    return serialization.name(kind[1:]), replace(SummaryCost(*map(int, counts)), dollars=dollars)


def _snapshot_field(fingerprint: str, anchor: str) -> str:
    """The name of a snapshot."""
    both = name_bytes(fingerprint), name_bytes(anchor)
    return sha256(b"".join(b"%d:%s" % (len(name), name) for name in both)).hexdigest()[:32]
