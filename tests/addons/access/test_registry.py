"""Keys of the store: added and revoked while several Narrows serve, and the store away."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from proxy.addons.access.addon import KeyRegistry
from proxy.addons.access.keys import digest_of, new_key
from proxy.config import ConfigurationError, KeyRow, Settings
from proxy.memory import Store, StoreTrouble, open_store
from proxy.memory.breaker import GuardedStore
from proxy.telemetry import Telemetry
from tests.addons.access.test_gate import ask, bearer, keys
from tests.kit.redis_servers import Server
from tests.kit.running import Running, Start
from tests.kit.upstream import Asked, chunk, delta, event, stream_head

CAROL = new_key()


def row_of(key: str, name: str = "carol") -> KeyRow:
    return KeyRow(name=name, sha256=digest_of(key))


@pytest.fixture
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is asked so often that no test waits for long."""
    monkeypatch.setattr("proxy.addons.access.addon._POLL", 0.05)
    monkeypatch.setattr("proxy.addons.access.addon._SPACING", 0.01)


@pytest.fixture(params=["sqlite", "redis"])
async def shared(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[str, Store]]:
    """A store, and its URL."""
    url = f"sqlite:///{tmp_path}/narrows.db"
    if request.param == "redis":
        url = f"{request.getfixturevalue('redis_url')}?prefix={uuid4().hex}"
    store = open_store(url, patience=10)
    await store.open()
    yield url, store
    await store.close()


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(500):
        if await holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never held")


async def status(setup: Running, key: str) -> int:
    return (await ask(setup, bearer(key)))[0]


@pytest.mark.usefixtures("_hurried")
async def test_what_is_added_counts_at_once_and_what_is_revoked_soon_at_every_replica(
    narrows: Start, shared: tuple[str, Store]
) -> None:
    url, store = shared
    finish = asyncio.Event()

    async def slowly(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(stream_head() + chunk(event(delta("a"))))
        await finish.wait()
        writer.write(chunk(event(delta("b")) + b"data: [DONE]\n\n") + chunk(b""))

    one = await narrows(slowly, auth="keys", keys=keys(alice={}), store=url)
    other = await narrows(auth="keys", keys=keys(alice={}), store=url)
    assert await status(other, CAROL) == 401
    second = new_key()
    assert await store.add_key(row_of(second, "dave"))
    assert await status(other, second) == 200
    assert await store.add_key(row_of(CAROL))
    await until(lambda: _is(other, CAROL, 200))
    async with one.client.post(one.url + "/chat/completions", json={}, headers=bearer(CAROL)) as reply:
        assert (reply.status, bool(await reply.content.readany())) == (200, True)
        await store.delete_key("carol")
        for setup in (one, other):
            await until(lambda setup=setup: _is(setup, CAROL, 401))  # type: ignore[misc]
        finish.set()
        assert (await reply.read()).endswith(b"data: [DONE]\n\n")
    assert await status(other, second) == 200


async def _is(setup: Running, key: str, wanted: int) -> bool:
    async with setup.client.get(setup.url + "/models", headers=bearer(key)) as reply:
        return reply.status == wanted


async def test_a_row_of_the_file_counts_before_one_of_the_store(narrows: Start, shared: tuple[str, Store]) -> None:
    url, store = shared
    assert await store.add_key(row_of(CAROL, "alice"))
    setup = await narrows(auth="keys", keys=keys(alice={}), store=url)
    assert await status(setup, CAROL) == 401


async def test_t9_keys_of_the_store_count_where_nothing_else_needs_one(
    narrows: Start, shared: tuple[str, Store]
) -> None:
    url, store = shared
    assert await store.add_key(row_of(CAROL))
    setup = await narrows(auth="keys", store=url, mode="off", real=True)
    assert [await status(setup, CAROL), await status(setup, new_key())] == [200, 401]


@pytest.mark.usefixtures("_hurried")
async def test_f_while_the_store_is_away_known_keys_count_and_others_are_told_to_ask_again(
    narrows: Start, tmp_path: Path
) -> None:
    server = Server(tmp_path / "redis")
    server.start()
    try:
        store = open_store(server.url, patience=10)
        await store.open()
        await store.add_key(row_of(CAROL))
        await store.close()
        setup = await narrows(auth="keys", store=server.url)
        assert await status(setup, CAROL) == 200
        server.kill()
        made_up = new_key()
        code, head, error = await ask(setup, bearer(made_up))
        assert (code, error["code"], head["Retry-After"]) == (503, "keys_unavailable", "5")
        assert [await status(setup, CAROL), await status(setup, CAROL[:-1])] == [200, 401]
        with pytest.raises(ConfigurationError, match="its keys would be forgotten"):
            await setup.app.reload(setup.app.settings)
        assert await status(setup, CAROL) == 200
    finally:
        server.kill()


class _Counting:
    """A store that says nothing but what keys it has, and how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.rows: list[KeyRow] = []
        self.away = False

    async def key_rows(self, unless: str = "") -> Any:
        self.asked += 1
        if self.away:
            raise StoreTrouble("away")
        return str(self.asked), list(self.rows)


async def test_x9_however_many_unknown_keys_are_tried_the_store_is_asked_few_times() -> None:
    counting: Any = _Counting()
    registry = KeyRegistry(Settings(auth="keys"), GuardedStore(counting, Telemetry("critical"), "keys_store"))
    await registry.open()
    try:
        tried = [digest_of(new_key()) for _ in range(1_000)]
        found = await asyncio.gather(*map(registry.look_up, tried), *map(registry.look_up, tried))
        assert (set(found), counting.asked) == ({None}, 2)
        counting.rows.append(row_of(CAROL))
        assert await asyncio.gather(*map(registry.look_up, tried)) == [None] * 1_000
        assert counting.asked == 2, "what was unknown a moment ago is not asked for again"
        assert await registry.look_up(digest_of(CAROL)) == row_of(CAROL)
        assert (registry.find(digest_of(CAROL)), counting.asked) == (row_of(CAROL), 3)
    finally:
        await registry.close()


async def test_x9_whatever_goes_wrong_once_keys_are_followed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.addons.access.addon._POLL", 0.01)
    troubles = list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: troubles.append(fault))
    counting: Any = _Counting()
    registry = KeyRegistry(Settings(auth="keys"), GuardedStore(counting, Telemetry("critical"), "keys_store"))
    await registry.open()
    try:
        counting.rows = None  # which is no list
        async with asyncio.timeout(10):
            while not troubles:  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0.01)
            counting.rows = [row_of(CAROL)]
            while registry.find(digest_of(CAROL)) is None:  # noqa: ASYNC110 - likewise
                await asyncio.sleep(0.01)
    finally:
        await registry.close()
