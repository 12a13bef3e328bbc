"""Turns of large work: one owner after the other, bounded, and none is lost."""

import asyncio

from proxy.kernel.cold import Turns


async def test_law_an_owner_with_many_makes_another_wait_for_one() -> None:
    turns, order = Turns(1), list[str]()

    async def work(owner: str) -> None:
        if await turns.take(owner, 60):
            order.append(owner)
            await asyncio.sleep(0)
            turns.give()

    tasks = [asyncio.create_task(work(owner)) for owner in ("many", "many", "many", "many", "one", "other")]
    await asyncio.gather(*tasks)
    assert order == ["many", "one", "many", "other", "many", "many"]
    assert await turns.take("one", 60)


async def test_who_waits_is_bounded_and_whoever_leaves_takes_no_turn() -> None:
    turns = Turns(1)
    assert await turns.take("one", 60)
    assert not await turns.take("other", 0.001)
    waiting = [asyncio.create_task(turns.take("other", 60)) for _ in range(4)]
    await asyncio.sleep(0)
    assert not await turns.take("other", 60)  # at once
    for each in waiting[:3]:
        each.cancel()
    turns.give()
    assert await waiting[3]
    turns.give()
    assert await turns.take("third", 60)


async def test_law_made_up_owners_take_every_other_turn_and_half_of_the_places() -> None:
    turns, order = Turns(1), list[str]()

    async def work(owner: str, is_accepted: bool) -> None:
        if await turns.take(owner, 60, is_accepted):
            order.append(owner)
            await asyncio.sleep(0)
            turns.give()

    made_up = [asyncio.create_task(work(f"made up {i}", False)) for i in range(90)]
    known = [asyncio.create_task(work(f"known {i}", True)) for i in range(3)]
    await asyncio.gather(*made_up, *known)
    assert len(order) == 33 + 3
    assert [order.index(f"known {i}") for i in range(3)] == [1, 3, 5]
