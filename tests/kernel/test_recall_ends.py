"""R1, R3, R4: how replies with recalls end, and what must not be forgotten when they do."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import openai
import pytest

from policies.tools import RECALL
from proxy.app import App
from proxy.lab.provider import Answer, Received, Say, Send
from proxy.memory import StoreTrouble
from proxy.memory.cached import CachedStore
from tests.kit.histories import Json
from tests.kit.recalling import (
    BOTH,
    REPORT,
    TOOLS,
    Client,
    Heard,
    Turn,
    answered,
    call,
    client_of,
    extends,
    fetched,
    hiding,
    plays,
    recall,
    refs,
    wants,
)
from tests.kit.stage import Stage
from tests.kit.upstream import delta, event

pytestmark = pytest.mark.usefixtures("patient")
EVENTS = (("Content-Type", "text/event-stream"),)


def asks_in_events(end: bytes) -> Turn:
    """A stream that says something, recalls, and ends like this."""

    def turn(received: Received) -> Answer:
        made = {"index": 0, **recall(refs(received)[0])}
        pieces = [
            delta("Let me look. "),
            delta(delta={"tool_calls": [made]}),
            delta(delta={}, finish_reason="tool_calls"),
        ]
        return Send(200, b"".join(map(event, pieces)) + end, EVENTS)

    return turn


@pytest.mark.parametrize(
    "end", [b"data: [DONE]\n", b"data: [DONE]", b"", b": bye"], ids=["line", "bare", "none", "word"]
)
async def test_r3_however_a_round_ends_the_next_one_is_heard(stage: Stage, app: App, end: bytes) -> None:
    stage.provider.answer = plays(asks_in_events(end), Say("Seen."))
    exchange = await stage.ask(app, hiding(), tools=TOOLS, stream=True)
    texts = [json.loads(line[6:]) for line in exchange.reply.splitlines() if line.startswith(b"data: {")]
    said = "".join(choice["delta"].get("content") or "" for chunk in texts for choice in chunk["choices"])
    assert said == "Let me look. Seen."
    assert exchange.reply.count(b"[DONE]") == 1
    assert RECALL.encode() not in exchange.reply


@pytest.mark.parametrize("choice", [0, 1])
async def test_r4_choices_that_are_said_one_after_the_other_are_each_remembered(
    stage: Stage, app: App, choice: int
) -> None:
    date = call("a", "bash", command="date")

    def one_by_one(received: Received) -> Answer:
        events = []
        for index in (0, 1):
            calls = [recall(refs(received)[0], id_=f"r{index}"), date]
            said = {"role": "assistant", "content": f"Choice {index}. "}
            events.append(delta(index=index, delta=said))
            events.append(delta(index=index, delta={"tool_calls": [{"index": i, **c} for i, c in enumerate(calls)]}))
            events.append(delta(index=index, delta={}, finish_reason="tool_calls"))
        return Send(200, b"".join(map(event, events)) + b"data: [DONE]\n\n", EVENTS)

    stage.provider.answer = plays(one_by_one)
    said = hiding()
    await stage.ask(app, said, tools=TOOLS, stream=True, n=2)
    reply = {"role": "assistant", "content": f"Choice {choice}. ", "tool_calls": [date]}
    await stage.ask(app, [*said, *answered(reply, "noon")], tools=TOOLS)
    assert fetched(stage.provider.requests[-1]) == [REPORT]
    assert stage.provider.requests[-1].violation is None


def failing(real: Callable[..., Any], times: int) -> Callable[..., Any]:
    left = [times]

    async def asked(self: CachedStore, operation: str, ask: Any, **how: Any) -> Any:
        if operation == "insert" and left[0]:
            left[0] -= 1
            raise StoreTrouble("planted")
        return await real(self, operation, ask, **how)

    return asked


async def returned_elsewhere(stage: Stage, client: Client, stream: bool) -> Heard:
    """What is heard of a replica, to which the client goes on with the reply."""
    said = hiding()
    said += answered((await client.ask(said, stream)).message())
    await asyncio.sleep(0.2)
    other = await stage.start(preset="keeping")
    async with client_of(other.base_url) as elsewhere:
        return await elsewhere.ask(said, stream)


@BOTH
async def test_f_an_exchange_that_could_not_be_written_is_written_later(
    stage: Stage, client: Client, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CachedStore, "ask", failing(CachedStore.ask, 1))
    stage.provider.answer = plays(wants("Let me look. "), Say("Seen."))
    heard = await returned_elsewhere(stage, client, stream)
    assert heard.headers["x-narrows-prefix"] == "extended"
    assert extends(*list(stage.provider.requests)[-2:])
    assert fetched(stage.provider.requests[-1]) == [REPORT]


@BOTH
async def test_s1_an_exchange_that_was_never_written_is_declared(
    stage: Stage, client: Client, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CachedStore, "ask", failing(CachedStore.ask, 1000))
    stage.provider.answer = plays(wants("Let me look. "), Say("Seen."))
    heard = await returned_elsewhere(stage, client, stream)
    assert not extends(*list(stage.provider.requests)[-2:])
    assert heard.headers["x-narrows-prefix"] == "checkpoint:replayed"


async def test_r4_text_in_parts_before_a_call_of_the_clients(stage: Stage, client: Client) -> None:
    stage.provider.answer = plays(wants("Let me look."), Say(None, [call("a", "bash", command="date")]))
    said = hiding()
    reply = (await client.ask(said)).message()
    in_parts: Json = {**reply, "content": [{"type": "text", "text": reply["content"]}]}
    heard = await client.ask([*said, *answered(in_parts, "noon")])
    assert heard.headers["x-narrows-prefix"] == "extended"
    assert extends(*list(stage.provider.requests)[-2:])
    assert stage.provider.requests[-1].json["messages"][-2]["content"] is None


async def test_s2_a_lost_exchange_is_told_where_a_result_is_cut_too(stage: Stage, client: Client) -> None:
    stage.provider.answer = plays(
        lambda _: Say("Hm. ", [recall("000000")]), Say("Seen. ", [call("z", "bash", command="true")])
    )
    said = hiding()[:-2]
    reply = (await client.ask(said)).message()
    heard = await client.ask([*said, *answered({**reply, "content": "I never looked."}, "ok")])
    assert heard.headers["x-narrows-prefix"] == "checkpoint:recall"


@pytest.mark.parametrize(
    "error",
    [
        {"message": "Slow down.", "type": "rate_limit_error", "param": None, "code": "rate_limit_exceeded"},
        {"message": "Slow down.", "code": 429, "metadata": {"provider_name": "x"}},
    ],
    ids=["openai", "number"],
)
async def test_r6_the_error_of_a_round_reaches_a_stream_as_it_is(
    stage: Stage, app: App, client: Client, error: Json
) -> None:
    stage.provider.answer = plays(wants("Look. "), Send(429, json.dumps({"error": error}, indent=2).encode()))
    with pytest.raises(openai.APIError) as caught:
        await client.ask(hiding(), stream=True)
    assert caught.value.body == error
    assert b'narrows_trouble_total{kind="upstream_refused"} 1.0' in app.telemetry.metrics.page()


@pytest.mark.parametrize("limit", [300, 12])
async def test_r3_a_limit_of_tokens_holds_over_all_rounds(stage: Stage, client: Client, limit: int) -> None:
    stage.provider.answer = plays(wants("Let me look. "), Say("Seen."))
    await client.ask(hiding(), max_tokens=limit)
    first, second = stage.provider.requests
    assert first.usage is not None
    assert second.json["max_tokens"] == max(1, limit - first.usage.completion)


async def test_r6_recalls_beside_other_calls_are_counted(stage: Stage, app: App, client: Client) -> None:
    stage.provider.answer = plays(
        lambda received: Say(None, [recall(refs(received)[0]), call("a", "bash", command="date")])
    )
    await client.ask(hiding())
    assert b'narrows_recalls_total{outcome="beside"} 1.0' in app.telemetry.metrics.page()


async def test_r1_what_was_fetched_in_a_reply_can_be_fetched_again_in_it(stage: Stage) -> None:
    """In a small window a recalled part is cut at once, and its stub is no dead end."""
    small = await stage.start(preset="coding-agent", floor=0)
    history = hiding("\n".join([REPORT] * 3))
    stage.provider.answer = plays(wants(None, "lines 2-"), _again, Say("Done."))
    async with client_of(small.base_url) as client:
        try:
            await client.ask(history, model="small")
        except openai.APIError as error:  # too small for anything
            pytest.fail(str(error))
    assert not any("do not retry" in text for text in fetched(stage.provider.requests[-1]))


def _again(received: Received) -> Answer:
    return Say(None, [recall(refs(received)[-1], id_="recall_2")])
