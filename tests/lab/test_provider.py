"""The provider over real sockets, with the official client, and its scripted faults."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import aiohttp
import openai
import pytest
from openai.types.chat import ChatCompletionChunk
from yarl import URL

from policies.money.prices import Prices, Usage
from proxy.lab.provider import (
    TURN_HEADER,
    Abort,
    Answer,
    Provider,
    Received,
    Reflect,
    Say,
    Script,
    Send,
    Wire,
    start,
)
from tests.kit.paths import TRANSCRIPTS

CALLS = (
    {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": '{"path": "src/a.py"}'}},
    {"id": "call_2", "type": "function", "function": {"name": "list", "arguments": "{}"}},
)
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("read", "list")
]
HELLO: Any = [{"role": "user", "content": "Hello there"}]


def provider(answer: Script | None = None, **fields: Any) -> Provider:
    """A token is a character; the window is small."""
    fields = {"prices": lambda model: Prices(model=model, window=50_000), "count": len, **fields}
    return Provider(answer=answer, **fields)


def always(answer: Answer) -> Script:
    return lambda received: answer


@asynccontextmanager
async def served(upstream: Provider, key: str = "key") -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        await start(upstream) as running,
        openai.AsyncOpenAI(base_url=running.url, api_key=key, max_retries=0) as client,
    ):
        yield client


@asynccontextmanager
async def posted(
    upstream: Provider, body: bytes, path: str = "/chat/completions", method: str = "POST", **headers: str
) -> AsyncIterator[aiohttp.ClientResponse]:
    """One request by a client that changes nothing, neither the address nor the encoding of the reply."""
    async with (
        await start(upstream) as running,
        aiohttp.ClientSession(auto_decompress=False) as session,
        session.request(method, URL(running.url + path, encoded=True), data=body, headers=headers) as reply,
    ):
        yield reply


def chat(**fields: Any) -> bytes:
    return json.dumps({"model": "gpt-5.4", "messages": HELLO, **fields}).encode()


# --- as the official client sees it ---


async def test_a_plain_completion() -> None:
    async with served(provider(always(Say("Good day")))) as client:
        reply = await client.chat.completions.create(model="gpt-5.4", messages=HELLO)
    assert reply.choices[0].message.content == "Good day"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.model == "gpt-5.4"
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens) == (15, 8, 23)


async def test_the_default_answer_without_a_script() -> None:
    async with served(provider(default=Say("Noted."))) as client:
        reply = await client.chat.completions.create(model="gpt-5.4", messages=HELLO)
    assert reply.choices[0].message.content == "Noted."


async def test_the_same_request_has_the_same_bytes() -> None:
    async with served(provider()) as client:
        create = client.chat.completions.with_raw_response.create
        first, again, other = [await create(model=model, messages=HELLO) for model in ("gpt-5.4", "gpt-5.4", "gpt-4o")]
    assert first.content == again.content
    assert first.headers["x-request-id"] == again.headers["x-request-id"]
    assert first.parse().id != other.parse().id


async def test_calls_and_several_choices() -> None:
    async with served(provider(always(Say(None, CALLS)))) as client:
        reply = await client.chat.completions.create(model="gpt-5.4", messages=HELLO, tools=TOOLS, n=2)
    assert [choice.index for choice in reply.choices] == [0, 1]
    for choice in reply.choices:
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        assert choice.message.tool_calls is not None
        assert [call.model_dump() for call in choice.message.tool_calls] == list(CALLS)
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 2 * len('read{"path": "src/a.py"}list{}')


def joined(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


async def test_streaming_in_several_pieces_with_usage_at_the_end() -> None:
    text = "It flows as it comes, naïvely — 🙂. " * 5
    async with served(provider(always(Say(text)))) as client:
        stream = await client.chat.completions.create(
            model="gpt-5.4", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert joined(chunks) == text
    assert sum(1 for c in chunks if c.choices and c.choices[0].delta.content) == 8
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 2) + ["stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(text)
    assert len({chunk.id for chunk in chunks}) == 1


async def test_streaming_without_usage_unless_asked() -> None:
    async with served(provider(always(Say("Hi")))) as client:
        stream = await client.chat.completions.create(model="gpt-5.4", messages=HELLO, stream=True)
        chunks = [chunk async for chunk in stream]
    assert joined(chunks) == "Hi"
    assert all(chunk.choices and "usage" not in chunk.model_fields_set for chunk in chunks)


async def test_the_streaming_helper_puts_calls_together() -> None:
    async with (
        served(provider(always(Say("Looking.", CALLS)))) as client,
        client.chat.completions.stream(model="gpt-5.4", messages=HELLO, tools=TOOLS) as stream,
    ):
        final = await stream.get_final_completion()
    message = final.choices[0].message
    assert message.content == "Looking."
    assert final.choices[0].finish_reason == "tool_calls"
    assert message.tool_calls is not None
    assert [(c.id, c.function.name, c.function.arguments) for c in message.tool_calls] == [
        (c["id"], c["function"]["name"], c["function"]["arguments"])  # type: ignore[index]  # a plain dict
        for c in CALLS
    ]


async def test_the_synchronous_client() -> None:
    def ask(url: str) -> tuple[str | None, str]:
        with openai.OpenAI(base_url=url, api_key="key", max_retries=0) as client:
            plain = client.chat.completions.create(model="gpt-5.4", messages=HELLO)
            stream = client.chat.completions.create(model="gpt-5.4", messages=HELLO, stream=True)
            return plain.choices[0].message.content, joined(list(stream))

    async with await start(provider(always(Say("Good day")))) as running:
        assert await asyncio.to_thread(ask, running.url) == ("Good day", "Good day")


async def test_models_and_unknown_addresses() -> None:
    async with served(provider(models=("gpt-5.4", "gpt-4o"))) as client:
        assert [model.id async for model in client.models.list()] == ["gpt-5.4", "gpt-4o"]
        with pytest.raises(openai.NotFoundError) as missing:
            await client.embeddings.create(model="x", input="y")
        assert "/v1/embeddings" in missing.value.message
        with pytest.raises(openai.APIStatusError) as wrong:
            await client.get("/chat/completions", cast_to=object)
        assert wrong.value.status_code == 405


async def test_a_violation_is_a_bad_request_in_the_shape_of_the_api() -> None:
    orphan: Any = [*HELLO, {"role": "tool", "tool_call_id": "x", "content": "y"}]
    upstream = provider(always(Say("never said")))
    async with served(upstream) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="gpt-5.4", messages=orphan, stream=True)
    assert refused.value.param == "messages[1].tool_call_id"
    assert refused.value.type == "invalid_request_error"
    assert upstream.requests[0].violation is not None
    assert upstream.requests[0].usage is None


async def test_the_window_is_a_limit() -> None:
    async with served(provider()) as client:
        just: Any = [{"role": "user", "content": "x" * (50_000 - 4)}]
        assert (await client.chat.completions.create(model="gpt-5.4", messages=just)).choices
        over: Any = [{"role": "user", "content": "x" * (50_000 - 3)}]
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="gpt-5.4", messages=over)
    assert refused.value.code == "context_length_exceeded"
    assert "50001" in refused.value.message


@pytest.mark.parametrize("body", [b"", b"{", b"[" * 100_000, b'{"model": NaN}', b"\xff\xfe"])
async def test_what_is_not_json_is_a_bad_request(body: bytes) -> None:
    upstream = provider()
    async with posted(upstream, body) as reply:
        assert reply.status == 400
        assert "JSON" in (await reply.json())["error"]["message"]
    assert upstream.requests[0].body == body


async def test_a_lone_surrogate_is_text() -> None:
    spoken = [{"role": "user", "content": "\ud800"}]
    async with posted(provider(always(Say("\udfff"))), chat(messages=spoken)) as reply:
        assert reply.status == 200
        said = json.loads(await reply.read())["choices"][0]["message"]["content"]
    assert said == "\udfff"


# --- the cache in the bill ---


async def test_usage_reports_what_the_prompt_cache_read_and_wrote() -> None:
    prices = {"old": Prices(), "gpt-5.6": Prices(breakpoints=True), "claude": Prices(breakpoints=True)}
    upstream = provider(prices=lambda model: prices[model])
    long: Any = [{"role": "system", "content": "s" * 2_000}, *HELLO]
    marked: Any = [
        {
            "role": "system",
            "content": [{"type": "text", "text": "s" * 2_000, "cache_control": {"type": "ephemeral"}}],
        },
        *HELLO,
    ]
    async with served(upstream) as client:
        seen = {}
        for model, messages in (("old", long), ("gpt-5.6", long), ("claude", marked)):
            for _ in range(2):
                reply = await client.chat.completions.create(model=model, messages=messages)
            assert reply.usage is not None
            assert reply.usage.prompt_tokens_details is not None
            details = reply.usage.prompt_tokens_details
            seen[model] = (details.cached_tokens, details.cache_write_tokens)
    assert seen == {"old": (1_920, 0), "gpt-5.6": (2_019, 0), "claude": (2_004, 0)}
    said = len("Understood.")
    assert [received.usage for received in upstream.requests] == [
        Usage(2_019, 0, 0, said),
        Usage(2_019, 1_920, 0, said),
        Usage(2_019, 0, 2_019, said),
        Usage(2_019, 2_019, 0, said),
        Usage(2_019, 0, 2_004, said),
        Usage(2_019, 2_004, 0, said),
    ]


async def test_each_credential_has_its_own_cache() -> None:
    upstream = provider()
    long: Any = [{"role": "system", "content": "s" * 2_000}]
    async with await start(upstream) as running:
        for key in ("one", "other", "one"):
            async with openai.AsyncOpenAI(base_url=running.url, api_key=key) as client:
                await client.chat.completions.create(model="gpt-5.4", messages=long)
    assert [r.credential for r in upstream.requests] == ["one", "other", "one"]
    assert [r.usage.cached for r in upstream.requests if r.usage] == [0, 0, 1_920]


async def test_the_prices_of_another_model_bring_its_cache_along() -> None:
    upstream = provider(prices=lambda model: Prices(model="claude-opus-5-5", breakpoints=True))
    async with served(upstream) as client:
        long: Any = [{"role": "user", "content": "u" * 2_000}]
        await client.chat.completions.create(model="gpt-4o", messages=long)
    assert upstream.requests[0].usage == Usage(2_004, 0, 0, 11)  # no mark, so nothing is written


# --- sessions ---

RECORDED: Any = [
    {"role": "user", "content": "Fix it"},
    {"role": "assistant", "content": "Looking.", "tool_calls": list(CALLS)},
    {"role": "tool", "tool_call_id": "call_1", "content": "one"},
    {"role": "tool", "tool_call_id": "call_2", "content": "two"},
    {"role": "assistant", "content": [{"type": "text", "text": "Do"}, {"type": "text", "text": "ne."}]},
]


async def test_a_recorded_session_is_played_back_by_credential() -> None:
    upstream = provider()
    upstream.play("recorded", RECORDED)
    async with served(upstream, "recorded") as client:
        create = client.chat.completions.create
        first = (await create(model="m", messages=RECORDED[:1])).choices[0].message
        second = (await create(model="m", messages=RECORDED[:4])).choices[0].message
        beyond = (await create(model="m", messages=[*RECORDED, *HELLO])).choices[0].message
    assert first.model_dump(include={"content", "tool_calls"}) == {
        "content": "Looking.",
        "tool_calls": list(CALLS),
    }
    assert (second.content, second.tool_calls) == ("Done.", None)
    assert beyond.content == "Understood."


async def test_a_session_whose_history_was_cut_says_its_turn() -> None:
    upstream = provider()
    upstream.play("recorded", RECORDED)
    async with served(upstream, "recorded") as client:
        cut = await client.chat.completions.create(model="m", messages=HELLO, extra_headers={TURN_HEADER: "1"})
    assert cut.choices[0].message.content == "Done."


async def test_sessions_are_apart() -> None:
    upstream = provider()
    upstream.play("one", [{"role": "assistant", "content": "first"}])
    upstream.play("two", [{"role": "assistant", "content": "second"}])
    async with await start(upstream) as running:
        said = {}
        for key in ("one", "two", "three"):
            async with openai.AsyncOpenAI(base_url=running.url, api_key=key) as client:
                reply = await client.chat.completions.create(model="m", messages=HELLO)
                said[key] = reply.choices[0].message.content
    assert said == {"one": "first", "two": "second", "three": "Understood."}


@pytest.mark.skipif(not TRANSCRIPTS.is_dir(), reason="the recorded sessions are not part of the project")
async def test_a_real_session_comes_back_word_for_word() -> None:
    session = json.loads((TRANSCRIPTS / "mini-astropy__astropy-13033.json").read_text())
    messages = session["messages"]
    upstream = provider(prices=lambda model: Prices())
    upstream.play("key", messages)
    async with served(upstream) as client:
        for end, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            asked = {"model": session["model"], "messages": messages[:end], "tools": session["tools"]}
            async with client.chat.completions.stream(**asked) as stream:
                said = (await stream.get_final_completion()).choices[0].message
            assert (said.content or "") == (message["content"] or "")
            assert [c.function.arguments for c in said.tool_calls or ()] == [
                c["function"]["arguments"] for c in message.get("tool_calls") or ()
            ]
    usages = [received.usage for received in upstream.requests if received.usage]
    assert all(now.cached >= before.prompt - 128 for before, now in pairwise(usages) if before.prompt > 1_152)


# --- what a script can do ---


async def test_any_status_body_and_headers() -> None:
    busy = Send(
        429,
        b'{"error": {"message": "slow down"}}',
        (("Retry-After", "7"), ("Set-Cookie", "a"), ("Set-Cookie", "b")),
    )
    async with posted(provider(always(busy)), chat()) as reply:
        assert (reply.status, reply.headers["Retry-After"]) == (429, "7")
        assert reply.headers.getall("Set-Cookie") == ["a", "b"]
        assert await reply.read() == busy.body


async def test_a_request_is_reflected_byte_for_byte() -> None:
    body = bytes(range(256))
    headers = {"X-Odd": "yes"}
    async with posted(provider(always(Reflect())), body, "/files?a=%2F&b", "PUT", **headers) as reply:
        seen = await reply.json()
    assert (seen["method"], seen["target"]) == ("PUT", "/v1/files?a=%2F&b")
    assert ["X-Odd", "yes"] in seen["headers"]
    assert seen["body"].encode("latin-1") == body


async def test_the_script_sees_the_request_and_may_leave_the_answer_to_the_provider() -> None:
    seen: list[tuple[str, str, str]] = []

    def script(received: Received) -> None:
        seen.append((received.path, received.credential, received.model))

    async with served(provider(script)) as client:
        reply = await client.chat.completions.create(model="gpt-5.4", messages=HELLO)
    assert reply.choices[0].message.content == "Understood."
    assert seen == [("/v1/chat/completions", "key", "gpt-5.4")]


async def test_t3_dies_before_headers() -> None:
    upstream = provider(always(Abort()))
    async with served(upstream) as client:
        with pytest.raises(openai.APIConnectionError):
            await client.chat.completions.create(model="gpt-5.4", messages=HELLO)
    assert upstream.requests[0].outcome == "aborted"


async def test_t3_all_that_was_to_be_sent_arrives_before_the_cut() -> None:
    upstream = provider(always(Send(body=b"x" * 3_000_000, wire=Wire(die_at=2_000_000))))
    got = bytearray()
    async with posted(upstream, chat()) as reply:
        with pytest.raises(aiohttp.ClientPayloadError):
            await read_into(got, reply)
    assert len(got) == 2_000_000


async def read_into(got: bytearray, reply: aiohttp.ClientResponse) -> None:
    async for piece in reply.content.iter_any():
        got += piece


@pytest.mark.parametrize("stream", [False, True])
async def test_t3_dies_in_the_middle_of_the_body(stream: bool) -> None:
    upstream = provider(always(Say("x" * 1_000, wire=Wire(die_at=200))))
    got = bytearray()
    async with posted(upstream, chat(stream=stream)) as reply:
        assert reply.status == 200
        with pytest.raises(aiohttp.ClientPayloadError):
            await read_into(got, reply)
    assert len(got) == 200
    assert (upstream.requests[0].outcome, upstream.requests[0].sent) == ("aborted", 200)


async def test_t3_dies_after_the_head() -> None:
    async with posted(provider(always(Say("x", wire=Wire(die_at=0)))), chat(stream=True)) as reply:
        assert reply.status == 200
        with pytest.raises(aiohttp.ClientPayloadError):
            await reply.read()


async def test_t2_events_split_anywhere_with_crlf_and_comments() -> None:
    wire = Wire(newline=b"\r\n", before_event=b": still here\r\n\r\n", cuts=range(1, 4_000))
    async with posted(provider(always(Say("one two", wire=wire))), chat(stream=True)) as reply:
        pieces = [piece async for piece, _ in reply.content.iter_chunks()]
    body = b"".join(pieces)
    assert len(pieces) > 100
    assert b"\n" not in body.replace(b"\r\n", b"")
    events = body.split(b"\r\n\r\n")
    assert events[0::2][:-1] == [b": still here"] * (len(events) // 2)
    assert events[-2] == b"data: [DONE]"
    texts = [json.loads(e[6:])["choices"][0]["delta"].get("content") or "" for e in events[1:-3:2]]
    assert "".join(texts) == "one two"


async def test_t2_the_official_client_reads_what_is_split_and_commented() -> None:
    wire = Wire(newline=b"\r\n", before_event=b": still here\r\n\r\n", cuts=range(1, 4_000))
    async with served(provider(always(Say("one two", CALLS, wire=wire)))) as client:
        stream = await client.chat.completions.create(model="m", messages=HELLO, tools=TOOLS, stream=True)
        assert joined([chunk async for chunk in stream]) == "one two"


async def test_t2_one_event_of_a_megabyte() -> None:
    async with served(provider(always(Say("x" * 1_000_000, pieces=1)))) as client:
        stream = await client.chat.completions.create(model="m", messages=HELLO, stream=True)
        sizes = [len(c.choices[0].delta.content or "") for c in [c async for c in stream]]
    assert sizes == [0, 1_000_000, 0]


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("stream", [False, True])
async def test_t6_encoded_replies(encoding: str, stream: bool) -> None:
    async with served(provider(always(Say("packed", wire=Wire(encoding=encoding))))) as client:
        reply: Any = await client.chat.completions.create(model="m", messages=HELLO, stream=stream)
        said = joined([c async for c in reply]) if stream else reply.choices[0].message.content
    assert said == "packed"


async def test_t6_encoded_requests_are_read_and_kept_as_they_came() -> None:
    upstream = provider()
    packed = gzip.compress(chat())
    headers = {"Content-Encoding": "gzip"}
    async with posted(upstream, packed, **headers) as reply:
        assert reply.status == 200
    async with posted(upstream, chat(), **headers) as reply:
        assert reply.status == 400
    assert upstream.requests[0].body == packed
    assert upstream.requests[0].json["model"] == "gpt-5.4"


async def test_a_body_is_sent_as_the_script_makes_it() -> None:
    go = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"
        await go.wait()
        yield b"data: 2\n\n"

    def script(received: Received) -> Answer:
        return Send(body=slowly(), headers=(("Content-Type", "text/event-stream"),))

    async with posted(provider(script), chat(stream=True)) as reply:
        assert await reply.content.readany() == b"data: 1\n\n"
        go.set()
        assert await reply.content.readany() == b"data: 2\n\n"


class Gate:
    """Says when a request waits, and opens on demand."""

    def __init__(self) -> None:
        self.reached, self.opened = asyncio.Event(), asyncio.Event()

    async def __call__(self) -> None:
        self.reached.set()
        await self.opened.wait()


async def test_a_gate_and_a_delay_hold_back_the_head() -> None:
    gate = Gate()
    upstream = provider(always(Say("late", wire=Wire(delay=0.001, gate=gate))))
    async with served(upstream) as client:
        asked = asyncio.ensure_future(client.chat.completions.create(model="m", messages=HELLO))
        await gate.reached.wait()
        assert (upstream.requests[0].outcome, asked.done()) == ("open", False)
        gate.opened.set()
        assert (await asked).choices[0].message.content == "late"
    assert upstream.requests[0].outcome == "finished"


async def test_t4_a_client_that_leaves_is_seen() -> None:
    closed = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b": on and on\n\n"
                await asyncio.sleep(0.001)
        finally:
            closed.set()

    upstream = provider(lambda received: Send(body=endless()))
    async with posted(upstream, chat(stream=True)) as reply:
        await reply.content.readany()
        reply.close()
        await asyncio.wait_for(closed.wait(), 10)
    assert upstream.requests[0].outcome == "cancelled"


async def test_only_so_many_requests_are_remembered() -> None:
    upstream = provider(keep=2)
    async with served(upstream) as client:
        for model in ("a", "b", "c"):
            await client.chat.completions.create(model=model, messages=HELLO)
    assert [received.model for received in upstream.requests] == ["b", "c"]


async def test_stops_with_a_stream_under_way_and_frees_the_port() -> None:
    gate = Gate()
    running = await start(provider(always(Say("never", wire=Wire(gate=gate)))))
    async with aiohttp.ClientSession() as session:
        asked = asyncio.ensure_future(session.post(running.url + "/chat/completions", data=chat()))
        await gate.reached.wait()
        await running.stop()
        with pytest.raises(aiohttp.ClientError):
            await asked
    async with await start(provider(), port=running.port) as again:
        assert again.port == running.port
