"""How records are written: a version, a checksum, then msgpack.

Law: what comes back is what was written, or UnreadableError; never something else. Another version is unreadable.
"""

from collections.abc import Mapping
from typing import TypeVar
from zlib import crc32

import msgspec

from policies.model.edits import Edit, Exchange, Fold, Insert, Origin, Replace
from policies.model.memory import Sent, StepRecord
from policies.model.summary_record import Kind, SummaryCost, SummaryRecord
from proxy.store import Event

VERSION = 3

_HEAD = 5  # one byte of version, four of checksum


class UnreadableError(ValueError):
    """Not whole, not unharmed, or not of this version."""


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


class _Original(msgspec.Struct, tag="original", frozen=True):
    ref: bytes
    text: bytes


class _Text(msgspec.Struct, tag="text", frozen=True):
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
_originals = msgspec.msgpack.Decoder(_Original)
_texts = msgspec.msgpack.Decoder(_Text)
_abouts = msgspec.msgpack.Decoder(_About)
_sents = msgspec.msgpack.Decoder(Sent)
_summaries = msgspec.msgpack.Decoder(_Summary)
_spents = msgspec.msgpack.Decoder(_Spent)
_events = msgspec.msgpack.Decoder(_Event)


def decision_bytes(record: StepRecord) -> bytes:
    """What was decided, without what was then sent."""
    edits = tuple(_written(edit) for edit in record.edits)
    return _sealed(_Decision(record.anchor, edits, record.reason, record.recall, record.dropped))


def decision(anchor: str, stored: object) -> StepRecord:
    """What was decided at `anchor`, without what was then sent. Raises UnreadableError."""
    found = _unsealed(stored, _decisions)
    if found.anchor != anchor:
        raise UnreadableError("it belongs to another step")
    return StepRecord(
        anchor, tuple(_read(edit) for edit in found.edits), found.reason, recall=found.recall, dropped=found.dropped
    )


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
    return _sealed(_Insert(insert.after, insert.reply, tuple(rounds), insert.dialect))


def insert(after: str, stored: object) -> Insert:
    """The exchange behind a reply to the step that ends at `after`. Raises UnreadableError."""
    found = _unsealed(stored, _inserts)
    if found.after != after:
        raise UnreadableError("it belongs to another step")
    rounds = (
        Exchange(each.text, tuple(map(_text, each.calls)), each.places, _text(each.fields), each.last)
        for each in found.rounds
    )
    return Insert(after, found.reply, tuple(rounds), found.dialect)


def original_bytes(ref: str, text: str) -> bytes:
    """What a reference stands for."""
    return _sealed(_Original(_raw(ref), _raw(text)))


def original(ref: str, stored: object) -> str:
    """What `ref` stands for. Raises UnreadableError."""
    found = _unsealed(stored, _originals)
    if found.ref != _raw(ref):
        raise UnreadableError("it belongs to another reference")
    return _text(found.text)


def text_bytes(text: str) -> bytes:
    """A text that is kept for people."""
    return _sealed(_Text(_raw(text)))


def text(stored: object) -> str:
    """The text. Raises UnreadableError."""
    return _text(_unsealed(stored, _texts).text)


def about_bytes(about: Mapping[str, str | int | float]) -> bytes:
    """What a list says of such a text."""
    return _sealed(_About({name: _raw(each) if isinstance(each, str) else each for name, each in about.items()}))


def about(stored: object) -> Mapping[str, str | int | float]:
    """What a list says of it. Raises UnreadableError."""
    found = _unsealed(stored, _abouts).about
    return {name: _text(each) if isinstance(each, bytes) else each for name, each in found.items()}


def summary_bytes(record: SummaryRecord) -> bytes:
    """A summary with its provenance."""
    fields = {name: getattr(record, name) for name in _Summary.__struct_fields__}
    return _sealed(_Summary(**fields | {name: _raw(fields[name]) for name in _ANY_TEXT}))


def summary(id: str, first: str, stored: object) -> SummaryRecord:
    """The summary of this id, of what begins with `first`. Raises UnreadableError."""
    found = _unsealed(stored, _summaries)
    if (found.id, found.first) != (id, first):
        raise UnreadableError("it is another summary")
    fields = msgspec.structs.asdict(found)
    return SummaryRecord(**fields | {name: _text(fields[name]) for name in _ANY_TEXT})


_ANY_TEXT = ("conversation", "model", "content")
"""What of a summary comes from outside, and may hold what UTF-8 cannot."""


def spent_bytes(kind: str, spent: SummaryCost) -> bytes:
    """What was spent for `kind`."""
    return _sealed(_Spent(_raw(kind), spent))


def spent(kind: str, stored: object) -> SummaryCost:
    """What was spent for `kind`. Raises UnreadableError."""
    found = _unsealed(stored, _spents)
    if found.kind != _raw(kind):
        raise UnreadableError("it was spent for something else")
    return found.spent


def event_bytes(event: Event) -> bytes:
    """Something that happened."""
    details = ((_raw(name), _raw(each) if isinstance(each, str) else each) for name, each in event.details.items())
    return _sealed(_Event(event.at, _raw(event.conversation), _raw(event.name), tuple(details)))


def event(conversation: str, stored: object) -> Event:
    """What happened to this conversation. Raises UnreadableError."""
    found = _unsealed(stored, _events)
    if found.conversation != _raw(conversation):
        raise UnreadableError("it happened to another conversation")
    details = ((_text(name), _text(each) if isinstance(each, bytes) else each) for name, each in found.details)
    return Event(found.at, conversation, _text(found.name), dict(details))


def name_bytes(text: str) -> bytes:
    """A tenant's name, a conversation's or another, as keys and columns hold it."""
    return _raw(text)


def name(stored: object) -> str:
    """The name. Raises UnreadableError, UnicodeDecodeError."""
    if not isinstance(stored, bytes):
        raise UnreadableError("it is no name")
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
