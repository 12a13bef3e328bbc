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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, ParamSpec, TypeVar
from zlib import crc32

import msgspec

from policies.model.edits import Fold, Insert, Replace
from policies.model.memory import Sent, StepRecord
from policies.model.summary_record import SummaryCost, SummaryRecord
from policies.money.bills import BillSums, ConversationRow, Labels, RequestBill
from proxy.config.keyring import SEALED, Keyring, SealedError
from proxy.memory.decisions import Key
from proxy.memory.records import BILL, DAY, SPENT, TOTAL, DaySum, Event, Kind

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
        name, edits, reason, recall, dropped, more = (*unpacked("decision", stored), 0)
    except UnreadableRecordError:
        name, edits, reason, recall, dropped, more = unpacked("shed", stored)
    if name != anchor:
        raise UnreadableRecordError("it belongs to another step")
    shed, keep = more if isinstance(more, tuple) else (more, "")
    edits = tuple(each.replace or each.fold for each in edits)
    return StepRecord(anchor, edits, reason, recall=recall, dropped=dropped, shed=shed, keep=keep)


def unpacked(kind: str, stored: object) -> tuple[Any, ...]:
    """The parts of a record of this kind. Raises UnreadableRecordError."""
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


_PLACES: Mapping[str, Callable[..., object]] = {
    "insert": lambda insert: insert.after,
    "snapshot": lambda fingerprint, anchor, _: (fingerprint, anchor),
    "text": lambda name, _: name,
    "summary": lambda record: (record.id, record.first),
    "spent": lambda kind, _: kind,
    "event": lambda event: event.conversation,
    "bill": lambda bill: (bill.labels.tenant, bill.conversation),
    "conversation": lambda row: (row.labels.tenant, row.conversation),
    "day": lambda row: (row.labels.tenant, row.day),
}
"""Where a record says that it belongs, from its parts."""


def record_of(kind: str, place: object, stored: object) -> Any:
    """The last part of a record of this kind, which belongs to this place. Raises UnreadableRecordError."""
    parts = unpacked(kind, stored)
    if kind in _PLACES and _PLACES[kind](*parts) != place:
        raise UnreadableRecordError("it belongs to another place")
    return parts[-1]


def event_of(tenant: object, conversation: object, stored: object) -> tuple[str, Event]:
    """An event, and its tenant. Raises UnreadableRecordError, UnicodeDecodeError."""
    return name(tenant), record_of("event", name(conversation), stored)


_ROWS: Mapping[Kind, str] = {BILL: "bill", TOTAL: "conversation", DAY: "day", SPENT: "spent"}
"""Kinds of rows that are records, and what they are called as such."""


def row(kind: Kind, tenant: object, place: object, row_name: object, stored: object) -> Any:
    """A row of this place and name. Raises UnreadableRecordError, UnicodeDecodeError."""
    return record_of(_ROWS[kind], name(row_name) if kind == SPENT else (name(tenant), name(place)), stored)


def row_bytes(kind: Kind, row_name: bytes, value: Any) -> bytes:
    """A value of this kind as it is stored."""
    if kind == SPENT:
        return packed("spent", name(row_name), value)
    return packed(_ROWS[kind], value) if kind in _ROWS else value


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
    """The place that a record is sealed for: its kind, its tenant and conversation, and its name there."""
    parts = (kind.encode(), *names)
    return b"".join(b"%d:%s" % (len(part), part) for part in parts)


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


class Codec:
    """Seals what is to be stored and reads what is stored. Counts what cannot be read as `misses`."""

    def __init__(self, keyring: Keyring | None = None) -> None:
        self.misses = 0
        self._keyring = keyring

    def read(self, read: Callable[P, T | None], *stored: P.args, **more: P.kwargs) -> T | None:
        """The record that `read` finds in what was never sealed. None where the last of `stored` is None, and, which is
        a miss, where it cannot be read."""
        if stored[-1] is None:
            return None
        try:
            return read(*stored, **more)
        except (UnreadableRecordError, UnicodeDecodeError):
            self.misses += 1
            return None

    def row(self, kind: Kind, tenant: bytes, place: bytes, name: bytes, stored: object) -> Any:
        """A value of this kind; None where it cannot be read."""
        return self.read(row, kind, tenant, place, name, stored) if kind in _ROWS else stored

    def open(self, place: bytes, read: Callable[[bytes], T], stored: object) -> T | None:
        """The record that `read` finds in what may be sealed for this place; None as in `read`."""
        return self.read(lambda sealed: read(self._plain(place, sealed)), stored)

    def seal(self, place: bytes, record: bytes) -> bytes:
        """The record as it is stored."""
        return record if self._keyring is None else self._keyring.seal(place, record)

    def is_newest(self, stored: object) -> bool:
        """True where it is stored as it would be now: with the newest key."""
        return self._keyring is None or (isinstance(stored, bytes) and self._keyring.is_newest(stored))

    def reseal(self, place: bytes, stored: bytes) -> bytes:
        """The same record, sealed with the newest key."""
        return stored if self.is_newest(stored) else self.seal(place, self._plain(place, stored))

    def seal_record(self, kind: str, names: Names, name: Sequence[str], *parts: object) -> bytes:
        """A record of a conversation as it is stored under a name, which may have several parts."""
        return self.seal(place(kind, *names, *map(name_bytes, name)), packed(kind, *parts))

    def open_record(self, kind: str, names: Names, name: Sequence[str], within: object, stored: object) -> Any:
        """A record that was sealed so, if it says itself that it belongs there (`within`); None as in `read`."""
        return self.open(place(kind, *names, *map(name_bytes, name)), partial(record_of, kind, within), stored)

    def decision_bytes(self, names: Names, record: StepRecord) -> bytes:
        return self.seal(place("decision", *names, name_bytes(record.anchor)), decision_bytes(record))

    def step(self, names: Names, anchor: str, stored: object, stored_sent: object, at: object) -> StepRecord | None:
        """The record of a step, or what can be read of it."""
        there, when = place("decision", *names, name_bytes(anchor)), self.read(seconds, at) or 0.0
        record = self.open(there, partial(decision, anchor), stored)
        if record is None:
            return None
        return replace(record, sent=self.read(record_of, "sent", None, stored_sent), at=when)

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


class ClaimedSteps:
    """Claims decisions, and mends those that cannot be read or are not sealed with the newest key."""

    _codec: Codec

    async def _write_step(
        self, names: Names, record: StepRecord, decision: bytes, sent: bytes | None
    ) -> Sequence[object]:
        """Store a decision, unless there is one, and what was sent; the row that is then stored."""
        raise NotImplementedError

    async def _mend_step(self, names: Names, anchor: str, stored: Any, decision: bytes) -> None:
        """Put a decision in the place of one that is stored."""
        raise NotImplementedError

    async def claim(self, key: Key, record: StepRecord, *, supersedes: bool = False) -> StepRecord:
        names, decision, sent = names_of(key), *self._stored_parts(key, record)
        row = await self._write_step(names, record, decision, sent)
        if supersedes:
            await self._mend_step(names, record.anchor, row[0], decision)
            return record
        first = self._codec.step(names, record.anchor, *row)
        if first is not None and self._codec.is_newest(row[0]):
            return first
        # A decision that cannot be read cannot be followed: the next writer is the first.
        await self._mend_step(names, record.anchor, row[0], self._codec.decision_bytes(names, first or record))
        if first is not None:
            return first
        return self._codec.step(names, record.anchor, *await self._write_step(names, record, decision, sent)) or record

    def _stored_parts(self, key: Key, record: StepRecord) -> tuple[bytes, bytes | None]:
        """The decision of a record, and what was sent."""
        sent = None if record.sent is None else packed("sent", record.sent)
        return self._codec.decision_bytes(names_of(key), record), sent

    async def _claim_unsound(self, rows: Iterable[tuple[Key, StepRecord, bytes, object]]) -> None:
        """Claim the records that were written beside decisions that cannot be followed. Each comes with its decision,
        and the one that is stored."""
        for key, record, decision, first in rows:
            if first != decision:
                misses = self._codec.misses
                step = self._codec.step(names_of(key), record.anchor, first, None, None)
                self._codec.misses = misses  # it is counted once, when it is claimed
                if step is None or not self._codec.is_newest(first):
                    await self.claim(key, record)
