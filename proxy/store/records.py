"""How records are written: a version, a checksum, then msgpack.

Law: what comes back is what was written, or UnreadableError; never something else. Another version is unreadable.
"""

from typing import TypeVar
from zlib import crc32

import msgspec

from policies.context import Sent, StepRecord
from policies.edits import Edit, Exchange, Fold, Insert, Replace

VERSION = 2

_HEAD = 5  # one byte of version, four of checksum


class UnreadableError(ValueError):
    """Not whole, not unharmed, or not of this version."""


class _Replace(msgspec.Struct, tag="replace", frozen=True):
    at: str
    text: bytes
    by: str
    needs: str = ""
    otherwise: bytes = b""


class _Fold(msgspec.Struct, tag="fold", frozen=True):
    first: str
    last: str
    text: bytes
    by: str


class _Decision(msgspec.Struct, tag="decision", frozen=True):
    anchor: str
    edits: tuple[_Replace | _Fold, ...]
    reason: str
    recall: bool


class _Exchange(msgspec.Struct, frozen=True):
    text: int
    calls: tuple[bytes, ...]
    places: tuple[int, ...]
    fields: bytes
    last: bool


class _Insert(msgspec.Struct, tag="insert", frozen=True):
    after: str
    reply: str
    rounds: tuple[_Exchange, ...]


class _Original(msgspec.Struct, tag="original", frozen=True):
    ref: bytes
    text: bytes


T = TypeVar("T")

_decisions = msgspec.msgpack.Decoder(_Decision)
_inserts = msgspec.msgpack.Decoder(_Insert)
_originals = msgspec.msgpack.Decoder(_Original)
_sents = msgspec.msgpack.Decoder(Sent)


def decision_bytes(record: StepRecord) -> bytes:
    """What was decided, without what was then sent."""
    edits = tuple(_written(edit) for edit in record.edits)
    return _sealed(_Decision(record.anchor, edits, record.reason, record.recall))


def decision(anchor: str, stored: object) -> StepRecord:
    """What was decided at `anchor`, without what was then sent. Raises UnreadableError."""
    found = _unsealed(stored, _decisions)
    if found.anchor != anchor:
        raise UnreadableError("it belongs to another step")
    return StepRecord(anchor, tuple(_read(edit) for edit in found.edits), found.reason, recall=found.recall)


def sent_bytes(sent: Sent | None) -> bytes | None:
    """What was sent, once something was."""
    return None if sent is None else _sealed(sent)


def sent(stored: object) -> Sent | None:
    """What was sent, if something was. Raises UnreadableError."""
    return None if stored is None else _unsealed(stored, _sents)


def insert_bytes(insert: Insert) -> bytes:
    """The recall exchange behind a reply."""
    rounds = (
        _Exchange(each.text, tuple(map(_raw, each.calls)), each.places, _raw(each.fields), each.last)
        for each in insert.rounds
    )
    return _sealed(_Insert(insert.after, insert.reply, tuple(rounds)))


def insert(after: str, stored: object) -> Insert:
    """The exchange behind a reply to the step that ends at `after`. Raises UnreadableError."""
    found = _unsealed(stored, _inserts)
    if found.after != after:
        raise UnreadableError("it belongs to another step")
    rounds = (
        Exchange(each.text, tuple(map(_text, each.calls)), each.places, _text(each.fields), each.last)
        for each in found.rounds
    )
    return Insert(after, found.reply, tuple(rounds))


def original_bytes(ref: str, text: str) -> bytes:
    """What a reference stands for."""
    return _sealed(_Original(_raw(ref), _raw(text)))


def original(ref: str, stored: object) -> str:
    """What `ref` stands for. Raises UnreadableError."""
    found = _unsealed(stored, _originals)
    if found.ref != _raw(ref):
        raise UnreadableError("it belongs to another reference")
    return _text(found.text)


def is_original(stored: object) -> bool:
    """Whether it is an original that can be read."""
    try:
        _unsealed(stored, _originals)
    except UnreadableError:
        return False
    return True


def _raw(text: str) -> bytes:
    # As bytes, because a text may hold lone surrogates, which msgpack's strings cannot.
    return text.encode("utf-8", "surrogatepass")


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogatepass")


def _written(edit: Edit) -> _Replace | _Fold:
    if isinstance(edit, Replace):
        return _Replace(edit.at, _raw(edit.text), edit.by, edit.needs, _raw(edit.otherwise))
    return _Fold(edit.first, edit.last, _raw(edit.text), edit.by)


def _read(edit: _Replace | _Fold) -> Edit:
    if isinstance(edit, _Replace):
        return Replace(edit.at, _text(edit.text), edit.by, edit.needs, _text(edit.otherwise))
    return Fold(edit.first, edit.last, _text(edit.text), edit.by)


def _sealed(value: object) -> bytes:
    body = bytes([VERSION]) + msgspec.msgpack.encode(value)
    return body[:1] + crc32(body).to_bytes(4, "big") + body[1:]


def _unsealed(stored: object, decoder: msgspec.msgpack.Decoder[T]) -> T:
    if not isinstance(stored, bytes) or len(stored) < _HEAD or stored[0] != VERSION:
        raise UnreadableError("it is not a record of this version")
    if crc32(stored[:1] + stored[_HEAD:]) != int.from_bytes(stored[1:_HEAD], "big"):
        raise UnreadableError("its checksum is wrong")
    try:
        return decoder.decode(stored[_HEAD:])
    except msgspec.MsgspecError as error:
        raise UnreadableError(str(error)) from error
