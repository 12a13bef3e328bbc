"""The shared store: Redis or Valkey, one server, Sentinel or a cluster. `connection` says how they are named.

Laws
  What serving needs is one round trip, and a second one only for what cannot be read; records cost a few, for what is
  there is read before it is written.
  A request loads the fields of its own path and no others, however many share the conversation's name. Steps and
  summaries that are not used for the time to live go, and so does the whole.
  A conversation lives in keys of one hash tag, and so in one slot. The indexes (a tenant's conversations, the tenants,
  the conversations that have a text) are sorted by last write. They stand in other slots, as a tenant's events do (a
  capped stream, in the order in which the server took them), are written in the same trip, and no request needs them.
"""

import math
import re
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from operator import itemgetter
from typing import Any

from policies.model.edits import Insert
from policies.model.memory import Memory, StepRecord
from policies.model.summary_record import Kind, SummaryRecord
from proxy.config.keyring import Keyring
from proxy.memory import serialization
from proxy.memory.decisions import (
    INSERTS,
    LEASE_SECONDS,
    PURSE_SECONDS,
    SNAPSHOTS,
    SUMMARIES,
    Announce,
    Announcements,
    Key,
    Lease,
    Purse,
    Snapshot,
    StoreTrouble,
)
from proxy.memory.records import AT_ONCE
from proxy.memory.redis import scripts
from proxy.memory.redis.connection import (
    Address,
    Argument,
    Command,
    Keys,
    RedisConnection,
    RedisPart,
    Script,
    address,
    fields,
    framed,
)
from proxy.memory.redis.records import RedisRecordStore
from proxy.memory.redis.scripts import MEND, NOTE, PUT_ONCE
from proxy.memory.serialization import ClaimedSteps, Codec, Names, UnreadableRecordError, name_bytes, names_of, readable
from proxy.memory.store import Store, trimmed

# --- decisions ---


_ENTRY = re.compile(rb"(\d{1,9}):(\d{1,9}):")
_LETTERS: Mapping[Kind, str] = {"compaction": "c", "history": "h", "digest": "c"}


class RedisDecisionStore(RedisPart, ClaimedSteps):
    """A DecisionStore in Redis."""

    announcements = Announcements()

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
            if exchanges := readable(
                self._codec.open_record("insert", names, [anchor], anchor, content) for _, content in entries
            ):
                inserts[anchor] = tuple(exchanges)
            if summaries is not None:
                numbered += _summaries(self._codec, names, anchor, summaries)
        return Memory(steps, inserts, _ordered(numbered))

    async def remember(self, steps: Sequence[tuple[Key, StepRecord]]) -> None:
        decisions = [self._stored_parts(*step) for step in steps]
        commands = [
            self._claim(names_of(key), record, *parts) for (key, record), parts in zip(steps, decisions, strict=True)
        ]
        notes = {note[3:4] + note[6:]: note for key, _ in steps for note in self._notes(*names_of(key))}
        replies = await self._connection.trip(*commands, *notes.values())
        await self._claim_unsound(
            (*step, decision, first)
            for step, (decision, _), (first, _, _) in zip(steps, decisions, replies[: len(steps)], strict=True)
        )

    async def _write_step(
        self, names: Names, record: StepRecord, decision: bytes, sent: bytes | None
    ) -> Sequence[object]:
        claim = self._claim(names, record, decision, sent)
        row: list[object] = (await self._connection.trip(claim, *self._notes(*names)))[0]
        return row

    async def _mend_step(self, names: Names, anchor: str, stored: bytes, decision: bytes) -> None:
        steps = self._keys.conversation(*names).steps
        await self._connection.trip(MEND.on([steps], b"d" + name_bytes(anchor), stored, decision))

    def _claim(self, names: Names, record: StepRecord, decision: bytes, sent: bytes | None) -> Command:
        return self._script(names, scripts.CLAIM, name_bytes(record.anchor), decision, sent or b"", record.at)

    async def newest_step(self, key: Key) -> StepRecord | None:
        names = names_of(key)
        command = scripts.NEWEST.on([self._keys.conversation(*names).steps], self._clock())
        ((anchor, *row),) = await self._connection.trip(command)
        name = self._codec.read(serialization.name, anchor)
        return None if name is None else self._codec.step(names, name, *row)

    async def put_snapshot(self, key: Key, snapshot: Snapshot, instead_of: str = "") -> None:
        names = names_of(key)
        name, former = (_snapshot_field(snapshot.fingerprint, each) for each in (snapshot.anchor, instead_of))
        where = snapshot.fingerprint, snapshot.anchor
        content = self._codec.seal_record("snapshot", names, where, *where, snapshot.state)
        row = (name, content, former if instead_of else "", SNAPSHOTS)
        command = scripts.PUT_SNAPSHOT.on([self._keys.conversation(*names).snapshots], self._ttl, *row)
        await self._connection.trip(command, *self._notes(*names))

    async def snapshot(self, key: Key, fingerprint: str, anchors: Sequence[str]) -> Snapshot | None:
        names = names_of(key)
        there = self._keys.conversation(*names).snapshots
        newest_first = anchors[::-1]
        fields = (_snapshot_field(fingerprint, anchor) for anchor in newest_first)
        (rows,) = await self._connection.trip(("HMGET", there, *fields)) if anchors else ((),)
        for anchor, row in zip(newest_first, rows, strict=True):
            if row is not None:
                where = fingerprint, anchor
                state = self._codec.open_record("snapshot", names, where, where, row)
                return None if state is None else Snapshot(anchor, fingerprint, state)
        return None

    async def insert(self, key: Key, insert: Insert) -> None:
        names = names_of(key)
        content = self._codec.seal_record("insert", names, [insert.after], insert)
        row = (name_bytes(insert.after), name_bytes(insert.reply), content, INSERTS)
        await self._write(names, scripts.INSERT, *row)

    async def put_summary(self, key: Key, record: SummaryRecord, lease: Lease | None = None) -> bool:
        names = names_of(key)
        first, field = name_bytes(record.first), name_bytes(_LETTERS[record.kind] + record.first)
        content = self._codec.seal_record("summary", names, [record.id], record)
        row = (first, field, name_bytes(record.id), content, SUMMARIES)
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
        (token, unreadable), *_ = await self._connection.trip(command, *self._notes(*names))
        self._codec.misses += unreadable
        return Lease(name, int(token)) if token else None

    async def release(self, key: Key, lease: Lease) -> None:
        leases = self._keys.conversation(*names_of(key)).leases
        await self._connection.trip(scripts.RELEASE.on([leases], name_bytes(lease.name), lease.token))

    async def take(self, purse: Purse, dollars: float, limit: float = math.inf) -> bool:
        tenant, name, day = map(name_bytes, (purse.tenant, purse.conversation, purse.day))
        key = self._keys.purse(tenant, day) if day else self._keys.conversation(tenant, name).spent
        row = (PURSE_SECONDS if day else self._ttl, secrets.token_hex(16), dollars, min(limit, sys.float_info.max))
        notes = () if day else self._notes(tenant, name)
        (added, unreadable), *_ = await self._connection.trip(scripts.TAKE.on([key], *row), *notes)
        self._codec.misses += unreadable
        return bool(added)

    async def _write(self, names: Names, script: Script, *arguments: Argument) -> Any:
        """The answer of a script on the conversation, which is noted in the indexes."""
        return (await self._connection.trip(self._script(names, script, *arguments), *self._notes(*names)))[0]

    def _notes(self, tenant: bytes, name: bytes) -> list[Command]:
        """The commands that note in the indexes that there is this conversation."""
        indexes = (self._keys.conversations(tenant), name), (self._keys.tenants, tenant)
        return [NOTE.on([index], self._ttl, self._clock(), member) for index, member in indexes]

    def _script(self, names: Names, script: Script, *arguments: Argument) -> Command:
        return script.on(self._keys.conversation(*names), self._ttl, self._clock(), *arguments)


def _summaries(codec: Codec, names: Names, first: str, row: bytes) -> Iterator[tuple[int, SummaryRecord]]:
    """The summaries of one beginning, each with its number; what cannot be read is a miss."""
    for name, content in _entries(codec, row):
        if (numbered := codec.read(_numbered_id, name)) is not None:
            summary = codec.open_record("summary", names, [numbered[1]], (numbered[1], first), content)
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


def _snapshot_field(fingerprint: str, anchor: str) -> str:
    """The name of a snapshot."""
    both = name_bytes(fingerprint), name_bytes(anchor)
    return sha256(b"".join(b"%d:%s" % (len(name), name) for name in both)).hexdigest()[:32]


# --- the whole ---


_PAUSE = 600
"""Seconds from one measurement to the next: each looks at every conversation."""
_FEW = 8

_SIZE = Script(
    """-- KEYS: those of a conversation
local sum = 0
for _, key in ipairs(KEYS) do
    sum = sum + (redis.call('MEMORY', 'USAGE', key, 'SAMPLES', 5) or 0)
end
return sum"""
)


def from_url(url: str, **options: Any) -> "RedisStore":
    """See `connection`. Raises ValueError."""
    return RedisStore(address(url), **options)


class RedisStore(RedisDecisionStore, Store):
    """A Store in Redis; see the contract for what each method promises."""

    _records: RedisRecordStore

    def __init__(
        self,
        where: Address,
        *,
        patience: float = 0.05,
        clock: Callable[[], float] = time.time,
        keyring: Keyring | None = None,
        announce: Announce = lambda _: None,
    ) -> None:
        parts = RedisConnection(where, patience), Keys(where.prefix), Codec(keyring), where.ttl, clock
        super().__init__(*parts)
        self._records = RedisRecordStore(*parts)
        self._where = where
        self._announce = announce

    @property
    def shared(self) -> bool:
        return True

    @property
    def misses(self) -> int:
        return self._codec.misses + self._connection.misses

    async def open(self) -> None:
        await self._connection.open(self._probe)
        is_old = False
        with suppress(StoreTrouble):  # in a cluster this is another node; what it says is only for the log
            (is_old,) = await self._connection.trip(("EXISTS", self._keys.tenants_of_0_1))
        if is_old:
            self._announce(
                f"{self._where} has keys that release 0.1 wrote: they are not read, expire by themselves, and new keys"
                f" begin with {self._keys.ready.removesuffix('ready')}"
            )

    async def close(self) -> None:
        await self._connection.close()

    async def ready(self) -> bool:
        try:
            await self._connection.trip(self._probe)
        except StoreTrouble:
            return False
        return True

    async def secret(self, name: str) -> bytes:
        (value,) = await self._connection.trip(PUT_ONCE.on([self._keys.secret(name)], secrets.token_bytes(32)))
        assert isinstance(value, bytes)
        return value

    async def delete(self, key: Key, *, with_events: bool = True) -> int:
        tenant, name = names_of(key)
        if with_events:
            await self._records.delete_events(tenant, name)
        return await self._delete(tenant, [name])

    async def delete_tenant(self, tenant: str, *, with_events: bool = True) -> int:
        owner = name_bytes(tenant)
        count = await self._delete_all(owner, ("ZRANGE", self._keys.conversations(owner), 0, AT_ONCE - 1))
        await self._records.delete_tenant(owner)
        if with_events:
            await self._connection.trip(("UNLINK", self._keys.events(owner)), ("ZREM", self._keys.tenants, owner))
        return count

    async def sweep(self, older_than: float) -> int:
        (tenants,) = await self._connection.trip(("ZRANGE", self._keys.tenants, 0, -1))
        old = ("-inf", f"({older_than}", "LIMIT", 0, AT_ONCE)
        count = 0
        for tenant in tenants:
            await self._records.sweep(tenant, older_than)
            count += await self._delete_all(tenant, ("ZRANGEBYSCORE", self._keys.conversations(tenant), *old))
        return count

    async def trim(self, limit: int) -> tuple[int, int] | None:
        held = await self._measured()
        if held is None:
            return None
        return await trimmed(held.total(), limit, held, self._oldest, lambda names: self._delete(names[0], names[1:]))

    async def _measured(self) -> Counter[bytes] | None:
        """About how many bytes each tenant holds; None where a replica has looked a moment ago."""
        (is_ours,) = await self._connection.trip(("SET", self._keys.measured, 1, "NX", "EX", _PAUSE))
        if not is_ours:
            return None
        (tenants,) = await self._connection.trip(("ZRANGE", self._keys.tenants, 0, -1))
        held: Counter[bytes] = Counter()
        for tenant in tenants:
            start, names = 0, [b""]
            while names:
                stop = start + AT_ONCE - 1
                (names,) = await self._connection.trip(("ZRANGE", self._keys.conversations(tenant), start, stop))
                held[tenant] += sum(size for _, size in await self._sizes(tenant, names))
                start += AT_ONCE
        return held

    async def _oldest(self, tenant: bytes) -> Sequence[tuple[bytes, int]]:
        (names,) = await self._connection.trip(("ZRANGE", self._keys.conversations(tenant), 0, _FEW - 1))
        return await self._sizes(tenant, names)

    async def _sizes(self, tenant: bytes, names: Sequence[bytes]) -> Sequence[tuple[bytes, int]]:
        commands: list[Command] = [_SIZE.on(self._keys.conversation(tenant, name)) for name in names]
        sizes = await self._connection.trip(*commands) if commands else []
        return [(name, int(size)) for name, size in zip(names, sizes, strict=True)]

    async def _delete_all(self, tenant: bytes, command: Command) -> int:
        """Delete the conversations that the command answers with, until there are none."""
        count = 0
        while names := (await self._connection.trip(command))[0]:
            count += await self._delete(tenant, names)
        return count

    async def _delete(self, tenant: bytes, names: Sequence[bytes]) -> int:
        """The indexes before the conversations: what is written meanwhile is found again."""
        for name in names:
            await self._records.unindex(tenant, name)
        for index in (self._keys.conversations(tenant), self._keys.billed(tenant, "conversations")):
            await self._connection.trip(("ZREM", index, *names))
        commands = [("UNLINK", *self._keys.conversation(tenant, name)) for name in names]
        marks = [("UNLINK", self._keys.mark(None, tenant, name)) for name in names]
        return sum(map(bool, (await self._connection.trip(*commands, *marks))[: len(names)]))

    @property
    def _probe(self) -> Command:
        """Fails where nothing can be written."""
        return "SET", self._keys.ready, 1, "PX", 60_000
