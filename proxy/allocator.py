"""What the C library does with memory that is not used any more. By itself glibc learns from large bodies to take them
from its heaps, and a heap is given back only from its end on: one small object behind them keeps hundreds of megabytes.
"""

import asyncio
import ctypes
import sys
from pathlib import Path

_MMAP_THRESHOLD, _ARENA_MAX = -3, -8
"""Parameters of mallopt(3)."""
_OWN = 2**20
"""Bytes of an object from which on it has pages of its own, which are free with it. Most requests are smaller."""
_ARENAS = 2
"""Heaps: one for the event loop, as it were, and one for its threads, which seldom run at once."""
_EVERY = 1.0
_GROWTH = 2**25
"""By so many bytes the process must have grown since the last time, looked at every second, to look for free pages."""


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
    """Give back free pages whenever the process has grown."""
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
