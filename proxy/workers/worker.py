"""One worker's side of its team: what its parent orders, and what the workers ask each other.

A question goes to the parent, with one end of a socket, and from there to all other workers; each of them answers at
that end, with its number and a file that holds the answer, of whatever size.

Law: whatever other workers ask is answered at once, or the asker goes on without it.
"""

import asyncio
import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

import msgspec

from proxy.memory.forgetting import ForgetRegistry
from proxy.telemetry import Telemetry
from proxy.workers.metrics import packed, page

READY, TROUBLE = b"r", b"t"
"""Messages of a worker to its parent: that it listens; why it cannot start, with the reason behind it."""
STOP, HURRY, RETIRE = b"s", b"h", b"x"
"""Orders of the parent: to end; to end at once; to end because another takes its place."""
_METRICS, _FORGET = b"m", b"f"
COUNT = b"c"
"""A message of a worker to its parent, or a question: behind it the number of a question, 0 where there is no answer,
and what is told or answered."""
NUMBER = slice(1, 9)
LONGEST_MESSAGE = 4_096
_PATIENCE = 2.0


@dataclass(frozen=True, slots=True)
class Team:
    """The values that all workers of one start share: it is made before they are forked."""

    listening: Sequence[Sequence[socket.socket]]
    """The sockets of each worker. The parent has them open, too: a successor accepts what waits for one that dies."""
    secret: bytes
    """The key of the hash that names tenants."""

    @property
    def count(self) -> int:
        return len(self.listening)


class Worker:
    """`control`: the socket to its parent."""

    def __init__(self, team: Team, number: int, control: socket.socket) -> None:
        self.team = team
        self.number = number
        self.stop, self.hurry = asyncio.Event(), asyncio.Event()
        """Set where it is to end, and not to wait for what runs."""
        self.retires = False
        """True where others take this worker's place, so that it accepts no connection any more."""
        self._control = control
        self._numbers = count(1)
        self._answers: dict[bytes, asyncio.Future[bytes]] = {}

    def join(self, telemetry: Telemetry, forgets: ForgetRegistry) -> None:
        """From now on it hears its parent and the others, and is one of those who serve."""
        self._telemetry, self._forgets = telemetry, forgets
        asyncio.get_running_loop().add_reader(self._control, self._hear)
        self._control.send(READY)

    def _hear(self) -> None:
        message, files = b"", list[int]()
        try:
            message, files, _, _ = socket.recv_fds(self._control, LONGEST_MESSAGE, 1)
        except BlockingIOError:
            return
        except OSError:
            pass
        if message[:1] in (_METRICS, _FORGET):
            self._answer(message, files)
            return
        if message[:1] == COUNT:
            waiting = self._answers.get(message[NUMBER])
            if waiting is not None and not waiting.done():
                waiting.set_result(message[NUMBER.stop :])
            return
        self.retires |= message in (b"", RETIRE)
        self.stop.set()
        if message == HURRY:
            self.hurry.set()
        if not message:
            asyncio.get_running_loop().remove_reader(self._control)

    def _answer(self, question: bytes, files: Sequence[int]) -> None:
        answer = self._packed_metrics() if question == _METRICS else b""
        if question != _METRICS:
            self._forgets.forget(*msgspec.msgpack.decode(question[1:], type=tuple[str, str | None]))
        for file in files:  # none where too many files are open here
            with socket.socket(fileno=file) as asker, open(os.memfd_create("answer"), "wb", buffering=0) as content:
                content.write(answer)
                with suppress(OSError):  # nobody waits for it any more
                    socket.send_fds(asker, [bytes([self.number])], [content.fileno()])

    def _packed_metrics(self) -> bytes:
        return packed(self._telemetry.metrics.registry)

    async def ask_parent(self, question: bytes) -> bytes:
        """The parent's answer, whenever it comes. Raises OSError where it takes no question."""
        number = next(self._numbers).to_bytes(8, "big")
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            self._control.send(COUNT + number + question)
            return await answer
        finally:
            del self._answers[number]

    def tell_parent(self, message: bytes) -> None:
        with suppress(OSError):
            self._control.send(COUNT + bytes(8) + message)

    async def scrape(self) -> bytes:
        answers = await self._ask_others(_METRICS)
        return await asyncio.to_thread(page, {self.number: self._packed_metrics(), **answers})

    async def forget(self, tenant: str, conversation: str | None) -> None:
        """Have all other workers forget a conversation, or all of a tenant."""
        answers = await self._ask_others(_FORGET + msgspec.msgpack.encode((tenant, conversation)))
        if silent := self.team.count - 1 - len(answers):
            self._telemetry.log.warning("workers_silent", count=silent)

    async def _ask_others(self, question: bytes) -> Mapping[int, bytes]:
        """The answers of the other workers, by their numbers; those that do not are left out."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, suppress(OSError):  # a parent that takes no message: nobody answers
            socket.send_fds(self._control, [question], [theirs.fileno()])
        return await asyncio.to_thread(_answers, ours)


def _answers(ours: socket.socket) -> Mapping[int, bytes]:
    answers, until = dict[int, bytes](), time.monotonic() + _PATIENCE
    with ours, suppress(TimeoutError):
        while (seconds := until - time.monotonic()) > 0:
            ours.settimeout(seconds)
            number, files, _, _ = socket.recv_fds(ours, 1, 1)
            if not number:
                break
            for file in files:
                with open(file, "rb") as content:
                    content.seek(0)
                    answers[number[0]] = content.read()
    return answers
