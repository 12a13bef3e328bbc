"""What is Redis' own: URLs, keys, round trips, times to live, what is damaged, and two who share it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
import redis

from policies.model.memory import StepRecord
from proxy.memory import Key, Store, open_store, serialization
from proxy.memory.redis.connection import AT_ONCE, TTL, address, connect
from proxy.memory.redis.store import RedisStore
from tests.kit.redis_servers import Park, Relay
from tests.kit.stored_texts import original, put_originals
from tests.memory import release_0_1
from tests.memory.test_store import (
    CUT,
    FOLD,
    INSERT,
    KEY,
    ORIGINALS,
    RECORD,
    SENT,
    Fresh,
    inserts,
    stores_made,  # noqa: F401 - a fixture
)


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


def key_of(by_hand: Any, prefix: str, kind: str) -> bytes:
    """The only key of this kind."""
    (found,) = by_hand.keys(f"{prefix}:*:{kind}")
    assert isinstance(found, bytes)
    return found


# --- round trips, and what they carry ---


async def test_one_round_trip_for_each_call(servers: Park, fresh: Fresh) -> None:
    async with Relay(servers.server()) as relay:
        store = fresh(relay.url)
        await store.open()
        anchors = [f"{i:032x}" for i in range(512)]
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: store.claim(KEY, RECORD),
            lambda: store.remember([(KEY, replace(RECORD, sent=None))]),
            lambda: store.insert(KEY, INSERT),
            lambda: store.memory(KEY, anchors),
            lambda: original(store, "tenant", "482913", "conversation"),
            lambda: store.secret("tenant"),
            store.ready,
        ]
        for call in calls:  # the scripts are sent once
            await call()
        for call in calls:
            before = relay.trips
            await call()
            assert relay.trips == before + 1
        await put_originals(store, KEY, ORIGINALS)
        before = relay.trips
        await put_originals(store, KEY, ORIGINALS)  # what is there is read first
        assert relay.trips == before + 2
        await store.close()


async def test_a_request_loads_the_steps_of_its_own_path_however_many_share_the_name(
    servers: Park, fresh: Fresh
) -> None:
    async with Relay(servers.server()) as relay:
        store = fresh(relay.url)
        await store.open()
        for start in range(0, 2_000, 100):
            steps = (replace(RECORD, anchor=f"a{start + i}") for i in range(100))
            await asyncio.gather(*(store.remember([(KEY, step)]) for step in steps))
        before = relay.answered
        assert len((await store.memory(KEY, ["a7", "a9"])).steps) == 2
        assert relay.answered - before < 2_000
        await store.close()


async def test_many_at_once_share_few_connections(servers: Park, fresh: Fresh) -> None:
    server = servers.server()
    store = fresh(server.url)
    await store.open()
    await asyncio.gather(*(store.claim(KEY, replace(RECORD, anchor=f"a{i}")) for i in range(400)))
    assert len(server.do("CLIENT LIST")) <= AT_ONCE + 1
    await store.close()


async def test_a_server_that_forgot_the_scripts_or_closed_every_connection_is_no_trouble(
    servers: Park, fresh: Fresh
) -> None:
    server = servers.server()
    store = fresh(server.url)
    await store.open()
    for number, forgetful in enumerate((["SCRIPT FLUSH"], ["CLIENT KILL", "TYPE", "normal"])):
        await store.remember([(KEY, replace(RECORD, anchor=f"a{number}"))])
        server.do(*forgetful)
        await store.remember([(KEY, replace(RECORD, anchor=f"b{number}"))])
    assert len((await store.memory(KEY, ["a0", "b0", "a1", "b1"])).steps) == 4
    await store.close()


# --- keys ---


async def test_x5_keys_have_the_prefix_one_slot_for_a_conversation_and_no_name_of_a_client(
    store: Store, by_hand: Any, prefix: str
) -> None:
    key = Key("{customer}", "my} conversation\n*")
    await store.remember([(key, RECORD)])
    await put_originals(store, key, ORIGINALS)
    for word in ("customer", "conversation\n", "my", "482913"):
        assert by_hand.keys(f"*{word}*") == []
    tags = {key_of(by_hand, prefix, kind).split(b"{")[1].split(b"}")[0] for kind in ("steps", "ages", "texts")}
    assert len(tags) == 1
    assert all(name.startswith(prefix.encode() + b":") for name in by_hand.keys(f"*{tags.pop().decode()}*"))


async def test_x5_two_prefixes_share_nothing(store: Store, redis_url: str, fresh: Fresh) -> None:
    other = fresh(f"{redis_url}?prefix={uuid4().hex}")
    await other.open()
    await store.remember([(KEY, RECORD)])
    assert (await other.memory(KEY, ["anchor"])).steps == {}
    assert await other.secret("tenant") != await store.secret("tenant")
    assert await other.sweep(1e12) == 0


async def test_x6_what_is_deleted_leaves_no_key(store: Store, by_hand: Any, prefix: str) -> None:
    keys = [Key("tenant", str(i)) for i in range(450)]
    await asyncio.gather(*(store.remember([(key, RECORD)]) for key in keys))
    for key in keys[:3]:
        await store.insert(key, INSERT)
        await put_originals(store, key, ORIGINALS)
    assert await store.delete(keys[0]) == 1
    assert await store.delete_tenant("tenant") == len(keys) - 1
    assert by_hand.keys(f"{prefix}:*") == [f"{prefix}:v2:ready".encode()]


# --- times to live ---


async def test_x6_every_key_of_a_conversation_expires_and_use_puts_it_off(
    store: Store, by_hand: Any, prefix: str
) -> None:
    await store.secret("tenant")
    await put_originals(store, KEY, ORIGINALS)
    for use in (lambda: store.remember([(KEY, RECORD)]), lambda: store.insert(KEY, INSERT)):
        for name in by_hand.keys(f"{prefix}:*}}:*"):
            by_hand.expire(name, 100)
        await use()
        left = {kind: by_hand.ttl(key_of(by_hand, prefix, kind)) for kind in ("steps", "ages", "texts")}
        assert all(TTL - 100 < seconds <= TTL for seconds in left.values())
        assert by_hand.ttl(key_of(by_hand, prefix, "conversations")) > TTL - 100
    assert [name for name in by_hand.keys(f"{prefix}:*") if by_hand.ttl(name) == -1] == [
        f"{prefix}:secret:tenant".encode()
    ]


async def test_x6_what_has_expired_is_gone_and_can_be_kept_anew(redis_url: str, prefix: str, fresh: Fresh) -> None:
    store = fresh(f"{redis_url}?prefix={prefix}&ttl=1s")
    await store.open()
    await store.remember([(KEY, RECORD)])
    await put_originals(store, KEY, ORIGINALS)
    await asyncio.sleep(1.5)
    assert (await store.memory(KEY, ["anchor"])).steps == {}
    assert await original(store, "tenant", "482913", None) == {}
    assert [await store.delete(KEY), await store.delete_tenant("tenant")] == [0, 0]
    other = replace(RECORD, edits=(FOLD,))
    assert await store.claim(KEY, other) == other


async def test_steps_that_nobody_uses_go_though_the_conversation_lives_on(url: str) -> None:
    now = 1_000.0
    store = RedisStore(address(f"{url}&ttl=100s"), patience=10, clock=lambda: now)
    await store.open()
    try:
        for anchor in ("forgotten", "read", "written"):
            await store.remember([(KEY, replace(RECORD, anchor=anchor))])
            await store.insert(KEY, replace(INSERT, after=anchor))
        now = 1_080.0
        assert (await store.memory(KEY, ["read", "absent"])).inserts.keys() == {"read"}
        await store.remember([(KEY, replace(RECORD, anchor="written"))])
        now = 1_120.0
        await store.remember([(KEY, replace(RECORD, anchor="new"))])
        left = await store.memory(KEY, ["forgotten", "read", "written", "new"])
        assert (set(left.steps), set(left.inserts)) == ({"read", "written", "new"}, {"read", "written"})
    finally:
        await store.close()


async def test_x6_a_sweep_takes_the_conversations_not_written_since(url: str) -> None:
    now = 1_000.0
    store = RedisStore(address(url), patience=10, clock=lambda: now)
    await store.open()
    try:
        names = ("old", "a step more", "a reply more", "an original more")
        for name in names:
            await store.remember([(Key("t", name), RECORD)])
        now = 2_000.0
        await store.remember([(Key("t", "a step more"), RECORD)])
        await store.insert(Key("t", "a reply more"), INSERT)
        await put_originals(store, Key("t", "an original more"), ORIGINALS)
        assert await store.sweep(1_500) == 1
        assert [len((await store.memory(Key("t", name), ["anchor"])).steps) for name in names] == [0, 1, 1, 1]
    finally:
        await store.close()


# --- X7: what is damaged ---


def former() -> bytes:
    """A decision of an older release."""
    whole = serialization.decision_bytes(RECORD)
    return bytes([serialization.VERSION - 1]) + whole[1:]


@pytest.mark.parametrize("damage", [b"", b"\1garbage", serialization.packed("sent", SENT), former(), b"text"])
async def test_x7_a_damaged_decision_is_a_counted_miss_and_the_next_writer_is_the_first(
    store: Store, by_hand: Any, prefix: str, damage: bytes
) -> None:
    await store.remember([(KEY, RECORD)])
    await store.remember([(KEY, replace(RECORD, anchor="whole"))])
    by_hand.hset(key_of(by_hand, prefix, "steps"), "danchor", damage)
    assert set((await store.memory(KEY, ["anchor", "whole"])).steps) == {"whole"}
    assert store.misses == 1
    second = replace(RECORD, edits=(FOLD,))
    assert await store.claim(KEY, second) == second
    assert await store.claim(KEY, RECORD) == second
    assert (await store.memory(KEY, ["anchor"])).steps == {"anchor": second}


async def test_x7_a_damaged_sent_or_time_is_a_miss_that_costs_no_edit(store: Store, by_hand: Any, prefix: str) -> None:
    await store.remember([(KEY, RECORD)])
    steps = key_of(by_hand, prefix, "steps")
    by_hand.hset(steps, mapping={"sanchor": b"\1garbage", "tanchor": b"noon\xff"})
    assert (await store.memory(KEY, ["anchor"])).steps["anchor"].edits == RECORD.edits
    assert store.misses == 2
    await store.remember([(KEY, RECORD)])
    assert (await store.memory(KEY, ["anchor"])).steps == {"anchor": RECORD}


@pytest.mark.parametrize("damage", [b"", b"garbage", b"5:9999:replyx", b"5:3:replyabc", b"999999999:1:", former()])
async def test_x7_damaged_replies_are_misses_and_can_be_written_again(
    store: Store, by_hand: Any, prefix: str, damage: bytes
) -> None:
    await store.insert(KEY, INSERT)
    steps = key_of(by_hand, prefix, "steps")
    row = by_hand.hget(steps, "ianchor")
    by_hand.hset(steps, "ianchor", row + damage)
    assert await inserts(store) == (INSERT,)
    assert store.misses == bool(damage)
    by_hand.hset(steps, "ianchor", damage)
    assert await inserts(store) == ()
    again = replace(INSERT, reply="again")
    for insert in (INSERT, again):
        await store.insert(KEY, insert)
    assert await inserts(store) == (INSERT, again)


@pytest.mark.parametrize("damage", [b"", b"\3garbage", serialization.packed("sent", SENT)])
async def test_x7_a_damaged_original_is_a_miss_and_can_be_written_again(
    store: Store, by_hand: Any, prefix: str, damage: bytes
) -> None:
    await put_originals(store, KEY, {"1": "first", "2": "whole"})
    by_hand.hset(key_of(by_hand, prefix, "texts"), "o1", damage)
    assert await original(store, "tenant", "1", None) == {}
    await put_originals(store, KEY, {"1": "again", "2": "again"})
    assert await original(store, "tenant", "1", None) == {"conversation": "again"}
    assert await original(store, "tenant", "2", None) == {"conversation": "whole"}
    assert store.misses == 2


async def test_x7_a_name_in_an_index_that_is_none_is_a_miss(store: Store, by_hand: Any, prefix: str) -> None:
    await put_originals(store, KEY, {"1": "text"})
    by_hand.zadd(key_of(by_hand, prefix, "holders"), {b"\xff\xff": 1})
    by_hand.zadd(f"{prefix}:v2:tenants", {b"\xff\xff": 1})
    assert await original(store, "tenant", "1", None) == {"conversation": "text"}
    assert await store.sweep(1e12) == 1


@pytest.mark.parametrize("kind", ["steps", "ages", "abouts", "texts", "conversations", "holders"])
async def test_x7_a_key_of_another_type_is_a_miss_and_gives_way(
    store: Store, by_hand: Any, prefix: str, kind: str
) -> None:
    async def written() -> None:
        await put_originals(store, KEY, {"1": "text"})
        await store.remember([(KEY, RECORD)])

    await written()
    name = key_of(by_hand, prefix, kind)
    by_hand.delete(name)
    by_hand.set(name, "a string")
    await store.memory(KEY, ["anchor"])
    await written()
    assert store.misses > 0
    assert (await store.memory(KEY, ["anchor"])).steps == {"anchor": RECORD}
    await written()
    assert await original(store, "tenant", "1", None) == {"conversation": "text"}
    assert await store.delete_tenant("tenant") == 1


# --- release 0.1 ---


async def test_f_keys_of_release_0_1_are_said_once_not_read_and_left_to_expire(
    redis_url: str, by_hand: Any, prefix: str
) -> None:
    old = release_0_1.redis_keys(prefix)
    for commands in old.values():
        for command in commands:
            by_hand.execute_command(*command)
    before = {name: by_hand.dump(name) for name in old}
    lines: list[str] = []
    store = open_store(f"{redis_url}?prefix={prefix}", patience=10, announce=lines.append)
    await store.open()
    try:
        assert [prefix in line and "0.1" in line for line in lines] == [True]
        assert (await store.memory(KEY, ["anchor"])).steps == {}
        assert await store.claim(KEY, RECORD) == RECORD
        await put_originals(store, KEY, ORIGINALS)
        assert await original(store, "tenant", "482913", None) == {"conversation": ORIGINALS["482913"]}
        assert await store.secret("credentials") == b"s" * 32
        assert (await store.delete_tenant("tenant"), store.misses, len(lines)) == (1, 0, 1)
    finally:
        await store.close()
    assert {name: by_hand.dump(name) for name in old} == before


@pytest.mark.parametrize("value", [b"short", b""])
async def test_a_bad_secret_is_made_anew(store: Store, by_hand: Any, prefix: str, value: bytes) -> None:
    by_hand.set(f"{prefix}:secret:tenant", value)
    made = await store.secret("tenant")
    assert len(made) == 32
    assert await store.secret("tenant") == made


# --- two who share it ---


async def test_two_replicas_agree_on_every_claim_and_on_the_secret(url: str, fresh: Fresh) -> None:
    both = [fresh(url) for _ in range(2)]
    await asyncio.gather(*(one.open() for one in both))
    anchors = [f"a{i}" for i in range(40)]
    won = await asyncio.gather(
        *(
            asyncio.gather(*(one.claim(KEY, StepRecord(a, (replace(CUT, text=str(n)),))) for a in anchors))
            for n, one in enumerate(both)
        )
    )
    assert won[0] == won[1]
    secrets = await asyncio.gather(*(one.secret("tenant") for one in both))
    assert secrets[0] == secrets[1]


@pytest.mark.parametrize("ticks", [*range(12), 20])
async def test_f_a_client_let_go_of_keeps_no_connection_for_a_trip_on_its_way(
    redis_url: str, by_hand: Any, ticks: int
) -> None:
    name = f"leaving-{ticks}-{uuid4().hex}"
    leaving = connect(address(redis_url), None, 5)
    trip = asyncio.create_task(leaving.replies([("CLIENT", "SETNAME", name)]))
    for _ in range(ticks):
        await asyncio.sleep(0)
    await leaving.close()
    await asyncio.gather(trip, return_exceptions=True)
    assert name not in {each["name"] for each in by_hand.client_list()}
