"""The provider's answers, and how they travel: values in, bytes out.

Laws
  Ids derive from the request and its answer, so the same request is always answered with the same bytes.
  `Say` is what a model says, and is held to the rules; the others are faults and probes that a script asks for.
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
JSON_REPLY: Headers = (("Content-Type", "application/json"),)
STREAMING: Headers = (("Content-Type", "text/event-stream; charset=utf-8"), ("Cache-Control", "no-cache"))
CALL_TEXTS = {"function": "arguments", "custom": "input"}
"""The field of each kind of call that holds its text, in chat completions."""
ENCODERS: Mapping[str, Callable[[bytes], bytes]] = {
    "gzip": lambda text: gzip.compress(text, mtime=0),
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstandard.compress,
}


@dataclass(frozen=True, slots=True)
class Wire:
    delay: float = 0.0
    gate: Callable[[], Awaitable[object]] | None = None
    headers: Headers = ()
    encoding: str = ""
    newline: bytes = b"\n"
    before_event: bytes = b""
    """Sent before each event: a comment, say."""
    cuts: Sequence[int] = ()
    """Positions in the body before which a new write begins."""
    die_at: int | None = None
    """After how many bytes of the body the connection is cut; an asynchronous body is sent whole first."""


@dataclass(frozen=True, slots=True)
class Say:
    """A reply of the model in any API: text and calls as in chat completions; streamed, each in so many `pieces`."""

    content: str | None = None
    calls: Sequence[Json] = ()
    finish: str = ""
    """A `finish_reason` other than `tool_calls` where there are calls, and `stop` where there are none."""
    pieces: int = 8
    wire: Wire = field(default_factory=Wire)
    thinking: Sequence[str] = ()
    """Its thoughts before it speaks: signed or encrypted where the API shows it, and always billed."""

    @property
    def finish_reason(self) -> str:
        return self.finish or ("tool_calls" if self.calls else "stop")


@dataclass(frozen=True, slots=True)
class Send:
    """These bytes, whatever the request. An asynchronous body is sent as it comes, and closed if the client leaves."""

    status: int = 200
    body: bytes | AsyncIterable[bytes] = b""
    headers: Headers = JSON_REPLY
    wire: Wire = field(default_factory=Wire)


@dataclass(frozen=True, slots=True)
class Excess:
    """A prompt that is too long: its tokens, those allowed for the answer, and those of the window."""

    prompt: int
    answer: int
    window: int


Wording = Callable[[Excess], Send]
"""How a provider says that a prompt is too long."""


@dataclass(frozen=True, slots=True)
class Reflect:
    """The request itself, as JSON: method, target, headers as pairs, body as latin-1 text (every byte shows)."""

    wire: Wire = field(default_factory=Wire)


@dataclass(frozen=True, slots=True)
class Abort:
    wire: Wire = field(default_factory=Wire)


Answer = Say | Send | Reflect | Abort


@dataclass(frozen=True, slots=True)
class ModelReply:
    say: Say
    request: Json
    usage: Usage
    reasoning_tokens: int
    """The part of the completion's tokens that the model thought."""
    raw: bytes
    headers: MultiMapping[str]

    def id(self, prefix: str) -> str:
        say = self.say
        answer = [say.content, list(say.calls), say.finish_reason, *say.thinking]
        digest = sha256(jsontext.write(answer)).hexdigest()
        return prefix + sha256(self.raw + digest.encode()).hexdigest()[:24]

    @property
    def cache_creation(self) -> dict[str, int]:
        """Tokens written to the cache, by how long it keeps them: Anthropic's fields, which LiteLLM has as well."""
        return {
            "ephemeral_5m_input_tokens": self.usage.written - self.usage.written_longer,
            "ephemeral_1h_input_tokens": self.usage.written_longer,
        }


@dataclass(frozen=True, slots=True)
class ProviderReply:
    status: int
    headers: Headers
    body: Sequence[bytes] | AsyncIterable[bytes]
    wire: Wire = field(default_factory=Wire)


def http_reply(status: int, headers: Headers, parts: Sequence[bytes], wire: Wire, sized: bool = True) -> ProviderReply:
    """The reply with what `wire` does to it. A body that is not `sized` is sent in chunks."""
    if wire.encoding:
        parts = (ENCODERS[wire.encoding](b"".join(parts)),)
        headers = (*headers, ("Content-Encoding", wire.encoding))
    if sized:
        headers = (*headers, ("Content-Length", str(sum(map(len, parts)))))
    if wire.cuts or wire.die_at is not None:
        body = b"".join(parts)
        end = len(body) if wire.die_at is None else min(wire.die_at, len(body))
        places = [0, *sorted(cut for cut in set(wire.cuts) if 0 < cut < end), end]
        parts = [body[start:stop] for start, stop in pairwise(places)]
    return ProviderReply(status, (*headers, *wire.headers), parts, wire)


def server_sent_event(text: bytes, wire: Wire, event: str = "") -> bytes:
    """One server-sent event, with its name where the API names events."""
    name = b"event: " + event.encode() + wire.newline if event else b""
    return wire.before_event + name + b"data: " + text + 2 * wire.newline


def pieces_of(text: str, pieces: int) -> Iterator[str]:
    """The text in at most so many pieces of one length."""
    size = max(1, -(-len(text) // pieces))
    return (text[start : start + size] for start in range(0, len(text), size))


def call_texts(call: Json) -> tuple[str, str]:
    """The name and the arguments (or the input, of a custom tool) of a call of chat completions."""
    kind = call["type"]
    return call[kind]["name"], call[kind][CALL_TEXTS[kind]]
