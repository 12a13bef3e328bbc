"""How records are written: a version, a checksum, the format, then the record as MessagePack.

Laws
  What is read is what was written, or UnreadableRecordError is raised. A record of another version is unreadable.
  A text may hold what UTF-8, and so MessagePack, cannot (lone surrogates): such a record is written as JSON.
"""

import json
from collections.abc import Mapping
from typing import TypeVar
from zlib import crc32

import msgspec

from policies.model.edits import Fold, Insert, Replace
from policies.model.memory import Sent, StepRecord
from policies.model.summary_record import SummaryCost, SummaryRecord
from proxy.store import Event

VERSION = 4
"""Release 0.1 wrote 1 to 3."""

_HEAD = 5  # one byte of version, four of checksum
_MESSAGE_PACK, _JSON = b"m", b"j"


class UnreadableRecordError(ValueError):
    """The record is damaged, belongs to another place, or is of another version."""


T = TypeVar("T")


class _Edit(msgspec.Struct, frozen=True):
    """One of the two: msgspec cannot tell dataclasses apart by their fields."""

    replace: Replace | None = None
    fold: Fold | None = None


class _Decision(msgspec.Struct, tag="decision", frozen=True):
    anchor: str
    edits: tuple[_Edit, ...]
    reason: str
    recall: bool
    dropped: bool


class _Insert(msgspec.Struct, tag="insert", frozen=True):
    insert: Insert


class _Text(msgspec.Struct, tag="text", frozen=True):
    name: bytes
    text: str


class _About(msgspec.Struct, tag="about", frozen=True):
    about: dict[str, str | int | float]


class _Summary(msgspec.Struct, tag="summary", frozen=True):
    summary: SummaryRecord


class _Spent(msgspec.Struct, tag="spent", frozen=True):
    kind: str
    spent: SummaryCost


class _Event(msgspec.Struct, tag="event", frozen=True):
    event: Event


_decisions = msgspec.msgpack.Decoder(_Decision)
_inserts = msgspec.msgpack.Decoder(_Insert)
_texts = msgspec.msgpack.Decoder(_Text)
_abouts = msgspec.msgpack.Decoder(_About)
_sents = msgspec.msgpack.Decoder(Sent)
_summaries = msgspec.msgpack.Decoder(_Summary)
_spents = msgspec.msgpack.Decoder(_Spent)
_events = msgspec.msgpack.Decoder(_Event)


def decision_bytes(record: StepRecord) -> bytes:
    """The decision of a step, without what was then sent."""
    edits = tuple(_Edit(replace=edit) if isinstance(edit, Replace) else _Edit(fold=edit) for edit in record.edits)
    return _packed(_Decision(record.anchor, edits, record.reason, record.recall, record.dropped))


def decision(anchor: str, stored: object) -> StepRecord:
    """The decision at `anchor`, without what was then sent. Raises UnreadableRecordError."""
    record = _unpacked(stored, _decisions)
    _check(record.anchor == anchor, "step")
    edits = tuple(edit for each in record.edits if (edit := each.replace or each.fold) is not None)
    return StepRecord(anchor, edits, record.reason, recall=record.recall, dropped=record.dropped)


def sent_bytes(sent: Sent | None) -> bytes | None:
    """What was sent; None before anything was."""
    return None if sent is None else _packed(sent)


def sent(stored: object) -> Sent | None:
    """What was sent, if anything was. Raises UnreadableRecordError."""
    return None if stored is None else _unpacked(stored, _sents)


def insert_bytes(insert: Insert) -> bytes:
    """The recall exchange behind a reply."""
    return _packed(_Insert(insert))


def insert(after: str, stored: object) -> Insert:
    """The exchange behind a reply to the step that ends at `after`. Raises UnreadableRecordError."""
    record = _unpacked(stored, _inserts).insert
    _check(record.after == after, "step")
    return record


def text_bytes(name: bytes, text: str) -> bytes:
    """A text that is kept for people, with its name."""
    return _packed(_Text(name, text))


def text(name: bytes, stored: object) -> str:
    """The text of this name. Raises UnreadableRecordError."""
    record = _unpacked(stored, _texts)
    _check(record.name == name, "name")
    return record.text


def about_bytes(about: Mapping[str, str | int | float]) -> bytes:
    """What a list shows of a text that is kept for people."""
    return _packed(_About(dict(about)))


def about(stored: object) -> Mapping[str, str | int | float]:
    """What a list shows of it. Raises UnreadableRecordError."""
    return _unpacked(stored, _abouts).about


def summary_bytes(record: SummaryRecord) -> bytes:
    """A summary with its provenance."""
    return _packed(_Summary(record))


def summary(id: str, first: str, stored: object) -> SummaryRecord:
    """The summary of this id, of what begins with `first`. Raises UnreadableRecordError."""
    record = _unpacked(stored, _summaries).summary
    _check((record.id, record.first) == (id, first), "id")
    return record


def spent_bytes(kind: str, spent: SummaryCost) -> bytes:
    """What was spent for `kind`."""
    return _packed(_Spent(kind, spent))


def spent(kind: str, stored: object) -> SummaryCost:
    """What was spent for `kind`. Raises UnreadableRecordError."""
    record = _unpacked(stored, _spents)
    _check(record.kind == kind, "kind")
    return record.spent


def event_bytes(event: Event) -> bytes:
    """An event."""
    return _packed(_Event(event))


def event(conversation: str, stored: object) -> Event:
    """An event of this conversation. Raises UnreadableRecordError."""
    record = _unpacked(stored, _events).event
    _check(record.conversation == conversation, "conversation")
    return record


def name_bytes(text: str) -> bytes:
    """A tenant's name, a conversation's or another, as keys and columns hold it."""
    return text.encode("utf-8", "surrogatepass")


def name(stored: object) -> str:
    """The name. Raises UnreadableRecordError, UnicodeDecodeError."""
    if not isinstance(stored, bytes):
        raise UnreadableRecordError("it is no name")
    return stored.decode("utf-8", "surrogatepass")


def _check(is_right: bool, what: str) -> None:
    if not is_right:
        raise UnreadableRecordError(f"it belongs to another {what}")


def _packed(record: object) -> bytes:
    try:
        body = _MESSAGE_PACK + msgspec.msgpack.encode(record)
    except UnicodeEncodeError:
        body = _JSON + json.dumps(msgspec.to_builtins(record)).encode("ascii")
    version = bytes([VERSION])
    return version + crc32(version + body).to_bytes(4, "big") + body


def _unpacked(stored: object, decoder: msgspec.msgpack.Decoder[T]) -> T:
    if not isinstance(stored, bytes) or len(stored) <= _HEAD or stored[0] != VERSION:
        raise UnreadableRecordError("it is not a record of this version")
    if crc32(stored[:1] + stored[_HEAD:]) != int.from_bytes(stored[1:_HEAD], "big"):
        raise UnreadableRecordError("its checksum is wrong")
    body = memoryview(stored)[_HEAD + 1 :]
    try:
        if stored[_HEAD : _HEAD + 1] == _JSON:
            record: T = msgspec.convert(json.loads(bytes(body)), decoder.type)
            return record
        return decoder.decode(body)
    except (msgspec.MsgspecError, ValueError) as error:
        raise UnreadableRecordError(str(error)) from error
