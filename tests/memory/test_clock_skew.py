"""Replicas whose clocks do not agree, before one Redis: nothing is taken for older or newer than it is."""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from uuid import uuid4

import pytest

from policies.model.memory import StepRecord
from proxy.memory import UNTOUCHED
from proxy.memory.redis.store import RedisStore
from tests.memory.test_redis import address
from tests.memory.test_store import KEY, RECORD

pytestmark = pytest.mark.usefixtures("patient")
SKEWS = pytest.mark.parametrize("skew", [90.0, -90.0, 3_000.0])


def clock_of(skew: float) -> Callable[[], float]:
    return lambda: time.time() + skew


@pytest.fixture
async def replicas(redis_url: str, skew: float) -> AsyncIterator[Sequence[RedisStore]]:
    """One with the time of the server, and one whose clock is ahead by `skew`."""
    async with AsyncExitStack() as stack:
        url = f"{redis_url}?prefix={uuid4().hex}"
        stores = [RedisStore(address(url), patience=10, clock=clock_of(each)) for each in (0.0, skew)]
        for store in stores:
            stack.push_async_callback(store.close)
            await store.open()
        yield stores


def step(anchor: str, clock: Callable[[], float]) -> StepRecord:
    return replace(RECORD, anchor=anchor, at=clock())


@SKEWS
async def test_the_step_that_was_sent_last_is_the_newest_whatever_the_clocks_say(
    replicas: Sequence[RedisStore], skew: float
) -> None:
    clocks = (clock_of(0.0), clock_of(skew))
    for number in range(4):
        await replicas[number % 2].remember([(KEY, step(f"step {number}", clocks[number % 2]))])
        for store in replicas:
            newest = await store.newest_step(KEY)
            assert newest is not None
            assert newest.anchor == f"step {number}"


@SKEWS
async def test_a_step_is_as_old_for_whoever_reads_it(replicas: Sequence[RedisStore], skew: float) -> None:
    clocks = (clock_of(0.0), clock_of(skew))
    for number, store in enumerate(replicas):
        written = step(f"step {number}", clocks[number])
        await store.claim(KEY, written)
        await store.remember([(KEY, replace(written, anchor=UNTOUCHED))])
        for reader, clock in zip(replicas, clocks, strict=True):
            read = (await reader.memory(KEY, [written.anchor, UNTOUCHED])).steps
            newest = await reader.newest_step(KEY)
            assert newest is not None
            for each in (read[written.anchor], read[UNTOUCHED], newest):
                assert clock() - each.at == pytest.approx(0.0, abs=30.0)
            assert (await reader.claim(KEY, replace(written, at=0.0))).at == pytest.approx(clock(), abs=30.0)


@pytest.mark.parametrize("skew", [-1e6])
async def test_a_clock_that_is_no_clock_of_these_servers_keeps_its_own_times(
    replicas: Sequence[RedisStore], skew: float
) -> None:
    written = step("step", clock_of(skew))
    await replicas[1].remember([(KEY, written)])
    assert (await replicas[1].memory(KEY, ["step"])).steps["step"].at == written.at
