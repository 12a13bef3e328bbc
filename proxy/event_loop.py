"""The event loop of a process: the fastest that there is, and how long it stands still."""

import asyncio
import sys
from collections.abc import AsyncIterator, Coroutine
from time import perf_counter
from typing import Any


def run_fast(main: Coroutine[Any, Any, None]) -> None:
    if sys.platform == "win32":
        asyncio.run(main)
        return
    import uvloop

    uvloop.run(main)


async def lateness(seconds: float) -> AsyncIterator[float]:
    """Sleeps for so many seconds again and again, and says by how many more it woke too late each time."""
    while True:
        due = perf_counter() + seconds  # the loop's own clock has milliseconds
        await asyncio.sleep(seconds)
        yield perf_counter() - due
