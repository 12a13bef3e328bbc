"""Summaries, leases, costs and events in Redis: round trips, times to live, damage, faults, and who takes over."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
import redis

from policies.model.summary_record import SummaryCost
from proxy.memory import ARTIFACTS, EVENTS, MESSAGES, TTL, Key, Lease, Purse, Store, StoreTrouble, serialization
from proxy.memory.redis.connection import Command, RedisConnection, address
from proxy.memory.redis.store import RedisStore
from tests.kit.redis_servers import Park, Relay, free_ports, soon
from tests.kit.stored_texts import put_originals
from tests.memory.test_redis import key_of
from tests.memory.test_redis_faults import PATIENCE, Break, broken, until_ready
from tests.memory.test_store import (
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

KINDS = ("steps", "ages", "summaries", "leases", "spent", "abouts", "texts", "messages", "message_bytes")


@pytest.fixture
def prefix() -> str:
    return uuid4().hex


@pytest.fixture
def url(redis_url: str, prefix: str) -> str:
    """Keys of this test's own on the shared server."""
    return f"{redis_url}?prefix={prefix}"


@pytest.fixture
async def store(url: str, fresh: Fresh) -> Store:
    made = fresh(url)
    await made.open()
    return made


@pytest.fixture
def by_hand(redis_url: str) -> Iterator[Any]:
    """A client of Redis' own."""
    with redis.Redis.from_url(redis_url) as client:
        yield client


ATTEMPTS: Mapping[str, Callable[[Store], Awaitable[object]]] = {
    "memory": lambda store: store.memory(KEY, ["a1", "anchor"]),
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
    "events": lambda store: store.events("tenant", None, 10),
}
TRIPS = {"put_texts": 3, "spend": 2}
"""What is there is read first, and of texts what is too much is looked for behind it."""
READS = ("summaries", "spent", "events", "release", "list_texts", "texts", "conversations_with")
"""What changes nothing, and so goes on where only writes are refused."""


async def test_one_round_trip_for_each_call(servers: Park, fresh: Fresh) -> None:
    async with Relay(servers.server()) as relay:
        store = fresh(relay.url)
        await store.open()
        await store.remember([(KEY, RECORD)])
        for attempt in ATTEMPTS.values():  # the scripts are sent once
            await attempt(store)
        for name, attempt in ATTEMPTS.items():
            before = relay.trips
            await attempt(store)
            assert (name, relay.trips) == (name, before + TRIPS.get(name, 1))
        memory = await store.memory(KEY, ["a1", "anchor"])
        assert (memory.steps, memory.summaries) == ({"anchor": RECORD}, (SUMMARY,))
        await store.close()


async def test_an_answer_that_was_lost_may_be_asked_for_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each trip is made twice, as after a connection that broke; only the second answer is heard."""
    once = RedisConnection._sent

    async def twice(connection: RedisConnection, commands: Sequence[Command]) -> list[Any]:
        await once(connection, commands)
        return await once(connection, commands)

    monkeypatch.setattr(RedisConnection, "_sent", twice)
    lease = await leased(store)
    assert await store.lease(KEY, NAME, LONG) is None
    assert await store.put_summary(KEY, SUMMARY, lease)
    for _ in range(10):
        await store.spend(KEY, "compaction", SummaryCost(1, 2, dollars=0.25))
    for purse in (Purse(KEY.tenant, KEY.conversation), Purse(day="2026-01-31")):
        assert [await store.take(purse, 0.25, 1.0) for _ in range(6)] == [True] * 4 + [False] * 2
    await noted(store, numbered(*range(20)))
    assert await store.spent(KEY) == {"compaction": SummaryCost(10, 20, dollars=2.5)}
    assert [event for _, event in await store.events("tenant", None, 100)] == numbered(*range(20))
    assert list(await store.summaries(KEY)) == [SUMMARY]


# --- keys and times to live ---


async def filled(store: Store, key: Key = KEY) -> None:
    """Something in each key."""
    await store.remember([(key, RECORD)])
    await put_originals(store, key, ORIGINALS)
    for kind in BOUNDED:
        await store.put_texts(key, kind, TEXTS, LIMIT)
    await store.put_summary(key, SUMMARY)
    await store.lease(key, NAME, LONG)
    await store.spend(key, "compaction", SPENT)
    await store.note(key.tenant, replace(EVENT, conversation=key.conversation))


async def test_x5_keys_share_one_slot_and_name_no_client(store: Store, by_hand: Any, prefix: str) -> None:
    await filled(store, Key("{customer}", "my} conversation\n*"))
    for word in ("customer", "conversation\n", "my"):
        assert by_hand.keys(f"*{word}*") == []
    tags = {key_of(by_hand, prefix, kind).split(b"{")[1].split(b"}")[0] for kind in KINDS}
    assert len(tags) == 1


async def test_x6_every_key_expires_and_use_puts_it_off(store: Store, by_hand: Any, prefix: str) -> None:
    await filled(store)
    for use in (
        lambda: store.remember([(KEY, RECORD)]),
        lambda: store.put_summary(KEY, SUMMARY),
        lambda: put_originals(store, KEY, {"1": "text"}),
    ):
        for name in by_hand.keys(f"{prefix}:*}}:*"):
            by_hand.expire(name, 100)
        await use()
        left = {kind: by_hand.ttl(key_of(by_hand, prefix, kind)) for kind in KINDS}
        assert all(TTL - 100 < seconds <= TTL for seconds in left.values())
    await noted(store, [EVENT])
    assert by_hand.ttl(key_of(by_hand, prefix, "events")) > TTL - 100
    assert [name for name in by_hand.keys(f"{prefix}:*") if by_hand.ttl(name) == -1] == []


@pytest.mark.parametrize("how", ["delete", "delete_tenant", "sweep"])
async def test_x6_what_is_deleted_leaves_no_key(store: Store, by_hand: Any, prefix: str, how: str) -> None:
    await filled(store)
    forget: dict[str, Callable[[], Awaitable[int]]] = {
        "delete": lambda: store.delete(KEY),
        "delete_tenant": lambda: store.delete_tenant("tenant"),
        "sweep": lambda: store.sweep(1e12),
    }
    assert await forget[how]() == 1
    kinds = {name.rpartition(b":")[2] for name in by_hand.keys(f"{prefix}:*") if by_hand.type(name) != b"stream"}
    assert kinds <= {b"ready", b"tenants"}
    assert all(by_hand.xlen(name) == 0 for name in by_hand.keys(f"{prefix}:*:events"))


async def test_summaries_that_nobody_uses_go_though_the_conversation_lives_on(url: str) -> None:
    now = 1_000.0
    store = RedisStore(address(f"{url}&ttl=100s"), patience=10, clock=lambda: now)
    await store.open()
    try:
        for first in ("forgotten", "read", "written", "told"):
            await store.put_summary(KEY, replace(HISTORY, id=f"h {first}", first=first))
        for first in ("forgotten", "read", "written"):
            await store.put_summary(KEY, replace(SUMMARY, id=first, first=first))
        now = 1_080.0
        assert await kept(store, "read", "told", "absent") == ["read"]
        await store.put_summary(KEY, replace(SUMMARY, id="again", first="written"))
        now = 1_120.0
        await store.remember([(KEY, RECORD)])
        assert await kept(store, "forgotten", "read", "written", "told") == ["read", "written", "again"]
        told = [summary.id for summary in await store.summaries(KEY) if summary.kind == "history"]
        assert told == ["h read", "h written", "h told"]
    finally:
        await store.close()


async def test_a_tenant_keeps_its_newest_events(store: Store, by_hand: Any, prefix: str) -> None:
    await noted(store, numbered(0))
    stream = key_of(by_hand, prefix, "events")
    ((_, fields),) = by_hand.xrange(stream)
    await noted(store, numbered(1), "another")
    fill = "for i = 1, ARGV[1] do redis.call('XADD', KEYS[1], '*', 'm', i, 'c', ARGV[2], 'e', ARGV[3]) end"
    by_hand.eval(fill, 1, stream, EVENTS + 300, fields[b"c"], fields[b"e"])
    await noted(store, numbered(*range(5)))
    assert EVENTS <= by_hand.xlen(stream) <= EVENTS + 200
    told = [event for _, event in await store.events("tenant", None, 10**6)]
    assert len(told) == EVENTS
    assert told[-5:] == numbered(*range(5))
    assert [event for _, event in await store.events("another", None, 10)] == numbered(1)


async def test_x6_events_older_than_the_time_to_live_go(url: str, by_hand: Any, prefix: str, fresh: Fresh) -> None:
    store = fresh(f"{url}&ttl=1h")
    await store.open()
    await noted(store, numbered(0))
    stream = key_of(by_hand, prefix, "events")
    ((_, fields),) = by_hand.xrange(stream)
    by_hand.delete(stream)
    for minute in range(300):  # one node of a stream holds a hundred
        by_hand.xadd(stream, fields, id=f"{1_700_000_000_000 + 60_000 * minute}-0")
    await noted(store, numbered(1))
    assert by_hand.xlen(stream) <= 101
    await store.sweep(1.75e9)
    assert [event for _, event in await store.events("tenant", None, 10)] == numbered(1)


async def test_leases_of_many_names_leave_little_behind(store: Store, by_hand: Any, prefix: str) -> None:
    lease = await leased(store)
    others = [await store.lease(KEY, f"summary:{i}", 0.001) for i in range(300)]
    assert None not in others
    assert by_hand.hlen(key_of(by_hand, prefix, "leases")) <= 256
    assert await store.lease(KEY, NAME, LONG) is None
    assert await store.put_summary(KEY, SUMMARY, lease)


# --- X7: damage ---


@pytest.mark.parametrize("spoilt", [b"", b"garbage", b"5:9999:x", b"4:3:1 s1abc", b"999999999:1:", b"2:1:s1x"])
async def test_x7_damaged_summaries_are_misses_and_can_be_written_again(
    store: Store, by_hand: Any, prefix: str, spoilt: bytes
) -> None:
    await store.put_summary(KEY, SUMMARY)
    name = key_of(by_hand, prefix, "summaries")
    by_hand.hset(name, "ca1", by_hand.hget(name, "ca1") + spoilt)
    assert await kept(store) == ["s1"]
    assert store.misses == bool(spoilt)
    by_hand.hset(name, mapping={"ca1": spoilt, "n": spoilt})
    assert await kept(store) == []
    for id in ("s1", "s2"):
        await store.put_summary(KEY, replace(SUMMARY, id=id))
    assert await kept(store) == ["s1", "s2"]


async def test_x7_every_flipped_bit_of_a_cost_or_a_lease_is_a_miss(store: Store, by_hand: Any, prefix: str) -> None:
    lease = await leased(store, seconds=LONG)
    await store.spend(KEY, "compaction", SPENT)
    for kind, field in (("spent", b"kcompaction"), ("leases", NAME.encode())):
        name = key_of(by_hand, prefix, kind)
        whole = by_hand.hget(name, field)
        flipped = [whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :] for at in range(len(whole))]
        for spoilt in (*flipped, b"", whole[:-1], whole[:16], serialization.packed("sent", SENT)):
            by_hand.hset(name, field, spoilt)
            before = store.misses
            if kind == "spent":
                assert await store.spent(KEY) == {}
                await store.spend(KEY, "compaction", SPENT)
                assert await store.spent(KEY) == {"compaction": SPENT}
            else:
                assert not await store.put_summary(KEY, SUMMARY, lease)
                assert (await leased(store)).token > lease.token
            assert store.misses == before + (2 if kind == "spent" else 1)


@pytest.mark.parametrize(
    "fields", [{"x": "y"}, {"m": "1", "c": "conversation", "e": "x"}, {"m": "1", "c": b"\xff", "e": ""}]
)
async def test_x7_a_damaged_event_is_a_miss(store: Store, by_hand: Any, prefix: str, fields: dict[Any, Any]) -> None:
    await noted(store, numbered(1))
    by_hand.xadd(key_of(by_hand, prefix, "events"), fields)
    await noted(store, numbered(2))
    assert [event for _, event in await store.events(None, None, 10)] == numbered(1, 2)
    assert store.misses == 1
    await store.delete(KEY)
    assert list(await store.events("tenant", None, 10)) == []


@pytest.mark.parametrize("kind", ["summaries", "leases", "spent", "events", "abouts", "texts", "artifacts"])
async def test_x7_a_key_of_another_type_is_a_miss_and_gives_way(
    store: Store, by_hand: Any, prefix: str, kind: str
) -> None:
    await filled(store)
    name = key_of(by_hand, prefix, kind)
    by_hand.delete(name)
    by_hand.set(name, "a string")
    for attempt in ATTEMPTS.values():
        await attempt(store)
    assert store.misses > 0
    await filled(store)
    assert await kept(store) == ["s1"]
    assert await store.delete(KEY) == 1


# --- F ---


@broken
async def test_f_each_call_is_told_of_trouble_and_then_all_is_there(
    servers: Park, fresh: Fresh, fault: Break, advice: str
) -> None:
    server = servers.server()
    store = fresh(server.url, patience=PATIENCE)
    await store.open()
    for attempt in ATTEMPTS.values():
        await attempt(store)
    lost = fault.__name__ == "killed"
    with fault(server):
        async with asyncio.timeout(30):
            said = [await outcome(attempt(store)) for name, attempt in ATTEMPTS.items() if name not in READS]
            assert all(advice in each or "in time" in each or "reached" in each for each in said)
            assert any(advice in each for each in said)
            for name in READS:
                assert advice in (each := await outcome(ATTEMPTS[name](store))) or not each or "reached" in each
    async with asyncio.timeout(30):
        await until_ready(store)
    assert await kept(store) == ([] if lost else ["s1"])
    # What could not be answered may have been done.
    assert await store.spent(KEY) in ([{}] if lost else [{"compaction": SPENT}, {"compaction": SPENT + SPENT}])
    assert await store.put_summary(KEY, SUMMARY, await leased(store, "another"))
    await store.close()


async def outcome(attempt: Awaitable[object]) -> str:
    """What the store says of its trouble, if it is in any."""
    try:
        await attempt
    except StoreTrouble as trouble:
        return str(trouble)
    return ""


async def test_f_what_a_promoted_replica_was_given_holds_on(servers: Park, fresh: Fresh) -> None:
    primary = servers.server(port=free_ports(1)[0])
    replica = servers.replica(primary)
    before, after = fresh(primary.url), fresh(replica.url)
    await before.open()
    lease = await leased(before)
    await before.put_summary(KEY, SUMMARY, lease)
    await before.spend(KEY, "compaction", SPENT)
    await noted(before, numbered(1))
    await soon(primary.copied)
    primary.kill()
    replica.do("REPLICAOF", "NO", "ONE")
    await after.open()
    assert (await after.memory(KEY, ["a1"])).summaries == (SUMMARY,)
    assert await after.spent(KEY) == {"compaction": SPENT}
    assert [event for _, event in await after.events(None, None, 10)] == numbered(1)
    assert await after.lease(KEY, NAME, LONG) is None
    assert await after.put_summary(KEY, HISTORY, lease)
    await after.release(KEY, lease)
    assert (await leased(after)).token > lease.token


async def test_f_m7_a_lease_that_a_failover_lost_is_good_for_nothing_and_another_has_a_higher_token(
    servers: Park, fresh: Fresh
) -> None:
    """A copy is made behind the answers: what was promised last may be gone, and the fence must hold all the same."""
    server = servers.server()
    store = fresh(server.url)
    await store.open()
    lost = await leased(store)
    server.do("FLUSHALL")
    assert not await store.put_summary(KEY, SUMMARY, lost)
    lease = await leased(store)
    assert lease.token > lost.token
    assert not await store.put_summary(KEY, SUMMARY, lost)
    assert await store.put_summary(KEY, SUMMARY, lease)
    await store.close()


async def test_hgetall_shows_conversation_sources_policy_and_prompt(store: Store, url: str, prefix: str) -> None:
    record = replace(SUMMARY, model="m", content="Facts: a.py was written.")  # no lone surrogates
    await store.put_summary(KEY, record)
    with redis.Redis.from_url(url.partition("?")[0]) as plain:
        (key,) = plain.scan_iter(f"{prefix}:v2:*:summaries")
        row = b"".join(plain.hgetall(key).values())
    for name in ("conversation", "policy", "prompt", "content"):
        assert f'"{name}":"{getattr(record, name)}"'.encode() in row
    for source in record.sources:
        assert f'"{source}"'.encode() in row
