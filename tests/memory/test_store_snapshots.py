"""Snapshots of the planner's state: what every back end promises of them, and what is in them."""

import asyncio
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest

from policies.model.memory import CacheLife
from policies.model.summary_record import SummaryUse
from policies.money.ledger import Ledger
from policies.money.prices import Prices
from policies.planning.state import PlanState
from proxy.config.keyring import Keyring
from proxy.memory import Key, Snapshot, Store, open_store, snapshots
from proxy.memory.cached import CachedStore
from proxy.memory.decisions import SNAPSHOTS
from tests.kernel.test_planning import ENDS, Bench, on
from tests.memory.test_store import CUT, FOLD, KEY, RECORD, Fresh, every_back_end, stores_made  # noqa: F401 - fixtures

SNAPSHOT = Snapshot("a4", "print", b"\0 state \xff" * 9)
PRICES = Prices()


async def test_of_a_path_the_last_snapshot_comes_back_and_no_other_one(store: Store) -> None:
    for anchor in ("a4", "a8", "beside"):
        await store.put_snapshot(KEY, replace(SNAPSHOT, anchor=anchor))
    await store.put_snapshot(KEY, replace(SNAPSHOT, anchor="a9", fingerprint="of another configuration"))
    newest = replace(SNAPSHOT, anchor="a8")
    assert await store.snapshot(KEY, "print", ["a3", "a4", "a8", "a9", "absent"]) == newest
    assert await store.snapshot(KEY, "print", ["a3", "a4"]) == SNAPSHOT
    assert await store.snapshot(KEY, "print", ["a9"]) is None
    assert await store.snapshot(KEY, "print", []) is None


async def test_a_snapshot_takes_the_place_of_the_former(store: Store) -> None:
    await store.put_snapshot(KEY, SNAPSHOT)
    later, again = replace(SNAPSHOT, anchor="a8"), replace(SNAPSHOT, state=b"again")
    for _ in range(2):
        await store.put_snapshot(KEY, later, "a4")
    assert await store.snapshot(KEY, "print", ["a4"]) is None
    await store.put_snapshot(KEY, SNAPSHOT)
    await store.put_snapshot(KEY, again, "a4")
    assert await store.snapshot(KEY, "print", ["a4"]) == again
    assert await store.snapshot(KEY, "print", ["a8"]) == later


async def test_several_steps_are_remembered_as_one_by_one(store: Store) -> None:
    other = Key("tenant", "other")
    first, again = replace(RECORD, edits=(CUT,)), replace(RECORD, edits=(FOLD,), at=RECORD.at + 1)
    await store.remember([(KEY, first), (other, again), (KEY, again), (KEY, replace(first, anchor="next"))])
    assert (await store.memory(KEY, ["anchor"])).steps["anchor"] == replace(first, at=again.at)
    assert (await store.memory(KEY, ["next"])).steps["next"] == replace(first, anchor="next")
    assert (await store.memory(other, ["anchor"])).steps == {"anchor": again}
    assert (await store.newest_step(KEY)) == replace(first, at=again.at)


async def test_x9_a_conversation_has_so_many_snapshots_and_the_oldest_go(store: Store) -> None:
    for number in range(SNAPSHOTS + 2):
        await store.put_snapshot(KEY, replace(SNAPSHOT, anchor=f"a{number}"))
    there = [number for number in range(SNAPSHOTS + 2) if await store.snapshot(KEY, "print", [f"a{number}"])]
    assert there == list(range(2, SNAPSHOTS + 2))


@pytest.mark.parametrize("other", [Key("other", "conversation"), Key("tenant", "other")])
async def test_x5_x6_snapshots_belong_to_a_conversation_and_go_with_it(store: Store, other: Key) -> None:
    await store.put_snapshot(KEY, SNAPSHOT)
    assert await store.snapshot(other, "print", ["a4"]) is None
    await store.put_snapshot(other, SNAPSHOT)
    assert await store.delete(KEY) == 1
    assert await store.snapshot(KEY, "print", ["a4"]) is None
    assert await store.snapshot(other, "print", ["a4"]) == SNAPSHOT
    assert await store.sweep(1e12) == 1
    assert await store.snapshot(other, "print", ["a4"]) is None


async def test_x7_a_snapshot_is_sealed_for_its_place(tmp_path: Path, fresh: Fresh) -> None:
    url = f"sqlite:///{tmp_path}/narrows.db"
    sealed = open_store(url, patience=10, keyring=Keyring({"k": bytes(range(32))}))
    await sealed.open()
    await sealed.put_snapshot(KEY, SNAPSHOT)
    assert await sealed.snapshot(KEY, "print", ["a4"]) == SNAPSHOT
    await sealed.close()
    assert b" state " not in await asyncio.to_thread((tmp_path / "narrows.db").read_bytes)
    plain = fresh(url)
    await plain.open()
    assert (await plain.snapshot(KEY, "print", ["a4"]), plain.misses) == (None, 1)


def test_a_snapshot_has_every_field_of_the_state_and_of_its_ledger() -> None:
    held = {field.name for field in fields(PlanState)} - snapshots.OF_NEWEST_STEP - {"ledger"}
    assert held == set(snapshots.OF_STATE)
    of_a_request = {"waiting", "_price_of_new"}  # each begins it anew
    assert vars(Ledger(PRICES)).keys() == {"prices", "_sums", *of_a_request, *snapshots.OF_LEDGER}
    ledger = Ledger(PRICES)
    ledger.waiting = {1}
    ledger.arrive([1])
    assert not ledger.waiting


def test_what_a_snapshot_leaves_out_is_what_each_step_begins_anew() -> None:
    changed = PlanState(Ledger(PRICES), step=3, reason="r", use=SummaryUse(ready="x"), changed=1)
    changed.life = CacheLife(is_longer=True)
    changed.dropped = changed.has_model_text = True
    copied, names = changed.copy(), {field.name for field in fields(PlanState)} - {"ledger"}
    cleared = {name for name in names if getattr(copied, name) != getattr(changed, name)}
    assert cleared == snapshots.OF_NEWEST_STEP - {"wants", "digests"}


async def served(store: Store, turns: int) -> tuple[Bench, CachedStore]:
    """A process that has served so many requests of the session."""
    cached = on(store)
    bench = Bench(cached)
    for turn in range(turns):
        bench.send(await bench.plan(turn))
    return bench, cached


async def test_s1_a_state_comes_back_as_it_was(store: Store) -> None:
    bench, cached = await served(store, len(ENDS) - 1)
    state = (await bench.plan(len(ENDS) - 1)).plan.state
    packed = snapshots.packed(state)
    assert packed is not None
    there = snapshots.unpacked(snapshots.compressed(packed), bench.book.prices("gpt-5.4", "default"))
    assert there is not None
    assert state.edits
    for name in (*snapshots.OF_STATE, *snapshots.OF_LEDGER):
        owner = (state, there) if name in snapshots.OF_STATE else (state.ledger, there.ledger)
        assert getattr(owner[0], name) == getattr(owner[1], name), name
    await cached.close()


def damaged(state: bytes) -> list[bytes]:
    return [b"", state[:-1], b"\0" * 4 + state[4:], state[:4] + b"not zstd", state[:40] + b"\xff" + state[41:]]


def test_s1_a_snapshot_that_cannot_be_read_is_none() -> None:
    packed = snapshots.packed(PlanState(Ledger(PRICES), step=2, rent=1.5, marks=(1, 2), booked=frozenset("ab")))
    assert packed is not None
    stored = snapshots.compressed(packed)
    assert snapshots.unpacked(stored, PRICES) is not None
    assert [snapshots.unpacked(each, PRICES) for each in damaged(stored)[:4]] == [None] * 4


@pytest.mark.parametrize("change", [lambda state: state, lambda _: b"", lambda state: b"\0\0\0\0" + state[4:]])
async def test_s1_whoever_takes_over_plans_the_same_from_a_snapshot_or_without(
    store: Store, monkeypatch: pytest.MonkeyPatch, change: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setattr("proxy.memory.cached._SNAPSHOT_TOKENS", 0)
    bench, cached = await served(store, len(ENDS) - 1)
    await cached.close()
    read = snapshots.unpacked
    monkeypatch.setattr(snapshots, "unpacked", lambda state, prices: read(change(state), prices))
    alone = await bench.plan(len(ENDS) - 1)
    taker, other = await served(store, 0)
    taken_over = await taker.plan(len(ENDS) - 1)
    assert (taken_over.plan_state is not None) == (change(b"1234x") == b"1234x")
    assert taken_over.plan.edits == alone.plan.edits
    assert taken_over.rendering.messages == alone.rendering.messages
    assert taken_over.previous == alone.previous
    await other.close()


@pytest.mark.parametrize("size", [2**62, 2**32, snapshots._MOST + 1])
def test_x9_a_snapshot_that_says_it_is_huge_is_none(size: int) -> None:
    content = (
        b"\x28\xb5\x2f\xfd\xe0" + size.to_bytes(8, "little") + b"\x01\x00\x00"
    )  # RFC 8878: a frame, then one block
    assert snapshots.unpacked(snapshots._SHAPE + content, PRICES) is None
    bomb = snapshots.compressed(bytes(snapshots._MOST + 1))
    assert len(bomb) < 10_000
    assert snapshots.unpacked(bomb, PRICES) is None
