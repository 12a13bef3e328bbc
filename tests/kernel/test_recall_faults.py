"""Recalls in bad times: an upstream that fails in the next round, clients that leave, a store in trouble, and
what is billed for it all.
"""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import aiohttp
import openai
import pytest
from yarl import URL

from policies.tools import RECALL
from proxy.app import App
from proxy.kernel import understand as recalls
from proxy.kernel.plan import plan_and_render as planned
from proxy.lab.provider import APIS, Abort, Answer, Received, Say, Send, Violation, Wire
from tests.kit.counted import counted
from tests.kit.recalling import (
    BOTH,
    REPORT,
    TOOLS,
    Client,
    Turn,
    answered,
    call,
    extends,
    fetched,
    hiding,
    plays,
    recall,
    refs,
    wants,
)
from tests.kit.running import compaction_of
from tests.kit.stage import Stage
from tests.kit.upstream import delta, event, post

pytestmark = pytest.mark.usefixtures("patient")
EVENTS = (("Content-Type", "text/event-stream"),)


def body(stream: bool) -> bytes:
    return json.dumps({"model": "m", "messages": hiding(), "tools": TOOLS, "stream": stream}).encode()


def refusal(status: int) -> Send:
    retry = (("Content-Type", "application/json"), ("Retry-After", "7"), ("x-ratelimit-remaining-requests", "0"))
    return Send(status, APIS["openai_chat"].error_body(Violation(f"No, {status}.", code=f"code_{status}")), retry)


# --- the upstream fails in round two ---


FAULTS: dict[str, Answer] = {
    "400": refusal(400),
    "429": refusal(429),
    "500": refusal(500),
    "500 without words": Send(500, b"<html>oops</html>", (("Content-Type", "text/html"),)),
    "dies before its head": Abort(),
    "dies in the middle": Say("I see now that it is so.", wire=Wire(die_at=300)),
    "garbage": Send(200, b"\x00\xff garbage", (("Content-Type", "text/plain"),)),
}


@pytest.mark.parametrize("fault", [*FAULTS, "JSON"])
async def test_r6_a_stream_whose_next_round_fails_says_so_and_ends(
    stage: Stage, client: Client, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = FAULTS.get(fault, Send(200, json.dumps({"choices": []}).encode()))
    stage.provider.answer = plays(wants("Let me look. "), answer)
    with pytest.raises((openai.APIError, aiohttp.ClientError)) as caught:
        await client.ask(hiding(), stream=True)
    assert isinstance(caught.value, openai.APIError)
    assert caught.value.body is not None
    raw = client.raw
    assert b"[DONE]" not in raw
    assert RECALL.encode() not in raw
    assert b'"finish_reason":"' not in raw.replace(b": ", b":")
    said = json.loads(raw.rstrip().splitlines()[-1].removeprefix(b"data: "))["error"]
    codes = {"400": "code_400", "429": "code_429", "500": "code_500"}
    others = "upstream_cut" if fault.startswith("dies") else "upstream_refused"
    assert said["code"] == codes.get(fault, others)
    assert "Let me " in "".join(_texts(raw))
    assert "unexpected" not in capsys.readouterr().err


def _texts(raw: bytes) -> list[str]:
    """What was said before the error."""
    chunks = [json.loads(line[6:]) for line in raw.splitlines() if line.startswith(b"data: {")]
    return [choice["delta"].get("content") or "" for chunk in chunks for choice in chunk.get("choices", ())]


@pytest.mark.parametrize("fault", [*FAULTS, "events"])
async def test_r6_a_whole_reply_whose_next_round_fails_is_that_failure(stage: Stage, app: App, fault: str) -> None:
    answer = FAULTS.get(fault, Send(200, event(delta("x")) + b"data: [DONE]\n\n", EVENTS))
    stage.provider.answer = plays(wants("Let me look. "), answer)
    exchange = await stage.post(app, body(stream=False))
    assert RECALL.encode() not in exchange.reply
    if isinstance(answer, Send):
        assert (exchange.status, exchange.reply) == (answer.status, answer.body)
        assert answer.headers[-1] in exchange.headers.items()
    else:
        assert exchange.status == 502
        assert json.loads(exchange.reply)["error"]["code"] == "upstream_cut"


async def test_r6_after_a_failure_the_client_asks_again_and_all_is_well(stage: Stage, client: Client) -> None:
    stage.provider.answer = plays(wants("Let me look. "), refusal(429), wants("Again. "), Say("Seen."))
    said = hiding()
    with pytest.raises(openai.RateLimitError) as caught:
        await client.ask(said)
    assert caught.value.response.headers["retry-after"] == "7"
    heard = await client.ask(said)
    assert heard.text == "Again. Seen."
    assert fetched(stage.provider.requests[-1]) == [REPORT]


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd"])
@BOTH
async def test_r3_an_upstream_that_encodes_though_it_was_asked_not_to(
    stage: Stage, client: Client, stream: bool, encoding: str
) -> None:
    wire = Wire(encoding=encoding, cuts=range(1, 4_000, 7))
    stage.provider.answer = plays(wants("Let me look. ", wire=wire), Say("Seen.", wire=wire))
    heard = await client.ask(hiding(), stream)
    assert (heard.text, heard.finish) == ("Let me look. Seen.", "stop")
    assert [request.headers.get("Accept-Encoding") for request in stage.provider.requests] == ["identity"] * 2
    assert "content-encoding" not in heard.headers


@BOTH
async def test_r3_an_upstream_that_encodes_the_next_round_only(stage: Stage, client: Client, stream: bool) -> None:
    stage.provider.answer = plays(wants("Let me look. "), Say("Seen.", wire=Wire(encoding="gzip")))
    assert (await client.ask(hiding(), stream)).text == "Let me look. Seen."


# --- who leaves takes all along ---


class Hanging:
    """Something that is never answered, and whether anybody waits for it."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    async def gate(self) -> None:
        self.begun.set()
        await asyncio.sleep(60)

    async def events(self) -> AsyncIterator[bytes]:
        yield event(delta("Seen, "))
        await self.gate()

    async def text(self) -> AsyncIterator[bytes]:
        yield b'{"id": "c1", '
        await self.gate()


MOMENTS: dict[str, Callable[[Hanging, bool], tuple[Turn, ...]]] = {
    "before round one": lambda h, _: (wants(wire=Wire(gate=h.gate)),),
    "in round one": lambda h, s: (Send(200, h.events() if s else h.text(), EVENTS if s else Send().headers),),
    "before round two": lambda h, _: (wants("Look. "), Say("Seen.", wire=Wire(gate=h.gate))),
    "in round two": lambda h, s: (
        wants("Look. "),
        Send(200, h.events() if s else h.text(), EVENTS if s else Send().headers),
    ),
}


@pytest.mark.parametrize("moment", MOMENTS)
@BOTH
async def test_t4_a_client_that_leaves_takes_the_round_along(stage: Stage, app: App, moment: str, stream: bool) -> None:
    hanging = Hanging()
    stage.provider.answer = plays(*MOMENTS[moment](hanging, stream))
    before = len(asyncio.all_tasks())
    asked = asyncio.ensure_future(stage.post(app, body(stream)))
    async with asyncio.timeout(10):
        await hanging.begun.wait()
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        while stage.provider.requests[-1].outcome == "open" or app.gateway.running:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        while len(asyncio.all_tasks()) > before + 1:  # noqa: ASYNC110 - the provider keeps its connection's
            await asyncio.sleep(0.005)
    assert stage.provider.requests[-1].outcome == "cancelled"
    assert b'kind="client_left"' in app.telemetry.metrics.page()


@BOTH
async def test_t7_a_round_that_does_not_finish_in_time_is_told_so(stage: Stage, app: App, stream: bool) -> None:
    hanging = Hanging()
    stage.provider.answer = plays(wants("Look. "), Say("Seen.", wire=Wire(gate=hanging.gate)))
    url = f"{app.base_url}/chat/completions"
    async with asyncio.timeout(10), aiohttp.ClientSession() as session:
        asked = asyncio.ensure_future(session.post(url, data=body(stream)))
        await hanging.begun.wait()
        closing = asyncio.ensure_future(app.close(0))
        reply = await asked
        raw = b""
        with suppress(aiohttp.ClientPayloadError):
            async for piece in reply.content.iter_any():
                raw += piece
        reply.close()
        await closing
    assert reply.status == (200 if stream else 503)
    assert json.loads(raw.rstrip().splitlines()[-1].removeprefix(b"data: "))["error"]["code"] == "shutting_down"
    assert b"[DONE]" not in raw


# --- trouble of our own ---


@pytest.mark.parametrize("trouble", ["locked", "read-only"])
@BOTH
async def test_f_a_store_in_trouble_costs_no_reply(
    stage: Stage, client: Client, stream: bool, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.memory.cached._PATIENCE", 0.05)
    stage.provider.answer = plays(wants("Look. "), Say("Seen."))
    said = hiding()
    lock = sqlite3.connect(stage.path)
    lock.execute("BEGIN EXCLUSIVE" if trouble == "locked" else "PRAGMA query_only = 1")
    if trouble == "read-only":
        for file in stage.path.parent.glob("narrows.db*"):
            file.chmod(0o444)
    heard = await client.ask(said, stream)
    assert (heard.text, fetched(stage.provider.requests[-1])) == ("Look. Seen.", [REPORT])
    await client.ask(said + answered(heard.message()), stream)
    assert extends(*list(stage.provider.requests)[-2:])
    lock.close()


@BOTH
async def test_f_a_plan_that_fails_in_round_two_costs_no_answer(
    stage: Stage, client: Client, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*given: Any) -> Any:
        if RECALL in {block.tool for block in given[2].blocks}:
            raise RuntimeError("planted")
        return planned(*given)

    monkeypatch.setattr("proxy.kernel.plan.plan_and_render", failing)
    known: list[str] = []

    def remembers(received: Received) -> Answer:
        """What is not planned has no stubs, so the model goes by what it saw."""
        known.extend(refs(received))
        return Say(
            "Hm. " if fetched(received) else "Look. ", [recall(known[0], "lines 1" if fetched(received) else "")]
        )

    stage.provider.answer = plays(remembers, remembers, Say("Seen."))
    heard = await client.ask(hiding(), stream)
    assert (heard.text, heard.finish) == ("Look. Hm. Seen.", "stop")
    last = stage.provider.requests[-1]
    assert (last.violation, fetched(last)) == (None, [REPORT, REPORT.splitlines(keepends=True)[0]])


@pytest.mark.parametrize(("where", "what"), [(recalls, "restore"), (None, "learn")], ids=["made", "put on record"])
@BOTH
async def test_f_an_exchange_that_cannot_be_made_ends_the_reply_soundly(
    stage: Stage, app: App, stream: bool, where: Any, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> Any:
        raise RuntimeError("planted")

    monkeypatch.setattr(where or compaction_of(app).follow_up, what, failing)
    stage.provider.answer = plays(wants("Look. "))
    reader, writer = await asyncio.open_connection("127.0.0.1", URL(app.base_url).port)
    writer.write(post(body(stream)))
    async with asyncio.timeout(10):
        raw = await reader.read()
    writer.close()
    assert raw.count(b"HTTP/1.1 ") == 1
    assert b"[DONE]" not in raw
    assert b"narrows_failed" in raw


# --- the bill ---


@BOTH
async def test_r6_recalls_are_counted_and_so_is_what_they_cost(
    stage: Stage, app: App, client: Client, stream: bool
) -> None:
    def three(received: Received) -> Answer:
        return Say(None, [recall(refs(received)[0]), recall("000000", id_="b"), recall(refs(received)[0], "?", "c")])

    stage.provider.answer = plays(wants("Look. "), three, Say("Seen.", [call("a", "bash")]))
    options: Any = {"stream_options": {"include_usage": True}} if stream else {}
    await client.ask(hiding(), stream, **options)
    async with aiohttp.ClientSession() as session, session.get(app.base_url[:-3] + "/metrics") as page:
        text = await page.text()
    usages = [request.usage for request in stage.provider.requests]
    later = [usage for usage in usages[1:] if usage]
    assert [counted(text, "recalls_total", outcome=outcome) for outcome in ("answered", "refused")] == [2, 2]
    assert counted(text, "recall_rounds_total") == 2
    assert counted(text, "recall_tokens_total", kind="output") == sum(usage.completion for usage in later)
    assert counted(text, "recall_tokens_total", kind="cached") == sum(usage.cached for usage in later)
    for kind, some in (("request", usages[:1]), ("recall", later)):  # at a dollar a million, half from the cache
        dollars = sum(usage.prompt - usage.cached / 2 + usage.completion for usage in some if usage) / 1e6
        assert counted(text, "cost_usd_total", kind=kind) == pytest.approx(dollars)
    output = sum(usage.completion for usage in usages if usage)
    assert counted(text, "billed_tokens_total", kind="output", model="m", tenant="local", preset="keeping") == output
    assert counted(text, "prompt_tokens_sent_total") == (usages[0].prompt if usages[0] else None)
    assert counted(text, "requests_total", mode="compacted", status="2xx") == 1


async def test_r6_the_log_says_how_many_rounds(stage: Stage, app: App, capsys: pytest.CaptureFixture[str]) -> None:
    loud = await stage.start(preset="keeping", log_level="info", log_format="json")
    stage.provider.answer = plays(wants("Look. "), wants("Hm. ", "lines 1"), Say("Seen."))
    await stage.post(loud, body(stream=True))
    (line,) = [json.loads(line) for line in capsys.readouterr().err.splitlines() if '"request"' in line]
    assert (line["rounds"], line["status"], line["route"]) == (2, 200, "chat")


@BOTH
@pytest.mark.parametrize("fault", ["429", "dies before its head"])
async def test_r6_a_round_that_was_refused_is_not_billed(stage: Stage, app: App, fault: str, stream: bool) -> None:
    stage.provider.answer = plays(wants("Look. "), FAULTS[fault])
    with suppress(aiohttp.ClientPayloadError):
        await stage.post(app, body(stream))
    first, telemetry = stage.provider.requests[0].usage, app.telemetry
    assert first is not None
    billed = counted(telemetry, "billed_tokens_total") - counted(telemetry, "billed_tokens_total", kind="output")
    assert billed == first.prompt or (stream and billed <= first.prompt + 100)
    assert counted(telemetry, "cost_unknown_total", reason="no_usage") == int(stream)
