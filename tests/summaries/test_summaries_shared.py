"""M7 with two replicas on one store: one call, whoever asks; who dies is replaced, and who is late is fenced off."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from proxy.memory import StoreTrouble
from tests.kit.redis_servers import soon
from tests.kit.summarizing import (  # noqa: F401 - one is a fixture
    GOOD,
    KEY,
    Faulty,
    Model,
    Replica,
    answer_with,
    beginnings,
    model_of_a_test,
    replica,
    task,
)

SHORT = 0.4 - 60
"""With it a lease lasts 0.4 seconds, less than a summary may take."""
LONGER = GOOD + "\n[5] tool bash: src/file_1_0.py:0: value_0 = parse_line(1)"


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/narrows.db"
    return f"{request.getfixturevalue('redis_url')}?prefix={uuid4().hex}"


@pytest.fixture
async def two(url: str, model: Model) -> AsyncIterator[tuple[Replica, Replica]]:
    async with AsyncExitStack() as parts:
        yield (
            await parts.enter_async_context(replica(url, model)),
            await parts.enter_async_context(replica(url, model)),
        )


def state(one: Replica) -> str:
    return one.summaries.state(KEY, task().want.first)


async def settled(*replicas: Replica) -> None:
    async with asyncio.timeout(30):
        await asyncio.gather(*(each.summaries.settled() for each in replicas))


async def test_m7_200_identical_wants_make_one_call_across_replicas(two: tuple[Replica, Replica], model: Model) -> None:
    model.may.clear()
    for _ in range(100):
        for one in two:
            one.summaries.start(task())
    await soon(lambda: model.calls)
    assert [state(one) for one in two] == ["pending", "pending"]
    model.may.set()
    await settled(*two)
    made, found = (one.summaries.recent(KEY, task().want.first) for one in two)
    assert (len(made), made[0].content) == (1, GOOD)
    assert made == found
    assert model.calls == 1
    assert sorted(one.outcomes("made") for one in two) == [0, 1]
    assert sorted(one.outcomes("found") for one in two) == [0, 1]
    assert [state(one) for one in two] == ["", ""]


async def test_m7_many_beginnings_are_made_once_each(two: tuple[Replica, Replica], model: Model) -> None:
    tasks = beginnings(12)
    for one in two:
        for each in tasks:
            one.summaries.start(each)
    await settled(*two)
    assert model.calls == 12
    assert all(len(one.summaries.recent(KEY, each.want.first)) == 1 for one in two for each in tasks)


async def test_m7_what_was_rejected_in_one_replica_is_not_paid_for_in_another(
    two: tuple[Replica, Replica], model: Model
) -> None:
    model.answer = answer_with("I'm sorry, but I can't help with that.")
    for one in two:
        one.summaries.start(task())
    await settled(*two)
    assert model.calls == 1
    assert {one.summaries.recent(KEY, task().want.first)[0].rejected for one in two} == {"refusal"}


async def kill(one: Replica) -> None:
    """What it did is over, and nothing that it held is given back."""
    await one.store.close()
    one.forgets.forget(KEY.tenant, KEY.conversation)
    await one.summaries.settled()


async def test_m7_a_dead_leader_is_replaced_within_its_lease(
    url: str, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.summaries.maker._MARGIN", SHORT)
    async with replica(url, model) as dead, replica(url, model) as heir:
        model.may.clear()
        dead.summaries.start(task())
        await soon(lambda: model.calls == 1)
        await kill(dead)
        model.may.set()
        heir.summaries.start(task())
        assert state(heir) == "pending"
        await settled(heir)
        (record,) = await heir.store.summaries(KEY)
        assert (record.content, model.calls, state(heir)) == (GOOD, 2, "")


async def test_m7_who_is_late_is_fenced_off(url: str, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.summaries.maker._MARGIN", SHORT)
    async with replica(url, model) as late, replica(url, model) as heir:
        model.may.clear()
        late.summaries.start(task())
        await soon(lambda: model.calls == 1)
        heir.summaries.start(task())
        await soon(lambda: model.calls == 2)
        model.answer = answer_with(LONGER)
        model.may.set()
        await settled(late, heir)
        kept = await late.store.summaries(KEY)
        fenced = late.lines("summary.failed")
        assert [line["reason"] for line in fenced] == ["fenced"]
        assert (late.outcomes("fenced"), heir.outcomes("made")) == (1, 1)
        assert list(kept) == list(heir.summaries.recent(KEY, task().want.first))
        assert late.summaries.recent(KEY, task().want.first) == ()
        assert (await late.store.spent(KEY))["compaction"].calls == 2


async def test_m7_a_lease_that_cannot_be_given_back_runs_out(
    url: str, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.summaries.maker._MARGIN", SHORT)
    error = StoreTrouble("not now")
    async with (
        replica(url, model, lambda store: Faulty(store, "release", 1, error)) as one,
        replica(url, model) as other,
    ):
        await one.record_of(task())
        other.summaries.start(task(6))
        assert state(other) == "pending"
        await settled(other)
        assert (model.calls, len(await other.store.summaries(KEY))) == (2, 2)


async def test_m7_people_in_two_replicas_get_the_same_summary(two: tuple[Replica, Replica], model: Model) -> None:
    made = await asyncio.gather(*(one.summaries.history(task()) for one in two for _ in range(5)))
    assert len({record.id for record in made}) == 1
    assert (model.calls, made[0].kind) == (1, "history")
