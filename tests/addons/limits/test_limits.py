"""What keys may use: counted once, refused by what is charged already, shared in Redis, and local where it is away."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from limits.storage import MemoryStorage

from proxy.addons.limits.charges import Counts
from proxy.addons.limits.limits import Admitted, LimitError, Limits, duration, rate_headers
from proxy.addons.limits.redis_windows import SharedWindows
from proxy.addons.limits.windows import LocalWindows, ParentCounts, TeamCounts, WindowUse
from proxy.config.rules import KeyRow
from proxy.memory import Purse, Store, open_store
from proxy.telemetry import Telemetry
from tests.kit.redis_servers import Park, Relay

CHAT, MESSAGES = "openai_chat", "anthropic_messages"


def row(name: str = "alice", **limits: float) -> KeyRow:
    return KeyRow.model_validate({"name": name, "sha256": "0" * 64, **limits})


async def outcome(limits: Limits, key: KeyRow) -> Admitted | LimitError:
    try:
        return await limits.admit(key, "owner", CHAT)
    except LimitError as error:
        return error


@asynccontextmanager
async def counting(
    url: str | None = None, store: str | None = None, counts: Counts | None = None, is_alone: bool = True
) -> AsyncIterator[Limits]:
    """What counts in one process; with a Redis or with a store, where these are named."""
    opened: Store | None = None
    if store is not None:
        opened = open_store(store)
        await opened.open()
    shared = SharedWindows(url, 5.0) if url is not None else None
    limits = Limits(Telemetry("error"), counts or Counts(LocalWindows()), opened, shared, is_alone)
    await limits.open()
    try:
        yield limits
    finally:
        await limits.close()
        if opened is not None:
            await opened.close()


async def settled(limits: Limits) -> None:
    """What was charged is where all see it."""
    if limits.charges.writing is not None:
        await limits.charges.writing
    assert not any((limits.counts.owed, limits.charges.sending, limits.charges.owed_tokens))


@given(st.data())
def test_x10_what_is_charged_overshoots_a_limit_by_what_is_in_flight_at_most(data: st.DataObject) -> None:
    """In whatever order requests come and replies end, no request is let in once the limit is charged, and all that is
    charged counts, however much that is."""

    async def run() -> None:
        limits, key = Limits(Telemetry("error"), Counts(LocalWindows())), row(tpm=1_000, usd_per_day=10)
        flying, tokens, dollars = list[Admitted](), 0, 0.0
        for _ in range(data.draw(st.integers(1, 30))):
            if flying and data.draw(st.booleans()):
                used, paid = data.draw(st.integers(0, 3_000)), data.draw(st.floats(0, 30))
                one = flying.pop(data.draw(st.integers(0, len(flying) - 1)))
                one.charge(used, paid)
                one.close()
                tokens, dollars = tokens + used, dollars + paid
                continue
            came = await outcome(limits, key)
            assert isinstance(came, Admitted) == (tokens < 1_000 and dollars < 10)
            if isinstance(came, Admitted):
                flying.append(came)
        assert limits.counts.windows.admit(key.name, key.rpm, key.tpm).tokens == tokens
        assert limits.counts.running.get("alice", 0) == len(flying)

    with pytest.MonkeyPatch.context() as patch:  # the tests take less than a minute, but it may begin anew meanwhile
        patch.setattr("time.time", lambda: 1e9)
        asyncio.run(run())


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("where", ["memory", "redis"])
async def test_so_many_at_once_as_the_limit_says_and_a_charge_far_beyond_it_counts(
    where: str, request: pytest.FixtureRequest
) -> None:
    key = row(f"k{uuid4().hex}", rpm=5, tpm=100)
    async with counting(request.getfixturevalue("redis_url") if where == "redis" else None) as limits:
        came = await asyncio.gather(*(outcome(limits, key) for _ in range(20)))
        assert Counter(type(each).__name__ for each in came) == {"Admitted": 5, "LimitError": 15}
        refused = next(each for each in came if isinstance(each, LimitError))
        assert 50 < int(refused.headers["Retry-After"]) <= 60
        assert {each.code for each in came if isinstance(each, LimitError)} == {"rate_limit_exceeded"}
        next(each for each in came if isinstance(each, Admitted)).charge(10_000_000, 0.0)
        await settled(limits)
        use = limits.counts.windows.admit(key.name, key.rpm, key.tpm)
        if limits._shared is not None:
            use, _ = await limits._shared.admit(key, Purse("key:k", day="2026-01-31"))
        assert use.tokens == 10_000_000


@pytest.mark.usefixtures("patient")
async def test_two_that_share_a_redis_let_through_what_one_would(redis_url: str) -> None:
    key = row(f"k{uuid4().hex}", rpm=30)
    async with counting(redis_url) as one, counting(redis_url) as other:
        came = await asyncio.gather(*(outcome(each, key) for each in (one, other) * 40))
        assert sum(isinstance(each, Admitted) for each in came) == 30


@pytest.mark.usefixtures("patient")
async def test_what_one_replica_charges_counts_for_the_other(redis_url: str) -> None:
    prefix = f"{redis_url}?prefix=t{uuid4().hex}"
    tokens, dollars = row(f"k{uuid4().hex}", tpm=100), row(f"k{uuid4().hex}", usd_per_day=2)
    async with counting(prefix, prefix, is_alone=False) as one, counting(prefix, prefix, is_alone=False) as other:
        for key, spent in ((tokens, (100, 0.0)), (dollars, (0, 2.0))):
            for each in (one, other):
                assert isinstance(await outcome(each, key), Admitted)
            one.charges.charge(key, *spent)
            await settled(one)
            refused = await outcome(other, key)
            assert isinstance(refused, LimitError)
            assert (refused.headers.get("x-should-retry") == "false") == (int(refused.headers["Retry-After"]) > 60)


async def test_redis_is_asked_once_a_request_and_a_charge_whose_answer_was_lost_counts_once(servers: Park) -> None:
    key, purse = row(rpm=100, tpm=1_000, usd_per_day=10), Purse("key:alice", day="2026-01-31")
    async with Relay(servers.server()) as relay, counting(relay.url) as limits:
        await outcome(limits, key)  # the server learns the scripts
        trips = relay.trips
        for _ in range(5):
            assert isinstance(await outcome(limits, key), Admitted)
        assert relay.trips - trips == 5
        shared = limits._shared
        assert shared is not None
        for _ in range(3):
            await shared.charge({}, [(purse, "a" * 32, 6.0)])
        assert not (await shared.admit(key, purse))[1]
        await shared.charge({}, [(purse, "b" * 32, 6.0)])
        assert (await shared.admit(key, purse))[1]


async def test_x10_without_redis_each_counts_for_itself_and_dollars_are_stored_once_it_is_back(
    servers: Park,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key, server = row(rpm=3, usd_per_day=10), servers.server()
    async with counting(server.url, server.url, is_alone=False) as limits:
        assert isinstance(await outcome(limits, key), Admitted)
        shared, questions = limits._shared, 0
        assert shared is not None

        async def admit(*question: Any) -> tuple[WindowUse, bool]:
            nonlocal questions
            questions += 1
            return await SharedWindows.admit(shared, *question)

        monkeypatch.setattr(shared, "admit", admit)
        with server.frozen():
            came = [await outcome(limits, key) for _ in range(4)]
            assert [isinstance(each, Admitted) for each in came] == [True, True, False, False]
            assert questions == 1, "only the first waits"
            assert limits._breaker.is_paused
            limits.charges.charge(key, 0, 6.0)
            await asyncio.sleep(0)
            assert limits.counts.owed
            limits.charges.write_soon()
            if limits.charges.writing is not None:
                await limits.charges.writing
        limits.counts.refusals.clear()
        limits._breaker.end_pause()
        await outcome(limits, key)
        await settled(limits)
        assert not limits.counts.owed
        store = limits.charges._store
        assert store is not None
        day = limits.charges.today()
        assert not await store.take(Purse("key:alice", day=day), 5.0, 10.0)


async def test_x10_where_redis_answers_late_two_processes_let_in_what_one_would(servers: Park) -> None:
    key, server = row(rpm=4), servers.server()
    async with Relay(server) as relay, counting(relay.url) as one, counting(relay.url) as other:
        for each in (one, other):
            assert each._shared is not None
            await each._shared.admit(row("another", rpm=9), Purse())  # the server learns the scripts
        relay.delay = 0.25
        came = [await outcome(each, key) for each in (one, other) for _ in range(4)]
        assert Counter(type(each).__name__ for each in came) == {"Admitted": 4, "LimitError": 4}
        assert {one._breaker.is_open, other._breaker.is_open} == {False}


async def test_x10_without_redis_each_process_lets_in_its_share(servers: Park) -> None:
    key, server = row(rpm=6, tpm=300), servers.server()
    async with counting(server.url) as one, counting(server.url) as other, counting(server.url) as third:
        for each in (one, other, third):
            assert each._shared is not None
            await each._shared.beat()
        with server.frozen():
            came = [[await outcome(each, key) for _ in range(6)] for each in (one, other, third)]
            admitted = [[each for each in some if isinstance(each, Admitted)] for some in came]
            assert [len(some) for some in admitted] == [2, 2, 2]
            assert admitted[0][0].headers["x-ratelimit-limit-tokens"] == "100"
            for each in (one, other, third):
                each._breaker.end_pause()
    async with counting(server.url) as last:
        assert last._shared is not None
        assert last._shared.replicas == 1, "whoever has ended is not waited for"


@pytest.mark.parametrize("is_alone", [True, False])
async def test_the_dollars_of_a_day_survive_a_restart(tmp_path: Path, is_alone: bool) -> None:
    url, key = f"sqlite:///{tmp_path / 'narrows.db'}", row(usd_per_day=3)
    for allowed in (True, True, False):
        async with counting(store=url, is_alone=is_alone) as limits:
            came = await outcome(limits, key)
            assert isinstance(came, Admitted) == allowed
            if isinstance(came, Admitted):
                came.charge(0, 1.5)
    async with counting(store=url) as limits:  # another limit, and another day
        assert isinstance(await outcome(limits, row(usd_per_day=4)), Admitted)
        limits.charges.clock = lambda: 86_400.0
        assert isinstance(await outcome(limits, key), Admitted)


async def test_a_process_that_spent_before_this_one_counts_with_what_this_one_spends(tmp_path: Path) -> None:
    url, key = f"sqlite:///{tmp_path / 'narrows.db'}", row(usd_per_day=3)
    async with counting(store=url) as limits:
        limits.charges.charge(key, 0, 2.0)
    async with counting(store=url) as limits:
        came = await outcome(limits, key)
        assert isinstance(came, Admitted)
        came.charge(0, 1.5)
        await settled(limits)
        assert isinstance(await outcome(limits, key), LimitError)


async def test_so_many_in_flight_and_whoever_leaves_makes_room() -> None:
    key = row(concurrency=2)
    async with counting() as limits:
        first, _, third = [await outcome(limits, key) for _ in range(3)]
        assert isinstance(first, Admitted)
        assert isinstance(third, LimitError)
        assert third.headers["Retry-After"] == "1"
        first.close()
        first.close()
        assert isinstance(await outcome(limits, key), Admitted)
        assert isinstance(await outcome(limits, key), LimitError)


async def silence(_: bytes) -> bytes:
    return await asyncio.get_running_loop().create_future()


async def test_x10_a_worker_whose_parent_is_silent_waits_a_second_once_and_lets_in_its_share() -> None:
    key, team = row(rpm=6, concurrency=9), TeamCounts(silence, lambda _: None, 3)
    limits = Limits(Telemetry("error"), Counts(LocalWindows()), is_alone=False, team=team)
    began = asyncio.get_running_loop().time()
    came = [await outcome(limits, key) for _ in range(4)]
    assert asyncio.get_running_loop().time() - began < 1.9
    assert [isinstance(each, Admitted) for each in came] == [True, True, False, False]


async def test_workers_count_together_and_what_one_has_in_flight_ends_with_it() -> None:
    key, counts = row(rpm=4, tpm=100, concurrency=2), ParentCounts()

    def worker(pid: int) -> Limits:
        async def ask(question: bytes) -> bytes:
            return counts.answer(pid, question)

        def tell(message: bytes) -> None:
            counts.answer(pid, message)

        return Limits(Telemetry("error"), Counts(LocalWindows()), is_alone=False, team=TeamCounts(ask, tell, 2))

    one, other = worker(1), worker(2)
    first, second, third = [await outcome(each, key) for each in (one, other, one)]
    assert isinstance(first, Admitted)
    assert isinstance(second, Admitted)
    assert isinstance(third, LimitError)
    first.close()
    assert isinstance(await outcome(other, key), Admitted)
    counts.ended(2)
    came = [await outcome(one, key) for _ in range(2)]
    assert [isinstance(each, Admitted) for each in came] == [True, False], "four in the minute"
    second.charge(100, 0.0)
    refused = await outcome(one, row(tpm=100))
    assert isinstance(refused, LimitError)
    assert refused.code == "rate_limit_exceeded"


async def test_a_reload_goes_on_where_the_counts_were() -> None:
    key = row(rpm=2, tpm=100, concurrency=9)
    async with counting() as before, counting(counts=before.counts) as after:
        first = await outcome(before, key)
        assert isinstance(first, Admitted)
        first.charge(60, 0)
        assert after.counts.windows.admit(key.name, key.rpm, key.tpm, is_wanted=False).tokens == 60
        assert isinstance(await outcome(after, key), Admitted)
        assert isinstance(await outcome(after, key), LimitError)
        assert isinstance(await outcome(after, row(rpm=3)), Admitted), "the limit was raised"
        first.close()
        assert after.counts.running == {"alice": 2}


async def test_what_is_known_is_refused_before_anything_is_asked() -> None:
    key = row(rpm=1)
    async with counting() as limits:
        limits.check(key, CHAT)
        await outcome(limits, key)
        limits.check(key, CHAT)
        await outcome(limits, key)
        with pytest.raises(LimitError):
            limits.check(key, CHAT)
        limits.charges.clock = lambda: 1e11
        limits.check(key, CHAT)


async def test_summaries_are_charged_to_the_key_of_their_owner() -> None:
    key = row(tpm=100)
    async with counting() as limits:
        limits.charge_owner("owner", 1_000, 0)
        assert isinstance(await outcome(limits, key), Admitted)
        limits.charge_owner("owner", 1_000, 0)
        assert isinstance(await outcome(limits, key), LimitError)


def test_what_no_longer_counts_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1e9
    monkeypatch.setattr("time.time", lambda: now)
    windows = LocalWindows()
    for number in range(600):
        now += 1
        windows.admit(f"key{number}", 5, 9)
        windows.charge(f"key{number}", 5)
    assert len(windows._uses) <= 3 * 60
    for _ in range(600):
        now += 1
        windows.admit("alice", 1_000, None)
    assert len(windows._uses["alice"].requests) <= 61


@given(st.integers(1, 12), st.integers(1, 300), st.lists(st.tuples(st.floats(0, 50), st.integers(0, 90)), max_size=40))
def test_memory_counts_as_the_library_does(rpm: int, tpm: int, requests: list[tuple[float, int]]) -> None:
    """Requests that come after pauses, each with the tokens of its reply."""
    now = 1e9 + random.random() * 60
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.time", lambda: now)
        windows, storage, key = LocalWindows(), MemoryStorage(), row(rpm=rpm, tpm=tpm)
        for pause, tokens in requests:
            now += pause
            before, before_left, current, _ = storage.get_sliding_window("tokens", 60)
            used = int(before * before_left / 60 + current)
            is_within = used < tpm and storage.acquire_entry("requests", rpm, 60)
            use = windows.admit(key.name, key.rpm, key.tpm)
            assert (use.is_within, use.tokens) == (is_within, used)
            if tokens and is_within:
                windows.charge("alice", tokens)
                storage.acquire_sliding_window_entry("tokens", 2**53, 60, tokens)
            oldest, count = storage.get_moving_window("requests", rpm, 60)
            assert use.requests == count
            assert not count or use.request_wait == pytest.approx(oldest + 60 - now)
        storage.timer.cancel()


def test_the_counters_of_a_key_are_in_one_slot_of_a_cluster() -> None:
    counters = SharedWindows("redis+cluster://127.0.0.1:7000?prefix=p", 0.1)._counters("alice")
    assert [name.partition("}")[0] for name in counters] == ["p:limits:{alice"] * 2


@given(st.floats(0, 200_000, allow_nan=False))
def test_durations_read_as_those_of_openai(seconds: float) -> None:
    text = duration(seconds)
    if text.endswith("ms"):
        value = int(text[:-2]) / 1000
    else:
        minutes, _, rest = text[:-1].rpartition("m")
        value = 60 * int(minutes or 0) + float(rest)
        assert not minutes or float(rest) < 60
    assert 0 <= value - seconds < 0.0011


def test_headers_are_in_the_words_of_each_api() -> None:
    key, use = row(rpm=60, tpm=1_000), WindowUse(True, 60, 1.5, 400, 0, 90)
    assert rate_headers(CHAT, key, use, 0.0) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "1.5s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "600",
        "x-ratelimit-reset-tokens": "1m30s",
    }
    assert rate_headers(MESSAGES, row(rpm=60), use, 0.0) == {
        "anthropic-ratelimit-requests-limit": "60",
        "anthropic-ratelimit-requests-remaining": "0",
        "anthropic-ratelimit-requests-reset": "1970-01-01T00:00:02Z",
    }


@given(st.integers(1, 500), st.lists(st.tuples(st.floats(0, 40), st.integers(1, 800)), min_size=1, max_size=12))
def test_whoever_waits_as_long_as_it_is_told_finds_tokens_free(limit: int, charges: list[tuple[float, int]]) -> None:
    """By the library's own count, at the moment that the wait ends and not much before."""
    now = 1e9 + random.random() * 60
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.time", lambda: now)
        windows, key = LocalWindows(), row(tpm=limit)
        for pause, tokens in charges:
            now += pause
            windows.charge("alice", tokens)
        wait = windows.admit(key.name, key.rpm, key.tpm).token_wait
        if wait > 0.01:
            now += wait - 0.005
            assert windows.admit(key.name, key.rpm, key.tpm).tokens >= limit
            now += 0.01
        assert windows.admit(key.name, key.rpm, key.tpm).tokens < limit or wait == 0.0


@pytest.mark.parametrize("where", ["here", "shared"])
@pytest.mark.parametrize(
    ("limits", "admitted"),
    [({"rpm": 1}, 0), ({"tpm": 1}, 0), ({"rpm": 3}, 2), ({"concurrency": 1}, 4), ({}, 4)],
    ids=str,
)
async def test_of_a_share_of_a_limit_nothing_is_told(
    where: str, limits: dict[str, float], admitted: int, redis_url: str
) -> None:
    async with counting(f"{redis_url}?prefix={uuid4().hex}" if where == "shared" else None) as counted:
        key, refused = row(**limits), 0
        for _ in range(4):
            try:
                one = await counted.admit(key, "owner", CHAT, 0.8)
            except LimitError:
                refused += 1
            else:
                assert (one is None) == (not limits)
                if one is not None:
                    one.close()
        assert refused == 4 - admitted
        families = {family.name: family for family in counted._telemetry.metrics.collect()}
        assert not [each for each in families["narrows_refused"].samples if each.value]
        assert (counted.counts.refusals, counted.counts.running) == ({}, {})
        assert not limits or isinstance(await outcome(counted, key), Admitted)


@pytest.mark.parametrize("skew", [90.0, -90.0])
async def test_replicas_whose_clocks_are_apart_count_the_same_minute(redis_url: str, skew: float) -> None:
    url, key = f"{redis_url}?prefix={uuid4().hex}", row(rpm=4)
    one, other = (SharedWindows(url, 5.0, lambda ahead=ahead: time.time() + ahead) for ahead in (skew, 0.0))
    for shared in (one, other):
        await shared.open()
        await shared.beat()
    await one.beat()
    assert (one.replicas, other.replicas) == (2, 2)
    admitted = [(await (one, other)[at % 2].admit(key, Purse()))[0] for at in range(4)]
    assert [use.is_within for use in admitted] == [True] * 4
    for shared in (one, other):
        refused, _ = await shared.admit(key, Purse())
        assert (refused.is_within, refused.requests) == (False, 4)
        assert refused.request_wait <= 60
        await shared.close()
