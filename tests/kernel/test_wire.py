"""HTTP on the wire, both ways: what no proxy may pass on, read in two ways, or lose."""

import asyncio
import json
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from threading import Thread

import pytest
from multidict import CIMultiDict

from proxy.upstreams.connections import only_fresh_connections
from tests.kit.running import PassThrough, Start
from tests.kit.upstream import REQUEST, Asked, completion, error_of, json_answer, post

BODY = json.dumps(REQUEST).encode()
OK = json_answer(completion())
RELAY = "/v1/embeddings"
EACH_WAY = pytest.mark.parametrize(
    ("target", "limit"), [("/v1/chat/completions", 2**20), ("/v1/chat/completions", 10), (RELAY, 10)]
)
"""A body that goes out in one write, one in several, and one that is only relayed."""


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    return lambda limit: monkeypatch.setattr("proxy.upstreams.upstream._ONE_WRITE", limit)


@EACH_WAY
async def test_x2_bytes_of_headers_are_the_same_on_both_sides(
    narrows: Start, limited: Callable[[int], None], target: str, limit: int
) -> None:
    limited(limit)
    heads = (b"Authorization: Bearer sk-caf\xe9", b"X-A: \xc3\xa9 \xff\xfe", b"X-B: caf\xc3\xa9")
    reply = b"HTTP/1.1 200 gar\xe7on\r\nX-C: \xe9\xff\r\nX-D: \xc3\xa9\r\nContent-Length: 2\r\n\r\n{}"
    setup = await narrows(reply)
    raw = post(BODY, target=target)
    returned = await setup.raw(raw.replace(b"\r\n\r\n", b"\r\n" + b"\r\n".join(heads) + b"\r\n\r\n", 1))
    (asked,) = setup.upstream.seen
    for head in heads:
        assert b"\r\n" + head + b"\r\n" in asked.head
    assert returned.startswith(b"HTTP/1.1 200 gar\xe7on\r\nX-C: \xe9\xff\r\nX-D: \xc3\xa9\r\n")


@pytest.mark.parametrize("target", ["/v1/chat/completions", RELAY])
async def test_x2_names_that_servers_read_as_ours_do_not_pass(narrows: Start, target: str) -> None:
    setup = await narrows(json_answer({}, "X_narrows_mode: lie", "Transfer_Encoding: chunked", "X_Other: 1"))
    aliases = (
        "x_narrows: off",
        "X.Narrows-Mode: 1",
        "Transfer_Encoding: chunked",
        "Content_Length: 5",
        "Keep_Alive: 1",
    )
    returned = await setup.raw(post(BODY, *aliases, "X_Other: 1", target=target))
    (asked,) = setup.upstream.seen
    assert {name for name, _ in asked.headers} == {"Host", "Content-Length", "X_Other"}
    assert b"lie" not in returned
    assert b"Transfer_Encoding" not in returned
    assert b"X_Other: 1" in returned


FIRST = b"POST /v1/chat/completions HTTP/1.0\r\nHost: x\r\nConnection: keep-alive\r\n"


@pytest.mark.parametrize(
    "head",
    [
        FIRST + b"Transfer-Encoding: chunked\r\n\r\n",
        FIRST.replace(b"chat/completions", b"embeddings") + b"Transfer-Encoding: chunked\r\n\r\n",
        FIRST.replace(b"HTTP/1.0", b"HTTP/2.0") + b"Transfer-Encoding: chunked\r\n\r\n",
    ],
)
async def test_x2_what_http_1_0_does_not_know_is_refused_and_closed(narrows: Start, head: bytes) -> None:
    setup = await narrows()
    returned = await setup.raw((head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)) * 2)
    assert b" 400 " in returned.splitlines()[0]
    assert error_of(returned)["code"] == "not_http"
    assert returned.count(b"\r\nContent-Length: ") == 1
    assert setup.upstream.seen == []


async def test_x2_who_speaks_http_1_0_is_not_told_to_continue(narrows: Start) -> None:
    setup = await narrows()
    returned = await setup.raw(post(BODY, "Expect: 100-continue").replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert returned.startswith(b"HTTP/1.0 200 ")


async def test_x2_too_many_headers_are_told(narrows: Start) -> None:
    setup = await narrows()
    returned = await setup.raw(post(BODY, *["X-A: 1"] * 300))
    assert b" 431 " in returned.splitlines()[0]
    assert error_of(returned)["code"] == "head_too_large"


async def test_x2_a_head_is_bounded_as_a_whole(narrows: Start) -> None:
    setup = await narrows()
    reader, writer = await setup.connect()
    with closing(writer):
        for _ in range(2):
            writer.write(post(BODY).replace(b"Connection: close\r\n", b""))
            assert await asyncio.wait_for(reader.readuntil(OK.partition(b"\r\n\r\n")[2]), 5)
        for number in range(17):
            writer.write(b"POST / HTTP/1.1\r\n" * (not number) + b"X-%d: %s\r\n" % (number, b"a" * 8_000))
        returned = await asyncio.wait_for(reader.read(), 5)
    assert b" 431 " in returned.splitlines()[0]
    assert error_of(returned)["code"] == "head_too_large"
    assert len(setup.upstream.seen) == 2


@pytest.mark.parametrize("method", ["TRACE", "PURGE"])
async def test_x1_methods_that_upstreams_trust_are_not_relayed(narrows: Start, method: str) -> None:
    setup = await narrows()
    returned = await setup.raw(post(b"", target=RELAY).replace(b"POST", method.encode()))
    assert b" 405 " in returned.splitlines()[0]
    assert b"Allow: " in returned
    assert setup.upstream.seen == []


@pytest.mark.parametrize("target", ["/healthz", "/nowhere", "/v1/%"])
async def test_x4_our_own_replies_name_no_versions(narrows: Start, target: str) -> None:
    setup = await narrows()
    returned = await setup.raw(post(b"", target=target).replace(b"POST", b"GET"), b"")
    assert b"\r\nServer: narrows\r\n" in returned
    assert b"aiohttp" not in await setup.raw(b"no HTTP\r\n\r\n")


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
GARBLED = {
    "another protocol": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nhello",
    "another version": OK.replace(b"HTTP/1.1", b"HTTP/2.0"),
    "a status of four digits": OK.replace(b" 200 ", b" 1000 "),
    "a line feed in a line": OK.replace(b"\r\n", b"\r\nX-A: 1\nSet-Cookie: a=b\r\n", 1),
    "a line feed at the end": OK.replace(b"\r\n\r\n", b"\r\n\n", 1),
    "compressed for the transfer": CHUNKED.replace(b"chunked", b"gzip, chunked") + b"2\r\n{}\r\n0\r\n\r\n",
    "an encoding that only looks like chunks": CHUNKED.replace(b"chunked", b"\x0bchunked") + b"2\r\n{}\r\n0\r\n\r\n",
    "an empty encoding": CHUNKED.replace(b"chunked", b"") + b"{}",
    "a head without end": b"HTTP/1.1 102 Processing\r\n\r\n" * 20_000,
    "two lengths": OK.replace(b"\r\n", b"\r\nContent-Length: 3\r\n", 1),
    "length and chunks": CHUNKED.replace(b"\r\n", b"\r\nContent-Length: 2\r\n", 1) + b"2\r\n{}\r\n0\r\n\r\n",
}


@EACH_WAY
@pytest.mark.parametrize("answer", GARBLED.values(), ids=GARBLED)
async def test_x2_a_head_that_can_be_read_in_two_ways_is_no_reply(
    narrows: Start, limited: Callable[[int], None], answer: bytes, target: str, limit: int
) -> None:
    limited(limit)
    setup = await narrows(answer)
    returned = await setup.raw(post(BODY, target=target))
    assert b" 502 " in returned.splitlines()[0]
    assert error_of(returned)["code"] == "upstream_garbled"


WHOLE = {
    "bytes behind it": OK + b"junk\r\n\r\n",
    "another reply behind it": OK + OK.replace(b"hello", b"never"),
    "bytes behind chunks": CHUNKED + b"2\r\n{}\r\n0\r\n\r\njunk",
    "a body where none can be": b"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\n{}",
    "chunks from HTTP/1.0": CHUNKED.replace(b"1.1", b"1.0", 1).replace(b"\r\n", b"\r\nConnection: keep-alive\r\n", 1)
    + b"2\r\n{}\r\n0\r\n\r\n",
}


@EACH_WAY
@pytest.mark.parametrize("answer", WHOLE.values(), ids=WHOLE)
async def test_t3_a_whole_reply_counts_and_its_connection_is_not_used_again(
    narrows: Start, limited: Callable[[int], None], answer: bytes, target: str, limit: int
) -> None:
    limited(limit)
    connections = set()

    async def script(_: Asked, writer: asyncio.StreamWriter) -> None:
        connections.add(writer)
        writer.write(answer)
        await asyncio.sleep(0.01)

    setup = await narrows(script)
    for _ in range(2):
        returned = await setup.raw(post(BODY, target=target))
        assert returned.split()[1] in (b"200", b"204")
        assert b"never" not in returned
    assert len(connections) == 2


async def test_x2_lines_that_all_end_in_a_line_feed_are_lines(narrows: Start) -> None:
    """RFC 9112, 2.2: a recipient may take them for lines. The client receives CRLF."""
    head, _, body = OK.partition(b"\r\n\r\n")
    setup = await narrows(b"HTTP/1.1 103 Early Hints\nLink: x\n\n" + head.replace(b"\r\n", b"\n") + b"\n\n" + body)
    returned = await setup.raw(post(BODY))
    assert returned.startswith(b"HTTP/1.1 200 OK\r\n")
    assert returned.endswith(body)


@EACH_WAY
async def test_t3_a_body_that_is_garbled_behind_its_head_ends(
    narrows: Start, limited: Callable[[int], None], target: str, limit: int
) -> None:
    async def script(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + b"2\r\n{}\r\n")
        await asyncio.sleep(0.02)
        writer.write(b"none\r\n")
        await asyncio.sleep(5)

    limited(limit)
    setup = await narrows(script)
    with pytest.raises(ConnectionResetError):
        await setup.raw(post(BODY, target=target))


async def test_t1_a_reply_to_head_has_no_body_whatever_follows(narrows: Start) -> None:
    setup = await narrows(OK)
    returned = await setup.raw(post(b"", target="/v1/models").replace(b"POST", b"HEAD"))
    assert returned.startswith(b"HTTP/1.1 200 OK\r\n")
    assert returned.endswith(b"\r\n\r\n")


class Listening:
    """An upstream whose connections can be closed at any moment; `closes`: instead of a reply on one used before."""

    def __init__(self, closes: bool) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}/v1"
        self.closes = closes
        self.connections: list[socket.socket] = []
        self.requests = 0

    def accept(self) -> None:
        with suppress(OSError):
            while True:
                self.connections.append(self.socket.accept()[0])
                Thread(target=self.serve, args=[self.connections[-1]]).start()

    def serve(self, connection: socket.socket) -> None:
        received, replies = b"", 0
        with connection, suppress(OSError):
            while piece := connection.recv(2**20):
                received += piece
                if received.endswith(BODY):
                    self.requests, received = self.requests + 1, b""
                    if self.closes and replies:
                        return
                    connection.sendall(OK)
                    replies += 1

    def hang_up(self) -> None:
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def listening(request: pytest.FixtureRequest) -> Iterator[Listening]:
    upstream = Listening(request.param)
    thread = Thread(target=upstream.accept)
    thread.start()
    yield upstream
    upstream.hang_up()
    upstream.socket.shutdown(socket.SHUT_RDWR)
    thread.join()
    upstream.socket.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says which bytes were acknowledged")
@pytest.mark.parametrize("limit", [2**20, 10])
@pytest.mark.parametrize("listening", [False, True], indirect=True)
async def test_t5_what_nobody_received_is_sent_once_more_and_nothing_else(
    narrows: Start, limited: Callable[[int], None], limit: int, listening: Listening
) -> None:
    def change(body: bytes) -> bytes:
        if listening.requests == 1 and not listening.closes:  # as the second request goes out
            listening.hang_up()
        return body

    limited(limit)
    setup = await narrows(upstream=listening.url, compaction=PassThrough(change=change))
    first, second = await setup.raw(post(BODY)), await setup.raw(post(BODY))
    assert first.startswith(b"HTTP/1.1 200 ")
    assert listening.requests == 2
    if listening.closes:
        assert error_of(second)["code"] == "upstream_cut"
    else:
        assert second.startswith(b"HTTP/1.1 200 ")
    assert len(listening.connections) == 2 - listening.closes


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_t5_what_was_received_is_not_sent_again_whatever_its_method(narrows: Start, method: str) -> None:
    async def script(_: Asked, writer: asyncio.StreamWriter) -> None:
        if len(setup.upstream.seen) == 1:
            writer.write(OK)
        else:
            writer.close()

    setup = await narrows(script)
    request = post(b"", target="/v1/files/f").replace(b"POST", method.encode())
    assert (await setup.raw(request)).startswith(b"HTTP/1.1 200 ")
    assert error_of(await setup.raw(request))["code"] == "upstream_cut"
    assert len(setup.upstream.seen) == 2


async def test_t5_a_new_connection_leaves_those_of_the_pool_alone(narrows: Start) -> None:
    setup = await narrows(OK)
    upstream = setup.app.gateway._parts.upstreams.by_name["default"]
    for _ in range(2):
        with only_fresh_connections():
            reply = await upstream.send("POST", "/chat/completions", CIMultiDict(), BODY)
        assert [piece async for piece in reply.chunks()]
    connector = upstream._session.connector
    assert connector is not None
    assert [len(connections) for connections in connector._conns.values()] == [2]
