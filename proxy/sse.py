"""Reading a reply as it passes, without changing it: server-sent events as raw slices, encodings decoded on a copy.

Laws (sans-I/O: bytes in, bytes out)
  All events in order, and then `rest`, are the bytes that were fed, however they were split.
  An event is complete at its empty line; LF, CR and CRLF end a line and may be mixed; the work is linear.
  Decoding hands out bounded pieces, so the caller can stop a bomb before it is large.
"""

import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import brotli  # type: ignore[import-untyped]  # it ships no types
import msgspec
import zstandard
from aiohttp.compression_utils import BrotliDecompressor, ZLibDecompressor

_BREAK = re.compile(rb"(?>\r\n|\r|\n)")
_BLANK = re.compile(rb"(?>\r\n|\r|\n)(?>\r\n|\r|\n)")
_ENDS = (b"\n\n", b"\r\n\r\n")
BOM = b"\xef\xbb\xbf"


class Events:
    """Cuts a stream into events, each with its raw bytes and the empty line that ends it."""

    def __init__(self) -> None:
        self._partial = bytearray()
        self._searched = 0

    @property
    def rest(self) -> bytes:
        return bytes(self._partial)

    @property
    def size(self) -> int:
        return len(self._partial)

    def ends_with(self, chunk: bytes) -> bool:
        return not self._partial and chunk.endswith(_ENDS)

    def feed(self, chunk: bytes) -> list[bytes]:
        self._partial += chunk
        events: list[bytes] = []
        start = 0
        while (end := self._end(start)) is not None:
            events.append(bytes(self._partial[start:end]))
            start = self._searched = end
        del self._partial[:start]
        self._searched = len(self._partial)
        return events

    def _end(self, start: int) -> int | None:
        """Where the event that begins at `start` ends, if it is all there.

        The LF of a CRLF that chunks have split becomes an event of its own, without data.
        """
        end = _BREAK.match(self._partial, start) or _BLANK.search(self._partial, max(start, self._searched - 2))
        return end.end() if end else None


def data(event: bytes) -> bytes | None:
    """The data of an event, its lines joined by LF; None where it has none (comments, keep-alives)."""
    fields = [line.partition(b":") for line in event.removeprefix(BOM).splitlines()]
    lines = [value.removeprefix(b" ") for name, _, value in fields if name == b"data"]
    return b"\n".join(lines) if lines else None


class _Typed(msgspec.Struct):
    type: str = ""


_LAST = frozenset({"message_stop", "response.completed", "response.incomplete", "response.failed", "error"})
"""The events with which streams end whose events have types (Claude docs, "Streaming messages"; OpenAI API reference,
"Responses streaming events")."""


def is_last(event: bytes) -> bool:
    """True where a stream ends with this event, as it says itself."""
    text = data(event) or b""
    try:
        return text == b"[DONE]" or msgspec.json.decode(text, type=_Typed).type in _LAST
    except (ValueError, RecursionError):
        return False


class UndecodableError(ValueError):
    """The bytes are not what their Content-Encoding says."""


class TooLargeError(ValueError):
    """Decoded, the body is larger than allowed."""


Decoder = Callable[[bytes], Iterator[bytes]]

_PIECE = 256 * 1024
_ZSTD_WINDOW = 8 * 2**20  # RFC 9659: what a decoder of the web must and need only support
_ZSTD_SLICE = 512  # a run takes 4 bytes and becomes 128 kB: so much input becomes at most 16 MB


def _stepwise(inner: ZLibDecompressor | BrotliDecompressor) -> Decoder:
    def decode(chunk: bytes) -> Iterator[bytes]:
        try:
            piece = inner.decompress_sync(chunk, _PIECE)
            while piece:
                yield piece
                piece = inner.decompress_sync(b"", _PIECE)
        except (zlib.error, brotli.error, ValueError) as error:
            raise UndecodableError(str(error)) from error

    return decode


def _deflate() -> Decoder:
    """Zlib's wrapping, as the standard has it, or the bare stream that some clients send."""
    inner: list[Decoder] = []

    def decode(chunk: bytes) -> Iterator[bytes]:
        if chunk and not inner:
            inner.append(_stepwise(ZLibDecompressor("deflate", suppress_deflate_header=chunk[0] & 0x0F != 8)))
        yield from inner[0](chunk) if inner else ()

    return decode


def _zstd() -> Decoder:
    inner = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompressobj(read_across_frames=True)

    def decode(chunk: bytes) -> Iterator[bytes]:
        try:
            for start in range(0, len(chunk), _ZSTD_SLICE):
                yield inner.decompress(chunk[start : start + _ZSTD_SLICE])
        except zstandard.ZstdError as error:
            raise UndecodableError(str(error)) from error

    return decode


ENCODINGS: Mapping[str, Callable[[], Decoder]] = MappingProxyType(
    {
        "gzip": lambda: _stepwise(ZLibDecompressor("gzip")),
        "x-gzip": lambda: _stepwise(ZLibDecompressor("gzip")),
        "deflate": _deflate,
        "br": lambda: _stepwise(BrotliDecompressor()),
        "zstd": _zstd,
    }
)
"""The decoders of what can be read, by the name that Content-Encoding gives it."""


def decoded(raw: bytes, encoding: str, limit: int) -> bytes:
    """The whole of an encoded body. Raises TooLargeError beyond `limit` bytes, UndecodableError if broken."""
    pieces: list[bytes] = []
    size = 0
    for piece in ENCODINGS[encoding]()(raw):
        size += len(piece)
        if size > limit:
            raise TooLargeError(f"more than {limit} bytes")
        pieces.append(piece)
    return b"".join(pieces)


class Copy:
    """Shows a reply to a reader, decoded: an event at a time, or the whole of a JSON reply. Whole events are offered to
    `receive` first, all at once: only where it returns None they are shown one by one.

    A reply that cannot be decoded is not shown, nor one that is larger than `limit` bytes or has such an event, nor the
    rest of it to a reader that failed: `trouble` then says why.
    """

    def __init__(
        self,
        show: Callable[[bytes], object],
        kind: str,
        encoding: str,
        limit: int,
        receive: Callable[[bytes], object | None] = lambda _: None,
    ) -> None:
        self._show = show
        self._receive = receive
        self._decode: Decoder | None = ENCODINGS[encoding]() if encoding in ENCODINGS else None
        self._events = Events() if kind == "text/event-stream" else None
        self._json = kind == "application/json"
        self._whole: list[bytes] = []
        self._room = limit
        self._last = b""
        self.trouble = "unknown encoding" if encoding and not self._decode else ""

    @property
    def rest(self) -> bytes:
        """The bytes received of an event that is not complete."""
        return self._events.rest if self._events else b""

    @property
    def amid(self) -> bool:
        return bool(self._events and self._events.size)

    def feed(self, chunk: bytes) -> None:
        if self.trouble:
            return
        try:
            for piece in self._decode(chunk) if self._decode else (chunk,):
                if self._events is None:
                    self._room -= len(piece)
                    self._whole.append(piece)
                else:
                    self._read(piece if self._events.ends_with(piece) else b"".join(self._events.feed(piece)))
                if self._room < (self._events.size if self._events else 0):
                    raise TooLargeError("the reply, or an event of it, is too large to read")
        except Exception as error:  # a reader that fails is no reason to break the reply
            self.trouble = type(error).__name__

    def _read(self, events: bytes) -> None:
        if not events:
            return
        self._last = events
        if self._receive(events) is None:
            for event in Events().feed(events):
                self._show(event)

    def close(self, delimited: bool = False) -> bool:
        """The reply ended. Returns whether it is complete: always where it was `delimited`, so that its end could be
        told from a lost connection; else by its own content, and True where that cannot tell."""
        if self.trouble:
            return True
        if self._events is not None:
            return delimited or is_last((Events().feed(self._last) or [b""])[-1])
        whole = b"".join(self._whole)
        try:
            self._show(whole)
        except Exception as error:  # as above
            self.trouble = type(error).__name__
        try:
            if self._json and not delimited:
                msgspec.json.decode(whole)
        except ValueError:
            return False
        except RecursionError:  # deeper than anyone reads, but complete as far as that
            pass
        return True
