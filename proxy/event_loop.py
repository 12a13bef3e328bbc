"""The event loop of a process: the fastest that there is, how long it stands still, and threads beside it."""

import asyncio
import errno
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from time import perf_counter
from typing import Any, TypeVar

T = TypeVar("T")


def run_fast(main: Coroutine[Any, Any, T]) -> T:
    if sys.platform == "win32":
        return asyncio.run(main)
    import uvloop

    return uvloop.run(main)


def interruption() -> asyncio.Event:
    """Set by Ctrl-C from now on, so that the work comes to an early end with what is done so far."""
    event = asyncio.Event()
    with suppress(NotImplementedError):  # on Windows Ctrl-C ends it at once
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, event.set)
    return event


async def lateness(seconds: float) -> AsyncIterator[float]:
    """Sleeps for so many seconds again and again, and says by how many more it woke too late each time."""
    while True:
        due = perf_counter() + seconds  # the loop's own clock has milliseconds
        await asyncio.sleep(seconds)
        yield perf_counter() - due


async def in_thread(work: Callable[..., T], *args: Any, leave: Callable[[], None] = lambda: None) -> T:
    """The result of work in a thread. Where the caller is cancelled, `leave` is called, and the thread is waited for:
    nobody else may change meanwhile what it works on."""
    running = asyncio.ensure_future(asyncio.to_thread(work, *args))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        leave()
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # nobody else asks
        raise
    finally:
        del running  # an error refers to this frame, and the two to each other: what it worked on would stay


def terminal_is_gone() -> bool:
    """True where the terminal that this process was started from has been closed: that sends SIGHUP, too."""
    try:
        os.tcgetpgrp(0)
    except OSError as error:
        return error.errno == errno.EIO
    return False
