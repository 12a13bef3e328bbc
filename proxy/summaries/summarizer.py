"""A chain of models that write summaries, asked through the official SDKs of their APIs; where one fails, the next.

Laws
  Hosts and keys come from the configuration. A client's own credential is sent where its requests are sent, in the same
  API, and with one request: nothing here stores it. No variable of the SDKs in the environment is read, and no redirect
  is followed.
  Every failure is a SummarizerError, within `summary_timeout` once the SDK is imported, and holds neither texts nor
  credentials.
"""

import asyncio
import logging
import os
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2
from cachetools import LRUCache

from policies.model.summary_record import SummaryCost
from policies.money.catalog import prices_for
from policies.money.prices import Prices
from policies.presets import AS_CONFIGURED, WritingOptions
from policies.text.summary_checks import End
from proxy.config import ConfigurationError, Settings, SummarizerSettings
from proxy.summaries.clients import CLIENTS, KEY_CLIENTS, Completion, SdkClient, WriteRequest

_LARGEST_REPLY = 4 * 2**20
"""Bytes of a reply, at most."""
_AUTH = "x-narrows-proof-"
"""Put before the names of headers that prove who asks, so that they can be told from those of the SDK."""
_HEADERS = (
    ("accept", "application/json"),
    ("accept-encoding", "identity"),
    ("content-type", "application/json"),
    ("user-agent", "narrows"),
)
_FROM_SDK = frozenset({"anthropic-version", "content-length", "transfer-encoding"})


@dataclass(frozen=True, slots=True)
class GeneratedText:
    """An answer, the model that gave it, and its cost with that of the failures before it."""

    text: str
    model: str
    end: End
    spent: SummaryCost


class SummarizerError(Exception):
    """There is no answer; `reason` is one word. About the last of the chain: timeout, limited, server, refused,
    unreachable or garbled; about the caller: busy, paused or stopped."""

    def __init__(self, reason: str, spent: SummaryCost | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.spent = spent or SummaryCost()


class OversizeError(Exception):
    """A reply is larger than any answer, or may become so, as it has an encoding that was not asked for."""


class Summarizer:
    """The chain for each API in which a conversation may be."""

    def __init__(self, settings: Settings) -> None:
        for name in ("openai", "anthropic"):  # at their debug level the SDKs log what they send
            logging.getLogger(name).setLevel(logging.WARNING)
        self._settings = settings
        self._prices: LRUCache[str, Prices] = LRUCache(64)
        self._endpoints: dict[tuple[str, type[SdkClient]], _Endpoint] = {}
        self._chains = {
            dialect: tuple(
                _ChainEntry(entry, endpoint, entry.provider or CLIENTS[dialect].provider)
                for entry in settings.summarizers
                if (endpoint := self._endpoint(entry, dialect))
            )
            for dialect in CLIENTS
        }

    def models(self, dialect: str, model: str, writing: WritingOptions = AS_CONFIGURED) -> tuple[str, ...]:
        """The models to ask, in order, for a conversation in this API with `model`."""
        return tuple(entry.model(model, writing) for entry in self._chains[dialect])

    def prices(self, model: str) -> Prices:
        if model not in self._prices:
            self._prices[model] = prices_for(model, self._settings.models)
        return self._prices[model]

    async def write(self, request: WriteRequest) -> GeneratedText:
        """The answer of the first model in the chain that gives one. Raises SummarizerError."""
        now = asyncio.get_running_loop().time
        end, spent, reason = now() + self._settings.summary_timeout, SummaryCost(), "refused"
        chain = self._chains[request.dialect]
        for at, entry in enumerate(chain):
            model = entry.model(request.model, request.writing)
            try:
                completion = await entry.ask(request, model, (end - now()) / (len(chain) - at))
            except _NoAnswerError as error:
                reason, spent = error.reason, spent + self._cost(model, error.billed)
            else:
                return GeneratedText(completion.text, model, completion.end, spent + self._cost(model, completion))
        raise SummarizerError(reason, spent)

    async def close(self) -> None:
        for endpoint in self._endpoints.values():
            await endpoint.http.aclose()

    def _endpoint(self, entry: SummarizerSettings, dialect: str) -> "_Endpoint | None":
        """Where an entry is asked for a conversation in this API; None where it is not. Without a key of its own it is
        asked where the conversation is, with the client's credential, so it must be of the same provider."""
        client, base = CLIENTS[dialect], entry.base_url
        if entry.key_env:
            client = KEY_CLIENTS[entry.provider or "openai"]
        elif entry.provider in (None, client.provider):
            base = None
        else:
            return None
        base = base or self._settings.upstream_of(client.dialect)
        if base is None:
            raise ConfigurationError("upstream: say where requests go; `summarizers` asks there")
        if (base, client) not in self._endpoints:
            self._endpoints[base, client] = _Endpoint(base, client, self._settings)
        return self._endpoints[base, client]

    def _cost(self, model: str, completion: Completion | None) -> SummaryCost:
        """The cost of a completion; where it has no usage, only that there was one."""
        if completion is None or completion.usage is None:
            return SummaryCost(calls=int(completion is not None))
        usage, prices = completion.usage, self.prices(model)
        dollars = prices.cost(usage).total if prices.listed else 0.0
        return SummaryCost(1, usage.prompt, usage.cached, usage.written, usage.completion, dollars)


class _NoAnswerError(Exception):
    """One of the chain gave no answer; `billed` is a completion that was billed nevertheless."""

    def __init__(self, reason: str, billed: Completion | None = None) -> None:
        super().__init__(reason)
        self.reason, self.billed = reason, billed


class _Endpoint:
    """An API at a URL, with the SDK for it."""

    def __init__(self, base: str, client_type: type[SdkClient], settings: Settings) -> None:
        self.client_type = client_type
        self.http = httpx2.AsyncClient(
            transport=_Transport(base, settings),
            timeout=httpx2.Timeout(settings.summary_timeout, connect=settings.connect_timeout),
            follow_redirects=False,
            trust_env=False,
        )
        self._base = base
        self._client: SdkClient | None = None

    async def client(self) -> SdkClient:
        """The SDK; made in a thread, because importing it takes long."""
        if self._client is None:
            self._client = await asyncio.to_thread(self.client_type, self._base, self.http)
        return self._client


class _ChainEntry:
    """One entry of `summarizers`."""

    def __init__(self, entry: SummarizerSettings, endpoint: _Endpoint, provider: str) -> None:
        self._model = entry.model
        self._provider = provider
        self._key = os.environ[entry.key_env] if entry.key_env else ""
        self._endpoint = endpoint

    def model(self, model: str, writing: WritingOptions) -> str:
        """The model to ask for a conversation with `model`."""
        return self._model or writing.model(self._provider) or model

    async def ask(self, request: WriteRequest, model: str, seconds: float) -> Completion:
        """The answer, within so many seconds. Raises _NoAnswerError."""
        client = await self._endpoint.client()  # before the clock runs: importing the SDK is no fault of the model
        header, before = client.key_header
        auth = {header: before + self._key} if self._key else request.auth
        headers = {_AUTH + name: value for name, value in auth.items()}
        errors: tuple[type[Exception], ...] = (*client.errors, httpx2.HTTPError, OversizeError, OSError, UnicodeError)
        try:
            async with asyncio.timeout(seconds):
                body = await client.ask(request, model, headers)
            completion = client.read(body)
        except TimeoutError:
            reason = "timeout"
        except errors as error:
            reason = _reason(error)
        except (ValueError, RecursionError):
            reason = "garbled"
        else:
            if completion.readable:
                return completion
            raise _NoAnswerError("garbled", completion if completion.usage else None)
        # not where the other error was caught: that one holds the request, and with it the credential
        raise _NoAnswerError(reason)


def _reason(error: Exception) -> str:
    """What went wrong, in a word. SDKs keep the error below theirs as its cause."""
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        return "limited" if status == 429 else "server" if status >= 500 else "refused"
    cause = error.__cause__ or error
    if isinstance(cause, httpx2.TimeoutException | TimeoutError):
        return "timeout"
    return "unreachable" if isinstance(cause, httpx2.HTTPError | OSError) else "garbled"


class _Transport(httpx2.AsyncHTTPTransport):
    """Sends no header but those named here: SDKs add headers of their own, those that the environment names, and a key
    where there is none."""

    def __init__(self, base: str, settings: Settings) -> None:
        trust = ssl.create_default_context(cafile=settings.ca_bundle)
        super().__init__(verify=trust, trust_env=False, proxy=_proxy(base))

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request with a bound on its reply."""
        original = request.headers.multi_items()
        auth = [(name.removeprefix(_AUTH), value) for name, value in original if name.startswith(_AUTH)]
        from_sdk = _FROM_SDK - {name for name, _ in auth}
        headers = [("host", request.url.netloc.decode("ascii")), *_HEADERS]
        headers += [(name, value) for name, value in original if name in from_sdk]
        headers += auth
        response = await super().handle_async_request(
            httpx2.Request(
                request.method, request.url, headers=headers, stream=request.stream, extensions=request.extensions
            )
        )
        if response.headers.keys() & {"retry-after", "retry-after-ms"}:
            response.headers["x-should-retry"] = "false"  # the next of the chain is asked instead of waiting
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _BoundedStream(response.stream, "content-encoding" in response.headers)
        return response


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, encoded: bool) -> None:
        self._stream = stream
        self._left = 0 if encoded else _LARGEST_REPLY

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            self._left -= len(piece)
            if self._left < 0:
                raise OversizeError
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
