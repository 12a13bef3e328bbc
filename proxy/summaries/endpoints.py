"""An API at a URL, asked through its SDK.

Laws
  No header goes out but those named here, and no redirect is followed. A reply has a bound.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2
import msgspec

from policies.dialects import Dialect
from policies.dialects.writing import Writing
from proxy.config import ConfigurationError, Settings, UpstreamRow
from proxy.config.routes import VERSIONS
from proxy.summaries.clients import SdkClient
from proxy.upstreams.outbound import Outbound, trust

_LARGEST_REPLY = 4 * 2**20
"""Bytes of a reply, at most."""
PROOF = "x-narrows-proof-"
"""Put before the names of headers that prove who asks, so that they can be told from those of the SDK."""
ASKED = "x-model-asked"
"""The header that tells the transport which model is asked, for a URL that has it in its path."""
_HEADERS = (
    ("accept", "application/json"),
    ("accept-encoding", "identity"),
    ("content-type", "application/json"),
    ("user-agent", "narrows"),
)
_FROM_SDK = frozenset({*VERSIONS, "content-length", "transfer-encoding"})
_ROOT = "/v1"
"""What the SDKs ask below; the transport puts the path of the upstream in its place."""


class Endpoint:
    """An API at a URL, with the SDK for it."""

    def __init__(self, row: UpstreamRow, api: Dialect, writing: Writing, settings: Settings) -> None:
        self.api = api
        self._writing = writing
        self.outbound = Outbound(row)
        connecting = row.connect_timeout or settings.connect_timeout
        self.http = httpx2.AsyncClient(
            transport=_Transport(self.outbound, settings),
            timeout=httpx2.Timeout(settings.summary_timeout, connect=connecting),
            follow_redirects=False,
            trust_env=False,
        )
        self.base = row.url
        self._client: SdkClient | None = None

    async def client(self) -> SdkClient:
        """The SDK, with the key that its upstream has now; made in a thread, because importing it takes long."""
        if self.outbound.row.key_file is not None:
            await self.outbound.reread()
        if self._client is None:
            self._client = await asyncio.to_thread(SdkClient, self.api, self._writing, self.outbound.origin, self.http)
        return self._client

    async def models(self, headers: Mapping[str, str]) -> frozenset[str]:
        """The names of the models that this API lists. Raises where it lists none."""
        listing = self.api.http.models.whole
        url = f"{self.outbound.origin}{_ROOT}/models{'?' if listing else ''}{listing}"
        reply = await self.http.get(url, headers={**VERSIONS, **headers})
        reply.raise_for_status()
        return frozenset(each.id for each in msgspec.json.decode(reply.content, type=_ModelList).data)


class _ListedModel(msgspec.Struct):
    id: str


class _ModelList(msgspec.Struct):
    data: list[_ListedModel]


class _Transport(httpx2.AsyncHTTPTransport):
    """Sends no header but those named here: SDKs add headers of their own, those that the environment names, and a key
    where there is none."""

    def __init__(self, outbound: Outbound, settings: Settings) -> None:
        self._outbound = outbound
        verify = trust(outbound.row, settings.ca_bundle)
        super().__init__(verify=verify, trust_env=False, proxy=_proxy(outbound.origin))

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request with a bound on its reply."""
        original = request.headers.multi_items()
        auth = [(name.removeprefix(PROOF), value) for name, value in original if name.startswith(PROOF)]
        from_sdk = _FROM_SDK - {name for name, _ in auth}
        headers = [("host", request.url.netloc.decode("ascii")), *_HEADERS]
        headers += [(name, value) for name, value in original if name in from_sdk]
        headers += auth
        own = {name.lower(): value for name, value in self._outbound.row.headers.items()}
        headers = [*((name, value) for name, value in headers if name not in own), *own.items()]
        rest = request.url.raw_path.decode("ascii").removeprefix(_ROOT)
        target = self._outbound.target(rest, unquote(request.headers.get(ASKED, "")))
        url = request.url.copy_with(raw_path=target.encode("ascii"))
        response = await super().handle_async_request(
            httpx2.Request(request.method, url, headers=headers, stream=request.stream, extensions=request.extensions)
        )
        if response.status_code == 429 or response.headers.keys() & {"retry-after", "retry-after-ms"}:
            response.headers["x-should-retry"] = "false"  # the next of the chain is asked instead of waiting
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        # nobody asked for an encoding, and what is encoded may become larger than any answer: none of it is read
        encoded = response.headers.pop("content-encoding", None) is not None
        response.stream = _BoundedStream(response.stream, 0 if encoded else _LARGEST_REPLY)
        return response


class _BoundedStream(httpx2.AsyncByteStream):
    """Ends at its bound: the rest is no JSON then. An error instead would make some releases of the SDKs ask again."""

    def __init__(self, stream: httpx2.AsyncByteStream, bound: int) -> None:
        self._stream = stream
        self._left = bound

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            if len(piece) > self._left:
                return
            self._left -= len(piece)
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


def _proxy(base: str) -> httpx2.Proxy | None:
    """The proxy of the environment for requests to this host, as clients of the upstream use it."""
    parts, proxies = urlsplit(base), getproxies()
    address = proxies.get(parts.scheme) or proxies.get("all")
    if not address or proxy_bypass(parts.netloc):
        return None
    if urlsplit(address).scheme != "http":
        raise ConfigurationError(f"the proxy for {parts.scheme} in the environment must be an http:// URL")
    return httpx2.Proxy(address)
