"""The connection to Redis: round trips, advice where one fails, and finding the server again.

Laws
  A trip takes no longer than the patience, and ends with replies or with StoreTrouble that says what to do.
  A script that the server does not know is sent in full. A key of the wrong type counts as a miss, and is deleted with
  those beside it.
  A server that cannot be reached is looked for behind the requests, with more time than they have: one that moved
  (Sentinel, cluster) takes longer to find than a request may wait.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis import exceptions as redis
from redis.asyncio.sentinel import MasterNotFoundError

from proxy.memory.decisions import StoreTrouble
from proxy.memory.redis.keys import Command, Keys, ScriptCommand, in_full
from proxy.memory.redis.url import AT_ONCE, Address, ConnectionPool, certificates, connect
from proxy.memory.serialization import Codec

_OPENING = 2.0
"""Seconds to connect, before the first request or behind the others."""
_EACH = 0.5
"""Seconds for one connection of those, so that there is time left for another server where one does not answer."""
_AGAIN = 1.0
"""Seconds between two looks for a server that is not there."""
_SHARE = 0.9
"""Of the patience, so that the error says what is wrong, and not only that time is up."""

_CLUSTER = (redis.ClusterError, redis.RedisClusterException)
_TIMEOUT = (redis.TimeoutError, TimeoutError)
_ADVICE: Mapping[type[Exception] | tuple[type[Exception], ...], str] = {
    redis.AuthenticationError: "it wants another user or password: put them into the URL",
    redis.NoPermissionError: "its user may not do this: allow it ~PREFIX:* +@read +@write +@scripting",
    redis.BusyLoadingError: "it is still loading its data: wait",
    redis.ReadOnlyError: "it is a read-only replica: name the primary, or use redis+sentinel:// or redis+cluster://",
    redis.OutOfMemoryError: "its memory is full: raise maxmemory, or set maxmemory-policy to volatile-lru",
    redis.MaxConnectionsError: "it takes no more clients: raise maxclients",
    MasterNotFoundError: "no primary is in charge: it is failing over, or the service in the URL is not known",
    _CLUSTER: "no primary is in charge: it is failing over, or a node is gone",
    _TIMEOUT: "it did not answer in time",
    (redis.ConnectionError, OSError): "it cannot be reached: check that it runs, and the URL",
}
"""By the first that fits."""
_WORDS = {
    "MISCONF": "it cannot write its snapshots: look at its disk and its log",
    "NOREPLICAS": "it has fewer replicas than it demands: start them, or lower min-replicas-to-write",
    "max": "it takes no more clients: raise maxclients",
}
"""By the first word of an error that redis-py has no class for."""
_REACHED = (redis.AuthenticationError, redis.BusyLoadingError, redis.MaxConnectionsError)
"""After these it was reached: to connect anew would not help."""
_ELSEWHERE = (redis.ConnectionError, redis.ReadOnlyError, OSError, *_CLUSTER, *_TIMEOUT)
"""After these, but for the former, it may be found in another place."""
_FAULTS = (redis.RedisError, OSError, *_CLUSTER, *_TIMEOUT, LookupError, AttributeError, ValueError)
"""The last three are raised by redis-py's cluster client where its nodes vanish under it."""


class RedisConnection:
    """Round trips to one server, service or cluster."""

    def __init__(self, where: Address, patience: float) -> None:
        self.misses = 0
        self._where = where
        self._tls = certificates(where)
        self._patience = patience * _SHARE
        self._pool: ConnectionPool | None = None
        self._previous: ConnectionPool | None = None
        self._reconnecting: asyncio.Task[None] | None = None
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def open(self, probe: Command) -> None:
        """Connect and try it, or StoreTrouble. From then on it is connected anew where that is needed."""
        if self._pool is None:
            self._pool = self._new_pool()
        self._probe = probe
        # All connections at once: a request has no time to make one, least of all by TLS.
        await _all(self._within(_OPENING, [probe]) for _ in range(AT_ONCE))

    async def close(self) -> None:
        """Close all connections. Harmless where they are closed."""
        pools, self._pool = [self._pool, self._previous], None
        reconnecting, self._reconnecting = self._reconnecting, None
        if reconnecting is not None:
            reconnecting.cancel()
            await asyncio.gather(reconnecting, return_exceptions=True)
        for pool in pools:
            if pool is not None:
                await _closed(pool)

    async def trip(self, *commands: Command) -> list[Any]:
        """The replies, in order. Raises StoreTrouble."""
        return await self._within(self._patience, commands)

    async def _within(self, seconds: float, commands: Sequence[Command]) -> list[Any]:
        if self._pool is None:
            raise StoreTrouble(f"the store {self._where} is not open")
        try:
            async with asyncio.timeout(seconds), self._slots:
                try:
                    return await self._replies(commands)
                except redis.ConnectionError as error:
                    if type(error) is not redis.ConnectionError:
                        raise
                    # The server has closed the connection meanwhile. One that wants a password hangs up on more than
                    # ten words; to these it says why.
                    await self._replies([self._probe])
                    return await self._replies(commands)
        except _FAULTS as error:
            # Look for the server behind the requests, once for all of them.
            idle = self._reconnecting is None or self._reconnecting.done()
            gone = isinstance(error, _ELSEWHERE) and not isinstance(error, _REACHED)
            if idle and gone and self._pool is not None:
                self._reconnecting = asyncio.create_task(self._reconnect())
            kinds = (advice for kind, advice in _ADVICE.items() if isinstance(error, kind))
            advice = _WORDS.get(_word(error)) or next(kinds, "it failed")
            # What follows would be what was sent: names, and texts of conversations.
            reason = str(error).partition(", with args")[0].partition(" script:")[0]
            trouble = f"the store {self._where}: {advice}" + (f" ({reason[:200]})" if reason else "")
            raise StoreTrouble(trouble) from error

    async def _replies(self, commands: Sequence[Command]) -> list[Any]:
        replies = await self._sent(commands)
        if any(isinstance(reply, redis.NoScriptError) for reply in replies):
            replies = await self._sent([in_full(command) for command in commands])
        of_wrong_type = [
            command for command, reply in zip(commands, replies, strict=True) if _word(reply) == "WRONGTYPE"
        ]
        if of_wrong_type:
            self.misses += len(of_wrong_type)
            keys = (
                command[3 : 3 + int(command[2])] if isinstance(command, ScriptCommand) else command[1:2]
                for command in of_wrong_type
            )
            await self._sent([("UNLINK", *each) for each in keys])
            replies = await self._sent([in_full(command) for command in commands])
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    async def _sent(self, commands: Sequence[Command]) -> list[Any]:
        if self._pool is None:
            raise redis.ConnectionError("closed")
        return await self._pool.replies(commands)

    async def _reconnect(self) -> None:
        """Try new pools of connections until one works; that takes the place of the old one."""
        works = False
        while not works:
            pool = self._new_pool()
            try:
                async with asyncio.timeout(_OPENING):
                    answers = await _all(pool.replies([self._probe]) for _ in range(AT_ONCE))
                    works = not any(isinstance(reply, Exception) for (reply,) in answers)
            except _FAULTS:
                pass
            finally:
                if not works:
                    await _closed(pool)
            if not works:
                await asyncio.sleep(_AGAIN)
        self._previous, self._pool = self._pool, pool
        if self._previous is not None:
            await _closed(self._previous)

    def _new_pool(self) -> ConnectionPool:
        return connect(self._where, self._tls, max(_EACH, self._patience))


@dataclass(eq=False)
class RedisPart:
    """What each part of the store needs."""

    _connection: RedisConnection
    _keys: Keys
    _codec: Codec
    _ttl: int
    _clock: Callable[[], float]


def _word(reply: object) -> str:
    """The first word of an error, which says of what kind it is."""
    return str(reply).partition(" ")[0] if isinstance(reply, Exception) else ""


async def _all(trips: Iterable[Awaitable[list[Any]]]) -> list[list[Any]]:
    """At once. Raises what the first raises, once all are over."""
    replies = await asyncio.gather(*trips, return_exceptions=True)
    for reply in replies:
        if isinstance(reply, BaseException):
            raise reply
    return [reply for reply in replies if not isinstance(reply, BaseException)]


async def _closed(pool: ConnectionPool) -> None:
    try:
        await pool.close()
    except _FAULTS:
        return  # the server is gone already
