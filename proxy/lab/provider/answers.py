"""What the provider can answer, and how it travels: values in, bytes out.

Laws
  Ids derive from the request and its answer, so the same request is always answered with the same bytes.
  `Say` is what a model says, and is held to the rules; the others are faults and probes that a script asks
  for.
"""

import gzip
import zlib
from collections.abc import AsyncIterable, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise
from typing import Any

import brotli  # type: ignore[import-untyped]  # it ships no types
import zstandard
from multidict import MultiMapping

from policies.money.prices import Usage
from proxy.lab.provider import jsontext

Json = Mapping[str, Any]
Headers = tuple[tuple[str, str], ...]

CREATED = 1_700_000_000
"""`created` of every answer: a clock would make equal answers differ."""

ENCODERS: Mapping[str, Callable[[bytes], bytes]] = {
    "gzip": lambda text: gzip.compress(text, mtime=0),
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstandard.compress,
}


@dataclass(frozen=True, slots=True)
class Wire:
    """How an answer travels."""

    delay: float = 0.0
    """Seconds before the head is sent."""
    gate: Callable[[], Awaitable[object]] | None = None
    """Awaited before the head is sent."""
    headers: Headers = ()
    """Added to those of the answer."""
    encoding: str = ""
    """A content encoding of `ENCODERS`."""
    newline: bytes = b"\n"
    """What ends the lines of an event."""
    before_event: bytes = b""
    """Sent before each event: a comment, say."""
    cuts: Sequence[int] = ()
    """Positions in the body before which a new write begins."""
    die_at: int | None = None
    """After how many bytes of the body the connection is cut; an asynchronous body is sent whole first."""


@dataclass(frozen=True, slots=True)
class Say:
    """What the model says, in any API: text and calls, as in an assistant message of chat completions; streamed, each
    in so many `pieces`."""

    content: str | None = None
    calls: Sequence[Json] = ()
    finish: str = ""
    """Else `tool_calls` where there are calls, and `stop` where there are none."""
    pieces: int = 8
    wire: Wire = field(default_factory=Wire)
    thinking: Sequence[str] = ()
    """What it thinks first: signed or encrypted where the API shows it, and always billed."""

    @property
    def reason(self) -> str:
        """The `finish_reason`."""
        return self.finish or ("tool_calls" if self.calls else "stop")

    @property
    def digest(self) -> str:
        """A digest of what is said."""
        said = [self.content, list(self.calls), self.reason, *self.thinking]
        return sha256(jsontext.write(said)).hexdigest()


@dataclass(frozen=True, slots=True)
class Send:
    """These bytes, whatever was asked. An asynchronous body is sent as it comes, closed if a client goes."""

    status: int = 200
    body: bytes | AsyncIterable[bytes] = b""
    headers: Headers = (("Content-Type", "application/json"),)
    wire: Wire = field(default_factory=Wire)


@dataclass(frozen=True, slots=True)
class Reflect:
    """What arrived, as JSON: method, target, headers as pairs, body as latin-1 text (every byte shows)."""

    wire: Wire = field(default_factory=Wire)


@dataclass(frozen=True, slots=True)
class Abort:
    """The connection is cut before any head is sent."""

    wire: Wire = field(default_factory=Wire)


Answer = Say | Send | Reflect | Abort


@dataclass(frozen=True, slots=True)
class Turn:
    """What the model says to a request, and what that costs."""

    say: Say
    asked: Json
    usage: Usage
    thought: int
    """Tokens of the completion that the model thought."""
    raw: bytes
    """The request as it came."""
    headers: MultiMapping[str]

    def identity(self, prefix: str) -> str:
        """An id that names this request and its answer."""
        return prefix + sha256(self.raw + self.say.digest.encode()).hexdigest()[:24]


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer ready to be written."""

    status: int
    headers: Headers
    body: Sequence[bytes] | AsyncIterable[bytes]
    wire: Wire = field(default_factory=Wire)


def travelling(status: int, headers: Headers, parts: Sequence[bytes], wire: Wire, sized: bool = True) -> Reply:
    """The reply with what `wire` does to it. A body that is not `sized` is sent in chunks."""
    if wire.encoding:
        parts = (ENCODERS[wire.encoding](b"".join(parts)),)
        headers = (*headers, ("Content-Encoding", wire.encoding))
    if sized:
        headers = (*headers, ("Content-Length", str(sum(map(len, parts)))))
    if wire.cuts or wire.die_at is not None:
        parts = _cut(b"".join(parts), wire)
    return Reply(status, (*headers, *wire.headers), parts, wire)


def _cut(body: bytes, wire: Wire) -> list[bytes]:
    end = len(body) if wire.die_at is None else min(wire.die_at, len(body))
    places = [0, *sorted(cut for cut in set(wire.cuts) if 0 < cut < end), end]
    return [body[start:stop] for start, stop in pairwise(places)]


JSON_REPLY: Headers = (("Content-Type", "application/json"),)
STREAMING: Headers = (("Content-Type", "text/event-stream; charset=utf-8"), ("Cache-Control", "no-cache"))


def whole(value: Json, headers: Headers, wire: Wire) -> Reply:
    """A reply that is one JSON object."""
    return travelling(200, (*headers, *JSON_REPLY), (jsontext.write(value),), wire)


def streamed(events: Sequence[bytes], headers: Headers, wire: Wire) -> Reply:
    """A reply that is a stream of events."""
    return travelling(200, (*headers, *STREAMING), events, wire, sized=False)


def framed(text: bytes, wire: Wire, event: str = "") -> bytes:
    """One server-sent event, with its name where the API says it."""
    name = b"event: " + event.encode() + wire.newline if event else b""
    return wire.before_event + name + b"data: " + text + 2 * wire.newline


def pieces_of(text: str, pieces: int) -> Iterator[str]:
    """The text in so many pieces."""
    size = max(1, -(-len(text) // pieces))
    return (text[start : start + size] for start in range(0, len(text), size))


def call_texts(call: Json) -> tuple[str, str]:
    """The name and the arguments (or the input, of a custom tool) of a call."""
    inner = call[call["type"]]
    return inner["name"], inner["arguments" if call["type"] == "function" else "input"]
