"""What the workers of one start share: it is made before they are forked, and each of them inherits it.

Laws
  A message to a worker arrives whole, or the sender learns that it does not, at once.
  What waits for a worker that dies is read by the one that takes its place.
  A worker that stands still is sent no requests.
"""

import errno
import http.client
import mmap
import os
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from proxy.config import ConfigurationError

_LONGEST_MESSAGE = 4_096
_STANDSTILL = 3.0
"""Seconds after which a worker that gives no sign of life stands still."""


class Team:
    """The listening sockets, a channel to each worker, and who of them serves."""

    def __init__(self, count: int, listening: Sequence[socket.socket], secret: bytes) -> None:
        self.count = count
        self.listening = listening
        self.secret = secret
        """The key of the hash that names tenants, the same in all workers."""
        # of all kinds of sockets this one keeps messages apart, passes files, and is bounded in bytes
        self._channels = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(count)]
        for end in (end for pair in self._channels for end in pair):
            end.setblocking(False)
        self._signs = memoryview(mmap.mmap(-1, 8 * count)).cast("d")  # shared with every worker
        """When each worker last gave a sign of life; 0 for one that does not serve."""

    def serves(self, number: int) -> bool:
        return self._signs[number] > 0

    def is_awake(self, number: int) -> bool:
        return time.monotonic() - self._signs[number] < _STANDSTILL

    def set_serving(self, number: int, serves: bool) -> None:
        """To be called at least every second by a worker that serves."""
        self._signs[number] = time.monotonic() if serves else 0.0

    def channel(self, number: int) -> int:
        """The file that is readable when there is a message for this worker."""
        return self._channels[number][0].fileno()

    def send(self, number: int, message: bytes, files: Sequence[int]) -> bool:
        """Send a message with open files; whether it was taken."""
        if not self.serves(number) or len(message) > _LONGEST_MESSAGE:
            return False
        try:
            socket.send_fds(self._channels[number][1], [message], files)
        except OSError:  # too much waits there
            return False
        return True

    def receive(self, number: int) -> tuple[bytes, list[int]] | None:
        """The next message for this worker, and its files: none where this process has no room for them. None where
        there is no message."""
        try:
            message, files, flags, _ = socket.recv_fds(self._channels[number][0], _LONGEST_MESSAGE, 2)
        except BlockingIOError:
            return None
        if flags & socket.MSG_CTRUNC:
            for file in files:
                os.close(file)
            files = []
        return message, files

    def close(self) -> None:
        """Let go of the channels; the listening sockets are the supervisor's."""
        for end in (end for pair in self._channels for end in pair):
            end.close()


# --- the metrics of all workers in one page: each sends what it has counted, and whoever is asked adds it up ---
# Counters and histograms are sums. Gauges have the label `worker`: of two processes' memory neither the sum nor the
# mean says anything. (The files of prometheus_client's own multiprocess mode take no collectors, and cost each count a
# lock and a write.)


class _Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


class _Family(NamedTuple):
    """A metric with all of its samples."""

    name: str
    help: str
    kind: str
    samples: list[_Sample]


_families = msgspec.msgpack.Decoder(list[_Family])


def packed(registry: CollectorRegistry) -> bytes:
    """What this worker has counted."""
    return msgspec.msgpack.encode(
        [
            _Family(each.name, each.documentation, each.type, [_Sample(*sample[:3]) for sample in each.samples])
            for each in registry.collect()
        ]
    )


def page(workers: Mapping[int, bytes]) -> bytes:
    """The page for Prometheus, from what workers have packed, by their numbers."""
    return generate_latest(_Sums(workers))


class _Sums:
    """Collects what workers have packed, as a registry does."""

    def __init__(self, workers: Mapping[int, bytes]) -> None:
        self._workers = {number: _families.decode(content) for number, content in sorted(workers.items())}

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("narrows_workers", "Workers whose metrics are in this page.", len(self._workers))
        metrics: dict[str, Metric] = {}
        sums: dict[str, dict[tuple[str, frozenset[tuple[str, str]]], float]] = {}
        for number, families in self._workers.items():
            for family in families:
                metrics.setdefault(family.name, Metric(family.name, family.help, family.kind))
                own = {"worker": str(number)} if family.kind == "gauge" else {}
                values = sums.setdefault(family.name, {})
                for sample in family.samples:
                    series = (sample.name, frozenset({**sample.labels, **own}.items()))
                    values[series] = values.get(series, 0.0) + sample.value
        for name, metric in metrics.items():
            for (series_name, labels), value in sums[name].items():
                metric.add_sample(series_name, dict(labels), value)
            yield metric


# --- the sockets on which all workers listen, and why there may be none ---

BACKLOG = 1024
"""Connections that may wait until they are accepted."""
_PATIENCE = 0.5
"""Seconds in which another Narrows says that it is one."""
_HOSTS = "give 127.0.0.1 for this machine alone, or 0.0.0.0 for all its addresses"
_FAULTS: Mapping[int, str] = {
    errno.EADDRNOTAVAIL: f"host: {{host}} is no address of this machine; {_HOSTS}",
    errno.EAFNOSUPPORT: f"host: this machine has no addresses such as {{host}}; {_HOSTS}",
    errno.EINVAL: f"host: nothing can listen on {{host}}; {_HOSTS}",
    errno.EACCES: "port: {port} needs the right to use ports below 1024; choose one above, such as 8787",
}
"""What is wrong with which setting, by the error of the system, and what to do."""


def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """One for each address of the host, all on one port. Raises ConfigurationError."""
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            own = sockets[0].getsockname()[1] if sockets else port
            sockets.append(socket.create_server((address[0], own), family=family, backlog=BACKLOG))
    except (OSError, UnicodeError) as error:
        for each in sockets:
            each.close()
        raise cannot_listen(host, port, error) from error
    return sockets


def cannot_listen(host: str, port: int, error: OSError | UnicodeError) -> ConfigurationError:
    """Which of the two settings is wrong, and what to do; UnicodeError is of a name that is none."""
    if isinstance(error, (socket.gaierror, UnicodeError)):
        return ConfigurationError(f"host: there is no address for the name {host[:64]!r}; {_HOSTS}")
    if error.errno == errno.EADDRINUSE:
        who = "another Narrows" if _is_narrows(host, port) else f"another program (`lsof -i :{port}` names it)"
        message = f"port: {port} on {host} is in use by {who}; end that one, or choose another --port (0 takes any)"
    elif message := _FAULTS.get(error.errno or errno.EADDRNOTAVAIL, ""):  # newer loops give no number for that
        message = message.format(host=host, port=port)
    else:
        message = f"port: cannot listen on {host}:{port} ({error.strerror}); choose another, or 0"
    return ConfigurationError(message)


def _is_narrows(host: str, port: int) -> bool:
    """Whether it is a Narrows that listens there."""
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - nothing is bound here
    with closing(http.client.HTTPConnection(here, port, timeout=_PATIENCE)) as connection:
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().headers.get("Server") == "narrows"
        except (OSError, http.client.HTTPException):
            return False
