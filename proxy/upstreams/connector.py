"""The connections to one upstream.

Laws
  No connection is used on which something has come before anything was asked.
  What cannot be connected to for a while is left alone for a moment, whatever requests come.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import aiohttp
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.connector import Connection
from aiohttp.tracing import Trace

from policies.dialects import DIALECTS
from proxy.breaker import Breaker
from proxy.config import UpstreamRow
from proxy.config.upstreams import MODEL, names_no_version, usual_address
from proxy.errors import ApiError
from proxy.telemetry import Telemetry
from proxy.upstreams.framing import UpstreamProtocol, fresh_only

TRIAL_MARGIN = 1.0
"""Seconds besides those to connect after which a trial that reports nothing is followed by another."""


class PausedError(aiohttp.ClientError):
    """The upstream could not be connected to for a while, and is left alone for a moment."""


class UpstreamConnector(aiohttp.TCPConnector):
    """A pool that gives out no connection on which something has come already: it would pass for the next reply. While
    its breaker is open it connects to nothing."""

    def __init__(self, breaker: Breaker, *, limit: int, ssl: ssl.SSLContext | bool) -> None:
        super().__init__(limit=limit, ssl=ssl)
        self._breaker = breaker
        self._factory = partial(UpstreamProtocol, self._loop)  # type: ignore[assignment]  # it is one

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's
    ) -> Connection:
        if not self._breaker.admits():
            raise PausedError
        try:
            connection = await super().connect(req, traces, timeout)
            if not _is_silent(connection):
                connection.close()
                raise aiohttp.ServerDisconnectedError
        except aiohttp.ClientSSLError:  # it was reached
            self._breaker.succeeded()
            raise
        except asyncio.CancelledError:  # the client has left: another one may try
            self._breaker.end_pause()
            raise
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._breaker.failed(type(error).__name__)
            raise
        self._breaker.succeeded()
        return connection

    async def _get(self, key: ConnectionKey, traces: list[Trace]) -> Connection | None:
        """A connection of the pool that can be used."""
        while not fresh_only.get() and (connection := await super()._get(key, traces)) is not None:
            if _is_silent(connection):
                return connection
            connection.close()
        return None


def _is_silent(connection: Connection) -> bool:
    """Whether nothing has come on it since the reply to its last request, which ended as it should."""
    return connection.protocol is not None and not connection.protocol.should_close


# --- which error describes each way in which an upstream gives no reply ---

_TROUBLES: tuple[tuple[type[Exception], int, str, str], ...] = (
    (aiohttp.ConnectionTimeoutError, 504, "upstream_timeout", "did not take a connection in time; is it up?"),
    (TimeoutError, 504, "upstream_timeout", "took the request but stayed silent; see `read_timeout`."),
    (aiohttp.ClientProxyConnectionError, 502, "proxy_unreachable", "is behind a proxy that does not answer."),
    (aiohttp.ClientHttpProxyError, 502, "proxy_refused", "is behind a proxy that refused to connect."),
    (aiohttp.ClientConnectorDNSError, 502, "upstream_unknown", "has no address; check the setting `upstream`."),
    (
        aiohttp.ClientConnectorCertificateError,
        502,
        "upstream_certificate",
        "has a certificate that is not trusted; set `ca_bundle`?",
    ),
    (aiohttp.ClientSSLError, 502, "upstream_tls", "does not speak TLS here; check http or https in `upstream`."),
    (aiohttp.ClientConnectorError, 502, "upstream_unreachable", "cannot be reached; is it up?"),
    (aiohttp.ClientResponseError, 502, "upstream_garbled", "sent something that is not HTTP."),
    (Exception, 502, "upstream_cut", "closed the connection before it answered."),
)
"""The first that fits counts. No text of the error itself: it may quote what it was sending."""


def trouble(error: Exception, host: str) -> ApiError:
    """The error that a client receives when no reply came from the upstream."""
    status, code, text = next(row[1:] for row in _TROUBLES if isinstance(error, row[0]))
    return ApiError(status, f"The upstream {host} {text}", code)


# --- whether the URL of an upstream is that of its API, as far as the URL itself and the first answers tell ---
# Laws
#   It is a warning, once in a process: some APIs are below other paths than /v1.
#   No request waits for it, and no credential is sent for it.

_SECONDS = 5.0
"""For both looks together."""
_CHATS = {api.http.path for api in DIALECTS.values()}
"""What is asked below the URL."""


class AddressCheck:
    """Warns of one upstream."""

    def __init__(self, row: UpstreamRow, telemetry: Telemetry) -> None:
        self._row = row
        self._telemetry = telemetry
        self._is_doubtful = names_no_version(row.url) and MODEL not in row.url and not row.query
        """Whether an answer may show that the URL lacks /v1."""

    def note(self, target: str, status: int) -> None:
        """Take notice of an answer to what was asked below the URL."""
        path = target.partition("?")[0]
        if not self._is_doubtful or path not in _CHATS:
            return
        if status == 404:
            remedy = f"unless that is about the model, set its address to {self._row.url}/v1"
            self._warn(f"it answered 404 at {path}", remedy)
        self._is_doubtful = self._is_doubtful and status >= 400

    async def look(self, ask: Callable[[str], Awaitable[int]]) -> None:
        """Find out whether the API is elsewhere. `ask`: the status of the answer to a GET without a credential."""
        if usual := usual_address(self._row.url):
            self._warn(f"the API of this host is at {usual}", f"set its address to {usual}")
        if not self._is_doubtful or self._row.has_key or self._row.headers:  # which go along with all that is asked
            return
        with suppress(ApiError, TimeoutError):  # a request will say it
            async with asyncio.timeout(_SECONDS):
                if await ask("/models") == 404 and await ask("/v1/models") in (200, 401, 403):
                    self._warn("it has no models here, but below /v1", f"set its address to {self._row.url}/v1")

    def _warn(self, fault: str, remedy: str) -> None:
        self._is_doubtful = False  # once is enough
        self._telemetry.log.warning(
            "upstream_address", upstream=self._row.name, url=self._row.url, reason=fault, remedy=remedy
        )
