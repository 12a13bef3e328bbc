"""The official `openai` SDK through Narrows and straight to the provider: the same objects, the same errors."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI
from pydantic import BaseModel

from proxy.lab.provider import Received, Say
from tests.kit.histories import Json
from tests.kit.stage import Stage, working

TOOL: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
STRICT: Any = {"type": "function", "function": {**TOOL["function"], "strict": True}}
CALLS = [
    {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at": "a.py"}'}},
    {"id": "call_2", "type": "function", "function": {"name": "look", "arguments": '{"at": "λ.py"}'}},
]
SHORT: Any = [{"role": "user", "content": "Hello, 漢字"}]
LONG: Any = working()[:-1]


@dataclass(frozen=True, slots=True)
class Pair:
    """The same client twice: through Narrows, and straight to the provider. Each has a prompt cache of its own."""

    through: AsyncOpenAI
    direct: AsyncOpenAI
    urls: tuple[str, str]

    async def both(self, ask: Callable[[AsyncOpenAI], Any]) -> tuple[Any, Any]:
        return await ask(self.through), await ask(self.direct)


@pytest.fixture
async def pair(stage: Stage) -> AsyncIterator[Pair]:
    app = await stage.start()
    stage.provider.answer = _answer
    urls = (app.base_url, stage.upstream)
    async with (
        AsyncOpenAI(base_url=urls[0], api_key="through", max_retries=0) as through,
        AsyncOpenAI(base_url=urls[1], api_key="direct", max_retries=0) as direct,
    ):
        yield Pair(through, direct, urls)


def _answer(received: Received) -> Say | None:
    """Tools are called where there are some, and JSON is said where it is wanted."""
    asked = received.json if received.path == "/v1/chat/completions" else None
    if not isinstance(asked, dict):
        return None
    if asked.get("response_format"):
        return Say('{"name": "Ada", "age": 36}')
    return Say("I look. ", CALLS) if asked.get("tools") else Say("Hello there, 漢字 and 🙂.")


def _plain(completion: Any) -> Json:
    """What it says, without the id (it derives from the bytes that were sent) and the prompt side of the bill."""
    said: Json = completion.model_dump()
    said.pop("id")
    if said.get("usage"):
        said["usage"] = said["usage"]["completion_tokens"]
    return said


@pytest.mark.parametrize("messages", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("tools", [openai.omit, [TOOL]], ids=["text", "tools"])
async def test_sdk_a_completion_is_the_same_object(pair: Pair, messages: Any, tools: Any) -> None:
    ours, theirs = await pair.both(lambda c: c.chat.completions.create(model="m", messages=messages, tools=tools))
    assert _plain(ours) == _plain(theirs)
    assert type(ours) is type(theirs)


async def test_sdk_below_the_thresholds_even_id_and_usage_are_the_same(pair: Pair) -> None:
    ours, theirs = await pair.both(lambda c: c.chat.completions.create(model="m", messages=SHORT))
    assert ours == theirs


@pytest.mark.parametrize("messages", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("tools", [openai.omit, [TOOL]], ids=["text", "tools"])
async def test_sdk_a_stream_has_the_same_chunks(pair: Pair, messages: Any, tools: Any) -> None:
    async def ask(client: AsyncOpenAI) -> list[Json]:
        stream = await client.chat.completions.create(
            model="m", messages=messages, tools=tools, stream=True, stream_options={"include_usage": True}
        )
        return [_plain(chunk) async for chunk in stream]

    ours, theirs = await pair.both(ask)
    assert ours == theirs
    assert len(ours) > 5


@pytest.mark.parametrize("messages", [SHORT, LONG], ids=["short", "long"])
async def test_sdk_the_streaming_helper_sees_the_same_events(pair: Pair, messages: Any) -> None:
    async def ask(client: AsyncOpenAI) -> tuple[list[str], Json]:
        async with client.chat.completions.stream(model="m", messages=messages, tools=[TOOL]) as stream:
            kinds: list[str] = [event.type async for event in stream]
            return kinds, _plain(await stream.get_final_completion())

    ours, theirs = await pair.both(ask)
    assert ours == theirs
    assert "tool_calls.function.arguments.done" in ours[0]


async def test_sdk_tools_are_called_and_answered(pair: Pair) -> None:
    async def ask(client: AsyncOpenAI) -> list[Json]:
        first = await client.chat.completions.create(model="m", messages=LONG, tools=[TOOL])
        said = first.choices[0].message
        assert said.tool_calls is not None
        results: Any = [{"role": "tool", "tool_call_id": call.id, "content": "seen"} for call in said.tool_calls]
        answered = [*LONG, said.model_dump(exclude_none=True), *results]
        second = await client.chat.completions.create(model="m", messages=answered, tools=[TOOL])
        return [_plain(first), _plain(second)]

    ours, theirs = await pair.both(ask)
    assert ours == theirs


async def test_sdk_the_synchronous_client(pair: Pair) -> None:
    def ask(url: str) -> list[Json]:
        with OpenAI(base_url=url, api_key=f"sync {url}", max_retries=0) as client:
            whole = client.chat.completions.create(model="m", messages=LONG, tools=[TOOL])
            stream = client.chat.completions.create(model="m", messages=LONG, stream=True, tools=[TOOL])
            return [_plain(whole), *(_plain(chunk) for chunk in stream)]

    ours, theirs = [await asyncio.to_thread(ask, url) for url in pair.urls]
    assert ours == theirs


async def test_sdk_the_raw_response_is_the_providers_with_headers_of_ours(pair: Pair) -> None:
    ours, theirs = await pair.both(lambda c: c.chat.completions.with_raw_response.create(model="m", messages=SHORT))
    assert ours.content == theirs.content
    assert ours.parse() == theirs.parse()
    added = {name for name in ours.headers if name.startswith("x-narrows-")}
    assert {"x-narrows-mode", "x-narrows-prefix", "x-narrows-tokens-before", "x-narrows-tokens-after"} <= added
    assert set(ours.headers) - added == set(theirs.headers)
    assert ours.headers["x-request-id"] == theirs.headers["x-request-id"]


@pytest.mark.parametrize("stream", [False, True])
async def test_sdk_the_streaming_response_has_the_same_bytes(pair: Pair, stream: bool) -> None:
    async def ask(client: AsyncOpenAI) -> bytes:
        asked: Any = {"model": "m", "messages": SHORT, "stream": stream}
        async with client.chat.completions.with_streaming_response.create(**asked) as response:
            return b"".join([piece async for piece in response.iter_bytes()])

    ours, theirs = await pair.both(ask)
    assert ours == theirs


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "messages",
    [
        pytest.param([*SHORT, {"role": "tool", "tool_call_id": "nobody", "content": "lost"}], id="orphan"),
        pytest.param([*SHORT, {"role": "assistant", "tool_calls": CALLS}], id="unanswered"),
        pytest.param([*SHORT, {"role": "wizard", "content": "hm"}], id="role"),
        pytest.param([], id="nothing"),
    ],
)
async def test_sdk_v3_a_bad_request_is_the_same_exception(pair: Pair, messages: Any, stream: bool) -> None:
    async def ask(client: AsyncOpenAI) -> BadRequestError:
        with pytest.raises(BadRequestError) as caught:
            await client.chat.completions.create(model="m", messages=messages, stream=stream)
        return caught.value

    ours, theirs = await pair.both(ask)
    assert type(ours) is type(theirs)
    assert (ours.status_code, ours.body, ours.code, ours.param) == (400, theirs.body, theirs.code, theirs.param)
    assert str(ours) == str(theirs)


async def test_sdk_what_is_not_chat_fails_and_works_the_same(pair: Pair) -> None:
    async def ask(client: AsyncOpenAI) -> tuple[Any, Any]:
        with pytest.raises(NotFoundError) as caught:
            await client.embeddings.create(model="m", input="x")
        return (await client.models.list()).data, caught.value.body

    ours, theirs = await pair.both(ask)
    assert ours == theirs


class Person(BaseModel):
    name: str
    age: int


@pytest.mark.parametrize("messages", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("tools", [openai.omit, [STRICT]], ids=["text", "tools"])
async def test_sdk_parsed_answers_are_the_same(pair: Pair, messages: Any, tools: Any) -> None:
    async def ask(client: AsyncOpenAI) -> Any:
        return await client.chat.completions.parse(model="m", messages=messages, response_format=Person, tools=tools)

    ours, theirs = await pair.both(ask)
    assert ours.choices == theirs.choices
    assert ours.choices[0].message.parsed == Person(name="Ada", age=36)
