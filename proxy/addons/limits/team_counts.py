"""What keys use over the workers of one machine: counted in the memory of their parent, which answers at once.

Laws
  What is counted outlives the workers: one that is started again, or a reload, goes on where the counts were.
  A worker says how many requests of a key are in flight in it, not that there is one more or less: what gets lost is
  mended by its next message, and what was in flight in a worker that has died counts no more.
"""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec

from proxy.addons.limits.standing import Standing
from proxy.addons.limits.windows import LocalWindows
from proxy.memory import StoreTrouble


class _KeyReport(msgspec.Struct, array_like=True, frozen=True):
    """What a worker says of a key, and what its limits are, where it asks how the key stands."""

    name: str
    running: int | None = None
    """Requests in flight in this worker; None: as many as before."""
    concurrency: int | None = None
    rpm: int | None = None
    tpm: int | None = None
    is_wanted: bool = False
    """Whether a request is counted where it is within its limits."""
    tokens: int = 0
    """That were used since."""


class _Answer(NamedTuple):
    has_room: bool
    """Whether so many are in flight in all workers as may be, or fewer."""
    standing: Standing


_report, _answer = msgspec.msgpack.Decoder(_KeyReport), msgspec.msgpack.Decoder(_Answer)


class ParentCounts:
    """The counts of all workers, in their parent."""

    def __init__(self) -> None:
        self._windows = LocalWindows()
        self._running: dict[int, dict[str, int]] = {}
        """Requests in flight by the worker's process id and the name of the key."""

    def answer(self, pid: int, message: bytes) -> bytes:
        """Count what a worker reports, and answer how the key stands."""
        report = _report.decode(message)
        if report.running is not None:
            self._running.setdefault(pid, {})[report.name] = report.running
        if report.tokens:
            self._windows.charge(report.name, report.tokens)
        running = sum(each.get(report.name, 0) for each in self._running.values())
        has_room = report.concurrency is None or running <= report.concurrency
        standing = self._windows.admit(report.name, report.rpm, report.tpm, report.is_wanted)
        return msgspec.msgpack.encode(_Answer(has_room, standing))

    def ended(self, pid: int) -> None:
        """A worker has ended."""
        self._running.pop(pid, None)


class TeamCounts:
    """A worker's way to these counts. `ask`: has its parent answer, and raises OSError where that takes no message;
    `tell`: says something that the parent may miss; `workers`: how many count together."""

    def __init__(self, ask: Callable[[bytes], Awaitable[bytes]], tell: Callable[[bytes], None], workers: int) -> None:
        self._ask, self._tell = ask, tell
        self.workers = workers

    async def has_room(self, name: str, running: int, concurrency: int) -> bool:
        """Whether all workers together have at most so many requests of a key in flight; `running` of them are this
        worker's. Raises StoreTrouble."""
        return (await self._answer(_KeyReport(name, running, concurrency))).has_room

    async def admit(self, name: str, rpm: int | None, tpm: int | None, is_wanted: bool) -> Standing:
        """As `LocalWindows.admit`, for all workers. Raises StoreTrouble."""
        return (await self._answer(_KeyReport(name, rpm=rpm, tpm=tpm, is_wanted=is_wanted))).standing

    def charge(self, name: str, tokens: int) -> None:
        self._tell(msgspec.msgpack.encode(_KeyReport(name, tokens=tokens)))

    def leave(self, name: str, running: int) -> None:
        """A request is over, and so many are in flight here."""
        self._tell(msgspec.msgpack.encode(_KeyReport(name, running)))

    async def _answer(self, report: _KeyReport) -> _Answer:
        try:
            return _answer.decode(await self._ask(msgspec.msgpack.encode(report)))
        except OSError as error:
            raise StoreTrouble("the parent of the workers takes no question") from error
