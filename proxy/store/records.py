"""How records are written: a version, a checksum, then msgpack.

Law: what comes back is what was written, or UnreadableError; never something else. Another version is unreadable.
"""

from typing import TypeVar
from zlib import crc32

import msgspec

from policies.context import Sent, StepRecord
from policies.edits import Edit, Fold, Replace

VERSION = 1

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


T = TypeVar("T")

_decisions = msgspec.msgpack.Decoder(_Decision)
_sents = msgspec.msgpack.Decoder(Sent)


def decision_bytes(record: StepRecord) -> bytes:
    """What was decided, without what was then sent."""
    return _sealed(_Decision(record.anchor, tuple(_written(edit) for edit in record.edits), record.reason))


def decision(anchor: str, stored: object) -> tuple[tuple[Edit, ...], str]:
    """The edits decided at `anchor`, and the reason. Raises UnreadableError."""
    found = _unsealed(stored, _decisions)
    if found.anchor != anchor:
        raise UnreadableError("it belongs to another step")
    return tuple(_read(edit) for edit in found.edits), found.reason


def sent_bytes(sent: Sent | None) -> bytes | None:
    """What was sent, once something was."""
    return None if sent is None else _sealed(sent)


def sent(stored: object) -> Sent | None:
    """What was sent, if something was. Raises UnreadableError."""
    return None if stored is None else _unsealed(stored, _sents)


def _written(edit: Edit) -> _Replace | _Fold:
    # As bytes, because a text may hold lone surrogates, which msgpack's strings cannot.
    text = edit.text.encode("utf-8", "surrogatepass")
    if isinstance(edit, Replace):
        return _Replace(edit.at, text, edit.by, edit.needs, edit.otherwise.encode("utf-8", "surrogatepass"))
    return _Fold(edit.first, edit.last, text, edit.by)


def _read(edit: _Replace | _Fold) -> Edit:
    text = edit.text.decode("utf-8", "surrogatepass")
    if isinstance(edit, _Replace):
        return Replace(edit.at, text, edit.by, edit.needs, edit.otherwise.decode("utf-8", "surrogatepass"))
    return Fold(edit.first, edit.last, text, edit.by)


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
