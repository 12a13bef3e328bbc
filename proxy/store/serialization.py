"""How records are written: a version, a checksum, then msgpack.

Law: what is read is what was written, or UnreadableRecordError is raised. A record of another version is unreadable.
"""

from collections.abc import Mapping
from typing import TypeVar
from zlib import crc32

import msgspec

from policies.model.edits import Edit, Exchange, Fold, Insert, Origin, Replace
from policies.model.memory import Sent, StepRecord
from policies.model.summary_record import Kind, SummaryCost, SummaryRecord
from proxy.store import Event

VERSION = 4
"""Release 0.1 wrote 1 to 3."""

_HEAD = 5  # one byte of version, four of checksum


class UnreadableRecordError(ValueError):
    """The record is damaged, belongs to another place, or is of another version."""


T = TypeVar("T")


class _Replace(msgspec.Struct, tag="replace", frozen=True):
    at: str
    text: bytes
    by: str
    needs: str = ""
    otherwise: bytes = b""


class _Origin(msgspec.Struct, frozen=True):
    id: str
    model: bytes
    policy: str
    prompt: str
    at: float
    last: str
    generation: int
    cost: float


class _Fold(msgspec.Struct, tag="fold", frozen=True):
    first: str
    last: str
    text: bytes
    by: str
    origin: _Origin | None = None
    system: bool = False


class _Decision(msgspec.Struct, tag="decision", frozen=True):
    anchor: str
    edits: tuple[_Replace | _Fold, ...]
    reason: str
    recall: bool
    dropped: bool


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
    dialect: str = "openai_chat"


class _Text(msgspec.Struct, tag="text", frozen=True):
    name: bytes
    text: bytes


class _About(msgspec.Struct, tag="about", frozen=True):
    about: dict[str, bytes | int | float]


class _Summary(msgspec.Struct, tag="summary", frozen=True):
    id: str
    conversation: bytes
    first: str
    last: str
    sources: tuple[str, ...]
    model: bytes
    content: bytes
    tokens_before: int
    tokens_after: int
    created_at: float
    policy: str
    prompt: str
    kind: Kind
    generation: int
    previous: str
    rejected: str
    owner: str
    spent: SummaryCost
    lines: tuple[int, int] = (0, 0)


class _Spent(msgspec.Struct, tag="spent", frozen=True):
    kind: bytes
    spent: SummaryCost


class _Event(msgspec.Struct, tag="event", frozen=True):
    at: float
    conversation: bytes
    name: bytes
    details: tuple[tuple[bytes, bytes | int | float], ...]


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
    edits = tuple(_written(edit) for edit in record.edits)
    return _packed(_Decision(record.anchor, edits, record.reason, record.recall, record.dropped))


def decision(anchor: str, stored: object) -> StepRecord:
    """The decision at `anchor`, without what was then sent. Raises UnreadableRecordError."""
    record = _unpacked(stored, _decisions)
    if record.anchor != anchor:
        raise UnreadableRecordError("it belongs to another step")
    return StepRecord(
        anchor, tuple(_read(edit) for edit in record.edits), record.reason, recall=record.recall, dropped=record.dropped
    )


def sent_bytes(sent: Sent | None) -> bytes | None:
    """What was sent; None before anything was."""
    return None if sent is None else _packed(sent)


def sent(stored: object) -> Sent | None:
    """What was sent, if anything was. Raises UnreadableRecordError."""
    return None if stored is None else _unpacked(stored, _sents)


def insert_bytes(insert: Insert) -> bytes:
    """The recall exchange behind a reply."""
    rounds = (
        _Exchange(each.text, tuple(map(_raw, each.calls)), each.places, _raw(each.fields), each.last)
        for each in insert.rounds
    )
    return _packed(_Insert(insert.after, insert.reply, tuple(rounds), insert.dialect))


def insert(after: str, stored: object) -> Insert:
    """The exchange behind a reply to the step that ends at `after`. Raises UnreadableRecordError."""
    record = _unpacked(stored, _inserts)
    if record.after != after:
        raise UnreadableRecordError("it belongs to another step")
    rounds = (
        Exchange(each.text, tuple(map(_text, each.calls)), each.places, _text(each.fields), each.last)
        for each in record.rounds
    )
    return Insert(after, record.reply, tuple(rounds), record.dialect)


def text_bytes(name: bytes, text: str) -> bytes:
    """A text that is kept for people, with its name."""
    return _packed(_Text(name, _raw(text)))


def text(name: bytes, stored: object) -> str:
    """The text of this name. Raises UnreadableRecordError."""
    record = _unpacked(stored, _texts)
    if record.name != name:
        raise UnreadableRecordError("it has another name")
    return _text(record.text)


def about_bytes(about: Mapping[str, str | int | float]) -> bytes:
    """What a list shows of a text that is kept for people."""
    return _packed(_About({name: _raw(each) if isinstance(each, str) else each for name, each in about.items()}))


def about(stored: object) -> Mapping[str, str | int | float]:
    """What a list shows of it. Raises UnreadableRecordError."""
    record = _unpacked(stored, _abouts).about
    return {name: _text(each) if isinstance(each, bytes) else each for name, each in record.items()}


def summary_bytes(record: SummaryRecord) -> bytes:
    """A summary with its provenance."""
    fields = {name: getattr(record, name) for name in _Summary.__struct_fields__}
    return _packed(_Summary(**fields | {name: _raw(fields[name]) for name in _ANY_TEXT}))


def summary(id: str, first: str, stored: object) -> SummaryRecord:
    """The summary of this id, of what begins with `first`. Raises UnreadableRecordError."""
    record = _unpacked(stored, _summaries)
    if (record.id, record.first) != (id, first):
        raise UnreadableRecordError("it is another summary")
    fields = msgspec.structs.asdict(record)
    return SummaryRecord(**fields | {name: _text(fields[name]) for name in _ANY_TEXT})


_ANY_TEXT = ("conversation", "model", "content")
"""Fields of a summary that come from outside, and may hold what UTF-8 cannot."""


def spent_bytes(kind: str, spent: SummaryCost) -> bytes:
    """What was spent for `kind`."""
    return _packed(_Spent(_raw(kind), spent))


def spent(kind: str, stored: object) -> SummaryCost:
    """What was spent for `kind`. Raises UnreadableRecordError."""
    record = _unpacked(stored, _spents)
    if record.kind != _raw(kind):
        raise UnreadableRecordError("it belongs to another kind")
    return record.spent


def event_bytes(event: Event) -> bytes:
    """An event."""
    details = ((_raw(name), _raw(each) if isinstance(each, str) else each) for name, each in event.details.items())
    return _packed(_Event(event.at, _raw(event.conversation), _raw(event.name), tuple(details)))


def event(conversation: str, stored: object) -> Event:
    """An event of this conversation. Raises UnreadableRecordError."""
    record = _unpacked(stored, _events)
    if record.conversation != _raw(conversation):
        raise UnreadableRecordError("it belongs to another conversation")
    details = ((_text(name), _text(each) if isinstance(each, bytes) else each) for name, each in record.details)
    return Event(record.at, conversation, _text(record.name), dict(details))


def name_bytes(text: str) -> bytes:
    """A tenant's name, a conversation's or another, as keys and columns hold it."""
    return _raw(text)


def name(stored: object) -> str:
    """The name. Raises UnreadableRecordError, UnicodeDecodeError."""
    if not isinstance(stored, bytes):
        raise UnreadableRecordError("it is no name")
    return _text(stored)


def _raw(text: str) -> bytes:
    # As bytes, because a text may hold lone surrogates, which msgpack's strings cannot.
    return text.encode("utf-8", "surrogatepass")


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogatepass")


def _written(edit: Edit) -> _Replace | _Fold:
    if isinstance(edit, Replace):
        return _Replace(edit.at, _raw(edit.text), edit.by, edit.needs, _raw(edit.otherwise))
    return _Fold(edit.first, edit.last, _raw(edit.text), edit.by, _origin_written(edit.origin), edit.system)


def _read(edit: _Replace | _Fold) -> Edit:
    if isinstance(edit, _Replace):
        return Replace(edit.at, _text(edit.text), edit.by, edit.needs, _text(edit.otherwise))
    return Fold(edit.first, edit.last, _text(edit.text), edit.by, _origin_read(edit.origin), edit.system)


def _origin_written(origin: Origin | None) -> _Origin | None:
    if origin is None:
        return None
    fields = {name: getattr(origin, name) for name in _Origin.__struct_fields__}
    return _Origin(**fields | {"model": _raw(origin.model)})


def _origin_read(origin: _Origin | None) -> Origin | None:
    if origin is None:
        return None
    return Origin(**msgspec.structs.asdict(origin) | {"model": _text(origin.model)})


def _packed(value: object) -> bytes:
    body = bytes([VERSION]) + msgspec.msgpack.encode(value)
    return body[:1] + crc32(body).to_bytes(4, "big") + body[1:]


def _unpacked(stored: object, decoder: msgspec.msgpack.Decoder[T]) -> T:
    if not isinstance(stored, bytes) or len(stored) < _HEAD or stored[0] != VERSION:
        raise UnreadableRecordError("it is not a record of this version")
    if crc32(stored[:1] + stored[_HEAD:]) != int.from_bytes(stored[1:_HEAD], "big"):
        raise UnreadableRecordError("its checksum is wrong")
    try:
        return decoder.decode(stored[_HEAD:])
    except msgspec.MsgspecError as error:
        raise UnreadableRecordError(str(error)) from error
