"""Threads beside the event loop."""

import asyncio
import threading

import pytest

from proxy.event_loop import in_thread


async def test_e1_a_thread_whose_caller_leaves_is_told_and_waited_for() -> None:
    begun, may_end, ended = asyncio.Event(), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def work() -> None:
        loop.call_soon_threadsafe(begun.set)
        may_end.wait(10)
        ended.set()
        raise LookupError("nobody asks")

    asking = asyncio.create_task(in_thread(work, leave=may_end.set))
    await begun.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert ended.is_set()
    assert await in_thread(divmod, 7, 2) == (3, 1)
