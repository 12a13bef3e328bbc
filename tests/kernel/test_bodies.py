"""Bodies: encoded, too large, changed, not understood; and what a client may ask for beside them."""

import asyncio
import gzip
import json
import zlib
from io import BytesIO
from uuid import UUID

import brotli  # type: ignore[import-untyped]  # it ships no types
import pytest
import zstandard

from tests.kit.histories import TOOLS
from tests.kit.running import PassThrough, Start
from tests.kit.upstream import CHAT, COMPRESS, REQUEST, chunk, completion, error_of, json_answer, post


@pytest.mark.parametrize("encoding", COMPRESS)
async def test_t6_an_encoded_body_is_understood_and_goes_on_as_it_came(narrows: Start, encoding: str) -> None:
    setup = await narrows()
    plain = json.dumps(REQUEST).encode()
    body = COMPRESS[encoding](plain)
    reply = await setup.raw(post(body, f"Content-Encoding: {encoding}"))
    assert b"200 OK" in reply
    assert setup.compaction.seen[0].client_request.body == plain
    (asked,) = setup.upstream.seen
    assert (asked.body, asked.one("content-encoding")) == (body, encoding)


async def test_t6_a_changed_body_goes_on_without_the_encoding(narrows: Start) -> None:
    setup = await narrows(compaction=PassThrough(lambda body: body + b" "))
    plain = json.dumps(REQUEST).encode()
    await setup.raw(post(gzip.compress(plain), "Content-Encoding: gzip", "Content-MD5: x", "Digest: y"))
    (asked,) = setup.upstream.seen
    assert asked.body == plain + b" "
    assert asked.one("content-length") == str(len(plain) + 1)
    assert not any(asked.all(name) for name in ("content-encoding", "content-md5", "digest"))


@pytest.mark.parametrize(
    ("encoding", "body", "status"),
    [
        ("gzip", gzip.compress(bytes(2**25), mtime=0), 413),
        ("br", brotli.compress(bytes(2**25), quality=1), 413),
        ("zstd", zstandard.compress(bytes(2**25)), 413),
        ("deflate", zlib.compress(bytes(2**25)), 413),
        ("identity", bytes(2**20 + 1), 413),
        ("gzip, gzip", gzip.compress(gzip.compress(b"{}", mtime=0), mtime=0), 415),
        ("compress", b"x", 415),
        ("gzip", b"this is not gzip", 400),
    ],
)
async def test_t6_bombs_and_unknown_encodings_are_refused(
    narrows: Start, encoding: str, body: bytes, status: int
) -> None:
    setup = await narrows(body_limit=2**20)
    reply = await setup.raw(post(body, f"Content-Encoding: {encoding}"), seconds=20)
    assert reply.startswith(b"HTTP/1.1 %d " % status)
    assert error_of(reply)["type"] == "invalid_request_error"
    assert setup.upstream.seen == []


async def test_t6_the_limit_itself_fits_and_one_more_does_not_even_unannounced(narrows: Start) -> None:
    setup = await narrows(body_limit=2**21)
    async with setup.client.post(setup.url + CHAT, data=BytesIO(bytes(2**21))) as reply:
        assert reply.status == 200
    assert len(setup.upstream.seen[0].body) == 2**21
    assert setup.upstream.seen[0].one("content-length") == str(2**21)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    reader, writer = await setup.connect()
    writer.write(head + chunk(bytes(2**21)) + chunk(b"x"))
    async with asyncio.timeout(5):
        assert b" 413 " in await reader.readuntil(b"\r\n")
    writer.close()
    assert len(setup.upstream.seen) == 1


async def test_t8_replies_keep_their_usage_and_gain_our_headers(narrows: Start) -> None:
    answer = json_answer(completion(), "X-Narrows-Mode: forged", "X-Narrows-Other: forged")
    setup = await narrows(answer)
    async with setup.client.post(setup.url + CHAT, json=REQUEST) as reply:
        assert await reply.read() == answer.partition(b"\r\n\r\n")[2]
        ours = {name.lower(): value for name, value in reply.headers.items() if name.lower().startswith("x-n")}
    assert UUID(ours.pop("x-narrows-request-id")).version == 7
    assert ours == {
        "x-narrows-mode": "untouched",
        "x-narrows-prefix": "first",
        "x-narrows-conversation": "c1",
    }


async def test_x8_a_name_from_a_body_cannot_forge_a_header(narrows: Start) -> None:
    setup = await narrows(compaction=PassThrough(named="a\r\nSet-Cookie: forged\u2028é" + "x" * 999))
    reply = await setup.raw(post(json.dumps(REQUEST).encode()))
    assert b" 200 " in reply.splitlines()[0]
    assert b"x-narrows-conversation: a\\r\\nSet-Cookie: forged\\u2028\\xe9xxx" in reply
    assert max(map(len, reply.split(b"\r\n\r\n")[0].splitlines())) < 300


@pytest.mark.parametrize(
    ("configured", "asked", "mode"),
    [
        ("on", "observe", "observe"),
        ("on", "OFF", "off"),
        ("observe", "off", "off"),
        ("observe", "on", "observe"),
    ],
)
async def test_t9_a_client_may_ask_for_less(narrows: Start, configured: str, asked: str, mode: str) -> None:
    setup = await narrows(mode=configured)
    async with setup.client.post(setup.url + CHAT, json=REQUEST, headers={"x-narrows": asked}) as reply:
        assert reply.status == 200
    assert setup.compaction.seen[0].client_request.options.mode == mode
    assert setup.upstream.seen[0].all("x-narrows") == []


async def test_t9_an_unknown_mode_is_refused_with_the_header_named(narrows: Start) -> None:
    setup = await narrows()
    reply = await setup.raw(post(b"{}", "x-narrows: sideways"))
    assert b" 400 " in reply.splitlines()[0]
    assert error_of(reply)["param"] == "x-narrows"


ILL = b'{"messages": [ {"role":"user","content":"\\ud800"} ], "messages": 1e400'


@pytest.mark.parametrize("body", [ILL, json.dumps({**REQUEST, "tools": TOOLS}).encode()], ids=["ill", "with tools"])
async def test_t9_off_is_a_byte_pass_through_without_a_store(narrows: Start, body: bytes) -> None:
    setup = await narrows(mode="off", store="sqlite:////no/such/place/narrows.db", real=True)
    reply = await setup.raw(post(body))
    assert b"x-narrows-mode: bypassed\r\nx-narrows-prefix: bypassed" in reply
    assert setup.upstream.seen[0].body == body


@pytest.mark.parametrize("body", [b"", b"not JSON", b"[1]", b'{"messages": 7}', b"\xff\xfe", b'{"model": "x"}'])
async def test_bad_input_gets_the_upstreams_own_answer(narrows: Start, body: bytes) -> None:
    refusal = json_answer({"error": {"message": "no"}}, "X-Request-Id: r1", status="400 Bad Request")
    setup = await narrows(refusal)
    reply = await setup.raw(post(body))
    assert reply.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert reply.endswith(refusal.partition(b"\r\n\r\n")[2])
    assert setup.upstream.seen[0].body == body
    assert setup.compaction.seen[0].status == 400
