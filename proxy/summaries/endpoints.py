"""An API at a URL, asked for a completion through the official SDK of whoever made it.

Laws
  No header goes out but those named here, and no redirect is followed. A reply has a bound.
  Importing an SDK takes a second or two, so a client imports it when it is made.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2
import msgspec

from policies.dialects import DEFAULT, Dialect
from policies.dialects.dialect import Writing
from policies.model.tokens import well_formed
from policies.money.prices import Usage
from policies.presets import AS_CONFIGURED, WritingOptions
from policies.text.summary_checks import End
from proxy.config import ConfigurationError, Settings, UpstreamRow
from proxy.config.routes import VERSIONS
from proxy.summaries.payments import EVERYTHING, Payment
from proxy.upstreams.outbound import Outbound, trust

_RETRIES = 1
"""How often an SDK tries again by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """For which conversation a model is wanted, who pays, and what is to be written."""

    model: str
    """The model of the conversation."""
    auth: Mapping[str, str] = field(repr=False)
    """The client's own headers that prove who it is."""
    owner: str = ""
    """The name of whoever has that credential."""
    payment: Payment = EVERYTHING
    dialect: str = DEFAULT
    """The API of the conversation."""
    upstream: str = ""
    """The upstream of the conversation, by its name; "" for the first one of its API."""
    writing: WritingOptions = AS_CONFIGURED
    instructions: str = ""
    """The instructions over the material; empty as long as there is none yet."""
    text: str = ""
    """The material."""
    tokens: int = 0
    """The size of both."""
    most: int = 0
    """Tokens that the answer may have."""


@dataclass(frozen=True, slots=True)
class Completion:
    """An answer. One that is not `readable` was billed all the same."""

    text: str
    end: End
    usage: Usage | None
    readable: bool = True


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
"""The path that the SDKs ask below; the transport puts the path of the upstream in its place."""


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
        self.errors: tuple[type[Exception], ...] = ()
        """The errors of the SDK where there is no reply."""
        self._sdk: Any = None

    async def connect(self) -> None:
        """Use the key that its upstream has now, and make the SDK: in a thread, because importing it takes long."""
        if self.outbound.row.key_file is not None:
            await self.outbound.reread()
        if self._sdk is None:
            self.errors, self._sdk = await asyncio.to_thread(_sdk, self.api, self.outbound.origin, self.http)

    async def ask(self, request: ModelRequest, model: str, headers: Mapping[str, str]) -> bytes:
        """The body of the reply. `headers` prove who asks."""
        instructions, text = well_formed(request.instructions), well_formed(request.text)
        body, *others = self._writing.bodies(model, instructions, text, request.most)
        for other in others:
            try:
                return await self._post(body, headers)
            except self.errors as error:
                if getattr(error, "status_code", 0) != 400 or getattr(error, "param", None) not in body.keys() - other:
                    raise
            body = other
        return await self._post(body, headers)

    async def _post(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> bytes:
        options, path = {"headers": headers}, f"/v1{self.api.http.path}"
        reply: httpx2.Response = await self._sdk.post(path, cast_to=httpx2.Response, body=body, options=options)
        return reply.content

    def read(self, body: bytes) -> Completion:
        """The answer in a reply. Raises ValueError where the body is not a JSON object."""
        reply = msgspec.json.decode(body, type=dict[str, Any])
        usage = self.api.usage.read(reply.get("usage"))
        try:
            text, end = self._writing.answer(reply)
        except (msgspec.ValidationError, IndexError):
            return Completion("", "other", usage, readable=False)
        return Completion(text, end, usage)

    async def models(self, headers: Mapping[str, str]) -> frozenset[str]:
        """The names of the models that this API lists. Raises where it lists none."""
        listing = self.api.http.models.whole
        url = f"{self.outbound.origin}{_ROOT}/models{'?' if listing else ''}{listing}"
        reply = await self.http.get(url, headers={**VERSIONS, **headers})
        reply.raise_for_status()
        return frozenset(each.id for each in msgspec.json.decode(reply.content, type=_ModelList).data)


def _sdk(api: Dialect, base: str, http: httpx2.AsyncClient) -> tuple[tuple[type[Exception], ...], Any]:
    """The errors of the SDK of whoever made this API, and a client of it."""
    # the SDK wants a key; the transport does not let it out
    options: dict[str, Any] = {"base_url": base, "api_key": "none", "http_client": http, "max_retries": _RETRIES}
    if api.provider == "anthropic":
        from anthropic import AnthropicError, AsyncAnthropic

        return (AnthropicError,), AsyncAnthropic(**options, open_telemetry=False)
    from openai import AsyncOpenAI, OpenAIError

    return (OpenAIError,), AsyncOpenAI(**options)


class _ListedModel(msgspec.Struct):
    id: str


class _ModelList(msgspec.Struct):
    data: list[_ListedModel]


class _Transport(httpx2.AsyncHTTPTransport):
    """Sends no header but those named here: SDKs add their own, those of the environment, and a key without any."""

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
