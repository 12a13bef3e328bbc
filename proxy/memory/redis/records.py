"""Rows for people and accounts in Redis. How each kind of them stands:

Texts, bills and owners stand with their conversation. A text's field is the first letter of its kind, and its name: in
`abouts` it holds `NUMBER SIZE ` and then what a list shows of it, where `n` is the last number; in `texts` it is the
text. `bills` holds bills by their ids, and `spent`, under `b`, their sums; under `k` and its kind it holds what
summaries have cost. Of each tenant and day a hash has a field for each labels and outcome of the prefix; beside it are
the ids of the bills that were added in the last hour. Sums are written as the names and values of those that are not 0.
The keys of the gateway are one hash that does not expire, each under `d` and its SHA-256; `n` is new with each change.
"""

import asyncio
import math
import re
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property, partial
from itertools import chain, repeat
from operator import itemgetter
from typing import Any, NamedTuple, cast

from msgspec import structs

from policies.model.summary_record import SummaryCost
from policies.money.bills import Arm, BillSums, ConversationRow
from proxy.memory import records, serialization
from proxy.memory.decisions import StoreTrouble
from proxy.memory.records import AT_ONCE, Change, DaySum, Kind, Rows, TextKind, TextRow, portions
from proxy.memory.redis.connection import Argument, Command, Keys, RedisPart, framed, open_row, seal_row
from proxy.memory.redis.scripts import GUARDED, INDEX, NOTE, NOTE_EVENT
from proxy.memory.serialization import Codec, Names, UnreadableRecordError, name_bytes, row_bytes

_IDS = 20_000
"""How many ids of bills that were added to a day stay."""
_HEAD = re.compile(rb"(\d{1,15}) (\d{1,15}) ")
_LETTERS = {records.BILL: b"", records.TOTAL: b"b", records.DAY: b"", records.KEY: b"d", records.SPENT: b"k"}

Stored = Mapping[bytes, Any]
"""Rows by name; None in the place of one that is to be deleted."""


class Note(NamedTuple):
    """A member of an index that is sorted by last write."""

    key: str
    seconds: int
    """How long it stays."""
    member: bytes
    at: float | None = None
    """When it was written; None: now."""


@dataclass(eq=False)
class Layout:
    """The rows of a kind in a place of a tenant: a conversation, or a day."""

    keys: Keys
    codec: Codec
    ttl: int
    now: float
    kind: Any
    tenant: bytes
    place: bytes

    def __post_init__(self) -> None:
        self.here = self.keys.conversation(self.tenant, self.place)

    def reads(self, names: Sequence[bytes] | None) -> list[Command]:
        """The commands that read the rows of these names; None: all."""
        raise NotImplementedError

    def rows(self, names: Sequence[bytes] | None, *replies: Any) -> Rows:
        """The rows, as these commands have answered."""
        raise NotImplementedError

    def writes(self, stored: Stored, there: Rows) -> list[Command]:
        """The commands that write them. `there`: the rows that were read."""
        raise NotImplementedError

    def notes(self, stored: Stored) -> list[Note]:
        """Members of indexes that name them."""
        return []

    def indexed(self, stored: Stored, there: Rows) -> tuple[list[Command], list[Command]]:
        """The commands that tell another slot of it, before it is written and after it."""
        return [], []


class TextLayout(Layout):
    """Texts; in other slots stand an index of those of a bounded kind, and the conversations that have a name."""

    kind: TextKind

    def reads(self, names: Sequence[bytes] | None) -> list[Command]:
        if names is None:
            return [("HGETALL", self.here.abouts)]
        heads: Command = ("HMGET", self.here.abouts, *map(self.field, names), "n")
        return [heads, self.content(names)] if self.kind.first_stays else [heads]

    def rows(self, names: Sequence[bytes] | None, *replies: Any) -> Rows:
        if names is None:
            fields = replies[0].items()
            heads = {field[1:]: _HEAD.match(row) for field, row in fields if field.startswith(self.field(b""))}
            self.codec.misses += sum(head is None for head in heads.values())
            numbered = ((int(head[1]), name, head) for name, head in heads.items() if head is not None)
            return Rows({name: _text_row(head) for _, name, head in sorted(numbered, key=itemgetter(0))})
        (*rows, last), *contents = replies
        there = Rows()
        there.last = int(last) if (last or b"").isdigit() else 0
        for name, row, content in zip(names, rows, contents[0] if contents else repeat(b""), strict=False):
            if row is not None:
                there[name] = _text_row(head, content or b"") if (head := _HEAD.match(row)) is not None else None
        return there

    def writes(self, stored: Stored, there: Rows) -> list[Command]:
        heads: list[Argument] = []
        contents: list[Argument] = []
        gone = [self.field(name) for name, row in stored.items() if row is None]
        for name, row in stored.items():
            if row is not None:
                contents += (self.field(name), row.content)
                if there.get(name) is None:
                    there.last += 1
                    heads += (self.field(name), b"%d %d %s" % (there.last, row.size, row.about))
        commands: list[Command] = [("HDEL", key, *gone) for key in (self.here.abouts, self.here.texts) if gone]
        commands += [("HSET", self.here.abouts, *heads, "n", there.last)] if heads else []
        commands += [("HSET", self.here.texts, *contents)] if contents else []
        return [*commands, *(("EXPIRE", key, self.ttl) for key in self.here)] if contents else commands

    def notes(self, stored: Stored) -> list[Note]:
        names = [name for name, row in stored.items() if row is not None and self.kind.by_name]
        return [Note(self.holders(self.field(name)), self.ttl, self.place) for name in names]

    def indexed(self, stored: Stored, there: Rows) -> tuple[list[Command], list[Command]]:
        new = [self.member(name, row.size) for name, row in stored.items() if row is not None]
        gone = [name for name, row in stored.items() if row is None and there.get(name) is not None]
        fields = map(self.field, gone if self.kind.by_name else ())
        after: list[Command] = [("ZREM", self.holders(field), self.place) for field in fields]
        if not self.kind.bounded_by:
            return [], after
        members = [self.member(name, there[name].size) for name in gone]
        return [self.index(add=new)] if new else [], [*after, *([self.index(remove=members)] if members else [])]

    def index(
        self,
        add: Sequence[bytes] = (),
        remove: Sequence[bytes] = (),
        since: float = -math.inf,
        limit: int = 2**53,
        most: int = 0,
    ) -> Command:
        """Add to the index, or remove from it. Answers with members that were stored before `since`, or are beyond the
        limit, of the oldest `most`."""
        keys = self.keys.text_index(self.kind, self.tenant, self.place)
        return INDEX.on(keys, self.ttl, self.now, since, limit, most, len(add), *add, *remove)

    def member(self, name: bytes, size: int) -> bytes:
        """A text as the index names it."""
        return b"%d %s %s" % (size, self.field(name), self.place)

    def drop(self, member: bytes) -> list[Command]:
        """The commands that delete a text which the index names so."""
        _, field, conversation = member.split(b" ", 2)
        there = self.keys.conversation(self.tenant, conversation)
        holders: list[Command] = [("ZREM", self.holders(field), conversation)] if self.kind.by_name else []
        return [("HDEL", there.abouts, field), ("HDEL", there.texts, field), *holders]

    def content(self, names: Sequence[bytes]) -> Command:
        """The command that reads the contents of these names."""
        return ("HMGET", self.here.texts, *map(self.field, names))

    def field(self, name: bytes) -> bytes:
        return self.kind.name[:1].encode() + name

    def holders(self, field: bytes) -> str:
        return self.keys.holders(self.tenant, field)


class HashLayout(Layout):
    """Rows in fields of a hash, whose names begin with the same letter."""

    @cached_property
    def key(self) -> str:
        if self.kind == records.DAY:
            return self.keys.billed_day(self.tenant, self.place)[0]
        if self.kind == records.KEY:
            return self.keys.gateway_keys
        return self.here.bills if self.kind == records.BILL else self.here.spent

    def reads(self, names: Sequence[bytes] | None) -> list[Command]:
        if names is None:
            return [("HGETALL", self.key)]
        count: list[Command] = [("HLEN", self.key)] if self.kind == records.DAY else []
        return [("HMGET", self.key, *(_LETTERS[self.kind] + name for name in names)), *count]

    def rows(self, names: Sequence[bytes] | None, *replies: Any) -> Rows:
        letter = _LETTERS[self.kind]
        stored: Iterable[tuple[bytes, bytes | None]] = zip(names or (), replies[0], strict=False)
        if names is None:
            fields = replies[0].items()
            stored = ((field[len(letter) :], row) for field, row in fields if field.startswith(letter))
        rows = Rows({name: self._value(name, row) for name, row in stored if row is not None})
        rows.count = lambda: replies[1]
        return rows

    def writes(self, stored: Stored, there: Rows) -> list[Command]:
        rows = [(_LETTERS[self.kind] + name, value) for name, value in stored.items()]
        gone = [name for name, value in rows if value is None]
        new = [part for name, value in rows if value is not None for part in (name, self._row(name, value))]
        commands: list[Command] = [("HDEL", self.key, *gone)] if gone else []
        commands += [("HSET", self.key, *new)] if new else []
        last: Command = ("EXPIRE", self.key, records.DAYS * 86_400 if self.kind == records.DAY else self.ttl)
        if self.kind == records.KEY:
            last = ("HSET", self.key, "n", secrets.token_hex(8))
        return [*commands, last] if commands else []

    def notes(self, stored: Stored) -> list[Note]:
        """Which conversation was billed when, and which days a tenant has."""
        if self.kind == records.TOTAL and stored[b""] is not None:
            return [Note(self.keys.billed(self.tenant, "conversations"), self.ttl, self.place, stored[b""].at)]
        if self.kind == records.DAY and stored:
            days = Note(self.keys.billed(self.tenant, "days"), records.DAYS * 86_400, self.place)
            return [days, Note(self.keys.billed_tenants, records.DAYS * 86_400, self.tenant)]
        return []

    def _value(self, name: bytes, row: bytes) -> Any:
        if self.kind == records.TOTAL:
            return self.codec.read(_conversation_row, self.tenant, self.place, row)
        if self.kind == records.DAY:
            return self.codec.read(_day_sum, self.tenant, self.place, name, row)
        if self.kind == records.SPENT:
            return self.codec.read(_cost, b"k" + name, row)
        return self.codec.row(self.kind, self.tenant, self.place, name, row)

    def _row(self, name: bytes, value: Any) -> bytes:
        if self.kind == records.TOTAL:
            head = f"{value.first_at!r} {value.at!r} {value.arm or '-'} {_pairs(value.sums)}\n".encode()
            return seal_row(name, head + serialization.packed("labels", value.labels, ""))
        if self.kind == records.SPENT:
            return seal_row(name, " ".join(map(repr, astuple(value))).encode())
        if self.kind == records.DAY:
            return seal_row(name, _pairs(value.sums).encode())
        return row_bytes(self.kind, name, value)


class OwnerLayout(Layout):
    """A set."""

    def reads(self, names: Sequence[bytes] | None) -> list[Command]:
        return [("SMEMBERS", self.here.owners)]

    def rows(self, names: Sequence[bytes] | None, *replies: Any) -> Rows:
        return Rows({owner: b"" for owner in replies[0] if names is None or owner in names})

    def writes(self, stored: Stored, there: Rows) -> list[Command]:
        changes = (("SADD" if owner is not None else "SREM", self.here.owners, name) for name, owner in stored.items())
        return [*changes, ("EXPIRE", self.here.owners, self.ttl)] if stored else []


class AddedLayout(Layout):
    """The ids of an hour, sorted by when they were added."""

    def __post_init__(self) -> None:
        self.key = self.keys.billed_day(self.tenant, self.place)[1]

    def reads(self, names: Sequence[bytes] | None) -> list[Command]:
        return [("ZMSCORE", self.key, *(names or ()))]

    def rows(self, names: Sequence[bytes] | None, *replies: Any) -> Rows:
        return Rows({name: b"" for name, score in zip(names or (), replies[0], strict=True) if score is not None})

    def writes(self, stored: Stored, there: Rows) -> list[Command]:
        commands: list[Command] = [
            ("ZREMRANGEBYSCORE", self.key, "-inf", self.now - records.ADDED_SECONDS),
            ("ZADD", self.key, *(part for id in stored for part in (self.now, id))),
            ("ZREMRANGEBYRANK", self.key, 0, -1 - _IDS),
            ("EXPIRE", self.key, records.ADDED_SECONDS),
        ]
        return commands if stored else []


_LAYOUTS = {records.OWNER: OwnerLayout, records.ADDED: AddedLayout, **dict.fromkeys(_LETTERS, HashLayout)}


def _text_row(head: re.Match[bytes], content: bytes = b"") -> TextRow:
    return TextRow(head.string[head.end() :], content, int(head[2]))


def _pairs(sums: BillSums) -> str:
    """The sums that are not 0."""
    values = structs.asdict(sums).items()
    return " ".join(f"{name} {value!r}" for name, value in values if value)


def _cost(field: bytes, row: bytes) -> SummaryCost:
    """Raises UnreadableRecordError."""
    *counts, dollars = map(float, open_row(field, row).split())
    return replace(SummaryCost(*map(int, counts)), dollars=dollars)


def _day_sum(tenant: bytes, day: bytes, field: bytes, row: bytes) -> DaySum:
    """Raises UnreadableRecordError, UnicodeDecodeError."""
    labels, prefix = serialization.unpacked("labels", field)
    if name_bytes(labels.tenant) != tenant:
        raise UnreadableRecordError("it belongs to another tenant")
    return DaySum(day.decode(), labels, prefix, serialization.sums(open_row(field, row)))


def _conversation_row(tenant: bytes, name: bytes, row: bytes) -> ConversationRow:
    """Raises UnreadableRecordError, UnicodeDecodeError."""
    head, _, packed = open_row(b"b", row).partition(b"\n")
    first_at, at, arm, sums = (*head.split(b" ", 3), b"", b"", b"", b"")[:4]
    labels, _ = serialization.unpacked("labels", packed)
    if name_bytes(labels.tenant) != tenant:
        raise UnreadableRecordError("it belongs to another tenant")
    return ConversationRow(
        conversation=serialization.name(name),
        labels=labels,
        arm=cast(Arm, arm.decode().removeprefix("-")),
        first_at=float(first_at),
        at=float(at),
        sums=serialization.sums(sums),
    )


_LOOKED_AT, _PAGE = 20_000, 500
"""Conversations of a tenant, the newest, among which those of one owner are looked for; and how many at once."""
_ALL = 2**31
_TRIES = 100
"""Attempts to make a change."""
_MARK_SECONDS = 60
"""How long the mark of a change stays: longer than any attempt takes."""
_EVENTS_AT_ONCE = 500
"""Events that are looked at in one trip."""


class _Attempt:
    """A change that is about to be made."""

    def __init__(self, change: Change, mark: str, layout: Callable[[Kind], Layout]) -> None:
        self.change = change
        self._mark = mark
        self._layout = layout
        self._layouts = {kind: layout(kind) for kind in change.reads}
        self.notes: list[Note] = []
        self.script: Command | None = None
        self.before: list[Command] = []
        """Commands for other slots before it, and after it."""
        self.after: list[Command] = []

    def reads(self) -> list[Command]:
        """Commands that read the mark of the last change, and then the rows: where these are no longer the rows of that
        mark, there is another by the time of the change."""
        of_kinds = (self._layouts[kind].reads(names) for kind, names in self.change.reads.items())
        return [("GET", self._mark), *chain(*of_kinds)]

    def plan(self, answer: Sequence[Any], keys: Keys) -> None:
        """Follow the rule of the change, by what these commands have answered."""
        mark, *replies = answer
        there: dict[Kind, Rows] = {}
        for kind, names in self.change.reads.items():
            count = len(self._layouts[kind].reads(names))
            there[kind] = self._layouts[kind].rows(names, *replies[:count])
            del replies[:count]
        writes: list[Command] = []
        for kind, stored in self.change.rule(there).items():
            layout, rows = self._layouts.get(kind) or self._layout(kind), there.get(kind, Rows())
            if kind not in (records.DAY, records.ADDED, records.KEY) and any(
                row is not None for row in stored.values()
            ):
                self.notes.append(Note(keys.conversations(self.change.tenant), layout.ttl, self.change.place))
                self.notes.append(Note(keys.tenants, layout.ttl, self.change.tenant))
            self.notes += layout.notes(stored)
            writes += layout.writes(stored, rows)
            before, after = layout.indexed(stored, rows)
            self.before += before
            self.after += after
        if writes:
            marked: Command = ("SET", self._mark, secrets.token_hex(8), "EX", _MARK_SECONDS)
            words = (word for part in ((mark or b"",), marked, *writes) for word in (len(part), *part))
            pieces = framed([word if isinstance(word, bytes) else str(word).encode() for word in words])
            self.script = GUARDED.on([*dict.fromkeys(str(command[1]) for command in (marked, *writes))], *pieces)


def _notes(notes: Iterable[Note], now: float) -> Iterator[Command]:
    """The commands that note in the indexes what is stored."""
    members: dict[tuple[str, int], dict[bytes, float]] = defaultdict(dict)
    for key, seconds, member, at in notes:
        members[key, seconds][member] = now if at is None else at
    for (key, seconds), some in members.items():
        yield NOTE.on([key], seconds, *(part for member, at in some.items() for part in (at, member)))


def _sums(owner: str | None, names: list[bytes] | None, stored: Iterable[tuple[Layout, Any]]) -> list[Any]:
    """The sums of this owner, or of all, that can be read."""
    rows = (
        row
        for layout, reply in stored
        if owner is None or names is None or owner.encode() in (reply[0] or b"")  # to read all of them takes long
        for row in layout.rows(names, reply).values()
    )
    return [row for row in rows if row is not None and owner in (None, row.labels.owner)]


class RedisRecordStore(RedisPart):
    """A RecordStore in Redis."""

    async def change(self, changes: Sequence[Change]) -> None:
        for _ in range(_TRIES):
            attempts = []
            for each in changes:
                mark = self._keys.mark(next(iter(each.reads), None), each.tenant, each.place)
                layout = partial(self._layout, tenant=each.tenant, place=each.place)
                attempts.append(_Attempt(each, mark, layout))
            reads = [each.reads() for each in attempts]
            replies = iter(await self._trip(*chain(*reads)))
            for attempt, commands in zip(attempts, reads, strict=True):
                attempt.plan([next(replies) for _ in commands], self._keys)
            attempts = [each for each in attempts if each.script is not None]
            notes = _notes((note for each in attempts for note in each.notes), self._clock())
            before = [*notes, *(command for each in attempts for command in each.before)]
            scripts = [each.script for each in attempts if each.script is not None]
            after = (command for each in attempts for command in each.after)
            outcomes = (await self._trip(*before, *scripts, *after))[len(before) :]
            changes = [each.change for each, is_made in zip(attempts, outcomes, strict=False) if not is_made]
            if not changes:
                return
        raise StoreTrouble("others change the same rows again and again")

    async def read(self, kind: Kind, tenant: bytes, place: bytes, names: Sequence[bytes] | None = None) -> Rows:
        layout = self._layout(kind, tenant, place)
        if names is None or not isinstance(layout, TextLayout):
            return layout.rows(names, *await self._trip(*layout.reads(names)))
        (contents,) = await self._trip(layout.content(names))
        there = zip(names, contents, strict=True)
        return Rows({name: TextRow(b"", content, 0) for name, content in there if content is not None})

    async def find(self, tenant: bytes, kind: Kind | None = None, name: bytes = b"") -> Sequence[bytes]:
        index = self._keys.conversations(tenant)
        if isinstance(kind, TextKind):
            texts = self._texts(kind, tenant, b"")
            index = texts.holders(texts.field(name))
        (names,) = await self._trip(("ZRANGE", index, 0, -1))
        if kind != records.OWNER:
            return list(names)
        conversations: list[bytes] = []
        for some in portions(names):
            owners = (self._keys.conversation(tenant, each).owners for each in some)
            answers = await self._trip(*(("SISMEMBER", each, name) for each in owners))
            conversations += (each for each, is_owner in zip(some, answers, strict=True) if is_owner)
        return conversations

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
        index = self._keys.billed_tenants if kind == records.DAY else self._keys.tenants
        tenants = (await self._trip(("ZRANGE", index, 0, -1)))[0] if tenant is None else [tenant]
        names = None if kind == records.DAY else [b""]
        rows: list[Any] = []
        page: Sequence[tuple[float, Names]] = [(math.inf if before is None else before, (b"", b""))]
        looked_at, at_once = 0, _PAGE if most is None or owner is not None else most
        while page and (most is None or (len(rows) < most and looked_at < _LOOKED_AT)):
            page = await self._newest(kind, tenants, page[-1][0], _ALL if kind == records.DAY else at_once)
            looked_at += len(page)
            late = [place for _, place in page if place[1] >= since.encode()]
            if kind == records.DAY:
                late = [place for place in late if (len(place[1]) > records.DAY_LENGTH) == of_tools]
            for some in portions(late):
                layouts = [self._layout(kind, *place) for place in some]
                replies = await self._trip(*(layout.reads(names)[0] for layout in layouts))
                rows += await asyncio.to_thread(_sums, owner, names, list(zip(layouts, replies, strict=True)))
        return rows[:most]

    async def drop_oldest(self, kind: TextKind, tenant: bytes, place: bytes, limit: int) -> int:
        return await self._drop_texts(self._texts(kind, tenant, place), self._clock() - self._ttl, limit)

    async def note(self, tenant: bytes, conversation: bytes, event: bytes) -> None:
        row = (self._ttl, records.EVENTS, secrets.token_hex(16), conversation, event)
        index = NOTE.on([self._keys.tenants], self._ttl, self._clock(), tenant)
        await self._trip(NOTE_EVENT.on([self._keys.events(tenant)], *row), index)

    async def events(
        self, tenant: bytes | None, conversation: bytes | None, most: int
    ) -> Sequence[tuple[bytes, bytes, bytes]]:
        tenants = [tenant] if tenant is not None else (await self._trip(("ZRANGE", self._keys.tenants, 0, -1)))[0]
        wanted = (each for each in tenants if tenant is not None or each != records.DELETIONS.encode())
        newest = [event for each in wanted for event in await self._newest_events(each, conversation, most)]
        return [row for _, row in sorted(newest, key=itemgetter(0))[-most:]] if most else []

    async def unindex(self, tenant: bytes, conversation: bytes) -> None:
        """Take the texts of a conversation out of the indexes; they themselves go with their conversation."""
        (heads,) = await self._trip(("HGETALL", self._keys.conversation(tenant, conversation).abouts))
        for kind in records.TEXT_KINDS.values():
            if kind.bounded_by != "conversation":
                layout = self._texts(kind, tenant, conversation)
                rows = layout.rows(None, heads)
                for some in portions(rows):
                    await self._trip(*layout.indexed(dict.fromkeys(some), rows)[1])

    async def delete_events(self, tenant: bytes, conversation: bytes) -> None:
        events = self._keys.events(tenant)
        after = "-"
        while after:
            (entries,) = await self._trip(("XRANGE", events, after, "+", "COUNT", _EVENTS_AT_ONCE))
            ids = [id for id, fields in entries if fields.get(b"c") == conversation]
            if ids:
                await self._trip(("XDEL", events, *ids))
            after = f"({entries[-1][0].decode()}" if len(entries) == _EVENTS_AT_ONCE else ""

    async def sweep(self, tenant: bytes, older_than: float) -> None:
        """Delete events, and texts in indexes of the tenant, that were stored before this time; those in a
        conversation's index go as it grows, or with it."""
        await self._trip(("XTRIM", self._keys.events(tenant), "MINID", f"{max(0, int(older_than * 1_000))}"))
        for kind in records.TEXT_KINDS.values():
            if kind.bounded_by == "tenant":
                while await self._drop_texts(self._texts(kind, tenant, b""), older_than):
                    pass

    async def delete_tenant(self, tenant: bytes) -> None:
        """Delete the sums of its days, and its indexes."""
        (days,) = await self._trip(("ZRANGE", self._keys.billed(tenant, "days"), 0, -1))
        kinds = (kind for kind in records.TEXT_KINDS.values() if kind.bounded_by == "tenant")
        keys = [
            self._keys.billed(tenant, "conversations"),
            *chain(*(self._keys.billed_day(tenant, day) for day in days)),
            *(self._keys.mark(records.DAY, tenant, day) for day in days),
            *(key for kind in kinds for key in self._keys.text_index(kind, tenant, b"")),
        ]
        await self._trip(*(("UNLINK", key) for key in keys))
        await self._trip(("UNLINK", self._keys.billed(tenant, "days")), ("ZREM", self._keys.billed_tenants, tenant))

    async def _trip(self, *commands: Command) -> list[Any]:
        return await self._connection.trip(*commands) if commands else []

    def _layout(self, kind: Kind, tenant: bytes, place: bytes) -> Layout:
        layout = _LAYOUTS.get(kind, TextLayout)
        return layout(self._keys, self._codec, self._ttl, self._clock(), kind, tenant, place)

    def _texts(self, kind: TextKind, tenant: bytes, place: bytes) -> TextLayout:
        return cast(TextLayout, self._layout(kind, tenant, place))

    async def _newest(
        self, kind: Kind, tenants: Sequence[bytes], before: float, most: int
    ) -> Sequence[tuple[float, Names]]:
        """The places of a kind that were written before this time, the newest first."""
        newest: list[tuple[float, Names]] = []
        what = "days" if kind == records.DAY else "conversations"
        for some in portions(tenants):
            row = (f"({before!r}", "-inf", "WITHSCORES", "LIMIT", 0, most)
            replies = await self._trip(*(("ZREVRANGEBYSCORE", self._keys.billed(each, what), *row) for each in some))
            for tenant, reply in zip(some, replies, strict=True):
                newest += ((float(at), (tenant, name)) for name, at in zip(reply[::2], reply[1::2], strict=True))
            newest = sorted(newest, key=itemgetter(0), reverse=True)[:most]
        return newest

    async def _newest_events(
        self, tenant: bytes, conversation: bytes | None, most: int
    ) -> Sequence[tuple[tuple[int, int], tuple[bytes, bytes, bytes]]]:
        """Of one tenant, the newest first, each with the milliseconds when the server took it, and a number in them."""
        before = "+"
        events: list[tuple[tuple[int, int], tuple[bytes, bytes, bytes]]] = []
        while before and len(events) < most:
            count = _EVENTS_AT_ONCE if conversation is not None else min(most - len(events), _EVENTS_AT_ONCE)
            (entries,) = await self._trip(("XREVRANGE", self._keys.events(tenant), before, "-", "COUNT", count))
            for id, fields in entries:
                if conversation in (None, fields.get(b"c")):
                    time, _, number = id.partition(b"-")
                    events.append(((int(time), int(number)), (tenant, fields.get(b"c", b""), fields.get(b"e", b""))))
            before = f"({entries[-1][0].decode()}" if len(entries) == count else ""
        return events[:most]

    async def _drop_texts(self, layout: TextLayout, since: float, limit: int = 2**53) -> int:
        """Delete some texts of an index: those stored before this time, and the oldest beyond the limit."""
        (members,) = await self._trip(layout.index(since=since, limit=limit, most=AT_ONCE))
        commands = (command for member in members for command in layout.drop(member))
        await self._trip(*commands, *([layout.index(remove=members)] if members else []))
        return len(members)
