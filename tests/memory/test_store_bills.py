"""Bills and their sums, in every back end."""

import asyncio
import random
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from hashlib import sha1
from pathlib import Path
from uuid import uuid4

import pytest
import redis
from msgspec import structs

from policies.model.tokens import OTHER
from policies.money.bills import BillSums, DayRow, Labels, RequestBill
from proxy.config import KeyRow
from proxy.memory import DAY_ROWS, DAYS, Key, Store, StoreTrouble
from proxy.memory.bills import BILLS, day_of, joined, row_of
from proxy.memory.records import DaySum
from proxy.memory.serialization import packed
from proxy.memory.sqlite.store import SqliteStore
from tests.memory.test_store import KEY, RECORD, Fresh, every_back_end, stores_made  # noqa: F401 - fixtures

NOW = 1_900_000_000.0
DAY, NEXT_DAY = day_of(NOW), day_of(NOW + 86_400)
LABELS = Labels(tenant=KEY.tenant, owner="me", model="gpt-5.4", preset="chat", api="openai_chat")
SUMS = BillSums(requests=1, original=2**40, sent=11_000, paid=0.25, baseline=0.5, rewritten=7)


def bill(
    number: int, *, at: float = 0.0, conversation: str = KEY.conversation, prefix: str = "extended", **labels: str
) -> RequestBill:
    return RequestBill(
        id=f"r{number}",
        at=NOW + at,
        labels=structs.replace(LABELS, **labels),
        conversation=conversation,
        prefix=prefix,
        mode="compacted",
        arm="on",
        sums=SUMS,
        edits="clip=1",
        added_ms=1.5,
    )


def times(count: int, sums: BillSums = SUMS) -> BillSums:
    return sum([sums] * (count - 1), sums)


async def days(store: Store) -> list[DayRow]:
    return sorted(await store.day_rows("2000-01-01"), key=lambda row: (row.day, str(row.labels)))


async def test_a_bill_comes_back_and_is_in_the_sums_of_its_day_and_its_conversation(store: Store) -> None:
    first, other, last = bill(1), bill(2, at=5.0, prefix="checkpoint:paid", model="m\udcff"), bill(3, at=86_400.0)
    none, summary = (
        bill(4, conversation=""),
        structs.replace(bill(5, at=1.0, prefix=""), sums=BillSums(summaries=0.125, unpriced=1)),
    )
    await store.add_bills([last, other, none])
    await store.add_bills([summary, first])
    assert await store.request_bills(KEY) == [first, summary, other, last]
    assert await store.request_bills(Key(KEY.tenant, "")) == []
    (row,) = await store.conversation_rows()
    assert (row.conversation, row.labels, row.arm) == (KEY.conversation, LABELS, "on")
    assert (row.first_at, row.at) == (first.at, last.at)
    assert row.sums == times(3) + BillSums(summaries=0.125, unpriced=1)
    there = {(row.day, row.labels.model): row for row in await store.day_rows(DAY)}
    assert [row.day for row in await store.day_rows(DAY)] == [DAY, DAY, NEXT_DAY]
    assert set(there) == {(DAY, "gpt-5.4"), (DAY, "m\udcff"), (NEXT_DAY, "gpt-5.4")}
    assert there[DAY, "gpt-5.4"].sums == times(2) + BillSums(summaries=0.125, unpriced=1)
    assert there[DAY, "gpt-5.4"].prefixes == {"extended": (2, 14)}
    assert there[DAY, "m\udcff"].prefixes == {"checkpoint:paid": (1, 7)}
    assert [row.day for row in await store.day_rows(NEXT_DAY)] == [NEXT_DAY]


async def test_a_write_that_is_repeated_counts_once_and_the_order_does_not_matter(store: Store) -> None:
    chance = random.Random(7)
    arms = ("on", "holdout", "")
    bills = [
        structs.replace(
            bill(i, at=chance.randrange(200_000) + i / 64, conversation=f"c{i % 3}", prefix=f"p{i % 2}"),
            arm=arms[i % 3 if i % 5 else 1],
        )
        for i in range(60)
    ]
    for some in (bills[:40], bills[20:]):  # each of them is written twice, by two at once
        chance.shuffle(some)
        await asyncio.gather(*(store.add_bills(each) for each in (some, some[::-1])))
    expected: dict[str, object] = {}
    for each in sorted(bills, key=lambda bill: bill.at):
        row = expected.get(each.conversation)
        expected[each.conversation] = joined([row, row_of(each)] if row else [row_of(each)])
    assert {row.conversation: row for row in await store.conversation_rows()} == expected
    assert sum((row.sums for row in await store.day_rows(DAY)), BillSums()) == times(60)
    assert sum(count for row in await store.day_rows(DAY) for count, _ in row.prefixes.values()) == 60
    assert store.misses == 0


async def test_conversations_come_page_by_page_and_owners_and_tenants_apart(store: Store) -> None:
    for i in range(7):
        await store.add_bills([bill(i, at=i, conversation=f"c{i}", owner=f"o{i % 2}", tenant=f"t{i % 3}")])
    await store.add_bills([bill(9, at=9, conversation="c2", owner="o1", tenant="t2")])

    async def names(tenant: str | None = None, owner: str | None = None) -> list[str]:
        pages, before = list[str](), None
        while rows := await store.conversation_rows(tenant, owner, before, most=2):
            pages += [f"{row.labels.tenant} {row.conversation}" for row in rows]
            before = rows[-1].at
            assert len(rows) <= 2
        return pages

    assert await names() == ["t2 c2", "t0 c6", "t2 c5", "t1 c4", "t0 c3", "t1 c1", "t0 c0"]
    assert await names("t0") == ["t0 c6", "t0 c3", "t0 c0"]
    assert await names(owner="o0") == ["t0 c6", "t1 c4", "t0 c0"]
    assert await names("t2", "o0") == []
    assert {row.labels.tenant for row in await store.day_rows(DAY, "t1")} == {"t1"}
    assert {row.labels.owner for row in await store.day_rows(DAY, owner="o1")} == {"o1"}
    assert await store.day_rows(DAY, "elsewhere") == []


async def test_the_newest_bills_of_a_conversation_stay_and_all_are_in_its_sums(store: Store) -> None:
    bills = [bill(i, at=i) for i in range(BILLS + 40)]
    await store.add_bills(bills)
    assert await store.request_bills(KEY) == bills[40:]
    (row,) = await store.conversation_rows()
    assert row.sums.requests == BILLS + 40


async def test_beyond_the_rows_of_a_day_models_and_owners_are_one(store: Store) -> None:
    await store.add_bills([bill(i, model=f"m{i}") for i in range(DAY_ROWS + 30)])
    await store.add_bills([bill(-1, model="m5"), bill(-2, tenant="elsewhere", model="another")])
    there = {row.labels.model: row for row in await store.day_rows(DAY, KEY.tenant)}
    assert len(there) == DAY_ROWS + 1
    assert (there["m5"].sums.requests, there[OTHER].sums.requests, there[OTHER].labels.owner) == (2, 30, OTHER)
    assert [row.labels.model for row in await store.day_rows(DAY, "elsewhere")] == ["another"]


@pytest.mark.parametrize("how", ["delete", "sweep", "trim", "delete_tenant"])
async def test_x6_bills_go_with_their_conversation_and_the_sums_of_days_with_their_tenant(
    store: Store, how: str
) -> None:
    stays = Key("stays", "chat")
    await store.add_bills([bill(1), bill(2, conversation=""), bill(3, tenant=stays.tenant, conversation="chat")])
    await store.remember([(stays, RECORD)])
    if how == "trim":
        assert await store.trim(1) is not None
    else:
        gone = {"delete": store.delete(KEY), "sweep": store.sweep(1e12), "delete_tenant": store.delete_tenant("tenant")}
        counts = {name: await each for name, each in gone.items() if name == how or each.close()}
        assert counts == {how: 2 if how == "sweep" else 1}
    alone = how in ("delete", "delete_tenant")
    assert await store.request_bills(KEY) == []
    assert [row.conversation for row in await store.conversation_rows()] == ["chat"] * alone
    assert [len(await store.request_bills(stays)), len(await store.conversation_rows("stays"))] == [alone, alone]
    if how != "trim":  # which takes the days of a file, too, where there is no room at all
        assert len(await store.day_rows(DAY, KEY.tenant)) == (how != "delete_tenant")
        assert len(await store.day_rows(DAY)) == (1 if how == "delete_tenant" else 2)


async def test_a_closed_store_takes_no_bills_and_says_so(store: Store) -> None:
    await store.close()
    for ask in (store.add_bills([bill(1)]), store.day_rows(DAY), store.conversation_rows(), store.request_bills(KEY)):
        with pytest.raises(StoreTrouble, match="not open"):
            await ask


async def test_sums_of_days_are_deleted_after_a_while(tmp_path: Path) -> None:
    now = [NOW]
    store = SqliteStore(str(tmp_path / "narrows.db"), patience=5.0, clock=lambda: now[0])
    await store.open()
    await store.add_bills([bill(1, conversation="old"), bill(2, conversation="", at=5.0)])
    now[0] += (DAYS + 1) * 86_400
    await store.add_bills([structs.replace(bill(3), at=now[0])])
    await store.sweep(now[0] - 86_400)
    assert [row.day for row in await store.day_rows(DAY)] == [day_of(now[0])]
    await store.close()
    with closing(sqlite3.connect(tmp_path / "narrows.db")) as file, file:
        assert file.execute("SELECT count(*) FROM record WHERE kind = 'bill'").fetchone() == (1,)


async def test_x11_the_sums_of_days_take_a_tenth_of_the_limit_at_most_and_the_newest_stay(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "narrows.db"), patience=5.0)
    await store.open()
    await store.add_bills([bill(100 * i + j, at=86_400.0 * i, model=f"m{j}") for i in range(20) for j in range(60)])
    await store.trim(10**7)
    assert len({row.day for row in await store.day_rows(DAY)}) == 20
    await store.trim(10**6)
    days = sorted({row.day for row in await store.day_rows(DAY)})
    assert 0 < len(days) < 10
    assert days[-1] == day_of(NOW + 19 * 86_400)
    await store.close()


def spoilt(values: Sequence[bytes]) -> list[bytes]:
    return [value[:-1] + bytes([value[-1] ^ 1]) for value in values]


async def test_what_cannot_be_read_is_a_miss_and_its_sum_begins_again(tmp_path: Path) -> None:
    path = tmp_path / "narrows.db"
    store = SqliteStore(str(path), patience=5.0)
    await store.open()
    await store.add_bills([bill(1), bill(2, at=1.0)])
    with closing(sqlite3.connect(path)) as file, file:
        file.create_function("spoilt", 1, lambda value: spoilt([value])[0])
        file.execute("UPDATE record SET content = spoilt(content) WHERE kind IN ('bill', 'day', 'total')")
    file.close()
    assert [await store.request_bills(KEY), await store.conversation_rows(), await store.day_rows(DAY)] == [[], [], []]
    assert store.misses == 4
    await store.add_bills([bill(3, at=2.0)])
    assert [row.sums.requests for row in (*await store.conversation_rows(), *await store.day_rows(DAY))] == [1, 1]
    await store.close()


async def test_redis_counts_what_it_cannot_read_and_begins_its_sum_again(redis_url: str, fresh: Fresh) -> None:
    prefix = uuid4().hex
    store = fresh(f"{redis_url}?prefix={prefix}")
    await store.open()
    await store.add_bills([bill(1), bill(2, at=1.0)])
    with redis.Redis.from_url(redis_url) as client:
        for key in client.scan_iter(f"{prefix}:*"):
            if key.endswith((b"bills", b":spent")):
                client.hset(key, mapping={field: spoilt([value])[0] for field, value in client.hgetall(key).items()})
    assert [await store.request_bills(KEY), await store.conversation_rows(), await store.day_rows(DAY)] == [[], [], []]
    assert store.misses == 4
    await store.add_bills([bill(3, at=2.0)])
    assert store.misses == 6
    assert [row.sums.requests for row in (*await store.conversation_rows(), *await store.day_rows(DAY))] == [1, 1]


async def test_f_a_clock_that_is_years_ahead_empties_no_list(redis_url: str, fresh: Fresh) -> None:
    now, store = time.time(), fresh(f"{redis_url}?prefix={uuid4().hex}")
    await store.open()
    await store.add_bills([bill(1, at=now - NOW)])
    await store.add_bills([bill(2, at=now - NOW + 3e8, conversation="ahead")])
    rows = await store.conversation_rows(KEY.tenant)
    assert [row.conversation for row in rows] == ["ahead", KEY.conversation]


async def test_redis_looks_for_an_owners_conversations_among_so_many(
    redis_url: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.memory.redis.records._LOOKED_AT", 4)
    monkeypatch.setattr("proxy.memory.redis.records._PAGE", 2)
    store = fresh(f"{redis_url}?prefix={uuid4().hex}")
    await store.open()
    owners = ["mine", "other", "other", "mine", "other"]  # the oldest first
    await store.add_bills([bill(at, at=at, conversation=f"c{at}", owner=owner) for at, owner in enumerate(owners)])
    rows = await store.conversation_rows(KEY.tenant, "mine")
    assert [row.conversation for row in rows] == ["c3"]
    assert len(await store.conversation_rows(KEY.tenant)) == 5


async def test_redis_lets_all_that_is_about_bills_expire(redis_url: str, fresh: Fresh) -> None:
    prefix = uuid4().hex
    store = fresh(f"{redis_url}?prefix={prefix}&ttl=100s")
    await store.open()
    await store.add_bills([bill(1)])
    with redis.Redis.from_url(redis_url) as client:
        pairs = sorted((key.rpartition(b":")[2].decode(), client.ttl(key)) for key in client.scan_iter(f"{prefix}:*"))
    seconds = dict(reversed(pairs))  # of the conversation's bills, and not of its day's
    assert max(seconds[name] for name in ("bills", "spent", "conversations", "tenants")) <= 100
    assert 0 < min(left for _, left in pairs) < max(left for _, left in pairs) <= DAYS * 86_400


_OF_0_2 = """
CREATE TABLE bill (number INTEGER PRIMARY KEY, tenant BLOB NOT NULL, conversation BLOB NOT NULL, id TEXT NOT NULL,
    used REAL NOT NULL, content BLOB NOT NULL, UNIQUE (tenant, conversation, id));
CREATE TABLE bill_day (tenant BLOB NOT NULL, day TEXT NOT NULL, name BLOB NOT NULL, owner TEXT NOT NULL,
    content BLOB NOT NULL, PRIMARY KEY (tenant, day, name));
CREATE TABLE bill_conversation (tenant BLOB NOT NULL, conversation BLOB NOT NULL, owner TEXT NOT NULL,
    at REAL NOT NULL, content BLOB NOT NULL, PRIMARY KEY (tenant, conversation));
CREATE VIEW bill_added AS SELECT * FROM bill;
CREATE TRIGGER bill_added_inserted INSTEAD OF INSERT ON bill_added BEGIN SELECT day_sums(1, 2); END;
CREATE TRIGGER bill_inserted AFTER INSERT ON bill BEGIN DELETE FROM bill WHERE number IN (SELECT 0); END;
CREATE TRIGGER bill_deleted AFTER DELETE ON conversation BEGIN
    DELETE FROM bill WHERE tenant = old.tenant; DELETE FROM bill_conversation WHERE tenant = old.tenant; END;
CREATE TABLE owner (tenant BLOB NOT NULL, conversation BLOB NOT NULL, owner TEXT NOT NULL, used REAL NOT NULL,
    PRIMARY KEY (tenant, conversation, owner)) WITHOUT ROWID;
CREATE TRIGGER owner_deleted AFTER DELETE ON conversation BEGIN DELETE FROM owner WHERE tenant = old.tenant; END;
CREATE TABLE gateway_key (name TEXT PRIMARY KEY, sha256 TEXT NOT NULL UNIQUE, content BLOB NOT NULL) WITHOUT ROWID;
"""


async def test_s1_bills_sums_owners_and_keys_of_an_older_file_are_carried_over_once(tmp_path: Path) -> None:
    path = tmp_path / "narrows.db"
    key, first, of_none = KeyRow(name="alice", sha256=64 * "a"), bill(1), bill(2, conversation="")
    store = SqliteStore(str(path), patience=5.0)
    await store.open()
    await store.remember([(KEY, RECORD)])
    await store.close()
    row, day = row_of(first), DaySum(DAY, LABELS, "extended", times(2))
    with closing(sqlite3.connect(path)) as file, file:
        file.executescript(_OF_0_2)
        names = (b"tenant", b"conversation")
        bills = "INSERT INTO bill (tenant, conversation, id, used, content) VALUES (?, ?, ?, ?, ?)"
        file.execute(bills, (*names, first.id, first.at, packed("bill", first)))
        file.execute(bills, (b"tenant", b"", of_none.id, of_none.at, packed("bill", of_none)))
        days = (b"tenant", DAY, packed("labels", LABELS, "extended"), "me", packed("day", day))
        file.execute("INSERT INTO bill_day VALUES (?, ?, ?, ?, ?)", days)
        total = (*names, "me", first.at, packed("conversation", row))
        file.execute("INSERT INTO bill_conversation VALUES (?, ?, ?, ?, ?)", total)
        file.execute("INSERT INTO owner VALUES (?, ?, 'you', 1.0)", names)
        content = packed("key", key.model_dump(mode="json", exclude_defaults=True))
        file.execute("INSERT INTO gateway_key VALUES (?, ?, ?)", (key.name, key.sha256, content))
    both = [SqliteStore(str(path), patience=5.0) for _ in range(2)]
    await asyncio.gather(*(each.open() for each in both))
    store, other = both
    assert [await store.request_bills(KEY), await store.conversation_rows()] == [[first], [row]]
    assert [row.sums for row in await store.day_rows(DAY, owner="me")] == [times(2)]
    assert set(await store.owners(KEY)) == {"me", "you"}
    assert (await store.key_rows() or ("", []))[1] == [key]
    await other.add_bills([first, bill(3)])  # what has its bill there is in the sums of its conversation
    assert [row.sums for row in await store.conversation_rows()] == [times(2)]
    assert await store.delete(KEY) == 1
    assert [await store.request_bills(KEY), await store.conversation_rows(), await store.owners(KEY)] == [[], [], set()]
    assert await store.delete_key("alice")
    for each in both:
        await each.close()
    with closing(sqlite3.connect(path)) as file:
        tables = {name for (name,) in file.execute("SELECT name FROM sqlite_master")}
    assert not [name for name in tables if name.startswith(("bill", "owner", "gateway_key"))]


async def test_s1_bills_and_keys_that_release_0_2_wrote_into_redis_go_on(redis_url: str, fresh: Fresh) -> None:
    prefix = uuid4().hex
    store = fresh(f"{redis_url}?prefix={prefix}")
    await store.open()
    await store.add_bills([bill(1)])  # for the names of the keys and the indexes
    sums = b"requests 2 original 2199023255552 sent 22000 paid 0.5 baseline 1 rewritten 14"
    labels = packed("labels", LABELS, "")
    day = packed("labels", LABELS, "extended")
    key = KeyRow(name="alice", sha256=64 * "a")
    content = packed("key", key.model_dump(mode="json", exclude_defaults=True))
    with redis.Redis.from_url(redis_url) as client:
        (spent,) = client.scan_iter(f"{prefix}:*:spent")
        days = [name for name in client.scan_iter(f"{prefix}:*:bills") if client.hexists(name, day)]
        row = f"{NOW!r} {NOW!r} on ".encode() + sums + b"\n" + labels
        client.hset(spent, "b", sealed_in_lua(b"b", row))
        client.hset(days[0], day, sealed_in_lua(day, sums))
        client.hset(f"{prefix}:v2:keys", mapping={"kalice": key.sha256, f"d{key.sha256}": content, "n": "0123"})
    assert [row.sums for row in await store.conversation_rows()] == [times(2)]
    await store.add_bills([bill(3, at=1.0)])
    assert [row.sums for row in (*await store.conversation_rows(), *await store.day_rows(DAY))] == [times(3)] * 2
    assert (await store.key_rows() or ("", []))[1] == [key]
    assert not await store.add_key(KeyRow(name="alice", sha256=64 * "b"))
    assert [await store.delete_key("alice"), await store.delete_key("alice")] == [True, False]
    assert store.misses == 0


def sealed_in_lua(name: bytes, body: bytes) -> bytes:
    """A row as the scripts of release 0.2 sealed it."""
    return sha1(b"1" + name + body, usedforsecurity=False).hexdigest()[:16].encode() + body
