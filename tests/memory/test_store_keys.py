"""Keys of this gateway, in every back end."""

import asyncio
from datetime import UTC, datetime

import pytest

from proxy.config import KeyRow
from proxy.memory import Key, Purse, Store
from tests.memory.test_store import (
    KEY,
    every_back_end,  # noqa: F401 - a fixture
    stores_made,  # noqa: F401 - likewise
)


def row(name: str, digit: str = "a", **fields: object) -> KeyRow:
    return KeyRow.model_validate({"name": name, "sha256": 64 * digit, **fields})


async def rows_of(store: Store) -> list[KeyRow]:
    answer = await store.key_rows()
    assert answer is not None
    return list(answer[1])


async def test_f_a_row_comes_back_as_it_was_and_goes_when_it_is_deleted(store: Store) -> None:
    whole = row(
        "bob", "b", tenant="t", models=["gpt-5*"], rpm=3, usd_per_day=0.5, expires=datetime(2030, 1, 1, tzinfo=UTC)
    )
    assert [await store.add_key(each) for each in (whole, row("alice"))] == [True, True]
    assert await rows_of(store) == [row("alice"), whole]
    assert [await store.delete_key("bob"), await store.delete_key("bob")] == [True, False]
    assert await rows_of(store) == [row("alice")]
    assert await store.add_key(row("bob", "b"))


@pytest.mark.parametrize("second", [row("alice", "b"), row("bob", "a")])
async def test_f_of_two_with_one_name_or_one_key_the_first_stays(store: Store, second: KeyRow) -> None:
    assert await store.add_key(row("alice"))
    assert not await store.add_key(second)
    assert await rows_of(store) == [row("alice")]


async def test_f_what_is_known_is_not_sent_again(store: Store) -> None:
    await store.add_key(row("alice"))
    answer = await store.key_rows()
    assert answer is not None
    assert await store.key_rows(answer[0]) is None
    await store.delete_key("alice")
    assert await store.key_rows(answer[0]) not in (None, answer)


async def test_f_no_tenant_and_no_time_takes_keys_with_it(store: Store) -> None:
    await asyncio.gather(store.add_key(row("alice")), store.take(Purse("alice", day="2026-01-31"), 1.0))
    await store.own(Key("alice", KEY.conversation), "somebody")
    await store.delete_tenant("alice")
    await store.sweep(10**12)
    assert await rows_of(store) == [row("alice")]
