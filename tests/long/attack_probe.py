"""A process that asks pages of servers every 20 milliseconds, so that the clients of an attack do not slow it down.

`python -m tests.long.attack_probe URL...`: for each line on stdin it prints one of JSON with what was measured since
the line before, a `Waits` for each URL.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field

import aiohttp

from proxy.event_loop import run_fast
from tests.kit.paths import ROOT

EVERY = 0.02


@dataclass(frozen=True, slots=True)
class Waits:
    """How long a page took, in milliseconds."""

    asked: int
    failures: int
    p50: float
    p99: float
    longest: float


@dataclass(slots=True)
class _Page:
    url: str
    waits: list[float] = field(default_factory=list)
    failures: int = 0

    async def ask(self, http: aiohttp.ClientSession) -> None:
        while True:
            began = time.perf_counter()
            try:
                async with http.get(self.url) as reply:
                    await reply.read()
                    self.failures += reply.status != 200
            except (aiohttp.ClientError, TimeoutError):
                self.failures += 1
            wait = time.perf_counter() - began
            # those that were due while it did not answer would have waited, too
            self.waits += [wait - late * EVERY for late in range(int(wait / EVERY) + 1)]
            await asyncio.sleep(max(0.0, EVERY - wait))

    def report(self) -> Waits:
        waits, failures = sorted(1000 * wait for wait in self.waits) or [0.0], self.failures
        self.waits, self.failures = [], 0
        cuts = (waits[len(waits) // 2], waits[int(len(waits) * 0.99)], waits[-1])
        return Waits(len(waits), failures, *(round(wait, 1) for wait in cuts))


async def main(urls: Sequence[str]) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:
        pages = [_Page(url) for url in urls]
        tasks = [asyncio.create_task(page.ask(http)) for page in pages]
        while await reader.readline():
            print(json.dumps([asdict(page.report()) for page in pages]), flush=True)
        for task in tasks:
            task.cancel()


class Probe:
    """That process, from outside."""

    def __init__(self, process: asyncio.subprocess.Process, names: Sequence[str]) -> None:
        self._process = process
        self._names = names

    @classmethod
    @asynccontextmanager
    async def started(cls, urls: Mapping[str, str]) -> AsyncIterator["Probe"]:
        words = (sys.executable, "-m", "tests.long.attack_probe", *urls.values())
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, cwd=ROOT)
        try:
            yield cls(process, list(urls))
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def read(self) -> dict[str, Waits]:
        """What was measured since the last time."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        line = await self._process.stdout.readline()
        return {name: Waits(**waits) for name, waits in zip(self._names, json.loads(line), strict=True)}


if __name__ == "__main__":
    run_fast(main(sys.argv[1:]))
