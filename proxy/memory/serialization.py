"""How records are stored: a version, a checksum, the format, then the record as MessagePack, or as JSON where people
may look at it; encrypted, where there are keys.

Laws
  What is read is what was written, or UnreadableRecordError is raised. A record of another version is unreadable.
  A text may hold what UTF-8, and so MessagePack, cannot (lone surrogates): such a record is written as JSON.
  A record that holds a text is sealed for its place: its tenant, conversation, kind and name. Moved elsewhere it is a
  miss. With keys, records that were stored without are read all the same, so that keys may come later, and are sealed
  when they are written next. Without keys, a sealed record is a miss.
"""

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, Literal, ParamSpec, TypeVar
from zlib import crc32

import msgspec

from policies.model.edits import Fold, Insert, Replace
from policies.model.memory import Sent, StepRecord
from policies.model.summary_record import SummaryCost, SummaryRecord
from policies.money.bills import BillSums, ConversationRow, Labels, RequestBill
from proxy.config.keyring import SEALED, Keyring, SealedError
from proxy.memory.decisions import Key, Snapshot
from proxy.memory.records import BILL, DAY, TOTAL, DaySum, Event, Kind, StoredText, TextKind, TextRow

VERSION = 4
"""Release 0.1 wrote 1 to 3."""

_HEAD = 5  # one byte of version, four of checksum
_MESSAGE_PACK, _JSON = b"m", b"j"
_FOR_PEOPLE = ("summary", "key")
"""Kinds of records that are written as JSON, so that people can read them where they are stored."""

P = ParamSpec("P")
T = TypeVar("T")
Names = tuple[bytes, bytes]
"""A tenant and a conversation, as keys and columns hold them."""


class UnreadableRecordError(ValueError):
    """The record is damaged, belongs to another place, or is of another version."""


class _Edit(msgspec.Struct, frozen=True):
    """One of the two: msgspec cannot tell dataclasses apart by their fields."""

    replace: Replace | None = None
    fold: Fold | None = None


_PARTS: Mapping[str, tuple[Any, ...]] = {
    "decision": (str, tuple[_Edit, ...], str, bool, bool),
    "shed": (str, tuple[_Edit, ...], str, bool, bool, int | tuple[int, str]),
    "sent": (Sent,),
    "insert": (Insert,),
    "snapshot": (str, str, bytes),
    "text": (bytes, str),
    "about": (dict[str, str | int | float],),
    "summary": (SummaryRecord,),
    "spent": (str, SummaryCost),
    "event": (Event,),
    "bill": (RequestBill,),
    "conversation": (ConversationRow,),
    "day": (DaySum,),
    "labels": (Labels, str),
    "key": (dict[str, Any],),
}
"""The types of what follows the kind in a record."""
_decoders = {kind: msgspec.msgpack.Decoder(tuple[Literal[kind], *parts]) for kind, parts in _PARTS.items()}  # type: ignore[valid-type]


def decision_bytes(record: StepRecord) -> bytes:
    """The decision of a step, without what was then sent."""
    edits = [_Edit(replace=edit) if isinstance(edit, Replace) else _Edit(fold=edit) for edit in record.edits]
    fields = record.anchor, edits, record.reason, record.recall, record.dropped
    more = (record.shed, record.keep) if record.keep else record.shed
    return packed("shed", *fields, more) if more else packed("decision", *fields)


def decision(anchor: str, stored: object) -> StepRecord:
    """The decision at `anchor`, without what was then sent."""
    try:
        name, edits, reason, recall, dropped, more = (*_unpacked(stored, "decision"), 0)
    except UnreadableRecordError:
        name, edits, reason, recall, dropped, more = _unpacked(stored, "shed")
    _check(name == anchor, "step")
    shed, keep = more if isinstance(more, tuple) else (more, "")
    edits = tuple(each.replace or each.fold for each in edits)
    return StepRecord(anchor, edits, reason, recall=recall, dropped=dropped, shed=shed, keep=keep)


def sent(stored: object) -> Sent:
    return _unpacked(stored, "sent")[0]  # type: ignore[no-any-return]  # its decoder says so


def insert(after: str, stored: object) -> Insert:
    """The exchange behind a reply to the step that ends at `after`."""
    record: Insert = _unpacked(stored, "insert")[0]
    _check(record.after == after, "step")
    return record


def snapshot(fingerprint: str, anchor: str, stored: object) -> Snapshot:
    """The snapshot of the step that ends at `anchor`, under this fingerprint."""
    by, name, state = _unpacked(stored, "snapshot")
    _check((by, name) == (fingerprint, anchor), "step")
    return Snapshot(name, by, state)


def text(name: bytes, stored: object) -> str:
    text_name, text = _unpacked(stored, "text")
    _check(text_name == name, "name")
    return str(text)


def about(stored: object) -> Mapping[str, str | int | float]:
    """What a list shows of a text."""
    about: dict[str, str | int | float] = _unpacked(stored, "about")[0]
    return about


def summary(id: str, first: str, stored: object) -> SummaryRecord:
    """The summary of this id, of what begins with `first`."""
    record: SummaryRecord = _unpacked(stored, "summary")[0]
    _check((record.id, record.first) == (id, first), "id")
    return record


def spent(kind: str, stored: object) -> SummaryCost:
    name, cost = _unpacked(stored, "spent")
    _check(name == kind, "kind")
    return cost  # type: ignore[no-any-return]  # its decoder says so


def event(conversation: object, stored: object) -> Event:
    """An event of this conversation, which is named as it is stored. Raises UnicodeDecodeError, too."""
    record: Event = _unpacked(stored, "event")[0]
    _check(record.conversation == name(conversation), "conversation")
    return record


def event_of(tenant: object, conversation: object, stored: object) -> tuple[str, Event]:
    """An event, and its tenant. Raises UnicodeDecodeError, too."""
    return name(tenant), event(conversation, stored)


def record_of(kind: str, stored: object) -> Any:
    """The first part of a record of this kind."""
    return _unpacked(stored, kind)[0]


_ROWS: Mapping[Kind, tuple[str, Callable[[Any], str]]] = {
    BILL: ("bill", attrgetter("conversation")),
    TOTAL: ("conversation", attrgetter("conversation")),
    DAY: ("day", attrgetter("day")),
}
"""What rows are called as records, and where they say their place."""


def row(kind: Kind, tenant: object, place: object, stored: object) -> Any:
    """A row of this place. Raises UnicodeDecodeError, too."""
    record_kind, place_of = _ROWS[kind]
    record = record_of(record_kind, stored)
    _check((record.labels.tenant, place_of(record)) == (name(tenant), name(place)), "place")
    return record


def row_bytes(kind: Kind, value: Any) -> bytes:
    """A value of this kind as it is stored."""
    return packed(_ROWS[kind][0], value) if kind in _ROWS else value


def labels(stored: object) -> tuple[Labels, str]:
    """The labels of a row whose sums stand apart, and the outcome of the prefix."""
    record: tuple[Labels, str] = _unpacked(stored, "labels")
    return record


def sums(pairs: bytes) -> BillSums:
    """Sums that a server has added up, written as the names and values of those that are not 0."""
    words = iter(pairs.decode("ascii", "replace").split())
    try:
        return msgspec.convert(dict(zip(words, words, strict=True)), BillSums, strict=False)
    except (msgspec.MsgspecError, ValueError) as error:
        raise UnreadableRecordError(str(error)) from error


def seconds(stored: object) -> float:
    """A time, which is stored as a number or in digits."""
    try:
        return float(stored) if isinstance(stored, int | float | bytes) else 0.0
    except ValueError as error:
        raise UnreadableRecordError("it is no time") from error


def name_bytes(text: str) -> bytes:
    """A tenant's name, a conversation's or another, as keys and columns hold it."""
    return text.encode("utf-8", "surrogatepass")


def name(stored: object) -> str:
    """Raises UnreadableRecordError, UnicodeDecodeError."""
    if not isinstance(stored, bytes):
        raise UnreadableRecordError("it is no name")
    return stored.decode("utf-8", "surrogatepass")


def readable(records: Iterable[T | None]) -> list[T]:
    """Those that are there and could be read."""
    return [record for record in records if record is not None]


def names_of(key: Key) -> Names:
    return name_bytes(key.tenant), name_bytes(key.conversation)


def place(kind: str, *names: bytes) -> bytes:
    """What a record is sealed for: its kind, its tenant and conversation, and its name there."""
    parts = (kind.encode(), *names)
    return b"".join(b"%d:%s" % (len(part), part) for part in parts)


def _snapshot_place(names: Names, fingerprint: str, anchor: str) -> bytes:
    return place("snapshot", *names, name_bytes(fingerprint), name_bytes(anchor))


def _check(is_right: bool, what: str) -> None:
    if not is_right:
        raise UnreadableRecordError(f"it belongs to another {what}")


def packed(kind: str, *parts: object) -> bytes:
    """A record of this kind: its parts as `_PARTS` names them."""
    try:
        if kind in _FOR_PEOPLE:
            body = _JSON + msgspec.json.encode((kind, *parts))
        else:
            body = _MESSAGE_PACK + msgspec.msgpack.encode((kind, *parts))
    except UnicodeEncodeError:
        body = _JSON + json.dumps(msgspec.to_builtins((kind, *parts))).encode("ascii")
    version = bytes([VERSION])
    return version + crc32(version + body).to_bytes(4, "big") + body


def _unpacked(stored: object, kind: str) -> tuple[Any, ...]:
    """The parts of a record of this kind."""
    if not isinstance(stored, bytes) or len(stored) <= _HEAD or stored[0] != VERSION:
        raise UnreadableRecordError("it is not a record of this version")
    if crc32(stored[:1] + stored[_HEAD:]) != int.from_bytes(stored[1:_HEAD], "big"):
        raise UnreadableRecordError("its checksum is wrong")
    decoder, body = _decoders[kind], memoryview(stored)[_HEAD + 1 :]
    try:
        is_json = stored[_HEAD : _HEAD + 1] == _JSON
        parts = msgspec.convert(json.loads(bytes(body)), decoder.type) if is_json else decoder.decode(body)
    except (msgspec.MsgspecError, ValueError) as error:
        raise UnreadableRecordError(str(error)) from error
    return parts[1:]


class Codec:
    """Seals what is to be stored and reads what is stored. Counts what cannot be read as `misses`."""

    def __init__(self, keyring: Keyring | None = None) -> None:
        self.misses = 0
        self._keyring = keyring

    def read(self, read: Callable[P, T | None], *stored: P.args, **more: P.kwargs) -> T | None:
        """What `read` returns for what was never sealed. None where the last of `stored` is None, and, which is a
        miss, where it cannot be read."""
        if stored[-1] is None:
            return None
        try:
            return read(*stored, **more)
        except (UnreadableRecordError, UnicodeDecodeError):
            self.misses += 1
            return None

    def row(self, kind: Kind, tenant: bytes, place: bytes, stored: object) -> Any:
        """A value of this kind; None where it cannot be read."""
        return self.read(row, kind, tenant, place, stored) if kind in _ROWS else stored

    def open(self, place: bytes, read: Callable[[bytes], T], stored: object) -> T | None:
        """What `read` returns for what may be sealed for this place; None as in `read`."""
        return self.read(lambda sealed: read(self._plain(place, sealed)), stored)

    def seal(self, place: bytes, record: bytes) -> bytes:
        """The record as it is stored."""
        return record if self._keyring is None else self._keyring.seal(place, record)

    def is_newest(self, stored: object) -> bool:
        """Whether it is stored as it would be now: with the newest key."""
        return self._keyring is None or (isinstance(stored, bytes) and self._keyring.is_newest(stored))

    def decision_bytes(self, names: Names, record: StepRecord) -> bytes:
        there = place("decision", *names, name_bytes(record.anchor))
        return self.seal(there, decision_bytes(record))

    def step(self, names: Names, anchor: str, stored: object, stored_sent: object, at: object) -> StepRecord | None:
        """The record of a step, or what can be read of it."""
        there, when = place("decision", *names, name_bytes(anchor)), self.read(seconds, at) or 0.0
        record = self.open(there, partial(decision, anchor), stored)
        return None if record is None else replace(record, sent=self.read(sent, stored_sent), at=when)

    async def claimed(
        self,
        names: Names,
        record: StepRecord,
        write: Callable[[bytes, bytes | None], Awaitable[Sequence[Any]]],
        mend: Callable[[Any, bytes], Awaitable[object]],
        supersedes: bool = False,
    ) -> StepRecord:
        """The record that counts: the first that can be read, or this one. `write` takes a decision, and what was sent;
        it returns the row that is then stored. `mend` takes the decision of that row, and what takes its place.
        `supersedes`: this one counts, whatever is stored."""
        decision = self.decision_bytes(names, record)
        sent = None if record.sent is None else packed("sent", record.sent)
        row = await write(decision, sent)
        if supersedes:
            await mend(row[0], decision)
            return record
        first = self.step(names, record.anchor, *row)
        if first is not None and self.is_newest(row[0]):
            return first
        # A decision that cannot be read cannot be followed: the next writer is the first.
        await mend(row[0], self.decision_bytes(names, first or record))
        return first or self.step(names, record.anchor, *await write(decision, sent)) or record

    def is_sound(self, names: Names, anchor: str, stored: object) -> bool:
        """Whether the decision of a step can be read, and is sealed with the newest key. Counts no miss."""
        misses = self.misses
        readable = self.step(names, anchor, stored, None, None) is not None
        self.misses = misses
        return readable and self.is_newest(stored)

    def snapshot_bytes(self, names: Names, snapshot: Snapshot) -> bytes:
        there = _snapshot_place(names, snapshot.fingerprint, snapshot.anchor)
        return self.seal(there, packed("snapshot", snapshot.fingerprint, snapshot.anchor, snapshot.state))

    def snapshot(self, names: Names, fingerprint: str, anchor: str, stored: object) -> Snapshot | None:
        there = _snapshot_place(names, fingerprint, anchor)
        return self.open(there, partial(snapshot, fingerprint, anchor), stored)

    def insert_bytes(self, names: Names, insert: Insert) -> bytes:
        return self.seal(place("insert", *names, name_bytes(insert.after)), packed("insert", insert))

    def insert(self, names: Names, anchor: str, stored: object) -> Insert | None:
        there = place("insert", *names, name_bytes(anchor))
        return self.open(there, partial(insert, anchor), stored)

    def summary_bytes(self, names: Names, record: SummaryRecord) -> bytes:
        return self.seal(place("summary", *names, name_bytes(record.id)), packed("summary", record))

    def summary(self, names: Names, id: str, first: str, stored: object) -> SummaryRecord | None:
        there = place("summary", *names, name_bytes(id))
        return self.open(there, partial(summary, id, first), stored)

    def text_rows(self, names: Names, kind: TextKind, texts: Iterable[StoredText]) -> dict[bytes, TextRow]:
        """Texts as they are stored, by their names."""
        rows = {}
        for each in texts:
            name = name_bytes(each.name)
            about = self.seal(place(f"about {kind.name}", *names, name), packed("about", dict(each.about)))
            content = self.seal(place(kind.name, *names, name), packed("text", name, each.text))
            rows[name] = TextRow(about, content, len(about) + len(content))
        return rows

    def listed_text(self, names: Names, kind: TextKind, stored_name: object, stored: object) -> StoredText | None:
        """A text as a list shows it: without the text itself."""
        text_name = self.read(name, stored_name)
        if text_name is None:
            return None
        there = place(f"about {kind.name}", *names, name_bytes(text_name))
        readable = self.open(there, about, stored)
        return None if readable is None else StoredText(text_name, "", readable)

    def texts(self, names: Names, kind: TextKind, rows: Mapping[bytes, TextRow]) -> dict[str, str]:
        """The texts that can be read, by their names."""
        texts = {}
        for name_there, row in rows.items():
            readable = self.open(place(kind.name, *names, name_there), partial(text, name_there), row.content)
            if readable is not None:
                texts[name(name_there)] = readable
        return texts

    def first_text(self, names: Names, kind: TextKind, name: bytes, stored: bytes, new: bytes) -> bytes:
        """The text that stays under this name: where the first one does, what is stored (sealed anew where the key is
        not the newest) as long as it can be read; else the new one."""
        there = place(kind.name, *names, name)
        if not kind.first_stays or self.open(there, partial(text, name), stored) is None:
            return new
        return stored if self.is_newest(stored) else self.seal(there, self._plain(there, stored))

    def _plain(self, place: bytes, stored: object) -> bytes:
        if not isinstance(stored, bytes):
            raise UnreadableRecordError("it is no record")
        if stored[:1] != bytes([SEALED]):
            return stored
        if self._keyring is None:
            raise UnreadableRecordError("it is encrypted, and there is no key")
        try:
            return self._keyring.open(place, stored)
        except SealedError as error:
            raise UnreadableRecordError(str(error)) from error
