"""A client that waits for a summary may be told so: its response begins early, and what follows is said in it."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest

from policies.presets import PRESETS, Preset
from policies.tools import RECALL
from proxy.app import App
from proxy.config import Settings
from proxy.errors import ApiError
from proxy.kernel.prepare import Prepare
from proxy.lab.provider import Say, Send
from proxy.requests import ClientRequest, UpstreamRequest
from proxy.sse import BOM
from proxy.summaries.background import Waiting
from tests.kernel.test_serve import TOOL, WORDS
from tests.kernel.test_transport import closes, cut_after, garbles
from tests.kit.recalling import KEEPING, REPORT, Client, client_of, fetched, hiding, plays, wants
from tests.kit.running import PassThrough, Start
from tests.kit.stage import MODELS, Stage
from tests.kit.upstream import (
    CHAT,
    COMPRESS,
    REQUEST,
    Asked,
    Script,
    chunk,
    completion,
    delta,
    event,
    json_answer,
    post,
    says,
    stream_head,
    whole,
)

OPTED: dict[str, Any] = {"summary_wait": 1000, "summary_comments": True}
ASKED = json.dumps({**REQUEST, "stream": True}).encode()
UPDATING = b": updating summary\n\n"
SAID = event(delta("one")) + b"data: [DONE]\n\n"
STREAMED = stream_head("Date: today", "x-request-id: r1") + chunk(SAID) + chunk(b"")
STALE = ApiError(400, "The summary is stale.", "stale_summary")
ID = re.compile(rb"(?<=x-narrows-request-id: )[0-9a-f-]{36}")
DECLARED = b": x-narrows-mode: untouched\n: x-narrows-prefix: first\n: x-narrows-conversation: c1\n\n"


@dataclass(slots=True, eq=False)
class Waits(PassThrough):
    """Waits for a summary where the client streams, and is then perhaps refused or at a loss."""

    until: Callable[[], Awaitable[object]] | None = field(default=partial(asyncio.sleep, 60))
    fault: Exception | None = None

    async def prepare(self, client_request: ClientRequest, waiting: Waiting | None = None, /) -> UpstreamRequest:
        if self.until is not None and waiting is not None and json.loads(client_request.body).get("stream"):
            async with waiting():
                await self.until()
        if self.fault is not None:
            raise self.fault
        return await PassThrough.prepare(self, client_request)


def made() -> Waits:
    """A wait that is over as soon as the client was told of it."""
    return Waits(until=partial(asyncio.sleep, 0.02))


async def at_once() -> None:
    """No wait at all."""


def body_of(reply: bytes) -> bytes:
    """The body of a raw chunked reply, as far as it came."""
    rest, body = reply.partition(b"\r\n\r\n")[2], b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return body


def error_in(reply: bytes) -> dict[str, Any]:
    """The error that a raw reply ends with, after comments and instead of an end."""
    assert reply.startswith(b"HTTP/1.1 200 OK\r\n")
    assert not reply.endswith(b"0\r\n\r\n")
    body = body_of(reply)
    assert body.startswith(UPDATING)
    assert b"[DONE]" not in body
    assert b"finish_reason" not in body
    events = body.removesuffix(b"\n\n").split(b"\n\n")
    found: dict[str, Any] = json.loads(events[-1].removeprefix(b"data: "))["error"]
    return found


def logged(capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Status and trouble of the one request line."""
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    (line,) = [line for line in lines if line["event"] == "request" and line["route"] == "chat"]
    return line["status"], line.get("trouble", "")


async def test_m8_who_waits_is_told_before_the_upstream_is_asked(
    narrows: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.kernel.wire.downstream._UPDATING_SECONDS", 0.01)
    over = asyncio.Event()
    waits = Waits(until=over.wait)
    setup = await narrows(STREAMED, waits, **OPTED)
    async with asyncio.timeout(10), setup.client.post(setup.url + CHAT, data=ASKED) as reply:
        assert (reply.status, reply.headers["Content-Type"]) == (200, "text/event-stream")
        assert (reply.headers["Cache-Control"], reply.headers["x-narrows-summary"]) == ("no-cache", "pending")
        assert await reply.content.readexactly(3 * len(UPDATING)) == 3 * UPDATING
        assert setup.upstream.seen == []
        over.set()
        rest = await reply.read()
    assert rest.replace(UPDATING, b"") == DECLARED + SAID
    assert rest.endswith(SAID)
    assert (waits.seen[0].status, b"".join(waits.seen[0].events)) == (200, SAID)


async def test_m8_the_reply_waits_for_no_comment(narrows: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.kernel.wire.downstream._UPDATING_SECONDS", 3600)
    setup = await narrows(STREAMED, made(), **OPTED)
    assert body_of(await setup.raw(post(ASKED), seconds=30)) == UPDATING + DECLARED + SAID


async def test_m8_the_connection_serves_the_next_request_too(narrows: Start) -> None:
    setup = await narrows(STREAMED, made(), **OPTED)
    plain = json.dumps(REQUEST).encode()
    reply = await setup.raw(post(ASKED).replace(b"Connection: close\r\n", b"") + post(plain))
    early, _, relayed = reply.partition(b"\r\n0\r\n\r\n")
    assert early.startswith(b"HTTP/1.1 200 OK\r\n")
    assert relayed.startswith(b"HTTP/1.1 200 OK\r\n")
    assert body_of(relayed) == SAID


async def test_m8_a_client_of_http_1_0_gets_it_without_chunks(narrows: Start) -> None:
    setup = await narrows(STREAMED, made(), **OPTED)
    reply = await setup.raw(post(ASKED).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
    assert reply.partition(b"\r\n\r\n")[2] == UPDATING + DECLARED + SAID


@pytest.mark.parametrize(
    ("settings", "waits"),
    [
        ({"summary_wait": 1000}, made()),
        ({"summary_comments": True}, Waits()),
        (OPTED, Waits(until=None)),
        (OPTED, Waits(until=at_once)),
    ],
    ids=["no comments", "no wait", "nothing to wait for", "there at once"],
)
async def test_m8_who_is_not_told_gets_the_very_bytes_of_ever(
    narrows: Start, settings: dict[str, Any], waits: Waits
) -> None:
    plain, opted = await narrows(STREAMED), await narrows(STREAMED, waits, **settings)
    reply = await opted.raw(post(ASKED))
    assert ID.sub(b"ID", reply) == ID.sub(b"ID", await plain.raw(post(ASKED)))
    assert b"x-request-id: r1\r\n" in reply
    assert body_of(reply) == SAID
    assert opted.upstream.seen[0].headers[1:] == plain.upstream.seen[0].headers[1:]


# --- what goes wrong afterwards ---


LIMITED = {"message": "Slow down.", "type": "rate_limit_error", "param": None, "code": "rate_limit_exceeded"}
REFUSALS: dict[str, tuple[Script, str, int]] = {
    "429": (says(json_answer({"error": LIMITED}, status="429 Slow Down")), "upstream_429", 429),
    "500": (says(whole(b"<html>oops</html>", "Content-Type: text/html", status="500 Oops")), "upstream_500", 500),
    "no stream": (says(json_answer(completion())), "upstream_200", 200),
    "unreadable": (says(whole(SAID, "Content-Type: text/event-stream", "Content-Encoding: x")), "upstream_200", 200),
    "a refusal that breaks off": (
        cut_after(json_answer({"error": LIMITED}, status="429 No")[:-9]),
        "upstream_429",
        429,
    ),
    "closes": (closes, "upstream_cut", 0),
    "garbles": (garbles, "upstream_garbled", 0),
}


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_m8_what_the_upstream_refuses_is_told_in_band(
    narrows: Start, refusal: str, capfd: pytest.CaptureFixture[str]
) -> None:
    script, code, status = REFUSALS[refusal]
    waits = made()
    setup = await narrows(script, waits, log_level="info", log_format="json", **OPTED)
    error = error_in(await setup.raw(post(ASKED)))
    assert error == LIMITED if refusal == "429" else error["code"] == code
    assert logged(capfd) == (200, code)
    assert waits.seen[0].status == status


async def test_t3_an_upstream_that_is_not_there_is_told_in_band(narrows: Start, free_port: int) -> None:
    setup = await narrows(None, made(), upstream=f"http://127.0.0.1:{free_port}/v1", **OPTED)
    assert error_in(await setup.raw(post(ASKED)))["code"] == "upstream_unreachable"


@pytest.mark.parametrize(
    "head", [stream_head(), whole(b"", "Content-Type: text/event-stream").replace(b": 0", b": 99")]
)
async def test_t3_an_upstream_that_dies_in_its_stream_is_told_in_band(narrows: Start, head: bytes) -> None:
    said = b": one\n\ndata: ha"
    setup = await narrows(cut_after(head, chunk(said) if b"chunked" in head else said), made(), **OPTED)
    reply = await setup.raw(post(ASKED))
    assert error_in(reply)["code"] == "upstream_cut"
    assert b": one\n\ndata: {" in body_of(reply)


@pytest.mark.parametrize("encoding", COMPRESS)
async def test_m8_an_encoded_reply_goes_on_as_it_is_meant(narrows: Start, encoding: str) -> None:
    """It is asked for as it is; an upstream that encodes it all the same is understood."""
    encoded = COMPRESS[encoding](BOM + SAID)
    answer = whole(encoded, "Content-Type: text/event-stream", f"Content-Encoding: {encoding}")
    setup = await narrows(answer, made(), **OPTED)
    assert body_of(await setup.raw(post(ASKED, "Accept-Encoding: gzip, br"))) == UPDATING + DECLARED + SAID
    assert setup.upstream.seen[0].one("accept-encoding") == "identity"


@pytest.mark.parametrize("begun", [False, True], ids=["in the head", "in band"])
@pytest.mark.parametrize(("fault", "code"), [(STALE, "stale_summary"), (LookupError(), "narrows_failed")])
async def test_m2_a_policy_that_fails_a_request_is_its_error(
    narrows: Start, begun: bool, fault: Exception, code: str, capfd: pytest.CaptureFixture[str]
) -> None:
    waits = made() if begun else Waits(until=None)
    waits.fault = fault
    setup = await narrows(STREAMED, waits, log_level="info", log_format="json", **OPTED)
    reply = await setup.raw(post(ASKED))
    error = error_in(reply) if begun else json.loads(reply.partition(b"\r\n\r\n")[2])["error"]
    assert error["code"] == code
    status = 200 if begun else 400 if fault is STALE else 500
    assert reply.startswith(b"HTTP/1.1 %d " % status)
    assert logged(capfd) == (status, code)
    assert setup.upstream.seen == []


# --- who leaves, and what ends ---


async def test_t4_who_leaves_while_waiting_leaves_nothing_behind(
    narrows: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    setup = await narrows(STREAMED, Waits(), log_level="info", log_format="json", **OPTED)
    before = len(asyncio.all_tasks())
    for _ in range(50):
        reader, writer = await setup.connect()
        writer.write(post(ASKED))
        await reader.readuntil(UPDATING)
        writer.transport.abort()
    async with asyncio.timeout(10):
        while len(asyncio.all_tasks()) > before or setup.app.gateway.running:  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.01)
    assert setup.upstream.seen == []
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [(line["status"], line["trouble"]) for line in lines] == [(499, "client_left")] * 50


async def test_t7_who_still_waits_at_the_end_is_told_in_band(narrows: Start) -> None:
    setup = await narrows(STREAMED, Waits(), **OPTED)
    reader, writer = await setup.connect()
    writer.write(post(ASKED))
    async with asyncio.timeout(10):
        head = await reader.readuntil(UPDATING)
        await setup.app.gateway.drain(0.05)
        reply = head + await reader.read()
    writer.close()
    assert error_in(reply)["code"] == "shutting_down"
    assert setup.upstream.seen == []


# --- the official client ---


CALLED = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}}
SPOKEN = [delta("Hel"), delta("lo"), delta(finish_reason="stop")]
CALLS = [
    delta(delta={"role": "assistant", "tool_calls": [CALLED]}),
    delta(delta={"tool_calls": [{"index": 0, "function": {"arguments": '{"at": "Oslo"}'}}]}),
    delta(finish_reason="tool_calls"),
]


async def answers(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """A stream, with a call where there are tools."""
    said = CALLS if "tools" in json.loads(asked.body) else SPOKEN
    writer.write(stream_head() + b"".join(chunk(event(part)) for part in said))
    writer.write(chunk(b"data: [DONE]\n\n") + chunk(b""))


@pytest.mark.parametrize("tools", [openai.omit, [TOOL]], ids=["text", "tools"])
async def test_m8_the_official_clients_take_no_notice(narrows: Start, tools: Any) -> None:
    setup = await narrows(answers, made(), **OPTED)
    asked: Any = {"model": "m", "messages": WORDS, "tools": tools, "stream": True}

    def talk() -> list[Any]:
        with openai.OpenAI(base_url=setup.url, api_key="sk-1", max_retries=0) as client:
            stream: Any = client.chat.completions.create(**asked)
            assert stream.response.headers["x-narrows-summary"] == "pending"
            return [part.model_dump(exclude_unset=True) for part in stream]

    async def talk_async() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=setup.url, api_key="sk-1", max_retries=0) as client:
            stream: Any = await client.chat.completions.create(**asked)
            assert stream.response.headers["x-narrows-summary"] == "pending"
            return [part.model_dump(exclude_unset=True) async for part in stream]

    said = SPOKEN if tools is openai.omit else CALLS
    assert (await asyncio.to_thread(talk), await talk_async()) == (said, said)


async def test_m8_the_official_client_raises_the_upstreams_own_error(narrows: Start) -> None:
    setup = await narrows(REFUSALS["429"][0], made(), **OPTED)
    async with openai.AsyncOpenAI(base_url=setup.url, api_key="sk-1", max_retries=0) as client:
        create: Any = client.chat.completions.create
        parts = await create(model="m", messages=WORDS, stream=True)
        with pytest.raises(openai.APIError, match="Slow down") as caught:
            await anext(aiter(parts))
    assert (caught.value.code, caught.value.body) == ("rate_limit_exceeded", LIMITED)


# --- with the recall tool on board ---


def patient(prepare: Prepare) -> Prepare:
    """Compaction, behind a wait."""

    async def prepared(client_request: ClientRequest, waiting: Waiting | None = None, /) -> UpstreamRequest:
        assert waiting is not None
        async with waiting():
            await asyncio.sleep(0.02)
        return await prepare(client_request)

    return prepared


@pytest.fixture
async def app(stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> App:
    monkeypatch.setitem(PRESETS, "keeping", Preset(KEEPING))
    settings = Settings(
        upstream=stage.upstream,
        port=0,
        store=f"sqlite:///{tmp_path / 'own.db'}",
        log_level="error",
        preset="keeping",
        floor=0,
        models=MODELS,
        **OPTED,
    )
    return await stage.stack.enter_async_context(await App.start(settings, patient))


@pytest.mark.usefixtures("patient")
async def test_m8_recalls_are_answered_in_a_response_that_began_early(stage: Stage, app: App) -> None:
    stage.provider.answer = plays(wants("Let me look. "), Say("Seen."))
    async with client_of(app.base_url) as client:
        heard = await client.ask(hiding(), stream=True)
    assert heard.text == "Let me look. Seen."
    assert heard.raw.startswith(UPDATING)
    assert b": x-narrows-mode: compacted\n: x-narrows-prefix: " in heard.raw
    assert fetched(stage.provider.requests[-1]) == [REPORT]
    assert app.telemetry.metrics.page().count(b'trouble_total{kind="') == 0


@pytest.mark.usefixtures("patient")
async def test_m8_a_round_that_fails_there_is_told_in_band(stage: Stage, app: App) -> None:
    refusal = Send(429, json.dumps({"error": LIMITED}).encode())
    stage.provider.answer = plays(wants("Let me look. "), refusal)
    async with client_of(app.base_url) as client:
        assert isinstance(client, Client)
        with pytest.raises(openai.APIError) as caught:
            await client.ask(hiding(), stream=True)
        assert caught.value.body == LIMITED
        assert RECALL.encode() not in client.raw
        assert b"[DONE]" not in client.raw


async def test_t2_events_that_are_not_called_so_go_on_too(stage: Stage, app: App) -> None:
    stage.provider.answer = plays(Send(200, SAID, (("Content-Type", "text/plain"),)))
    exchange = await stage.post(app, ASKED)
    assert exchange.reply.startswith(UPDATING)
    assert exchange.reply.endswith(b"\n\n" + SAID)
