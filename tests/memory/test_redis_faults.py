"""F for Redis: whatever befalls a real server, requests are served, and the bytes sent are those of a healthy one."""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from proxy.app import App
from proxy.memory import Store, StoreTrouble, open_store
from tests.kit.pausing import pause_breakers
from tests.kit.redis_servers import Park, Relay, Server, free_ports, saying
from tests.kit.stage import Exchange, Stage, ends
from tests.memory.test_store import (
    KEY,
    RECORD,
    Fresh,
    stores_made,  # noqa: F401 - a fixture
)
from tests.memory.test_store_faults import SESSION, Counted, healthy, served_as_ever

HALF = len(ends(SESSION)) // 2
PATIENCE = 0.3
"""More than in earnest: the machine that runs the tests may be busy."""
Break = Callable[[Server], AbstractContextManager[None]]


# --- what befalls a server ---


@contextmanager
def killed(server: Server) -> Iterator[None]:
    server.kill()
    yield
    server.start()


@contextmanager
def frozen(server: Server) -> Iterator[None]:
    with server.frozen():
        yield


@contextmanager
def paused(server: Server) -> Iterator[None]:
    """For writes alone, so that it can be ended."""
    server.do("CLIENT PAUSE", 60_000, "WRITE")
    yield
    server.do("CLIENT UNPAUSE")


@contextmanager
def read_only(server: Server) -> Iterator[None]:
    server.do("REPLICAOF", "127.0.0.1", free_ports(1)[0])
    yield
    server.do("REPLICAOF", "NO", "ONE")


@contextmanager
def full(server: Server) -> Iterator[None]:
    server.do("CONFIG SET", "maxmemory", 1)
    yield
    server.do("CONFIG SET", "maxmemory", 0)


@contextmanager
def locked(server: Server) -> Iterator[None]:
    server.do("CONFIG SET", "requirepass", "hunter2")
    server.do("CLIENT KILL", "TYPE", "normal", password="hunter2")
    yield
    server.do("CONFIG SET", "requirepass", "", password="hunter2")


@contextmanager
def without_replicas(server: Server) -> Iterator[None]:
    server.do("CONFIG SET", "min-replicas-to-write", 1)
    yield
    server.do("CONFIG SET", "min-replicas-to-write", 0)


BROKEN: Mapping[str, tuple[Break, str]] = {
    "killed": (killed, "cannot be reached"),
    "frozen": (frozen, "in time"),
    "paused": (paused, "in time"),
    "read-only": (read_only, "read-only replica"),
    "full": (full, "maxmemory"),
    "locked": (locked, "password"),
    "without replicas": (without_replicas, "fewer replicas"),
}
broken = pytest.mark.parametrize(("fault", "advice"), BROKEN.values(), ids=list(BROKEN))

ANSWERS: Mapping[str, tuple[bytes, str]] = {
    "loading": (b"-LOADING Redis is loading the dataset in memory\r\n", "still loading"),
    "crowded": (b"-ERR max number of clients reached\r\n", "maxclients"),
    "misconf": (b"-MISCONF Errors writing to the AOF file: No space left on device\r\n", "disk"),
    "wrong password": (b"-WRONGPASS invalid username-password pair or user is disabled.\r\n", "password"),
    "not allowed": (b"-NOPERM User default has no permissions to run the 'evalsha' command\r\n", "allow it"),
    "without primary": (b"-MASTERDOWN Link with MASTER is down\r\n", "failing over"),
    "cluster down": (b"-CLUSTERDOWN The cluster is down\r\n", "failing over"),
    "unknown": (b"-ERR unknown command 'SET', with args beginning with: 'secret text'\r\n", "it failed"),
    "no Redis": (b"HTTP/1.1 400 Bad Request\r\n\r\n", "store unix:"),
    "nothing": (b"", "in time"),
}


# --- what is asked and told ---


class Log:
    """What the program has told of its store."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd
        self._lines: list[dict[str, Any]] = []

    @property
    def lines(self) -> list[dict[str, Any]]:
        told = map(json.loads, self._capfd.readouterr().err.splitlines())
        self._lines += [line for line in told if line["event"].startswith("store")]
        return self._lines

    @property
    def events(self) -> list[str]:
        return [line["event"] for line in self.lines]


@pytest.fixture(name="log")
def told(capfd: pytest.CaptureFixture[str]) -> Log:
    return Log(capfd)


@pytest.fixture(name="counted")
def stores_counted(monkeypatch: pytest.MonkeyPatch) -> list[Counted]:
    """Every store that is opened from now on, and how often it was asked."""
    made: list[Counted] = []

    def opened(url: str, patience: float | None = None, **more: Any) -> Store:
        if patience is not None:  # the connection that no request waits for
            return open_store(url, patience=patience, **more)
        made.append(Counted(open_store(url, patience=PATIENCE, **more)))
        return made[-1]

    monkeypatch.setattr("proxy.memory.opening.open_store", opened)
    monkeypatch.setattr("proxy.memory.cached._PATIENCE", 2 * PATIENCE)  # the store says first what is wrong
    pause_breakers(monkeypatch, "store", 60.0)  # longer than any test takes
    monkeypatch.setattr("proxy.memory.cached._PAUSE", 60.0)
    return made


@pytest.fixture(name="hurried")
def stores_tried_soon(counted: list[Counted], monkeypatch: pytest.MonkeyPatch) -> None:
    """A store in trouble is tried again soon."""
    pause_breakers(monkeypatch, "store", 0.2)
    monkeypatch.setattr("proxy.memory.cached._PAUSE", 0.2)


@dataclass
class Case:
    """A Narrows on a store, and the session that is led through it."""

    stage: Stage
    url: str
    log: Log
    app: App
    expected: Sequence[bytes]
    strangers: int = 0

    async def half(self, second: bool = False) -> list[Exchange]:
        some = ends(SESSION)[HALF:] if second else ends(SESSION)[:HALF]
        grown = [await self.stage.ask(self.app, SESSION[:end]) for end in some]
        await asyncio.sleep(0.05)  # what is written behind the requests
        return grown

    async def others(self, count: int = 20) -> None:
        """Conversations that nobody knows yet."""
        for _ in range(count):
            self.strangers += 1
            asked = [{"role": "user", "content": f"another conversation {self.strangers}"}]
            assert (await self.stage.ask(self.app, asked)).status == 200

    async def restarted(self) -> Exchange:
        """The last request of the session, through a Narrows that has just been started on the same store."""
        return await self.stage.ask(await self.stage.start(store=self.url), SESSION[:-1])

    async def until(self, event: str) -> None:
        """Ask until it is told."""
        async with asyncio.timeout(20):
            while self.log.events[-1:] != [event]:
                await self.others(1)
                await asyncio.sleep(0.05)


@pytest.fixture(name="begin")
def beginning(stage: Stage, log: Log) -> Callable[[str], Any]:
    """Start Narrows on a store."""

    async def case(url: str) -> Case:
        expected = await healthy(stage)
        app = await stage.start(store=url, log_level="info", log_format="json")
        return Case(stage, url, log, app, expected)

    return case


Begin = Callable[[str], Any]


# --- through the whole program ---


@broken
async def test_f_a_fault_while_it_serves(
    servers: Park, begin: Begin, counted: list[Counted], fault: Break, advice: str
) -> None:
    server = servers.server()
    case = await begin(server.url)
    grown = await case.half()
    with fault(server):
        asked = len(counted[-1].asked)
        grown += await case.half(second=True)
        await case.others()
        assert len(counted[-1].asked) - asked <= 3
        assert (await case.restarted()).sent == grown[-1].sent
    served_as_ever(grown, case.expected)
    assert case.log.events == ["store_trouble"]
    assert advice in case.log.lines[0]["error"]


@broken
async def test_f_a_fault_at_start_that_passes(
    servers: Park, begin: Begin, hurried: None, fault: Break, advice: str
) -> None:
    server = servers.server()
    with fault(server):
        case = await begin(server.url)
        grown = await case.half()
        assert advice in case.log.lines[0]["error"]
        assert set(case.log.events) == {"store_unavailable", "store_trouble"}
        assert case.log.events.count("store_trouble") == 1
    await case.until("store_recovered")
    grown += await case.half(second=True)
    served_as_ever(grown, case.expected)
    assert case.log.events[-2:] == ["store_trouble", "store_recovered"]
    await case.app.close(1)
    again = await case.restarted()
    assert (again.sent, again.prefix) == (grown[-1].sent, grown[-1].prefix)


@pytest.mark.parametrize("answer", ["loading", "crowded", "misconf", "no Redis"])
async def test_f_a_server_that_only_says_no(servers: Park, begin: Begin, counted: list[Counted], answer: str) -> None:
    async with saying(servers.folder, ANSWERS[answer][0]) as url:
        case = await begin(url)
        grown = await case.half() + await case.half(second=True)
        await case.others()
    served_as_ever(grown, case.expected)
    assert len(counted[-1].asked) <= 3
    assert case.log.events.count("store_trouble") == 1


async def test_f_answers_that_come_two_seconds_late(servers: Park, begin: Begin, counted: list[Counted]) -> None:
    async with Relay(servers.server()) as relay:
        case = await begin(relay.url)
        grown = await case.half()
        relay.delay = 2
        asked = len(counted[-1].asked)
        grown += await case.half(second=True)
        await case.others()
        assert len(counted[-1].asked) - asked <= 3
        assert case.log.events == ["store_trouble"]
        await case.app.close(0)
    served_as_ever(grown, case.expected)


async def test_f_a_server_that_evicts_what_it_was_given(servers: Park, begin: Begin, patient: None) -> None:
    server = servers.server("--maxmemory-policy", "allkeys-random")
    case = await begin(server.url)
    grown = await case.half()
    server.do("CONFIG SET", "maxmemory", server.do("INFO", "memory")["used_memory"] + 50_000)
    await case.others(40)
    grown += await case.half(second=True)
    for _ in range(10):  # what else the server needs memory for is its own affair
        await case.others(40)
        if server.do("INFO", "stats")["evicted_keys"]:
            break
    assert server.do("INFO", "stats")["evicted_keys"] > 0
    assert (await case.restarted()).sent == grown[-1].sent
    served_as_ever(grown, case.expected)


async def test_f_a_wiped_server_costs_no_prompt_cache(servers: Park, begin: Begin, patient: None) -> None:
    server = servers.server()
    case = await begin(server.url)
    grown = await case.half()
    server.do("FLUSHALL")
    server.do("SCRIPT FLUSH")
    grown += await case.half(second=True)
    server.do("FLUSHALL")
    again = await case.restarted()
    served_as_ever(grown, case.expected)
    assert again.sent == grown[-1].sent
    assert case.log.events == []


# --- the store by itself ---


@pytest.mark.parametrize(("answer", "advice"), ANSWERS.values(), ids=list(ANSWERS))
async def test_f_what_a_server_says_is_trouble_that_says_what_to_do(
    servers: Park, fresh: Fresh, answer: bytes, advice: str
) -> None:
    async with saying(servers.folder, answer) as url:
        store = fresh(url, patience=PATIENCE)
        with pytest.raises(StoreTrouble, match=advice) as raised:
            await store.open()
        assert "secret text" not in str(raised.value)
        with pytest.raises(StoreTrouble, match=advice):
            await store.memory(KEY, ["anchor"])
        assert not await store.ready()
        await store.close()


@broken
async def test_f_many_at_once_are_all_told_and_then_it_works_again(
    servers: Park, fresh: Fresh, fault: Break, advice: str
) -> None:
    server = servers.server()
    store = fresh(server.url, patience=PATIENCE)
    await store.open()
    with fault(server):
        async with asyncio.timeout(30):
            outcomes = await asyncio.gather(
                *(store.remember([(KEY, RECORD)]) for _ in range(200)), return_exceptions=True
            )
        assert {type(outcome) for outcome in outcomes} == {StoreTrouble}
        assert any(advice in str(outcome) for outcome in outcomes)
        with pytest.raises(StoreTrouble):  # what can only be read is not taken for sound
            await store.memory(KEY, ["unknown"])
        assert not await store.ready()
    async with asyncio.timeout(30):
        await until_ready(store)
        while (await asyncio.gather(store.claim(KEY, RECORD), return_exceptions=True)) != [RECORD]:
            await until_ready(store)  # the machine may be busy still
    await store.close()


async def test_f_a_user_may_have_to_be_allowed_more(servers: Park, fresh: Fresh) -> None:
    server = servers.server()
    server.do("ACL SETUSER", "me", "on", ">p@ss", "~narrows:*", "+@read")
    store = fresh(server.url.replace("unix://", "unix://me:p%40ss@"))
    with pytest.raises(StoreTrouble, match=r"\+@read \+@write \+@scripting") as raised:
        await store.open()
    assert "p@ss" not in str(raised.value)
    server.do("ACL SETUSER", "me", "+@write", "+@scripting")
    await store.open()
    assert await store.claim(KEY, RECORD) == RECORD
    assert await store.delete_tenant(KEY.tenant) == 1
    await store.close()


async def until_ready(store: Store) -> None:
    while not await store.ready():  # noqa: ASYNC110 - it looks for itself
        await asyncio.sleep(0.05)


async def test_f_callers_who_leave_in_the_middle_leave_the_connections_in_step(servers: Park, fresh: Fresh) -> None:
    """Nobody gets the answer to another's question."""
    async with Relay(servers.server()) as relay:
        store = fresh(relay.url)
        await store.open()
        steps = [replace(RECORD, anchor=f"a{i}", reason=str(i)) for i in range(60)]
        await asyncio.gather(*(store.remember([(KEY, step)]) for step in steps))
        relay.delay = 0.02
        for hurry in (0.0, 0.01, 0.021):
            asked = [asyncio.create_task(store.memory(KEY, [step.anchor])) for step in steps]
            await asyncio.sleep(hurry)
            for task in asked[::2]:
                task.cancel()
            found = await asyncio.gather(*asked, return_exceptions=True)
            assert [memory.steps for memory in found[1::2]] == [{step.anchor: step} for step in steps[1::2]]  # type: ignore[union-attr]
        await store.close()
