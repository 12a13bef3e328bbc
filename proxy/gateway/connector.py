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
