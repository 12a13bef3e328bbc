"""An API at a URL, asked for texts and for its models.

Laws
  No header goes out but those named here, and no redirect is followed. A reply has a bound.
"""

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2
import msgspec

from policies.dialects import Dialect
from policies.dialects.common import as_json, decoded, object_at
from policies.dialects.writing import Writing
from policies.model.tokens import well_formed
from proxy.config import ConfigurationError, Settings, UpstreamRow
from proxy.summaries.clients import Completion, ModelRequest
from proxy.upstreams.outbound import Outbound, trust

_LARGEST_REPLY = 4 * 2**20
"""Bytes of a reply, at most."""
_HEADERS = {
    "accept": "application/json",
    "accept-encoding": "identity",
    "content-type": "application/json",
    "user-agent": "narrows",
}
_TRIES, _PAUSE = 2, 0.5
"""How often a request is sent where a server is in trouble, and the seconds between."""


class StatusError(Exception):
    """The status of a reply is that of an error."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__(status)
        self.status, self.headers, self.body = status, headers, body


class Endpoint:
    """An API at a URL, with the key that its upstream has now."""

    def __init__(self, row: UpstreamRow, api: Dialect, writing: Writing, settings: Settings) -> None:
        self.api = api
        self.outbound = outbound = Outbound(row)
        self.base = row.url
        self._writing = writing
        connecting = row.connect_timeout or settings.connect_timeout
        self._timeout = httpx2.Timeout(settings.summary_timeout, connect=connecting)
        self.http = httpx2.AsyncClient(
            transport=httpx2.AsyncHTTPTransport(
                verify=trust(row, settings.ca_bundle), trust_env=False, proxy=_proxy(outbound.origin)
            ),
            trust_env=False,
        )

    async def models(self, auth: Mapping[str, str]) -> frozenset[str]:
        """The names of the models that this API lists. Raises where it lists none."""
        listing = self.api.http.models.whole
        body = await self._send("GET", f"/models{'?' if listing else ''}{listing}", auth)
        return frozenset(each.id for each in msgspec.json.decode(body, type=_ModelList).data)

    async def ask(self, request: ModelRequest, model: str, auth: Mapping[str, str]) -> bytes:
        """The body of the reply. `auth`: the headers that prove who asks."""
        texts = well_formed(request.instructions), well_formed(request.text)
        body, *others = self._writing.bodies(model, *texts, request.most)
        for other in others:
            try:
                return await self._send("POST", self.api.http.path, auth, as_json(body), model)
            except StatusError as error:
                field = object_at(decoded(error.body), "error").get("param")
                if error.status != 400 or field not in body.keys() - other:
                    raise
            body = other
        return await self._send("POST", self.api.http.path, auth, as_json(body), model)

    def read(self, body: bytes) -> Completion:
        """The answer in a reply. Raises ValueError where the body is not a JSON object."""
        reply = msgspec.json.decode(body, type=dict[str, Any])
        usage = self.api.usage.read(reply.get("usage"))
        try:
            text, end = self._writing.answer(reply)
        except (msgspec.ValidationError, IndexError):
            return Completion("", "other", usage, readable=False)
        return Completion(text, end, usage)

    async def _send(
        self, method: str, rest: str, auth: Mapping[str, str], content: bytes = b"", model: str = ""
    ) -> bytes:
        """The body of the reply. Raises StatusError, httpx2.HTTPError."""
        headers = {name.lower(): value for name, value in {**_HEADERS, **self.api.http.version, **auth}.items()}
        headers |= {name.lower(): value for name, value in self.outbound.row.headers.items()}
        url = self.outbound.origin + self.outbound.target(rest, model)
        tries, more = _TRIES, {"timeout": self._timeout.as_dict()}
        while True:
            tries -= 1
            try:
                return await self._body(
                    httpx2.Request(method, url, headers=headers, content=content or None, extensions=more)
                )
            except (StatusError, httpx2.HTTPError) as error:
                if not tries or (isinstance(error, StatusError) and not _may_ask_again(error)):
                    raise
            await asyncio.sleep(_PAUSE)

    async def _body(self, request: httpx2.Request) -> bytes:
        """The body of the reply to one request."""
        reply, body = await self.http.send(request, stream=True), b""
        try:
            # nobody asked for an encoding, and what is encoded may become larger than any answer: none of it is read
            if "content-encoding" not in reply.headers:
                async for piece in reply.aiter_raw():
                    if len(body) + len(piece) > _LARGEST_REPLY:  # the rest is no JSON then
                        break
                    body += piece
        finally:
            await reply.aclose()
        if not reply.is_success:
            raise StatusError(reply.status_code, reply.headers, body)
        return body


class _ListedModel(msgspec.Struct):
    id: str


class _ModelList(msgspec.Struct):
    data: list[_ListedModel]


def _may_ask_again(error: StatusError) -> bool:
    """Not where the server says when, or that it wants no more: the next of the chain is asked instead of waiting."""
    wish = error.headers.get("x-should-retry", "")
    if error.status == 429 or wish == "false" or error.headers.keys() & {"retry-after", "retry-after-ms"}:
        return False
    return wish == "true" or error.status in (408, 409) or error.status >= 500


def _proxy(base: str) -> httpx2.Proxy | None:
    """The proxy of the environment for requests to this host, as clients of the upstream use it."""
    parts, proxies = urlsplit(base), getproxies()
    address = proxies.get(parts.scheme) or proxies.get("all")
    if not address or proxy_bypass(parts.netloc):
        return None
    if urlsplit(address).scheme != "http":
        raise ConfigurationError(f"the proxy for {parts.scheme} in the environment must be an http:// URL")
    return httpx2.Proxy(address)
