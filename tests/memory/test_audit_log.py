"""What happened to summaries: a log line at once, an event behind it, and no trouble for anybody."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from proxy.memory import Key, Store, StoreTrouble, open_store
from proxy.memory.audit_log import AuditLog
from proxy.telemetry import Telemetry
from tests.kit.summarizing import Faulty

KEY = Key("team", "c1")


@pytest.fixture
def log() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def telemetry(log: io.StringIO) -> Telemetry:
    return Telemetry("info", "json", log)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    made = open_store(f"sqlite:///{tmp_path}/narrows.db", patience=10)
    await made.open()
    yield made
    await made.close()


def trouble(telemetry: Telemetry, operation: str) -> float:
    return telemetry.metrics.registry.get_sample_value("narrows_store_trouble_total", {"operation": operation}) or 0.0


def lines(log: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


async def test_an_event_is_logged_at_once_and_written_behind(
    store: Store, telemetry: Telemetry, log: io.StringIO
) -> None:
    audit_log = AuditLog(store, telemetry, clock=lambda: 1_700_000_000.5)
    audit_log.note(KEY, "summary.made", id="1f", model="gpt-4o", tokens=12, dollars=0.25)
    (line,) = lines(log)
    said = {"id": "1f", "model": "gpt-4o", "tokens": 12, "dollars": 0.25}
    assert said.items() <= line.items()
    assert (line["event"], line["level"]) == ("summary.made", "info")
    assert (line["tenant"], line["conversation"]) == ("team", "c1")
    await audit_log.close()
    ((tenant, event),) = await store.events("team", None, 10)
    assert (tenant, event.at, event.conversation, event.name) == ("team", 1_700_000_000.5, "c1", "summary.made")
    assert dict(event.details) == said


async def test_events_keep_their_order(store: Store, telemetry: Telemetry) -> None:
    audit_log = AuditLog(store, telemetry)
    for n in range(50):
        audit_log.note(KEY, "summary.made", number=n)
        if n % 7 == 0:
            await asyncio.sleep(0)
    await audit_log.close()
    assert [event.details["number"] for _, event in await store.events("team", "c1", 100)] == list(range(50))


async def test_x8_no_value_starts_a_line_and_none_is_long(store: Store, telemetry: Telemetry, log: io.StringIO) -> None:
    audit_log = AuditLog(store, telemetry)
    audit_log.note(Key("team", "c\nforged"), "summary.made", model="m\n{}\x1b[2J\udcff" + "x" * 5_000)
    await audit_log.close()
    (line,) = lines(log)
    assert len(log.getvalue()) < 600
    assert line["conversation"] == r"c\nforged"
    ((_, event),) = await store.events("team", None, 10)
    assert event.conversation == "c\nforged"


@pytest.mark.parametrize(("failures", "kept"), [(1, 3), (2, 2)])
async def test_f_what_cannot_be_written_is_tried_once_more(
    store: Store, telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, failures: int, kept: int
) -> None:
    monkeypatch.setattr("proxy.memory.cached._PAUSE", 0.0)
    faulty: Any = Faulty(store, "note", failures, StoreTrouble("not now"))
    audit_log = AuditLog(faulty, telemetry)
    for n in range(3):
        audit_log.note(KEY, "summary.made", number=n)
    await audit_log.close()
    assert len(await store.events("team", None, 10)) == kept
    assert trouble(telemetry, "note") == failures


async def test_f_what_waits_is_bounded_and_told(
    store: Store, telemetry: Telemetry, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.memory.audit_log._QUEUED", 3)
    monkeypatch.setattr("proxy.memory.cached._LAST_SECONDS", 0.05)
    faulty: Any = Faulty(store, "note", 100, StoreTrouble("not now"))
    running = asyncio.all_tasks()
    audit_log = AuditLog(faulty, telemetry)
    for n in range(5):
        audit_log.note(KEY, "summary.made", number=n)
    assert trouble(telemetry, "note_dropped") == 2
    await audit_log.close()
    assert [line["count"] for line in lines(log) if line["event"] == "events_lost"] == [3]
    assert asyncio.all_tasks() == running


async def test_f_a_fault_of_ours_loses_one_event_and_its_text_is_not_logged(
    store: Store, telemetry: Telemetry, log: io.StringIO
) -> None:
    faulty: Any = Faulty(store, "note", 1, ValueError("a text of somebody"))
    audit_log = AuditLog(faulty, telemetry)
    audit_log.note(KEY, "summary.made", number=0)
    audit_log.note(KEY, "summary.made", number=1)
    await audit_log.close()
    assert [event.details["number"] for _, event in await store.events("team", None, 10)] == [1]
    assert [line["error"] for line in lines(log) if line["event"] == "write_failed"] == ["ValueError"]
    assert "somebody" not in log.getvalue()


async def test_once_closed_it_only_logs(store: Store, telemetry: Telemetry, log: io.StringIO) -> None:
    running = asyncio.all_tasks()
    audit_log = AuditLog(store, telemetry)
    await audit_log.close()
    audit_log.note(KEY, "summary.made")
    await audit_log.close()
    assert len(lines(log)) == 1
    assert await store.events("team", None, 10) == []
    assert asyncio.all_tasks() == running
