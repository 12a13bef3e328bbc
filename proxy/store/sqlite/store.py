"""The embedded store: one SQLite file, shared by the workers of one machine.

Laws
  Each operation is one statement that commits by itself: who leaves half way leaves nothing half done. Only what stands
  for itself (an original, an event, what has not been used for the time to live) is written or forgotten a few rows at
  a time.
  What was not written for the time to live goes by itself, while the store is open.
"""

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from policies.model.edits import Insert
from policies.model.memory import Memory, StepRecord
from policies.model.summary_record import SummaryCost, SummaryRecord
from proxy.config.keyring import Keyring
from proxy.store import EVENTS, LONGEST, Event, Key, Leaf, Lease, Shelf, StoreTrouble, serialization
from proxy.store.codec import Codec, place
from proxy.store.parameters import TTL, parameters, ttl
from proxy.store.serialization import name_bytes
from proxy.store.sqlite import statements as sql
from proxy.store.sqlite.link import MEMORY as MEMORY
from proxy.store.sqlite.link import Link, Row
from proxy.store.sqlite.sweep import Sweeper

_Names = tuple[bytes, bytes]
_AT_ONCE = 1_000  # originals or leaves in one statement


def from_url(url: str, *, patience: float = 0.05, keyring: Keyring | None = None) -> "SqliteStore":
    """`sqlite:///relative.db`, `sqlite:////absolute.db`, `sqlite://` (in memory); behind a question mark `ttl=30d`.

    Raises ValueError.
    """
    rest, _, query = url[len("sqlite:") :].partition("?")
    seconds = ttl(parameters(query, {"ttl"}))
    file = rest.removeprefix("//")
    if file in ("", "/", f"/{MEMORY}"):
        return SqliteStore(MEMORY, patience=patience, ttl=seconds, keyring=keyring)
    if not rest.startswith("///") or "\0" in rest:
        raise ValueError(f"{url!r} names no file: write sqlite:///relative.db or sqlite:////absolute.db")
    return SqliteStore(file[1:], patience=patience, ttl=seconds, keyring=keyring)


class SqliteStore:
    """A Store in one file; see the contract for what each method promises."""

    def __init__(
        self,
        path: str = MEMORY,
        *,
        patience: float = 0.05,
        ttl: float = TTL,
        clock: Callable[[], float] = time.time,
        keyring: Keyring | None = None,
    ) -> None:
        self.path = path if path == MEMORY else str(Path(path).expanduser())
        self._clock = clock
        self._codec = self._read = Codec(keyring)
        self._link = Link(self.path, patience, {("kept", 5): self._kept, ("added", 3): self._added})
        self._sweeper = Sweeper(self._link, ttl, clock)

    @property
    def shared(self) -> bool:
        return self.path != MEMORY

    @property
    def misses(self) -> int:
        return self._codec.misses

    async def open(self) -> None:
        self._sweeper.start()
        await self._link.open()

    async def close(self) -> None:
        await self._sweeper.stop()
        await self._link.close()

    async def ready(self) -> bool:
        try:
            await self._link.run(sql.PROBE)
        except StoreTrouble:
            return False
        return True

    async def memory(self, key: Key, anchors: Sequence[str]) -> Memory:
        names = _names(key)
        rows = await self._link.run(sql.LOAD, json.dumps(list(anchors)), *names, *names, *names)
        steps: dict[str, StepRecord] = {}
        inserts: dict[str, tuple[Insert, ...]] = {}
        summaries: list[SummaryRecord] = []
        for table, _, name, *rest in sorted(rows, key=lambda row: row[:2]):
            at = str(name)
            if table == 0:
                if (record := self._step(names, at, *rest)) is not None:
                    steps[at] = record
            elif table == 1:
                behind = place("insert", *names, at.encode())
                if (insert := self._codec.opened(behind, partial(serialization.insert, at), rest[0])) is not None:
                    inserts[at] = (*inserts.get(at, ()), insert)
            elif (summary := self._summary(names, at, *rest[:2])) is not None:
                summaries.append(summary)
        return Memory(steps, inserts, tuple(summaries))

    async def remember(self, key: Key, record: StepRecord) -> None:
        await self.claim(key, record)

    async def claim(self, key: Key, record: StepRecord) -> StepRecord:
        names, anchor = _names(key), record.anchor
        row = await self._keep(names, record)
        won = self._step(names, anchor, *row)
        if won is not None and self._codec.is_newest(row[0]):
            return won
        # Nobody can follow what nobody can read: the next writer is the first.
        await self._link.run(sql.MEND, self._decision(names, won or record), *names, anchor, row[0])
        return won or self._step(names, anchor, *await self._keep(names, record)) or record

    async def insert(self, key: Key, insert: Insert) -> None:
        names = _names(key)
        content = self._codec.seal(
            place("insert", *names, name_bytes(insert.after)), serialization.insert_bytes(insert)
        )
        await self._link.run(sql.KEEP_INSERT, *names, insert.after, insert.reply, content, self._clock())

    async def keep_originals(self, key: Key, originals: Mapping[str, str]) -> None:
        names, refs, used = _names(key), list(originals), self._clock()
        for start in range(0, len(refs), _AT_ONCE):
            some = refs[start : start + _AT_ONCE]
            rows = ((*names, name_bytes(ref), self._original(names, ref, originals[ref]), used) for ref in some)
            await self._link.run(sql.keep_originals(len(some)), *chain.from_iterable(rows))

    async def original(self, tenant: str, ref: str, conversation: str | None) -> Mapping[str, str]:
        where = None if conversation is None else name_bytes(conversation)
        owner, name = name_bytes(tenant), name_bytes(ref)
        found: dict[str, str] = {}
        for holder, content in await self._link.run(sql.ORIGINAL, owner, name, where):
            if (named := self._read(serialization.name, holder)) is not None:
                there = place("original", owner, name_bytes(named), name)
                if (text := self._codec.opened(there, partial(serialization.original, ref), content)) is not None:
                    found[named] = text
        return found

    async def keep_leaves(self, key: Key, shelf: Shelf, leaves: Sequence[Leaf], most: int) -> None:
        names = _names(key)
        for start in range(0, len(leaves), _AT_ONCE):
            some = leaves[start : start + _AT_ONCE]
            # In a thread: texts may be long, and nobody waits for these.
            rows = await asyncio.to_thread(self._rows, names, shelf, some)
            await self._link.run(sql.keep_leaves(len(some)), *chain.from_iterable(rows))
        await self._link.exhaust(sql.TRIM[shelf], names[0], shelf, most, names[1])

    async def leaves(self, key: Key, shelf: Shelf) -> Sequence[Leaf]:
        names, found = _names(key), []
        for name, about in await self._link.run(sql.LEAVES, *names, shelf):
            told = self._codec.opened(place(f"about {shelf}", *names, str(name).encode()), serialization.about, about)
            if told is not None:
                found.append(Leaf(str(name), "", told))
        return found

    async def texts(self, key: Key, shelf: Shelf, names: Sequence[str]) -> Mapping[str, str]:
        whose = _names(key)
        rows = await self._link.run(sql.TEXTS, *whose, shelf, json.dumps(list(names)))
        return await asyncio.to_thread(self._texts, whose, shelf, rows)

    async def holders(self, tenant: str, name: str) -> Sequence[str]:
        rows = await self._link.run(sql.HOLDERS, name_bytes(tenant), name)
        found = (self._read(serialization.name, holder) for (holder,) in rows)
        return [holder for holder in found if holder is not None]

    async def put_summary(self, key: Key, record: SummaryRecord, lease: Lease | None = None) -> bool:
        names = _names(key)
        content = self._codec.seal(place("summary", *names, name_bytes(record.id)), serialization.summary_bytes(record))
        row = (*names, record.id, record.kind, record.first, content, self._clock())
        name, token = (None, None) if lease is None else (name_bytes(lease.name), lease.token)
        return bool(await self._link.run(sql.KEEP_SUMMARY, *row, name, *names, name, token))

    async def summaries(self, key: Key) -> Sequence[SummaryRecord]:
        names = _names(key)
        rows = await self._link.run(sql.SUMMARIES, *names)
        found = (self._summary(names, str(id), first, content) for id, first, content in rows)
        return [summary for summary in found if summary is not None]

    async def lease(self, key: Key, name: str, seconds: float) -> Lease | None:
        now = self._clock()
        # Higher than any before, even where the row of those is gone.
        row = (*_names(key), name_bytes(name), int(now * 1e6), now + min(seconds, LONGEST), now)
        rows = await self._link.run(sql.LEASE, *row, LONGEST)
        return Lease(name, int(str(rows[0][0]))) if rows else None

    async def release(self, key: Key, lease: Lease) -> None:
        await self._link.run(sql.RELEASE, *_names(key), name_bytes(lease.name), lease.token)

    async def spend(self, key: Key, kind: str, spent: SummaryCost) -> None:
        row = (*_names(key), name_bytes(kind), serialization.spent_bytes(kind, spent), self._clock())
        await self._link.run(sql.SPEND, *row)

    async def spent(self, key: Key) -> Mapping[str, SummaryCost]:
        rows = await self._link.run(sql.SPENT, *_names(key))
        found = (self._read(_spent, *row) for row in rows)
        return dict(kept for kept in found if kept is not None)

    async def note(self, tenant: str, event: Event) -> None:
        names = (name_bytes(tenant), name_bytes(event.conversation))
        await self._link.run(sql.NOTE, *names, serialization.event_bytes(event), self._clock())

    async def events(self, tenant: str | None, conversation: str | None, most: int) -> Sequence[tuple[str, Event]]:
        wanted = [name_bytes(name) for name in (tenant, conversation) if name is not None]
        statement = sql.events(tenant=tenant is not None, conversation=conversation is not None)
        rows = await self._link.run(statement, *wanted, max(0, min(most, EVENTS)))
        found = (self._read(_event, *row) for row in reversed(rows))
        return [each for each in found if each is not None]

    async def delete(self, key: Key) -> int:
        for statement in sql.DELETE_FIRST:
            await self._link.exhaust(statement, *_names(key))
        return len(await self._link.run(sql.DELETE, *_names(key)))

    async def delete_tenant(self, tenant: str) -> int:
        for statement in sql.DELETE_TENANT_FIRST:
            await self._link.exhaust(statement, name_bytes(tenant))
        return len(await self._link.run(sql.DELETE_TENANT, name_bytes(tenant)))

    async def sweep(self, older_than: float) -> int:
        return await self._sweeper.sweep(older_than)

    async def secret(self, name: str) -> bytes:
        ((value,),) = await self._link.run(sql.MADE_ONCE, name, secrets.token_bytes(32))
        assert isinstance(value, bytes)
        return value

    async def _keep(self, names: _Names, record: StepRecord) -> Row:
        """Write what is not there; the row as it then stands."""
        decision, sent = self._decision(names, record), serialization.sent_bytes(record.sent)
        (row,) = await self._link.run(sql.KEEP, *names, record.anchor, decision, sent, record.at, self._clock())
        return row

    def _decision(self, names: _Names, record: StepRecord) -> bytes:
        there = place("decision", *names, name_bytes(record.anchor))
        return self._codec.seal(there, serialization.decision_bytes(record))

    def _step(self, names: _Names, anchor: str, decision: object, sent: object, at: object) -> StepRecord | None:
        """The record of a row, or what can be read of it; what cannot is a miss."""
        there = place("decision", *names, name_bytes(anchor))
        decided = self._codec.opened(there, partial(serialization.decision, anchor), decision)
        if decided is None:
            return None
        # RETURNING gives a whole number of a REAL column as an int.
        when = float(at) if isinstance(at, int | float) else 0.0
        return replace(decided, sent=self._read(serialization.sent, sent), at=when)

    def _summary(self, names: _Names, id: str, first: object, content: object) -> SummaryRecord | None:
        read = partial(serialization.summary, id, str(first))
        return self._codec.opened(place("summary", *names, name_bytes(id)), read, content)

    def _leaf(self, names: _Names, shelf: Shelf, leaf: Leaf) -> Row:
        """The row of a leaf."""
        name = name_bytes(leaf.name)
        about = self._codec.seal(place(f"about {shelf}", *names, name), serialization.about_bytes(leaf.about))
        content = self._codec.seal(place(shelf, *names, name), serialization.text_bytes(leaf.text))
        return (*names, shelf, leaf.name, len(about) + len(content), self._clock(), about, content)

    def _rows(self, names: _Names, shelf: Shelf, leaves: Sequence[Leaf]) -> list[Row]:
        return [self._leaf(names, shelf, leaf) for leaf in leaves]

    def _texts(self, names: _Names, shelf: Shelf, rows: Sequence[Row]) -> Mapping[str, str]:
        """The texts of these rows, as far as they can be read."""
        found: dict[str, str] = {}
        for name, content in rows:
            there = place(shelf, *names, str(name).encode())
            if (text := self._codec.opened(there, serialization.text, content)) is not None:
                found[str(name)] = text
        return found

    def _original(self, names: _Names, ref: str, text: str) -> bytes:
        return self._codec.seal(place("original", *names, name_bytes(ref)), serialization.original_bytes(ref, text))

    def _kept(self, tenant: bytes, conversation: bytes, ref: bytes, there: object, new: bytes) -> bytes:
        """The original that stands here from now on. Asked by SQLite."""
        read = partial(serialization.original, serialization.name(ref))
        return self._codec.kept(place("original", tenant, conversation, ref), read, there, new)

    def _added(self, kind: bytes, there: object, more: bytes) -> bytes:
        """Two sums as one; what is there and cannot be read is a miss, and as good as nothing."""
        both = [self._read(_spent, kind, each) for each in (there, more)]
        name, *_ = (each[0] for each in both if each is not None)
        return serialization.spent_bytes(name, sum((each[1] for each in both if each is not None), SummaryCost()))


def _names(key: Key) -> _Names:
    return name_bytes(key.tenant), name_bytes(key.conversation)


def _spent(kind: object, content: object) -> tuple[str, SummaryCost]:
    """What was spent, and for what. Raises UnreadableError, UnicodeDecodeError."""
    name = serialization.name(kind)
    return name, serialization.spent(name, content)


def _event(tenant: object, conversation: object, content: object) -> tuple[str, Event]:
    """An event, and its tenant. Raises UnreadableError, UnicodeDecodeError."""
    return serialization.name(tenant), serialization.event(serialization.name(conversation), content)
