"""What goes through goes through as it came; what breaks breaks visibly; who leaves takes all along."""

import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable

import pytest

from proxy.kernel.wire.downstream import reset
from proxy.sse import data
from tests.kit.histories import TOOLS
from tests.kit.running import Running, Start
from tests.kit.upstream import (
    CHAT,
    COMPRESS,
    REQUEST,
    Asked,
    Script,
    chunk,
    completion,
    delta,
    error_of,
    event,
    post,
    stream_head,
    whole,
)

DISCONNECTS = int(os.environ.get("DISCONNECT_CYCLES", "300"))
Ready = Callable[..., Awaitable[tuple[Running, bytes]]]


@pytest.fixture(params=[False, True], ids=["passing through", "recall on board"])
def ready(request: pytest.FixtureRequest, narrows: Start) -> Ready:
    """Start Narrows, and say what to ask it: for what is only passed on, and for what is read for recall calls."""

    async def start(script: Script) -> tuple[Running, bytes]:
        asked = {**REQUEST, "tools": TOOLS} if request.param else REQUEST
        return await narrows(script, real=request.param), json.dumps(asked).encode()

    return start


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("GET", "/models?after=a%20b&x", b""),
        ("DELETE", "/files/%2Fa%20b", b""),
        ("PATCH", "/assistants/1", b'{"messages": [] }'),
        ("POST", "/audio/transcriptions", b"--x\r\nContent-Disposition: form-data\r\n\r\n\x00\xff\r\n--x--"),
        ("POST", "/chat/completions/1/cancel", bytes(range(256)) * 999),
        ("GET", "/chat/completions", b""),
        ("MKCALENDAR", "/anything", b"x"),
    ],
)
async def test_t1_what_is_not_chat_is_relayed_byte_for_byte(
    narrows: Start, method: str, target: str, body: bytes
) -> None:
    answer = bytes(range(256)) * 300
    setup = await narrows(whole(answer, "Content-Type: x/y", "Content-Encoding: gzip", status="207 Quite So"))
    async with setup.client.request(method, setup.url + target, data=body or None) as reply:
        assert (reply.status, reply.reason, await reply.read()) == (207, "Quite So", answer)
        assert reply.headers["x-narrows-mode"] == "relayed"
    (asked,) = setup.upstream.seen
    assert asked.line == f"{method} /v1{target} HTTP/1.1"
    assert asked.body == body
    assert setup.compaction.seen == []


async def test_t1_a_body_is_passed_on_while_it_is_sent(narrows: Start) -> None:
    arrived = asyncio.StreamReader()

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(2**16):
            arrived.feed_data(piece)
        writer.close()

    server = await asyncio.start_server(hear, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    setup = await narrows(upstream=f"http://127.0.0.1:{port}/v1")
    _, writer = await setup.connect()
    writer.write(b"PUT /v1/files HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"first"))
    async with asyncio.timeout(5):
        await arrived.readuntil(b"first")
        writer.write(chunk(b"second") + chunk(b""))
        await arrived.readuntil(b"second\r\n0\r\n\r\n")
    writer.close()
    server.close()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (
            b"GET /v1/live HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n",
            501,
        ),
        (b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n", 405),
        (b"GET /other HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 404),
        (b"GET /nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 404),
        (b"GET /v1x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 404),
    ],
)
async def test_t1_what_is_not_relayed_is_refused_politely(narrows: Start, request_: bytes, status: int) -> None:
    setup = await narrows()
    reader, writer = await setup.connect()
    writer.write(request_)
    async with asyncio.timeout(5):
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readuntil(b"}}")
    writer.close()
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert error_of(head + body)["message"]
    assert setup.upstream.seen == []


STREAM = (
    b"\xef\xbb\xbf: hello\r\n\r\nevent: x\rdata: 1\r\r"
    + event(delta("one"))
    + b"data: {\ndata: }\n\n"
    + event(delta("x" * 2**20))
    + b"data: [DONE]\n\n"
)


@pytest.mark.parametrize("step", [1, 2, 7, 4096])
async def test_t2_a_stream_arrives_unchanged_however_it_is_split(ready: Ready, step: int) -> None:
    stream = STREAM if step > 7 else STREAM.replace(b"x" * 2**20, b"x" * 200)

    async def script(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(stream_head())
        for start in range(0, len(stream), step):
            writer.write(chunk(stream[start : start + step]))
            await asyncio.sleep(0)
        writer.write(chunk(b""))

    setup, body = await ready(script)
    async with setup.client.post(setup.url + CHAT, data=body) as reply:
        assert await reply.read() == stream
    assert len(setup.compaction.seen) == (b'"tools"' not in body)
    for noted in setup.compaction.seen:
        assert b"".join(noted.events) == stream
        assert data(noted.events[-1]) == b"[DONE]"
        assert noted.status == 200


async def test_t2_bytes_are_relayed_at_once_and_not_by_events(narrows: Start) -> None:
    seen = asyncio.Event()

    async def script(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(stream_head())
        writer.write(chunk(b'data: {"half'))
        await seen.wait()
        writer.write(chunk(b'": 1}\n\n') + chunk(b""))

    setup = await narrows(script)
    async with asyncio.timeout(5), setup.client.post(setup.url + CHAT, json=REQUEST) as reply:
        assert await reply.content.readany() == b'data: {"half'
        assert setup.compaction.seen[0].events == []
        seen.set()
        assert await reply.read() == b'": 1}\n\n'


async def test_t2_with_recall_on_board_an_event_is_relayed_as_soon_as_it_is_whole(narrows: Start) -> None:
    seen = asyncio.Event()
    first, second = event(delta("one")), event(delta("two"))

    async def script(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(stream_head() + chunk(first + second[:9]))
        await seen.wait()
        writer.write(chunk(second[9:]) + chunk(b""))

    setup = await narrows(script, real=True)
    asked = {**REQUEST, "tools": TOOLS}
    async with asyncio.timeout(5), setup.client.post(setup.url + CHAT, json=asked) as reply:
        assert await reply.content.readany() == first
        seen.set()
        assert await reply.read() == second


@pytest.mark.parametrize("encoding", COMPRESS)
async def test_t2_with_recall_on_board_a_reply_goes_on_without_its_encoding(narrows: Start, encoding: str) -> None:
    """It is asked for as it is; an upstream that encodes it all the same is understood."""
    said = json.dumps(completion("word " * 5000)).encode()
    headers = ("Content-Type: application/json; charset=utf-8", f"Content-Encoding: {encoding}")
    setup = await narrows(whole(COMPRESS[encoding](said), *headers), real=True)
    async with setup.client.post(setup.url + CHAT, json={**REQUEST, "tools": TOOLS}) as reply:
        assert await reply.read() == said
        assert "Content-Encoding" not in reply.headers
        assert reply.headers["Content-Length"] == str(len(said))
    assert setup.upstream.seen[0].one("accept-encoding") == "identity"


@pytest.mark.parametrize("encoding", COMPRESS)
async def test_t2_an_encoded_reply_is_relayed_as_it_came_and_read_as_it_is_meant(narrows: Start, encoding: str) -> None:
    said = json.dumps(completion("word " * 5000)).encode()
    encoded = COMPRESS[encoding](said)
    headers = ("Content-Type: application/json; charset=utf-8", f"Content-Encoding: {encoding}")
    setup = await narrows(whole(encoded, *headers))
    async with setup.client.post(setup.url + CHAT, json=REQUEST) as reply:
        assert await reply.read() == encoded
        assert reply.headers["Content-Encoding"] == encoding
    assert setup.compaction.seen[0].events == [said]


async def closes(_: Asked, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def garbles(_: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x00\x01 this is not HTTP\r\n\r\n")
    writer.close()


async def sleeps(_: Asked, __: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


@pytest.mark.parametrize(
    ("script", "status", "code"),
    [(closes, 502, "upstream_cut"), (garbles, 502, "upstream_garbled"), (sleeps, 504, "upstream_timeout")],
)
@pytest.mark.parametrize("target", ["/chat/completions", "/embeddings"])
async def test_t3_upstream_dies_before_headers(
    narrows: Start, script: Script, status: int, code: str, target: str
) -> None:
    setup = await narrows(script, read_timeout=0.2)
    async with setup.client.post(setup.url + target, json=REQUEST) as reply:
        error = (await reply.json())["error"]
        assert (reply.status, error["code"], error["type"]) == (status, code, "server_error")
        assert "127.0.0.1" in error["message"]
    assert [noted.status for noted in setup.compaction.seen] == ([0] if target == CHAT else [])


async def test_t3_upstream_is_not_there(narrows: Start, free_port: int) -> None:
    setup = await narrows(upstream=f"http://127.0.0.1:{free_port}/v1")
    async with setup.client.post(setup.url + CHAT, json=REQUEST) as reply:
        assert (reply.status, (await reply.json())["error"]["code"]) == (502, "upstream_unreachable")


async def test_t3_upstream_does_not_speak_tls(narrows: Start) -> None:
    async def speak_plainly(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(speak_plainly, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        setup = await narrows(upstream=f"https://127.0.0.1:{port}/v1")
        async with setup.client.post(setup.url + CHAT, json=REQUEST) as reply:
            assert (reply.status, (await reply.json())["error"]["code"]) == (502, "upstream_tls")


def cut_after(*pieces: bytes) -> Script:
    """Say this, let it arrive, and close."""

    async def script(_: Asked, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.05)
        writer.close()

    return script


CLOSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


@pytest.mark.parametrize("tail", [b"", b'data: {"id": "c'], ids=["between events", "in an event"])
@pytest.mark.parametrize("head", ["chunked", "close"])
async def test_t3_upstream_dies_in_a_stream(ready: Ready, head: str, tail: bytes) -> None:
    first = event(delta("one"))
    said = first + tail
    pieces = [stream_head(), chunk(said)] if head == "chunked" else [CLOSE_HEAD, said]
    setup, asked = await ready(cut_after(*pieces))
    reply = await setup.raw(post(asked))
    head_, _, body = reply.partition(b"\r\n\r\n")
    assert b"200 OK" in head_
    assert b"[DONE]" not in body
    assert b'"finish_reason": "' not in body
    assert not body.endswith(b"0\r\n\r\n")
    last = body.rstrip().splitlines()[-1]
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "upstream_cut"
    assert (first if b'"tools"' in asked else said) in body


def breaks_off_after(head: bytes) -> Script:
    """The head, and the beginning of a body."""
    return cut_after(head, b'{"' if head.endswith(b"2\r\n") else b'{"id"')


BROKEN_OFF = pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\nContent-Type: application/json\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\nContent-Type: text/event-stream\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n"
        b"Content-Type: text/event-stream\r\n\r\n2\r\n",
    ],
    ids=["sized JSON", "JSON until close", "sized events", "encoded events"],
)


@BROKEN_OFF
async def test_t3_upstream_dies_where_nothing_can_be_said(narrows: Start, head: bytes) -> None:
    setup = await narrows(breaks_off_after(head))
    with pytest.raises(ConnectionResetError):
        await setup.raw(post(json.dumps(REQUEST).encode()))


@BROKEN_OFF
async def test_t3_with_recall_on_board_it_can_be_said(narrows: Start, head: bytes) -> None:
    """Nothing of a body has been passed on, and of a stream whole events, without encoding or length."""
    setup = await narrows(breaks_off_after(head), real=True)
    reply = await setup.raw(post(json.dumps({**REQUEST, "tools": TOOLS}).encode()))
    assert reply.startswith(b"HTTP/1.1 200" if b"event-stream" in head else b"HTTP/1.1 502")
    said = reply.partition(b"\r\n\r\n")[2].rstrip().splitlines()[-1]
    assert json.loads(said.removeprefix(b"data: "))["error"]["code"] == "upstream_cut"
    assert b"[DONE]" not in reply


async def test_t3_a_reset_of_what_is_only_relayed_is_passed_on(narrows: Start) -> None:
    async def script(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\n\r\nhalf")
        await writer.drain()
        await asyncio.sleep(0.05)
        assert isinstance(writer.transport, asyncio.Transport)
        reset(writer.transport)

    setup = await narrows(script)
    with pytest.raises(ConnectionResetError):
        await setup.raw(post(b"{}", target="/v1/files"))


async def test_t3_a_whole_reply_until_close_is_a_whole_reply(ready: Ready) -> None:
    said = json.dumps(completion()).encode()
    setup, asked = await ready(cut_after(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n", said))
    reply = await setup.raw(post(asked))
    assert reply.endswith(b"\r\n\r\n" + said)
    assert b"chunked" not in reply


async def test_t4_a_client_that_leaves_takes_everything_along(ready: Ready) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.all("x-early"):
            await asyncio.sleep(60)
        writer.write(stream_head() + chunk(event(delta("one"))))
        await asyncio.sleep(60)

    setup, body = await ready(script)
    before = len(asyncio.all_tasks())
    for cycle in range(DISCONNECTS):
        reader, writer = await setup.connect()
        early = ("X-Early: 1",) if cycle % 3 == 0 else ()
        writer.write(post(body, *early, target="/v1/chat/completions" if cycle % 2 else "/v1/responses"))
        if not early:
            await reader.readuntil(b"one")
        writer.transport.abort()
    await setup.upstream.until_idle()
    async with asyncio.timeout(5):
        while len(asyncio.all_tasks()) > before:  # noqa: ASYNC110 - nobody announces the end of a task
            await asyncio.sleep(0.01)
    assert len(setup.upstream.seen) >= DISCONNECTS * 2 // 3
    assert setup.app.gateway.running == 0


async def test_t4_a_slow_reader_gets_back_pressure(ready: Ready) -> None:
    sent = 0

    async def script(_: Asked, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(stream_head())
        piece = chunk(b": " + bytes(2**16) + b"\n\n")
        for _piece in range(2**10):  # 64 MB
            writer.write(piece)
            sent += len(piece)
            await writer.drain()

    setup, body = await ready(script)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**14)
    sock.connect(("127.0.0.1", setup.port))
    sock.sendall(post(body))
    settled = -1
    while settled != sent:
        settled = sent
        await asyncio.sleep(0.2)
    sock.close()
    assert 0 < sent < 2**25
