"""Large replays in a process of their own, so that small requests beside them keep the interpreter.

Laws
  The plan is the same as one that is made here: the process gets the messages and what they are planned under, and
  nothing else. No credential goes there: neither a header nor a variable of the environment that may hold one.
  Fail open: where the process does not start, is busy, hangs or dies, the caller plans in a thread.
  Whose client has left is not worked on any more.
  It ends after disuse, and with the process that started it.

A `ProcessPoolExecutor` of one would hand on the whole environment, would stop no call that has begun, and its process
would stay where this one is killed.
"""

import asyncio
import gc
import os
import pickle
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import BufferedReader
from subprocess import DEVNULL, PIPE, Popen
from threading import Event
from time import monotonic, thread_time
from typing import Any

import msgspec

from policies.dialects import Request
from policies.model.conversation import Conversation, Message, converse
from policies.model.memory import Memory
from policies.model.tokens import Counter
from policies.planning.plan import plan
from policies.planning.state import Plan, PlanSettings
from policies.render import Rendering, render
from proxy.event_loop import in_thread
from proxy.warmup import trim, tune

# --- turns of work of which little runs at once, fair between those who ask for it ---
# Laws
#   Whoever had the last turn comes after all others who wait; each of them has one turn after the other.
#   Where some are accepted and some are not, every other turn is for the accepted ones, and half of the places.
#   Who waits is bounded, in all and of each owner, and each waits for some seconds at most.

_MOST, _MOST_OF_OWNER = 64, 4

_Owner = tuple[bool, str]
"""An owner: whether its credential was accepted, and its name."""


class Turns:
    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._waiting: dict[_Owner, deque[asyncio.Future[None]]] = {}
        self._last = False, ""

    async def take(self, name: str, seconds: float, is_accepted: bool = True) -> bool:
        """Wait for a turn of the owner of this name; False where none comes in time. After True, `give` must follow.
        `is_accepted`: whether it is more than a name that somebody has made up."""
        owner = is_accepted, name
        if self._free:
            self._free -= 1
            self._last = owner
            return True
        others = sum(len(waiting) for each, waiting in self._waiting.items() if not each[0])
        is_full = sum(map(len, self._waiting.values())) >= _MOST or (not is_accepted and others >= _MOST // 2)
        if is_full or len(self._waiting.get(owner, ())) >= _MOST_OF_OWNER:
            return False
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        try:
            async with asyncio.timeout(seconds):
                await turn
        except TimeoutError:
            self._leave(owner, turn)
            return False
        except asyncio.CancelledError:
            self._leave(owner, turn)
            raise
        return True

    def give(self) -> None:
        while self._waiting:
            other = (each for each in self._waiting if each[0] != self._last[0])
            another = (each for each in self._waiting if each != self._last)
            owner = next(other, None) or next(another, self._last)
            waiting = self._waiting.pop(owner)
            turn = waiting.popleft()
            if waiting:
                self._waiting[owner] = waiting
            if not turn.done():
                self._last = owner
                turn.set_result(None)
                return
        self._free += 1

    def _leave(self, owner: _Owner, turn: asyncio.Future[None]) -> None:
        if not turn.cancelled():  # the turn came at the same moment
            self.give()
        elif turn in (waiting := self._waiting.get(owner, deque())):
            waiting.remove(turn)
            if not waiting:
                del self._waiting[owner]


# --- when planning is to stop: after so many seconds of its own, or once its client has left ---

_SLOWNESS = 5
"""How many times longer planning may take by the clock than it works: others work beside it."""


class LeftError(Exception):
    """The client has left, and nobody wants the plan any more."""


class Deadline:
    """Says, in the one thread that plans, when that is to stop: after so many seconds of work."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until = monotonic() + _SLOWNESS * seconds
        self._begun: float | None = None
        self._is_left = False

    def leave(self) -> None:
        self._is_left = True

    def __call__(self) -> bool:
        """Raises LeftError."""
        if self._is_left:
            raise LeftError
        now = thread_time()
        if self._begun is None:
            self._begun = now
        return now - self._begun >= self._seconds or monotonic() >= self._until


# --- the process, as its parent sees it ---

FEWEST_BYTES = 100_000
"""A smaller body is planned in a thread in the time that it takes to go to another process and back."""
_WORTH_WAITING = 1_000_000
"""A body of so many bytes waits for a process that starts, which takes a second or two."""
_SHORT_WAIT = 0.25
"""Seconds for which a smaller one waits for its turn: in a thread it would be done soon. Where its credential was not
accepted it waits for longer: in a thread it would keep others waiting."""
_LONGER = 3
"""Planning may take so many times longer there than in a thread: it is in nobody's way."""
_PATIENCE = 20.0
"""Seconds for the start, and for one replay beside the time that it may take: then the process hangs."""
_FAREWELL = 1.0
"""Seconds in which the process must end a replay whose client has left."""
_DISUSE = 300.0
_PAUSE = 30.0
_LEAVE = getattr(signal, "SIGUSR1", signal.SIGTERM)
"""Tells the process that nobody waits for its answer any more; where there is no such signal, it ends."""
_PROGRAM = f"from {__name__} import serve; serve()"
_ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "SYSTEMROOT")


class ColdProcess:
    """One spare process, started when it is first needed."""

    def __init__(self, count: Callable[[str, str], None], is_on: bool = True, seconds: float = 2.0) -> None:
        """`count`: called with a metric's name and what became of a replay; `seconds`: for planning in a thread."""
        self._count = count
        self._is_on = is_on
        self._seconds = _LONGER * seconds
        self._process: Popen[bytes] | None = None
        self._start: asyncio.Task[None] | None = None
        """Over once the process says that it takes jobs, or has ended."""
        self._end: asyncio.TimerHandle | None = None
        self._turns = Turns(1)
        self._not_before = 0.0

    async def plan(
        self,
        dialect: str,
        request: Request,
        conversation: Conversation,
        settings: PlanSettings,
        memory: Memory,
        owner: str,
        is_accepted: bool = True,
    ) -> tuple[Plan, Rendering] | None:
        """The plan of a history from its first step on; None where it is to be made here. `owner`: who takes a turn;
        `is_accepted`: whether its credential was accepted."""
        if not self._is_on or len(request.body) < FEWEST_BYTES:
            return None
        is_large = len(request.body) >= _WORTH_WAITING
        if await self._ready(is_large) is None:
            return None
        patience = self._seconds if is_large or not is_accepted else _SHORT_WAIT
        if not await self._turns.take(owner, patience, is_accepted):
            self._count("cold_replays", "busy")
            return None
        try:
            try:
                job = await in_thread(_packed, conversation.messages, settings, memory)
                indexes, result = await self._ask(await self._ready(is_patient=False), job)
            finally:
                self._turns.give()
            rendering = await in_thread(_rendered, dialect, request, conversation, result, indexes)
        except asyncio.CancelledError:
            self._count("cold_replays", "left")
            raise
        except Exception:  # whatever it is, the caller finds out by planning itself
            self._count("cold_replays", "failed")
            return None
        self._count("cold_replays", "process")
        return result, rendering

    async def close(self) -> None:
        self._is_on = False
        if self._process is not None:
            await in_thread(_kill, self._process)
        if self._start is not None:
            await asyncio.wait([self._start])
        if self._end is not None:
            self._end.cancel()

    async def _ready(self, is_patient: bool) -> Popen[bytes] | None:
        """The process, where there is one that takes jobs; `is_patient`: waits for one that starts."""
        now, is_alive = asyncio.get_running_loop().time(), self._process is not None and self._process.poll() is None
        if not is_alive and self._is_on and now >= self._not_before:
            self._not_before = now + _PAUSE
            self._start = asyncio.create_task(self._begin())
        if self._start is not None and is_patient:
            await asyncio.wait([self._start])
        is_ready = self._start is not None and self._start.done()
        return self._process if is_ready and self._process is not None and self._process.poll() is None else None

    async def _begin(self) -> None:
        command = (sys.executable, "-c", _PROGRAM, str(self._seconds))
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        try:
            self._process = Popen(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=environment)  # noqa: ASYNC220, S603 - of our own
            await self._ask(self._process, b"")
        except Exception:  # there are platforms that start no process from here
            self._count("cold_replays", "failed")

    async def _ask(self, process: Popen[bytes] | None, job: bytes) -> Any:
        """The answer of the process. Where the client leaves meanwhile, it stops working on that and goes on."""
        if process is None:
            raise ProcessLookupError
        has_left = Event()

        def leave() -> None:
            has_left.set()
            process.send_signal(_LEAVE)
            self._end_in(_FAREWELL, process)

        self._end_in(_PATIENCE + self._seconds, process)
        try:
            return await in_thread(_exchange, process, job, has_left, leave=leave)
        finally:
            self._end_in(_DISUSE, process)

    def _end_in(self, seconds: float, process: Popen[bytes]) -> None:
        """End the process in so many seconds, and not when it was to end before."""
        if process is self._process:  # else there is another one by now
            if self._end is not None:
                self._end.cancel()
            loop = asyncio.get_running_loop()
            self._end = loop.call_later(seconds, loop.run_in_executor, None, _kill, process)


def _exchange(process: Popen[bytes], job: bytes, has_left: Event) -> Any:
    """The answer of the process. One that fails is of no use any more."""
    assert process.stdin is not None
    assert process.stdout is not None
    if has_left.is_set():
        raise LeftError
    try:
        process.stdin.write(job)
        process.stdin.flush()
        return pickle.load(process.stdout)  # noqa: S301 - from a process of our own
    except Exception:
        _kill(process)
        raise


def _kill(process: Popen[bytes]) -> None:
    with suppress(OSError), process:
        process.kill()


def _packed(messages: Sequence[Message], settings: PlanSettings, memory: Memory) -> bytes:
    try:  # in a fifth of the time
        content: bytes | Sequence[Message] = msgspec.msgpack.encode(messages)
    except UnicodeEncodeError:  # there are lone surrogates
        content = messages
    return pickle.dumps((content, settings, memory), 5)


def _rendered(
    dialect: str, request: Request, conversation: Conversation, result: Plan, indexes: Sequence[str]
) -> Rendering:
    for name in indexes:
        getattr(conversation, name)
    return render(dialect, request, conversation, result)


# --- in the process ---


_MESSAGES = msgspec.msgpack.Decoder(tuple[Message, ...])


def serve() -> None:
    """Plan what comes in, until nothing comes any more. Says first that it is ready."""
    signal.signal(_LEAVE, lambda *_: None)  # who leaves before a replay begins leaves nothing behind
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal, and meant for others: this one ends with its input
    tune()
    gc.disable()  # what planning makes has no cycles; to look at all of it takes a tenth of the time
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    assert isinstance(source, BufferedReader)
    Counter()
    gc.freeze()  # what is there now stays: to collect takes no time for it
    pickle.dump(None, sink)
    sink.flush()
    while source.peek(1):
        sink.write(_answer(source, Deadline(float(sys.argv[1]))))
        sink.flush()
        gc.collect()
        trim()


def _answer(source: BufferedReader, deadline: Deadline) -> bytes:
    signal.signal(_LEAVE, lambda *_: deadline.leave())
    content, settings, memory = pickle.load(source)  # noqa: S301 - from the process that started this one
    try:
        conversation = converse(_MESSAGES.decode(content) if isinstance(content, bytes) else content)
        result = plan(conversation, settings, memory, None, deadline)
        return pickle.dumps((sorted(vars(conversation).keys() & vars(Conversation).keys()), result), 5)
    except Exception:
        return pickle.dumps(None)
