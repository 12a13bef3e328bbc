"""Events, in every back end: what happened, for people who audit."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest

from proxy.memory import Event, Key, Store
from tests.memory.test_store import (
    KEY,
    RECORD,
    every_back_end,  # noqa: F401 - a fixture
    stores_made,  # noqa: F401 - likewise
)

DETAILS = {"id": "s1", "model": "model \udcff", "tokens": 1_234, "dollars": 0.25, "negative": -1}
EVENT = Event(1_700_000_000.5, "conversation", "summary.made", DETAILS)


def numbered(*numbers: int, conversation: str = "conversation") -> list[Event]:
    return [replace(EVENT, conversation=conversation, name=f"event {number}") for number in numbers]


async def noted(store: Store, events: Sequence[Event], tenant: str = "tenant") -> None:
    for event in events:
        await store.note(tenant, event)


async def test_m1_an_event_comes_back_as_it_was(store: Store) -> None:
    await store.note("tenant \udcff", EVENT)
    assert list(await store.events("tenant \udcff", "conversation", 10)) == [("tenant \udcff", EVENT)]


async def test_the_newest_events_are_told_oldest_first(store: Store) -> None:
    await noted(store, numbered(*range(6)))
    for most, told in ((0, []), (-1, []), (1, [5]), (3, [3, 4, 5]), (10**9, range(6))):
        assert [event for _, event in await store.events("tenant", None, most)] == numbered(*told)


async def test_events_are_told_of_one_conversation_one_tenant_or_all(store: Store) -> None:
    for number, (tenant, conversation) in enumerate([("t", "1"), ("t", "2"), ("u", "1"), ("t", "1")]):
        await noted(store, numbered(number, conversation=conversation), tenant)
    asked: list[tuple[str | None, str | None, list[str]]] = [
        (None, None, ["t 0", "t 1", "u 2", "t 3"]),
        ("t", None, ["t 0", "t 1", "t 3"]),
        ("t", "1", ["t 0", "t 3"]),
        (None, "1", ["t 0", "u 2", "t 3"]),
        ("t", "3", []),
        ("v", None, []),
    ]
    for wanted, conversation, expected in asked:
        found = await store.events(wanted, conversation, 10)
        in_order = [f"{tenant} {event.name[6:]}" for tenant, event in found]
        assert sorted(in_order) == sorted(expected)
        for each in ("t", "u"):  # what happened in two tenants at the same moment has no order
            assert [one for one in in_order if one[0] == each] == [one for one in expected if one[0] == each]


async def test_the_newest_of_one_conversation_are_found_behind_those_of_many_others(store: Store) -> None:
    await noted(store, numbered(0, 1))
    await asyncio.gather(*(store.note("tenant", event) for event in numbered(*range(1_200), conversation="loud")))
    assert [event for _, event in await store.events("tenant", "conversation", 1)] == numbered(1)
    assert len(await store.events("tenant", "loud", 1_100)) == 1_100
    assert await store.delete(Key("tenant", "conversation")) == 0
    assert list(await store.events("tenant", "conversation", 10)) == []
    assert len(await store.events("tenant", None, 5_000)) == 1_200


@pytest.mark.parametrize("how", ["delete", "delete_tenant", "sweep"])
async def test_x6_events_go_with_their_conversation_and_a_later_note_stays(store: Store, how: str) -> None:
    await store.remember([(KEY, RECORD)])
    await noted(store, numbered(*range(120)))
    await noted(store, numbered(1), "another")
    forget: dict[str, Callable[[], Awaitable[int]]] = {
        "delete": lambda: store.delete(KEY),
        "delete_tenant": lambda: store.delete_tenant("tenant"),
        "sweep": lambda: store.sweep(1e12),
    }
    assert await store.sweep(1.0) == 0
    assert len(await store.events("tenant", None, 1_000)) == 120
    assert await forget[how]() == 1
    assert list(await store.events("tenant", None, 1_000)) == []
    assert len(await store.events("another", None, 1_000)) == (how != "sweep")
    deleted = replace(EVENT, name="conversation.deleted", details={})
    await store.note("tenant", deleted)
    assert list(await store.events(None, "conversation", 10))[-1] == ("tenant", deleted)


async def test_x5_another_tenants_events_are_not_told_and_not_deleted(store: Store) -> None:
    for tenant in ("tenant", "other"):
        await noted(store, numbered(1, 2), tenant)
    assert {tenant for tenant, _ in await store.events("tenant", None, 10)} == {"tenant"}
    await store.delete(Key("other", "conversation"))
    assert [event for _, event in await store.events("tenant", None, 10)] == numbered(1, 2)
    await store.delete_tenant("other")
    assert [event for _, event in await store.events(None, None, 10)] == numbered(1, 2)


@pytest.mark.parametrize("conversation", ["\udcff", "a:b", "", "b\0"])
async def test_x5_an_event_names_its_conversation_as_the_client_did(store: Store, conversation: str) -> None:
    await noted(store, numbered(1, conversation=conversation))
    await noted(store, numbered(2, conversation="another"))
    assert [event for _, event in await store.events(None, conversation, 10)] == numbered(1, conversation=conversation)


async def test_x8_what_a_client_wrote_into_an_event_comes_back_as_data(store: Store) -> None:
    nasty = replace(EVENT, name="a\nb", details={"model": 'x\n{"event":"forged"}\x1b[2J'})
    await store.note("tenant", nasty)
    assert [event for _, event in await store.events("tenant", None, 10)] == [nasty]
