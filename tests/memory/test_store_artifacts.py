"""Texts that are kept for people, in every back end: what comes back, what is too much, and what goes with what."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from uuid import uuid4

import pytest

from proxy.memory import ARTIFACTS, CLIENT_SUMMARIES, MESSAGES, Key, Store, StoredText, TextKind
from proxy.memory.redis.connection import address
from proxy.memory.redis.store import RedisStore
from proxy.memory.sqlite.store import SqliteStore
from tests.memory.test_store import (
    KEY,
    RECORD,
    every_back_end,  # noqa: F401 - a fixture
    stores_made,  # noqa: F401 - likewise
)

LIMIT = 2**40
TEXTS = (
    StoredText("aa11", "a long text\0 with \ud800 in it", {"tool": "bash\udcff", "characters": 29, "at": 1.5}),
    StoredText("bb22", "", {"tool": "", "characters": 0, "at": 2.0}),
)
BOUNDED: Sequence[TextKind] = (ARTIFACTS, MESSAGES, CLIENT_SUMMARIES)
OTHER = Key("tenant", "another")


async def names(store: Store, kind: TextKind = ARTIFACTS, key: Key = KEY) -> list[str]:
    return [text.name for text in await store.list_texts(key, kind)]


def numbered(*numbers: int, size: int = 1_000) -> list[StoredText]:
    return [StoredText(f"{number:032x}", "x" * size, {"index": number}) for number in numbers]


@pytest.mark.parametrize("kind", BOUNDED)
async def test_m10_what_is_kept_is_listed_in_its_order_and_its_text_comes_back(store: Store, kind: TextKind) -> None:
    other = MESSAGES if kind == ARTIFACTS else ARTIFACTS
    await store.put_texts(KEY, kind, TEXTS[1:], LIMIT)
    await store.put_texts(KEY, kind, TEXTS, LIMIT)
    assert await store.list_texts(KEY, kind) == [replace(text, text="") for text in reversed(TEXTS)]
    texts = {text.name: text.text for text in TEXTS}
    assert await store.texts(KEY, kind, [*texts, "absent"]) == texts
    assert (await store.texts(KEY, kind, []), await store.texts(KEY, kind, ["bb22"])) == ({}, {"bb22": ""})
    assert (await store.list_texts(KEY, other), await store.texts(KEY, other, ["aa11"])) == ([], {})
    assert store.misses == 0


async def test_m10_what_is_there_keeps_what_is_said_of_it(store: Store) -> None:
    await store.put_texts(KEY, ARTIFACTS, TEXTS, LIMIT)
    await store.put_texts(KEY, ARTIFACTS, [replace(TEXTS[0], about={"at": 9})], LIMIT)
    assert await store.list_texts(KEY, ARTIFACTS) == [replace(text, text="") for text in TEXTS]


async def test_an_artifact_is_found_in_each_conversation_that_has_it(store: Store) -> None:
    for key in (KEY, OTHER):
        await store.put_texts(key, ARTIFACTS, TEXTS, LIMIT)
    await store.put_texts(OTHER, MESSAGES, numbered(1), LIMIT)
    assert sorted(await store.conversations_with("tenant", ARTIFACTS, "aa11")) == ["another", "conversation"]
    assert (
        await store.conversations_with("other", ARTIFACTS, "aa11")
        == await store.conversations_with("tenant", ARTIFACTS, f"{1:032x}")
        == []
    )


async def test_x5_another_tenant_and_conversation_have_nothing_of_it(store: Store) -> None:
    await store.put_texts(KEY, ARTIFACTS, TEXTS, LIMIT)
    for key in (Key("other", "conversation"), OTHER, Key("", "")):
        assert await store.list_texts(key, ARTIFACTS) == []
        assert await store.texts(key, ARTIFACTS, ["aa11"]) == {}


async def test_x6_the_oldest_artifacts_of_a_tenant_go_where_there_are_too_many(store: Store) -> None:
    theirs = Key("other", "conversation")
    await store.put_texts(theirs, ARTIFACTS, numbered(0), LIMIT)
    for number in range(12):
        await store.put_texts((KEY, OTHER)[number % 2], ARTIFACTS, numbered(number), 6_000)
    mine, beside = await names(store), await names(store, key=OTHER)
    left = sorted(int(name, 16) for name in mine + beside)
    assert left == list(range(12 - len(left), 12))
    assert 4 <= len(left) <= 5
    assert set(await store.texts(KEY, ARTIFACTS, [f"{n:032x}" for n in range(12)])) == set(mine)
    assert await store.conversations_with("tenant", ARTIFACTS, f"{0:032x}") == []
    assert await names(store, key=theirs) == [f"{0:032x}"]


async def test_x6_a_log_is_bounded_for_itself(store: Store) -> None:
    await store.put_texts(OTHER, MESSAGES, numbered(*range(3)), 6_000)
    await store.put_texts(KEY, ARTIFACTS, numbered(7), LIMIT)
    await store.put_texts(KEY, MESSAGES, numbered(*range(250), size=100), 6_000)
    left = [int(name, 16) for name in await names(store, MESSAGES)]
    assert left == list(range(250 - len(left), 250))
    assert 20 <= len(left) <= 60
    assert [len(await names(store, MESSAGES, OTHER)), len(await names(store))] == [3, 1]
    await store.put_texts(KEY, MESSAGES, numbered(300), 10)
    assert await names(store, MESSAGES) == []


@pytest.mark.parametrize("kind", ["file", "redis"])
async def test_x6_what_was_kept_too_long_ago_goes_though_its_conversation_lives_on(
    request: pytest.FixtureRequest, kind: str
) -> None:
    now = [1_000.0]
    if kind == "redis":
        where = address(f"{request.getfixturevalue('redis_url')}?prefix={uuid4().hex}&ttl=100s")
        store: Store = RedisStore(where, patience=10, clock=lambda: now[0])
    else:
        store = SqliteStore(patience=10, clock=lambda: now[0])
    await store.open()
    try:
        for number in range(2):
            for bounded in BOUNDED:
                await store.put_texts(KEY, bounded, numbered(number), LIMIT)
            await store.remember([(KEY, RECORD)])
            now[0] += 200
        assert await store.sweep(1_100) == 0
        assert [await names(store, bounded) for bounded in BOUNDED] == [[f"{1:032x}"]] * len(BOUNDED)
        assert await store.conversations_with("tenant", ARTIFACTS, f"{0:032x}") == []
        assert (await store.memory(KEY, ["anchor"])).steps == {"anchor": RECORD}
    finally:
        await store.close()


FORGET: dict[str, Callable[[Store], Awaitable[int]]] = {
    "delete": lambda store: store.delete(KEY),
    "delete_tenant": lambda store: store.delete_tenant("tenant"),
    "sweep": lambda store: store.sweep(1e12),
}


@pytest.mark.parametrize("how", FORGET)
async def test_x6_they_go_with_their_conversation_and_so_does_what_they_take(store: Store, how: str) -> None:
    stays = Key("other", "another")
    for key in (KEY, stays):
        for kind in BOUNDED:
            await store.put_texts(key, kind, [*TEXTS, *numbered(*range(120))], LIMIT)
    if how != "sweep":
        await store.remember([(KEY, RECORD)])
    assert await FORGET[how](store) == (2 if how == "sweep" else 1)
    assert await FORGET[how](store) == 0
    assert [await names(store, kind) for kind in BOUNDED] == [[]] * len(BOUNDED)
    assert await store.conversations_with("tenant", ARTIFACTS, "aa11") == []
    assert len(await names(store, key=stays)) == (0 if how == "sweep" else 122)
    # what is gone is not counted any more: there is room for as much again
    await store.put_texts(KEY, ARTIFACTS, numbered(*range(5)), 6_000)
    assert len(await names(store)) == 5


async def test_thousands_and_a_million_characters_are_kept(store: Store) -> None:
    await store.put_texts(KEY, MESSAGES, numbered(*range(1_500), size=1), LIMIT)
    await store.put_texts(KEY, ARTIFACTS, [StoredText("ab", "é" * 1_000_000, {})], LIMIT)
    await store.put_texts(KEY, ARTIFACTS, [], LIMIT)
    assert await names(store, MESSAGES) == [f"{number:032x}" for number in range(1_500)]
    assert await store.texts(KEY, ARTIFACTS, ["ab"]) == {"ab": "é" * 1_000_000}
