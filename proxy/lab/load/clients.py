"""The client processes of a load, from outside: started, watched, stopped.

Law: they end with this process, because their stdin does; a Ctrl-C at the terminal reaches this process alone.
"""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import msgspec

from proxy.lab.load.client import ClientResult
from proxy.lab.load.plan import LoadPlan

_LONGEST_LINE = 2**26


class Clients:
    """Client processes, as a context: `prepare`, then `run`."""

    def __init__(self, plan: LoadPlan, processes: int = 1) -> None:
        self._plans = [replace(plan, process=at, processes=processes) for at in range(processes)]
        self._processes: Sequence[Process] = ()

    async def __aenter__(self) -> Self:
        words = (sys.executable, "-m", f"{__package__}.client")
        self._processes = [
            await asyncio.create_subprocess_exec(*words, stdin=PIPE, stdout=PIPE, limit=_LONGEST_LINE)
            for _ in self._plans
        ]
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
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
