"""Where Redis is: the URLs of one server, of Sentinel and of a cluster, and the connections to each.

    redis://[USER:PASSWORD@]HOST[:PORT][/DB]
    unix://[USER:PASSWORD@]/PATH/OF/SOCKET
    redis+sentinel://[USER:PASSWORD@]HOST[:PORT],HOST[:PORT],.../SERVICE[/DB]
    redis+cluster://[USER:PASSWORD@]HOST[:PORT],HOST[:PORT],...

`rediss` instead of `redis` speaks TLS, to Sentinels too. Behind a question mark: `ttl=30d` (data that is not used for
so long is deleted; s, m, h or d), `prefix=narrows` (of every key), `ca=FILE` (PEM, instead of the system's), `db=0`
(for a socket), `sentinel_user` and `sentinel_password` (Sentinel's own). User and password are percent-encoded.

Laws
  An invalid URL is refused with ValueError, and no message holds a password.
  No wait on a connection is without end, and no client of redis-py tries again by itself.
  Certificates are read once: redis-py would do it for each connection, and block all others meanwhile.
"""

import asyncio
import re
import ssl
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import SSLConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelManagedSSLConnection
from redis.backoff import NoBackoff

from proxy.memory import TTL, parameters, ttl
from proxy.memory.redis.keys import Command

PREFIX = "narrows"
AT_ONCE = 4
"""Connections to one server, at most: it works through what they bring one after the other."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """User and password; its representation holds neither."""

    username: str | None = None
    password: str | None = None

    def __repr__(self) -> str:
        return "Credentials(...)"


@dataclass(frozen=True, slots=True)
class Address:
    """A URL, parsed."""

    scheme: str
    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""
    """Of a socket."""
    service: str = ""
    db: int = 0
    credentials: Credentials = Credentials()
    sentinel: Credentials = Credentials()
    ca: str | None = None
    ttl: int = TTL
    prefix: str = PREFIX

    @property
    def tls(self) -> bool:
        return self.scheme.startswith("rediss")

    @property
    def kind(self) -> str:
        """`sentinel`, `cluster`, or nothing for one server."""
        return self.scheme.partition("+")[2]

    def __str__(self) -> str:
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        return f"{self.scheme}://{hosts}{self.path}{self.service and '/'}{self.service}"


def address(url: str) -> Address:
    """The URL, parsed. Raises ValueError."""
    parts = urlsplit(url)
    kind = parts.scheme.partition("+")[2]
    login, _, places = parts.netloc.rpartition("@")
    username, _, password = login.partition(":")
    options = parameters(parts.query, {"ttl", "prefix", "ca", "db", "sentinel_user", "sentinel_password"})
    prefix, db = options.get("prefix", PREFIX), options.get("db", "0")
    if parts.fragment:
        raise ValueError("leave out everything from # on, or percent-encode it")
    if not re.fullmatch(r"[A-Za-z0-9:._-]{1,64}", prefix):
        raise ValueError(f"prefix {prefix!r} cannot be: use letters, digits and : . _ -")
    names = [unquote(name) for name in parts.path.split("/")[1:] if name]
    hosts: tuple[tuple[str, int], ...] = ()
    path = service = ""
    if parts.scheme == "unix":
        path = unquote(parts.path)
        if places or not names:
            raise ValueError("name the socket's whole path: unix:///run/redis/redis.sock")
    else:
        service = names.pop(0) if kind == "sentinel" and names else ""
        if (kind == "sentinel") != bool(service) or len(names) > (kind != "cluster"):
            raise ValueError(_SHAPES[kind])
        db = names[0] if names else db
        for place in places.split(","):
            match = re.fullmatch(r"(\[[0-9A-Fa-f:.%]+\]|[^\[\]:/]+)(?::(\d{1,5}))?", place)
            port = int((match and match[2]) or (26379 if kind == "sentinel" else 6379))
            if not match or not 0 < port < 65_536:
                raise ValueError(f"{place!r} is no host: write HOST:PORT")
            hosts += ((match[1].strip("[]"), port),)
        if len(hosts) > 1 and not kind:
            raise ValueError("several hosts are a redis+sentinel:// or a redis+cluster://")
    if not re.fullmatch(r"\d{1,5}", db):
        raise ValueError(f"{db!r} is no database: they are numbers")
    return Address(
        scheme=parts.scheme,
        hosts=hosts,
        path=path,
        service=service,
        db=int(db),
        credentials=Credentials(unquote(username) or None, unquote(password) or None),
        sentinel=Credentials(options.get("sentinel_user"), options.get("sentinel_password")),
        ca=options.get("ca"),
        ttl=ttl(options),
        prefix=prefix,
    )


_SHAPES = {
    "": "write redis://HOST:PORT/DB",
    "sentinel": "write redis+sentinel://HOST:PORT,HOST:PORT/SERVICE",
    "cluster": "write redis+cluster://HOST:PORT,HOST:PORT and no database: a cluster has only one",
}


class ConnectionPool:
    """Connections to one server, cluster or service, through redis-py's client for it."""

    def __init__(self, server: "Redis | RedisCluster", *, beside: Sentinel | None = None) -> None:
        self._server = server
        self._beside = beside
        self._closed = False

    async def replies(self, commands: Sequence[Command]) -> list[Any]:
        """One round trip; a reply that is an error is an exception in its place."""
        pipeline = cast(Any, self._server.pipeline(transaction=False))
        for command in commands:
            pipeline.execute_command(*command)
        try:
            return cast(list[Any], await pipeline.execute(raise_on_error=False))
        finally:
            if self._closed:  # meanwhile: redis-py may have made a connection for this trip after it closed all
                await self.close()

    async def close(self) -> None:
        """Close every connection, and those that trips under way are about to make."""
        self._closed = True
        async with AsyncExitStack() as parts:
            parts.push_async_callback(self._server.aclose)
            if self._beside is not None:
                parts.push_async_callback(self._beside.aclose)


def certificates(where: Address) -> ssl.SSLContext | None:
    """What the servers' certificates are checked by, if they have any. Raises ValueError."""
    if not where.tls:
        return None
    try:
        return ssl.create_default_context(cafile=where.ca)
    except OSError as error:
        raise ValueError(f"ca {where.ca!r} holds no certificates ({error}): name a PEM file") from error


class _TlsConnection(SSLConnection):
    """Uses the certificates that all connections share."""

    def __init__(self, *, tls: ssl.SSLContext, **options: Any) -> None:
        super().__init__(**options)
        self.ssl_context.context = tls


class _SentinelTlsConnection(SentinelManagedSSLConnection):
    """To the primary that Sentinel names, with the same certificates."""

    def __init__(self, *, tls: ssl.SSLContext, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]  # it ships half its types
        self.ssl_context.context = tls


class _SerialSentinel(Sentinel):
    """Answers one question at a time: redis-py sorts its Sentinels while others go through them, and loses some."""

    def __init__(self, *hosts: Any, **options: Any) -> None:
        super().__init__(*hosts, **options)  # type: ignore[no-untyped-call]  # it ships half its types
        self._lock = asyncio.Lock()

    async def discover_master(self, service_name: str) -> Any:
        async with self._lock:
            return await super().discover_master(service_name)


def connect(where: Address, tls: ssl.SSLContext | None, seconds: float) -> ConnectionPool:
    """A pool that has not connected yet; each wait on a connection takes at most so many seconds."""

    def options(login: Credentials, **more: Any) -> dict[str, Any]:
        return more | {
            "username": login.username,
            "password": login.password,
            "socket_timeout": seconds,
            "socket_connect_timeout": seconds,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
            "driver_info": None,  # saves two round trips at each connection
        }

    def with_tls(server: Redis, kind: type[SSLConnection] = _TlsConnection) -> Redis:
        if tls is not None:
            server.connection_pool.connection_class = kind
            server.connection_pool.connection_kwargs["tls"] = tls
        return server

    if where.path:
        one = options(where.credentials, db=where.db, max_connections=AT_ONCE)
        return ConnectionPool(Redis(unix_socket_path=where.path, **one))
    if where.kind == "sentinel":
        sentinel = _SerialSentinel(where.hosts, sentinel_kwargs=options(where.sentinel))
        for each in sentinel.sentinels:
            with_tls(each)
        primary = sentinel.master_for(where.service, **options(where.credentials, db=where.db, socket_keepalive=True))
        return ConnectionPool(with_tls(primary, _SentinelTlsConnection), beside=sentinel)
    if where.kind == "cluster":
        nodes = [ClusterNode(host, port) for host, port in where.hosts]
        more = options(where.credentials, socket_keepalive=True)
        cluster = RedisCluster(startup_nodes=nodes, require_full_coverage=False, **more)
        if tls is not None:
            cluster.connection_kwargs |= {"connection_class": _TlsConnection, "tls": tls}
            for node in cluster.startup_nodes:
                node.connection_class = _TlsConnection
                node.connection_kwargs["tls"] = tls
        return ConnectionPool(cluster)
    ((host, port),) = where.hosts
    one = options(where.credentials, db=where.db, max_connections=AT_ONCE, socket_keepalive=True)
    return ConnectionPool(with_tls(Redis(host=host, port=port, **one)))
