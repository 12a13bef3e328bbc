"""What the APIs have in common: JSON that is read with care and written back byte for byte.

Laws: nothing here raises on what a client wrote; what cannot be read is opaque.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import takewhile
from typing import Literal

import msgspec

from policies.context import TokenCounter
from policies.dialects.base import Added, Consent, Fault, Request
from policies.model.conversation import Message, Part
from policies.model.edits import RecallRound
from policies.model.rawjson import Change, Span, UnreadableError, members, spliced

FRAMING = 4
"""Tokens around each message (OpenAI cookbook, counting tokens), in every API: policies cannot tell them apart."""
IMAGE = 765
"""Tokens of an image of middling size: it is never counted as text."""
VOLATILE = frozenset({"id", "message_id", "created", "created_at", "updated_at", "timestamp"})
"""Fields that say nothing to the model and may differ in the next request: they are passed on, and move no anchor."""


def decoded(raw: bytes) -> object:
    """The value; None where there is none, or it cannot be read."""
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
    """The object that an object has at a key; an empty one where there is none."""
    value = holder.get(key) if isinstance(holder, dict) else None
    return value if isinstance(value, dict) else {}


def list_at(holder: object, key: str) -> list[object]:
    """The list that an object has at a key; an empty one where there is none."""
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
    """Whether the client has a cache mark on what came after the newest reply, system text aside."""
    newest = takewhile(lambda message: message.role != "assistant", reversed(messages))
    return any(message.marks for message in newest if message.role not in ("system", "developer"))


def consent(request: Request) -> Consent:
    """An API that takes a history takes an edited one, too."""
    return Consent()


def joined(
    request: Request, changed: Mapping[int, bytes], added: Added | None = None, beside: Change | None = None
) -> bytes:
    """The first message stays."""
    changes = [((added[0], added[0]), added[1])] if added else []
    changes += [beside] if beside else []
    for message, raw in changed.items():
        start, end = request.spans[message]
        changes.append(((start if raw else request.spans[message - 1][1], end), raw))
    return spliced(request.body, changes)


def answered_calls(exchange: RecallRound, texts: Sequence[str]) -> Iterator[tuple[dict[str, object], str]]:
    """The recall calls of a round, read from their JSON, each with the text of its answer."""
    return zip(map(json.loads, exchange.calls), texts, strict=True)


def failure(fault: Fault) -> bytes:
    """The body of an error reply in the words of OpenAI's APIs."""
    kind = fault.kind or ("server_error" if fault.status >= 500 else "invalid_request_error")
    error = {"message": fault.message, "type": kind, "param": fault.param, "code": fault.code}
    return as_json({"error": error})
