"""Summaries, leases, costs and events in an SQLite file: older files, damage, faults, and what goes by itself."""

import asyncio
import random
import resource
import sqlite3
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from policies.model.summary_record import SummaryCost
from proxy.memory import ARTIFACTS, EVENTS, MESSAGES, Key, Lease, Purse, Store, StoreTrouble, serialization
from proxy.memory.sqlite.store import SqliteStore
from tests.kit.stored_texts import put_originals
from tests.memory.test_sqlite import by_hand
from tests.memory.test_sqlite_faults import damage, locked, overwrite, read_only, until_ready
from tests.memory.test_store import (
    INSERT,
    KEY,
    ORIGINALS,
    RECORD,
    SENT,
    Fresh,
    stores_made,  # noqa: F401 - a fixture
)
from tests.memory.test_store_artifacts import BOUNDED, LIMIT, TEXTS
from tests.memory.test_store_events import EVENT, noted, numbered
from tests.memory.test_store_leases import LONG, NAME, leased
from tests.memory.test_store_summaries import HISTORY, SPENT, SUMMARY, kept

DAMAGE = [b"", b"\3garbage", serialization.packed("sent", SENT), "text", 12]
TABLES = ("conversation", "step", "recall", "summary", "lease", "event", "text", "text_bytes", "record")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "narrows.db"


def rows(path: Path) -> Mapping[str, int]:
    """How many rows each table has, if it has any."""
    with closing(sqlite3.connect(path)) as connection:
        counts = {table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in TABLES}  # noqa: S608 - ours
    return {table: count for table, count in counts.items() if count}


async def filled(store: Store, key: Key = KEY) -> None:
    """Something in each table."""
    await store.remember([(key, RECORD)])
    await store.insert(key, INSERT)
    await put_originals(store, key, ORIGINALS)
    for kind in BOUNDED:
        await store.put_texts(key, kind, TEXTS, LIMIT)
    await store.put_summary(key, SUMMARY)
    await store.put_summary(key, HISTORY)
    await store.lease(key, NAME, LONG)
    await store.spend(key, "compaction", SPENT)
    await store.note(key.tenant, replace(EVENT, conversation=key.conversation))


ATTEMPTS: Mapping[str, Callable[[Store], Awaitable[object]]] = {
    "memory": lambda store: store.memory(KEY, ["a1"]),
    "put_summary": lambda store: store.put_summary(KEY, SUMMARY),
    "put_summary with a lease": lambda store: store.put_summary(KEY, SUMMARY, Lease(NAME, 1)),
    "summaries": lambda store: store.summaries(KEY),
    "put_texts": lambda store: store.put_texts(KEY, ARTIFACTS, TEXTS, LIMIT),
    "list_texts": lambda store: store.list_texts(KEY, MESSAGES),
    "texts": lambda store: store.texts(KEY, MESSAGES, ["aa11"]),
    "conversations_with": lambda store: store.conversations_with("tenant", ARTIFACTS, "aa11"),
    "lease": lambda store: store.lease(KEY, NAME, LONG),
    "release": lambda store: store.release(KEY, Lease(NAME, 1)),
    "spend": lambda store: store.spend(KEY, "compaction", SPENT),
    "spent": lambda store: store.spent(KEY),
    "take": lambda store: store.take(Purse("tenant", day="2026-01-31"), 0.5, 1e9),
    "take of a conversation": lambda store: store.take(Purse(KEY.tenant, KEY.conversation), 0.5, 1e9),
    "note": lambda store: store.note("tenant", EVENT),
    "events": lambda store: store.events(None, None, 10),
    "delete": lambda store: store.delete(KEY),
    "sweep": lambda store: store.sweep(1e12),
}
READS = ("memory", "summaries", "spent", "events", "list_texts", "texts", "conversations_with")
WRITES = [name for name in ATTEMPTS if name not in READS]


async def trouble(store: Store, *names: str) -> list[str]:
    """What each of these says, none of which can be done."""
    said = []
    for name in names:
        with pytest.raises(StoreTrouble) as raised:
            await ATTEMPTS[name](store)
        said.append(str(raised.value))
    return said


# --- files ---


async def test_s1_a_restart_forgets_no_summary_no_lease_no_cost_and_no_event(path: Path, fresh: Fresh) -> None:
    store = fresh(f"sqlite:///{path}")
    await store.open()
    await store.put_summary(KEY, SUMMARY)
    await store.spend(KEY, "compaction", SPENT)
    await noted(store, [EVENT])
    lease = await leased(store)
    await store.close()
    again = fresh(f"sqlite:///{path}")
    await again.open()
    assert (await again.memory(KEY, ["a1"])).summaries == (SUMMARY,)
    assert await again.spent(KEY) == {"compaction": SPENT}
    assert list(await again.events(None, None, 10)) == [("tenant", EVENT)]
    assert await again.lease(KEY, NAME, LONG) is None
    assert await again.put_summary(KEY, HISTORY, lease)


@pytest.mark.parametrize("how", ["delete", "delete_tenant", "sweep"])
async def test_x6_what_is_deleted_leaves_no_row(path: Path, fresh: Fresh, how: str) -> None:
    store = fresh(f"sqlite:///{path}")
    await store.open()
    await filled(store)
    forget: dict[str, Callable[[], Awaitable[int]]] = {
        "delete": lambda: store.delete(KEY),
        "delete_tenant": lambda: store.delete_tenant("tenant"),
        "sweep": lambda: store.sweep(1e12),
    }
    assert set(rows(path)) == set(TABLES)
    assert await forget[how]() == 1
    assert rows(path) == {}


async def test_a_tenant_keeps_its_newest_events(path: Path, fresh: Fresh) -> None:
    store = fresh(f"sqlite:///{path}")
    await store.open()
    await noted(store, numbered(1), "another")
    content = serialization.packed("event", EVENT)
    with closing(sqlite3.connect(path)) as connection, connection:
        note = "INSERT INTO event (tenant, conversation, content, used) VALUES (?, ?, ?, 4e9)"
        connection.executemany(note, [(b"tenant", b"conversation", content)] * (EVENTS + 100))
    await noted(store, numbered(*range(40)))
    assert EVENTS <= rows(path)["event"] <= EVENTS + 40
    told = [event for _, event in await store.events("tenant", None, 10**6)]
    assert len(told) == EVENTS
    assert told[-40:] == numbered(*range(40))
    assert [event for _, event in await store.events("another", None, 10)] == numbered(1)


# --- X7: damage ---


@pytest.mark.parametrize("spoilt", DAMAGE)
async def test_x7_damage_is_a_counted_miss_and_can_be_written_over(path: Path, fresh: Fresh, spoilt: object) -> None:
    store = fresh(f"sqlite:///{path}")
    await store.open()
    whole = replace(SUMMARY, id="whole")
    for summary in (SUMMARY, whole):
        await store.put_summary(KEY, summary)
    await store.spend(KEY, "compaction", SPENT)
    await noted(store, numbered(1, 2))
    by_hand(
        path,
        ("UPDATE summary SET content = ? WHERE id = 's1'", (spoilt,)),
        ("UPDATE record SET content = ? WHERE kind = 'spent'", (spoilt,)),
        ("UPDATE event SET content = ? WHERE number = 1", (spoilt,)),
    )
    assert (await store.memory(KEY, ["a1"])).summaries == (whole,)
    assert list(await store.summaries(KEY)) == [whole]
    assert await store.spent(KEY) == {}
    assert [event for _, event in await store.events(None, None, 10)] == numbered(2)
    assert store.misses == 4
    await store.put_summary(KEY, SUMMARY)
    await store.spend(KEY, "compaction", SPENT)
    assert store.misses == 5
    assert await kept(store) == ["whole", "s1"]
    assert await store.spent(KEY) == {"compaction": SPENT}


@pytest.mark.parametrize("column", ["first", "id"])
async def test_x7_a_summary_in_the_row_of_another_is_a_miss(path: Path, fresh: Fresh, column: str) -> None:
    store = fresh(f"sqlite:///{path}")
    await store.open()
    await store.put_summary(KEY, SUMMARY)
    by_hand(path, (f"UPDATE summary SET {column} = 'b1'", ()))  # noqa: S608 - ours
    assert await kept(store, "a1", "b1") == []
    assert store.misses == 1


@pytest.mark.parametrize(
    "spoilt", ["until = 'text'", "until = 1e300", "until = x'00', token = x'00'", "until = 'y', token = 'x'"]
)
async def test_x7_a_damaged_lease_holds_nobody_up(path: Path, fresh: Fresh, spoilt: str) -> None:
    store = fresh(f"sqlite:///{path}")
    await store.open()
    lost = await leased(store)
    by_hand(path, (f"UPDATE lease SET {spoilt}", ()))  # noqa: S608 - ours
    lease = await leased(store)
    assert lease.token > lost.token
    assert not await store.put_summary(KEY, SUMMARY, lost)
    assert await store.put_summary(KEY, SUMMARY, lease)


async def test_a_clock_that_goes_back_grants_no_lower_token(path: Path) -> None:
    now = [2_000_000.0]
    store = SqliteStore(str(path), patience=10, clock=lambda: now[0])
    await store.open()
    try:
        first = await leased(store)
        now[0] -= 1_000_000
        second = await leased(store)  # what is so far ahead is no time
        now[0] -= 0.5
        assert await store.lease(KEY, NAME, LONG) is None
        await store.release(KEY, second)
        third = await leased(store)
        assert first.token < second.token < third.token
    finally:
        await store.close()


async def test_leases_that_were_over_a_day_ago_are_forgotten(path: Path) -> None:
    now = [1_000_000.0]
    store = SqliteStore(str(path), patience=10, clock=lambda: now[0])
    await store.open()
    try:
        for number in range(50):
            await leased(store, str(number))
        now[0] += 90_000
        lease = await leased(store)
        assert rows(path)["lease"] == 1
        assert await store.put_summary(KEY, SUMMARY, lease)
    finally:
        await store.close()


# --- F ---


async def test_f_a_locked_file_is_trouble_for_each_and_then_works_again(path: Path, fresh: Fresh) -> None:
    store = fresh(f"sqlite:///{path}", patience=0.05)
    await store.open()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        async with asyncio.timeout(30):
            said = await trouble(store, *WRITES)
        assert all("locked" in each or "in time" in each for each in said)
        other.execute("ROLLBACK")
    async with asyncio.timeout(30):
        await until_ready(store)
    await store.close()
    again = fresh(f"sqlite:///{path}")
    await again.open()
    assert await again.put_summary(KEY, SUMMARY)


async def test_f_a_file_locked_at_start_is_trouble_for_each(path: Path, fresh: Fresh) -> None:
    first = fresh(f"sqlite:///{path}")
    await first.open()
    await first.close()
    store = fresh(f"sqlite:///{path}", patience=0.05)
    with locked(path):
        with pytest.raises(StoreTrouble):
            await store.open()
        async with asyncio.timeout(30):
            await trouble(store, *ATTEMPTS)


async def test_f_a_read_only_file_is_trouble_for_each(fresh: Fresh) -> None:
    with tempfile.TemporaryDirectory() as folder:  # not tmp_path, which nobody else may enter
        path = Path(folder, "narrows.db")
        store = fresh(f"sqlite:///{path}")
        await store.open()
        await filled(store)
        await store.close()
        with read_only(path):
            with pytest.raises(StoreTrouble):
                await store.open()
            said = await trouble(store, *ATTEMPTS)
        assert all("ermission" in each or "read-only" in each for each in said)
        await store.close()


async def test_f_a_full_disk_is_trouble_for_each_that_writes_and_later_works_again(path: Path, fresh: Fresh) -> None:
    store = fresh(f"sqlite:///{path}")
    await store.open()
    big = replace(SUMMARY, content="x" * 3_000_000)
    loud = replace(EVENT, details={"model": "x" * 3_000_000})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
    try:
        for attempt in (
            lambda: store.put_summary(KEY, big),
            lambda: store.note("tenant", loud),
            lambda: store.lease(KEY, "x" * 3_000_000, LONG),
            lambda: store.spend(KEY, "x" * 3_000_000, SPENT),
        ):
            with pytest.raises(StoreTrouble, match=r"narrows\.db"):
                await attempt()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    await filled(store)
    assert await store.put_summary(KEY, big)
    assert (await store.memory(KEY, ["a1"])).summaries == (big,)


@pytest.mark.parametrize("seed", range(6))
async def test_f_x7_a_damaged_file_is_trouble_or_a_miss_and_never_a_crash(path: Path, seed: int, fresh: Fresh) -> None:
    store = fresh(f"sqlite:///{path}")
    await store.open()
    for number in range(60):
        await filled(store, Key("tenant", f"{number}"))
        await store.put_summary(KEY, replace(SUMMARY, id=str(number), first=str(number)))
    await store.close()
    damage(path, random.Random(seed))
    said = []
    for attempt in (lambda _: store.open(), *ATTEMPTS.values()):
        try:
            await attempt(store)
        except StoreTrouble as fault:
            said.append(str(fault))
    assert all(str(path) in each for each in said)
    for file in path.parent.iterdir():
        overwrite(file, b"damage, " * 1_000)
    with pytest.raises(StoreTrouble):
        await store.put_summary(KEY, SUMMARY)
    for file in path.parent.iterdir():
        file.unlink()
    assert await store.put_summary(KEY, SUMMARY)
    assert await kept(store) == ["s1"]


async def test_m9_two_workers_lose_nothing_that_either_spent(path: Path, fresh: Fresh) -> None:
    workers = [fresh(f"sqlite:///{path}") for _ in range(2)]
    await asyncio.gather(*(worker.open() for worker in workers))
    await asyncio.gather(*(workers[i % 2].spend(KEY, "compaction", SummaryCost(1, i)) for i in range(60)))
    assert await workers[0].spent(KEY) == {"compaction": SummaryCost(60, sum(range(60)))}
