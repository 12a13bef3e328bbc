"""Money that has a limit, in every back end."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from policies.model.summary_record import SummaryCost
from proxy.memory import PURSE_SECONDS, Key, Purse, Store, StoreTrouble
from proxy.memory.serialization import packed
from proxy.memory.sqlite.store import SqliteStore
from tests.kit.redis_servers import Park
from tests.memory.test_store import (
    KEY,
    Fresh,
    every_back_end,  # noqa: F401 - a fixture
    stores_made,  # noqa: F401 - likewise
)

DAY = "2026-01-31"
PURSES = [Purse(KEY.tenant, KEY.conversation), Purse(KEY.tenant, day=DAY), Purse(day=DAY)]


async def sum_of(store: Store, purse: Purse) -> float:
    """The sum taken from a purse, to a hundredth: the least limit under which nothing more can be taken."""
    low, high = 0, 100_000
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if await store.take(purse, 0.0, middle / 100) else (middle + 1, high)
    return low / 100


@pytest.mark.parametrize("purse", PURSES)
async def test_w3_a_purse_never_holds_more_than_its_limit(store: Store, purse: Purse) -> None:
    assert not await store.take(purse, 1.5, 1.0)
    assert [await store.take(purse, 0.25, 1.0) for _ in range(6)] == [True] * 4 + [False] * 2
    assert await sum_of(store, purse) == 1.0
    assert await store.take(purse, -0.5, 0.0), "what is given back needs no room"
    assert [await store.take(purse, 0.25, 1.0) for _ in range(3)] == [True, True, False]
    assert await store.take(purse, 5.0), "without a limit, what was paid is always added"
    assert await sum_of(store, purse) == 6.0
    await store.take(purse, -100.0)
    assert await sum_of(store, purse) == 0.0


@pytest.mark.parametrize("purse", PURSES)
async def test_w3_of_many_at_once_no_more_take_than_there_is(store: Store, purse: Purse) -> None:
    taken = await asyncio.gather(*(store.take(purse, 0.25, 2.5) for _ in range(60)))
    assert (sum(taken), await sum_of(store, purse)) == (10, 2.5)


async def test_w3_purses_are_apart(store: Store) -> None:
    others = [Purse("other", KEY.conversation), Purse("other", day=DAY), Purse(day="2026-02-01"), Purse("", "", DAY)]
    for purse in PURSES[:2]:
        assert await store.take(purse, 1.0, 1.0)
    assert [await store.take(purse, 1.0, 1.0) for purse in others] == [True] * 4
    assert [await store.take(purse, 1.0, 1.0) for purse in (*PURSES, *others)] == [False] * 7


@pytest.mark.parametrize("how", ["delete", "delete_tenant", "sweep"])
async def test_x6_the_purse_of_a_conversation_goes_with_it_and_those_of_the_day_stay(store: Store, how: str) -> None:
    for purse in PURSES:
        await store.take(purse, 1.0)
    forgets = {
        "delete": lambda: store.delete(KEY),
        "delete_tenant": lambda: store.delete_tenant(KEY.tenant),
        "sweep": lambda: store.sweep(1e12),
    }
    assert await forgets[how]() == 1
    assert [await sum_of(store, purse) for purse in PURSES] == [0.0, 1.0, 1.0]


async def test_w3_purses_and_costs_do_not_mix(store: Store) -> None:
    await store.take(PURSES[0], 1.0)
    assert await store.spent(KEY) == {}
    await store.spend(KEY, "compaction", SummaryCost(1, 2, dollars=3.0))
    assert await sum_of(store, PURSES[0]) == 1.0
    assert await store.spent(KEY) == {"compaction": SummaryCost(1, 2, dollars=3.0)}


async def test_a_closed_store_takes_nothing_and_says_so(store: Store) -> None:
    await store.close()
    for purse in PURSES:
        with pytest.raises(StoreTrouble, match="not open"):
            await store.take(purse, 1.0)


async def test_w3_replicas_share_their_purses(servers: Park, fresh: Fresh, tmp_path: Path) -> None:
    for url in (servers.server().url, f"sqlite:///{tmp_path}/shared.db"):
        replicas = [fresh(url), fresh(url)]
        for replica in replicas:
            await replica.open()
        taken = await asyncio.gather(*(replicas[i % 2].take(PURSES[2], 0.25, 1.0) for i in range(20)))
        assert sum(taken) == 4


async def test_w3_the_purses_of_a_day_are_deleted_after_two_days(tmp_path: Path) -> None:
    now = [1_000_000.0]
    store = SqliteStore(str(tmp_path / "narrows.db"), patience=5.0, clock=lambda: now[0])
    await store.open()
    for purse in PURSES:
        await store.take(purse, 1.0)
    await store.sweep(0.0)
    now[0] += PURSE_SECONDS + 1
    await store.take(Purse(day="2026-02-02"), 1.0)
    await store.sweep(0.0)
    await store.close()
    with closing(sqlite3.connect(tmp_path / "narrows.db")) as file, file:
        assert file.execute("SELECT day FROM purse ORDER BY day").fetchall() == [(b"",), (b"2026-02-02",)]


async def test_w3_a_file_without_purses_gets_them_when_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "narrows.db"
    before = SqliteStore(str(path), patience=5.0)
    await before.open()
    await before.spend(KEY, "compaction", SummaryCost(1))
    await before.close()
    with closing(sqlite3.connect(path)) as file, file:
        file.executescript("DROP TRIGGER all_deleted; DROP TABLE purse;")
    store = SqliteStore(str(path), patience=5.0)
    await store.open()
    assert await store.take(PURSES[0], 1.0, 1.0)
    assert await store.spent(Key(KEY.tenant, KEY.conversation)) == {"compaction": SummaryCost(1)}
    await store.close()


SPENT_OF_0_2 = """
CREATE TABLE spent (tenant BLOB NOT NULL, conversation BLOB NOT NULL, kind BLOB NOT NULL, content BLOB NOT NULL,
    used REAL NOT NULL, PRIMARY KEY (tenant, conversation, kind)) WITHOUT ROWID;
CREATE TRIGGER conversation_deleted AFTER DELETE ON conversation BEGIN
    DELETE FROM spent WHERE tenant = old.tenant AND conversation = old.name; END;
"""


async def test_w3_what_release_0_2_has_spent_is_carried_over(tmp_path: Path) -> None:
    path, cost = tmp_path / "narrows.db", SummaryCost(3, 4, dollars=0.5)
    store = SqliteStore(str(path), patience=5.0)
    await store.open()
    await store.take(PURSES[0], 1.0, 1.0)
    await store.close()
    with closing(sqlite3.connect(path)) as file, file:
        file.executescript(SPENT_OF_0_2)
        row = (KEY.tenant.encode(), KEY.conversation.encode(), b"compaction", packed("spent", "compaction", cost), 1e9)
        file.execute("INSERT INTO spent VALUES (?, ?, ?, ?, ?)", row)
    await store.open()
    assert await store.spent(KEY) == {"compaction": cost}
    await store.spend(KEY, "compaction", cost)
    assert await store.spent(KEY) == {"compaction": cost + cost}
    assert await store.delete(KEY) == 1
    assert await store.spent(KEY) == {}
    await store.close()


async def test_w3_a_damaged_sum_counts_as_nothing(tmp_path: Path) -> None:
    path = tmp_path / "narrows.db"
    store = SqliteStore(str(path), patience=5.0)
    await store.open()
    await store.take(PURSES[1], 1.0)
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE purse SET dollars = 'much'")
    assert await store.take(PURSES[1], 1.0, 1.0)
    assert not await store.take(PURSES[1], 1.0, 1.0)
    await store.close()
