"""F for the SQLite file: locks, damage, full and hanging disks are StoreTrouble, and it heals."""

import asyncio
import os
import random
import resource
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.memory import Store, StoreTrouble, open_store
from tests.kit.stored_texts import original, put_originals
from tests.memory.test_sqlite import by_hand
from tests.memory.test_store import (
    CUT,
    INSERT,
    KEY,
    RECORD,
    Fresh,
    stores_made,  # noqa: F401 - a fixture
)

ANCHORS = [f"a{i}" for i in range(200)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "narrows.db"


def overwrite(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def take_away(path: Path, instead: bool) -> None:
    path.unlink()
    if instead:
        path.touch()


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
            outcomes = await asyncio.gather(
                *(store.remember([(KEY, RECORD)]) for _ in range(200)), return_exceptions=True
            )
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
    await store.remember([(KEY, RECORD)])
    assert await store.ready()
    await store.close()


async def fill(store: Store) -> None:
    await store.open()
    for anchor in ANCHORS:
        await store.remember([(KEY, replace(RECORD, anchor=anchor))])
        await store.insert(KEY, replace(INSERT, after=anchor))
        await put_originals(store, KEY, {anchor: "text " * 100})
    await store.close()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file with a few hundred entries."""
    path = tmp_path_factory.mktemp("filled") / "narrows.db"
    asyncio.run(fill(open_store(f"sqlite:///{path}", patience=10)))
    return path.read_bytes()


@pytest.mark.parametrize("seed", range(8))
async def test_f_x7_a_damaged_file_is_trouble_or_a_miss_and_never_a_crash(
    filled: bytes, path: Path, seed: int, fresh: Fresh
) -> None:
    overwrite(path, filled)
    store = fresh(f"sqlite:///{path}")
    damage(path, random.Random(seed))
    said = []
    for attempt in (
        store.open,
        lambda: store.memory(KEY, ANCHORS),
        lambda: store.remember([(KEY, RECORD)]),
        lambda: store.insert(KEY, INSERT),
        lambda: put_originals(store, KEY, dict.fromkeys(ANCHORS, "text")),
        lambda: asyncio.gather(*(original(store, "tenant", anchor, None) for anchor in ANCHORS)),
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
        await store.remember([(KEY, RECORD)])
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
            await store.remember([(KEY, big)])
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
        await store.remember([(KEY, RECORD)])
    await store.close()


async def test_f_a_file_damaged_while_open_is_trouble_until_moved_away(path: Path, fresh: Fresh) -> None:
    store = fresh(f"sqlite:///{path}")
    await store.open()
    for i in range(100):
        await store.remember([(KEY, replace(RECORD, anchor=f"a{i}"))])
    for file in path.parent.iterdir():
        overwrite(file, b"damage, " * 1_000)
    with pytest.raises(StoreTrouble):
        await store.remember([(KEY, RECORD)])
    for file in path.parent.iterdir():
        file.unlink()
    await store.remember([(KEY, RECORD)])
    assert (await store.memory(KEY, ["anchor"])).steps == {"anchor": RECORD}
    await store.close()


@pytest.mark.parametrize("instead", [False, True], ids=["removed", "replaced"])
async def test_f_a_file_that_is_taken_away_while_open_is_trouble_once_and_a_new_one_is_begun(
    path: Path, fresh: Fresh, monkeypatch: pytest.MonkeyPatch, instead: bool
) -> None:
    monkeypatch.setattr("proxy.memory.sqlite.connection._LOOK", 0.0)
    store, other = fresh(f"sqlite:///{path}"), fresh(f"sqlite:///{path}")
    for each in (store, other):
        await each.open()
        await each.remember([(KEY, RECORD)])
    take_away(path, instead)
    for each in (store, other):
        with pytest.raises(StoreTrouble, match="removed or replaced"):
            await each.remember([(KEY, RECORD)])
    assert (await store.memory(KEY, ["anchor"])).steps == {}
    await store.remember([(KEY, RECORD)])
    assert (await other.memory(KEY, ["anchor"])).steps == {"anchor": RECORD}
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
