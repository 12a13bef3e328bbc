"""The official SDKs, one row an API: how a conversation with a tool is continued, and what its provider counted."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import anthropic
import openai

Json = dict[str, Any]

SYSTEM = "You report test results in one short sentence."
TASK = "Run the tests of every module, one after the other, and tell me what you see."
ANSWER = 32
"""Tokens of an answer, at most."""
STEADY = {"temperature": 0, "seed": 1}
PARAMETERS: Json = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
BASH: Json = {"name": "bash", "description": "Run a command."}
OPTIONS: Json = {"api_key": "none", "max_retries": 0, "timeout": 900}


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply: its text, tokens of the prompt, those of them that were cached, and the headers of Narrows."""

    text: str
    prompt: int
    cached: int
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Api:
    """One API, by its SDK."""

    client: Callable[[str], Any]
    """For a base_url that ends with /v1."""
    ask: Callable[[Any, str, list[Json]], Awaitable[Reply]]
    """The reply of a model to this history."""
    step: Callable[[str, str, str, str], list[Json]]
    """What a client has after a reply: the model's words, a call by this id of this command, and its output."""
    count: Callable[[Any, str, list[Json]], Awaitable[int]] | None = None
    """How many tokens the prompt would have, where the API says so beforehand."""


def _openai(base_url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=base_url, **OPTIONS)


# --- chat completions ---


async def _ask_chat(client: openai.AsyncOpenAI, model: str, history: list[Json]) -> Reply:
    messages: Any = [{"role": "system", "content": SYSTEM}, *history]
    tool: Any = {"type": "function", "function": {**BASH, "parameters": PARAMETERS}}
    raw = await client.chat.completions.with_raw_response.create(
        model=model, messages=messages, tools=[tool], max_tokens=ANSWER, extra_body=STEADY
    )
    reply = raw.parse()
    assert reply.usage is not None
    assert reply.usage.prompt_tokens_details is not None
    cached = reply.usage.prompt_tokens_details.cached_tokens or 0
    return Reply(reply.choices[0].message.content or "", reply.usage.prompt_tokens, cached, raw.headers)


def _step_chat(text: str, id_: str, command: str, output: str) -> list[Json]:
    call = {"id": id_, "type": "function", "function": {"name": "bash", "arguments": json.dumps({"command": command})}}
    return [
        {"role": "assistant", "content": text, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": id_, "content": output},
    ]


# --- Responses ---


async def _ask_responses(client: openai.AsyncOpenAI, model: str, history: list[Json]) -> Reply:
    items: Any = history
    tool: Any = {"type": "function", **BASH, "parameters": PARAMETERS}
    raw = await client.responses.with_raw_response.create(
        model=model,
        instructions=SYSTEM,
        input=items,
        tools=[tool],
        max_output_tokens=ANSWER,
        store=False,
        extra_body=STEADY,
    )
    reply = raw.parse()
    assert reply.usage is not None
    return Reply(
        reply.output_text, reply.usage.input_tokens, reply.usage.input_tokens_details.cached_tokens, raw.headers
    )


def _step_responses(text: str, id_: str, command: str, output: str) -> list[Json]:
    return [
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]},
        {"type": "function_call", "call_id": id_, "name": "bash", "arguments": json.dumps({"command": command})},
        {"type": "function_call_output", "call_id": id_, "output": output},
    ]


# --- Messages ---


def _anthropic(base_url: str) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=base_url.removesuffix("/v1"), **OPTIONS)


def _messages(model: str, history: list[Json]) -> Any:
    tool = {**BASH, "input_schema": PARAMETERS}
    return {"model": model, "system": SYSTEM, "messages": history, "tools": [tool]}


async def _ask_messages(client: anthropic.AsyncAnthropic, model: str, history: list[Json]) -> Reply:
    request = _messages(model, history)
    raw = await client.messages.with_raw_response.create(**request, max_tokens=ANSWER, extra_body=STEADY)
    reply = await raw.parse()
    text = "".join(block.text for block in reply.content if block.type == "text")
    cached = reply.usage.cache_read_input_tokens or 0
    written = reply.usage.cache_creation_input_tokens or 0
    return Reply(text, reply.usage.input_tokens + cached + written, cached, raw.headers)


async def _count_messages(client: anthropic.AsyncAnthropic, model: str, history: list[Json]) -> int:
    return (await client.messages.count_tokens(**_messages(model, history))).input_tokens


def _step_messages(text: str, id_: str, command: str, output: str) -> list[Json]:
    blocks = [{"type": "text", "text": text}] if text.strip() else []
    return [
        {
            "role": "assistant",
            "content": [*blocks, {"type": "tool_use", "id": id_, "name": "bash", "input": {"command": command}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id_, "content": output}]},
    ]


APIS: Mapping[str, Api] = {
    "openai_chat": Api(_openai, _ask_chat, _step_chat),
    "openai_responses": Api(_openai, _ask_responses, _step_responses),
    "anthropic_messages": Api(_anthropic, _ask_messages, _step_messages, _count_messages),
}
