"""Nothing new is planned where there is no time: over a strict provider, in one conversation and across restarts."""

import asyncio
import json
import threading
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from policies.dialects import DIALECTS
from policies.model.conversation import converse
from proxy.kernel import understand
from proxy.kernel.understand import RequestParser
from proxy.memory.conversation import Conversations
from tests.kit.stage import Stage, ends, moved, working

pytestmark = pytest.mark.usefixtures("patient")

SESSION = working(12)
SHED = "planning-shed"


def shed_at_random(monkeypatch: pytest.MonkeyPatch, random: Random, share: float) -> None:
    monkeypatch.setattr("proxy.kernel.admission.Visit.begin_planning", lambda *_: random.random() >= share)


@pytest.mark.parametrize("seed", range(3))
async def test_s2_shed_at_any_request_what_stands_stays_and_no_prefix_moves_unsaid(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    random = Random(seed)
    shed_at_random(monkeypatch, random, 0.5)
    app, exchanges = await stage.start(), []
    for end in ends(SESSION):
        if random.random() < 0.2:
            await app.close(1)
            app = await stage.start()
        exchanges.append(await stage.ask(app, SESSION[:end]))
    assert {exchange.status for exchange in exchanges} == {200}  # the strict provider refuses what is not valid
    assert moved(exchanges) == []
    shed = [exchange for exchange in exchanges if SHED in exchange.headers.get("x-narrows-warning", "")]
    assert shed
    assert {exchange.prefix for exchange in shed} <= {"first", "extended", "checkpoint:shed"}
    assert {exchange.mode for exchange in exchanges[-4:]} == {"compacted"}
    assert "checkpoint:replayed" not in {exchange.prefix for exchange in exchanges}


async def test_s2_a_history_that_nobody_knows_passes_untouched_and_is_shortened_later(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = await stage.start()
    shed_at_random(monkeypatch, Random(1), 1.0)
    first = await stage.ask(app, SESSION[: ends(SESSION)[-3]])
    assert (first.mode, first.prefix) == ("untouched", "checkpoint:shed")
    assert first.own == first.given
    shed_at_random(monkeypatch, Random(1), 0.0)
    later = [first, *[await stage.ask(app, SESSION[:end]) for end in ends(SESSION)[-2:]]]
    assert moved(later) == []
    assert {exchange.prefix for exchange in later[1:]} <= {"extended", "tail-cut", "checkpoint:paid"}
    other = await stage.start()  # another one, which has only the store
    assert (await stage.ask(other, SESSION[: ends(SESSION)[-1]])).sent == later[-1].sent
    page = app.telemetry.metrics.page()
    assert f"narrows_shed_tokens_total {first.headers['x-narrows-tokens-after']}" in page.decode().replace(".0\n", "\n")


async def test_time_is_up_before_anything_was_planned(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.kernel.plan._MANY_STEPS", 0)
    slow = await stage.start(planning_timeout=1e-9)
    shed = await stage.ask(slow, SESSION[:-1])
    assert (shed.status, shed.mode, shed.headers["x-narrows-warning"]) == (200, "untouched", SHED)
    assert b'narrows_shed_total{reason="time"} 1.0' in slow.telemetry.metrics.page()


async def test_what_does_not_fit_without_a_plan_is_refused_for_a_moment(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    shed_at_random(monkeypatch, Random(1), 1.0)
    app = await stage.start(models={"m": {"input": 1, "output": 1, "window": 2_000}})
    body = json.dumps({"model": "m", "messages": SESSION[:-1]}).encode()
    head = {"Content-Type": "application/json", "Authorization": "Bearer k"}
    async with stage.client.post(f"{app.base_url}/chat/completions", data=body, headers=head) as reply:
        error = (await reply.json())["error"]
        assert (reply.status, reply.headers["Retry-After"], error["code"]) == (503, "2", "planning_shed")
    assert not stage.provider.requests


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_t6_many_small_messages_are_not_read_on_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, dialect: str
) -> None:
    threads = set[threading.Thread]()

    def noting(work: Any) -> Any:
        def noted(*given: Any) -> Any:
            threads.add(threading.current_thread())
            return work(*given)

        return noted

    monkeypatch.setattr(understand, "converse", noting(converse))
    real = DIALECTS[dialect]
    monkeypatch.setattr(type(real), "split", noting(type(real).split))
    monkeypatch.setattr(understand, "DIALECTS", {**DIALECTS, dialect: replace(real, read=noting(real.read))})
    history = "input" if dialect == "openai_responses" else "messages"
    messages = b",".join(b'{"role":"user","content":"%d"}' % n for n in range(3_000))
    body = b'{"model":"m","max_tokens":1,"' + history.encode() + b'":[' + messages + b"]}"
    parsed = await RequestParser(Conversations()).parse(dialect, body, "me")
    assert parsed is not None
    assert len(parsed.conversation.messages) == 3_000
    assert threads
    assert threading.main_thread() not in threads


async def test_f_planning_stops_with_its_client(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.kernel.plan._MANY_STEPS", 0)
    app, asked, stopped = await stage.start(), asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slow(*given: Any) -> Any:
        loop.call_soon_threadsafe(asked.set)
        deadline = given[-1]
        try:
            while not stopped.wait(0.001):
                deadline()
        except Exception:
            stopped.set()
            raise

    monkeypatch.setattr("proxy.kernel.plan.plan_and_render", slow)
    leaving = asyncio.create_task(stage.ask(app, SESSION[:-1]))
    await asked.wait()
    leaving.cancel()
    assert await asyncio.to_thread(stopped.wait, 10)
