"""The parent process of the workers: it starts them, starts again what died, restarts and ends them all.

SIGTERM, SIGINT: all workers finish what runs; a second one hurries them. SIGHUP: the settings are read anew and new
workers started with them; once all of these listen, the old ones finish what runs.

Laws
  The parent serves nothing and has one thread and no event loop, so that it can be forked at any time.
  A worker that dies takes its own requests with it, and nothing else; another takes its place, after ever longer pauses
  where it dies at once.
  Settings that cannot work change nothing: the workers that there are go on.
  Where the parent is gone, its workers end.
  It never waits for a worker: what one cannot take at once it does not get.

gunicorn's arbiter ends where settings cannot be read anew, and its workers cannot reach each other; uvicorn's manager
runs only its own server; circus and supervisord are services that are configured apart. What is needed here is less
than what would have to be changed there.
"""

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from structlog.typing import FilteringBoundLogger

from proxy.config import ConfigurationError, Settings
from proxy.event_loop import terminal_is_gone
from proxy.workers.worker import COUNT, HURRY, LONGEST_MESSAGE, NUMBER, READY, RETIRE, STOP, TROUBLE, Team, Worker

if TYPE_CHECKING:
    from proxy.addons.limits.windows import ParentCounts

_BRIEF_LIFE = 10.0
"""Seconds within which a worker has died at once."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
_ENDED = (signal.SIGTERM, signal.SIGINT)


@dataclass(slots=True)
class _Process:
    """A worker as its parent sees it."""

    number: int
    pid: int
    control: socket.socket
    began: float
    listens: bool = False
    trouble: str = ""
    """Why it could not start, in its own words."""


@dataclass(slots=True)
class _Generation:
    """The workers that were started with the same settings."""

    settings: Settings
    team: Team
    processes: list[_Process] = field(default_factory=list)
    brief_lives: list[int] = field(default_factory=list)
    due: dict[int, float] = field(default_factory=dict)

    @property
    def listens(self) -> bool:
        return len(self.processes) == self.team.count and all(each.listens for each in self.processes)

    def order(self, order: bytes) -> None:
        for process in self.processes:
            _send(process, order)


class Supervisor:
    """`gather` makes the team for settings; `read` reads the settings anew; `run` is a worker's life, in its process.
    Both of the first raise ConfigurationError."""

    def __init__(
        self,
        log: FilteringBoundLogger,
        gather: Callable[[Settings], Team],
        read: Callable[[], Settings],
        run: Callable[[Settings, Worker], None],
    ) -> None:
        self._log = log
        self._gather = gather
        self._read = read
        self._run = run
        self._current: _Generation | None = None
        self._coming: _Generation | None = None
        self._leaving: list[_Generation] = []
        self._counts: ParentCounts | None = None
        self._signals: list[int] = []
        self._stops = 0
        self._trouble = ""

    def supervise(self, settings: Settings, greet: Callable[[], None]) -> None:
        """Run workers until told to end; `greet` is called once all listen. ConfigurationError: they cannot start."""
        with _hearing(self._signals) as wakes:
            self._coming = self._begin(settings)
            while any(each.processes or each.due for each in self._generations()):
                controls = {each.control: (all_, each) for all_ in self._generations() for each in all_.processes}
                due = [each for generation in self._generations() for each in generation.due.values()]
                pause = max(0.0, min(due) - time.monotonic()) if due else None
                ready, _, _ = select.select([wakes, *controls], [], [], pause)
                if wakes in ready:
                    wakes.recv(64)
                for control in controls.keys() & set(ready):
                    self._hear(*controls[control])
                self._bury()
                self._start_again()
                if self._coming is not None and self._coming.listens:
                    is_first = self._current is None
                    self._take_turns()
                    if is_first:
                        greet()
                self._obey()
        if self._trouble:
            raise ConfigurationError(self._trouble)

    def _generations(self) -> list[_Generation]:
        return [*filter(None, (self._current, self._coming)), *self._leaving]

    def _begin(self, settings: Settings) -> _Generation:
        generation = _Generation(settings, self._gather(settings), brief_lives=[0] * settings.workers)
        for number in range(settings.workers):
            self._fork(generation, number)
        return generation

    def _fork(self, generation: _Generation, number: int) -> None:
        # of all kinds of sockets this one keeps messages apart, takes files with them, and is bounded in bytes
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        theirs.setblocking(False)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            theirs.close()
            generation.processes.append(_Process(number, pid, ours, time.monotonic()))
            return
        status = 1
        try:
            ours.close()
            others = (sockets for other, sockets in enumerate(generation.team.listening) if other != number)
            controls = (process.control for each in (generation, *self._generations()) for process in each.processes)
            _forget_parenthood(chain(controls, *others))
            self._run(generation.settings, Worker(generation.team, number, theirs))
            status = 0
        except ConfigurationError as error:
            theirs.send(TROUBLE + str(error).encode()[: LONGEST_MESSAGE - 1])
            status = 2
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _take_turns(self) -> None:
        if self._current is not None:
            self._current.order(RETIRE)
            self._current.due.clear()
            self._leaving.append(self._current)
            self._log.info("reloaded", workers=self._coming.team.count if self._coming else 0)
        self._current, self._coming = self._coming, None

    def _start_again(self) -> None:
        for generation in filter(None, (self._current, self._coming)):
            for number in [number for number, due in generation.due.items() if due <= time.monotonic()]:
                del generation.due[number]
                self._fork(generation, number)

    def _hear(self, generation: _Generation, process: _Process) -> None:
        """Take a message of a worker; what others are asked goes on to them."""
        try:
            message, files, _, _ = socket.recv_fds(process.control, LONGEST_MESSAGE, 1)
        except OSError:
            return
        if message == READY:
            process.listens = True
        elif message[:1] == TROUBLE:
            process.trouble = message[1:].decode(errors="replace")
        elif message[:1] == COUNT:
            if self._counts is None:
                from proxy.addons.limits.windows import ParentCounts  # only keys that have limits need it

                self._counts = ParentCounts()
            answer = self._counts.answer(process.pid, message[NUMBER.stop :])
            if any(message[NUMBER]):
                _send(process, message[: NUMBER.stop] + answer)
        elif message:  # else it has ended
            for other in generation.processes:
                if other is not process and other.listens:
                    _send(other, message, files)
        for file in files:
            os.close(file)

    def _bury(self) -> None:
        """See which workers have ended, and decide what follows."""
        for generation in self._generations():
            for process in list(generation.processes):
                pid, status = os.waitpid(process.pid, os.WNOHANG)
                if not pid:
                    continue
                self._hear(generation, process)
                process.control.close()
                if self._counts is not None:
                    self._counts.ended(pid)
                generation.processes.remove(process)
                self._follow(generation, process, os.waitstatus_to_exitcode(status))
        self._leaving = [each for each in self._leaving if each.processes]

    def _follow(self, generation: _Generation, process: _Process, status: int) -> None:
        if self._stops or generation in self._leaving:
            return
        if generation is self._coming:
            self._give_up(generation, process.trouble or f"a worker ended with status {status} before it listened")
            return
        is_brief = time.monotonic() - process.began < _BRIEF_LIFE
        lives = generation.brief_lives[process.number] = generation.brief_lives[process.number] + 1 if is_brief else 0
        pause = min(_FIRST_PAUSE * 2 ** max(0, lives - 1), _LONGEST_PAUSE) if lives else 0.0
        generation.due[process.number] = time.monotonic() + pause
        self._log.error("worker_died", worker=process.number, pid=process.pid, status=status, restart_in=pause)

    def _give_up(self, generation: _Generation, why: str) -> None:
        """A generation cannot be started: the one before goes on."""
        generation.order(HURRY)
        self._leaving.append(generation)
        self._coming = None
        if self._current is None:
            self._stops, self._trouble = 1, why
            return
        self._log.error("not_reloaded", reason=why)

    def _obey(self) -> None:
        for _ in range(len(self._signals)):  # more may come meanwhile
            number = self._signals.pop(0)
            if number in _ENDED or (number == signal.SIGHUP and terminal_is_gone()):
                self._stops += 1
                for generation in self._generations():
                    generation.due.clear()
                    generation.order(STOP if self._stops == 1 else HURRY)
            elif number == signal.SIGHUP and not self._stops:
                if self._coming is not None:  # the settings may have changed since those were read
                    self._signals.append(number)
                    continue
                try:
                    self._coming = self._begin(self._read())
                except ConfigurationError as error:
                    for line in str(error).splitlines():
                        self._log.error("not_reloaded", reason=line)


def _send(process: _Process, message: bytes, files: Sequence[int] = ()) -> None:
    with suppress(OSError):  # it has just ended, or takes nothing
        socket.send_fds(process.control, [message], files)


@contextmanager
def _hearing(signals: list[int]) -> Iterator[socket.socket]:
    """Note signals, and wake who waits at this socket for one."""
    wakes, waker = socket.socketpair()
    with wakes, waker:
        waker.setblocking(False)
        before = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        handlers = {
            number: signal.signal(number, lambda number, _: signals.append(number))
            for number in (*_ENDED, signal.SIGHUP, signal.SIGCHLD)
        }
        try:
            yield wakes
        finally:
            signal.set_wakeup_fd(before)
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _forget_parenthood(foreign: Iterable[socket.socket]) -> None:
    """In a worker: let go of what is not its own. An end of a control socket that stayed open here would hide the
    parent's death from another worker, and a socket that listens would take connections that nobody accepts."""
    signal.set_wakeup_fd(-1)
    for each in (signal.SIGINT, signal.SIGHUP):  # a terminal sends these to all; what they mean the parent says
        signal.signal(each, signal.SIG_IGN)
    for each in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(each, signal.SIG_DFL)
    for one in foreign:
        one.close()
