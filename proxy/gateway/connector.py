"""The connections to one upstream.

Laws
  No connection is used on which something has come before anything was asked.
  What cannot be connected to for a while is left alone for a moment, whatever requests come.
"""

import asyncio
import ssl
from functools import partial

import aiohttp
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.connector import Connection
from aiohttp.tracing import Trace

from proxy.breaker import Breaker
from proxy.errors import ApiError
from proxy.gateway.wire import UpstreamProtocol, fresh_only

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
