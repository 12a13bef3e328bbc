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
from functools import cached_property
from itertools import repeat
from operator import itemgetter
from typing import Any, NamedTuple, cast

from msgspec import structs

from policies.money.bills import Arm, BillSums, ConversationRow
from proxy.memory import serialization
from proxy.memory.records import (
    ADDED,
    ADDED_SECONDS,
    BILL,
    DAY,
    DAYS,
    KEY,
    OWNER,
    TOTAL,
    DaySum,
    Kind,
    Rows,
    TextKind,
    TextRow,
)
from proxy.memory.redis.keys import Argument, Command, ConversationKeys, Keys, sealed, unsealed
from proxy.memory.redis.scripts import INDEX
from proxy.memory.serialization import Codec, UnreadableRecordError, name_bytes, row_bytes

_IDS = 20_000
"""How many ids of bills that were added to a day stay."""
_HEAD = re.compile(rb"(\d{1,15}) (\d{1,15}) ")


Reads = tuple[Sequence[Command], Sequence[Command]]
"""Commands whose answers, which are lists, must still stand when something is written; and others."""
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


class Layout:
    """The rows of a kind in a place."""

    def __init__(self, keys: Keys, codec: Codec, ttl: int, now: float, kind: Kind, tenant: bytes, place: bytes) -> None:
        self._keys = keys
        self._codec = codec
        self._ttl = ttl
        self._now = now
        self._kind = kind
        self._tenant = tenant
        self._place = place

    @cached_property
    def _here(self) -> ConversationKeys:
        return self._keys.conversation(self._tenant, self._place)

    def reads(self, names: Sequence[bytes] | None) -> Reads:
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

    def before(self, stored: Stored) -> list[Command]:
        """The commands that add to other slots what is to be stored."""
        return []

    def removals(self, stored: Stored, there: Rows) -> list[Command]:
        """The commands that remove in other slots what was deleted."""
        return []


class _Numbered(Rows):
    """Rows of texts, whose last number is this."""

    last = 0


class TextLayout(Layout):
    """Texts; in other slots stand an index of those of a bounded kind, and the conversations that have a name."""

    _kind: TextKind

    def reads(self, names: Sequence[bytes] | None) -> Reads:
        if names is None:
            return [], [("HGETALL", self._here.abouts)]
        fields = [field_of(self._kind, name) for name in names]
        contents = [self.content(names)] if self._kind.first_stays else []
        return [("HMGET", self._here.abouts, *fields, "n")], contents

    def rows(self, names: Sequence[bytes] | None, *replies: Any) -> Rows:
        if names is None:
            letter = field_of(self._kind, b"")
            heads = {field[1:]: _head(row) for field, row in mapping(replies[0]).items() if field.startswith(letter)}
            self._codec.misses += sum(head is None for head in heads.values())
            numbered = ((int(head[1]), name, head) for name, head in heads.items() if head is not None)
            return Rows({name: _text_row(head) for _, name, head in sorted(numbered, key=itemgetter(0))})
        (*heads_there, last), *contents = replies
        rows = _Numbered()
        rows.last = int(last) if (last or b"").isdigit() else 0
        for name, row, content in zip(names, heads_there, contents[0] if contents else repeat(b""), strict=False):
            if row is not None:
                rows[name] = _text_row(head, content or b"") if (head := _head(row)) is not None else None
        return rows

    def writes(self, stored: Stored, there: Rows) -> list[Command]:
        heads: list[Argument] = []
        contents: list[Argument] = []
        gone = [field_of(self._kind, name) for name, row in stored.items() if row is None]
        number = getattr(there, "last", 0)
        for name, row in stored.items():
            if row is not None:
                contents += (field_of(self._kind, name), row.content)
                if there.get(name) is None:
                    number += 1
                    heads += (field_of(self._kind, name), b"%d %d %s" % (number, row.size, row.about))
        commands: list[Command] = [("HDEL", key, *gone) for key in (self._here.abouts, self._here.texts) if gone]
        if heads:
            commands.append(("HSET", self._here.abouts, *heads, "n", number))
        if contents:
            commands.append(("HSET", self._here.texts, *contents))
        return [*commands, *(("EXPIRE", key, self._ttl) for key in self._here)] if contents else commands

    def notes(self, stored: Stored) -> list[Note]:
        names = [name for name, row in stored.items() if row is not None and self._kind.by_name]
        holders = (self._keys.holders(self._tenant, field_of(self._kind, name)) for name in names)
        return [Note(key, self._ttl, self._place) for key in holders]

    def before(self, stored: Stored) -> list[Command]:
        members = [self.member(name, row.size) for name, row in stored.items() if row is not None]
        return [self.index(add=members)] if self._kind.bounded_by and members else []

    def removals(self, stored: Stored, there: Rows) -> list[Command]:
        rows = [(name, there[name]) for name, row in stored.items() if row is None and there.get(name) is not None]
        commands: list[Command] = []
        if self._kind.bounded_by and rows:
            commands.append(self.index(remove=[self.member(name, row.size) for name, row in rows]))
        if self._kind.by_name:
            holders = (self._keys.holders(self._tenant, field_of(self._kind, name)) for name, _ in rows)
            commands += (("ZREM", key, self._place) for key in holders)
        return commands

    def member(self, name: bytes, size: int) -> bytes:
        """A text as the index names it."""
        return b"%d %s %s" % (size, field_of(self._kind, name), self._place)

    def drop(self, member: bytes) -> list[Command]:
        """The commands that delete a text which the index names so."""
        _, field, conversation = member.split(b" ", 2)
        here = self._keys.conversation(self._tenant, conversation)
        holders = [("ZREM", self._keys.holders(self._tenant, field), conversation)] if self._kind.by_name else []
        return [("HDEL", here.abouts, field), ("HDEL", here.texts, field), *holders]

    def content(self, names: Sequence[bytes]) -> Command:
        """The command that reads the contents of these names."""
        return ("HMGET", self._here.texts, *(field_of(self._kind, name) for name in names))

    def contents(self, names: Sequence[bytes], reply: Sequence[bytes | None]) -> Rows:
        """The rows with their contents alone."""
        contents = zip(names, reply, strict=True)
        return Rows({name: TextRow(b"", content, 0) for name, content in contents if content is not None})

    def index(
        self,
        *,
        add: Sequence[bytes] = (),
        remove: Sequence[bytes] = (),
        since: float = -math.inf,
        limit: int = 2**53,
        most: int = 0,
    ) -> Command:
        """Add to the index, or remove from it. Answers with members that were stored before `since`, or are beyond the
        limit, of the oldest `most`."""
        keys = self._keys.text_index(self._kind, self._tenant, self._place)
        return INDEX.on(keys, self._ttl, self._now, since, limit, most, len(add), *add, *remove)


class HashLayout(Layout):
    """Rows in fields of a hash, whose names begin with the same letter."""

    def __init__(self, *place: Any) -> None:
        super().__init__(*place)
        self._letter = _LETTERS[self._kind]
        self._seconds = DAYS * 86_400 if self._kind == DAY else self._ttl
        self._key = self._keys.gateway_keys
        if self._kind == DAY:
            self._key = self._keys.billed_day(self._tenant, self._place)[0]
        elif self._kind != KEY:
            self._key = self._here.bills if self._kind == BILL else self._here.spent

    def reads(self, names: Sequence[bytes] | None) -> Reads:
        if names is not None:
            return [("HMGET", self._key, *(self._letter + name for name in names))], [("HLEN", self._key)]
        revision = [("HMGET", self._key, "n")] if self._kind == KEY else []
        return revision, [("HGETALL", self._key)]

    def rows(self, names: Sequence[bytes] | None, *replies: Any) -> Rows:
        stored: Iterable[tuple[bytes, bytes | None]] = zip(names or (), replies[0], strict=False)
        if names is None:
            fields = mapping(replies[-1]).items()
            stored = ((field[len(self._letter) :], row) for field, row in fields if field.startswith(self._letter))
        rows = Rows({name: self._value(name, row) for name, row in stored if row is not None})
        rows.count = lambda: len(rows) if names is None else replies[1]
        return rows

    def writes(self, stored: Stored, there: Rows) -> list[Command]:
        rows = [(self._letter + name, value) for name, value in stored.items()]
        gone = [name for name, value in rows if value is None]
        new = [part for name, value in rows if value is not None for part in (name, self._row(name, value))]
        commands: list[Command] = [("HDEL", self._key, *gone)] if gone else []
        commands += [("HSET", self._key, *new)] if new else []
        if self._kind == KEY:
            return [*commands, ("HSET", self._key, "n", secrets.token_hex(8))] if commands else []
        return [*commands, ("EXPIRE", self._key, self._seconds)] if commands else []

    def notes(self, stored: Stored) -> list[Note]:
        """Which conversation was billed when, and which days a tenant has."""
        if self._kind == TOTAL and stored[b""] is not None:
            return [Note(self._keys.billed(self._tenant, "conversations"), self._ttl, self._place, stored[b""].at)]
        if self._kind == DAY and stored:
            days = Note(self._keys.billed(self._tenant, "days"), self._seconds, self._place)
            return [days, Note(self._keys.billed_tenants, self._seconds, self._tenant)]
        return []

    def _value(self, name: bytes, row: bytes) -> Any:
        if self._kind == TOTAL:
            return self._codec.read(conversation_row, self._tenant, self._place, row)
        if self._kind == DAY:
            return self._codec.read(_day_sum, self._tenant, self._place, name, row)
        return self._codec.row(self._kind, self._tenant, self._place, row)

    def _row(self, name: bytes, value: Any) -> bytes:
        if self._kind == TOTAL:
            head = f"{value.first_at!r} {value.at!r} {value.arm or '-'} {_pairs(value.sums)}\n".encode()
            return sealed(name, head + serialization.packed("labels", value.labels, ""))
        return sealed(name, _pairs(value.sums).encode()) if self._kind == DAY else row_bytes(self._kind, value)


class OwnerLayout(Layout):
    """A set."""

    def reads(self, names: Sequence[bytes] | None) -> Reads:
        return [], [("SMEMBERS", self._here.owners)]

    def rows(self, names: Sequence[bytes] | None, *replies: Any) -> Rows:
        return Rows({owner: b"" for owner in replies[0] if names is None or owner in names})

    def writes(self, stored: Stored, there: Rows) -> list[Command]:
        changes = (("SADD" if owner is not None else "SREM", self._here.owners, name) for name, owner in stored.items())
        return [*changes, ("EXPIRE", self._here.owners, self._ttl)] if stored else []


class AddedLayout(Layout):
    """The ids of an hour, sorted by when they were added."""

    def reads(self, names: Sequence[bytes] | None) -> Reads:
        return [("ZMSCORE", self._ids, *(names or ()))], []

    def rows(self, names: Sequence[bytes] | None, *replies: Any) -> Rows:
        return Rows({name: b"" for name, score in zip(names or (), replies[0], strict=True) if score is not None})

    def writes(self, stored: Stored, there: Rows) -> list[Command]:
        return [
            ("ZREMRANGEBYSCORE", self._ids, "-inf", self._now - ADDED_SECONDS),
            ("ZADD", self._ids, *(part for id in stored for part in (self._now, id))),
            ("ZREMRANGEBYRANK", self._ids, 0, -1 - _IDS),
            ("EXPIRE", self._ids, ADDED_SECONDS),
        ][: 4 if stored else 0]

    @property
    def _ids(self) -> str:
        return self._keys.billed_day(self._tenant, self._place)[1]


_LETTERS = {BILL: b"", TOTAL: b"b", DAY: b"", KEY: b"d"}
_LAYOUTS: Mapping[Kind, type[Layout]] = {OWNER: OwnerLayout, ADDED: AddedLayout} | dict.fromkeys(
    (BILL, TOTAL, DAY, KEY), HashLayout
)


def layout_of(kind: Kind) -> type[Layout]:
    return _LAYOUTS.get(kind, TextLayout)


def mapping(reply: Any) -> Mapping[bytes, bytes]:
    """Fields and values, which a script answers one after the other."""
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


def field_of(kind: Kind, name: bytes) -> bytes:
    """The field of a text."""
    return kind.name[:1].encode() + name


def _head(row: bytes) -> re.Match[bytes] | None:
    """The number and the size that a text's row in `abouts` begins with."""
    return _HEAD.match(row)


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


def conversation_row(tenant: bytes, name: bytes, row: bytes) -> ConversationRow:
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
