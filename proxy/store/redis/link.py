"""The way to Redis: round trips, what is said when one fails, and finding it again.

Laws
  A trip takes no longer than the patience, and ends with replies or with StoreTrouble that says what to do.
  A script that the server does not know is sent in full. A key of the wrong type counts as a miss, and gives way with
  those beside it.
  What cannot be reached is looked for behind the requests, with more time than they have: a server that moved
  (Sentinel, cluster) takes longer to find than a request may wait.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any

from redis import exceptions as redis
from redis.asyncio.sentinel import MasterNotFoundError

from proxy.store import StoreTrouble
from proxy.store.redis.script import Command
from proxy.store.redis.scripts import keys, whole
from proxy.store.redis.url import AT_ONCE, Address, Client, certificates, client

_OPENING = 2.0
"""Seconds to connect, before the first request or behind the others."""
_EACH = 0.5
"""Seconds for one connection of those, so that there is time left for another server where one does not answer."""
_AGAIN = 1.0
"""Seconds between two looks for a server that is not there."""
_SHARE = 0.9
"""Of the patience: who waits shall hear what is wrong, and not only that time is up."""

_ADVICE: Mapping[type[Exception], str] = {
    redis.AuthenticationError: "it wants another user or password: put them into the URL",
    redis.NoPermissionError: "its user may not do this: allow it ~PREFIX:* +@read +@write +@scripting",
    redis.BusyLoadingError: "it is still loading its data: wait",
    redis.ReadOnlyError: "it is a read-only replica: name the primary, or use redis+sentinel:// or redis+cluster://",
    redis.OutOfMemoryError: "its memory is full: raise maxmemory, or set maxmemory-policy to volatile-lru",
    redis.MaxConnectionsError: "it takes no more clients: raise maxclients",
    MasterNotFoundError: "no primary is in charge: it is failing over, or the service in the URL is not known",
    redis.ClusterError: "no primary is in charge: it is failing over, or a node is gone",
    redis.RedisClusterException: "no primary is in charge: it is failing over, or a node is gone",
    redis.TimeoutError: "it did not answer in time",
    TimeoutError: "it did not answer in time",
    redis.ConnectionError: "it cannot be reached: check that it runs, and the URL",
    OSError: "it cannot be reached: check that it runs, and the URL",
}
"""By the first that fits."""
_WORDS = {
    "MISCONF": "it cannot write its snapshots: look at its disk and its log",
    "NOREPLICAS": "it has fewer replicas than it demands: start them, or lower min-replicas-to-write",
    "max": "it takes no more clients: raise maxclients",
}
"""By the first word of an error that redis-py has no class for."""
_HERE = (redis.AuthenticationError, redis.BusyLoadingError, redis.MaxConnectionsError)
"""It was reached, and looking for it would only be one more that knocks."""
_ELSEWHERE = (
    redis.ConnectionError,
    redis.TimeoutError,
    redis.ReadOnlyError,
    redis.ClusterError,
    redis.RedisClusterException,
    OSError,
    TimeoutError,
)
"""After these, but for the former, it may be found in another place."""
_FAULTS = (
    redis.RedisError,
    redis.RedisClusterException,
    OSError,
    TimeoutError,
    # redis-py's cluster client, where its nodes vanish under it.
    LookupError,
    AttributeError,
    ValueError,
)


class Link:
    """Round trips to one Redis, wherever it is."""

    def __init__(self, where: Address, patience: float) -> None:
        self.misses = 0
        self._where = where
        self._tls = certificates(where)
        self._patience = patience * _SHARE
        self._client: Client | None = None
        self._before: Client | None = None
        self._looking: asyncio.Task[None] | None = None
        self._places = asyncio.Semaphore(AT_ONCE)

    async def open(self, probe: Command) -> None:
        """Connect and try it, or StoreTrouble. From then on it is looked for where need be."""
        if self._client is None:
            self._client = self._made()
        self._probe = probe
        # All connections at once: a request has no time to make one, least of all by TLS.
        await _all(self._within(_OPENING, [probe]) for _ in range(AT_ONCE))

    async def close(self) -> None:
        """Let go. Harmless where it is closed."""
        gone, self._client = [self._client, self._before], None
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
        for each in gone:
            if each is not None:
                await _closed(each)

    async def trip(self, *commands: Command) -> list[Any]:
        """The replies, in order. Raises StoreTrouble."""
        return await self._within(self._patience, commands)

    async def _within(self, seconds: float, commands: Sequence[Command]) -> list[Any]:
        if self._client is None:
            raise StoreTrouble(f"the store {self._where} is not open")
        try:
            async with asyncio.timeout(seconds), self._places:
                return await self._tried(commands)
        except _FAULTS as error:
            self._look(error)
            raise self._trouble(error) from error

    async def _tried(self, commands: Sequence[Command]) -> list[Any]:
        """A connection that the server closed meanwhile is no trouble: there is another."""
        try:
            return await self._replies(commands)
        except redis.ConnectionError as error:
            if type(error) is not redis.ConnectionError:
                raise
            # A server that wants a password hangs up on more than ten words; to these it says why.
            await self._replies([self._probe])
            return await self._replies(commands)

    async def _replies(self, commands: Sequence[Command]) -> list[Any]:
        replies = await self._sent(commands)
        if any(isinstance(reply, redis.NoScriptError) for reply in replies):
            replies = await self._sent([whole(command) for command in commands])
        spoilt = [command for command, reply in zip(commands, replies, strict=True) if _word(reply) == "WRONGTYPE"]
        if spoilt:
            self.misses += len(spoilt)
            await self._sent([("UNLINK", *keys(command)) for command in spoilt])
            replies = await self._sent([whole(command) for command in commands])
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    async def _sent(self, commands: Sequence[Command]) -> list[Any]:
        if self._client is None:
            raise redis.ConnectionError("closed")
        return await self._client.replies(commands)

    def _look(self, error: Exception) -> None:
        """Behind the requests, and once for all of them."""
        idle = self._looking is None or self._looking.done()
        gone = isinstance(error, _ELSEWHERE) and not isinstance(error, _HERE)
        if idle and gone and self._client is not None:
            self._looking = asyncio.create_task(self._found())

    async def _found(self) -> None:
        """Until a new client finds it; that takes the place of the old one."""
        fresh = await self._fresh()
        while fresh is None:
            await asyncio.sleep(_AGAIN)
            fresh = await self._fresh()
        self._before, self._client = self._client, fresh
        if self._before is not None:
            await _closed(self._before)

    def _made(self) -> Client:
        return client(self._where, self._tls, max(_EACH, self._patience))

    async def _fresh(self) -> Client | None:
        """A client that works."""
        made, works = self._made(), False
        try:
            async with asyncio.timeout(_OPENING):
                tried = await _all(made.replies([self._probe]) for _ in range(AT_ONCE))
                works = not any(isinstance(reply, Exception) for (reply,) in tried)
        except _FAULTS:
            pass
        finally:
            if not works:
                await _closed(made)
        return made if works else None

    def _trouble(self, error: Exception) -> StoreTrouble:
        kinds = (advice for kind, advice in _ADVICE.items() if isinstance(error, kind))
        advice = _WORDS.get(_word(error)) or next(kinds, "it failed")
        # What follows would be what we sent: names, and texts of conversations.
        said = str(error).partition(", with args")[0].partition(" script:")[0]
        return StoreTrouble(f"the store {self._where}: {advice}" + (f" ({said[:200]})" if said else ""))


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


async def _closed(gone: Client) -> None:
    try:
        await gone.close()
    except _FAULTS:
        return  # whoever is gone needs no farewell
