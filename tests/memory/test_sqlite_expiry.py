"""What leaves an SQLite file by itself, and how long its URL says that it stays."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from proxy.memory import Key, open_store
from proxy.memory.sqlite.store import SqliteStore
from tests.kit.redis_servers import soon
from tests.memory.test_sqlite_summaries import TABLES, filled, rows
from tests.memory.test_store import KEY, ORIGINALS
from tests.memory.test_store_artifacts import BOUNDED, TEXTS
from tests.memory.test_store_summaries import SUMMARY, kept


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "narrows.db"


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep follows soon on the opening, and soon on the one before."""
    monkeypatch.setattr("proxy.memory.sqlite.store._FIRST_SWEEP", 0.05)
    monkeypatch.setattr("proxy.memory.sqlite.store._NEXT_SWEEP", 0.05)


async def test_x6_what_nobody_wrote_for_so_long_goes_by_itself(path: Path, hurried: None) -> None:
    now = [1_000_000.0]
    store = SqliteStore(str(path), patience=10, ttl=100, clock=lambda: now[0])
    await store.open()
    try:
        for number in range(45):
            await filled(store, Key("old", str(number)))
        now[0] += 60
        await filled(store, Key("new", "0"))
        now[0] += 60
        texts, bytes_of = len(TEXTS) * len(BOUNDED) + len(ORIGINALS), 1 + len(BOUNDED)
        await soon(lambda: set(rows(path).values()) == {1, 2, bytes_of, texts})
        assert rows(path) == {
            **dict.fromkeys(TABLES, 1),
            "summary": 2,
            "text": texts,
            "text_bytes": bytes_of,
        }
        assert await kept(store, key=Key("new", "0")) == ["s1"]
        now[0] += 60
        await soon(lambda: not rows(path))
    finally:
        await store.close()


async def test_x6_a_sweep_that_met_trouble_is_made_again(path: Path, hurried: None) -> None:
    now = [1_000_000.0]
    store = SqliteStore(str(path), patience=0.1, ttl=100, clock=lambda: now[0])
    await store.open()
    try:
        await store.put_summary(KEY, SUMMARY)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            now[0] += 200
            await asyncio.sleep(0.5)
            other.execute("ROLLBACK")
        await soon(lambda: not rows(path))
    finally:
        await store.close()


async def test_x6_the_sweep_ends_with_the_store(path: Path, hurried: None) -> None:
    before = asyncio.all_tasks()
    now = [1_000_000.0]
    store = SqliteStore(str(path), patience=10, ttl=100, clock=lambda: now[0])
    await store.open()
    await store.open()
    assert len(asyncio.all_tasks() - before) == 1
    await store.put_summary(KEY, SUMMARY)
    await store.close()
    await store.close()
    assert asyncio.all_tasks() == before
    now[0] += 1_000
    await asyncio.sleep(0.2)
    assert rows(path)["summary"] == 1


@pytest.mark.parametrize(
    ("url", "path", "seconds"),
    [
        ("sqlite:///a.db", "a.db", 30 * 86_400),
        ("sqlite:////srv/a.db?ttl=90m", "/srv/a.db", 5_400),
        ("sqlite://?ttl=2", ":memory:", 2),
        ("sqlite:///:memory:?ttl=12h", ":memory:", 43_200),
    ],
)
async def test_a_url_may_say_how_long(url: str, path: str, seconds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    said = []
    monkeypatch.setattr("proxy.memory.sqlite.store.SqliteStore", lambda path, ttl, **_: said.append((path, ttl)))
    open_store(url)
    assert said == [(path, seconds)]


@pytest.mark.parametrize(("url", "said"), [("?ttl=soon", "30d"), ("?ttl=0", "30d"), ("?tll=1d", "ttl"), ("?x", "ttl")])
def test_a_url_that_cannot_be_is_refused_with_what_to_write(url: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        open_store(f"sqlite:///narrows.db{url}")
