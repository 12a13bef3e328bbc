"""Who is let in: how many connections, requests and bytes of bodies there are at once, in all and of one client.

Laws
  An address may have as much as is still free for all others, a credential half of that. So one alone gets at most
  half (a third), and however many come, there is something left for the next.
  What is refused could be taken a moment later: 429 where the client alone has too much, 503 where all together have,
  both with Retry-After.
  Planning is given up before requests are: where it piles up, nothing new is planned for whoever has most of it, then
  for nobody, until it is done. What made-up credentials have in planning does not count against accepted ones.
  Every connection is accepted, so that Narrows' own pages are always answered. Room is made by closing connections on
  which nothing runs: the client's own where it has more than its share, else the one that is silent for longest.
"""

import asyncio
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from math import exp
from typing import Literal

from aiohttp import web
from msgspec import Struct

from proxy.config import Settings
from proxy.errors import ApiError
from proxy.identity.credential import KEY_HEADER, CredentialStates, received_credential
from proxy.telemetry import QUIET, Telemetry

_CONNECTIONS = 2
"""Connections for each request that may be in flight: the others are idle."""
_SPARE_FILES = 128
"""Files that a process has open beside connections."""
_RETRY_AFTER = {"client": "2", "all": "5"}
_RECEIVING = 3
"""Bodies as large as may be, of which so many bytes may be here while the rest is still to come: whoever is slow has
less than those that are served."""
_UNPACKING = 2
"""Bodies that are unpacked at once to more than `UNPACKED` bytes."""
UNPACKED = 4 * 2**20

_DRAIN, _DRAIN_RATE = 2**28, 2**25
"""Bytes of refused bodies that are received to be thrown away: at most, and in a second."""
_SLOW = 5.0
"""Seconds after which planning is slow: one person's agents that all go on after a restart wait for each other, too."""
_MANY_OWN, _MANY = 8, 16
"""Requests whose planning is slow: with so many of one client, or of all together, nothing new is planned."""
_MEMORY = 10.0
"""Seconds over which it is averaged how long a request waits for the event loop."""
_LATE, _WELL = 0.3, 0.1
"""Seconds of that wait on average: from the first on nothing new is planned, until it is less than the second."""

Whose = Literal["", "client", "all"]


class Peer(Struct, frozen=True):
    """Where a request comes from, and its credential."""

    address: str
    credential: str = ""


class Pool:
    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        self._by_address: dict[str, int] = {}
        self._by_credential: dict[str, int] = {}

    def shortage(self, client: Peer, amount: int) -> Whose:
        """Who uses too much for this client to have so much more; "" where there is enough."""
        free = self.size - self.used - amount
        address = self._by_address.get(client.address, 0) + amount
        credential = self._by_credential.get(client.credential, 0) + amount if client.credential else 0
        if free >= address and free >= 2 * credential:
            return ""
        return "client" if 2 * address > self.size or 3 * credential > self.size else "all"

    def take(self, client: Peer, amount: int) -> Whose:
        """Take so much for a client where there is no shortage; else say who uses too much."""
        whose = self.shortage(client, amount)
        if not whose:
            self.count(client, amount)
        return whose

    def count(self, client: Peer, amount: int) -> None:
        """The client has so much more, or less."""
        self.used += amount
        _add(self._by_address, client.address, amount)
        if client.credential:
            _add(self._by_credential, client.credential, amount)


def _add(counts: dict[str, int], name: str, amount: int) -> None:
    count = counts.get(name, 0) + amount
    if count:
        counts[name] = count
    else:  # only who has something takes memory
        counts.pop(name, None)


class Pressure:
    """Decides whether anything new is planned. `patience`: seconds that it may take longer, to wait for a summary."""

    def __init__(self, telemetry: Telemetry, patience: float, clock: Callable[[], float]) -> None:
        self._telemetry = telemetry
        self.apply(patience)
        self._clock = clock
        self._planning: dict[object, tuple[str, bool, float]] = {}
        """Whose requests are being planned, whether an upstream has accepted the credential, and since when; those
        first that have been for longest."""
        self._late = 0.0
        self._is_late = False

    @property
    def is_late(self) -> bool:
        """True where requests wait for the event loop."""
        return self._is_late

    def apply(self, patience: float) -> None:
        self._slow = _SLOW + patience

    def begin(self, visit: object, client: Peer, is_accepted: bool = True) -> bool:
        """A request is to be planned. True where anything new may be decided. `is_accepted`: its credential was."""
        name, now = client.credential or client.address, self._clock()
        reason = self._reason(name, is_accepted, now)
        self._planning[visit] = name, is_accepted, now
        if reason:
            self._telemetry.shed(reason, planning=len(self._planning))
        return not reason

    def end(self, visit: object) -> None:
        self._planning.pop(visit, None)

    def note_late(self, seconds: float, pause: float) -> None:
        """The event loop was so late, after a pause: a request that comes meanwhile waits half as long on average. A
        longer stop counts as one of a second: there is one at the start, and when a laptop wakes up."""
        lateness = min(seconds, 1.0)
        self._late = self._late * exp(-(pause + seconds) / _MEMORY) + lateness * lateness / 2 / _MEMORY
        self._is_late = self._late > (_WELL if self._is_late else _LATE)

    def _reason(self, name: str, is_accepted: bool, now: float) -> str:
        if self._is_late:
            return "loop"
        slow = own = 0
        for each, each_is_accepted, since in self._planning.values():
            if now - since < self._slow:
                break
            slow += each_is_accepted or not is_accepted
            own += each == name
        return "queue" if slow >= _MANY else "client" if own >= _MANY_OWN else ""


class Visit:
    """A request while it is here, and what of the pools it has."""

    __slots__ = ("_bytes", "_client", "_connection", "_receiving", "_requests", "admission")

    def __init__(self, admission: "Admission", client: Peer, connection: web.RequestHandler) -> None:
        self.admission = admission
        self._client = client
        self._connection = connection
        self._requests = self._bytes = self._receiving = 0

    def enter(self) -> None:
        if not self._requests:
            whose = self.admission.requests.take(self._client, 1)
            if whose:
                raise self.admission.refusal("requests", whose)
            self._requests = 1

    def expect(self, size: int) -> None:
        """A body of so many bytes is to come. Raises ApiError where there is no room for it now."""
        admission = self.admission
        whose = admission.bytes.shortage(self._client, size) or admission.receiving.shortage(self._client, size)
        if whose:
            raise admission.refusal("bytes", whose)

    def hold(self, size: int) -> None:
        """So many bytes are in memory, until the end of the request. Raises ApiError where there is no room."""
        whose = self.admission.bytes.take(self._client, size)
        if whose:
            raise self.admission.refusal("bytes", whose)
        self._bytes += size

    def receive(self, size: int) -> None:
        """As `hold`, for bytes of a body of which more is to come."""
        whose = self.admission.receiving.take(self._client, size)
        if whose:
            raise self.admission.refusal("bytes", whose)
        self._receiving += size
        self.hold(size)

    def end_receiving(self) -> None:
        """All of the body has come, or no more does."""
        if self._receiving:
            self.admission.receiving.count(self._client, -self._receiving)
            self._receiving = 0

    def begin_planning(self, is_accepted: bool) -> bool:
        """True where anything new may be planned for it. `is_accepted`: its credential was accepted."""
        return self.admission.pressure.begin(self, self._client, is_accepted)

    def end_planning(self) -> None:
        self.admission.pressure.end(self)

    def close(self) -> None:
        admission = self.admission
        admission.pressure.end(self)
        if self._requests:
            admission.requests.count(self._client, -self._requests)
        if self._bytes:
            admission.bytes.count(self._client, -self._bytes)
        admission.set_idle(self._connection)


VISIT = web.RequestKey("visit", Visit)


def open_files(requests: int) -> int | None:
    """How many files this process may have open: what so many requests need, where it may. None: no limit."""
    if sys.platform == "win32":
        return None
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = (_CONNECTIONS + 1) * requests + _SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        more = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
            soft = more
    return None if soft == resource.RLIM_INFINITY else soft


class Admission:
    """The limits of one process. `states`: what upstreams said to credentials; `open_files`: how many it may have."""

    def __init__(
        self,
        settings: Settings,
        telemetry: Telemetry,
        states: CredentialStates,
        open_files: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.requests, self.bytes, self.receiving, self._connections = Pool(0), Pool(0), Pool(0), Pool(0)
        self._open_files = open_files
        self._telemetry = telemetry
        self.states = states
        self._clock = clock
        self._addresses: dict[web.RequestHandler, str] = {}
        self._idle: OrderedDict[web.RequestHandler, None] = OrderedDict()
        """Connections on which nothing runs, those first that are silent for longest."""
        self._last_refusals: dict[str, float] = {}
        self._drain, self._drain_at = float(_DRAIN), clock()
        self.unpacking = asyncio.Semaphore(_UNPACKING)
        self.pressure = Pressure(telemetry, 0.0, clock)
        self.apply(settings)
        telemetry.metrics.connections.set_function(lambda: self._connections.used)
        telemetry.metrics.bytes_in_flight.set_function(lambda: self.bytes.used)

    def apply(self, settings: Settings) -> None:
        """From now on the limits are those of these settings."""
        requests, files = settings.requests_limit, self._open_files
        if files is not None:  # each request in flight has a connection upstream, too
            requests = min(requests, max(1, (files - _SPARE_FILES) // (_CONNECTIONS + 1)))
        if requests < settings.requests_limit:
            self._telemetry.log.warning("requests_limit_lowered", requests_limit=requests, open_files=files)
        self.requests.size, self._connections.size = requests, _CONNECTIONS * requests
        self.bytes.size = settings.bytes_limit or 8 * settings.body_limit
        self.receiving.size = _RECEIVING * max(settings.body_limit, self.bytes.size // 8)
        self.pressure.apply(settings.summary_wait / 1000)

    # Requests, and the bytes of their bodies

    def visit(self, request: web.BaseRequest) -> Visit:
        connection = request.protocol
        self._idle.pop(connection, None)
        client = Peer(
            self._addresses.get(connection, ""), request.headers.get(KEY_HEADER) or received_credential(request)
        )
        return Visit(self, client, connection)

    def drains(self, size: int) -> bool:
        """True where this much of a refused body is still received, so that its client gets to read the refusal."""
        now = self._clock()
        self._drain = min(_DRAIN, self._drain + (now - self._drain_at) * _DRAIN_RATE)
        self._drain_at = now
        if size > self._drain:
            return False
        self._drain -= size
        return True

    def refusal(self, pool: Literal["requests", "bytes"], whose: Whose) -> ApiError:
        self._telemetry.metrics.count("refused", pool, whose)
        now, name = self._clock(), f"{pool} {whose}"
        if now - self._last_refusals.get(name, -QUIET) >= QUIET:
            used = {"requests": self.requests.used, "bytes": self.bytes.used}
            self._telemetry.log.warning("refusing", limit=f"{pool}_limit", whose=whose, **used)
        self._last_refusals[name] = now
        what = "requests in flight" if pool == "requests" else "bytes of requests in flight"
        headers, limit = {"Retry-After": _RETRY_AFTER[whose]}, f"{pool}_limit"
        if whose == "client":
            message = f"Too many {what} from one client (`{limit}`); try again when others are answered."
            return ApiError(429, message, "client_limit", limit, headers)
        message = f"Narrows has too many {what} (`{limit}`); try again in some seconds."
        return ApiError(503, message, "overloaded", limit, headers)

    # Connections

    def connected(self, connection: web.RequestHandler, address: str) -> None:
        network, pool = _network(address), self._connections
        if pool.take(Peer(network), 1):
            pool.count(Peer(network), 1)
            own = next((each for each in self._idle if self._addresses[each] == network), None)
            if own is not None:
                self._close(own)
        self._addresses[connection] = network
        self._idle[connection] = None  # the last to be closed
        while pool.used > pool.size:
            self._close(next(iter(self._idle)))

    def count_stalled(self) -> None:
        """A client took nothing of its reply and was cut off."""
        self._telemetry.metrics.count("connections_closed", "stalled")

    def disconnected(self, connection: web.RequestHandler) -> None:
        address = self._addresses.pop(connection, None)
        if address is not None:
            self._connections.count(Peer(address), -1)
            self._idle.pop(connection, None)

    def set_idle(self, connection: web.RequestHandler) -> None:
        if connection in self._addresses:  # else it is closed
            self._idle[connection] = None

    def _close(self, connection: web.RequestHandler) -> None:
        self._telemetry.metrics.count("connections_closed", "room")
        self.disconnected(connection)
        connection.force_close()


@lru_cache
def _network(address: str) -> str:
    """The part that counts as one address: of IPv6 the half that a network gives away as a whole."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:  # a socket file has none
        return address
    parsed = getattr(parsed, "ipv4_mapped", None) or parsed
    return str(IPv6Address(int(parsed) >> 64 << 64) if isinstance(parsed, IPv6Address) else parsed)
