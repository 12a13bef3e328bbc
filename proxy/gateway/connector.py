"""The connections to one upstream.

Laws
  No connection is used on which something has come before anything was asked.
  What cannot be connected to for a while is left alone for a moment, whatever requests come.
"""

import asyncio
import ssl
from functools import partial

import aiohttp
from aiohttp.connector import Connection
from aiohttp.tracing import Trace

from proxy.breaker import Breaker
from proxy.gateway.wire import UpstreamProtocol, fresh_only

_MOST_CLOSED = 100
"""Connections that cannot be used and are closed for one request, before it fails."""
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
            for _ in range(_MOST_CLOSED):
                connection = await super().connect(req, traces, timeout)
                protocol = connection.protocol
                assert isinstance(protocol, UpstreamProtocol)
                if not protocol.should_close and not (fresh_only.get() and protocol.requests):
                    break
                connection.close()
            else:
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
