"""The way to Redis: where it is, what keys are called there, how commands are sent, and advice where one fails.

    redis://[USER:PASSWORD@]HOST[:PORT][/DB]
    unix://[USER:PASSWORD@]/PATH/OF/SOCKET
    redis+sentinel://[USER:PASSWORD@]HOST[:PORT],HOST[:PORT],.../SERVICE[/DB]
    redis+cluster://[USER:PASSWORD@]HOST[:PORT],HOST[:PORT],...

`rediss` instead of `redis` speaks TLS, to Sentinels too. Behind a question mark: `ttl=30d` (data that is not used for
so long is deleted; s, m, h or d), `prefix=narrows` (of every key), `ca=FILE` (PEM, instead of the system's), `db=0`
(for a socket), `sentinel_user` and `sentinel_password` (Sentinel's own). User and password are percent-encoded.

Laws
  An invalid URL is refused with ValueError, and no message holds a password.
  The keys of a conversation share a hash tag, and so a slot of a cluster. A script touches one conversation, or one
  index.
  Names are digests: what a client writes cannot forge a key, and keys tell nothing.
  All keys but the secrets have the version of the schema in their names. Release 0.1 wrote keys without one: they are
  not read, and expire by themselves.
  A trip takes no longer than the patience, and ends with replies or with StoreTrouble that says what to do. No wait on
  a connection is without end, and no client of redis-py tries again by itself.
  A script that the server does not know is sent in full. A key of the wrong type counts as a miss, and is deleted with
  those beside it.
  A server that cannot be reached is looked for behind the requests, with more time than they have: one that moved
  (Sentinel, cluster) takes longer to find than a request may wait.
  Certificates are read once: redis-py would do it for each connection, and block all others meanwhile.
"""

import asyncio
import re
import ssl
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha1, sha256
from io import BytesIO
from struct import iter_unpack, pack
from typing import Any, NamedTuple, cast
from urllib.parse import unquote, urlsplit

from redis import exceptions as redis
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import SSLConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel, SentinelManagedSSLConnection
from redis.backoff import NoBackoff

from proxy.memory import TTL, parameters, ttl
from proxy.memory.decisions import StoreTrouble
from proxy.memory.records import DAY, KEY, Kind, TextKind
from proxy.memory.serialization import Codec, UnreadableRecordError

# --- keys, and scripts ---


VERSION = "v2"
Argument = str | bytes | int | float
Command = tuple[Argument, ...]
TextIndex = tuple[str, str]
"""The keys of the texts of a bounded kind, and of the number of their bytes."""


class ConversationKeys(NamedTuple):
    """The keys of a conversation. Scripts know them by their place here: `steps` is KEYS[1]."""

    steps: str
    ages: str
    summaries: str
    leases: str
    spent: str
    abouts: str
    texts: str
    messages: str
    message_bytes: str
    snapshots: str
    owners: str
    bills: str
    bill_ids: str


class Keys:
    """All keys below one prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = f"{prefix}:{VERSION}"
        self._secrets = f"{prefix}:secret"
        self.ready = f"{self._prefix}:ready"
        self.tenants = f"{self._prefix}:tenants"
        self.measured = f"{self._prefix}:measured"
        self.billed_tenants = f"{self._prefix}:billed"
        self.gateway_keys = f"{self._prefix}:keys"
        self.gateway_mark = f"{self._prefix}:{{{self.gateway_keys}}}:mark"
        self.tenants_of_0_1 = f"{prefix}:tenants"

    def conversation(self, tenant: bytes, name: bytes) -> ConversationKeys:
        tag = f"{self._prefix}:{{{_digest(tenant, name)}}}"
        return ConversationKeys(*(f"{tag}:{each}" for each in ConversationKeys._fields))

    def text_index(self, kind: TextKind, tenant: bytes, name: bytes) -> TextIndex:
        """Of the texts of a tenant, or of a conversation."""
        if kind.bounded_by == "conversation":
            keys = self.conversation(tenant, name)
            return keys.messages, keys.message_bytes
        tag = f"{self._prefix}:{{{_digest(tenant)}}}"
        return f"{tag}:{kind.name}s", f"{tag}:{kind.name}_bytes"

    def conversations(self, tenant: bytes) -> str:
        return f"{self._prefix}:{{{_digest(tenant)}}}:conversations"

    def events(self, tenant: bytes) -> str:
        return f"{self._prefix}:{{{_digest(tenant)}}}:events"

    def holders(self, tenant: bytes, field: bytes) -> str:
        """The conversations that have a text, which is named by its field."""
        return f"{self._prefix}:{{{_digest(tenant, b'text', field)}}}:holders"

    def purse(self, tenant: bytes, day: bytes) -> str:
        """The sum taken on a day, for one tenant or for all."""
        return f"{self._prefix}:{{{_digest(tenant, b'purse', day)}}}:purse"

    def billed(self, tenant: bytes, what: str) -> str:
        return f"{self._prefix}:{{{_digest(tenant)}}}:billed_{what}"

    def billed_day(self, tenant: bytes, day: bytes) -> tuple[str, str]:
        """The sums of a day, and the ids of the bills that were added."""
        tag = f"{self._prefix}:{{{_digest(tenant, b'bills', day)}}}"
        return f"{tag}:bills", f"{tag}:ids"

    def mark(self, kind: Kind | None, tenant: bytes, place: bytes) -> str:
        """The mark of the last change of rows of a place, which is in their slot."""
        key = self.billed_day(tenant, place)[0] if kind == DAY else self.conversation(tenant, place).steps
        return self.gateway_mark if kind == KEY else f"{key.rpartition(':')[0]}:mark"

    def secret(self, name: str) -> str:
        """A secret that all share; release 0.1 has the same."""
        return f"{self._secrets}:{name}"


def _digest(*names: bytes) -> str:
    """A digest of its own for each sequence of names."""
    return sha256(b"".join(b"%d:%s" % (len(name), name) for name in names)).hexdigest()[:32]


@dataclass(frozen=True)
class Script:
    """A script, known to the server by its digest once it has run there."""

    text: str

    @cached_property
    def digest(self) -> str:
        return sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    def on(self, keys: Sequence[str], *arguments: Argument) -> "ScriptCommand":
        """The command that runs it where it is known."""
        command = ScriptCommand(("EVALSHA", self.digest, len(keys), *keys, *arguments))
        command.script = self
        return command


class ScriptCommand(Command):
    """EVALSHA, which remembers its script."""

    script: Script


def in_full(command: Command) -> Command:
    """The command, with its script in full for a server that does not know it."""
    return ("EVAL", command.script.text, *command[2:]) if isinstance(command, ScriptCommand) else command


_SEAL = 16  # characters


def open_row(name: bytes, row: bytes) -> bytes:
    """The body of a row that a script has sealed. Raises UnreadableRecordError."""
    body = row[_SEAL:]
    if sha1(b"1" + name + body, usedforsecurity=False).hexdigest()[:_SEAL].encode() != row[:_SEAL]:
        raise UnreadableRecordError("its checksum is wrong")
    return body


def seal_row(name: bytes, body: bytes) -> bytes:
    """A row as scripts seal and unseal it."""
    return sha1(b"1" + name + body, usedforsecurity=False).hexdigest()[:_SEAL].encode() + body


def framed(values: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Their lengths, and all of them."""
    return pack(f">{len(values)}i", *map(len, values)), b"".join(values)


def fields(lengths: bytes, values: bytes) -> Iterator[tuple[int, list[bytes | None]]]:
    """The answer of READ: the number of an anchor, and its five fields."""
    rest = BytesIO(values)
    for number, *sizes in iter_unpack(">6i", lengths):
        yield number, [None if size < 0 else rest.read(size) for size in sizes]


# --- where the server is ---


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
    """The context that checks the servers' certificates, if they have any. Raises ValueError."""
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


# --- round trips ---


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
    """The base of each part of the store."""

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
