"""The upstream: which headers of a client reach it, and which error describes each of its failures.

Laws
  Scheme, host and port come from the configuration only.
  Hop-by-hop headers and those that Connection names are dropped both ways, also where another character stands for
  a hyphen; all others pass, in their order, spelling and number. Exactly one framing header goes upstream.
  A request is sent once; once more only where the upstream has received nothing of it.
  A reply that ends before its end raises CutError; it never just ends.
  What an upstream sends on a connection on which nothing was asked is a reply to nobody.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Collection, Iterable, Mapping
from contextlib import aclosing, closing, suppress
from math import ceil
from string import ascii_lowercase, ascii_uppercase
from time import perf_counter
from typing import Any
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec
from aiohttp.connector import Connection
from aiohttp.http import HttpProcessingError, RawResponseMessage, StreamWriter
from cachetools import LRUCache
from multidict import CIMultiDict
from yarl import URL

from proxy.breaker import reported_breaker
from proxy.config import ConfigurationError, Settings, UpstreamRow
from proxy.errors import ApiError
from proxy.sse import ENCODINGS, TooLargeError, decoded
from proxy.telemetry import Telemetry
from proxy.upstreams.connections import (
    HEADER_LIMIT,
    LINE_LIMIT,
    TRIAL_MARGIN,
    PausedError,
    UnreceivedError,
    UpstreamConnector,
    only_fresh_connections,
    trouble,
)
from proxy.upstreams.outbound import AddressCheck, Outbound, trust

RawHeaders = Iterable[tuple[bytes, bytes]]
Body = bytes | AsyncIterable[bytes | memoryview] | None

_HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection"}
    | {b"te", b"trailer", b"transfer-encoding", b"upgrade"}
)
_NOT_FORWARDED = frozenset({b"host", b"expect"})
_PUNCTUATION = b"!#$%&'*+.^_`|~"
_PLAIN = bytes.maketrans(ascii_uppercase.encode() + _PUNCTUATION, ascii_lowercase.encode() + b"-" * len(_PUNCTUATION))
"""A header's name as servers read it that make variables of names: for them Transfer_Encoding is Transfer-Encoding."""
READABLE = frozenset({"", *ENCODINGS})
"""Encodings of replies that can be read."""
_ADDED_BY_AIOHTTP = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
_ONE_WRITE = 2**20


class CutError(Exception):
    """The upstream stopped in the middle of its reply."""


def text(raw: bytes) -> str:
    """Header text, from which the writer of heads makes the same bytes again."""
    return raw.decode("utf-8", "surrogateescape")


def end_to_end(raw: RawHeaders, but: Collection[bytes] = frozenset()) -> CIMultiDict[str]:
    """The headers meant for the other end, without our own and those in `but` (lower case)."""
    pairs, connection = [], ""
    for raw_name, raw_value in raw:
        plain = raw_name.translate(_PLAIN)
        if plain == b"connection":
            connection += f",{text(raw_value)}"
        elif plain == b"content-length" != raw_name.lower() or plain in _HOP_BY_HOP or plain in but:
            continue
        elif not plain.startswith(b"x-narrows"):
            pairs.append((text(raw_name), text(raw_value)))
    if connection:
        dropped = {token.strip().lower() for token in connection.split(",")}
        pairs = [(name, value) for name, value in pairs if name.lower() not in dropped]
    return CIMultiDict(pairs)


def request_headers(raw: RawHeaders, but: Collection[bytes] = frozenset()) -> CIMultiDict[str]:
    headers = end_to_end(raw, _NOT_FORWARDED.union(but))
    if len(headers) == len(set(map(str.lower, headers))):
        return headers
    spelling: dict[str, str] = {}  # aiohttp's client takes a second spelling of a name for a replacement of the first
    return CIMultiDict((spelling.setdefault(name.lower(), name), value) for name, value in headers.items())


def readable_encodings(headers: CIMultiDict[str]) -> None:
    """Ask only for encodings that we can read too, or for none; where the client asked for none, ask for none."""
    accepted = [token.strip() for value in headers.getall("Accept-Encoding", ()) for token in value.split(",")]
    if accepted:
        readable = [token for token in accepted if token.split(";")[0].strip().lower() in {*ENCODINGS, "identity"}]
        headers["Accept-Encoding"] = ", ".join(readable) or "identity"


class UpstreamReply:
    def __init__(self, response: "aiohttp.ClientResponse | DirectReply", host: str) -> None:
        self._response = response
        self._host = host
        self._protocol = response.connection.protocol if response.connection else None
        self.status = response.status
        self.reason = response.reason or ""
        self.headers = end_to_end(response.raw_headers)
        self.kind = self.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        self.received_encoding = self.encoding
        """The Content-Encoding in which the body arrives; `encoding` is the one in which it goes on."""
        self._ahead: deque[bytes] = deque()
        """Pieces of the body that were read before anybody asked for `chunks`."""
        self.chunked = "chunked" in response.headers.get("Transfer-Encoding", "").lower()
        if self.chunked:
            self.headers.popall("Content-Length", None)

    def close(self) -> None:
        """Close the connection, unless all of the reply was read."""
        self._response.close()

    @property
    def has_come(self) -> bool:
        """True where all of it is here."""
        return self._response.content.is_eof()

    def all_here(self) -> bytes | None:
        """The body, where all of it came with its head; None where it is to be asked for piece by piece."""
        content = self._response.content
        if self._ahead or not (content.is_eof() and self.delimited) or content.exception() is not None:
            return None
        return content.read_nowait()

    @property
    def sized(self) -> bool:
        return "Content-Length" in self.headers or self._response.method == "HEAD" or self.status in (204, 304)

    @property
    def delimited(self) -> bool:
        return self.chunked or self.sized

    @property
    def encoding(self) -> str:
        """The Content-Encoding in which the body goes on, "" where there is none."""
        value = ",".join(self.headers.getall("Content-Encoding", ())).strip().lower()
        return "" if value == "identity" else value

    def rewrite(self, length: int | None = None) -> None:
        """Take out the headers of the bytes: the body goes on decoded, perhaps changed, of `length` if known."""
        self.chunked = self.chunked or self.sized
        for name in ("Content-Encoding", "Content-Length", "Content-MD5", "Digest", "Content-Digest"):
            self.headers.popall(name, None)
        if length is not None:
            self.headers["Content-Length"] = str(length)

    async def read_ahead(self, limit: int) -> bytes:
        """The body, encoded as it arrives, or its first `limit` bytes and a little more; `chunks` has it all the same,
        and raises what stopped it here."""
        size = 0
        async with aclosing(self.ahead()) as pieces:
            async for piece in pieces:
                size += len(piece)
                if size >= limit:
                    break
        return b"".join(self._ahead)

    async def ahead(self) -> AsyncGenerator[bytes, None]:
        """The body as it arrives, first those pieces that were read ahead; `chunks` has all of it all the same."""
        for piece in tuple(self._ahead):
            yield piece
        with suppress(aiohttp.ClientError, OSError, TimeoutError):
            while chunk := await self._response.content.readany():
                self._ahead.append(chunk)
                yield chunk

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        while self._ahead:
            yield self._ahead.popleft()
        try:
            while chunk := await self._response.content.readany():
                yield chunk
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise CutError(f"The upstream {self._host} broke off its reply.") from error
        lost = self._protocol.exception() if self._protocol is not None else None
        if not self.delimited and isinstance(lost, OSError):
            raise CutError(f"The upstream {self._host} reset the connection in its reply.")


class Upstream:
    """A client of one API, made within a running loop; it connects with the first request. Raises ConfigurationError
    where its certificates, its key or the proxy before it cannot be used."""

    def __init__(self, settings: Settings, row: UpstreamRow, telemetry: Telemetry) -> None:
        self.row, self.name, self.outbound = row, row.name, Outbound(row)
        base = self.outbound.origin
        trusted = trust(row, settings.ca_bundle) if row.ca or settings.ca_bundle else True
        self._proxy, self._tunnel_headers, self._proxy_headers = _proxy(URL(base))  # from here on nothing fails
        self._telemetry, self.address = telemetry, AddressCheck(row, telemetry)
        self.host = URL(base).authority
        self.without_usage: LRUCache[str, bool] = LRUCache(1_024)
        """The models of which it takes no question for the usage of a stream."""
        connecting = row.connect_timeout or settings.connect_timeout
        self._breaker = reported_breaker(
            "upstream", telemetry, connecting + TRIAL_MARGIN, host=self.host, upstream=row.name
        )
        self._session = aiohttp.ClientSession(
            connector=UpstreamConnector(self._breaker, limit=0, ssl=trusted),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=connecting, sock_read=row.read_timeout or settings.read_timeout
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=_ADDED_BY_AIOHTTP,
            max_line_size=LINE_LIMIT,
            max_field_size=LINE_LIMIT,
            max_headers=HEADER_LIMIT,
        )
        self._session._retry_connection = False  # else it sends GET, PUT and DELETE again, whatever was received
        is_plain = self._proxy is None and URL(base).raw_user is None
        self._direct = DirectClient(self._session, URL(base, encoded=True)) if is_plain else None
        self._health = telemetry.metrics.add_upstream(self.name, self.host, self._breaker)

    async def close(self) -> None:
        self._telemetry.metrics.remove_upstream(self._health)
        await self._session.close()

    async def send(
        self, method: str, rest: str, headers: CIMultiDict[str], body: Body, model: str = "", *, beside: bool = False
    ) -> UpstreamReply:
        """Send a request once and return the head of the reply, which is to be closed. `rest`: the target below the URL
        of this upstream, or `beside` its /v1; `model`: for a URL with it in its path. Raises ApiError: no reply."""
        metrics, began = self._telemetry.metrics, perf_counter()
        target = (self.outbound.path.removesuffix("/v1") if beside else self.outbound.path) + rest or "/"
        if self.outbound.changes:
            target = target if beside else self.outbound.target(rest, model)
            self.outbound.dress(headers)
        try:
            reply = await self._sent(method, target, headers, body)
        except ApiError as error:
            metrics.count("upstream_requests", self.name, error.code)
            raise
        self._health.note(reply.status)
        if self.address.is_doubtful:
            self.address.note(rest, reply.status)
        metrics.count("upstream_requests", self.name, str(reply.status))
        metrics.observe("time_to_first_byte_seconds", perf_counter() - began, self.name)
        return reply

    async def _sent(self, method: str, target: str, headers: CIMultiDict[str], body: Body) -> UpstreamReply:
        headers.update(self._proxy_headers)
        if isinstance(body, bytes):
            headers["Content-Length"] = str(len(body))
        try:
            try:
                response = await self._send(method, target, headers, body)
            except UnreceivedError:
                if body is not None and not isinstance(body, bytes):  # what was read of it is gone
                    raise
                with only_fresh_connections():
                    response = await self._send(method, target, headers, body)
        except PausedError as error:
            seconds = max(1, ceil(self._breaker.pause_left))
            message = f"The upstream {self.host} cannot be reached; Narrows tries again in {seconds} s."
            raise ApiError(503, message, "upstream_paused", headers={"Retry-After": str(seconds)}) from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._health.note(0)
            raise trouble(error, self.host) from error
        except ValueError as error:
            raise ApiError(400, "A header has characters that HTTP does not allow.", "bad_header") from error
        if response.status < 100:  # clients could not read that
            response.close()
            self._health.note(0)
            raise ApiError(502, f"The upstream {self.host} sent something that is not HTTP.", "upstream_garbled")
        return UpstreamReply(response, self.host)

    async def _send(
        self, method: str, target: str, headers: CIMultiDict[str], body: Body
    ) -> "aiohttp.ClientResponse | DirectReply":
        if self._direct is not None and isinstance(body, bytes) and len(body) <= _ONE_WRITE:
            return await self._direct.send(method, target, headers, body)
        return await self._session.request(
            method,
            URL(self.outbound.origin + target, encoded=True),
            headers=headers,
            data=_in_slices(body) if isinstance(body, bytes) else body,
            allow_redirects=False,
            proxy=self._proxy,
            proxy_headers=self._tunnel_headers,
        )


class DirectReply:
    """The reply to a request of `DirectClient`, by aiohttp's names for its parts. Its connection is free for others
    once all of the body has come."""

    def __init__(
        self, connection: Connection, method: str, message: RawResponseMessage, content: aiohttp.StreamReader
    ) -> None:
        self.connection: Connection | None = connection
        self.method = method
        self.status, self.reason = message.code, message.reason
        self.headers, self.raw_headers = message.headers, message.raw_headers
        self.content = content
        content.on_eof(self._release)

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def _release(self) -> None:
        connection, self.connection = self.connection, None
        if connection is None:
            return
        transport = connection.transport
        if transport is None or transport.get_write_buffer_size():  # it has not taken all of the request
            connection.close()
        else:
            connection.release()


class DirectClient:
    """Sends a body that is all there on a connection of aiohttp's pool, in one write. What `ClientSession` does beside
    that (cookies, redirects, proxies, credentials in URLs, uploads) costs more than the sending."""

    def __init__(self, session: aiohttp.ClientSession, base: URL) -> None:
        assert session.connector is not None
        self._connector = session.connector
        self._timeout = session.timeout
        self._loop = asyncio.get_running_loop()
        self._kind = aiohttp.ClientRequest("POST", base, loop=self._loop, ssl=True)
        """Any request to this host: what the pool knows a connection by."""
        self._host = self._kind.headers["Host"]

    async def send(self, method: str, target: str, headers: CIMultiDict[str], body: bytes) -> DirectReply:
        """Raises what `ClientSession.request` raises."""
        try:
            connection = await self._connector.connect(self._kind, [], self._timeout)
        except TimeoutError as error:
            raise aiohttp.ConnectionTimeoutError(f"Connection timeout to host {self._host}") from error
        try:
            protocol = connection.protocol
            assert protocol is not None
            protocol.set_response_params(
                skip_payload=method == "HEAD",
                read_until_eof=True,
                auto_decompress=False,
                read_timeout=self._timeout.sock_read,
                max_line_size=LINE_LIMIT,
                max_field_size=LINE_LIMIT,
                max_headers=HEADER_LIMIT,
            )
            writer = StreamWriter(protocol, self._loop)
            head = CIMultiDict([("Host", self._host), *headers.items()])
            await writer.write_headers(f"{method} {target} HTTP/1.1", head)
            await writer.write(body, drain=False)  # an upstream may answer before it has taken all of it
            writer.set_eof()
            protocol.start_timeout()
            message, content = await protocol.read()
        except HttpProcessingError as error:
            connection.close()
            raise aiohttp.ClientResponseError(self._kind.request_info, (), status=error.code) from error
        except BaseException:
            connection.close()
            raise
        return DirectReply(connection, method, message, content)


async def document(
    upstream: Upstream,
    method: str,
    target: str,
    headers: CIMultiDict[str],
    body: bytes | None = None,
    *,
    most: int,
    beside: bool = False,
) -> tuple[int, Any]:
    """The status of an answer, and its JSON, decoded in a thread: a long one would hold up all others. None where it
    is not 200, or empty. Raises ApiError where no reply came; ValueError or RecursionError where it is no JSON, or more
    than `most` bytes."""
    with closing(await upstream.send(method, target, headers, body, beside=beside)) as reply:
        raw = await reply.read_ahead(most + 1) if reply.status == 200 else b""
    if len(raw) > most:
        raise TooLargeError

    def content() -> Any:
        return msgspec.json.decode(decoded(raw, reply.encoding, most) if reply.encoding in ENCODINGS else raw)

    return reply.status, await asyncio.to_thread(content) if raw else None


def models_in(content: Any) -> list[Any]:
    """The models of a list, as they came; some upstreams send them bare. Raises ValueError where it is none."""
    models = content.get("data") if isinstance(content, dict) else content
    if not isinstance(models, list):
        raise ValueError("no list of models")
    return models


async def _in_slices(body: bytes) -> AsyncIterator[memoryview]:
    """A large body piece by piece: the event loop gets its turn, and nothing is copied whole."""
    view = memoryview(body)
    for start in range(0, len(body), _ONE_WRITE):
        yield view[start : start + _ONE_WRITE]


def _proxy(base: URL) -> tuple[URL | None, Mapping[str, str] | None, Mapping[str, str]]:
    """The proxy that HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY name for this host, and the headers that it wants:
    once to open a tunnel for https, with each request for http.

    Not aiohttp's `trust_env`: that also takes credentials from ~/.netrc, and asks in a thread each time.
    """
    proxies = getproxies()
    address = proxies.get(base.scheme) or proxies.get("all")
    if not address or proxy_bypass(base.authority):
        return None, None, {}
    url = URL(address)
    if url.scheme != "http" or not url.host:
        raise ConfigurationError(f"the proxy for {base.scheme} in the environment must be an http:// URL")
    if url.user is None:
        return url, None, {}
    words = {"Proxy-Authorization": aiohttp.encode_basic_auth(url.user, url.password or "")}
    bare = url.with_user(None)
    return (bare, words, {}) if base.scheme == "https" else (bare, None, words)
