"""Large replays in a process of their own, so that small requests beside them keep the interpreter.

Laws
  The plan is the same as one that is made here: the process gets the messages and what they are planned under, and
  nothing else. No credential goes there: neither a header nor a variable of the environment that may hold one.
  Fail open: where the process does not start, is busy, hangs or dies, the caller plans in a thread.
  Whose client has left is not worked on any more.
"""

import asyncio
import gc
import os
import pickle
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from policies.dialects import Request
from policies.model.conversation import Conversation, Message
from policies.model.converse import converse
from policies.model.memory import Memory
from policies.model.tokens import Counter
from policies.planning.plan import plan
from policies.planning.state import Plan, PlanSettings
from policies.render import RenderCache, Rendering, render
from proxy.compaction.deadline import Deadline, LeftError
from proxy.compaction.turns import Turns
from proxy.event_loop import in_thread
from proxy.warmup import trim, tune

Planned = tuple[Plan, Rendering]

FEWEST_BYTES = 100_000
"""A smaller body is planned in a thread in the time that it takes to go to another process and back."""
_WORTH_WAITING = 1_000_000
"""A body of so many bytes waits for a process that starts, which takes a second or two."""
_SHORT_WAIT = 0.25
"""Seconds for which a smaller one waits for its turn: in a thread it would be done soon. Where its credential was not
accepted it waits for longer: in a thread it would keep others waiting."""
_LONGER = 3
"""Planning may take so many times longer there than in a thread: it is in nobody's way."""
_PATIENCE = 60.0
"""Seconds for one replay: then the process hangs."""
_FAREWELL = 1.0
"""Seconds in which the process must end a replay whose client has left."""
_DISUSE = 300.0
"""Seconds without a replay after which the process ends."""
_PAUSE = 30.0
"""Seconds without a process after one failed."""
_LENGTH = 8
_LEAVE = getattr(signal, "SIGUSR1", None)
"""Tells the process that nobody waits for its answer any more."""
_PROGRAM = "from proxy.compaction.cold import serve; serve()"
_ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "SYSTEMROOT")
"""The variables that a Python needs to start."""


class ColdProcess:
    """One spare process, started when it is first needed."""

    def __init__(self, count: Callable[[str, str], None], is_on: bool = True, seconds: float = 2.0) -> None:
        """`count`: called with the name of a metric, and with what became of a replay; `seconds`: how long planning
        may take in a thread."""
        self._count = count
        self._is_on = is_on
        self._seconds = _LONGER * seconds
        self._process: Process | None = None
        self._creation: asyncio.Task[Process] | None = None
        self._transition: asyncio.Task[None] | None = None
        """The process is being started, or ended."""
        self._turns = Turns(1)
        self._waiting = 0
        self._indexes: Sequence[str] = ()
        """What the last replay had to work out of its history: most likely the next one has to, too."""
        self._ending: asyncio.TimerHandle | None = None
        self._not_before = 0.0

    async def plan(
        self,
        dialect: str,
        request: Request,
        conversation: Conversation,
        settings: PlanSettings,
        memory: Memory,
        rendered: RenderCache,
        owner: str,
        is_accepted: bool = True,
    ) -> Planned | None:
        """The plan of a history from its first step on; None where it is to be made here. Fills `rendered`. `owner`:
        who takes a turn; `is_accepted`: whether its credential was accepted."""
        if not self._is_on or len(request.body) < FEWEST_BYTES:
            return None
        if self._process is None:
            self._start()
            if self._transition is not None and len(request.body) >= _WORTH_WAITING:
                await asyncio.wait([self._transition])
        if self._process is None:
            return None
        self._waiting += 1
        has_turn = False
        try:
            is_patient = len(request.body) >= _WORTH_WAITING or not is_accepted
            patience = self._seconds if is_patient else _SHORT_WAIT
            has_turn = await self._turns.take(owner, patience, is_accepted)
            if not has_turn:
                self._count("cold_replays", "busy")
                return None
            job = await in_thread(_packed, conversation.messages, settings, memory, self._seconds)
            async with asyncio.TaskGroup() as group:
                answering = group.create_task(self._answer_to(job))
                group.create_task(in_thread(_index, conversation, self._indexes))
            self._turns.give()
            has_turn = False
            self._indexes, result = await in_thread(_unpacked, answering.result(), conversation)
            rendering = await in_thread(render, dialect, request, conversation, result, rendered)
        except Exception:  # whatever it is, the caller finds out by planning itself
            self._count("cold_replays", "failed")
            return None
        finally:
            self._waiting -= 1
            if has_turn:
                self._turns.give()
        self._count("cold_replays", "process")
        return result, rendering

    async def close(self) -> None:
        self._is_on = False
        if self._creation is not None and self._transition is not None:
            with suppress(Exception):
                (await self._creation).kill()
            await asyncio.wait([self._transition])
        await self._end()

    def _start(self) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._not_before and (self._transition is None or self._transition.done()):
            self._not_before = now + _PAUSE
            environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
            creating = asyncio.create_subprocess_exec(
                sys.executable, "-c", _PROGRAM, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=environment
            )
            self._creation = asyncio.create_task(creating)
            self._transition = asyncio.create_task(self._wait_until_ready(self._creation))

    async def _wait_until_ready(self, creation: asyncio.Task[Process]) -> None:
        """Take the process in once it is ready."""
        try:
            process = await creation
            async with asyncio.timeout(_PATIENCE):
                await _read(process)
            self._process = process
            self._wait_for_disuse()
        except Exception:  # there are platforms that start no process from here
            with suppress(Exception):
                await _kill(await creation)
            self._count("cold_replays", "failed")

    async def _answer_to(self, job: bytes) -> bytes:
        """What the process answers. Where the client leaves meanwhile, the process stops working on it and goes on."""
        answering = asyncio.create_task(self._exchange(job))
        try:
            return await asyncio.shield(answering)
        except asyncio.CancelledError:
            self._count("cold_replays", "left")
            if self._process is not None and _LEAVE is not None:
                with suppress(OSError):
                    self._process.send_signal(_LEAVE)
                await asyncio.wait([answering], timeout=_FAREWELL)
            answering.cancel()
            await asyncio.wait([answering])
            if not answering.cancelled():
                answering.exception()  # nobody else asks
            raise

    async def _exchange(self, job: bytes) -> bytes:
        """What the process answers. One that was left in the middle is of no use any more."""
        process = self._process
        if process is None or process.stdin is None:
            raise ProcessLookupError
        try:
            async with asyncio.timeout(_PATIENCE):
                process.stdin.write(len(job).to_bytes(_LENGTH, "big"))
                process.stdin.write(job)
                await process.stdin.drain()
                answer = await _read(process)
        except BaseException:
            await self._end()
            raise
        self._wait_for_disuse()
        return answer

    def _wait_for_disuse(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
        loop = asyncio.get_running_loop()
        self._ending = loop.call_later(_DISUSE, self._end_for_disuse)

    def _end_for_disuse(self) -> None:
        if self._waiting:
            self._wait_for_disuse()
        else:
            self._not_before = 0.0
            self._transition = asyncio.create_task(self._end())

    async def _end(self) -> None:
        process, self._process = self._process, None
        if self._ending is not None:
            self._ending.cancel()
        if process is not None:
            await _kill(process)


async def _read(process: Process) -> bytes:
    assert process.stdout is not None
    length = int.from_bytes(await process.stdout.readexactly(_LENGTH), "big")
    return await process.stdout.readexactly(length)


async def _kill(process: Process) -> None:
    with suppress(OSError):
        process.kill()
    await process.wait()


def _packed(messages: Sequence[Message], settings: PlanSettings, memory: Memory, seconds: float) -> bytes:
    """A job for the process."""
    try:  # in a fifth of the time
        packed: bytes | Sequence[Message] = msgspec.msgpack.encode(messages)
    except UnicodeEncodeError:  # there are lone surrogates
        packed = messages
    return pickle.dumps((packed, settings, memory, seconds), 5)


def _index(conversation: Conversation, names: Sequence[str]) -> None:
    """Work out what planning works out of a history, for the next request."""
    for name in names:
        getattr(conversation, name)


def _unpacked(answer: bytes, conversation: Conversation) -> tuple[Sequence[str], Plan]:
    """The answer, and what planning had to work out of the history."""
    names, result = pickle.loads(answer)  # noqa: S301 - from a process of our own
    _index(conversation, names)
    assert isinstance(result, Plan)
    return names, result


# --- in the process ---


_MESSAGES = msgspec.msgpack.Decoder(tuple[Message, ...])


class _Left:
    """Whether a replay is being worked on, which `_LEAVE` ends; and whether it came while the replay was read."""

    is_working = is_early = False

    def __call__(self, *_: object) -> None:
        self.is_early = not self.is_working
        if self.is_working:
            self.is_working = False
            raise LeftError


def serve() -> None:
    """Plan what comes in, until nothing comes any more. An empty answer: it could not be planned."""
    left = _Left()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal, and meant for others: this one ends with its input
    if _LEAVE is not None:
        signal.signal(_LEAVE, left)
    tune()
    gc.disable()  # what planning makes has no cycles; to look at all of it takes a tenth of the time
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    Counter()
    gc.freeze()  # what is there now stays: to collect takes no time for it
    answer, size = b"", 0
    while True:
        sink.write(len(answer).to_bytes(_LENGTH, "big") + answer)
        sink.flush()
        left.is_early = False
        if size > _WORTH_WAITING:
            answer = b""
            gc.collect()
            trim()
        length = source.read(_LENGTH)
        if not length:
            break
        size = int.from_bytes(length, "big")
        try:
            job = [source.read(size)]
            left.is_working = True
            answer = b"" if left.is_early else _answer(job.pop())
            left.is_working = False
        except Exception:  # whoever asked finds out in a thread
            answer = b""


def _answer(job: bytes) -> bytes:
    packed, settings, memory, seconds = pickle.loads(job)  # noqa: S301 - from the process that started this one
    del job  # it may be large
    deadline = Deadline(seconds)
    conversation = converse(_MESSAGES.decode(packed) if isinstance(packed, bytes) else packed)
    result = plan(conversation, settings, memory, None, deadline)
    return pickle.dumps((sorted(vars(conversation).keys() & vars(Conversation).keys()), result), 5)
