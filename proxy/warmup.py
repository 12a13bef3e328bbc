"""What a process does once it listens: it loads what the first request would wait for, and keeps the garbage collector
from stopping the event loop.
"""

import asyncio
import gc
import sys
import time

from policies.model.tokens import Counter
from policies.money.catalog import prices_for

_YOUNG, _MIDDLE, _NEVER = 2_000, 5, 1_000_000
"""The thresholds of the collector's three generations. The young ones are small, so that a collection takes a few
milliseconds at most. What lives for long belongs to conversations: it has no cycles, but looking at all of it would
stop the event loop for a second."""
_SWITCH = 0.001
"""Seconds for which a thread that plans keeps the interpreter while the event loop waits for it."""
_MINUTE = 60.0
_IDLE = 0.05
"""The share of a processor below which nobody is waiting."""
_LONGEST = 24 * 60
"""Minutes after which everything is looked at even where the process is never idle."""


def load() -> None:
    """Load the usual vocabulary and the list of prices."""
    Counter()
    prices_for("")


async def warm_up() -> None:
    """Load what requests need; from then on collect all garbage only where nobody waits."""
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
