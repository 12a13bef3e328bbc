"""What the provider can answer, and the bytes of it: values in, bytes out.

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

from policies.dialects import Usage
from proxy.provider import jsontext
from proxy.provider.prompt import call_texts

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
    """What the model says: text and calls, as in an assistant message; streamed, each in so many `pieces`."""

    content: str | None = None
    calls: Sequence[Json] = ()
    finish: str = ""
    """Else `tool_calls` where there are calls, and `stop` where there are none."""
    pieces: int = 8
    wire: Wire = field(default_factory=Wire)

    @property
    def reason(self) -> str:
        """The `finish_reason`."""
        return self.finish or ("tool_calls" if self.calls else "stop")

    def message(self) -> dict[str, Any]:
        """The assistant message."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content, "refusal": None}
        return message | ({"tool_calls": list(self.calls)} if self.calls else {})


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


def spoken(say: Say, asked: Json, usage: Usage, raw: bytes) -> Reply:
    """The reply to a chat completion: one object, or a stream of chunks where the request asks for one."""
    identity = "chatcmpl-" + sha256(raw + jsontext.write(say.message())).hexdigest()[:24]
    head = {"id": identity, "created": CREATED, "model": asked["model"]}
    common = (("x-request-id", identity.replace("chatcmpl-", "req_")),)
    if asked.get("stream"):
        events = [_event(chunk, say.wire) for chunk in _chunks(say, asked, usage, head)]
        events.append(_framed(b"[DONE]", say.wire))
        streaming = (("Content-Type", "text/event-stream; charset=utf-8"), ("Cache-Control", "no-cache"))
        return travelling(200, (*common, *streaming), events, say.wire, sized=False)
    body = jsontext.write(_completion(say, asked, usage, head))
    return travelling(200, (*common, ("Content-Type", "application/json")), (body,), say.wire)


def _event(chunk: Json, wire: Wire) -> bytes:
    return _framed(jsontext.write(chunk), wire)


def _framed(text: bytes, wire: Wire) -> bytes:
    return wire.before_event + b"data: " + text + 2 * wire.newline


def _completion(say: Say, asked: Json, usage: Usage, head: Json) -> dict[str, Any]:
    choice = {"message": say.message(), "logprobs": None, "finish_reason": say.reason}
    choices = [{"index": index, **choice} for index in _indexes(asked)]
    return {**head, "object": "chat.completion", "choices": choices, "usage": usage_json(usage)}


def _indexes(asked: Json) -> range:
    return range(asked.get("n") or 1)


def _chunks(say: Say, asked: Json, usage: Usage, head: Json) -> Iterator[dict[str, Any]]:
    """Every chunk of the stream; where usage was asked for, all carry the field and one more fills it."""
    asks_usage = bool((asked.get("stream_options") or {}).get("include_usage"))
    ahead = {**head, "object": "chat.completion.chunk"}
    behind: dict[str, Any] = {"usage": None} if asks_usage else {}
    for index in _indexes(asked):
        for delta, reason in _deltas(say):
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
            yield {**ahead, "choices": [choice], **behind}
    if asks_usage:
        yield {**ahead, "choices": [], "usage": usage_json(usage)}


def _deltas(say: Say) -> Iterator[tuple[dict[str, Any], str | None]]:
    yield {"role": "assistant", "content": "" if say.content is not None else None, "refusal": None}, None
    for text in _pieces(say.content or "", say.pieces):
        yield {"content": text}, None
    for index, call in enumerate(say.calls):
        for fragment in _call_fragments(call, say.pieces):
            yield {"tool_calls": [{"index": index, **fragment}]}, None
    yield {}, say.reason


def _call_fragments(call: Json, pieces: int) -> Iterator[dict[str, Any]]:
    """First who is called, then the growing text of the arguments (or of a custom tool's input)."""
    kind = call["type"]
    key = "arguments" if kind == "function" else "input"
    name, text = call_texts(call)
    yield {"id": call["id"], "type": kind, kind: {"name": name, key: ""}}
    for piece in _pieces(text, pieces):
        yield {kind: {key: piece}}


def _pieces(text: str, pieces: int) -> Iterator[str]:
    size = max(1, -(-len(text) // pieces))
    return (text[start : start + size] for start in range(0, len(text), size))


def usage_json(usage: Usage) -> dict[str, Any]:
    """Usage in the API's own words. Writes are reported as OpenAI does from GPT-5.6 on."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {
            "cached_tokens": usage.cached,
            "cache_write_tokens": usage.written,
            "audio_tokens": 0,
        },
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }
