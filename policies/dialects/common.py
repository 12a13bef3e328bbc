"""Common to the APIs: the values that a dialect reads and writes, and JSON that is read with care and written
back byte for byte.

Laws: nothing here raises on what a client wrote; what cannot be read is opaque; what was not edited stays as it is.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import takewhile
from typing import Literal, Protocol

import msgspec
from msgspec import Struct

from policies.context import TokenCounter
from policies.model.conversation import Block, Conversation, Message, Part
from policies.model.edits import Edit, RecallRound, Replace
from policies.model.rawjson import Change, Path, Span, UnreadableError, items, members, replaced, spliced
from policies.money.caches import LONGER_TTL, MarkStyle
from policies.money.prices import Usage
from policies.recall import RecallAnswer
from policies.text.layout import Piece, call_id, pieces_of
from policies.tools import RECALL


class Request(Struct, frozen=True):
    """A request body, split: where its messages stand, and the few fields that matter besides them."""

    body: bytes
    spans: tuple[Span, ...]
    model: str
    tools: Span
    reserve: int | None
    """Tokens that the client allows for the answer."""
    streams: bool
    conversation: str | None
    shared: int = 0
    """How many leading messages are, byte for byte, those of the earlier request it was compared with."""
    lead: Span = (0, 0)
    """Where the text that leads the prompt stands, in an API that has it outside the messages."""
    members: Mapping[str, Span] = {}

    @property
    def tool_list(self) -> bytes:
        return self.body[slice(*self.tools)]

    @property
    def instructions(self) -> bytes:
        """The lead of the prompt besides tools and messages, as the client wrote it; empty where there is none."""
        return self.body[slice(*self.lead)]

    @property
    def brings_tools(self) -> bool:
        return self.tool_list.strip(b"[] \t\r\n") not in (b"", b"null")

    def raw(self, message: int) -> bytes:
        start, end = self.spans[message]
        return self.body[start:end]


@dataclass(frozen=True, slots=True)
class ChoiceResult:
    text: str
    call_ids: tuple[str, ...]
    rounds: tuple[RecallRound, ...]
    tools: tuple[str, ...] = ()
    """Those that its calls name, as often as that."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a request is not served; `param` is the field at fault, `code` a stable name of the reason."""

    status: int
    message: str
    code: str
    param: str | None = None
    kind: str = ""
    """The type that OpenAI's APIs give such an error; "" for the one of its status."""


Added = tuple[int, bytes]
"""The position in a body before which something is added, and what that is."""


@dataclass(frozen=True, slots=True)
class Consent:
    """Needed in a request beside its messages, and in headers, so that its provider takes an edited history."""

    changes: Sequence[Change] = ()
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ours:
    """What a reply to a request may hold that its client must not see."""

    names: frozenset[str] = frozenset({RECALL})
    """The tools of ours that it was sent with."""
    deferred: frozenset[str] = frozenset()
    """The names of the tools whose definitions were deferred."""
    tools: bytes = b""
    """Where there are such, the list as the client wrote it."""


RECALL_ALONE = Ours()


class Reply(Protocol):
    """Reads the reply to one request as it passes, over all rounds in which recall calls are answered.

    Laws: nothing of a recall call, and no seam between rounds, reaches the client; what no recall touches is relayed as
    the very bytes that came; nothing is held back longer than necessary.
    """

    usage: Usage | None
    """Of the round at hand, once the provider has reported it."""
    cache_miss: str
    """Why its cache did not have the prompt, where the client has asked for that and the provider says so; else ""."""

    @property
    def pending(self) -> Sequence[int]:
        """The choices that ended in recall calls alone and wait for their next round, by index."""

    def feed(self, event: bytes, /) -> list[bytes]:
        """Receive one raw server-sent event, or the whole of a JSON reply; returns what the client gets of it now."""

    def feed_all(self, events: bytes, /) -> list[bytes] | None:
        """As `feed` for each of these whole server-sent events; the very object where the client gets all of them as
        they came. None, and nothing has happened, where they are to be fed one by one."""

    def resume(self, choice: int, /) -> None:
        """From now on the next round is fed, for this pending choice alone."""

    def result(self, choice: int, /) -> ChoiceResult:
        """The text and the calls that the client has received of one choice, and the exchanges behind them."""

    @property
    def over(self) -> Sequence[int]:
        """The choices that have come to their end, by index."""

    @property
    def completion(self) -> int:
        """Tokens that the provider billed for answers so far, over all rounds; 0 where it has not reported any."""

    def last_event(self, failure: bytes, /) -> bytes:
        """The body of an error reply (ours or the upstream's) as the event with which the stream breaks off here."""


# --- JSON ---

FRAMING = 4
"""Tokens around each message (OpenAI cookbook, counting tokens), in every API: policies cannot tell them apart."""
IMAGE = 765
"""Tokens of an image of middling size: it is never counted as text."""
VOLATILE = frozenset({"id", "message_id", "created", "created_at", "updated_at", "timestamp"})
"""Fields that say nothing to the model and may differ in the next request: they are passed on, and move no anchor."""


def decoded(raw: bytes) -> object:
    try:
        return msgspec.json.decode(raw) if raw else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def member(body: bytes, spans: Mapping[str, Span], key: str) -> object:
    """The value of a short member of an object; None where it is missing, longer than 10 kB, or unreadable."""
    if key not in spans:
        return None
    start, end = spans[key]
    return decoded(body[start:end]) if end - start <= 10_000 else None


def text_at(holder: object, key: str) -> str:
    """The text that an object has at a key; "" where there is none."""
    value = holder.get(key) if isinstance(holder, dict) else None
    return value if isinstance(value, str) else ""


def object_at(holder: object, key: str) -> dict[str, object]:
    value = holder.get(key) if isinstance(holder, dict) else None
    return value if isinstance(value, dict) else {}


def list_at(holder: object, key: str) -> list[object]:
    value = holder.get(key) if isinstance(holder, dict) else None
    return value if isinstance(value, list) else []


def objects(value: object) -> Iterator[dict[str, object]]:
    """The objects in a list; none where the value is no list."""
    return (entry for entry in value if isinstance(entry, dict)) if isinstance(value, list) else iter(())


def parsed(raw: bytes) -> Mapping[str, object]:
    """The message; where its text cannot be read, its role and all the rest as one opaque field."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        message: dict[str, object] = msgspec.json.decode(raw)
        return message
    with suppress(ValueError, RecursionError):  # lone surrogates, numbers beyond any float
        tolerated: dict[str, object] = json.loads(raw)
        return tolerated
    try:
        role = member(raw, members(raw), "role")
    except UnreadableError:
        role = ""
    return {"role": role, "": raw.decode("utf-8", "replace")}


def as_json(value: object, order: Literal["sorted"] | None = None) -> bytes:
    """Compact JSON; a lone surrogate, which UTF-8 does not know, as an escape."""
    try:
        return msgspec.json.encode(value, order=order)
    except (UnicodeEncodeError, RecursionError):
        return json.dumps(value, separators=(",", ":"), sort_keys=order is not None).encode()


def sorted_json(value: object) -> bytes:
    """Compact JSON with its fields in one order: a client that writes a message again may choose another."""
    return as_json(value, "sorted")


def opaque_fields(
    message: Mapping[str, object],
    read: Collection[str],
    count: TokenCounter,
    write: Callable[[object], bytes] = as_json,
) -> Iterator[Part]:
    """The fields of a message beside those that its dialect reads, each as an opaque part."""
    for key, value in message.items():
        if key not in read and key not in VOLATILE and value is not None:
            text = value if isinstance(value, str) else write(value).decode()
            yield Part("opaque", text, (key,), count(text))


def message_of(
    raw: bytes, role: str, read: Sequence[Part], digest: bytes, marks: int, partial: bool = False
) -> Message:
    """A message that was read into these parts; one without any has an empty one."""
    parts = tuple(read) or (Part("opaque", "", (), 0),)
    return Message(
        role=role,
        parts=parts,
        part_digests=tuple(part.digest() for part in parts),
        digest=digest,
        overhead=FRAMING,
        marks=marks,
        raw=sha256(raw).digest(),
        partial=partial,
    )


def has_newest_marked(messages: Sequence[Message]) -> bool:
    """True where the client has a cache mark on what came after the newest reply, system text aside."""
    newest = takewhile(lambda message: message.role != "assistant", reversed(messages))
    return any(message.marks for message in newest if message.role not in ("system", "developer"))


def consent(request: Request) -> Consent:
    """An API that takes a history takes an edited one, too."""
    return Consent()


def joined(
    request: Request, changed: Mapping[int, bytes], added: Added | None = None, beside: Sequence[Change] = ()
) -> bytes:
    """The body with changed messages, and changes beside them; the first one is never removed."""
    changes = [((added[0], added[0]), added[1])] if added else []
    changes += beside
    for message, raw in changed.items():
        start, end = request.spans[message]
        changes.append(((start if raw else request.spans[message - 1][1], end), raw))
    return spliced(request.body, changes)


def answered_calls(
    exchange: RecallRound, answers: Sequence[RecallAnswer]
) -> Iterator[tuple[dict[str, object], RecallAnswer]]:
    """The calls of ours in a round, read from their JSON, each with its answer."""
    return zip(map(json.loads, exchange.calls), answers, strict=True)


def failure(fault: Fault) -> bytes:
    kind = fault.kind or ("server_error" if fault.status >= 500 else "invalid_request_error")
    error = {"message": fault.message, "type": kind, "param": fault.param, "code": fault.code}
    return as_json({"error": error})


# --- cache marks for the longer lifetime ---

_BEARING = frozenset({"content", "source", "function", "output"})
"""Fields that hold what may carry a mark; what a model wrote as the input of a call is none of them."""


def longer_marks(body: bytes, start: int, end: int) -> Iterator[Change]:
    """The changes by which all cache marks in the value at body[start:end] ask for the longer lifetime."""
    if body.startswith(b"[", start):
        for span in items(body, start, end):
            yield from longer_marks(body, *span)
    elif body.startswith(b"{", start):
        for name, span in members(body, start, end).items():
            if name in LONGER_TTL:
                yield from longer_mark(body, span, LONGER_TTL[name])
            elif name in _BEARING:
                yield from longer_marks(body, *span)


_USUAL = (b'"5m"', b'"30m"')


def longer_mark(body: bytes, span: Span, ttl: bytes) -> Iterator[Change]:
    """The change by which the mark whose value is body[start:end] asks for it; none where that is no mark, or asks for
    anything but the usual lifetime."""
    fields, at = members(body, *span) if body.startswith(b"{", span[0]) else {}, span[1] - 1
    kind = fields.get("type", fields.get("mode", (0, 0)))
    if body[slice(*kind)] not in (b'"ephemeral"', b'"explicit"'):
        return
    if "ttl" not in fields:
        yield (at, at), b',"ttl":' + ttl
    elif body[slice(*fields["ttl"])] in _USUAL:
        yield fields["ttl"], ttl


# --- edits written into a history where a fold stands for whole messages ---


def edited(
    request: Request,
    conversation: Conversation,
    edits: Sequence[Edit],
    stub: Callable[[Piece], bytes],
    exchange: Callable[[str, str, str], bytes],
    value: Callable[[Block, str], bytes] = lambda block, text: as_json(text),
    marked: Callable[[bytes, MarkStyle], bytes | None] = lambda raw, style: None,
    marks_of: Callable[[object], list[MarkStyle]] = lambda holder: [],
) -> dict[int, bytes]:
    """The new bytes of each message that the edits touch, empty bytes where a message goes. `stub` writes a message
    that stands for a fold, and `exchange` a call of the recall tool with its answer, from an id, the arguments and the
    text; `value` writes the text of a block. Where there are cache marks, `marks_of` finds those of an object, and
    `marked` sets one: a fold takes over a mark of the messages that it stands for."""
    texts: dict[int, dict[Path, bytes]] = {}
    changed: dict[int, bytes] = {}
    for edit in edits:
        if isinstance(edit, Replace):
            block = conversation.blocks[conversation.index[edit.at]]
            texts.setdefault(block.message, {})[block.path[1:]] = value(block, edit.text)
            continue
        first = conversation.blocks[conversation.index[edit.first]].message
        last = conversation.blocks[conversation.index[edit.last]].message
        bearing = (i for i in range(first, last + 1) if conversation.messages[i].marks)
        style: MarkStyle = next((mark for i in bearing for mark in marks_of(parsed(request.raw(i)))), "")
        arguments = as_json({"ref": edit.ref}).decode()
        new = b",".join(
            exchange(call_id(edit), arguments, piece.text) if piece.role == "tool" else stub(piece)
            for piece in pieces_of(conversation, edit)
        )
        changed |= {first: marked(new, style) or new, **dict.fromkeys(range(first + 1, last + 1), b"")}
    for message, values in texts.items():
        with suppress(UnreadableError):  # a key is repeated: the message stays as it is
            changed[message] = replaced(request.raw(message), values)
    return changed
