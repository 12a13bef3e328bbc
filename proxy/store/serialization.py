"""How records are written: a version, a checksum, the format, then the record as MessagePack.

Laws
  What is read is what was written, or UnreadableRecordError is raised. A record of another version is unreadable.
  A text may hold what UTF-8, and so MessagePack, cannot (lone surrogates): such a record is written as JSON.
"""

import json
from collections.abc import Mapping
from typing import Any, Literal
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


class _Edit(msgspec.Struct, frozen=True):
    """One of the two: msgspec cannot tell dataclasses apart by their fields."""

    replace: Replace | None = None
    fold: Fold | None = None


_PARTS: Mapping[str, tuple[Any, ...]] = {
    "decision": (str, tuple[_Edit, ...], str, bool, bool),
    "sent": (Sent,),
    "insert": (Insert,),
    "text": (bytes, str),
    "about": (dict[str, str | int | float],),
    "summary": (SummaryRecord,),
    "spent": (str, SummaryCost),
    "event": (Event,),
}
"""The types of what follows the kind in a record."""
_decoders = {kind: msgspec.msgpack.Decoder(tuple[Literal[kind], *parts]) for kind, parts in _PARTS.items()}  # type: ignore[valid-type]


def decision_bytes(record: StepRecord) -> bytes:
    """The decision of a step, without what was then sent."""
    edits = [_Edit(replace=edit) if isinstance(edit, Replace) else _Edit(fold=edit) for edit in record.edits]
    return _packed("decision", record.anchor, edits, record.reason, record.recall, record.dropped)


def decision(anchor: str, stored: object) -> StepRecord:
    """The decision at `anchor`, without what was then sent. Raises UnreadableRecordError."""
    name, edits, reason, recall, dropped = _unpacked(stored, "decision")
    _check(name == anchor, "step")
    edits = tuple(each.replace or each.fold for each in edits)
    return StepRecord(anchor, edits, reason, recall=recall, dropped=dropped)


def sent_bytes(sent: Sent | None) -> bytes | None:
    """What was sent; None before anything was."""
    return None if sent is None else _packed("sent", sent)


def sent(stored: object) -> Sent | None:
    """What was sent, if anything was. Raises UnreadableRecordError."""
    record: Sent | None = None if stored is None else _unpacked(stored, "sent")[0]
    return record


def insert_bytes(insert: Insert) -> bytes:
    """The recall exchange behind a reply."""
    return _packed("insert", insert)


def insert(after: str, stored: object) -> Insert:
    """The exchange behind a reply to the step that ends at `after`. Raises UnreadableRecordError."""
    record: Insert = _unpacked(stored, "insert")[0]
    _check(record.after == after, "step")
    return record


def text_bytes(name: bytes, text: str) -> bytes:
    """A text that is kept for people, with its name."""
    return _packed("text", name, text)


def text(name: bytes, stored: object) -> str:
    """The text of this name. Raises UnreadableRecordError."""
    text_name, text = _unpacked(stored, "text")
    _check(text_name == name, "name")
    return str(text)


def about_bytes(about: Mapping[str, str | int | float]) -> bytes:
    """What a list shows of a text that is kept for people."""
    return _packed("about", dict(about))


def about(stored: object) -> Mapping[str, str | int | float]:
    """What a list shows of it. Raises UnreadableRecordError."""
    about: dict[str, str | int | float] = _unpacked(stored, "about")[0]
    return about


def summary_bytes(record: SummaryRecord) -> bytes:
    """A summary with its provenance."""
    return _packed("summary", record)


def summary(id: str, first: str, stored: object) -> SummaryRecord:
    """The summary of this id, of what begins with `first`. Raises UnreadableRecordError."""
    record: SummaryRecord = _unpacked(stored, "summary")[0]
    _check((record.id, record.first) == (id, first), "id")
    return record


def spent_bytes(kind: str, spent: SummaryCost) -> bytes:
    """What was spent for `kind`."""
    return _packed("spent", kind, spent)


def spent(kind: str, stored: object) -> SummaryCost:
    """What was spent for `kind`. Raises UnreadableRecordError."""
    name, record = _unpacked(stored, "spent")
    _check(name == kind, "kind")
    cost: SummaryCost = record
    return cost


def event_bytes(event: Event) -> bytes:
    """An event."""
    return _packed("event", event)


def event(conversation: str, stored: object) -> Event:
    """An event of this conversation. Raises UnreadableRecordError."""
    record: Event = _unpacked(stored, "event")[0]
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


def _packed(kind: str, *parts: object) -> bytes:
    try:
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
