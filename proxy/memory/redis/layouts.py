"""How rows for people and accounts stand in Redis: for each kind of them, the commands that read and write them.

Texts, bills and owners stand with their conversation. A text's field is the first letter of its kind, and its name: in
`abouts` it holds `NUMBER SIZE ` and then what a list shows of it, where `n` is the last number; in `texts` it is the
text. `bills` holds bills by their ids, `bill_ids` these ids sorted by time, and `spent`, under `b`, the sums. Of each
tenant and day a hash has a field for each labels and outcome of the prefix; beside it are the ids of the bills that
were added in the last hour. Sums are written as the names and values of those that are not 0. The keys of the gateway
are one hash that does not expire: `k` and a name is the SHA-256 of its key, `d` and that its row; `n` is new with each
change.
"""

import math
import re
import secrets
from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from operator import itemgetter
from typing import Any, cast

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
    KeyEntry,
    Kind,
    Rows,
    TextKind,
    TextRow,
)
from proxy.memory.redis.keys import Argument, Command, Keys, sealed, unsealed
from proxy.memory.redis.scripts import INDEX, NOTE
from proxy.memory.serialization import Codec, UnreadableRecordError, name_bytes

DAY_SECONDS = DAYS * 86_400
_IDS = 20_000
"""How many ids of bills that were added to a day stay."""
_HEAD = re.compile(rb"(\d{1,15}) (\d{1,15}) ")


Reads = tuple[Sequence[Command], Sequence[Command]]
"""Commands whose answers, which are lists, must still stand when something is written; and others."""
Stored = Mapping[bytes, Any]
"""Rows by name; None in the place of one that is to be deleted."""


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
        self._here = keys.conversation(tenant, place)

    def reads(self, names: Sequence[bytes] | None) -> Reads:
        """The commands that read the rows of these names; None: all."""
        raise NotImplementedError

    def rows(self, names: Sequence[bytes] | None, *replies: Any) -> Rows:
        """The rows, as these commands have answered."""
        raise NotImplementedError

    def writes(self, stored: Stored, there: Rows) -> list[Command]:
        """The commands that write them. `there`: the rows that were read."""
        raise NotImplementedError

    def notes(self, stored: Stored) -> list[Command]:
        """The commands that note in other slots what is stored, before it is."""
        return []

    def removals(self, stored: Stored, there: Rows) -> list[Command]:
        """The commands that remove in other slots what was deleted."""
        return []

    def _expiry(self, *keys: str) -> list[Command]:
        return [("EXPIRE", key, self._ttl) for key in keys]


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
            heads = {field[1:]: _head(row) for field, row in replies[0].items() if field.startswith(letter)}
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
        return [*commands, *(self._expiry(*self._here) if contents else ())]

    def notes(self, stored: Stored) -> list[Command]:
        rows = [(name, row) for name, row in stored.items() if row is not None]
        commands: list[Command] = []
        if self._kind.bounded_by and rows:
            commands.append(self.index(add=[self.member(name, row.size) for name, row in rows]))
        if self._kind.by_name:
            holders = (self._keys.holders(self._tenant, field_of(self._kind, name)) for name, _ in rows)
            commands += (NOTE.on([key], self._ttl, self._now, self._place) for key in holders)
        return commands

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


class OwnerLayout(Layout):
    """A set."""

    def reads(self, names: Sequence[bytes] | None) -> Reads:
        return [], [("SMEMBERS", self._here.owners)]

    def rows(self, names: Sequence[bytes] | None, *replies: Any) -> Rows:
        return Rows(dict.fromkeys(replies[0] if names is None else replies[0] & set(names), ""))

    def writes(self, stored: Stored, there: Rows) -> list[Command]:
        changes = (("SADD" if owner is not None else "SREM", self._here.owners, name) for name, owner in stored.items())
        return [*changes, *self._expiry(self._here.owners)]


class BillLayout(Layout):
    def reads(self, names: Sequence[bytes] | None) -> Reads:
        if names is None:
            return [], [("HGETALL", self._here.bills)]
        return [("HMGET", self._here.bills, *names)], [("HLEN", self._here.bills)]

    def rows(self, names: Sequence[bytes] | None, *replies: Any) -> Rows:
        stored = replies[0].items() if names is None else zip(names, replies[0], strict=True)
        read = self._codec.read
        place = self._tenant, self._place
        rows = Rows({id: read(serialization.bill, *place, row) for id, row in stored if row is not None})
        rows.count = lambda: len(rows) if names is None else replies[1]
        return rows

    def writes(self, stored: Stored, there: Rows) -> list[Command]:
        bills, ids = self._here.bills, self._here.bill_ids
        gone = [id for id, bill in stored.items() if bill is None]
        new = [(id, bill) for id, bill in stored.items() if bill is not None]
        commands: list[Command] = [("HDEL", bills, *gone), ("ZREM", ids, *gone)] if gone else []
        if new:
            rows = (part for id, bill in new for part in (id, serialization.packed("bill", bill)))
            commands += [("HSET", bills, *rows), ("ZADD", ids, *(part for id, bill in new for part in (bill.at, id)))]
        return [*commands, *self._expiry(bills, ids)]


class TotalLayout(Layout):
    def reads(self, names: Sequence[bytes] | None) -> Reads:
        return [("HMGET", self._here.spent, "b")], []

    def rows(self, names: Sequence[bytes] | None, *replies: Any) -> Rows:
        ((row,),) = replies
        read = self._codec.read
        return Rows() if row is None else Rows({b"": read(conversation_row, self._tenant, self._place, row)})

    def writes(self, stored: Stored, there: Rows) -> list[Command]:
        total = stored[b""]
        if total is None:
            return [("HDEL", self._here.spent, "b")]
        head = f"{total.first_at!r} {total.at!r} {total.arm or '-'} {_pairs(total.sums)}\n".encode()
        row = sealed(b"b", head + serialization.packed("labels", total.labels, ""))
        return [("HSET", self._here.spent, "b", row), *self._expiry(self._here.spent)]

    def notes(self, stored: Stored) -> list[Command]:
        total, index = stored[b""], self._keys.billed(self._tenant, "conversations")
        return [] if total is None else [NOTE.on([index], self._ttl, total.at, self._place)]


class DayLayout(Layout):
    @property
    def _day(self) -> str:
        return self._keys.billed_day(self._tenant, self._place)[0]

    def reads(self, names: Sequence[bytes] | None) -> Reads:
        if names is None:
            return [], [("HGETALL", self._day)]
        return [("HMGET", self._day, *names)], [("HLEN", self._day)]

    def rows(self, names: Sequence[bytes] | None, *replies: Any) -> Rows:
        stored = replies[0].items() if names is None else zip(names, replies[0], strict=True)
        read = self._codec.read
        place = self._tenant, self._place
        rows = Rows({name: read(_day_sum, *place, name, row) for name, row in stored if row is not None})
        rows.count = lambda: len(rows) if names is None else replies[1]
        return rows

    def writes(self, stored: Stored, there: Rows) -> list[Command]:
        rows = ((name, sealed(name, _pairs(row.sums).encode())) for name, row in stored.items())
        return [("HSET", self._day, *chain(*rows)), ("EXPIRE", self._day, DAY_SECONDS)] if stored else []

    def notes(self, stored: Stored) -> list[Command]:
        indexes = (self._keys.billed(self._tenant, "days"), self._place), (self._keys.billed_tenants, self._tenant)
        return [NOTE.on([index], DAY_SECONDS, self._now, member) for index, member in indexes if stored]


class AddedLayout(Layout):
    @property
    def _ids(self) -> str:
        return self._keys.billed_day(self._tenant, self._place)[1]

    def reads(self, names: Sequence[bytes] | None) -> Reads:
        return [("ZMSCORE", self._ids, *(names or ()))], []

    def rows(self, names: Sequence[bytes] | None, *replies: Any) -> Rows:
        scores = zip(names or (), replies[0], strict=True)
        return Rows({name: "" for name, score in scores if score is not None})

    def writes(self, stored: Stored, there: Rows) -> list[Command]:
        if not stored:
            return []
        return [
            ("ZREMRANGEBYSCORE", self._ids, "-inf", self._now - ADDED_SECONDS),
            ("ZADD", self._ids, *(part for id in stored for part in (self._now, id))),
            ("ZREMRANGEBYRANK", self._ids, 0, -1 - _IDS),
            ("EXPIRE", self._ids, ADDED_SECONDS),
        ]


class KeyLayout(Layout):
    def reads(self, names: Sequence[bytes] | None) -> Reads:
        return [("HMGET", self._keys.gateway_keys, "n")], [("HGETALL", self._keys.gateway_keys)]

    def rows(self, names: Sequence[bytes] | None, *replies: Any) -> Rows:
        fields = replies[1]
        digests = {field[1:]: digest for field, digest in fields.items() if field[:1] == b"k"}
        return Rows({name: KeyEntry(each.decode(), fields.get(b"d" + each, b"")) for name, each in digests.items()})

    def writes(self, stored: Stored, there: Rows) -> list[Command]:
        keys = self._keys.gateway_keys
        commands: list[Command] = []
        for name, entry in stored.items():
            if entry is None:
                commands.append(("HDEL", keys, b"k" + name, f"d{there[name].sha256}"))
            else:
                commands.append(("HSET", keys, b"k" + name, entry.sha256, f"d{entry.sha256}", entry.content))
        return [*commands, ("HSET", keys, "n", secrets.token_hex(8))] if commands else []


_LAYOUTS: Mapping[Kind, type[Layout]] = {
    OWNER: OwnerLayout,
    BILL: BillLayout,
    TOTAL: TotalLayout,
    DAY: DayLayout,
    ADDED: AddedLayout,
    KEY: KeyLayout,
}


def layout_of(kind: Kind) -> type[Layout]:
    return _LAYOUTS.get(kind, TextLayout)


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
