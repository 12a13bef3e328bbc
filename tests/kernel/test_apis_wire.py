"""Each API on the wire: what its requests are answered when something goes wrong, and how its streams end."""

import asyncio
import json
from functools import partial

import anthropic
import openai
import pytest

from tests.kernel.test_waiting import Waits
from tests.kit.running import Running, Start
from tests.kit.upstream import Asked, Script, chunk, json_answer, post, stream_head
from tests.kit.wire import APIS, EACH, Api, Json, plain


async def refused(setup: Running, api: Api, request: bytes) -> tuple[int, str]:
    """The status and the code of a refusal, in the shape of the API."""
    status, body = plain(await setup.raw(request))
    return status, api.code(json.loads(body))


@EACH
async def test_t3_a_refusal_has_the_shape_of_its_api(narrows: Start, api: Api) -> None:
    setup = await narrows(body_limit=1000)
    path, below = api.path, api.path + "/%2e%2e/x"
    assert await refused(setup, api, post(api.body, "x-narrows: perhaps", target=path)) == (400, "bad_header")
    assert await refused(setup, api, post(api.body, "x-narrows-conversation: ", target=path)) == (400, "bad_header")
    assert await refused(setup, api, post(api.body, "Content-Encoding: lz4", target=path)) == (415, "unknown_encoding")
    assert await refused(setup, api, post(b" " * 1001, target=path)) == (413, "body_too_large")
    assert await refused(setup, api, post(b"no gzip", "Content-Encoding: gzip", target=path)) == (400, "bad_encoding")
    assert await refused(setup, api, post(api.body, "Expect: much", target=path)) == (417, "bad_expectation")
    assert await refused(setup, api, post(b"", target=below)) == (400, "bad_target")
    assert await refused(setup, api, post(b"", api.header, target="/elsewhere")) == (404, "not_found")
    assert setup.upstream.seen == []


@EACH
@pytest.mark.parametrize("below", ["", "/x_1/cancel"])
async def test_t3_an_upstream_that_is_not_there_is_told_in_the_words_of_the_api(
    narrows: Start, free_port: int, api: Api, below: str
) -> None:
    async def closes(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.close()

    setup, gone = await narrows(closes), await narrows(upstream=f"http://127.0.0.1:{free_port}/v1")
    request = post(api.body, target=api.path + below)
    assert await refused(setup, api, request) == (502, "upstream_cut")
    assert await refused(gone, api, request) == (502, "upstream_unreachable")


def breaking(*pieces: bytes) -> Script:
    async def script(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(stream_head() + b"".join(map(chunk, pieces)))
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()

    return script


@EACH
@pytest.mark.parametrize("real", [False, True], ids=["passing through", "recall on board"])
async def test_t3_a_stream_that_breaks_off_says_so_in_an_event_of_its_api(narrows: Start, api: Api, real: bool) -> None:
    setup = await narrows(breaking(api.stream[0], api.stream[1][:20]), real=real)
    _, body = plain_until_cut(await setup.raw(post(api.with_tools, target=api.path)))
    *before, last = body.rstrip().split(b"\n\n")
    assert before[0] + b"\n\n" == api.stream[0]
    event = json.loads(last.partition(b"data: ")[2])
    assert (api.last(event), event.get("sequence_number", 1)) == ("upstream_cut", 1)
    assert last.startswith(b"data: " if api.dialect == "openai_chat" else b"event: error\n")
    assert api.stream[-1] not in body


def plain_until_cut(reply: bytes) -> tuple[int, bytes]:
    """As `plain`; and no chunk says that this is the end."""
    assert not reply.endswith(b"0\r\n\r\n")
    return plain(reply)


@EACH
@pytest.mark.parametrize("real", [False, True], ids=["passing through", "recall on board"])
@pytest.mark.parametrize("step", [1, 13])
async def test_t2_typed_events_arrive_unchanged_however_they_are_split(
    narrows: Start, api: Api, real: bool, step: int
) -> None:
    stream = b": hello\r\n\r\n" + b"".join(api.stream)
    split = [stream[at : at + step] for at in range(0, len(stream), step)]

    async def script(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(stream_head())
        for piece in split:
            writer.write(chunk(piece))
            await writer.drain()
        writer.write(chunk(b""))

    setup = await narrows(script, real=real)
    assert plain(await setup.raw(post(api.with_tools, target=api.path))) == (200, stream)


@EACH
async def test_t2_a_stream_until_close_is_whole_where_its_own_words_say_so(narrows: Start, api: Api) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(head + b"".join(api.stream[: -1 if asked.all("x-cut") else None]))
        await writer.drain()
        writer.close()

    setup = await narrows(script)
    assert plain(await setup.raw(post(api.with_tools, target=api.path))) == (200, b"".join(api.stream))
    _, cut = plain(await setup.raw(post(api.with_tools, "x-cut: 1", target=api.path)))
    assert api.last(json.loads(cut.rpartition(b"data: ")[2])) == "upstream_cut"


@EACH
async def test_t7_a_stream_that_is_shut_down_says_so(narrows: Start, api: Api) -> None:
    async def script(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(stream_head() + chunk(api.stream[0]))
        await asyncio.sleep(60)

    setup = await narrows(script)
    reader, writer = await setup.connect()
    writer.write(post(api.body, target=api.path))
    async with asyncio.timeout(5):
        await reader.readuntil(b"\n\n\r\n")
        await setup.app.close(0)
        last = json.loads((await reader.read()).partition(b"data: ")[2].partition(b"\n\n")[0])
    assert api.last(last) == "shutting_down"
    writer.close()


SLOW = {"type": "rate_limit_error", "message": "Slow down."}
REFUSALS: dict[str, tuple[Json, Json]] = {
    "openai_chat": ({"error": {**SLOW, "code": "c", "param": None}}, {"error": {**SLOW, "code": "c", "param": None}}),
    "openai_responses": (
        {"error": {**SLOW, "code": "c", "param": None}},
        {"type": "error", "code": "c", "message": "Slow down.", "param": None, "sequence_number": 0},
    ),
    "anthropic_messages": (
        {"type": "error", "error": SLOW, "request_id": "r"},
        {"type": "error", "error": SLOW, "request_id": "r"},
    ),
}
"""What the upstream refuses with, and what becomes of it in a stream."""


@EACH
async def test_m8_who_was_told_to_wait_hears_of_a_refusal_in_the_stream(narrows: Start, api: Api) -> None:
    error, event = REFUSALS[api.dialect]
    refusal = json_answer(error, status="429 Too Many")
    setup = await narrows(refusal, Waits(until=partial(asyncio.sleep, 0.02)), summary_wait=1000, summary_comments=True)
    _, body = plain(await setup.raw(post(api.with_tools, target=api.path)))
    *comments, last = body.rstrip().split(b"\n\n")
    assert comments[0] == b": updating summary"
    assert json.loads(last.partition(b"data: ")[2]) == event


async def test_m8_the_official_clients_read_past_what_they_are_told_meanwhile(narrows: Start) -> None:
    given: Json = {"api_key": "k", "max_retries": 0}
    urls = []
    for api in APIS[1:]:
        stream = stream_head() + chunk(b"".join(api.stream)) + chunk(b"")
        waits = Waits(until=partial(asyncio.sleep, 0.02))
        urls.append((await narrows(stream, waits, summary_wait=1000, summary_comments=True)).url)
    async with openai.AsyncOpenAI(base_url=urls[0], **given) as client:
        said = [each.type async for each in await client.responses.create(**APIS[1].request, stream=True)]
        assert said[0::2] == ["response.created", "response.completed"]
    async with anthropic.AsyncAnthropic(base_url=urls[1].removesuffix("/v1"), **given) as other:
        heard = [each.type async for each in await other.messages.create(**APIS[2].request, stream=True)]
        assert (heard[0], heard[-1]) == ("message_start", "message_stop")


async def test_t3_the_official_clients_raise_what_they_raise_without_us(narrows: Start) -> None:
    chat, responses, messages = [await narrows(breaking(*api.stream[:2])) for api in APIS]
    given: Json = {"api_key": "k", "max_retries": 0}
    async with openai.AsyncOpenAI(base_url=chat.url, **given) as client:
        with pytest.raises(openai.APIError, match="broke off"):
            [_ async for _ in await client.chat.completions.create(**APIS[0].request, stream=True)]
    async with openai.AsyncOpenAI(base_url=responses.url, **given) as client:
        events = aiter(await client.responses.create(**APIS[1].request, stream=True))
        said = [await anext(events) for _ in range(3)]
        assert said[-1].type == "error"
        assert "broke off" in said[-1].message
        with pytest.raises(openai.APIConnectionError):
            await anext(events)
    async with anthropic.AsyncAnthropic(base_url=messages.url.removesuffix("/v1"), **given) as other:
        with pytest.raises(anthropic.APIStatusError, match="broke off"):
            [_ async for _ in await other.messages.create(**APIS[2].request, stream=True)]
