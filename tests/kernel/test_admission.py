"""What one client may have at once, and what all may: connections, requests, bytes of bodies, and time."""

import ast
import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anthropic
import openai
import pytest
from aiohttp.streams import StreamReader
from hypothesis import given
from hypothesis import strategies as st

from proxy.config import ConfigurationError
from proxy.kernel.admission import Peer, Pool, Pressure, _network
from proxy.kernel.wire import downstream
from proxy.requests import ClientRequest, UpstreamRequest
from proxy.summaries.background import Waiting
from proxy.telemetry import Telemetry
from tests.kit.paths import ROOT
from tests.kit.running import PassThrough, Running, Start
from tests.kit.settings import settings_with
from tests.kit.upstream import COMPRESS, REQUEST, Asked, completion, error_of, json_answer, post, stream_head

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
BODY = json.dumps(REQUEST).encode()


async def pour(writer: asyncio.StreamWriter) -> None:
    """Send far more than anything between two sockets holds."""
    for _ in range(1_000):
        writer.write(b" " * 2**20)
        await writer.drain()
        await asyncio.sleep(0.001)


class Held:
    """An upstream that answers once it may."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()

    async def __call__(self, _: Asked, writer: asyncio.StreamWriter) -> None:
        await self.may_answer.wait()
        writer.write(json_answer(completion()))
        await writer.drain()


@asynccontextmanager
async def in_flight(setup: Running, number: int, *headers: str) -> AsyncIterator[list[asyncio.StreamReader]]:
    """So many requests that the upstream has, and has not answered."""
    async with AsyncExitStack() as stack:
        readers = []
        for _ in range(number):
            reader, writer = await setup.connect()
            stack.callback(writer.close)
            writer.write(post(BODY, *headers))
            readers.append(reader)
        async with asyncio.timeout(5):
            while len(setup.upstream.seen) < number:  # noqa: ASYNC110 - the upstream is another task
                await asyncio.sleep(0.005)
        yield readers


async def metric(setup: Running, name: str) -> float:
    async with setup.client.get(setup.url.replace("/v1", "/metrics")) as reply:
        lines = (await reply.text()).splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


async def until(setup: Running, name: str, value: float) -> None:
    """Wait until a metric is at least so much."""
    async with asyncio.timeout(5):
        while await metric(setup, name) < value:  # noqa: ASYNC110 - another task changes it
            await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("", ""),
    ],
)
def test_x10_a_network_of_ipv6_counts_as_one_address(address: str, counted: str) -> None:
    assert _network(address) == counted


amounts = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(1, 40)), max_size=60)


@given(amounts)
def test_x10_whatever_others_take_there_is_something_left_for_the_next(wanted: list[tuple[int, int, int]]) -> None:
    pool, clients = Pool(100), set[str]()
    for address, credential, amount in wanted:
        client = Peer(str(address), f"{address}-{credential}" if credential else "")
        if not pool.take(client, amount):
            clients.add(client.address)
    assert pool.used <= 100 * (1 - 0.5 ** len(clients))
    if pool.used <= 98:
        assert not pool.shortage(Peer("new"), 1)


@given(amounts)
def test_x10_what_was_taken_comes_back(wanted: list[tuple[int, int, int]]) -> None:
    pool, clients = Pool(100), [(Peer(str(a), str(c)), amount) for a, c, amount in wanted]
    for client, amount in [(client, amount) for client, amount in clients if not pool.take(client, amount)]:
        pool.count(client, -amount)
    assert (pool.used, pool.shortage(Peer("0", "0"), 33)) == (0, "")
    assert (pool.shortage(Peer("0"), 51), pool.shortage(Peer("0", "0"), 34)) == ("client", "client")


async def test_x10_beyond_its_share_a_client_is_refused_and_others_are_served(narrows: Start) -> None:
    upstream = Held()
    setup = await narrows(upstream, requests_limit=6)  # of which one credential has two, and one address three
    async with in_flight(setup, 2, "Authorization: Bearer a") as readers:
        refused = await setup.raw(post(BODY, "Authorization: Bearer a"))
        assert refused.startswith(b"HTTP/1.1 429 ")
        assert b"\r\nRetry-After: " in refused
        assert (error_of(refused)["code"], error_of(refused)["param"]) == ("client_limit", "requests_limit")
        async with in_flight(setup, 1, "Authorization: Bearer b"):
            assert error_of(await setup.raw(post(BODY, "Authorization: Bearer c")))["code"] == "client_limit"
            assert (await metric(setup, "narrows_running"), len(setup.upstream.seen)) == (4, 3)  # with that of the page
            upstream.may_answer.set()
            assert [(await reader.readline()).split()[1] for reader in readers] == [b"200", b"200"]
    assert (await setup.raw(post(BODY, "Authorization: Bearer a"))).startswith(b"HTTP/1.1 200 ")
    assert await metric(setup, 'narrows_refused_total{limit="requests",whose="client"}') == 2


async def test_x10_the_official_sdks_try_again(narrows: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.kernel.admission._RETRY_AFTER", {"client": "0.05", "all": "0.05"})
    upstream = Held()
    setup = await narrows(upstream, requests_limit=4)
    root = setup.url.removesuffix("/v1")
    async with (
        openai.AsyncOpenAI(base_url=setup.url, api_key="a", max_retries=50) as one,
        anthropic.AsyncAnthropic(base_url=root, api_key="b", max_retries=50) as other,
        in_flight(setup, 2),
    ):
        asking = [
            asyncio.ensure_future(one.chat.completions.with_raw_response.create(model="m", messages=[])),
            asyncio.ensure_future(other.messages.with_raw_response.create(model="m", messages=[], max_tokens=9)),
        ]
        await until(setup, "narrows_refused_total", 2)
        upstream.may_answer.set()
        assert [(await reply).status_code for reply in asking] == [200, 200]


class Slow(PassThrough):
    """Planning that ends when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = asyncio.Event()
        self.began: list[ClientRequest] = []

    async def prepare(self, client_request: ClientRequest, waiting: Waiting | None = None, /) -> UpstreamRequest:
        self.began.append(client_request)
        if client_request.may_plan:
            await self.may_end.wait()
        return await super().prepare(client_request, waiting)


async def test_x10_where_planning_piles_up_nothing_new_is_planned_and_requests_are_served(
    narrows: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.kernel.admission._SLOW", 0.0)
    compaction = Slow()
    setup = await narrows(compaction=compaction)
    keys = [f"Authorization: Bearer {key}" for key in "abc"]
    waiting = [asyncio.ensure_future(setup.raw(post(BODY, key))) for key in keys for _ in range(8)]
    async with asyncio.timeout(5):
        while len(compaction.began) < 24:  # noqa: ASYNC110 - other tasks begin them
            await asyncio.sleep(0.005)
    others = [await setup.raw(post(BODY, key)) for key in ("Authorization: Bearer a", "Authorization: Bearer d")]
    compaction.may_end.set()
    replies = [*others, *await asyncio.gather(*waiting)]
    assert all(reply.startswith(b"HTTP/1.1 200 ") for reply in replies)
    planned = [request.sender.credential for request in compaction.began if request.may_plan]
    assert (len(planned), "d" in planned) == (16, False)
    assert await metric(setup, 'narrows_shed_total{reason="queue"}') == 10
    assert (await setup.raw(post(BODY))).startswith(b"HTTP/1.1 200 ")
    assert compaction.began[-1].may_plan


def test_x10_whoever_has_most_in_planning_is_shed_first() -> None:
    now = 0.0
    pressure = Pressure(Telemetry("critical"), 0.5, lambda: now)
    assert all(pressure.begin(i, Peer("1", "a")) for i in range(20))
    now = 5.4  # what requests may wait for a summary is not slow
    assert pressure.begin("b", Peer("1", "b"))
    now = 5.5
    for i in range(8, 20):
        pressure.end(i)
    assert [pressure.begin(name, Peer("1", name)) for name in "abc"] == [False, True, True]
    pressure.end(0)
    assert pressure.begin("a", Peer("1", "a"))


def test_x10_what_made_up_credentials_have_in_planning_stops_nobody_else() -> None:
    now = 0.0
    pressure = Pressure(Telemetry("critical"), 0.0, lambda: now)
    for i in range(60):
        pressure.begin(i, Peer("1", f"made up {i}"), is_accepted=False)
    now = 9.0
    assert not pressure.begin("another", Peer("2", "another"), is_accepted=False)
    assert pressure.begin("accepted", Peer("1", "accepted"), is_accepted=True)
    for i in range(16):
        pressure.begin(f"known {i}", Peer("1", f"known {i}"), is_accepted=True)
    now = 18.0
    assert not pressure.begin("one more", Peer("1", "one more"), is_accepted=True)


def test_x10_a_late_loop_is_a_reason_until_it_is_well_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.kernel.admission._LATE", 0.3)
    pressure = Pressure(Telemetry("critical"), 0.0, lambda: 0.0)
    for _ in range(4):  # a few long stops are none
        pressure.note_late(9.0, 0.005)
    assert pressure.begin(1, Peer("1"))
    for _ in range(40):
        pressure.note_late(0.9, 0.005)
    assert not pressure.begin(2, Peer("1"))
    for _ in range(6_000):
        pressure.note_late(0.0, 0.005)
    assert pressure.begin(3, Peer("1"))


async def a_third_body(setup: Running, stack: AsyncExitStack) -> bytes:
    """What is answered to one that is announced, and of which nothing comes, while two others are on their way."""
    for _ in range(2):
        _, writer = await setup.connect()
        stack.callback(writer.close)
        writer.write(HEAD + b"Content-Length: 200000\r\n\r\n" + b" " * 140_000)
    await until(setup, "narrows_bytes_in_flight", 280_000)
    reader, writer = await setup.connect()
    stack.callback(writer.close)
    writer.write(HEAD + b"Content-Length: 240000\r\n\r\n")
    return await reader.readline()


async def test_x10_bodies_are_bounded_all_together(narrows: Start) -> None:
    setup = await narrows(body_limit=2**18, bytes_limit=3 * 2**18)
    async with AsyncExitStack() as stack:
        assert (await a_third_body(setup, stack)).startswith(b"HTTP/1.1 429 ")
        chunked = HEAD + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n3a980\r\n" + b" " * 240_000 + b"\r\n"
        assert (await setup.raw(chunked, b"0\r\n\r\n")).startswith(b"HTTP/1.1 429 ")
        unpacked = COMPRESS["gzip"](json.dumps({**REQUEST, "user": "u" * 240_000}).encode())
        assert (await setup.raw(post(unpacked, "Content-Encoding: gzip"))).startswith(b"HTTP/1.1 429 ")
        assert (await setup.raw(post(BODY))).startswith(b"HTTP/1.1 200 ")
    assert (await setup.raw(post(BODY))).startswith(b"HTTP/1.1 200 ")
    assert await metric(setup, "narrows_bytes_in_flight") == 0


def in_chunks(body: bytes, size: int) -> bytes:
    return b"".join(
        b"%x\r\n%s\r\n" % (len(body[at : at + size]), body[at : at + size]) for at in range(0, len(body), size)
    )


@pytest.mark.parametrize("path", ["chat/completions", "embeddings"])
async def test_x3_a_body_in_more_chunks_than_it_is_worth_is_refused(
    narrows: Start, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(downstream, "_FRAMING", 50_000)
    monkeypatch.setattr(downstream, "_LINGERING", 0.01)
    read, real = 0, StreamReader.end_http_chunk_receiving

    def counted(reader: StreamReader) -> None:
        nonlocal read
        read += 1
        real(reader)

    monkeypatch.setattr(StreamReader, "end_http_chunk_receiving", counted)
    setup = await narrows(json_answer(completion()))
    head = HEAD.replace(b"chat/completions", path.encode()) + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    large = json.dumps({**REQUEST, "user": "u" * 400_000}).encode()
    for body, size in ((large, 200), (BODY, 1), (large[:5_000], 1)):
        received = await setup.raw(head + in_chunks(body, size) + b"0\r\n\r\n")
        assert received.startswith(b"HTTP/1.1 200 ")
    reader, writer = await setup.connect()
    read = 0
    writer.write(head + in_chunks(b" " * 300_000, 1))
    async with asyncio.timeout(5):
        assert b"too many small chunks" in await reader.readuntil(b"}")
    assert read < 150_000
    writer.transport.abort()


async def test_x10_bodies_of_which_more_is_to_come_have_less_than_all(narrows: Start) -> None:
    setup = await narrows(body_limit=2**18)  # so eight of them may be here, and three of those that are not whole
    async with AsyncExitStack() as stack:
        assert (await a_third_body(setup, stack)).startswith(b"HTTP/1.1 429 ")
        assert (await setup.raw(post(BODY))).startswith(b"HTTP/1.1 200 ")
    large = json.dumps({**REQUEST, "user": "u" * 240_000}).encode()
    for _ in range(5):  # nothing of them is counted any more
        assert (await setup.raw(post(large))).startswith(b"HTTP/1.1 200 ")
    assert await metric(setup, "narrows_bytes_in_flight") == 0


async def test_x10_few_bodies_become_large_at_once(narrows: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    unpack, now, most = downstream.decoded, 0, 0

    def counted(raw: bytes, encoding: str, limit: int) -> bytes:
        nonlocal now, most
        if limit <= 2**10:
            return unpack(raw, encoding, limit)
        now += 1
        most = max(most, now)
        try:
            return unpack(raw, encoding, limit)
        finally:
            now -= 1

    monkeypatch.setattr(downstream, "UNPACKED", 2**10)
    monkeypatch.setattr(downstream, "decoded", counted)
    setup = await narrows()
    bomb = COMPRESS["gzip"](json.dumps({**REQUEST, "user": "u" * 2**21}).encode())
    replies = await asyncio.gather(*(setup.raw(post(bomb, "Content-Encoding: gzip")) for _ in range(8)))
    assert all(reply.startswith(b"HTTP/1.1 200 ") for reply in replies)
    assert 0 < most <= 2


@pytest.mark.parametrize("target", [b"/v1/chat/completions", b"/v1/files"])
async def test_x3_what_came_fast_buys_no_time_for_a_trickle(narrows: Start, target: bytes) -> None:
    setup = await narrows(body_timeout=0.2)
    reader, writer = await setup.connect()
    writer.write(b"POST " + target + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n\r\n" + b" " * 4_000_000)

    async def trickle() -> None:
        while True:
            writer.write(b" ")
            await asyncio.sleep(0.02)

    trickling = asyncio.create_task(trickle())
    async with asyncio.timeout(5):
        assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
    trickling.cancel()
    writer.close()


async def test_x3_silent_connections_make_room_and_pages_are_answered(narrows: Start) -> None:
    upstream = Held()
    setup = await narrows(upstream, requests_limit=8)  # and 16 connections, of which one address has eight
    async with in_flight(setup, 4), AsyncExitStack() as stack:
        silent = []
        for i in range(30):
            reader, writer = await setup.connect()
            stack.callback(writer.close)
            writer.write(HEAD if i % 2 else b"")
            silent.append(reader)
        async with asyncio.timeout(5):
            assert await asyncio.gather(*(reader.read() for reader in silent[:20])) == [b""] * 20
        async with setup.client.get(setup.url.replace("/v1", "/healthz")) as page:
            assert page.status == 200
        assert await metric(setup, "narrows_connections ") <= 16
        assert await metric(setup, 'narrows_connections_closed_total{reason="room"}') >= 20
        upstream.may_answer.set()


async def test_x10_bodies_for_pages_count_as_those_of_requests(narrows: Start) -> None:
    setup = await narrows(requests_limit=4, real=True)
    async with AsyncExitStack() as stack:
        for _ in range(12):
            _, writer = await setup.connect()
            stack.callback(writer.close)
            writer.write(
                b"POST /narrows/conversations/c/summary HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n"
            )
        await until(setup, 'narrows_refused_total{limit="requests",whose="client"}', 6)
        assert await metric(setup, "narrows_connections ") <= 8


async def test_t4_who_reads_nothing_is_let_go(narrows: Start) -> None:
    async def endless(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(stream_head())
        while True:
            writer.write(b"10000\r\n" + b" " * 2**16 + b"\r\n")
            await writer.drain()

    setup = await narrows(endless, body_timeout=0.02)
    _, writer = await setup.connect()
    writer.write(post(BODY))
    while not setup.upstream.open:  # noqa: ASYNC110 - the upstream is another task
        await asyncio.sleep(0.005)
    await setup.upstream.until_idle()
    assert await metric(setup, 'narrows_connections_closed_total{reason="stalled"}') == 1
    writer.close()


def test_c6_a_limit_of_bytes_that_a_body_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="bytes_limit"):
        settings_with(["--bytes-limit", "100MiB", "--upstream", "http://127.0.0.1/v1"])
    assert settings_with(["--bytes-limit", "192MiB", "--upstream", "http://127.0.0.1/v1"]).bytes_limit == 192 * 2**20


async def test_x10_of_large_bodies_that_are_refused_not_all_is_received(
    narrows: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.kernel.wire.downstream._LINGERING", 0.1)
    monkeypatch.setattr("proxy.kernel.admission._DRAIN", 4 * 2**20)
    monkeypatch.setattr("proxy.kernel.admission._DRAIN_RATE", 0)
    setup = await narrows(body_limit=2**22, bytes_limit=3 * 2**22)
    async with AsyncExitStack() as stack:
        _, writer = await setup.connect()
        stack.callback(writer.close)
        writer.write(HEAD + b"Content-Length: 4000000\r\n\r\n" + b" " * 3_900_000)
        await until(setup, "narrows_bytes_in_flight", 3_900_000)
        body: Any = [{"role": "user", "content": "u" * 3_000_000}]
        async with openai.AsyncOpenAI(base_url=setup.url, api_key="a", max_retries=0) as client:
            with pytest.raises(openai.RateLimitError, match="bytes_limit"):
                await client.chat.completions.create(model="m", messages=body)
        reader, writer = await setup.connect()
        stack.callback(writer.close)
        writer.write(HEAD + b"Content-Length: 3000000\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 429 ")
        with pytest.raises(ConnectionError):
            await pour(writer)


def test_x10_whoever_is_to_come_again_is_told_when() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "proxy").rglob("*.py")]
    refusals = [
        call
        for source in sources
        if re.search(r"ApiError\((429|503),", source)
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "ApiError"
        if isinstance(call.args[0], ast.Constant) and call.args[0].value in (429, 503)
    ]
    assert len(refusals) >= 6
    assert not [ast.unparse(each) for each in refusals if len(each.args) < 5 and "Retry-After" not in ast.unparse(each)]
