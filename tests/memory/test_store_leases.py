"""Leases, in every back end: one holder at a time, and whoever lost it writes nothing any more."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from proxy.memory import Key, Lease, Store
from tests.memory.test_store import (
    KEY,
    Fresh,
    every_back_end,  # noqa: F401 - a fixture
    stores_made,  # noqa: F401 - likewise
)
from tests.memory.test_store_summaries import SUMMARY, kept

NAME = "summary:a1"
LONG, SHORT = 60.0, 0.3


@pytest.fixture(params=["file", "redis", "cluster"])
async def pair(request: pytest.FixtureRequest, tmp_path: Path, fresh: Fresh) -> tuple[Store, Store]:
    """Two who share what they remember, each over connections of its own."""
    urls: dict[str, Callable[[], str]] = {
        "file": lambda: f"sqlite:///{tmp_path}/narrows.db",
        "redis": lambda: f"{request.getfixturevalue('redis_url')}?prefix={uuid4().hex}",
        "cluster": lambda: f"{request.getfixturevalue('redis_cluster_url')}?prefix={uuid4().hex}",
    }
    url = urls[request.param]()
    one, other = fresh(url), fresh(url)
    await asyncio.gather(one.open(), other.open())
    return one, other


async def leased(store: Store, name: str = NAME, seconds: float = LONG, key: Key = KEY) -> Lease:
    """A lease that nobody else has."""
    lease = await store.lease(key, name, seconds)
    assert lease is not None
    assert lease.name == name
    return lease


async def taken_over(store: Store) -> Lease:
    """The lease, once the one before is over."""
    async with asyncio.timeout(30):
        while (lease := await store.lease(KEY, NAME, LONG)) is None:  # noqa: ASYNC110 - it looks for itself
            await asyncio.sleep(0.05)
    return lease


async def test_m7_a_lease_has_one_holder_until_it_is_given_back(store: Store) -> None:
    lease = await leased(store)
    assert await store.lease(KEY, NAME, LONG) is None
    await store.release(KEY, lease)
    later = await leased(store)
    assert later.token > lease.token


async def test_m7_of_many_who_want_a_lease_at_once_one_gets_it(pair: tuple[Store, Store]) -> None:
    for name in (NAME, "summary:b1"):
        asked = await asyncio.gather(*(pair[i % 2].lease(KEY, name, LONG) for i in range(40)))
        assert len([lease for lease in asked if lease is not None]) == 1


async def test_m7_a_dead_holder_is_replaced_once_its_lease_is_over_and_writes_nothing_then(
    pair: tuple[Store, Store],
) -> None:
    dead, alive = pair
    lost = await leased(dead, seconds=SHORT)
    lease = await taken_over(alive)
    assert lease.token > lost.token
    assert not await dead.put_summary(KEY, replace(SUMMARY, id="late"), lost)
    assert await alive.put_summary(KEY, SUMMARY, lease)
    assert await kept(dead) == ["s1"]


async def test_m7_who_lost_a_lease_takes_it_from_nobody(pair: tuple[Store, Store]) -> None:
    one, other = pair
    lost = await leased(one)
    await one.release(KEY, lost)
    await one.release(KEY, lost)
    held = await leased(other)
    await one.release(KEY, lost)
    assert await one.lease(KEY, NAME, LONG) is None
    assert await other.put_summary(KEY, SUMMARY, held)
    await other.release(KEY, held)
    assert await one.lease(KEY, NAME, LONG) is not None


async def test_m7_a_lease_that_is_over_and_that_nobody_took_is_still_good_to_write_with(store: Store) -> None:
    lease = await leased(store, seconds=0.01)
    await asyncio.sleep(0.05)
    assert await store.put_summary(KEY, SUMMARY, lease)
    await store.release(KEY, lease)
    assert await store.put_summary(KEY, replace(SUMMARY, id="s3"), lease)
    assert await kept(store) == ["s1", "s3"]


async def test_m7_a_lease_is_good_for_its_own_name_and_token(store: Store) -> None:
    lease = await leased(store)
    other = await leased(store, "summary:b1")
    for wrong in (
        replace(lease, token=lease.token - 1),
        replace(lease, token=lease.token + 1),
        replace(lease, name="summary:c1"),
        replace(lease, name=""),
        replace(lease, token=0),
    ):
        assert not await store.put_summary(KEY, SUMMARY, wrong)
        await store.release(KEY, wrong)
    assert await store.lease(KEY, NAME, LONG) is None
    assert await kept(store) == []
    assert await store.put_summary(KEY, SUMMARY, lease)
    assert await store.put_summary(KEY, replace(SUMMARY, id="s4"), other)


@pytest.mark.parametrize("name", ["", "summary:\udcff", "a b\0c", "x" * 1_000])
async def test_a_lease_may_have_any_name(store: Store, name: str) -> None:
    lease = await leased(store, name)
    assert await store.lease(KEY, name, LONG) is None
    assert await store.put_summary(KEY, SUMMARY, lease)
    await store.release(KEY, lease)
    await leased(store, name)


@pytest.mark.parametrize("other", [Key("other", "conversation"), Key("tenant", "other")])
async def test_x5_a_lease_holds_in_its_own_tenant_and_conversation(store: Store, other: Key) -> None:
    lease = await leased(store)
    await leased(store, key=other)
    assert not await store.put_summary(other, SUMMARY, lease)
    await store.release(other, lease)
    assert await store.lease(KEY, NAME, LONG) is None
    assert await store.put_summary(KEY, SUMMARY, lease)


@pytest.mark.parametrize("how", ["delete", "delete_tenant", "sweep"])
async def test_x6_what_is_being_made_of_a_deleted_conversation_is_not_kept(store: Store, how: str) -> None:
    lease = await leased(store)
    forget: dict[str, Callable[[], Awaitable[int]]] = {
        "delete": lambda: store.delete(KEY),
        "delete_tenant": lambda: store.delete_tenant(KEY.tenant),
        "sweep": lambda: store.sweep(1e12),
    }
    assert await forget[how]() == 1
    assert not await store.put_summary(KEY, SUMMARY, lease)
    assert await store.delete(KEY) == 0
    later = await leased(store)
    assert later.token > lease.token
    assert not await store.put_summary(KEY, SUMMARY, lease)
    assert await store.put_summary(KEY, SUMMARY, later)
