"""One suite for every back end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from policies.model.edits import Fold, Insert, RecallRound, Replace
from policies.model.memory import Sent, StepRecord
from policies.model.summary_record import Criteria, SummaryUse
from proxy.memory import Key, Store, StoreTrouble, open_store
from proxy.memory.decisions import INSERTS
from tests.kit.stored_texts import original, put_originals

KEY = Key("tenant", "conversation")
SENT = Sent(12, "d1", 10, "d2", 11, "d3", "head", "setup")
CUT = Replace("a1", "[...900 chars omitted...]", "offload")
FOLD = Fold("a1", "a9", "[turns 1 to 4 left out]", "trim")
RECORD = StepRecord("anchor", (CUT, FOLD), "paid", SENT, 1_700_000_000.25, recall=True)
ROUND = RecallRound(12, ('{"id":"call_1","arguments":"\udcff"}', "{}"), (0, 2), '{"reasoning":"why"}', last=True)
INSERT = Insert("anchor", "reply", (ROUND, RecallRound(0, ("{}",))), "openai_chat")
ORIGINALS = {"482913": "a long text\0 with \ud800 in it", "482913+5": ""}


Fresh = Callable[..., Store]


@pytest.fixture(name="fresh")
async def stores_made() -> AsyncIterator[Fresh]:
    """Makes stores, and closes them whatever happens: an open one keeps its thread and so the process alive.

    They are patient, because the machine that runs the tests may be busy.
    """
    made: list[Store] = []

    def make(url: str, patience: float = 10) -> Store:
        made.append(open_store(url, patience=patience))
        return made[-1]

    yield make
    for store in made:
        await store.close()


@pytest.fixture(name="store", params=["file", "memory", "redis", "cluster"])
async def every_back_end(request: pytest.FixtureRequest, tmp_path: Path, fresh: Fresh) -> Store:
    """A store that is open, of each kind in turn."""
    urls: dict[str, Callable[[], str]] = {
        "file": lambda: f"sqlite:///{tmp_path}/narrows.db",
        "memory": lambda: "sqlite://",
        "redis": lambda: f"{request.getfixturevalue('redis_url')}?prefix={uuid4().hex}",
        "cluster": lambda: f"{request.getfixturevalue('redis_cluster_url')}?prefix={uuid4().hex}",
    }
    made = fresh(urls[request.param]())
    await made.open()
    return made


async def test_what_is_remembered_comes_back(store: Store) -> None:
    await store.remember([(KEY, RECORD)])
    assert (await store.memory(KEY, ["anchor"])).steps == {"anchor": RECORD}


async def test_only_the_anchors_asked_for_are_loaded(store: Store) -> None:
    for i in range(5):
        await store.remember([(KEY, replace(RECORD, anchor=f"a{i}"))])
    assert set((await store.memory(KEY, ["a1", "a3", "absent"])).steps) == {"a1", "a3"}
    assert (await store.memory(KEY, [])).steps == {}


async def test_two_thousand_anchors_are_one_question(store: Store) -> None:
    anchors = [f"{i:032x}" for i in range(2_000)]
    await store.remember([(KEY, replace(RECORD, anchor=anchors[-1]))])
    assert list((await store.memory(KEY, anchors)).steps) == [anchors[-1]]


async def test_the_first_decision_stays_and_what_was_sent_is_filled_in(store: Store) -> None:
    await store.remember([(KEY, StepRecord("anchor", (CUT,), "paid"))])
    await store.remember([(KEY, replace(RECORD, edits=(FOLD,), reason="window"))])
    first = replace(RECORD, edits=(CUT,), reason="paid", recall=False)
    assert (await store.memory(KEY, ["anchor"])).steps["anchor"] == first


async def test_r7_whether_the_recall_tool_was_there_is_a_part_of_the_decision(store: Store) -> None:
    for first, second in ((True, False), (False, True)):
        anchor = f"first {first}"
        await store.remember([(KEY, StepRecord(anchor, (CUT,), recall=first))])
        won = await store.claim(KEY, StepRecord(anchor, (CUT,), recall=second))
        assert won.recall is first
        assert (await store.memory(KEY, [anchor])).steps[anchor].recall is first


async def test_what_was_sent_is_not_lost_to_a_later_record_without_it(store: Store) -> None:
    await store.remember([(KEY, RECORD)])
    await store.remember([(KEY, StepRecord("anchor"))])
    assert (await store.memory(KEY, ["anchor"])).steps["anchor"] == RECORD


async def test_the_newest_sent_and_time_win(store: Store) -> None:
    await store.remember([(KEY, RECORD)])
    later = replace(RECORD, sent=replace(SENT, digest="later"), at=RECORD.at + 1)
    await store.remember([(KEY, later)])
    assert (await store.memory(KEY, ["anchor"])).steps["anchor"] == later


async def test_the_step_that_was_sent_last_is_known_in_whatever_order_it_was_written(store: Store) -> None:
    assert await store.newest_step(KEY) is None
    await store.remember([(KEY, StepRecord("not sent", at=RECORD.at + 9))])
    assert await store.newest_step(KEY) is None
    use = SummaryUse("s1", "s2", "s0", "source", Criteria("p", "q", ("m",), 60.0))
    last = replace(RECORD, anchor="last", sent=replace(SENT, use=use), at=RECORD.at + 5)
    for record in (RECORD, last, replace(RECORD, anchor="late")):
        await store.remember([(KEY, record)])
    assert await store.newest_step(KEY) == last
    again = replace(RECORD, at=RECORD.at + 6)  # an earlier request, sent once more
    await store.remember([(KEY, again)])
    assert await store.newest_step(KEY) == again
    assert await store.newest_step(Key(KEY.tenant, "other")) is None
    await store.delete(KEY)
    assert await store.newest_step(KEY) is None


async def test_a_claim_returns_the_record_that_won(store: Store) -> None:
    first, second = StepRecord("anchor", (CUT,), "cold"), StepRecord("anchor", (FOLD,), "paid")
    assert await store.claim(KEY, first) == first
    assert await store.claim(KEY, second) == first


async def test_t5_what_takes_the_place_of_a_refused_request_counts_and_is_the_first_from_then_on(store: Store) -> None:
    await store.remember([(KEY, RECORD)])
    instead = replace(RECORD, edits=(CUT, FOLD), reason="checkpoint:window", sent=replace(SENT, digest="instead"))
    await store.claim(KEY, instead, supersedes=True)
    await store.remember([(KEY, RECORD)])  # it waited behind the request
    await store.claim(KEY, instead, supersedes=True)
    assert (await store.memory(KEY, ["anchor"])).steps["anchor"] == instead
    assert await store.claim(KEY, replace(RECORD, sent=instead.sent)) == instead
    unheard = replace(instead, anchor="new")
    await store.claim(KEY, unheard, supersedes=True)
    assert (await store.memory(KEY, ["new"])).steps["new"] == unheard


async def test_of_many_claims_at_once_one_wins(store: Store) -> None:
    claims = [StepRecord("anchor", (replace(CUT, text=str(i)),)) for i in range(30)]
    won = await asyncio.gather(*(store.claim(KEY, claim) for claim in claims))
    assert len(set(won)) == 1
    assert won[0] in claims


@pytest.mark.parametrize("other", [Key("other", "conversation"), Key("tenant", "other"), Key("", "")])
async def test_x5_another_tenant_or_conversation_sees_and_wins_nothing(store: Store, other: Key) -> None:
    await store.remember([(KEY, RECORD)])
    assert (await store.memory(other, ["anchor"])).steps == {}
    theirs = StepRecord("anchor", (FOLD,), "theirs")
    assert await store.claim(other, theirs) == theirs
    assert await store.delete(other) == 1
    assert (await store.memory(KEY, ["anchor"])).steps == {"anchor": RECORD}


async def test_x5_keys_that_read_alike_are_not_the_same(store: Store) -> None:
    """A boundary between tenant and conversation cannot be forged, nor a character that UTF-8 cannot say."""
    keys = [
        Key("a", "b:c"),
        Key("a:b", "c"),
        Key("a", "\udcff"),
        Key("a", "\udcfe"),
        Key("a", "?"),
        Key("a", "\\udcff"),
        Key("a", "b\0"),
        Key("a", "b"),
    ]
    for i, key in enumerate(keys):
        await store.remember([(key, replace(RECORD, reason=str(i)))])
    for i, key in enumerate(keys):
        assert (await store.memory(key, ["anchor"])).steps["anchor"].reason == str(i)


async def test_x6_deleting_a_conversation_is_idempotent(store: Store) -> None:
    for i in range(3):
        await store.remember([(KEY, replace(RECORD, anchor=f"a{i}"))])
    assert [await store.delete(KEY), await store.delete(KEY)] == [1, 0]
    assert (await store.memory(KEY, ["a0", "a1", "a2"])).steps == {}
    await store.remember([(KEY, RECORD)])
    assert (await store.memory(KEY, ["anchor"])).steps == {"anchor": RECORD}


async def test_x6_deleting_a_tenant_leaves_the_others(store: Store) -> None:
    keys = [Key("gone", "1"), Key("gone", "2"), Key("stays", "1")]
    for key in keys:
        await store.remember([(key, RECORD)])
    assert [await store.delete_tenant("gone"), await store.delete_tenant("gone")] == [2, 0]
    assert [len((await store.memory(key, ["anchor"])).steps) for key in keys] == [0, 0, 1]


async def test_x6_sweeping_far_ahead_forgets_all_and_far_back_nothing(store: Store) -> None:
    for i in range(50):
        await store.remember([(Key("tenant", str(i)), RECORD)])
    assert await store.sweep(1.0) == 0
    assert await store.sweep(1e12) == 50
    assert (await store.memory(Key("tenant", "7"), ["anchor"])).steps == {}


async def inserts(store: Store, key: Key = KEY, anchor: str = "anchor") -> tuple[Insert, ...]:
    return (await store.memory(key, [anchor])).inserts.get(anchor, ())


async def test_r2_what_stands_behind_a_reply_comes_back_with_the_steps(store: Store) -> None:
    await store.remember([(KEY, RECORD)])
    await store.insert(KEY, INSERT)
    await store.insert(KEY, replace(INSERT, after="not asked for"))
    memory = await store.memory(KEY, ["anchor", "absent"])
    assert memory.steps == {"anchor": RECORD}
    assert memory.inserts == {"anchor": (INSERT,)}


async def test_r2_a_reply_may_be_kept_before_its_step(store: Store) -> None:
    await store.insert(KEY, INSERT)
    assert await inserts(store) == (INSERT,)
    assert (await store.memory(KEY, ["anchor"])).steps == {}
    assert (await store.memory(KEY, [])).inserts == {}


async def test_r2_several_replies_to_one_step_live_side_by_side_and_the_newest_of_each_wins(store: Store) -> None:
    other, later = replace(INSERT, reply="another"), replace(INSERT, rounds=(RecallRound(7, ('{"id":"later"}',)),))
    for insert in (INSERT, other, later):
        await store.insert(KEY, insert)
    assert await inserts(store) == (other, later)


async def test_r2_a_step_keeps_its_newest_replies_and_takes_none_from_another(store: Store) -> None:
    replies = [replace(INSERT, reply=f"r{i}") for i in range(INSERTS)]
    beside = replace(INSERT, after="beside")
    for insert in (beside, *replies, replies[0], replace(INSERT, reply="one too many")):
        await store.insert(KEY, insert)
        await store.insert(Key("other", KEY.conversation), insert)
    assert [kept.reply for kept in await inserts(store)] == [
        *(f"r{i}" for i in range(2, INSERTS)),
        "r0",
        "one too many",
    ]
    assert await inserts(store, anchor="beside") == (beside,)


async def test_r2_two_thousand_steps_with_replies_are_one_question(store: Store) -> None:
    anchors = [f"{i:032x}" for i in range(2_000)]
    for anchor in anchors[::500]:
        await store.insert(KEY, replace(INSERT, after=anchor))
    assert set((await store.memory(KEY, anchors)).inserts) == set(anchors[::500])


async def test_originals_come_back_by_reference(store: Store) -> None:
    await put_originals(store, KEY, ORIGINALS)
    await put_originals(store, Key("tenant", "second"), {"482913": "said there"})
    assert await original(store, "tenant", "482913", None) == {
        "conversation": ORIGINALS["482913"],
        "second": "said there",
    }
    assert await original(store, "tenant", "482913", "second") == {"second": "said there"}
    assert await original(store, "tenant", "482913+5", None) == {"conversation": ""}


@pytest.mark.parametrize("ref", ["48291", "482913 ", "", "\udcff", "' OR 1 --"])
async def test_an_unknown_reference_stands_for_nothing(store: Store, ref: str) -> None:
    await put_originals(store, KEY, ORIGINALS)
    assert await original(store, "tenant", ref, None) == {}
    assert await original(store, "tenant", "482913", "absent") == {}


async def test_the_first_original_of_a_reference_stays(store: Store) -> None:
    await put_originals(store, KEY, {"1": "first"})
    await put_originals(store, KEY, {"1": "second", "2": "new"})
    assert await original(store, "tenant", "1", None) == {"conversation": "first"}
    assert await original(store, "tenant", "2", None) == {"conversation": "new"}


async def test_no_original_is_nothing_and_ten_thousand_are_kept(store: Store) -> None:
    await put_originals(store, KEY, {})
    assert await store.delete(KEY) == 0
    await put_originals(store, KEY, {str(i): f"text {i}" for i in range(10_000)})
    assert await original(store, "tenant", "9999", None) == {"conversation": "text 9999"}


async def test_r1_an_original_of_five_million_characters_comes_back(store: Store) -> None:
    await put_originals(store, KEY, {"1": "é" * 5_000_000})
    assert await original(store, "tenant", "1", "conversation") == {"conversation": "é" * 5_000_000}


async def test_x5_another_tenant_gets_no_original_and_no_reply(store: Store) -> None:
    await put_originals(store, KEY, ORIGINALS)
    await store.insert(KEY, INSERT)
    theirs = Key("other", KEY.conversation)
    for conversation in (None, KEY.conversation):
        assert await original(store, "other", "482913", conversation) == {}
    assert await inserts(store, theirs) == ()
    assert await inserts(store, Key("tenant", "other")) == ()
    await put_originals(store, theirs, {"482913": "theirs"})
    assert await original(store, "tenant", "482913", None) == {"conversation": ORIGINALS["482913"]}
    assert await store.delete_tenant("other") == 1
    assert await original(store, "tenant", "482913", None) == {"conversation": ORIGINALS["482913"]}


@pytest.mark.parametrize("name", ["\udcff", "a:b", "", "b\0"])
async def test_x5_an_original_names_its_conversation_as_the_client_did(store: Store, name: str) -> None:
    await put_originals(store, Key(name, name), ORIGINALS)
    assert await original(store, name, "482913", None) == {name: ORIGINALS["482913"]}


async def deleted(store: Store, keys: Sequence[Key]) -> int:
    return sum([await store.delete(key) for key in keys])


@pytest.mark.parametrize("how", ["delete", "delete_tenant", "sweep"])
async def test_x6_replies_and_originals_go_with_their_conversation(store: Store, how: str) -> None:
    with_steps, with_insert, with_original = (Key("tenant", str(i)) for i in range(3))
    await store.remember([(with_steps, RECORD)])
    for key in (with_steps, with_insert):
        await store.insert(key, INSERT)
    for key in (with_steps, with_original):
        await put_originals(store, key, ORIGINALS | {str(i): "text" for i in range(300)})
    keys = (with_steps, with_insert, with_original)
    forget: dict[str, Callable[[], Awaitable[int]]] = {
        "delete": lambda: deleted(store, keys),
        "delete_tenant": lambda: store.delete_tenant("tenant"),
        "sweep": lambda: store.sweep(1e12),
    }
    assert await forget[how]() == 3
    assert [await inserts(store, key) for key in keys] == [(), (), ()]
    for ref in ("482913", "0", "299"):
        assert await original(store, "tenant", ref, None) == {}


@pytest.mark.parametrize("how", ["delete", "delete_tenant"])
async def test_x6_what_is_deleted_takes_no_reply_or_original_of_another_along(store: Store, how: str) -> None:
    gone, stays = Key("gone", "1"), Key("stays" if how == "delete_tenant" else "gone", "2")
    for key in (gone, stays):
        await store.insert(key, INSERT)
        await put_originals(store, key, ORIGINALS)
    assert await (store.delete(gone) if how == "delete" else store.delete_tenant("gone")) == 1
    assert [await inserts(store, key) for key in (gone, stays)] == [(), (INSERT,)]
    assert await original(store, stays.tenant, "482913", None) == {"2": ORIGINALS["482913"]}
    assert await original(store, gone.tenant, "482913", "1") == {}


async def test_x4_a_secret_is_made_once(store: Store) -> None:
    made = await asyncio.gather(*(store.secret("credentials") for _ in range(10)))
    assert len(made[0]) == 32
    assert set(made) == {made[0]}
    assert await store.secret("another") != made[0]


async def test_a_store_is_ready_open_and_closed_as_often_as_one_likes(store: Store) -> None:
    await store.open()
    assert await store.ready()
    await store.close()
    await store.close()


async def test_a_closed_store_is_trouble(store: Store) -> None:
    await store.close()
    with pytest.raises(StoreTrouble, match="not open"):
        await store.memory(KEY, ["anchor"])
    with pytest.raises(StoreTrouble, match="not open"):
        await store.remember([(KEY, RECORD)])
    with pytest.raises(StoreTrouble, match="not open"):
        await store.insert(KEY, INSERT)
    with pytest.raises(StoreTrouble, match="not open"):
        await put_originals(store, KEY, ORIGINALS)
    with pytest.raises(StoreTrouble, match="not open"):
        await original(store, "tenant", "482913", None)
    assert not await store.ready()


async def test_a_caller_who_leaves_leaves_nothing_half_done(store: Store) -> None:
    tasks = [asyncio.create_task(store.remember([(KEY, replace(RECORD, anchor=f"a{i}"))])) for i in range(40)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    kept = (await store.memory(KEY, [f"a{i}" for i in range(40)])).steps
    assert {f"a{i}" for i in range(1, 40, 2)} <= set(kept)
    assert all(replace(record, anchor="anchor") == RECORD for record in kept.values())
    assert store.misses == 0
