"""The queue behind the requests, the store that is asked with patience, and what a deletion forgets."""

import asyncio
import io
import json
from collections.abc import Awaitable, Callable

import pytest

from proxy.memory import Key, Store, StoreTrouble
from proxy.memory.breaker import GuardedStore
from proxy.memory.cached import PendingWrite, WriteBehindQueue
from proxy.memory.forgetting import ForgetRegistry
from proxy.memory.sqlite.store import SqliteStore
from proxy.telemetry import Telemetry

KEY, OTHER, THEIRS = Key("t", "c"), Key("t", "d"), Key("u", "c")


@pytest.fixture
def log() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def telemetry(log: io.StringIO) -> Telemetry:
    return Telemetry("info", "json", log)


class Writes:
    """What was written, by number; a number fails as often as `failures` says."""

    def __init__(self, failures: dict[int, int] | None = None) -> None:
        self.done: list[int] = []
        self.failures = failures or {}

    def number(self, number: int) -> Callable[[PendingWrite], Awaitable[None]]:
        async def write(_: PendingWrite) -> None:
            if self.failures.get(number, 0) > 0:
                self.failures[number] -= 1
                raise StoreTrouble("not now")
            self.done.append(number)

        return write


@pytest.mark.parametrize(("tries", "failures", "done"), [(2, 1, [0, 1, 2]), (2, 2, [0, 2]), (None, 9, [0, 1, 2])])
async def test_f_writes_keep_their_order_and_are_given_up_after_so_many_tries(
    telemetry: Telemetry,
    log: io.StringIO,
    monkeypatch: pytest.MonkeyPatch,
    tries: int | None,
    failures: int,
    done: list[int],
) -> None:
    monkeypatch.setattr("proxy.memory.cached._PAUSE", 0.0)
    writes, given_up = Writes({1: failures}), list[int]()
    queue = WriteBehindQueue(telemetry, limit=10, tries=tries)
    for number in range(3):
        assert queue.put(PendingWrite(KEY, writes.number(number), on_give_up=lambda: given_up.append(1)))
    assert (await queue.close(), writes.done) == (0, done)
    assert given_up == ([] if 1 in done else [1])
    events = [json.loads(line)["event"] for line in log.getvalue().splitlines()]
    assert events == (["write_trouble"] if failures > 1 else [])
    assert not queue.put(PendingWrite(KEY, writes.number(3)))


async def test_x9_what_waits_is_bounded_in_number_and_size_but_one_always_fits(telemetry: Telemetry) -> None:
    writes = Writes()
    queue = WriteBehindQueue(telemetry, limit=2, size_limit=10)
    sizes = (100, 1)
    assert [queue.put(PendingWrite(KEY, writes.number(size), size)) for size in sizes] == [True, False]
    assert await queue.close() == 0
    queue = WriteBehindQueue(telemetry, limit=2)
    assert [queue.put(PendingWrite(KEY, writes.number(number))) for number in range(3)] == [True, True, False]
    assert (await queue.close(), writes.done) == (0, [100, 0, 1])


async def test_x6_what_is_forgotten_is_not_written(telemetry: Telemetry) -> None:
    writes = Writes()
    queue = WriteBehindQueue(telemetry, limit=10)
    for number, key in enumerate((KEY, OTHER, THEIRS)):
        queue.put(PendingWrite(key, writes.number(number)))
    queue.forget("t", "c")
    assert (await queue.close(), writes.done) == (0, [1, 2])


async def test_f_writes_of_a_kind_are_made_together_in_their_order_and_with_pauses(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.memory.cached._PAUSE", 0.0)
    monkeypatch.setattr("proxy.memory.cached._TOGETHER", 3)
    writes, fails = Writes(), [True]
    rows: list[list[object]] = []

    async def together(row: list[PendingWrite]) -> None:
        if fails and fails.pop():
            raise StoreTrouble("not now")
        rows.append([pending.record for pending in row])
        writes.done.append(-1)

    queue = WriteBehindQueue(telemetry, limit=20, tries=None, interval=60.0)
    for number in range(7):
        queue.put(PendingWrite(OTHER if number == 1 else KEY, together, record=number, together=True))
        if number == 4:
            queue.put(PendingWrite(KEY, writes.number(4)))
    queue.forget("t", "d")
    assert (await queue.close(), rows, writes.done) == (0, [[0, 2], [3, 4], [5, 6]], [-1, -1, 4, -1])


async def test_f_of_writes_of_one_name_only_the_newest_is_made_but_none_that_has_begun(telemetry: Telemetry) -> None:
    made, going_on = list[object](), asyncio.Event()

    async def write(pending: PendingWrite) -> None:
        made.append(pending.record)
        await going_on.wait()

    queue = WriteBehindQueue(telemetry, limit=10)
    for record in (0, 1):
        queue.put(PendingWrite(KEY, write, record=record, name="digest"))
    await asyncio.sleep(0)
    assert made == [1]
    for key, record, name in [(KEY, 2, "digest"), (KEY, 3, "digest"), (OTHER, 4, "digest"), (KEY, 5, ""), (KEY, 6, "")]:
        queue.put(PendingWrite(key, write, record=record, name=name))
    going_on.set()
    assert await queue.close() == 0
    assert made == [1, 3, 4, 5, 6]


async def test_f_all_that_waits_at_the_end_of_an_interval_is_written(telemetry: Telemetry) -> None:
    """However the kinds of writes alternate: else many requests would fill the queue."""
    writes, queue = Writes(), WriteBehindQueue(telemetry, limit=20, tries=None, interval=60.0)
    for number in range(5):
        queue.put(PendingWrite(KEY, writes.number(number)))
    await asyncio.sleep(0.01)
    assert writes.done == [0, 1, 2, 3, 4]
    queue.put(PendingWrite(KEY, writes.number(5)))
    await asyncio.sleep(0.01)
    assert writes.done == [0, 1, 2, 3, 4]
    assert (await queue.close(), writes.done) == (0, [0, 1, 2, 3, 4, 5])


async def test_s1_what_another_process_is_to_read_is_written_at_once_and_no_request_waits_for_a_late_write(
    telemetry: Telemetry,
) -> None:
    writes, going_on = Writes(), asyncio.Event()

    async def hangs(_: PendingWrite) -> None:
        await going_on.wait()

    queue = WriteBehindQueue(telemetry, limit=20, tries=None, interval=60.0)
    queue.put(PendingWrite(OTHER, writes.number(0)))
    await asyncio.sleep(0.01)  # from now on writes are made in a minute
    queue.put(PendingWrite(KEY, writes.number(1), record="decided"))
    queue.put(PendingWrite(KEY, writes.number(2)))
    async with asyncio.timeout(5):
        await asyncio.gather(queue.settle(KEY, 30), queue.settle(KEY, 30))
        assert writes.done[:2] == [0, 1]
        queue.put(PendingWrite(KEY, hangs, record="decided"))
        await queue.settle(OTHER, 30)
        await queue.settle(KEY, 0.05)
        await queue.settle(KEY, 30)  # at once
        going_on.set()
        queue.put(PendingWrite(KEY, writes.number(3), record="decided"))
        await asyncio.sleep(0.01)
        await queue.settle(KEY, 30)
    assert writes.done == [0, 1, 2, 3]
    assert await queue.close() == 0


async def test_f_closing_tries_once_more_what_is_paused_and_counts_what_is_lost(telemetry: Telemetry) -> None:
    writes = Writes({0: 1, 1: 99})
    queue = WriteBehindQueue(telemetry, limit=10, tries=None)
    for number in range(3):
        queue.put(PendingWrite(KEY, writes.number(number)))
    await asyncio.sleep(0.01)
    assert (await queue.close(), writes.done) == (2, [0])


def test_x6_one_registry_reaches_whoever_registered() -> None:
    forgets, calls = ForgetRegistry(), list[tuple[str, str | None]]()
    for _ in range(2):
        forgets.register(lambda tenant, conversation: calls.append((tenant, conversation)))
    forgets.forget("t", "c")
    forgets.forget("t")
    assert calls == [("t", "c"), ("t", "c"), ("t", None), ("t", None)]


async def test_f_a_store_in_trouble_is_left_alone_and_each_change_is_logged_once(
    telemetry: Telemetry, log: io.StringIO
) -> None:
    asked: list[int] = []

    async def slow(_: Store) -> int:
        asked.append(1)
        await asyncio.sleep(5)
        return 0

    async def quick(_: Store) -> int:
        asked.append(1)
        return 7

    guarded = GuardedStore(SqliteStore(), telemetry, "store")
    for _ in range(3):
        with pytest.raises(StoreTrouble):
            await guarded.ask("memory", slow, 0.01)
    assert (len(asked), guarded.is_paused) == (1, True)
    guarded.end_pause()
    assert [await guarded.ask("memory", quick, 0.5) for _ in range(2)] == [7, 7]
    assert [json.loads(line)["event"] for line in log.getvalue().splitlines()] == ["store_trouble", "store_recovered"]


async def test_f_a_late_answer_is_waited_for_once_and_is_no_trouble(telemetry: Telemetry, log: io.StringIO) -> None:
    """A busy disk: one answer in twenty is late. Nobody else waits meanwhile, and the store is asked again after it."""
    store = GuardedStore(SqliteStore(), telemetry, "store")
    answered = asyncio.Event()

    async def late(_: Store) -> int:
        await answered.wait()
        return 1

    async def soon(_: Store) -> int:
        return 2

    for _ in range(5):
        answered.clear()
        with pytest.raises(StoreTrouble, match="late"):
            await store.ask("memory", late, 30, patience=0.001)
        with pytest.raises(StoreTrouble, match="left alone"):
            await store.ask("memory", soon, 30, patience=30)
        assert await store.ask("remember", soon, 30) == 2  # what is written behind requests has no such hurry
        answered.set()
        for _ in range(5):
            await asyncio.sleep(0)
        for _ in range(19):
            assert await store.ask("memory", soon, 30, patience=30) == 2
    assert log.getvalue() == ""


async def test_f_a_store_that_is_late_again_and_again_is_left_alone(telemetry: Telemetry, log: io.StringIO) -> None:
    store, asked = GuardedStore(SqliteStore(), telemetry, "store"), 0

    for _ in range(10):
        answered = asyncio.Event()

        async def late(_: Store, answered: asyncio.Event = answered) -> bool:
            nonlocal asked
            asked += 1
            return await answered.wait()

        with pytest.raises(StoreTrouble):
            await store.ask("memory", late, 30, patience=0.001)
        answered.set()
        for _ in range(5):
            await asyncio.sleep(0)
    assert asked == 4
    assert store.is_paused
    assert [json.loads(line)["event"] for line in log.getvalue().splitlines()] == ["store_trouble"]
