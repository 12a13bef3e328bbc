"""Requests that go upstream on a connection of the pool: the same bytes, connections and errors as with aiohttp's own
session, which sends what is too large for one write."""

import asyncio
import json
from typing import Any

import pytest

from proxy.config import UpstreamRow
from proxy.telemetry import Telemetry
from proxy.upstreams.upstream import Upstream
from tests.kit.running import Start
from tests.kit.upstream import CHAT, REQUEST, Asked, completion, json_answer
from tests.kit.upstream import post as raw_post

REPLY = json_answer(completion())


class Connections:
    """Answers on each connection as often as it may, and counts the connections."""

    def __init__(self, head: bytes = b"", closes: bool = False) -> None:
        self.head = head
        self.closes = closes
        self.writers: list[asyncio.StreamWriter] = []

    async def __call__(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        if writer not in self.writers:
            self.writers.append(writer)
        writer.write(self.head + REPLY)
        await writer.drain()
        if self.closes:
            writer.close()


async def post(setup: Any, **more: Any) -> tuple[int, Any]:
    async with setup.client.post(setup.url + CHAT, json=REQUEST, **more) as reply:
        return reply.status, await reply.json()


async def test_t1_connections_are_used_again_and_not_once_they_are_closed(narrows: Start) -> None:
    script = Connections()
    setup = await narrows(script)
    for _ in range(3):
        assert await post(setup) == (200, completion())
    assert len(script.writers) == 1
    script.closes = True
    assert await post(setup) == (200, completion())
    await setup.upstream.until_idle()
    script.closes = False
    assert await post(setup) == (200, completion())
    assert len(script.writers) == 2


async def test_t1_what_comes_before_the_reply_is_no_reply(narrows: Start) -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"
    script = Connections(early)
    setup = await narrows(script)
    for _ in range(2):
        assert await post(setup) == (200, completion())
    assert len(script.writers) == 1


@pytest.mark.parametrize("limit", [2**20, 10])  # with the session, too
async def test_t1_what_comes_while_nobody_asks_is_nobodys_reply(
    narrows: Start, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr("proxy.upstreams.upstream._ONE_WRITE", limit)
    script = Connections()
    setup = await narrows(script)
    for asked in range(3):
        assert await post(setup) == (200, completion())
        assert len(script.writers) == asked + 1
        script.writers[-1].write(json_answer(completion("another's")))
        await script.writers[-1].drain()
        await asyncio.sleep(0.02)  # it has come


async def test_t3_a_status_that_is_none_is_an_error_that_clients_can_read(narrows: Start) -> None:
    setup = await narrows(Connections(b"HTTP/1.1 000 None\r\nContent-Length: 0\r\n\r\n"))
    status, body = await post(setup)
    assert (status, body["error"]["code"]) == (502, "upstream_garbled")


@pytest.mark.parametrize("size", [0, 500_000])
async def test_t1_both_ways_of_sending_send_the_same(
    narrows: Start, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    setup = await narrows(Connections())
    headers = {"X-Own": "ü", "x-narrows": "on", "Cookie": "a=b", "Connection": "x-hop", "x-hop": "1"}
    data = b'{"model": "m", "messages": [{"role": "user", "content": "%s"}]}' % (b"x" * size)
    for limit in (2**20, 10):
        monkeypatch.setattr("proxy.upstreams.upstream._ONE_WRITE", limit)
        async with setup.client.post(f"{setup.url}{CHAT}?a=%2F&b=", data=data, headers=headers) as reply:
            assert reply.status == 200
    direct, sliced = setup.upstream.seen
    assert (direct.line, direct.headers, direct.body) == (sliced.line, sliced.headers, sliced.body)
    assert direct.body == data


async def test_t3_who_is_silent_after_the_request_is_given_up(narrows: Start) -> None:
    async def silent(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    setup = await narrows(silent, read_timeout=0.1)
    status, body = await post(setup)
    assert (status, body["error"]["code"]) == (504, "upstream_timeout")
    await setup.upstream.until_idle()


async def test_t4_a_client_that_leaves_before_the_reply_frees_the_connection(narrows: Start) -> None:
    arrived = asyncio.Event()

    async def silent(asked: Asked, writer: asyncio.StreamWriter) -> None:
        arrived.set()
        await asyncio.sleep(60)

    setup = await narrows(silent)
    asking = asyncio.create_task(post(setup))
    await asyncio.wait_for(arrived.wait(), 5)
    asking.cancel()
    await asyncio.wait({asking})
    await setup.upstream.until_idle()


async def test_x1_where_a_proxy_or_a_credential_in_the_url_matters_the_session_sends(
    narrows: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = await narrows(Connections())
    base, settings = setup.upstream.url, setup.app.settings
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    for url in (base.replace("127.0.0.1", "host.test"), base.replace("//", "//me:secret@")):
        upstream = Upstream(
            settings, UpstreamRow(name="default", url=base).model_copy(update={"url": url}), Telemetry()
        )
        assert upstream._direct is None
        await upstream.close()


async def test_t8_what_has_come_is_read_though_its_client_has_left(
    narrows: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def left(*_: Any) -> None:
        raise ConnectionResetError

    monkeypatch.setattr("proxy.kernel.wire.downstream.Relayed.write_eof", left)
    setup = await narrows(REPLY)
    await setup.raw(raw_post(json.dumps(REQUEST).encode()))
    (noted,) = setup.compaction.seen
    assert json.loads(b"".join(noted.events)) == completion()
