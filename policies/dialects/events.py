"""Replies as server-sent events or as one body. No state, and nothing here raises on what it reads."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from policies.dialects.common import as_json

Json = dict[str, object]

_BOM = b"\xef\xbb\xbf"
_FAULTS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def is_plain(event: bytes) -> bool:
    """Whether this is the whole body of a reply that is not streamed."""
    return event.removeprefix(_BOM).lstrip()[:1] == b"{"


def events_in(reply: bytes) -> list[bytes]:
    """The events of a whole reply, or its body where it is not streamed."""
    if is_plain(reply):
        return [reply]
    return reply.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n\n")


def text_of(event: bytes) -> bytes:
    """The JSON in an event or a body. A break between two lines of data is white space in JSON."""
    if is_plain(event):
        return event.removeprefix(_BOM)
    lines = event.removeprefix(_BOM).splitlines()
    return b"\n".join(line[5:] for line in lines if line.startswith(b"data:"))


def split_events(events: bytes) -> list[tuple[int, bytes]] | None:
    """Of each of these whole events its length and its JSON, which is empty where it has not one line of data, and
    maybe a name before that. None where they are not parted as nearly all streams part them: by one empty line, of one
    kind; or are not UTF-8."""
    try:
        events.isascii() or events.decode()
    except UnicodeDecodeError:
        return None
    if events.startswith(b"data: {") and events.find(b"\n") == len(events) - 2 and b"\r" not in events:
        return [(len(events), events[6:-2])]
    end = b"\r\n" if b"\r" in events else b"\n"
    blank = end + end
    if events.startswith(end) or blank + end in events or not events.endswith(blank):
        return None
    if len(end) == 2 and not events.count(b"\r") == events.count(b"\n") == events.count(end):
        return None
    split = []
    for event in events.split(blank)[:-1]:
        line = event.partition(end)[2] if event.startswith(b"event:") else event
        text = line[6:] if line.startswith(b"data: {") and end not in line else b""
        split.append((len(event) + len(blank), text))
    return split


def read_event(event: bytes) -> Json | None:
    """The JSON object in an event or a body; None where there is none."""
    if event.startswith(b"data: {"):
        with suppress(*_FAULTS):  # one line of data, as nearly all are
            content: Json = msgspec.json.decode(event[6:])
            return content
    return document(text_of(event))


def document(text: bytes) -> Json | None:
    """The JSON object in a text; None where there is none."""
    value: object = None
    try:
        value = msgspec.json.decode(text)
    except _FAULTS:
        with suppress(ValueError, RecursionError):  # half a surrogate pair: some servers part them between events
            value = json.loads(text) if b"\\u" in text else None
    return value if isinstance(value, dict) else None


def framed(content: Mapping[str, object], named: bool = False) -> bytes:
    """The content as a server-sent event, which can be `named` by its type, where that can stand on a line."""
    kind = content.get("type")
    has_name = named and isinstance(kind, str) and kind.isprintable()  # no line break, no half of a surrogate pair
    name = f"event: {kind}\n".encode() if has_name else b""
    return name + b"data: " + as_json(content) + b"\n\n"


def joined_text(pieces: Sequence[str]) -> str:
    """One text; the halves of a surrogate pair that were parted between pieces are one character again."""
    text = "".join(pieces)
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
