"""Memory that is free goes back to the system."""

import asyncio
import gc
import subprocess
import sys
import weakref
from contextlib import suppress

import pytest

from policies.planning.plan import plan
from policies.presets import PRESETS
from proxy import warmup
from proxy.event_loop import in_thread
from tests.kit.talk import conversation_of, runs, setup, user

_PROGRAM = """
from proxy.warmup import _resident, trim, tune
tune()
rest, pieces = [], []
for _ in range(1_000):
    pieces.append(b"p" * 100_000)
    rest.append(b"r" * 2_000)  # behind it, a heap cannot end
most = _resident()
pieces.clear()
trim()
print(most - _resident())
"""


@pytest.mark.skipif(warmup._glibc() is None, reason="glibc's own")
def test_what_small_objects_keep_apart_is_given_back() -> None:
    freed = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, check=True, text=True).stdout
    assert int(freed) > 80_000_000


async def test_free_pages_are_looked_for_where_the_process_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, at = [100, 110, 140, 120, 130, 160, 150], list[int]()
    left = sizes.copy()
    monkeypatch.setattr(warmup, "_EVERY", 0)
    monkeypatch.setattr(warmup, "_GROWTH", 20)
    monkeypatch.setattr(warmup, "_resident", lambda: left.pop(0) if left else 0)
    monkeypatch.setattr(warmup, "trim", lambda: at.append(len(sizes) - len(left)))
    async with asyncio.timeout(5):
        await warmup.trim_now_and_then()
    assert at == [3, 6]  # after 140, and after 160; then no size can be read


async def test_what_failed_in_a_thread_is_free_with_its_error() -> None:
    class Body:
        """One that can be referred to weakly."""

    def fail(body: Body) -> None:
        raise ValueError(body is None)

    body = Body()
    left = weakref.ref(body)
    gc.disable()
    try:
        with suppress(ValueError):
            await in_thread(fail, body)
        del body
        await asyncio.sleep(0)
        assert left() is None
    finally:
        gc.enable()


def test_a_history_that_was_planned_is_free_with_its_plan() -> None:
    """What waited for the garbage collector was all the texts of each history that nobody asks for again."""
    steps = [message for at in range(9) for message in runs(f"cat {at}.py", f"line {at}\n" * 400)]
    conversation = conversation_of(user("go"), *steps, user("on"))
    left = weakref.ref(conversation)
    gc.collect()
    gc.disable()
    try:
        result = plan(conversation, setup(*PRESETS["deep"].policies))
        assert result.state.step == conversation.steps > 5
        del conversation, result
        assert left() is None
    finally:
        gc.enable()
