"""S1: who goes on with a conversation, from the snapshot of another worker, its records or neither, sends the same."""

import random

import pytest

from policies.money.prices import Prices
from policies.planning.state import PlanState
from proxy.memory import snapshots
from proxy.memory.cached import WriteBehindQueue
from tests.kit.apis import Api
from tests.kit.prefixes import ask, grow, moved
from tests.kit.stage import Stage, ends, working

SESSION = working(12, lines=16)
pytestmark = pytest.mark.usefixtures("patient")


@pytest.fixture
def takeovers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """After how many steps a snapshot was taken over; one is taken every other step."""
    steps: list[int] = []
    monkeypatch.setattr("proxy.memory.cached._SNAPSHOT_TOKENS", 0)
    monkeypatch.setattr("proxy.memory.cached._SNAPSHOT_STEPS", 2)
    read = snapshots.unpacked

    def unpacked(stored: bytes, prices: Prices) -> PlanState | None:
        state = read(stored, prices)
        steps.append(state.step if state else 0)
        return state

    monkeypatch.setattr(snapshots, "unpacked", unpacked)
    return steps


async def killed(queue: WriteBehindQueue) -> int:
    """What waits is not written."""
    if queue._writer is not None:
        queue._writer.cancel()
    return 0


@pytest.mark.parametrize("seed", range(2))
async def test_s1_workers_that_take_over_from_each_other_and_die_send_what_one_alone_sends(
    stage: Stage, api: Api, seed: int, takeovers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = await grow(stage, await stage.start(store="sqlite://"), api, SESSION)
    chance, workers = random.Random(seed), [await stage.start(), await stage.start()]
    shared = []
    for end in ends(SESSION):
        at = chance.randrange(2)
        shared.append(await ask(stage, workers[at], api, SESSION[:end]))
        if chance.random() < 0.4:
            with monkeypatch.context() as patched:
                if chance.random() < 0.5:
                    patched.setattr(WriteBehindQueue, "close", killed)
                await workers[at].close(0)
            workers[at] = await stage.start()
    assert [exchange.sent for exchange in shared] == [exchange.sent for exchange in alone]
    assert moved(api, shared) == []
    assert max(takeovers) > 2
