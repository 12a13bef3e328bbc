"""The clients of a load: processes that hold conversations, send their requests when they are due, and measure.

A process reads a plan (one line of JSON) on stdin, and says on stdout when all is prepared and warm. A second line
starts it, the end of stdin stops it. What it measured is its last line.

Laws
  At a rate, latency counts from when a request was due, also where no conversation was free for it or this process was
  late (no coordinated omission). What was due and not answered in the end counts with its wait, and as an error.
  Bodies are prepared before they are due.
  As recorded, a request goes at its time, or once the one before it in its conversation is answered where that is
  later: requests overlap only where they did. How late each was sent is measured, and latency counts from when it could
  be.
  The processes end with the one that started them, because their stdin does; a Ctrl-C reaches that one alone.
"""

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from base64 import b64encode
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from math import log
from time import perf_counter
from typing import Any, Self

import aiohttp
import msgspec
import orjson

from proxy.event_loop import lateness, run_fast
from proxy.lab.load.plan import LoadPlan, Salt, SessionScript

PERCENTILES = (50.0, 90.0, 99.0, 99.9)
_LONGEST = 3_600_000_000
_MICROSECONDS = 1_000_000


class Latencies:
    """Recorded in seconds, and read in milliseconds."""

    def __init__(self, encoded: Iterable[str] = ()) -> None:
        from hdrh.histogram import HdrHistogram  # not everywhere there: it has no wheel for some machines

        self._histogram = HdrHistogram(1, _LONGEST, 3)
        for each in encoded:
            self._histogram.decode_and_add(each)

    def record(self, seconds: float) -> None:
        self._histogram.record_value(min(max(int(seconds * _MICROSECONDS), 1), _LONGEST))

    def encode(self) -> str:
        encoded: bytes = self._histogram.encode()
        return encoded.decode()

    @property
    def count(self) -> int:
        return int(self._histogram.get_total_count())

    @property
    def mean(self) -> float:
        return float(self._histogram.get_mean_value()) / 1000

    @property
    def longest(self) -> float:
        return float(self._histogram.get_max_value()) / 1000 if self.count else 0.0

    def percentiles(self, which: Sequence[float] = PERCENTILES) -> dict[float, float]:
        if not self.count:
            return dict.fromkeys(which, 0.0)
        values = self._histogram.get_percentile_to_value_dict(list(which))
        return {at: values[at] / 1000 for at in which}

    def buckets(self, most: int = 60) -> tuple[list[int], float]:
        """Columns of a picture from the shortest latency, which is given too, to the longest, by equal factors: how
        many fell into each."""
        each = [
            (max(item.value_iterated_to, 1), item.count_added_in_this_iter_step)
            for item in self._histogram.get_recorded_iterator()
        ]
        if not each:
            return [], 0.0
        low, high = each[0][0], each[-1][0]
        counts = [0] * (most if high > low else 1)
        for value, added in each:
            counts[min(int(log(value / low) / log(high / low) * most), most - 1) if high > low else 0] += added
        return counts, low / 1000


FIRST_BYTE, BETWEEN, STREAMED, NOT_STREAMED = "first byte", "between events", "whole, streamed", "whole, not streamed"
FIRST_REQUEST, ALL, BEHIND = "first of a conversation", "all, whole", "behind the recording"
KINDS = (ALL, STREAMED, NOT_STREAMED, FIRST_REQUEST, FIRST_BYTE, BETWEEN, BEHIND)
"""The kinds of latency, each in a histogram. Between events: between two pieces of a stream as they arrive. Behind the
recording: how long after its time a request was sent."""
_TIMEOUT = aiohttp.ClientTimeout(total=300, sock_connect=30)
_GRACE = 10.0
"""Seconds that requests on their way have after the load."""
REPLY = "x-load-reply"
"""The header with the reply that a sink is to give."""
NAME = "x-narrows-conversation"
_LONGEST_HEADER = 7_000
_LONGEST_PLAN = 2**30
_PAUSE = 0.1
"""Seconds before the next request after one that failed: what is broken is not hammered."""
_LOOK = 0.01
_AHEAD = 1.0
"""Seconds before its time that a recorded request is prepared: not much sooner, because a day has many."""
_SLICE = 16
"""Messages that are prepared before other tasks go on."""


@dataclass(slots=True)
class ClientResult:
    seconds: float = 0.0
    answered: int = 0
    events: int = 0
    conversations: int = 0
    """Begun while it was measured or prepared."""
    sent_bytes: int = 0
    received_bytes: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    latencies: dict[str, str] = field(default_factory=dict)
    longest_stop: float = 0.0
    """Of this process, in seconds: latencies are as sure as it is short."""


class ActiveConversation:
    """One conversation: the bodies of its requests, one after the other."""

    def __init__(self, script: SessionScript, salt: int, streamed: bool, plan: LoadPlan) -> None:
        self.script = script
        self._echo = plan.echo
        self._headers = {**script.headers, **({NAME: f"load-{salt}"} if plan.named else {})}
        self.streamed = streamed
        self.turn = min(int(plan.begin_at * len(script.ends)), len(script.ends) - 1)
        self.is_new = True
        """True where the target has not seen it yet."""
        self.body = b""
        self._salt = Salt(salt)
        self._messages: list[bytes] = []
        fields = orjson.dumps({**(script.streaming if streamed else {}), **script.fields})
        self._head = fields[:-1] + b',"' + script.history.encode() + b'":['

    @property
    def is_over(self) -> bool:
        return self.turn >= len(self.script.ends)

    async def prepare(self) -> None:
        """Write the next body; other tasks go on in between."""
        end = self.script.ends[self.turn]
        for at in range(len(self._messages), end):
            self._messages.append(orjson.dumps(self._message(at)))
            if at % _SLICE == 0:
                await asyncio.sleep(0)
        self.body = self._head + b",".join(self._messages[:end]) + b"]}"

    def headers(self) -> Mapping[str, str]:
        """Of the next request; one may have the recorded reply, where that is short enough for a header."""
        end = self.script.ends[self.turn]
        if not self._echo or end >= len(self.script.messages):
            return self._headers
        reply = b64encode(orjson.dumps(self._message(end))).decode()
        return {**self._headers, REPLY: reply} if len(reply) < _LONGEST_HEADER else self._headers

    def _message(self, at: int) -> Mapping[str, Any]:
        message = self.script.messages[at]
        return message if at < self.script.shared else self._salt.message(message)


class Client:
    """One process's share of a load. Requests that are wanted and conversations that are free find each other."""

    def __init__(self, plan: LoadPlan, http: aiohttp.ClientSession) -> None:
        self._plan = plan
        self._http = http
        self._free: deque[ActiveConversation] = deque()
        self._wanted: deque[float | None] = deque()
        """When the requests were due that no conversation is free for; None where that does not count."""
        self._latencies = {kind: Latencies() for kind in KINDS}
        self._errors: Counter[str] = Counter()
        self._numbers = count(plan.process, plan.processes)
        self._sending: dict[asyncio.Task[None], float] = {}
        self._playing = 0
        self._end = self._last_end = 0.0
        self._is_measuring = self._is_ending = False
        self._over = asyncio.Event()
        self._now = perf_counter  # the loop's own clock has milliseconds
        self.result = ClientResult()

    async def warm_up(self) -> None:
        """Prepare the conversations, and send what is not measured."""
        for _ in range(self._plan.process, self._plan.conversations, self._plan.processes):
            conversation = self._begin(next(self._numbers))
            for _ in range(min(self._plan.warm, len(conversation.script.ends) - conversation.turn)):
                await conversation.prepare()
                await self._exchange(conversation, self._now())
                conversation.turn += 1
            if not conversation.is_over:
                await conversation.prepare()
                self._free.append(conversation)
        self._playing = len(self._free)
        if self._errors:
            raise ValueError(f"the requests before the load failed ({_in_words(self._errors)})")

    async def run(self, stop: asyncio.Event) -> ClientResult:
        """The load, until its time is over, its conversations are, or it is stopped."""
        began, self._is_measuring = self._now(), True
        helpers = [asyncio.create_task(_watch(self.result)), asyncio.create_task(self._send_all(began))]
        ends = [asyncio.create_task(event.wait()) for event in (stop, self._over)]
        duration = None if self._plan.once else self._plan.duration
        await asyncio.wait(ends, timeout=duration, return_when=asyncio.FIRST_COMPLETED)
        self._end = self._now()
        for helper in (*helpers, *ends):
            helper.cancel()
        self._is_ending = True
        if self._sending:
            await asyncio.wait(list(self._sending), timeout=0 if stop.is_set() else _GRACE)
        if not stop.is_set():
            self._count_unanswered()
        self.result.seconds = max(self._end, self._last_end) - began
        self.result.errors = dict(self._errors)
        self.result.latencies = {kind: each.encode() for kind, each in self._latencies.items() if each.count}
        return self.result

    def _begin(self, number: int) -> ActiveConversation:
        share = self._plan.streamed
        streamed = int((number + 1) * share) > int(number * share)
        self.result.conversations += 1
        return ActiveConversation(self._plan.script(number), self._plan.seed + number, streamed, self._plan)

    async def _send_all(self, began: float) -> None:
        """So many at once; or at a rate: requests are due at even distances, whatever became of those before."""
        for _ in range(self._plan.process, self._plan.concurrency, self._plan.processes):
            self._want(None)
        for number in count(self._plan.process, self._plan.processes) if self._plan.rate else ():
            due = began + number / self._plan.rate
            if due > self._now():
                await asyncio.sleep(due - self._now())
            self._want(due)

    def _want(self, due: float | None) -> None:
        self._wanted.append(due)
        self._match()

    def _give(self, conversation: ActiveConversation) -> None:
        self._free.append(conversation)
        self._match()

    def _match(self) -> None:
        while self._wanted and self._free and not self._is_ending:
            due = self._wanted.popleft()
            due = self._now() if due is None else due
            task = asyncio.create_task(self._turn(self._free.popleft(), due))
            self._sending[task] = due
            task.add_done_callback(self._sending.pop)

    async def _turn(self, conversation: ActiveConversation, due: float) -> None:
        await self._exchange(conversation, due)
        if self._is_ending:
            return
        if not self._plan.rate:
            self._want(None)
        conversation.turn += 1
        if conversation.is_over and self._plan.once:
            self._playing -= 1
            if not self._playing:
                self._over.set()
            return
        following = self._begin(next(self._numbers)) if conversation.is_over else conversation
        await following.prepare()
        asyncio.get_running_loop().call_later(self._plan.think, self._give, following)

    async def _exchange(self, conversation: ActiveConversation, due: float) -> None:
        script, error = conversation.script, ""
        self.result.sent_bytes += len(conversation.body)
        try:
            address, headers = self._plan.url + script.path, conversation.headers()
            async with self._http.post(address, data=conversation.body, headers=headers) as reply:
                if reply.status < 400:
                    await self._read(reply, conversation, due)
                else:
                    error = f"status {reply.status}"
                    await reply.read()
        except TimeoutError:
            error = "timeout"
        except aiohttp.ClientConnectorError:
            error = "unreachable"
        except aiohttp.ClientError:
            error = "cut"
        conversation.is_new = False
        self._last_end = self._now()
        if error:
            self._errors[error] += 1
            if self._is_measuring and not self._is_ending:
                await asyncio.sleep(_PAUSE)

    async def _read(self, reply: aiohttp.ClientResponse, conversation: ActiveConversation, due: float) -> None:
        """Read a reply to its end, and record when its pieces came."""
        before, events, size, betweens = 0.0, 0, 0, list[float]()
        first, rest = 0.0, b""
        async for piece in reply.content.iter_any():
            at = self._now()
            first = first or at
            if before:
                betweens.append(at - before)
            before, size = at, size + len(piece)
            events += (rest + piece).count(b"\n\n")
            rest = b"\n" if piece.endswith(b"\n") and not piece.endswith(b"\n\n") else b""
        if not self._is_measuring:
            return
        end = self._now()
        self._latencies[ALL].record(end - due)
        self._latencies[STREAMED if conversation.streamed else NOT_STREAMED].record(end - due)
        self._latencies[FIRST_BYTE].record((first or end) - due)
        if conversation.is_new:
            self._latencies[FIRST_REQUEST].record(end - due)
        if conversation.streamed:
            self.result.events += events
            for seconds in betweens:
                self._latencies[BETWEEN].record(seconds)
        self.result.received_bytes += size
        self.result.answered += 1

    def _count_unanswered(self) -> None:
        """Count what was due and has no answer with its wait so far: a target that stops is to look no better."""
        now = self._now()
        for due in (*self._sending.values(), *(due for due in self._wanted if due is not None)):
            self._latencies[ALL].record(now - due)
            self._errors["unanswered"] += 1


class RecordedClient(Client):
    def __init__(self, plan: LoadPlan, http: aiohttp.ClientSession) -> None:
        super().__init__(plan, http)
        self._began = 0.0
        self._next = dict.fromkeys(range(plan.process, len(plan.begins), plan.processes), 0)
        """The next request of each conversation."""

    async def warm_up(self) -> None:
        """Nothing is sent before its time."""

    async def _send_all(self, began: float) -> None:
        self._began = began
        try:
            await asyncio.gather(*map(self._play, self._next))
        finally:
            self._over.set()

    async def _play(self, number: int) -> None:
        conversation: ActiveConversation | None = None
        before: asyncio.Task[None] | None = None
        overlaps = self._plan.script(number).overlaps
        for turn, due in enumerate(self._dues(number)):
            await self._sleep_until(due - _AHEAD)
            conversation = conversation or self._begin(number)
            conversation.turn = turn
            await conversation.prepare()
            await self._sleep_until(due)
            ready = due
            if before is not None and not (before.done() or overlaps[turn]):
                await asyncio.wait([before])
                ready = self._now()
            self._latencies[BEHIND].record(self._now() - due)
            before = asyncio.create_task(self._exchange(conversation, ready))
            self._sending[before] = ready
            before.add_done_callback(self._sending.pop)
            self._next[number] = turn + 1
        if before is not None:
            await asyncio.wait([before])

    def _dues(self, number: int) -> Iterator[float]:
        return (self._began + at / self._plan.speed for at in self._plan.moments(number))

    async def _sleep_until(self, moment: float) -> None:
        """Other tasks go on in between, also where the moment is over: one that was begun has taken its body then."""
        await asyncio.sleep(max(0.0, moment - self._now()))

    def _count_unanswered(self) -> None:
        super()._count_unanswered()
        for number, turn in self._next.items():
            for due in [*self._dues(number)][turn:]:
                if due < self._end:
                    self._latencies[BEHIND].record(self._end - due)
                    self._errors["unanswered"] += 1


async def _watch(result: ClientResult) -> None:
    async for late in lateness(_LOOK):
        result.longest_stop = max(result.longest_stop, late)


def _in_words(errors: Counter[str]) -> str:
    return ", ".join(f"{kind}: {number:,}" for kind, number in errors.most_common())


def _print(line: object) -> None:
    """A line for the process that started this one, if it is still there."""
    with suppress(OSError):
        sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
        sys.stdout.buffer.flush()


async def main() -> None:
    """Read the plan, warm up, wait for the word to start, and run until the time is over or stdin ends."""
    reader, stop = asyncio.StreamReader(limit=_LONGEST_PLAN), asyncio.Event()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    plan = msgspec.json.decode(await reader.readline(), type=LoadPlan)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False, timeout=_TIMEOUT) as http:
        client = (RecordedClient if plan.begins else Client)(plan, http)
        try:
            await client.warm_up()
        except ValueError as error:
            _print({"fault": str(error)})
            return
        _print({"prepared": True})
        if not await reader.readline():
            return
        ended = asyncio.create_task(reader.read())
        ended.add_done_callback(lambda _: stop.set())
        _print({"result": await client.run(stop)})
        ended.cancel()


_LONGEST_LINE = 2**26


class Clients:
    """Client processes, as a context: `prepare`, then `run`."""

    def __init__(self, plan: LoadPlan, processes: int = 1) -> None:
        self._plans = [replace(plan, process=at, processes=processes) for at in range(processes)]
        self._processes: Sequence[Process] = ()

    async def __aenter__(self) -> Self:
        words = (sys.executable, "-m", __name__)
        self._processes = [
            await asyncio.create_subprocess_exec(*words, stdin=PIPE, stdout=PIPE, limit=_LONGEST_LINE)
            for _ in self._plans
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def prepare(self) -> None:
        """Wait until they have prepared their conversations and warmed the target up. Raises ValueError."""
        for process, plan in zip(self._processes, self._plans, strict=True):
            assert process.stdin is not None
            process.stdin.write(msgspec.json.encode(plan) + b"\n")
        for process in self._processes:
            line = await _line(process)
            if "prepared" not in line:
                raise ValueError(line.get("fault", "a client process ended before the load began"))

    async def run(self) -> list[ClientResult]:
        """Start them, and wait for what they measured. Raises ValueError."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
        lines = await asyncio.gather(*(_line(process) for process in self._processes))
        if not all(lines):
            raise ValueError("a client process ended in the middle of the load")
        return [msgspec.convert(line["result"], ClientResult) for line in lines]

    def stop(self) -> None:
        """Have them end now, and report what they have."""
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()


async def _line(process: Process) -> dict[str, Any]:
    assert process.stdout is not None
    line = await process.stdout.readline()
    decoded: dict[str, Any] = msgspec.json.decode(line) if line else {}
    return decoded


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started this one says when it ends
    run_fast(main())
