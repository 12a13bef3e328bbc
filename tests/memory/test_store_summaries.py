"""Summaries and what they cost, in every back end."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from policies.model.edits import Fold, Origin
from policies.model.summary_record import SummaryCost, SummaryRecord
from proxy.memory import SUMMARIES, Key, Store, StoreTrouble
from tests.memory.test_store import (
    INSERT,
    KEY,
    RECORD,
    every_back_end,  # noqa: F401 - a fixture
    stores_made,  # noqa: F401 - likewise
)

SPENT = SummaryCost(1, 1_200, 1_000, 100, 80, 0.0123456789)
ORIGIN = Origin("s1", "model \udcff", "coding-agent", "compaction-1", 1_700_000_000.25, "a9", 2, 1234.5)
SUMMARY = SummaryRecord(
    id="s1",
    conversation="conversation",
    first="a1",
    last="a9",
    sources=("0:d1", "1:d2"),
    model="model \udcff",
    content="what was said, \ud800 too",
    tokens_before=9_000,
    tokens_after=700,
    created_at=1_700_000_000.25,
    policy="coding-agent",
    prompt="compaction-1",
    generation=2,
    previous="s0",
    owner="f00d",
    spent=SPENT,
    lines=(41, 80),
)
HISTORY = replace(SUMMARY, id="h1", kind="history")
REJECTED = replace(SUMMARY, id="s2", content="", rejected="short", tokens_after=0)


async def kept(store: Store, *firsts: str, key: Key = KEY) -> list[str]:
    """The ids of what a request would find."""
    return [summary.id for summary in (await store.memory(key, firsts or ["a1"])).summaries]


async def test_m1_a_summary_comes_back_with_its_provenance_and_the_steps(store: Store) -> None:
    await store.remember([(KEY, RECORD)])
    await store.insert(KEY, INSERT)
    assert await store.put_summary(KEY, SUMMARY)
    memory = await store.memory(KEY, ["anchor", "a1", "absent"])
    assert (memory.steps, memory.inserts) == ({"anchor": RECORD}, {"anchor": (INSERT,)})
    assert memory.summaries == (SUMMARY,)
    assert list(await store.summaries(KEY)) == [SUMMARY]


async def test_m1_an_adopted_summary_is_a_fold_that_keeps_its_origin(store: Store) -> None:
    folds = (Fold("a1", "a4", "text", "summarize", ORIGIN), Fold("a6", "a9", "", "summarize", ORIGIN))
    record = replace(RECORD, edits=folds)
    assert await store.claim(KEY, record) == record
    assert (await store.memory(KEY, ["anchor"])).steps == {"anchor": record}


async def test_m7_what_was_rejected_is_told_as_well(store: Store) -> None:
    for summary in (SUMMARY, REJECTED):
        assert await store.put_summary(KEY, summary)
    assert (await store.memory(KEY, ["a1"])).summaries == (SUMMARY, REJECTED)


async def test_m10_a_digest_is_found_by_what_it_is_of(store: Store) -> None:
    digest = replace(SUMMARY, id="d1", first="c0ffee", kind="digest")
    for summary in (digest, SUMMARY, replace(HISTORY, first="c0ffee")):
        assert await store.put_summary(KEY, summary)
    assert (await store.memory(KEY, ["c0ffee"])).summaries == (digest,)
    assert await kept(store, "a1") == ["s1"]


async def test_m9_a_summary_for_people_is_none_for_the_prompt(store: Store) -> None:
    for summary in (HISTORY, SUMMARY):
        assert await store.put_summary(KEY, summary)
    assert (await store.memory(KEY, ["a1"])).summaries == (SUMMARY,)
    assert list(await store.summaries(KEY)) == [HISTORY, SUMMARY]


async def test_only_summaries_of_the_beginnings_asked_for_are_loaded_in_the_order_of_their_making(store: Store) -> None:
    firsts = ["a1", "b1", "c1", "a1", "b1", "c1"]
    for number, first in enumerate(firsts):
        assert await store.put_summary(KEY, replace(SUMMARY, id=f"{first} {number}", first=first))
    assert await kept(store, "c1", "absent", "a1") == ["a1 0", "c1 2", "a1 3", "c1 5"]
    assert await kept(store, "absent") == []
    assert (await store.memory(KEY, [])).summaries == ()
    assert [summary.id for summary in await store.summaries(KEY)] == [f"{first} {i}" for i, first in enumerate(firsts)]


async def test_a_request_finds_its_summaries_among_those_of_many_others(store: Store) -> None:
    for number in range(40):
        assert await store.put_summary(KEY, replace(SUMMARY, id=f"s{number}", first=f"a{number}"))
        assert await store.put_summary(KEY, replace(HISTORY, id=f"h{number}", first=f"a{number}"))
    assert await kept(store, "a7") == ["s7"]
    assert await kept(store, "a30", "absent", "a2") == ["s2", "s30"]


async def test_the_same_summary_again_takes_the_place_of_the_former(store: Store) -> None:
    again = replace(SUMMARY, content="said better")
    for summary in (SUMMARY, REJECTED, again):
        assert await store.put_summary(KEY, summary)
    assert (await store.memory(KEY, ["a1"])).summaries == (REJECTED, again)


async def test_of_one_beginning_and_kind_the_newest_are_kept(store: Store) -> None:
    beside = replace(SUMMARY, id="beside", first="b1")
    ids = [f"s{number}" for number in range(SUMMARIES + 3)]
    for summary in (beside, HISTORY, *(replace(SUMMARY, id=id) for id in ids)):
        assert await store.put_summary(KEY, summary)
    assert await kept(store) == ids[-SUMMARIES:]
    assert await kept(store, "b1") == ["beside"]
    for number in range(SUMMARIES):
        await store.put_summary(KEY, replace(HISTORY, id=f"later {number}"))
    everything = [summary.id for summary in await store.summaries(KEY)]
    assert everything == ["beside", *ids[-SUMMARIES:], *(f"later {number}" for number in range(SUMMARIES))]


async def test_two_thousand_beginnings_are_one_question(store: Store) -> None:
    firsts = [f"{i:032x}" for i in range(2_000)]
    for first in firsts[::500]:
        await store.put_summary(KEY, replace(SUMMARY, id=first, first=first))
    assert await kept(store, *firsts) == firsts[::500]


@pytest.mark.parametrize("other", [Key("other", "conversation"), Key("tenant", "other"), Key("", "")])
async def test_x5_another_tenant_or_conversation_finds_no_summary_and_no_cost(store: Store, other: Key) -> None:
    await store.put_summary(KEY, SUMMARY)
    await store.spend(KEY, "compaction", SPENT)
    assert (await store.memory(other, ["a1"])).summaries == ()
    assert (len(await store.summaries(other)), await store.spent(other)) == (0, {})
    theirs = replace(SUMMARY, content="theirs")
    await store.put_summary(other, theirs)
    await store.spend(other, "compaction", SummaryCost(calls=7))
    assert (await store.memory(other, ["a1"])).summaries == (theirs,)
    assert await store.delete(other) == 1
    assert (await store.memory(KEY, ["a1"])).summaries == (SUMMARY,)
    assert await store.spent(KEY) == {"compaction": SPENT}


async def test_m9_what_is_spent_adds_up_by_kind(store: Store) -> None:
    assert await store.spent(KEY) == {}
    await store.spend(KEY, "compaction", SPENT)
    await store.spend(KEY, "history \udcff", SummaryCost(2, 10, dollars=0.5))
    await store.spend(KEY, "compaction", SummaryCost(1, 2, 3, 4, 5, 1e-9))
    assert await store.spent(KEY) == {
        "compaction": SPENT + SummaryCost(1, 2, 3, 4, 5, 1e-9),
        "history \udcff": SummaryCost(2, 10, dollars=0.5),
    }


async def test_m9_nothing_spent_at_once_is_lost(store: Store) -> None:
    await asyncio.gather(*(store.spend(KEY, "compaction", SummaryCost(1, i, dollars=0.25)) for i in range(40)))
    assert await store.spent(KEY) == {"compaction": SummaryCost(40, sum(range(40)), dollars=10.0)}


@pytest.mark.parametrize("how", ["delete", "delete_tenant", "sweep"])
async def test_x6_summaries_and_costs_go_with_their_conversation(store: Store, how: str) -> None:
    made, paid = Key("tenant", "made"), Key("tenant", "paid")
    for number in range(100):
        await store.put_summary(made, replace(SUMMARY, id=str(number), first=str(number)))
    await store.spend(paid, "compaction", SPENT)
    forget: dict[str, Callable[[], Awaitable[int]]] = {
        "delete": lambda: both(store.delete(made), store.delete(paid)),
        "delete_tenant": lambda: store.delete_tenant("tenant"),
        "sweep": lambda: store.sweep(1e12),
    }
    assert await store.sweep(1.0) == 0
    assert await forget[how]() == 2
    assert [len(await store.summaries(key)) for key in (made, paid)] == [0, 0]
    assert [await store.spent(key) for key in (made, paid)] == [{}, {}]
    assert await kept(store, "1", key=made) == []
    assert await store.delete(made) == 0


async def both(*counts: Awaitable[int]) -> int:
    return sum([await count for count in counts])


@pytest.mark.parametrize("how", ["delete", "delete_tenant"])
async def test_x6_what_is_deleted_takes_no_summary_of_another_along(store: Store, how: str) -> None:
    gone, stays = Key("gone", "1"), Key("stays" if how == "delete_tenant" else "gone", "2")
    for key in (gone, stays):
        await store.put_summary(key, SUMMARY)
        await store.spend(key, "compaction", SPENT)
    assert await (store.delete(gone) if how == "delete" else store.delete_tenant("gone")) == 1
    assert [await kept(store, key=key) for key in (gone, stays)] == [[], ["s1"]]
    assert [await store.spent(key) for key in (gone, stays)] == [{}, {"compaction": SPENT}]


async def test_a_closed_store_keeps_no_summary_and_says_so(store: Store) -> None:
    await store.close()
    for attempt in (
        lambda: store.put_summary(KEY, SUMMARY),
        lambda: store.summaries(KEY),
        lambda: store.spend(KEY, "compaction", SPENT),
        lambda: store.spent(KEY),
        lambda: store.lease(KEY, "name", 10),
        lambda: store.events(None, None, 10),
    ):
        with pytest.raises(StoreTrouble, match="not open"):
            await attempt()


async def test_a_caller_who_leaves_leaves_no_summary_half_written(store: Store) -> None:
    writes = [asyncio.create_task(store.put_summary(KEY, replace(SUMMARY, id=str(i), first=str(i)))) for i in range(40)]
    await asyncio.sleep(0)
    for write in writes[::2]:
        write.cancel()
    await asyncio.gather(*writes, return_exceptions=True)
    found = await store.summaries(KEY)
    assert {str(i) for i in range(1, 40, 2)} <= {summary.id for summary in found}
    assert all(replace(summary, id="s1", first="a1") == SUMMARY for summary in found)
    assert store.misses == 0
