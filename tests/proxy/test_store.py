"""One suite for every back end."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from policies.context import Sent, StepRecord
from policies.edits import Fold, Replace
from proxy.store import Key, Store, StoreTrouble, open_store

KEY = Key("tenant", "conversation")
SENT = Sent(12, "d1", 10, "d2", 11, "d3", "head", "setup")
CUT = Replace("a1", "[...900 chars omitted...]", "offload")
FOLD = Fold("a1", "a9", "[turns 1 to 4 left out]", "trim")
RECORD = StepRecord("anchor", (CUT, FOLD), "paid", SENT, 1_700_000_000.25)


Fresh = Callable[..., Store]


@pytest.fixture(name="fresh")
async def stores_made() -> AsyncIterator[Fresh]:
    """Makes stores, and closes them whatever happens: an open one keeps its thread and so the process alive.

    They are patient, because the machine that runs the tests may be busy.
    """
    made: list[Store] = []

    def make(url: str, patience: float = 10) -> Store:
        made.append(open_store(url, patience=patience))
        return made[-1]

    yield make
    for store in made:
        await store.close()


@pytest.fixture(params=["file", "memory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, fresh: Fresh) -> Store:
    made = fresh({"file": f"sqlite:///{tmp_path}/narrows.db", "memory": "sqlite://"}[request.param])
    await made.open()
    return made


async def test_what_is_remembered_comes_back(store: Store) -> None:
    await store.remember(KEY, RECORD)
    assert (await store.memory(KEY, ["anchor"])).steps == {"anchor": RECORD}


async def test_only_the_anchors_asked_for_are_loaded(store: Store) -> None:
    for i in range(5):
        await store.remember(KEY, replace(RECORD, anchor=f"a{i}"))
    assert set((await store.memory(KEY, ["a1", "a3", "absent"])).steps) == {"a1", "a3"}
    assert (await store.memory(KEY, [])).steps == {}


async def test_two_thousand_anchors_are_one_question(store: Store) -> None:
    anchors = [f"{i:032x}" for i in range(2_000)]
    await store.remember(KEY, replace(RECORD, anchor=anchors[-1]))
    assert list((await store.memory(KEY, anchors)).steps) == [anchors[-1]]


async def test_the_first_decision_stays_and_what_was_sent_is_filled_in(store: Store) -> None:
    await store.remember(KEY, StepRecord("anchor", (CUT,), "paid"))
    await store.remember(KEY, replace(RECORD, edits=(FOLD,), reason="window"))
    assert (await store.memory(KEY, ["anchor"])).steps["anchor"] == replace(RECORD, edits=(CUT,), reason="paid")


async def test_what_was_sent_is_not_lost_to_a_later_record_without_it(store: Store) -> None:
    await store.remember(KEY, RECORD)
    await store.remember(KEY, StepRecord("anchor"))
    assert (await store.memory(KEY, ["anchor"])).steps["anchor"] == RECORD


async def test_the_newest_sent_and_time_win(store: Store) -> None:
    await store.remember(KEY, RECORD)
    later = replace(RECORD, sent=replace(SENT, digest="later"), at=RECORD.at + 1)
    await store.remember(KEY, later)
    assert (await store.memory(KEY, ["anchor"])).steps["anchor"] == later


async def test_a_claim_returns_the_record_that_won(store: Store) -> None:
    first, second = StepRecord("anchor", (CUT,), "cold"), StepRecord("anchor", (FOLD,), "paid")
    assert await store.claim(KEY, first) == first
    assert await store.claim(KEY, second) == first


async def test_of_many_claims_at_once_one_wins(store: Store) -> None:
    claims = [StepRecord("anchor", (replace(CUT, text=str(i)),)) for i in range(30)]
    won = await asyncio.gather(*(store.claim(KEY, claim) for claim in claims))
    assert len(set(won)) == 1
    assert won[0] in claims


@pytest.mark.parametrize("other", [Key("other", "conversation"), Key("tenant", "other"), Key("", "")])
async def test_x5_another_tenant_or_conversation_sees_and_wins_nothing(store: Store, other: Key) -> None:
    await store.remember(KEY, RECORD)
    assert (await store.memory(other, ["anchor"])).steps == {}
    theirs = StepRecord("anchor", (FOLD,), "theirs")
    assert await store.claim(other, theirs) == theirs
    assert await store.delete(other) == 1
    assert (await store.memory(KEY, ["anchor"])).steps == {"anchor": RECORD}


async def test_x5_keys_that_read_alike_are_not_the_same(store: Store) -> None:
    """A boundary between tenant and conversation cannot be forged, nor a character that UTF-8 cannot say."""
    keys = [
        Key("a", "b:c"),
        Key("a:b", "c"),
        Key("a", "\udcff"),
        Key("a", "\udcfe"),
        Key("a", "?"),
        Key("a", "\\udcff"),
        Key("a", "b\0"),
        Key("a", "b"),
    ]
    for i, key in enumerate(keys):
        await store.remember(key, replace(RECORD, reason=str(i)))
    for i, key in enumerate(keys):
        assert (await store.memory(key, ["anchor"])).steps["anchor"].reason == str(i)


async def test_x6_deleting_a_conversation_is_idempotent(store: Store) -> None:
    for i in range(3):
        await store.remember(KEY, replace(RECORD, anchor=f"a{i}"))
    assert [await store.delete(KEY), await store.delete(KEY)] == [1, 0]
    assert (await store.memory(KEY, ["a0", "a1", "a2"])).steps == {}
    await store.remember(KEY, RECORD)
    assert (await store.memory(KEY, ["anchor"])).steps == {"anchor": RECORD}


async def test_x6_deleting_a_tenant_leaves_the_others(store: Store) -> None:
    keys = [Key("gone", "1"), Key("gone", "2"), Key("stays", "1")]
    for key in keys:
        await store.remember(key, RECORD)
    assert [await store.delete_tenant("gone"), await store.delete_tenant("gone")] == [2, 0]
    assert [len((await store.memory(key, ["anchor"])).steps) for key in keys] == [0, 0, 1]


async def test_x6_sweeping_far_ahead_forgets_all_and_far_back_nothing(store: Store) -> None:
    for i in range(50):
        await store.remember(Key("tenant", str(i)), RECORD)
    assert await store.sweep(1.0) == 0
    assert await store.sweep(1e12) == 50
    assert (await store.memory(Key("tenant", "7"), ["anchor"])).steps == {}


async def test_x4_a_secret_is_made_once(store: Store) -> None:
    made = await asyncio.gather(*(store.secret("credentials") for _ in range(10)))
    assert len(made[0]) == 32
    assert set(made) == {made[0]}
    assert await store.secret("another") != made[0]


async def test_a_store_is_ready_open_and_closed_as_often_as_one_likes(store: Store) -> None:
    await store.open()
    assert await store.ready()
    await store.close()
    await store.close()


async def test_a_closed_store_is_trouble(store: Store) -> None:
    await store.close()
    with pytest.raises(StoreTrouble, match="not open"):
        await store.memory(KEY, ["anchor"])
    with pytest.raises(StoreTrouble, match="not open"):
        await store.remember(KEY, RECORD)
    assert not await store.ready()


async def test_a_caller_who_leaves_leaves_nothing_half_done(store: Store) -> None:
    tasks = [asyncio.create_task(store.remember(KEY, replace(RECORD, anchor=f"a{i}"))) for i in range(40)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    kept = (await store.memory(KEY, [f"a{i}" for i in range(40)])).steps
    assert {f"a{i}" for i in range(1, 40, 2)} <= set(kept)
    assert all(replace(record, anchor="anchor") == RECORD for record in kept.values())
    assert store.misses == 0
