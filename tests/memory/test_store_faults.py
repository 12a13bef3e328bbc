"""F for SQLite: whatever befalls the store, requests are served, and the bytes sent are those of a healthy one."""

import asyncio
import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from policies.model.memory import Memory, StepRecord
from proxy.memory import Key, Store, open_store
from tests.kit.pausing import pause_breakers
from tests.kit.stage import Exchange, Stage, ends, moved, working

SESSION = working()
_SENT: list[bytes] = []


def events(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return [json.loads(line)["event"] for line in capfd.readouterr().err.splitlines()]


async def until_told(event: str, told: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    """Collect what is told until it is this."""
    async with asyncio.timeout(30):
        while event not in told:
            await asyncio.sleep(0.02)
            told += events(capfd)


async def healthy(stage: Stage) -> list[bytes]:
    """What is sent with a store that works: the same for every test."""
    if not _SENT:
        grown = await stage.grow(await stage.start(store="sqlite://"), SESSION, ("Authorization", "Bearer healthy"))
        _SENT.extend(exchange.sent for exchange in grown)
    return _SENT


def served_as_ever(grown: Sequence[Exchange], expected: Sequence[bytes]) -> None:
    assert {exchange.status for exchange in grown} == {200}
    assert [exchange.sent for exchange in grown] == list(expected)
    assert moved(grown) == []


async def test_f_a_place_that_cannot_be_written(
    capfd: pytest.CaptureFixture[str], stage: Stage, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no directory")
    expected = await healthy(stage)
    app = await stage.start(store=f"sqlite:///{tmp_path}/file/narrows.db", log_level="warning", log_format="json")
    served_as_ever(await stage.grow(app, SESSION), expected)
    assert events(capfd).count("store_trouble") == 1
    assert b'narrows_store_trouble_total{operation="open"} 1.0' in app.telemetry.metrics.page()


async def test_f_a_file_that_is_no_database(capfd: pytest.CaptureFixture[str], stage: Stage) -> None:
    stage.path.write_bytes(b"This is not a database. " * 500)
    expected = await healthy(stage)
    app = await stage.start(log_level="warning", log_format="json")
    served_as_ever(await stage.grow(app, SESSION), expected)
    assert events(capfd).count("store_trouble") == 1
    assert stage.path.read_bytes().startswith(b"This is not")


async def test_f_a_file_damaged_while_it_serves(stage: Stage) -> None:
    expected = await healthy(stage)
    app = await stage.start()
    half = len(ends(SESSION)) // 2
    grown = [await stage.ask(app, SESSION[:end]) for end in ends(SESSION)[:half]]
    for file in stage.path.parent.glob("narrows.db*"):
        file.write_bytes(b"\0" * file.stat().st_size)
    grown += [await stage.ask(app, SESSION[:end]) for end in ends(SESSION)[half:]]
    served_as_ever(grown, expected)


@dataclass
class Counted:
    """The real store, and how often it was asked."""

    store: Store
    asked: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def memory(self, key: Key, anchors: Sequence[str]) -> Memory:
        self.asked.append("memory")
        return await self.store.memory(key, anchors)

    async def remember(self, steps: Sequence[tuple[Key, StepRecord]]) -> None:
        self.asked.append("remember")
        await self.store.remember(steps)

    async def claim(self, key: Key, record: StepRecord) -> StepRecord:
        self.asked.append("claim")
        return await self.store.claim(key, record)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[Counted]:
    """Every store that is opened from now on."""
    made: list[Counted] = []

    def opened(url: str, patience: float | None = None, **more: Any) -> Store:
        if patience is not None:  # the connection that no request waits for
            return open_store(url, patience=patience, **more)
        made.append(Counted(open_store(url, **more)))
        return made[-1]

    monkeypatch.setattr("proxy.memory.opening.open_store", opened)
    pause_breakers(monkeypatch, "store", 60.0)  # longer than any test takes
    monkeypatch.setattr("proxy.memory.cached._PAUSE", 60.0)
    return made


async def test_f_a_lock_opens_the_breaker_and_the_store_is_left_alone(
    capfd: pytest.CaptureFixture[str], stage: Stage, counted: list[Counted]
) -> None:
    expected = await healthy(stage)
    app = await stage.start(log_level="info", log_format="json")
    half = len(ends(SESSION)) // 2
    grown = [await stage.ask(app, SESSION[:end]) for end in ends(SESSION)[:half]]
    await asyncio.sleep(0.05)
    other = sqlite3.connect(stage.path, isolation_level=None)
    try:
        other.execute("BEGIN EXCLUSIVE")
        asked = len(counted[-1].asked)
        grown += [await stage.ask(app, SESSION[:end]) for end in ends(SESSION)[half:]]
        for number in range(20):
            await stage.ask(app, [{"role": "user", "content": f"another conversation {number}"}])
        told: list[str] = []
        await until_told("store_trouble", told, capfd)
        await asyncio.sleep(0.1)  # what is written behind the last of them
        assert len(counted[-1].asked) - asked <= 3  # what was under way when it opened
    finally:
        other.close()
    served_as_ever(grown, expected)
    assert [event for event in told + events(capfd) if event.startswith("store")] == ["store_trouble"]


async def test_f_a_store_that_is_well_again_is_used_again_and_each_change_is_told_once(
    capfd: pytest.CaptureFixture[str], stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause_breakers(monkeypatch, "store", 1.0)
    monkeypatch.setattr("proxy.memory.cached._PAUSE", 1.0)
    monkeypatch.setattr("proxy.memory.opening.open_store", partial(open_store, patience=5.0))
    app = await stage.start(log_level="info", log_format="json")
    told: list[str] = []
    other = sqlite3.connect(stage.path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    for end in ends(SESSION)[:4]:
        await stage.ask(app, SESSION[:end])
    await until_told("store_trouble", told, capfd)
    monkeypatch.setattr("proxy.memory.cached._PATIENCE", 5.0)  # from now on a busy machine is no trouble of the store
    other.close()
    await until_told("store_recovered", told, capfd)
    grown = await stage.grow(app, SESSION)
    told += events(capfd)
    assert [event for event in told if event.startswith("store")] == ["store_trouble", "store_recovered"]
    await app.close(1)
    kept = sqlite3.connect(stage.path)
    rows = kept.execute("SELECT count(*) FROM step").fetchone()
    kept.close()
    assert rows[0] >= len(grown) - 1


async def test_f_a_locked_file_at_a_restart_costs_no_prompt_cache(stage: Stage) -> None:
    app = await stage.start()
    first = await stage.grow(app, SESSION)
    await app.close(1)
    other = sqlite3.connect(stage.path, isolation_level=None)
    try:
        other.execute("BEGIN EXCLUSIVE")
        again = await stage.ask(await stage.start(), SESSION[:-1])
    finally:
        other.close()
    assert again.sent == first[-1].sent
    assert again.prefix in (first[-1].prefix, "checkpoint:replayed")


async def test_f_a_claim_that_cannot_be_written_is_served_all_the_same(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1_800_000_000.0]
    stage.clock = lambda: clock[0]
    app = await stage.start()
    for end in ends(SESSION)[:-1]:
        await stage.ask(app, SESSION[:end])
    await asyncio.sleep(0.05)
    clock[0] += 4_000
    other = sqlite3.connect(stage.path, isolation_level=None)
    try:
        other.execute("BEGIN EXCLUSIVE")
        cold = await stage.ask(app, SESSION[:-1])
        again = await stage.ask(app, SESSION[:-1])
    finally:
        other.close()
    assert (cold.status, cold.prefix) == (200, "checkpoint:cold")
    assert again.sent == cold.sent
