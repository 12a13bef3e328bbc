"""What is SQLite's own: files, locks, damage."""

import asyncio
import os
import random
import resource
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from policies.context import StepRecord
from proxy.store import Key, Store, StoreTrouble, open_store, records
from proxy.store.sqlite import MIGRATIONS, SqliteStore
from tests.proxy.test_store import CUT, FOLD, KEY, RECORD, SENT, Fresh, stores_made  # noqa: F401 - a fixture


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "narrows.db"


def by_hand(path: Path, *statements: tuple[str, tuple[object, ...]]) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for sql, values in statements:
            connection.execute(sql, values)


def overwrite(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def damage(path: Path, rng: random.Random) -> None:
    """Other bytes in 300 places, but for SQLite's own header."""
    content = bytearray(path.read_bytes())
    for _ in range(300):
        content[rng.randrange(100, len(content))] = rng.randrange(256)
    path.write_bytes(content)


@contextmanager
def read_only(path: Path) -> Iterator[None]:
    """The file and its folder; and since root may write everything, as somebody else."""
    root = os.geteuid() == 0
    path.chmod(0o444)
    path.parent.chmod(0o555)
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        path.parent.chmod(0o755)


async def test_s1_a_restart_forgets_nothing(path: Path, fresh: Fresh) -> None:
    store = fresh(f"sqlite:///{path}")
    await store.open()
    await store.remember(KEY, RECORD)
    secret = await store.secret("credentials")
    await store.close()
    again = fresh(f"sqlite:///{path}")
    await again.open()
    assert (await again.memory(KEY, ["anchor"])).steps == {"anchor": RECORD}
    assert await again.secret("credentials") == secret
    await again.close()


async def test_two_workers_on_one_file_agree_on_every_claim(path: Path, fresh: Fresh) -> None:
    workers = [fresh(f"sqlite:///{path}") for _ in range(2)]
    await asyncio.gather(*(worker.open() for worker in workers))
    anchors = [f"a{i}" for i in range(40)]
    won = await asyncio.gather(
        *(
            asyncio.gather(*(worker.claim(KEY, StepRecord(a, (replace(CUT, text=str(n)),))) for a in anchors))
            for n, worker in enumerate(workers)
        )
    )
    assert won[0] == won[1]
    secrets = await asyncio.gather(*(worker.secret("credentials") for worker in workers))
    assert secrets[0] == secrets[1]
    for worker in workers:
        await worker.close()


async def test_x6_a_sweep_takes_the_conversations_not_written_since(path: Path) -> None:
    now = 1_000.0
    store = SqliteStore(str(path), patience=10, clock=lambda: now)
    await store.open()
    try:
        for name in ("old", "one step more", "same step again"):
            await store.remember(Key("t", name), RECORD)
        now = 2_000.0
        await store.remember(Key("t", "one step more"), replace(RECORD, anchor="new step"))
        await store.remember(Key("t", "same step again"), RECORD)
        await store.remember(Key("t", "new"), RECORD)
        assert await store.sweep(1_500) == 1
        assert (await store.memory(Key("t", "old"), ["anchor"])).steps == {}
        for name in ("one step more", "same step again"):
            assert (await store.memory(Key("t", name), ["anchor"])).steps == {"anchor": RECORD}
    finally:
        await store.close()


@pytest.mark.parametrize("damage", [b"", b"\1garbage", records.sent_bytes(SENT), "text", 12])
async def test_x7_a_damaged_decision_is_a_counted_miss_and_the_next_writer_is_the_first(
    path: Path, damage: object, fresh: Fresh
) -> None:
    store = fresh(f"sqlite:///{path}")
    await store.open()
    await store.remember(KEY, RECORD)
    await store.remember(KEY, replace(RECORD, anchor="whole"))
    by_hand(path, ("UPDATE step SET decision = ? WHERE anchor = 'anchor'", (damage,)))
    assert set((await store.memory(KEY, ["anchor", "whole"])).steps) == {"whole"}
    assert store.misses == 1
    second = replace(RECORD, edits=(FOLD,))
    assert await store.claim(KEY, second) == second
    assert (await store.memory(KEY, ["anchor"])).steps == {"anchor": second}
    await store.close()


async def test_x7_a_damaged_sent_is_a_miss_that_costs_no_edit(path: Path, fresh: Fresh) -> None:
    store = fresh(f"sqlite:///{path}")
    await store.open()
    await store.remember(KEY, RECORD)
    by_hand(path, ("UPDATE step SET sent = ?, at = ?", (b"\1garbage", "noon")))
    assert (await store.memory(KEY, ["anchor"])).steps["anchor"].edits == RECORD.edits
    assert store.misses == 1
    await store.close()


async def test_x4_the_file_is_its_owners_alone(tmp_path: Path, fresh: Fresh) -> None:
    store = fresh(f"sqlite:///{tmp_path}/made/on/the/way/narrows.db")
    await store.open()
    await store.remember(KEY, RECORD)
    modes = {p.suffix: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "made/on/the/way").iterdir()}
    assert modes == {".db": 0o600, ".db-wal": 0o600, ".db-shm": 0o600}
    await store.close()


async def test_a_relative_path_is_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: Fresh) -> None:
    monkeypatch.chdir(tmp_path)
    store = fresh("sqlite:///var/narrows.db")
    await store.open()
    await store.close()
    assert (tmp_path / "var" / "narrows.db").exists()


@pytest.mark.parametrize("url", ["redis://localhost", "postgres://x", "", "narrows.db", "/folder"])
def test_an_unknown_scheme_is_refused_with_the_known_ones(url: str) -> None:
    with pytest.raises(ValueError, match="sqlite://"):
        open_store(url)


@pytest.mark.parametrize("url", ["sqlite:narrows.db", "sqlite:/narrows.db", "sqlite://narrows.db", "sqlite:///a\0b"])
def test_a_url_without_a_path_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(ValueError, match="sqlite:///relative"):
        open_store(url)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """By another program, wholly: nobody reads and nobody writes."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        other.execute("UPDATE step SET used = 0")
        yield
        other.execute("ROLLBACK")


async def until_ready(store: Store) -> None:
    """What waited for the lock is done first."""
    if not await store.ready():
        await asyncio.sleep(0.01)
        await until_ready(store)


async def test_f_a_locked_file_is_trouble_for_many_at_once_and_then_works_again(path: Path, fresh: Fresh) -> None:
    store = fresh(f"sqlite:///{path}", patience=0.05)
    await store.open()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        async with asyncio.timeout(30):
            outcomes = await asyncio.gather(*(store.remember(KEY, RECORD) for _ in range(200)), return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} == {StoreTrouble}
            assert not await store.ready()
        other.execute("ROLLBACK")
    async with asyncio.timeout(30):
        await until_ready(store)
    await store.close()


async def test_f_a_file_locked_at_start_is_trouble_and_later_opens(path: Path, fresh: Fresh) -> None:
    first = fresh(f"sqlite:///{path}")
    await first.open()
    await first.close()
    store = fresh(f"sqlite:///{path}", patience=0.05)
    with locked(path):
        async with asyncio.timeout(30):
            with pytest.raises(StoreTrouble, match="locked"):
                await store.open()
            with pytest.raises(StoreTrouble):
                await store.memory(KEY, ["anchor"])
            assert not await store.ready()
    await until_ready(store)
    await store.close()


async def test_f_a_file_that_is_no_database_is_trouble_that_says_what_to_do(path: Path, fresh: Fresh) -> None:
    overwrite(path, b"not a database, " * 1_000)
    store = fresh(f"sqlite:///{path}")
    with pytest.raises(StoreTrouble, match="move it away"):
        await store.open()
    assert not await store.ready()
    await asyncio.to_thread(path.unlink)
    await store.remember(KEY, RECORD)
    assert await store.ready()
    await store.close()


@pytest.mark.parametrize("seed", range(8))
async def test_f_x7_a_damaged_file_is_trouble_or_a_miss_and_never_a_crash(path: Path, seed: int, fresh: Fresh) -> None:
    store = fresh(f"sqlite:///{path}")
    await store.open()
    anchors = [f"a{i}" for i in range(200)]
    for anchor in anchors:
        await store.remember(KEY, replace(RECORD, anchor=anchor))
    await store.close()
    damage(path, random.Random(seed))
    said = []
    for attempt in (
        store.open,
        lambda: store.memory(KEY, anchors),
        lambda: store.remember(KEY, RECORD),
        lambda: store.sweep(1e12),
        lambda: store.delete(KEY),
    ):
        try:
            await attempt()
        except StoreTrouble as trouble:
            said.append(str(trouble))
    assert all(str(path) in message for message in said)
    await store.close()


async def test_f_a_read_only_file_is_trouble_that_says_so(fresh: Fresh) -> None:
    with tempfile.TemporaryDirectory() as folder:  # not tmp_path, which nobody else may enter
        path = Path(folder, "narrows.db")
        store = fresh(f"sqlite:///{path}")
        await store.open()
        await store.remember(KEY, RECORD)
        await store.close()
        with read_only(path), pytest.raises(StoreTrouble, match=r"narrows\.db.*(ermission|read-only)"):
            await store.open()
        await store.close()


@pytest.mark.parametrize("name", ["file/narrows.db", "folder"])
async def test_f_a_path_that_cannot_be_a_file_is_trouble(tmp_path: Path, name: str, fresh: Fresh) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreTrouble, match=name.partition("/")[0]):
        await fresh(f"sqlite:///{tmp_path}/{name}").open()


async def test_f_a_full_disk_is_trouble_and_later_works_again(path: Path, fresh: Fresh) -> None:
    store = fresh(f"sqlite:///{path}")
    await store.open()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    big = replace(RECORD, edits=(replace(CUT, text="x" * 3_000_000),))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
    try:
        with pytest.raises(StoreTrouble, match=r"narrows\.db"):
            await store.remember(KEY, big)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert await store.ready()
    assert await store.claim(KEY, big) == big
    await store.close()


async def test_f_a_store_that_hangs_is_trouble(path: Path, fresh: Fresh) -> None:
    """A statement that takes for ever stands for a disk that does."""
    store = fresh(f"sqlite:///{path}", patience=0.05)
    await store.open()
    by_hand(
        path,
        (
            "CREATE TRIGGER slow BEFORE INSERT ON step BEGIN SELECT (WITH RECURSIVE n(i) AS"
            " (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000) SELECT max(i) FROM n); END",
            (),
        ),
    )
    with pytest.raises(StoreTrouble, match="in time"):
        await store.remember(KEY, RECORD)
    await store.close()


async def test_a_file_of_a_newer_release_is_refused_and_left_as_it_is(path: Path, fresh: Fresh) -> None:
    by_hand(path, (f"PRAGMA user_version = {len(MIGRATIONS) + 1}", ()))
    with pytest.raises(StoreTrouble, match="newer release"):
        await fresh(f"sqlite:///{path}").open()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)


async def test_migrations_are_applied_once_each(path: Path, fresh: Fresh) -> None:
    for _ in range(2):
        store = fresh(f"sqlite:///{path}")
        await store.open()
        await store.close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


async def test_a_bad_secret_is_made_anew(path: Path, fresh: Fresh) -> None:
    store = fresh(f"sqlite:///{path}")
    await store.open()
    await store.secret("credentials")
    by_hand(path, ("UPDATE secret SET value = 'short'", ()))
    made = await store.secret("credentials")
    assert len(made) == 32
    assert await store.secret("credentials") == made
    await store.close()


async def test_f_a_file_damaged_while_open_is_trouble_until_moved_away(path: Path, fresh: Fresh) -> None:
    store = fresh(f"sqlite:///{path}")
    await store.open()
    for i in range(100):
        await store.remember(KEY, replace(RECORD, anchor=f"a{i}"))
    for file in path.parent.iterdir():
        overwrite(file, b"damage, " * 1_000)
    with pytest.raises(StoreTrouble):
        await store.remember(KEY, RECORD)
    for file in path.parent.iterdir():
        file.unlink()
    await store.remember(KEY, RECORD)
    assert (await store.memory(KEY, ["anchor"])).steps == {"anchor": RECORD}
    await store.close()
