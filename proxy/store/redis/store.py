"""The shared store: Redis or Valkey, one server, Sentinel or a cluster. `redis_url` says how they are named.

Laws
  Each operation is one round trip; only what nobody can read costs a second one, and what people ask for (an original
  of any conversation, to forget) a few.
  A conversation lives in keys of one hash tag, and so in one slot: `steps`, a hash with fields for each step,
  `summaries`, a hash with a field for each beginning, `ages`, when they were last used, `originals`, `leases` and
  `spent`. A request loads the fields of its own path and no others, however many share the conversation's name. Steps
  and summaries that are not used for the time to live go, and so does the whole.
  The indexes (a tenant's conversations, the tenants, the conversations that keep an original) are sorted by last write.
  They stand in other slots, as a tenant's events do, are written in the same trip, and hold nothing that a request
  needs.
"""

import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from operator import itemgetter
from typing import Any, TypeVar

from policies.model.edits import Insert
from policies.model.memory import Memory, StepRecord
from policies.model.summary_record import Kind, SummaryCost, SummaryRecord
from proxy.config.keyring import Keyring
from proxy.store import INSERTS, LONGEST, SUMMARIES, Event, Key, Leaf, Lease, Shelf, StoreTrouble, serialization
from proxy.store.codec import Codec, place
from proxy.store.redis import scripts as lua
from proxy.store.redis.events import Events
from proxy.store.redis.keys import Keys
from proxy.store.redis.link import Link
from proxy.store.redis.script import Argument, Command, Script
from proxy.store.redis.texts import Leaves
from proxy.store.redis.url import Address, address
from proxy.store.serialization import name_bytes

_AT_ONCE = 200
"""Originals or conversations in one trip."""
_LETTERS: Mapping[Kind, str] = {"compaction": "c", "history": "h", "digest": "c"}
_ENTRY = re.compile(rb"(\d{1,9}):(\d{1,9}):")

T = TypeVar("T")
_Names = tuple[bytes, bytes]


def from_url(url: str, *, patience: float = 0.05, keyring: Keyring | None = None) -> "RedisStore":
    """See `redis_url`. Raises ValueError."""
    return RedisStore(address(url), patience=patience, keyring=keyring)


class RedisStore:
    """A Store in Redis; see the contract for what each method promises."""

    def __init__(
        self,
        where: Address,
        *,
        patience: float = 0.05,
        clock: Callable[[], float] = time.time,
        keyring: Keyring | None = None,
    ) -> None:
        self._keys = Keys(where.prefix)
        self._ttl = where.ttl
        self._clock = clock
        self._link = Link(where, patience)
        self._codec = self._read = Codec(keyring)
        self._events = Events(self._link, self._keys, self._ttl, self._codec)
        self._leaves = Leaves(self._link, self._keys, self._ttl, self._codec, clock)

    @property
    def shared(self) -> bool:
        return True

    @property
    def misses(self) -> int:
        return self._codec.misses + self._link.misses

    async def open(self) -> None:
        await self._link.open(self._probe)

    async def close(self) -> None:
        await self._link.close()

    async def ready(self) -> bool:
        try:
            await self._link.trip(self._probe)
        except StoreTrouble:
            return False
        return True

    async def memory(self, key: Key, anchors: Sequence[str]) -> Memory:
        if not anchors:
            return Memory()
        names = _names(key)
        there = self._keys.place(*names)
        asked = lua.framed([name_bytes(anchor) for anchor in anchors])
        question = lua.READ.on((there.steps, there.ages, there.summaries), self._clock(), *asked)
        ((lengths, found),) = await self._link.trip(question)
        steps: dict[str, StepRecord] = {}
        inserts: dict[str, tuple[Insert, ...]] = {}
        summaries: list[tuple[int, SummaryRecord]] = []
        for number, (decision, sent, at, behind, made) in lua.fields(lengths, found):
            anchor = anchors[number]
            if decision is not None and (record := self._step(names, anchor, decision, sent, at)) is not None:
                steps[anchor] = record
            if behind is not None and (replies := self._inserts(names, anchor, behind)):
                inserts[anchor] = replies
            if made is not None:
                summaries += self._summaries(names, anchor, made)
        return Memory(steps, inserts, _ordered(summaries))

    async def remember(self, key: Key, record: StepRecord) -> None:
        await self.claim(key, record)

    async def claim(self, key: Key, record: StepRecord) -> StepRecord:
        names, anchor = _names(key), record.anchor
        row = await self._keep(key, record)
        won = self._step(names, anchor, *row)
        if won is not None and self._codec.is_newest(row[0]):
            return won
        # Nobody can follow what nobody can read: the next writer is the first.
        steps, decision = self._keys.place(*names).steps, self._decision(names, won or record)
        await self._link.trip(lua.MEND.on([steps], b"d" + name_bytes(anchor), row[0], decision))
        return won or self._step(names, anchor, *await self._keep(key, record)) or record

    async def insert(self, key: Key, insert: Insert) -> None:
        after = name_bytes(insert.after)
        content = self._codec.seal(place("insert", *_names(key), after), serialization.insert_bytes(insert))
        await self._write(key, lua.INSERT, after, name_bytes(insert.reply), content, INSERTS)

    async def keep_originals(self, key: Key, originals: Mapping[str, str]) -> None:
        names = tenant, name = _names(key)
        there = self._keys.place(tenant, name)
        rows = ((name_bytes(ref), self._original(names, ref, text)) for ref, text in originals.items())
        for some in _some(rows):
            keep = lua.KEEP_ORIGINALS.on(there.keys, self._ttl, *chain.from_iterable(some))
            index = [self._note(self._keys.kept(tenant, ref), name) for ref, _ in some]
            others, *_ = await self._link.trip(keep, *self._noted(tenant, name), *index)
            new = dict(some)
            mended = ((ref, old, self._kept(names, ref, old, new[ref])) for ref, old in others)
            await self._several(lua.MEND.on([there.originals], *row) for row in mended if row[1] != row[2])

    async def original(self, tenant: str, ref: str, conversation: str | None) -> Mapping[str, str]:
        owner, text = name_bytes(tenant), name_bytes(ref)
        if conversation is None:
            (names,) = await self._link.trip(("ZRANGE", self._keys.kept(owner, text), 0, -1))
        else:
            names = [name_bytes(conversation)]
        rows = await self._several(("HGET", self._keys.place(owner, name).originals, text) for name in names)
        found: dict[str, str] = {}
        for name, row in zip(names, rows, strict=True):
            kept = self._codec.opened(place("original", owner, name, text), partial(serialization.original, ref), row)
            if kept is not None and (named := self._codec(serialization.name, name)) is not None:
                found[named] = kept
        return found

    async def keep_leaves(self, key: Key, shelf: Shelf, leaves: Sequence[Leaf], most: int) -> None:
        names = _names(key)
        await self._leaves.keep(names, shelf, leaves, most, self._noted(*names))

    async def leaves(self, key: Key, shelf: Shelf) -> Sequence[Leaf]:
        return await self._leaves.listed(_names(key), shelf)

    async def texts(self, key: Key, shelf: Shelf, names: Sequence[str]) -> Mapping[str, str]:
        return await self._leaves.texts(_names(key), shelf, names)

    async def holders(self, tenant: str, name: str) -> Sequence[str]:
        return await self._leaves.holders(name_bytes(tenant), name)

    async def put_summary(self, key: Key, record: SummaryRecord, lease: Lease | None = None) -> bool:
        first, field = name_bytes(record.first), name_bytes(_LETTERS[record.kind] + record.first)
        id = name_bytes(record.id)
        row = (id, self._codec.seal(place("summary", *_names(key), id), serialization.summary_bytes(record)), SUMMARIES)
        fence = () if lease is None else (name_bytes(lease.name), lease.token)
        return bool(await self._write(key, lua.PUT_SUMMARY, first, field, *row, *fence))

    async def summaries(self, key: Key) -> Sequence[SummaryRecord]:
        names = _names(key)
        (rows,) = await self._link.trip(("HGETALL", self._keys.place(*names).summaries))
        found: list[tuple[int, SummaryRecord]] = []
        for field, row in rows.items():
            if field != b"n" and (first := self._read(serialization.name, field[1:])) is not None:
                found += self._summaries(names, first, row)
        return _ordered(found)

    async def lease(self, key: Key, name: str, seconds: float) -> Lease | None:
        tenant, conversation = _names(key)
        asked = (name_bytes(name), min(seconds, LONGEST), LONGEST, secrets.token_hex(16))
        command = lua.LEASE.on([self._keys.place(tenant, conversation).leases], self._ttl, *asked)
        (token, spoilt), *_ = await self._link.trip(command, *self._noted(tenant, conversation))
        self._read.misses += spoilt
        return Lease(name, int(token)) if token else None

    async def release(self, key: Key, lease: Lease) -> None:
        leases = self._keys.place(*_names(key)).leases
        await self._link.trip(lua.RELEASE.on([leases], name_bytes(lease.name), lease.token))

    async def spend(self, key: Key, kind: str, spent: SummaryCost) -> None:
        tenant, conversation = _names(key)
        sums = (spent.calls, spent.prompt, spent.cached, spent.written, spent.completion, spent.dollars)
        row = (secrets.token_hex(16), b"k" + name_bytes(kind), *sums)
        command = lua.SPEND.on([self._keys.place(tenant, conversation).spent], self._ttl, *row)
        spoilt, *_ = await self._link.trip(command, *self._noted(tenant, conversation))
        self._read.misses += spoilt

    async def spent(self, key: Key) -> Mapping[str, SummaryCost]:
        (rows,) = await self._link.trip(("HGETALL", self._keys.place(*_names(key)).spent))
        found = (self._read(_spent, field, row) for field, row in rows.items() if field != b"n")
        return dict(kept for kept in found if kept is not None)

    async def note(self, tenant: str, event: Event) -> None:
        owner = name_bytes(tenant)
        await self._link.trip(self._events.noting(owner, event), self._note(self._keys.tenants, owner))

    async def events(self, tenant: str | None, conversation: str | None, most: int) -> Sequence[tuple[str, Event]]:
        wanted = None if conversation is None else name_bytes(conversation)
        if tenant is None:
            (owners,) = await self._link.trip(("ZRANGE", self._keys.tenants, 0, -1))
        else:
            owners = [name_bytes(tenant)]
        return await self._events.newest(owners, wanted, most)

    async def delete(self, key: Key) -> int:
        tenant, name = _names(key)
        await self._events.forget(tenant, [name])
        return await self._forget(tenant, [name])

    async def delete_tenant(self, tenant: str) -> int:
        owner = name_bytes(tenant)
        gone = await self._forget_all(owner, ("ZRANGE", self._keys.conversations(owner), 0, _AT_ONCE - 1))
        left = (self._keys.events(owner), *self._keys.index("artifact", owner, b""))
        await self._link.trip(("ZREM", self._keys.tenants, owner), *(("UNLINK", each) for each in left))
        return gone

    async def sweep(self, older_than: float) -> int:
        (tenants,) = await self._link.trip(("ZRANGE", self._keys.tenants, 0, -1))
        old = ("-inf", f"({older_than}", "LIMIT", 0, _AT_ONCE)
        gone = 0
        for tenant in tenants:
            await self._events.trim(tenant, older_than)
            await self._leaves.trim(tenant, older_than)
            gone += await self._forget_all(tenant, ("ZRANGEBYSCORE", self._keys.conversations(tenant), *old))
        return gone

    async def secret(self, name: str) -> bytes:
        made = lua.MADE_ONCE.on([self._keys.secret(name)], secrets.token_bytes(32))
        (value,) = await self._link.trip(made)
        assert isinstance(value, bytes)
        return value

    async def _keep(self, key: Key, record: StepRecord) -> list[Any]:
        """Write what is not there; the row as it then stands."""
        decision, sent = self._decision(_names(key), record), serialization.sent_bytes(record.sent)
        row: list[Any] = await self._write(key, lua.KEEP, name_bytes(record.anchor), decision, sent or b"", record.at)
        return row

    async def _write(self, key: Key, script: Script, *arguments: Argument) -> Any:
        """A script on the conversation, and the note of it in the indexes."""
        tenant, name = _names(key)
        written = script.on(self._keys.place(tenant, name).keys, self._ttl, self._clock(), *arguments)
        return (await self._link.trip(written, *self._noted(tenant, name)))[0]

    def _noted(self, tenant: bytes, name: bytes) -> tuple[Command, Command]:
        return self._note(self._keys.conversations(tenant), name), self._note(self._keys.tenants, tenant)

    def _note(self, index: str, member: bytes) -> Command:
        return lua.NOTE.on([index], self._ttl, self._clock(), member)

    async def _forget_all(self, tenant: bytes, question: Command) -> int:
        """What the question names, until it names nothing."""
        gone = 0
        while names := (await self._link.trip(question))[0]:
            gone += await self._forget(tenant, names)
        return gone

    async def _forget(self, tenant: bytes, names: Sequence[bytes]) -> int:
        """The indexes before the conversations: who writes meanwhile is found again."""
        places = [self._keys.place(tenant, name) for name in names]
        refs = await self._link.trip(*(("HKEYS", place.originals) for place in places))
        named = ((name, ref) for name, kept in zip(names, refs, strict=True) for ref in kept)
        await self._several(("ZREM", self._keys.kept(tenant, ref), name) for name, ref in named)
        await self._leaves.forget(tenant, names)
        await self._link.trip(("ZREM", self._keys.conversations(tenant), *names))
        gone = await self._link.trip(*(("UNLINK", *place.keys) for place in places))
        return sum(map(bool, gone))

    async def _several(self, commands: Iterator[Command]) -> list[Any]:
        """As many trips as they need."""
        return [reply for some in _some(commands) for reply in await self._link.trip(*some)]

    def _decision(self, names: _Names, record: StepRecord) -> bytes:
        there = place("decision", *names, name_bytes(record.anchor))
        return self._codec.seal(there, serialization.decision_bytes(record))

    def _step(self, names: _Names, anchor: str, decision: object, sent: object, at: object) -> StepRecord | None:
        """The record of a step, or what can be read of it; what cannot is a miss."""
        there = place("decision", *names, name_bytes(anchor))
        decided = self._codec.opened(there, partial(serialization.decision, anchor), decision)
        if decided is None:
            return None
        when = self._read(_seconds, at)
        return replace(decided, sent=self._read(serialization.sent, sent), at=when or 0.0)

    def _inserts(self, names: _Names, anchor: str, row: bytes) -> tuple[Insert, ...]:
        """What stands behind the replies to a step; what cannot be read is a miss."""
        there, read = place("insert", *names, name_bytes(anchor)), partial(serialization.insert, anchor)
        found = (self._codec.opened(there, read, content) for _, content in self._entries(row))
        return tuple(insert for insert in found if insert is not None)

    def _summaries(self, names: _Names, first: str, row: bytes) -> Iterator[tuple[int, SummaryRecord]]:
        """The summaries of what begins so, each with its number; what cannot be read is a miss."""
        for name, content in self._entries(row):
            if (numbered := self._read(_numbered, name)) is not None:
                number, id = numbered
                read = partial(serialization.summary, id, first)
                if (made := self._codec.opened(place("summary", *names, name_bytes(id)), read, content)) is not None:
                    yield number, made

    def _original(self, names: _Names, ref: str, text: str) -> bytes:
        return self._codec.seal(place("original", *names, name_bytes(ref)), serialization.original_bytes(ref, text))

    def _kept(self, names: _Names, ref: bytes, there: bytes, new: bytes) -> bytes:
        """The original that stands here from now on."""
        read = partial(serialization.original, serialization.name(ref))
        return self._codec.kept(place("original", *names, ref), read, there, new)

    def _entries(self, row: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The names and records of a row; where it breaks off is a miss."""
        at = 0
        while at < len(row):
            entry = _ENTRY.match(row, at)
            if entry is None:
                self._read.misses += 1
                return
            start = entry.end() + int(entry[1])
            at = start + int(entry[2])
            yield row[entry.end() : start], row[start:at]

    @property
    def _probe(self) -> Command:
        """Fails where nothing can be written."""
        return "SET", self._keys.ready, 1, "PX", 60_000


def _names(key: Key) -> _Names:
    return name_bytes(key.tenant), name_bytes(key.conversation)


def _numbered(name: bytes) -> tuple[int, str]:
    """The number of a summary, and its id. Raises UnreadableError, UnicodeDecodeError."""
    number, _, id = name.partition(b" ")
    if not number.isdigit():
        raise serialization.UnreadableError("it has no number")
    return int(number), serialization.name(id)


def _ordered(numbered: list[tuple[int, SummaryRecord]]) -> tuple[SummaryRecord, ...]:
    """As they were kept."""
    return tuple(record for _, record in sorted(numbered, key=itemgetter(0)))


def _spent(kind: bytes, row: bytes) -> tuple[str, SummaryCost]:
    """What was spent, and for what. Raises UnreadableError, UnicodeDecodeError."""
    calls, prompt, cached, written, completion, dollars = map(float, lua.unsealed(kind, row).split())
    return serialization.name(kind[1:]), SummaryCost(
        int(calls), int(prompt), int(cached), int(written), int(completion), dollars
    )


def _seconds(stored: object) -> float:
    """Raises UnreadableError."""
    try:
        return float(str(stored, "ascii")) if isinstance(stored, bytes) else 0.0
    except ValueError as error:
        raise serialization.UnreadableError("it is no time") from error


def _some(rows: Iterator[T]) -> Iterator[list[T]]:
    """A few of them, again and again."""
    return iter(lambda: list(islice(rows, _AT_ONCE)), [])
