"""The shared store: Redis or Valkey, one server, Sentinel or a cluster. `url` says how they are named.

Laws
  Each operation is one round trip; only what cannot be read costs a second one, and what people ask for (texts,
  deletions) a few.
  A conversation lives in keys of one hash tag, and so in one slot: `steps`, a hash with fields for each step,
  `summaries`, a hash with a field for each beginning, `ages`, when they were last used, `leases`, `spent`,
  `snapshots`, `owners`, and the texts. A request loads the fields of its own path and no others, however many share the
  conversation's name. Steps and summaries that are not used for the time to live go, and so does the whole.
  The indexes (a tenant's conversations, the tenants, the conversations that have a text) are sorted by last write.
  They stand in other slots, as a tenant's events do (a capped stream, in the order in which the server took them), are
  written in the same trip, and hold nothing that a request needs.
"""

import math
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, replace
from hashlib import sha256
from io import BytesIO
from itertools import islice
from operator import itemgetter
from struct import iter_unpack
from typing import Any

from policies.model.edits import Insert
from policies.model.memory import Memory, StepRecord
from policies.model.summary_record import Kind, SummaryCost, SummaryRecord
from proxy.config.keyring import Keyring
from proxy.memory import (
    DELETIONS,
    EVENTS,
    INSERTS,
    LEASE_SECONDS,
    PURSE_SECONDS,
    SNAPSHOTS,
    SUMMARIES,
    Announce,
    Event,
    Key,
    Lease,
    Purse,
    Snapshot,
    StoreTrouble,
    serialization,
)
from proxy.memory.redis import scripts
from proxy.memory.redis.keys import RedisKeys
from proxy.memory.redis.owners import RedisOwners, numbered_id
from proxy.memory.redis.purses import SPEND, TAKE
from proxy.memory.redis.scripts import Argument, Command, Script
from proxy.memory.redis.texts import AT_ONCE
from proxy.memory.redis.url import Address, address
from proxy.memory.serialization import Names, name_bytes, names_of, readable

_PUT_SNAPSHOT = Script(
    """-- KEYS: snapshots. ARGV: ttl, name, record, the name whose snapshot goes, most
local names = {ARGV[2]}
for name in string.gmatch(redis.call('HGET', KEYS[1], 'n') or '', '%S+') do
    if name == ARGV[4] or (name ~= ARGV[2] and #names >= tonumber(ARGV[5])) then
        redis.call('HDEL', KEYS[1], name)
    elseif name ~= ARGV[2] then
        names[#names + 1] = name
    end
end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[3], 'n', table.concat(names, ' '))
redis.call('EXPIRE', KEYS[1], ARGV[1])"""
)
"""Puts one into a hash beside the steps of its conversation, in a field that is named by a digest of its fingerprint
and anchor. `n` is the names of all, the newest first."""
_LETTERS: Mapping[Kind, str] = {"compaction": "c", "history": "h", "digest": "c"}
_EVENTS_AT_ONCE = 500
"""Events that are looked at in one trip."""
_Moment = tuple[int, int]
"""When the server took an event: its milliseconds, and a number within them."""


def from_url(
    url: str, *, patience: float = 0.05, keyring: Keyring | None = None, announce: Announce = lambda _: None
) -> "RedisStore":
    """See `url`. Raises ValueError."""
    return RedisStore(address(url), patience=patience, keyring=keyring, announce=announce)


class RedisStore(RedisOwners, RedisKeys):
    """A Store in Redis; see the contract for what each method promises."""

    def __init__(
        self,
        where: Address,
        *,
        patience: float = 0.05,
        clock: Callable[[], float] = time.time,
        keyring: Keyring | None = None,
        announce: Announce = lambda _: None,
    ) -> None:
        super().__init__(where, patience, clock, keyring)
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

    async def memory(self, key: Key, anchors: Sequence[str]) -> Memory:
        if not anchors:
            return Memory()
        names = names_of(key)
        keys = self._keys.conversation(*names)
        framed = scripts.framed([name_bytes(anchor) for anchor in anchors])
        command = scripts.READ.on((keys.steps, keys.ages, keys.summaries), self._clock(), *framed)
        ((lengths, values),) = await self._connection.trip(command)
        steps: dict[str, StepRecord] = {}
        inserts: dict[str, tuple[Insert, ...]] = {}
        numbered: list[tuple[int, SummaryRecord]] = []
        for number, (decision, sent, at, replies, summaries) in scripts.fields(lengths, values):
            anchor = anchors[number]
            if decision is not None and (record := self._codec.step(names, anchor, decision, sent, at)) is not None:
                steps[anchor] = record
            entries = () if replies is None else self._entries(replies)
            if exchanges := readable(self._codec.insert(names, anchor, content) for _, content in entries):
                inserts[anchor] = tuple(exchanges)
            if summaries is not None:
                numbered += self._summaries(names, anchor, summaries)
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
            await self._connection.trip(scripts.MEND.on([steps], b"d" + anchor, stored, decision))

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
        command = _PUT_SNAPSHOT.on([self._keys.conversation(*names).snapshots], self._ttl, *row)
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
                numbered += self._summaries(names, first, row)
        return _ordered(numbered)

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
        command = SPEND.on([self._keys.conversation(*names).spent], self._ttl, *row)
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
        (added, unreadable), *_ = await self._connection.trip(TAKE.on([key], *row), *notes)
        self._codec.misses += unreadable
        return bool(added)

    async def note(self, tenant: str, event: Event) -> None:
        owner = name_bytes(tenant)
        row = (secrets.token_hex(16), name_bytes(event.conversation), serialization.packed("event", event))
        command = scripts.NOTE_EVENT.on([self._keys.events(owner)], self._ttl, EVENTS, *row)
        await self._connection.trip(command, self._note(self._keys.tenants, owner))

    async def events(self, tenant: str | None, conversation: str | None, most: int) -> Sequence[tuple[str, Event]]:
        if tenant is None:
            (tenants,) = await self._connection.trip(("ZRANGE", self._keys.tenants, 0, -1))
            tenants = [each for each in tenants if each != DELETIONS.encode()]
        else:
            tenants = [name_bytes(tenant)]
        wanted = () if conversation is None else (name_bytes(conversation),)
        events: list[tuple[_Moment, str, Event]] = []
        for owner in tenants:
            if (name := self._codec.read(serialization.name, owner)) is not None:
                newest = self._newest_events(owner, wanted, min(most, EVENTS))
                events += [(moment, name, event) async for moment, event in newest]
        events.sort(key=itemgetter(0))
        return [(name, event) for _, name, event in events[-most:] if most > 0]

    async def delete(self, key: Key, *, with_events: bool = True) -> int:
        tenant, name = names_of(key)
        if with_events:
            await self._delete_events(tenant, name)
        return await self._delete(tenant, [name])

    async def delete_tenant(self, tenant: str, *, with_events: bool = True) -> int:
        owner = name_bytes(tenant)
        count = await self._delete_all(owner, ("ZRANGE", self._keys.conversations(owner), 0, AT_ONCE - 1))
        await self._delete_days(owner)
        left = [("UNLINK", key) for index in self._text_indexes(owner) for key in index]
        events = [("UNLINK", self._keys.events(owner)), ("ZREM", self._keys.tenants, owner)] if with_events else []
        await self._connection.trip(*left, *events)
        return count

    async def sweep(self, older_than: float) -> int:
        (tenants,) = await self._connection.trip(("ZRANGE", self._keys.tenants, 0, -1))
        old = ("-inf", f"({older_than}", "LIMIT", 0, AT_ONCE)
        count = 0
        for tenant in tenants:
            await self._trim_events(tenant, older_than)
            await self._trim_texts(tenant, older_than)
            count += await self._delete_all(tenant, ("ZRANGEBYSCORE", self._keys.conversations(tenant), *old))
        return count

    async def secret(self, name: str) -> bytes:
        (value,) = await self._connection.trip(scripts.PUT_ONCE.on([self._keys.secret(name)], secrets.token_bytes(32)))
        assert isinstance(value, bytes)
        return value

    async def _write(self, names: Names, script: Script, *arguments: Argument) -> Any:
        """The answer of a script on the conversation, which is noted in the indexes."""
        return (await self._connection.trip(self._script(names, script, *arguments), *self._noted(*names)))[0]

    def _script(self, names: Names, script: Script, *arguments: Argument) -> Command:
        return script.on(self._keys.conversation(*names), self._ttl, self._clock(), *arguments)

    async def _newest_events(
        self, tenant: bytes, wanted: Sequence[bytes], most: int
    ) -> AsyncIterator[tuple[_Moment, Event]]:
        """Of one tenant, and of the conversation that is wanted, if any; the newest first."""
        before, left = "+", most
        while before and left > 0:
            at_once = _EVENTS_AT_ONCE if wanted else min(left, _EVENTS_AT_ONCE)
            command = scripts.LIST_EVENTS.on([self._keys.events(tenant)], before, at_once, *wanted)
            ((last, lengths, parts),) = await self._connection.trip(command)
            before, rest = last and f"({last.decode()}", BytesIO(parts)
            for sizes in islice(iter_unpack(">3i", lengths), left):
                id, *row = map(rest.read, sizes)
                if (event := self._codec.read(serialization.event, *row)) is not None:
                    left -= 1
                    time, _, number = id.partition(b"-")
                    yield (int(time), int(number)), event

    async def _delete_events(self, tenant: bytes, conversation: bytes) -> None:
        after = "-"
        while after:
            command = scripts.DELETE_EVENTS.on([self._keys.events(tenant)], after, _EVENTS_AT_ONCE, conversation)
            (last,) = await self._connection.trip(command)
            after = last and f"({last.decode()}"

    async def _trim_events(self, tenant: bytes, older_than: float) -> None:
        """Delete those noted before this time."""
        since = f"{max(0, int(older_than * 1_000))}"
        await self._connection.trip(("XTRIM", self._keys.events(tenant), "MINID", since))

    def _summaries(self, names: Names, first: str, row: bytes) -> Iterator[tuple[int, SummaryRecord]]:
        """The summaries of one beginning, each with its number; what cannot be read is a miss."""
        for name, content in self._entries(row):
            if (numbered := self._codec.read(numbered_id, name)) is not None:
                summary = self._codec.summary(names, numbered[1], first, content)
                if summary is not None:
                    yield numbered[0], summary

    @property
    def _probe(self) -> Command:
        """Fails where nothing can be written."""
        return "SET", self._keys.ready, 1, "PX", 60_000


def _ordered(numbered: list[tuple[int, SummaryRecord]]) -> tuple[SummaryRecord, ...]:
    """In the order in which they were stored."""
    return tuple(record for _, record in sorted(numbered, key=itemgetter(0)))


def _spent(kind: bytes, row: bytes) -> tuple[str, SummaryCost]:
    """What was spent, and for what. Raises UnreadableRecordError, UnicodeDecodeError."""
    *counts, dollars = map(float, scripts.unsealed(kind, row).split())
    return serialization.name(kind[1:]), replace(SummaryCost(*map(int, counts)), dollars=dollars)


def _snapshot_field(fingerprint: str, anchor: str) -> str:
    """The name of a snapshot."""
    both = name_bytes(fingerprint), name_bytes(anchor)
    return sha256(b"".join(b"%d:%s" % (len(name), name) for name in both)).hexdigest()[:32]
