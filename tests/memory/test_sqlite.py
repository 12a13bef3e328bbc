"""What is SQLite's own: files, locks, damage."""

import asyncio
import os
import sqlite3
import stat
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from policies.model.memory import StepRecord
from proxy.memory import Key, StoreTrouble, open_store, serialization
from proxy.memory.sqlite.statements import SCHEMA_VERSION
from proxy.memory.sqlite.store import SqliteStore
from tests.kit.stored_texts import original, put_originals
from tests.memory import release_0_1
from tests.memory.test_store import (
    CUT,
    FOLD,
    INSERT,
    KEY,
    ORIGINALS,
    RECORD,
    SENT,
    Fresh,
    inserts,
    stores_made,  # noqa: F401 - a fixture
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "narrows.db"


def by_hand(path: Path, *statements: tuple[str, tuple[object, ...]]) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for sql, values in statements:
            connection.execute(sql, values)


def remove(path: Path) -> None:
    for file in path.parent.glob("narrows.db"):
        file.unlink()


def set_aside(path: Path) -> set[str]:
    return {each.name for each in path.parent.glob("*set-aside*")}


async def test_s1_a_restart_forgets_nothing(path: Path, fresh: Fresh) -> None:
    store = fresh(f"sqlite:///{path}")
    await store.open()
    await store.remember([(KEY, RECORD)])
    await store.insert(KEY, INSERT)
    await put_originals(store, KEY, ORIGINALS)
    secret = await store.secret("credentials")
    await store.close()
    again = fresh(f"sqlite:///{path}")
    await again.open()
    assert (await again.memory(KEY, ["anchor"])).steps == {"anchor": RECORD}
    assert await inserts(again) == (INSERT,)
    assert await original(again, "tenant", "482913", None) == {"conversation": ORIGINALS["482913"]}
    assert await again.secret("credentials") == secret
    await again.close()


async def test_f_another_process_that_closes_the_file_leaves_the_log_to_those_who_use_it(
    path: Path, fresh: Fresh
) -> None:
    first, second = fresh(f"sqlite:///{path}"), fresh(f"sqlite:///{path}")
    await first.open()
    await first.remember([(KEY, RECORD)])
    await second.open()
    before = os.stat(f"{path}-wal")
    reading = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM step').fetchall()"
    assert await (await asyncio.create_subprocess_exec(sys.executable, "-c", reading, str(path))).wait() == 0
    assert os.path.samestat(before, os.stat(f"{path}-wal"))
    await first.close()
    await second.close()


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
        for name in ("old", "one step more", "same step again", "a reply more", "same reply again", "an original more"):
            await store.remember([(Key("t", name), RECORD)])
            await store.insert(Key("t", name), INSERT)
            await put_originals(store, Key("t", name), {"1": "text"})
        now = 2_000.0
        await store.insert(Key("t", "a reply more"), replace(INSERT, reply="new"))
        await store.insert(Key("t", "same reply again"), INSERT)
        await put_originals(store, Key("t", "an original more"), ORIGINALS)
        await store.remember([(Key("t", "one step more"), replace(RECORD, anchor="new step"))])
        await store.remember([(Key("t", "same step again"), RECORD)])
        await store.remember([(Key("t", "new"), RECORD)])
        assert await store.sweep(1_500) == 1
        assert (await store.memory(Key("t", "old"), ["anchor"])).steps == {}
        assert await inserts(store, Key("t", "old")) == ()
        assert len(await original(store, "t", "1", None)) == 5
        for name in ("one step more", "same step again", "a reply more", "same reply again", "an original more"):
            assert (await store.memory(Key("t", name), ["anchor"])).steps == {"anchor": RECORD}
    finally:
        await store.close()


@pytest.mark.parametrize("damage", [b"", b"\1garbage", serialization.packed("sent", SENT), "text", 12])
async def test_x7_a_damaged_decision_is_a_counted_miss_and_the_next_writer_is_the_first(
    path: Path, damage: object, fresh: Fresh
) -> None:
    store = fresh(f"sqlite:///{path}")
    await store.open()
    await store.remember([(KEY, RECORD)])
    await store.remember([(KEY, replace(RECORD, anchor="whole"))])
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
    await store.remember([(KEY, RECORD)])
    by_hand(path, ("UPDATE step SET sent = ?, at = ?", (b"\1garbage", "noon")))
    assert (await store.memory(KEY, ["anchor"])).steps["anchor"].edits == RECORD.edits
    assert store.misses == 1
    await store.close()


@pytest.mark.parametrize("damage", [b"", b"\3garbage", serialization.packed("sent", SENT), "text", 12])
async def test_x7_a_damaged_reply_or_original_is_a_counted_miss_and_can_be_written_again(
    path: Path, damage: object, fresh: Fresh
) -> None:
    store = fresh(f"sqlite:///{path}")
    await store.open()
    other = replace(INSERT, reply="whole")
    for insert in (INSERT, other):
        await store.insert(KEY, insert)
    await put_originals(store, KEY, {"1": "first", "2": "whole"})
    by_hand(
        path,
        ("UPDATE recall SET content = ? WHERE reply = 'reply'", (damage,)),
        ("UPDATE text SET content = ? WHERE name = ?", (damage, b"1")),
    )
    assert await inserts(store) == (other,)
    assert await original(store, "tenant", "1", None) == {}
    assert store.misses == 2
    await store.insert(KEY, INSERT)
    await put_originals(store, KEY, {"1": "again", "2": "again"})
    assert await inserts(store) == (other, INSERT)
    assert await original(store, "tenant", "1", None) == {"conversation": "again"}
    assert await original(store, "tenant", "2", None) == {"conversation": "whole"}
    await store.close()


@pytest.mark.parametrize("name", [b"\xff", "text", 7])
async def test_x7_an_original_of_a_damaged_name_is_a_miss(path: Path, name: object, fresh: Fresh) -> None:
    store = fresh(f"sqlite:///{path}")
    await store.open()
    await put_originals(store, KEY, {"1": "text"})
    by_hand(path, ("UPDATE text SET conversation = ?", (name,)))
    assert await original(store, "tenant", "1", None) == {}
    assert store.misses == 1
    await store.close()


async def test_x4_the_file_is_its_owners_alone(tmp_path: Path, fresh: Fresh) -> None:
    store = fresh(f"sqlite:///{tmp_path}/made/on/the/way/narrows.db")
    await store.open()
    await store.remember([(KEY, RECORD)])
    modes = {p.suffix: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "made/on/the/way").iterdir()}
    assert modes == {".db": 0o600, ".db-wal": 0o600, ".db-shm": 0o600}
    assert stat.S_IMODE((tmp_path / "made/on/the/way").stat().st_mode) == 0o700
    await store.close()


async def test_a_relative_path_is_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: Fresh) -> None:
    monkeypatch.chdir(tmp_path)
    store = fresh("sqlite:///var/narrows.db")
    await store.open()
    await store.close()
    assert (tmp_path / "var" / "narrows.db").exists()


@pytest.mark.parametrize("url", ["sqlite:narrows.db", "sqlite:/narrows.db", "sqlite://narrows.db", "sqlite:///a\0b"])
def test_a_url_without_a_path_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(ValueError, match="sqlite:///relative"):
        open_store(url)


async def test_a_file_of_a_newer_release_is_refused_and_left_as_it_is(path: Path, fresh: Fresh) -> None:
    by_hand(path, (f"PRAGMA user_version = {SCHEMA_VERSION + 1}", ()))
    with pytest.raises(StoreTrouble, match="newer release"):
        await fresh(f"sqlite:///{path}").open()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)


async def test_the_schema_is_made_once(path: Path, fresh: Fresh) -> None:
    for _ in range(2):
        store = fresh(f"sqlite:///{path}")
        await store.open()
        await store.close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize("schema", range(1, len(release_0_1.MIGRATIONS) + 1))
async def test_f_a_file_of_release_0_1_is_set_aside_whole_and_a_new_one_begun(
    path: Path, fresh: Fresh, schema: int
) -> None:
    release_0_1.write_file(path, schema)
    lines: list[str] = []
    store = open_store(f"sqlite:///{path}", patience=10, announce=lines.append)
    await store.open()
    try:
        aside = Path(f"{path}.0.1-set-aside")
        assert [str(path) in line and str(aside) in line for line in lines] == [True]
        assert (await store.memory(KEY, ["anchor"])).steps == {}
        assert await store.claim(KEY, RECORD) == RECORD
        await store.insert(KEY, INSERT)
        await put_originals(store, KEY, ORIGINALS)
        assert await inserts(store) == (INSERT,)
        assert store.misses == 0
    finally:
        await store.close()
    with closing(sqlite3.connect(aside)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (schema,)
        assert connection.execute("SELECT decision FROM step").fetchall() == [(b"\3decision",)]
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        if schema > 1:
            assert connection.execute("SELECT content FROM original").fetchall() == [(b"\3a text",)]
    await store.open()
    assert (await store.memory(KEY, ["anchor"])).steps == {"anchor": RECORD}
    assert len(lines) == 1
    await store.close()


async def test_f_a_file_of_release_0_1_that_was_killed_is_set_aside_with_all_that_it_wrote(path: Path) -> None:
    release_0_1.write_file(path, 4, killed=True)
    lines: list[str] = []
    store = open_store(f"sqlite:///{path}", patience=10, announce=lines.append)
    await store.open()
    assert await store.claim(KEY, RECORD) == RECORD
    await store.close()
    with closing(sqlite3.connect(f"{path}.0.1-set-aside")) as connection:
        assert connection.execute("SELECT content FROM original").fetchall() == [(b"\3a text",)]
    assert len(lines) == 1


async def test_f_no_file_that_was_set_aside_is_written_over(path: Path, fresh: Fresh) -> None:
    for _ in range(3):
        release_0_1.write_file(path, 4)
        store = fresh(f"sqlite:///{path}")
        await store.open()
        await store.close()
        remove(path)
    assert set_aside(path) == {f"narrows.db.0.1-set-aside{suffix}" for suffix in ("", "-2", "-3")}


@pytest.mark.parametrize("absent", [0, 0.05])
async def test_f_workers_that_start_together_set_an_old_file_aside_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, absent: float
) -> None:
    release_0_1.write_file(path, 4)
    rename = os.rename
    monkeypatch.setattr(os, "rename", lambda old, new: (rename(old, new), time.sleep(absent)))
    lines: list[str] = []
    workers = [open_store(f"sqlite:///{path}", patience=10, announce=lines.append) for _ in range(4)]
    await asyncio.gather(*(worker.open() for worker in workers))
    assert len({await worker.secret("credentials") for worker in workers}) == len(lines) == 1
    for worker in workers:
        await worker.close()
    assert set_aside(path) == {"narrows.db.0.1-set-aside"}


async def test_f_while_release_0_1_runs_its_file_is_left_alone(path: Path, fresh: Fresh) -> None:
    release_0_1.write_file(path, 4)
    store = fresh(f"sqlite:///{path}", patience=0.2)
    with closing(sqlite3.connect(path)) as running:
        assert running.execute("SELECT count(*) FROM step").fetchone() == (1,)
        with pytest.raises(StoreTrouble, match="locked"):
            await store.open()
        assert running.execute("SELECT count(*) FROM step").fetchone() == (1,)
    assert (await store.memory(KEY, ["anchor"])).steps == {}
    assert set_aside(path) == {"narrows.db.0.1-set-aside"}
    await store.close()


async def test_what_is_deleted_leaves_no_row(path: Path, fresh: Fresh) -> None:
    store = fresh(f"sqlite:///{path}")
    await store.open()
    await store.remember([(KEY, RECORD)])
    await store.insert(KEY, INSERT)
    await put_originals(store, KEY, ORIGINALS)
    await store.delete(KEY)
    await store.close()
    with closing(sqlite3.connect(path)) as connection:
        left = connection.execute("SELECT 1 FROM step UNION ALL SELECT 1 FROM recall UNION ALL SELECT 1 FROM text")
        assert left.fetchall() == []


async def test_a_bad_secret_is_made_anew(path: Path, fresh: Fresh) -> None:
    store = fresh(f"sqlite:///{path}")
    await store.open()
    await store.secret("credentials")
    by_hand(path, ("UPDATE secret SET value = 'short'", ()))
    made = await store.secret("credentials")
    assert len(made) == 32
    assert await store.secret("credentials") == made
    await store.close()


def test_exchanges_of_others_are_seen_at_once_and_without_asking(path: Path) -> None:
    here, there, alone = (open_store(url) for url in (f"sqlite:///{path}", f"sqlite:///{path}", "sqlite://"))
    here.announcements.add()
    assert [store.announcements.foreign() for store in (here, there, alone)] == [0, 1, 0]
    for store in (there, there, alone):
        store.announcements.add()
    assert [store.announcements.foreign() for store in (here, there, alone)] == [2, 1, 0]
    beside = path.with_name("narrows.db-exchanges")
    assert stat.S_IMODE(beside.stat().st_mode) == 0o600
    beside.unlink()  # then nobody can say any more what was announced before
    assert here.announcements.foreign() != 2


def test_where_no_byte_can_be_written_nothing_is_raised(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'nowhere' / 'narrows.db'}")
    store.announcements.add()
    assert store.announcements.foreign() != 0
    (tmp_path / "file").touch()
    store = open_store(f"sqlite:///{tmp_path / 'file' / 'narrows.db'}")
    store.announcements.add()
    assert store.announcements.foreign() is None
