"""The provider's other APIs over real sockets, with their official clients; and that all see the same prompt."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import openai
import pytest
from pydantic import BaseModel

from policies.money.caches import ANTHROPIC, OPENAI, PREFIX, CacheRule
from policies.money.prices import Prices, Usage
from proxy.lab.provider import (
    APIS,
    TURN_HEADER,
    PromptCache,
    PromptReader,
    Provider,
    Running,
    Say,
    find_violation,
    start,
)

CALLS = (
    {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": '{"path":"a.py"}'}},
    {"id": "call_2", "type": "function", "function": {"name": "list", "arguments": "{}"}},
)
SAID = Say("Naïvely — looking 🙂.", CALLS, thinking=("I should read it first.",))
GO: Any = [{"role": "user", "content": "Go"}]
TOOLS: Any = [{"name": name, "input_schema": {"type": "object"}} for name in ("read", "list")]
FUNCTIONS: Any = [
    {"type": "function", "name": tool["name"], "parameters": tool["input_schema"], "strict": False} for tool in TOOLS
]
THINKING: Any = {"type": "enabled", "budget_tokens": 1_024}


def provider(*answers: Say, **fields: Any) -> Provider:
    """Answers everybody alike, one answer after the other. A token is a character."""
    fields = {"prices": lambda model: Prices(model=model, window=50_000), "count": len, **fields}
    made = Provider(**fields)
    made.play("key", answers)
    return made


@asynccontextmanager
async def claude(upstream: Provider) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with (
        await start(upstream) as running,
        anthropic.AsyncAnthropic(base_url=_root(running), api_key="key", max_retries=0) as client,
    ):
        yield client


@asynccontextmanager
async def gpt(upstream: Provider) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        await start(upstream) as running,
        openai.AsyncOpenAI(base_url=running.url, api_key="key", max_retries=0) as client,
    ):
        yield client


def _root(running: Running) -> str:
    return running.url.removesuffix("/v1")


def dumped(blocks: Sequence[BaseModel]) -> list[dict[str, Any]]:
    return [block.model_dump(exclude={"id"}) for block in blocks]


# --- Anthropic's ---

CLAUDE: Any = {"model": "claude-sonnet-5", "max_tokens": 2_000, "tools": TOOLS}


async def test_messages_plain_streamed_and_on_through_the_tool_loop() -> None:
    upstream = provider(SAID, Say("Done."))
    async with claude(upstream) as client:
        first = await client.messages.create(messages=GO, thinking=THINKING, **CLAUDE)
        async with client.messages.stream(messages=GO, thinking=THINKING, **CLAUDE) as stream:
            events = [event.type async for event in stream]
            streamed = await stream.get_final_message()
        results = [{"type": "tool_result", "tool_use_id": call["id"], "content": "ok"} for call in CALLS]
        history: Any = [*GO, {"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
        last = await client.messages.create(messages=history, thinking=THINKING, **CLAUDE)
    assert [block.type for block in first.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert first.stop_reason == "tool_use"
    assert first.usage.output_tokens == sum(map(len, (SAID.content or "", *SAID.thinking, 'read{"path":"a.py"}list{}')))
    assert dumped(streamed.content) == dumped(first.content)
    assert (streamed.stop_reason, streamed.usage) == (first.stop_reason, first.usage)
    assert (events[0], events[-1]) == ("message_start", "message_stop")
    assert [block.type for block in last.content] == ["thinking", "text"]
    assert last.stop_reason == "end_turn"
    assert [(r.dialect, r.credential, r.violation) for r in upstream.requests] == [
        ("anthropic_messages", "key", None)
    ] * 3


async def test_messages_counts_what_it_would_bill() -> None:
    upstream = provider(Say("Hi."))
    async with claude(upstream) as client:
        fields: Any = {"model": "claude-sonnet-5", "messages": GO, "system": "Be brief.", "tools": TOOLS}
        counted = await client.messages.count_tokens(**fields)
        billed = await client.messages.create(max_tokens=10, **fields)
    assert counted.input_tokens == billed.usage.input_tokens
    assert [r.counts for r in upstream.requests] == [True, False]
    assert upstream.requests[0].usage is None


async def test_messages_usage_says_what_was_read_and_written_apart() -> None:
    upstream = provider(prices=lambda model: Prices(model=model, breakpoints=True))
    long: Any = [{"role": "user", "content": "u" * 3_000}]
    async with claude(upstream) as client:
        create = client.messages.create
        fields: Any = {**CLAUDE, "cache_control": {"type": "ephemeral"}, "system": "s" * 100}
        seen = [(await create(messages=messages, **fields)).usage for messages in (long, [*long, *GO])]
    tools = PromptReader(len, APIS["anthropic_messages"])({"tools": TOOLS, "messages": []}).tokens
    head = tools + 104 + 3_004
    counts = [(u.input_tokens, u.cache_creation_input_tokens, u.cache_read_input_tokens) for u in seen]
    assert counts == [(0, head, 0), (0, 2, head)]
    assert [r.usage for r in upstream.requests] == [Usage(head, 0, head, 11), Usage(head + 2, head, 2, 11)]


async def test_messages_think_as_the_request_has_it_and_say_for_how_long_was_written() -> None:
    upstream = provider(default=SAID, prices=lambda model: Prices(model=model, breakpoints=True))
    hour: Any = {"cache_control": {"type": "ephemeral", "ttl": "1h"}, "system": "s" * 2_000}
    async with claude(upstream) as client:
        off = await client.messages.create(messages=GO, thinking={"type": "disabled"}, **CLAUDE, **hour)
        quiet = await client.messages.create(
            messages=GO, thinking={"type": "adaptive", "display": "omitted"}, **CLAUDE, **hour
        )
        results: Any = [{"type": "tool_result", "tool_use_id": call["id"]} for call in CALLS]
        history: Any = [*GO, {"role": "assistant", "content": quiet.content}, {"role": "user", "content": results}]
        await client.messages.create(messages=history, **CLAUDE)
    assert [block.type for block in off.content] == ["text", "tool_use", "tool_use"]
    thought = quiet.content[0]
    assert thought.type == "thinking"
    assert (thought.thinking, upstream.requests[-1].violation) == ("", None)
    assert off.usage.cache_creation is not None
    assert off.usage.cache_creation.ephemeral_5m_input_tokens == 0
    assert off.usage.cache_creation.ephemeral_1h_input_tokens == off.usage.cache_creation_input_tokens
    assert (off.usage.cache_creation_input_tokens or 0) > 2_000


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"messages": []}, 400, "messages: at least one message is required"),
        ({"messages": [{"role": "user", "content": "x" * 60_000}]}, 400, "prompt is too long"),
        ({"messages": GO, "extra_headers": {"anthropic-version": anthropic.Omit()}}, 400, "header is required"),
    ],
)
async def test_messages_errors_have_their_own_shape(fields: Any, status: int, words: str) -> None:
    async with claude(provider(Say("never said"))) as client:
        with pytest.raises(anthropic.APIStatusError) as refused:
            await client.messages.create(**CLAUDE, **fields)
        with pytest.raises(anthropic.NotFoundError) as missing:
            await client.post("/v1/messages/nothing", cast_to=object, body={})
    assert refused.value.status_code == status
    error: Any = refused.value.body
    assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
    assert words in error["error"]["message"]
    assert missing.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]  # a plain dict


# --- OpenAI's Responses ---

GPT: Any = {"model": "gpt-5.4", "tools": FUNCTIONS}


async def test_responses_plain_streamed_and_on_through_the_tool_loop() -> None:
    upstream = provider(SAID, Say("Done."))
    async with gpt(upstream) as client:
        fields: Any = {**GPT, "input": GO, "reasoning": {"summary": "auto"}, "store": False}
        first = await client.responses.create(**fields)
        async with client.responses.stream(**fields) as stream:
            events = [event async for event in stream]
            streamed = await stream.get_final_response()
        outputs = [{"type": "function_call_output", "call_id": call["id"], "output": "ok"} for call in CALLS]
        history: Any = [*GO, *first.output, *outputs]
        last = await client.responses.create(input=history, **GPT)
    assert [item.type for item in first.output] == ["reasoning", "message", "function_call", "function_call"]
    assert first.output_text == SAID.content
    for field in ("type", "summary", "encrypted_content", "call_id", "arguments"):
        assert [getattr(i, field, "") for i in streamed.output] == [getattr(i, field, "") for i in first.output]
    assert streamed.output_text == first.output_text
    assert [event.sequence_number for event in events if hasattr(event, "sequence_number")] == list(range(len(events)))
    assert last.output_text == "Done."
    assert first.usage is not None
    assert first.usage.output_tokens_details.reasoning_tokens == len(SAID.thinking[0])
    assert [r.violation for r in upstream.requests] == [None] * 3


class Place(BaseModel):
    path: str
    line: int


async def test_responses_parsed_custom_incomplete_and_counted() -> None:
    custom = {"id": "call_3", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}
    upstream = provider(Say('{"path": "a.py", "line": 7}'), Say(None, (custom,), finish="length"))
    async with gpt(upstream) as client:
        parsed = await client.responses.parse(model="gpt-5.4", input="Where?", text_format=Place)
        history: Any = [*GO, {"role": "assistant", "content": "x"}]
        async with client.responses.stream(model="gpt-5.4", input=history) as stream:
            events = [event.type async for event in stream]
        counted = await client.responses.input_tokens.count(model="gpt-5.4", input="Where?")
    assert parsed.output_parsed == Place(path="a.py", line=7)
    assert parsed.usage is not None
    assert counted.input_tokens == parsed.usage.input_tokens
    assert events[-1] == "response.incomplete"
    assert "response.custom_tool_call_input.done" in events


async def test_responses_that_are_kept_can_be_gone_on_from_and_asked_for() -> None:
    upstream = provider(SAID, Say("Done."), Say("Told."))
    async with gpt(upstream) as client:
        first = await client.responses.create(input="Go", **GPT)
        outputs: Any = [{"type": "function_call_output", "call_id": call["id"], "output": "ok"} for call in CALLS]
        second = await client.responses.create(input=outputs, previous_response_id=first.id, **GPT)
        named: Any = [*GO, {"type": "item_reference", "id": second.output[0].id}, *GO]
        await client.responses.create(input=named, **GPT)
        assert dumped((await client.responses.retrieve(first.id)).output) == dumped(first.output)
        hidden = await client.responses.create(input="Go", store=False, **GPT)
        for missing in (
            client.responses.retrieve(hidden.id),
            client.responses.create(input=[{"type": "item_reference", "id": hidden.output[0].id}], **GPT),
        ):
            with pytest.raises(openai.NotFoundError):
                await missing
        with pytest.raises(openai.BadRequestError) as unknown:
            await client.responses.create(input="On", previous_response_id=hidden.id, **GPT)
        with pytest.raises(openai.BadRequestError) as unanswered:
            await client.responses.create(input="On", previous_response_id=first.id, **GPT)
    assert second.output_text == "Done."
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens + len(SAID.content or "")
    assert unknown.value.code == "previous_response_not_found"
    assert "No tool output found for function call call_1" in unanswered.value.message


# --- the same history in each API ---

CHAT: Any = {
    "tools": [{"type": "function", "function": {"name": t["name"], "parameters": t["input_schema"]}} for t in TOOLS],
    "messages": [
        {"role": "system", "content": "s" * 900},
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": "Looking.", "tool_calls": list(CALLS)},
        {"role": "tool", "tool_call_id": "call_1", "content": "a" * 700},
        {"role": "tool", "tool_call_id": "call_2", "content": "b" * 700},
        {"role": "user", "content": "And now?"},
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "Thanks."},
    ],
}
MESSAGES: Any = {
    "tools": TOOLS,
    "system": "s" * 900,
    "messages": [
        {"role": "user", "content": "Go"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Looking."},
                {"type": "tool_use", "id": "call_1", "name": "read", "input": {"path": "a.py"}},
                {"type": "tool_use", "id": "call_2", "name": "list", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "call_1", "content": "a" * 700},
                {"type": "tool_result", "tool_use_id": "call_2", "content": [{"type": "text", "text": "b" * 700}]},
                {"type": "text", "text": "And now?"},
            ],
        },
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "Thanks."},
    ],
}
RESPONSES: Any = {
    "tools": [{k: v for k, v in function.items() if k != "strict"} for function in FUNCTIONS],
    "instructions": "s" * 900,
    "input": [
        {"role": "user", "content": "Go"},
        {
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Looking.", "annotations": []}],
            "id": "msg_1",
        },
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "read", "arguments": '{"path":"a.py"}'},
        {"type": "function_call", "id": "fc_2", "call_id": "call_2", "name": "list", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "a" * 700},
        {"type": "function_call_output", "call_id": "call_2", "output": "b" * 700},
        {"role": "user", "content": [{"type": "input_text", "text": "And now?"}]},
        {"type": "message", "role": "assistant", "content": "Done."},
        {"role": "user", "content": "Thanks."},
    ],
}
FORMS = {"openai_chat": CHAT, "openai_responses": RESPONSES, "anthropic_messages": MESSAGES}


def test_one_history_is_the_same_prompt_in_every_api() -> None:
    prompts = [PromptReader(len, APIS[name])(form) for name, form in FORMS.items()]
    for prompt in prompts[1:]:
        assert [block.digest for block in prompt.blocks] == [block.digest for block in prompts[0].blocks]
        assert (prompt.ends, prompt.endings, prompt.opening, prompt.positions) == (
            prompts[0].ends,
            prompts[0].endings,
            prompts[0].opening,
            prompts[0].positions,
        )
    for rule in (PREFIX, OPENAI):
        cache = PromptCache(len)
        assert [cache.charge("me", prompt, rule).cached > 0 for prompt in prompts] == [False, True, True]


@pytest.mark.parametrize(("name", "rule"), [("openai_chat", PREFIX), ("anthropic_messages", ANTHROPIC)])
def test_a_recorded_session_is_played_back_whatever_its_form(name: str, rule: CacheRule) -> None:
    form = {"model": "m", "max_tokens": 10, **FORMS[name]} if "messages" in FORMS[name] else {}
    assert find_violation({k: v for k, v in form.items() if k != "max_tokens" or rule.mark}, rule, name) is None
    assert APIS[name].recorded_answers(form["messages"]) == [Say("Looking.", CALLS), Say("Done.")]


async def test_a_session_in_one_form_answers_clients_of_another() -> None:
    upstream = provider()
    upstream.play("key", RESPONSES["input"], "openai_responses")
    async with claude(upstream) as client:
        first = await client.messages.create(messages=GO, **CLAUDE)
        cut = await client.messages.create(messages=GO, extra_headers={TURN_HEADER: "1"}, **CLAUDE)
    assert [block.type for block in first.content] == ["text", "tool_use", "tool_use"]
    assert dumped(cut.content) == [{"type": "text", "text": "Done.", "citations": None}]
