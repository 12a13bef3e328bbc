"""Where requests to summarisers leave."""

import ssl
from collections.abc import AsyncIterator
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2

from proxy.config import ConfigurationError, Settings

_LARGEST = 4 * 2**20
"""Bytes of a reply that are read."""
PROOF = "x-narrows-proof-"
"""How the name of a header begins that proves who asks: it leaves without that."""
_SAID = (
    ("accept", "application/json"),
    ("accept-encoding", "identity"),
    ("content-type", "application/json"),
    ("user-agent", "narrows"),
)
_KEPT = frozenset({"anthropic-version", "content-length", "transfer-encoding"})


def http_client(base: str, settings: Settings) -> httpx2.AsyncClient:
    """What an SDK asks the API at `base` with."""
    return httpx2.AsyncClient(
        transport=_Transport(base, settings),
        timeout=httpx2.Timeout(settings.summary_timeout, connect=settings.connect_timeout),
        follow_redirects=False,
        trust_env=False,
    )


class _Transport(httpx2.AsyncHTTPTransport):
    """Where requests leave. What is sent besides the body is named here, so nothing else is: SDKs add headers of their
    own, those that the environment names, and a key where there is none.
    """

    def __init__(self, base: str, settings: Settings) -> None:
        trust = ssl.create_default_context(cafile=settings.ca_bundle)
        super().__init__(verify=trust, trust_env=False, proxy=_proxy(base))

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the one, and bound the other."""
        given = request.headers.multi_items()
        proof = [(name.removeprefix(PROOF), value) for name, value in given if name.startswith(PROOF)]
        kept = _KEPT - {name for name, _ in proof}
        headers = [("host", request.url.netloc.decode("ascii")), *_SAID]
        headers += [(name, value) for name, value in given if name in kept]
        headers += proof
        response = await super().handle_async_request(
            httpx2.Request(
                request.method, request.url, headers=headers, stream=request.stream, extensions=request.extensions
            )
        )
        if response.headers.keys() & {"retry-after", "retry-after-ms"}:
            response.headers["x-should-retry"] = "false"  # the next of the chain is asked instead of waiting
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Bounded(response.stream, "content-encoding" in response.headers)
        return response


class OversizeError(Exception):
    """A reply that is larger than any answer is, or may become so: it was to come without an encoding."""


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, encoded: bool) -> None:
        self._stream = stream
        self._left = 0 if encoded else _LARGEST

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            self._left -= len(piece)
            if self._left < 0:
                raise OversizeError
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


def _proxy(base: str) -> httpx2.Proxy | None:
    """The proxy of the environment that requests to this host take, as those of clients do."""
    parts, found = urlsplit(base), getproxies()
    address = found.get(parts.scheme) or found.get("all")
    if not address or proxy_bypass(parts.netloc):
        return None
    if urlsplit(address).scheme != "http":
        raise ConfigurationError(f"the proxy for {parts.scheme} in the environment must be an http:// URL")
    return httpx2.Proxy(address)


FAULTS: tuple[type[Exception], ...] = (httpx2.HTTPError, OversizeError, OSError, UnicodeError)
"""What a request may end with, besides what an SDK makes of it."""
