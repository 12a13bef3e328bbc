"""A process that listens gets ready: it loads what the first request would wait for, keeps the garbage collector
from stopping the event loop, and gives back memory that is free. By itself glibc learns from large bodies to take them
from its heaps, and a heap is given back only from its end on: one small object behind them keeps hundreds of megabytes.
"""

import asyncio
import ctypes
import gc
import sys
import time
from functools import cache
from pathlib import Path

from policies.model.tokens import Counter
from policies.money.catalog import prices_for

_YOUNG, _MIDDLE, _NEVER = 2_000, 5, 1_000_000
"""The thresholds of the collector's three generations. The young ones are small, so that a collection takes a few
milliseconds at most. What lives for long belongs to conversations: it has no cycles, but looking at all of it would
stop the event loop for a second."""
_SWITCH = 0.0002
"""Seconds for which a thread that plans keeps the interpreter while the event loop waits for it: as often as the loop
has sent something, counted tokens or asked the system for anything, which lets go of the interpreter."""
_MINUTE = 60.0
_IDLE = 0.05
"""The share of a processor below which nobody is waiting."""
_LONGEST = 24 * 60
"""Minutes after which everything is looked at even where the process is never idle."""
_MMAP_THRESHOLD, _ARENA_MAX = -3, -8
"""Parameters of mallopt(3)."""
_OWN = 2**19
"""Bytes of an object from which on it has pages of its own, which are free with it. Most requests are smaller."""
_ARENAS = 2
"""Heaps: one for the event loop, as it were, and one for its threads, which seldom run at once."""
_EVERY = 1.0
_GROWTH = 2**25
"""By so many bytes the process must have grown since the last time, looked at every second, to look for free pages."""


def load() -> None:
    Counter()
    prices_for("")


async def warm_up() -> None:
    await asyncio.to_thread(load)
    gc.set_threshold(_YOUNG, _MIDDLE, _NEVER)
    gc.enable()
    sys.setswitchinterval(_SWITCH)
    minutes, used = 0, time.process_time()
    while True:
        await asyncio.sleep(_MINUTE)
        minutes, before, used = minutes + 1, used, time.process_time()
        if gc.get_count()[2] and (used - before < _IDLE * _MINUTE or minutes >= _LONGEST):
            gc.collect()
            if not gc.get_freeze_count():
                gc.freeze()  # modules, tables and code are there for good
            minutes = 0


@cache  # one that is made anew is garbage that only the collector finds
def _glibc() -> ctypes.CDLL | None:
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    return libc if hasattr(libc, "malloc_trim") else None


def tune() -> None:
    """Have large objects freed at once, and few heaps."""
    libc = _glibc()
    if libc is not None:
        libc.mallopt(_MMAP_THRESHOLD, _OWN)
        libc.mallopt(_ARENA_MAX, _ARENAS)


def trim() -> None:
    """Give back all free pages. Takes some milliseconds for each 100 MB, without the interpreter."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


async def trim_now_and_then() -> None:
    last = now = _resident()
    while now:
        if now > last + _GROWTH:
            await asyncio.to_thread(trim)
            last = now = _resident()
        last = min(last, now)
        await asyncio.sleep(_EVERY)
        now = _resident()


def _resident() -> int:
    """Bytes in memory; 0 where that cannot be read."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    except OSError:
        return 0
