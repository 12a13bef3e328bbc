"""M8 and F: a model or a store in trouble, on real sockets and files; nothing waits, and soon nothing is asked."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.kit.pausing import pause_breakers
from tests.kit.redis_servers import Park, soon
from tests.kit.summarizing import (  # noqa: F401 - some are fixtures
    GOOD,
    KEY,
    Model,
    Replica,
    answer_with,
    beginnings,
    file_of_a_test,
    model_of_a_test,
    replica,
    task,
)
from tests.kit.upstream import json_answer, whole

NO = {"error": {"message": "no", "type": "t", "param": None, "code": None}}
LIMITED = json_answer(NO, "Retry-After: 60", status="429 Too Many Requests")
TROUBLE = {
    "limited": LIMITED,
    "server": json_answer(NO, "Retry-After: 1", status="500 Internal Server Error"),
    "refused": json_answer(NO, status="401 Unauthorized"),
    "unreachable": b"",
    "garbled": whole(b"<html>no", "Content-Type: application/json"),
}


async def attempts(one: Replica, count: int) -> list[str]:
    """What is said of each of so many wants, one after the other."""
    states = []
    for each in beginnings(count):
        one.summaries.start(each)
        await one.summaries.settled()
        states.append(one.summaries.state(KEY, each.want.first))
    return states


def reasons(one: Replica) -> list[str]:
    return [line["reason"] for line in one.lines("summary.failed")]


@pytest.mark.parametrize("kind", TROUBLE)
async def test_m8_after_three_failures_nothing_is_asked_and_after_one_refusal(
    model: Model, url: str, kind: str
) -> None:
    model.answer = TROUBLE[kind]
    async with replica(url, model, summary_timeout=0.5) as one:
        assert await attempts(one, 3) == ["failed"] * 3
        asked, failures = model.calls, 1 if kind in ("limited", "refused") else 3
        assert asked >= failures
        assert await attempts(one, 5) == ["failed"] * 5
        assert model.calls == asked
        assert (one.outcomes("failed"), one.outcomes("paused")) == (failures, 8 - failures)
        assert len(one.lines("summarizer_trouble")) == failures // 3
        assert set(reasons(one)) <= {kind, "timeout"}
        assert [event.name for event in await one.events()] == ["summary.wanted", "summary.failed"] * failures


async def test_m8_a_model_that_says_nothing_is_given_up_in_time(model: Model, url: str) -> None:
    model.may.clear()
    async with replica(url, model, summary_timeout=0.2) as one:
        assert await attempts(one, 3) == ["failed"] * 3
        assert reasons(one) == ["timeout"] * 3
        assert len(one.lines("summarizer_trouble")) == 1


async def test_m8_after_the_pause_one_trial_closes_it(model: Model, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pause_breakers(monkeypatch, "summarizer", 0.3)
    model.answer = TROUBLE["server"]
    async with replica(url, model) as one:
        await attempts(one, 3)
        await asyncio.sleep(0.3)
        asked = model.calls
        model.answer = answer_with(GOOD)
        model.may.clear()
        tasks = beginnings(4)
        for each in tasks:
            one.summaries.start(each)
        await asyncio.sleep(0.2)
        assert model.calls == asked + 1
        model.may.set()
        await one.summaries.settled()
        assert (one.outcomes("made"), len(one.lines("summarizer_recovered"))) == (1, 1)
        assert await attempts(one, 4) == [""] * 4


async def test_m8_rejections_are_failures_until_an_answer_is_of_use(
    model: Model, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause_breakers(monkeypatch, "summarizer", 0.2)
    model.answer = answer_with("DONE")
    async with replica(url, model) as one:
        assert await attempts(one, 4) == ["failed"] * 4
        assert (model.calls, one.outcomes("rejected"), one.outcomes("paused")) == (3, 3, 1)
        assert len(one.lines("summarizer_trouble")) == 1
        model.answer = answer_with(GOOD)
        await asyncio.sleep(0.3)
        one.summaries.start(beginnings(4)[3])
        await one.summaries.settled()
        assert (one.outcomes("made"), len(one.lines("summarizer_recovered"))) == (1, 1)


@pytest.mark.parametrize("shared", [False, True])
async def test_x5_the_trouble_of_one_credential_is_not_that_of_another(
    model: Model, url: str, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    monkeypatch.setenv("SUMMARY_KEY", "k")
    model.answer = TROUBLE["refused"]
    own = {"base_url": model.upstream.url, "key_env": "SUMMARY_KEY", "model": "gpt-4o"} if shared else {}
    async with replica(url, model, summarizers=[own]) as one:
        await attempts(one, 3)
        model.answer = answer_with(GOOD)
        theirs = task(owner="another")
        one.summaries.start(theirs)
        await one.summaries.settled()
        assert one.summaries.state(KEY, theirs.want.first) == ("failed" if shared else "")


async def test_m8_a_failure_is_over_with_the_next_success(model: Model, url: str) -> None:
    model.answer = b""
    async with replica(url, model) as one:
        one.summaries.start(task())
        await one.summaries.settled()
        assert one.summaries.state(KEY, task().want.first) == "failed"
        model.answer = answer_with(GOOD)
        assert (await one.record_of(task())).content == GOOD
        assert one.summaries.state(KEY, task().want.first) == ""


async def test_f_a_locked_file_costs_one_look_and_no_call(tmp_path: Path, url: str, model: Model) -> None:
    async with replica(url, model, patience=0.2) as one:
        with closing(sqlite3.connect(tmp_path / "narrows.db", isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            assert await attempts(one, 3) == ["failed"] * 3
            other.execute("ROLLBACK")
        assert (model.calls, one.outcomes("store_trouble"), one.outcomes("paused")) == (0, 1, 2)
        assert len(one.lines("summaries_store_trouble")) == 1


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_f_a_redis_that_went_away_costs_no_call_and_one_line(
    servers: Park, model: Model, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    pause_breakers(monkeypatch, "store", 0.1)
    server = servers.server()
    async with replica(server.url, model, patience=0.5) as one:
        if how == "frozen":
            with server.frozen():
                assert await attempts(one, 2) == ["failed"] * 2
        else:
            server.kill()
            assert await attempts(one, 2) == ["failed"] * 2
            server.start()
        assert model.calls == 0
        for _ in range(100):
            await asyncio.sleep(0.1)
            one.summaries.start(task())
            await one.summaries.settled()
            if model.calls:
                break
        assert one.summaries.state(KEY, task().want.first) == ""
        assert len(one.lines("summaries_store_trouble")) == len(one.lines("summaries_store_recovered")) == 1


async def test_f_a_store_that_goes_while_the_model_writes_loses_nothing_here(
    servers: Park, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.summaries.maker._AGAIN", 0.0)
    monkeypatch.setattr("proxy.memory.cached._LAST_SECONDS", 0.05)
    server = servers.server()
    async with replica(server.url, model, patience=0.1) as one:
        model.may.clear()
        one.summaries.start(task())
        await soon(lambda: model.calls)
        server.kill()
        model.may.set()
        await one.summaries.settled()
        (record,) = one.summaries.recent(KEY, task().want.first)
        assert (record.content, one.summaries.state(KEY, record.first)) == (GOOD, "")
        assert one.count("store_trouble", operation="put_summary") == 2
        assert one.count("store_trouble", operation="spend") == 1
        assert one.count("summary_tokens", kind="input") == 9
