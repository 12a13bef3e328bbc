"""How rows for people and accounts stand in Redis: for each kind of them, the commands that read and write them.

Texts, bills and owners stand with their conversation. A text's field is the first letter of its kind, and its name: in
`abouts` it holds `NUMBER SIZE ` and then what a list shows of it, where `n` is the last number; in `texts` it is the
text. `bills` holds bills by their ids, and `spent`, under `b`, their sums. Of each tenant and day a hash has a field
for each labels and outcome of the prefix; beside it are the ids of the bills that were added in the last hour. Sums are
written as the names and values of those that are not 0. The keys of the gateway are one hash that does not expire,
each under `d` and its SHA-256; `n` is new with each change.
"""

import math
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from operator import itemgetter
from typing import Any, NamedTuple, cast

from msgspec import structs

from policies.money.bills import Arm, BillSums, ConversationRow
from proxy.memory import records, serialization
from proxy.memory.records import DaySum, Kind, Rows, TextKind, TextRow
from proxy.memory.redis.keys import Argument, Command, ConversationKeys, Keys, sealed, unsealed
from proxy.memory.redis.scripts import INDEX
from proxy.memory.serialization import Codec, UnreadableRecordError, name_bytes, row_bytes

_IDS = 20_000
"""How many ids of bills that were added to a day stay."""
_HEAD = re.compile(rb"(\d{1,15}) (\d{1,15}) ")
_LETTERS = {records.BILL: b"", records.TOTAL: b"b", records.DAY: b"", records.KEY: b"d"}

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
class Place:
    """A conversation, or a day, of a tenant."""

    keys: Keys
    tenant: bytes
    name: bytes

    @cached_property
    def here(self) -> ConversationKeys:
        return self.keys.conversation(self.tenant, self.name)

    @cached_property
    def day(self) -> tuple[str, str]:
        return self.keys.billed_day(self.tenant, self.name)

    def mark(self, kind: Kind | None) -> str:
        """The key of the mark of the last change of these rows, which is in their slot."""
        if kind == records.KEY:
            return self.keys.gateway_mark
        return f"{(self.day[0] if kind == records.DAY else self.here.steps).rpartition(':')[0]}:mark"


@dataclass(eq=False)
class Layout:
    """The rows of a kind in a place."""

    at: Place
    codec: Codec
    ttl: int
    now: float
    kind: Any

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
        """What of it stands in indexes."""
        return []

    def indexed(self, stored: Stored, there: Rows) -> tuple[list[Command], list[Command]]:
        """The commands that tell another slot of it, before it is written and after it."""
        return [], []


class TextLayout(Layout):
    """Texts; in other slots stand an index of those of a bounded kind, and the conversations that have a name."""

    kind: TextKind

    def reads(self, names: Sequence[bytes] | None) -> list[Command]:
        if names is None:
            return [("HGETALL", self.at.here.abouts)]
        heads: Command = ("HMGET", self.at.here.abouts, *map(self.field, names), "n")
        return [heads, self.content(names)] if self.kind.first_stays else [heads]

    def rows(self, names: Sequence[bytes] | None, *replies: Any) -> Rows:
        if names is None:
            fields = mapping(replies[0]).items()
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
        commands: list[Command] = [("HDEL", key, *gone) for key in (self.at.here.abouts, self.at.here.texts) if gone]
        commands += [("HSET", self.at.here.abouts, *heads, "n", there.last)] if heads else []
        commands += [("HSET", self.at.here.texts, *contents)] if contents else []
        return [*commands, *(("EXPIRE", key, self.ttl) for key in self.at.here)] if contents else commands

    def notes(self, stored: Stored) -> list[Note]:
        names = [name for name, row in stored.items() if row is not None and self.kind.by_name]
        return [Note(self.holders(self.field(name)), self.ttl, self.at.name) for name in names]

    def indexed(self, stored: Stored, there: Rows) -> tuple[list[Command], list[Command]]:
        new = [self.member(name, row.size) for name, row in stored.items() if row is not None]
        gone = [name for name, row in stored.items() if row is None and there.get(name) is not None]
        after: list[Command] = [
            ("ZREM", self.holders(self.field(name)), self.at.name) for name in gone if self.kind.by_name
        ]
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
        keys = self.at.keys.text_index(self.kind, self.at.tenant, self.at.name)
        return INDEX.on(keys, self.ttl, self.now, since, limit, most, len(add), *add, *remove)

    def member(self, name: bytes, size: int) -> bytes:
        """A text as the index names it."""
        return b"%d %s %s" % (size, self.field(name), self.at.name)

    def drop(self, member: bytes) -> list[Command]:
        """The commands that delete a text which the index names so."""
        _, field, conversation = member.split(b" ", 2)
        there = self.at.keys.conversation(self.at.tenant, conversation)
        holders: list[Command] = [("ZREM", self.holders(field), conversation)] if self.kind.by_name else []
        return [("HDEL", there.abouts, field), ("HDEL", there.texts, field), *holders]

    def content(self, names: Sequence[bytes]) -> Command:
        """The command that reads the contents of these names."""
        return ("HMGET", self.at.here.texts, *map(self.field, names))

    def field(self, name: bytes) -> bytes:
        return self.kind.name[:1].encode() + name

    def holders(self, field: bytes) -> str:
        return self.at.keys.holders(self.at.tenant, field)


class HashLayout(Layout):
    """Rows in fields of a hash, whose names begin with the same letter."""

    @cached_property
    def key(self) -> str:
        if self.kind == records.DAY:
            return self.at.day[0]
        if self.kind == records.KEY:
            return self.at.keys.gateway_keys
        return self.at.here.bills if self.kind == records.BILL else self.at.here.spent

    def reads(self, names: Sequence[bytes] | None) -> list[Command]:
        if names is None:
            return [("HGETALL", self.key)]
        count: list[Command] = [("HLEN", self.key)] if self.kind == records.DAY else []
        return [("HMGET", self.key, *(_LETTERS[self.kind] + name for name in names)), *count]

    def rows(self, names: Sequence[bytes] | None, *replies: Any) -> Rows:
        letter = _LETTERS[self.kind]
        stored: Iterable[tuple[bytes, bytes | None]] = zip(names or (), replies[0], strict=False)
        if names is None:
            fields = mapping(replies[0]).items()
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
            return [Note(self.at.keys.billed(self.at.tenant, "conversations"), self.ttl, self.at.name, stored[b""].at)]
        if self.kind == records.DAY and stored:
            days = Note(self.at.keys.billed(self.at.tenant, "days"), records.DAYS * 86_400, self.at.name)
            return [days, Note(self.at.keys.billed_tenants, records.DAYS * 86_400, self.at.tenant)]
        return []

    def _value(self, name: bytes, row: bytes) -> Any:
        if self.kind == records.TOTAL:
            return self.codec.read(_conversation_row, self.at.tenant, self.at.name, row)
        if self.kind == records.DAY:
            return self.codec.read(_day_sum, self.at.tenant, self.at.name, name, row)
        return self.codec.row(self.kind, self.at.tenant, self.at.name, row)

    def _row(self, name: bytes, value: Any) -> bytes:
        if self.kind == records.TOTAL:
            head = f"{value.first_at!r} {value.at!r} {value.arm or '-'} {_pairs(value.sums)}\n".encode()
            return sealed(name, head + serialization.packed("labels", value.labels, ""))
        return sealed(name, _pairs(value.sums).encode()) if self.kind == records.DAY else row_bytes(self.kind, value)


class OwnerLayout(Layout):
    """A set."""

    def reads(self, names: Sequence[bytes] | None) -> list[Command]:
        return [("SMEMBERS", self.at.here.owners)]

    def rows(self, names: Sequence[bytes] | None, *replies: Any) -> Rows:
        return Rows({owner: b"" for owner in replies[0] if names is None or owner in names})

    def writes(self, stored: Stored, there: Rows) -> list[Command]:
        changes = (
            ("SADD" if owner is not None else "SREM", self.at.here.owners, name) for name, owner in stored.items()
        )
        return [*changes, ("EXPIRE", self.at.here.owners, self.ttl)] if stored else []


class AddedLayout(Layout):
    """The ids of an hour, sorted by when they were added."""

    @property
    def key(self) -> str:
        return self.at.day[1]

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


def layout_of(kind: Kind) -> type[Layout]:
    return _LAYOUTS.get(kind, TextLayout)


def mapping(reply: Any) -> Mapping[bytes, bytes]:
    """Fields and values, which a script answers one after the other."""
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


def _text_row(head: re.Match[bytes], content: bytes = b"") -> TextRow:
    return TextRow(head.string[head.end() :], content, int(head[2]))


def _pairs(sums: BillSums) -> str:
    """The sums that are not 0."""
    values = structs.asdict(sums).items()
    return " ".join(f"{name} {value!r}" for name, value in values if value)


def _day_sum(tenant: bytes, day: bytes, field: bytes, row: bytes) -> DaySum:
    """Raises UnreadableRecordError, UnicodeDecodeError."""
    labels, prefix = serialization.labels(field)
    if name_bytes(labels.tenant) != tenant:
        raise UnreadableRecordError("it belongs to another tenant")
    return DaySum(day.decode(), labels, prefix, serialization.sums(unsealed(field, row)))


def _conversation_row(tenant: bytes, name: bytes, row: bytes) -> ConversationRow:
    """Raises UnreadableRecordError, UnicodeDecodeError."""
    head, _, packed = unsealed(b"b", row).partition(b"\n")
    first_at, at, arm, sums = (*head.split(b" ", 3), b"", b"", b"", b"")[:4]
    labels, _ = serialization.labels(packed)
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
