"""Two replicas whose clocks are apart, before one Redis: caches and pings go by what has really passed."""

import time
from functools import partialmethod
from uuid import uuid4

import pytest

from proxy.app import App
from proxy.memory.redis.store import RedisStore
from tests.addons.warm.scene import Scene, outcomes, said, warm_of

pytestmark = pytest.mark.usefixtures("patient")


async def started(scene: Scene, monkeypatch: pytest.MonkeyPatch, skew: float, store: str) -> App:
    """A replica whose clock, and that of its store, is ahead by `skew`."""
    clock, make = scene.clock, RedisStore.__init__
    with monkeypatch.context() as there:
        there.setattr(scene, "clock", lambda: clock() + skew)
        there.setattr(RedisStore, "__init__", partialmethod(make, clock=lambda: time.time() + skew))
        return await scene.start(store=store, floor=0)


@pytest.mark.parametrize("skew", [90.0, -90.0])
async def test_a_replica_pings_no_conversation_that_another_has_gone_on_with(
    scene: Scene, redis_url: str, monkeypatch: pytest.MonkeyPatch, skew: float
) -> None:
    store = f"{redis_url}?prefix={uuid4().hex}"
    one, other = await started(scene, monkeypatch, skew, store), await started(scene, monkeypatch, 0.0, store)
    await scene.ask(one)
    scene.clock.now += 30
    await scene.ask(other, said(2))
    await other.close(1)
    due = warm_of(one).next_due()
    assert due is not None
    scene.clock.now = due - skew
    await warm_of(one).run_due(due)
    assert outcomes(one) == {"skipped:moved": 1}


@pytest.mark.parametrize("skew", [90.0, -90.0])
async def test_a_replica_pings_once_where_nobody_else_has_moved(
    scene: Scene, redis_url: str, monkeypatch: pytest.MonkeyPatch, skew: float
) -> None:
    store = f"{redis_url}?prefix={uuid4().hex}"
    one, other = await started(scene, monkeypatch, skew, store), await started(scene, monkeypatch, 0.0, store)
    await scene.ask(other)
    scene.clock.now += 5
    await scene.ask(one, said(2))
    due = warm_of(one).next_due()
    assert due is not None
    scene.clock.now = due - skew
    await warm_of(one).run_due(due)
    assert outcomes(one) == {"read": 1}
    await warm_of(other).run_due(scene.clock.now)
    assert set(outcomes(other)) <= {"skipped:moved", "skipped:late"}


@pytest.mark.parametrize("skew", [400.0, -400.0])
async def test_a_cache_is_cold_after_a_pause_and_not_because_of_a_clock(
    scene: Scene, redis_url: str, monkeypatch: pytest.MonkeyPatch, skew: float
) -> None:
    store = f"{redis_url}?prefix={uuid4().hex}"
    one, other = await started(scene, monkeypatch, skew, store), await started(scene, monkeypatch, 0.0, store)
    colds = list[bool]()
    for app, turn, pause in ((other, 1, 10), (one, 2, 10), (other, 3, 500), (one, 4, 500), (other, 5, 10)):
        await scene.ask(app, said(turn))
        (waiting,) = warm_of(app).waiting.values()
        assert waiting.record.sent is not None
        colds.append(waiting.record.sent.life.is_cold)
        scene.clock.now += pause
    assert colds == [False, False, False, True, True]
