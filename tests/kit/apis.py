"""The APIs over which the lines that do not depend on one are shown: to add one, a row.

A history is told in chat completions and put into the API's own form; what the provider received is told in chat
completions again. A reply is kept as the blocks or items that the official SDK made of it, as an agent keeps it.
"""

import re
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import openai
import pytest

from policies.dialects import DIALECTS
from policies.money.prices import RESERVE
from policies.tools import RECALL
from proxy.lab.provider import Answer, Received, Say, Script
from tests.kit import forms
from tests.kit.histories import Json
from tests.kit.recalling import TOOLS, call, recall
from tests.kit.streams import judge_chat, judge_messages, judge_responses

Turn = Answer | Callable[[Received], Answer]
_REF = re.compile(r"\[narrows:[^\]]*\bref (\d{6,24}(?:\+\d+)?)")


@dataclass(frozen=True, slots=True)
class Api:
    """One API: its official client, the fields of its requests, and how its replies are read."""

    dialect: str
    sdk: Callable[..., Any]
    base: str
    """The path of its base URL."""
    endpoint: Callable[[Any], Any]
    """The attribute of the client that makes requests."""
    required: Json
    """The fields that every request must have."""
    final_reply: Callable[[Any, Any], Awaitable[Any]]
    """The reply that a streaming helper assembled: from the helper and its last event."""
    entries_of: Callable[[Any], list[Json]]
    """The entries of the history that an agent makes of a reply."""
    finish: Callable[[Any], str]
    """Why the model stopped, in the words of chat completions."""
    judge: Callable[[bytes], None]
    """Whether a stream is one sound reply."""
    usage: Callable[[Any], tuple[int, int]]
    """The tokens of prompt and answer that a reply reports."""
    choices: Mapping[str, Json]
    """By case: the fields of a request that say which tools may be called."""
    thinks: Json
    """The fields of a request that has the model think, and wants its thoughts signed or encrypted."""
    streams: Json = field(default_factory=dict)
    """The fields of a streaming request that wants usage."""

    @property
    def history(self) -> str:
        """The field with the history."""
        return DIALECTS[self.dialect].fields.history

    def body(self, messages: Sequence[Json], tools: Sequence[Json] | None = TOOLS, **fields: Any) -> Json:
        """The body of a request with these messages, both in the form of chat completions."""
        chat = {"model": "m", "messages": list(messages), **({"tools": list(tools)} if tools else {})}
        return {**forms.FORMS[self.dialect](chat), **self.required, **fields}

    def messages_in(self, body: Json) -> list[Json]:
        """The history of a body, in the form of chat completions."""
        messages: list[Json] = forms.BACK[self.dialect](body)["messages"]
        return messages


async def _chat_final(stream: Any, last: Any) -> Any:
    return stream.current_completion_snapshot


async def _messages_final(stream: Any, last: Any) -> Any:
    return await stream.get_final_message()


async def _responses_final(stream: Any, last: Any) -> Any:
    return last.response  # the helper itself knows no reply that ends before its end


def _chat_entries(reply: Any) -> list[Json]:
    message = reply.choices[0].message.model_dump(exclude_none=True)
    return [{key: message[key] for key in ("role", "content", "tool_calls") if message.get(key)}]


def _messages_entries(reply: Any) -> list[Json]:
    blocks = [block.model_dump(exclude_none=True, exclude={"parsed_output"}) for block in reply.content]
    return [{"role": "assistant", "content": blocks}]


def _responses_entries(reply: Any) -> list[Json]:
    apart = {"parsed_arguments": True, "content": {"__all__": {"parsed"}}}
    return [
        item.model_dump(exclude_none=True, exclude=apart if item.type == "message" else {"parsed_arguments"})
        for item in reply.output
    ]


_STOPPED = {"end_turn": "stop", "tool_use": "tool_calls", "max_tokens": "length"}


def _messages_finish(reply: Any) -> str:
    return _STOPPED[reply.stop_reason]


def _responses_finish(reply: Any) -> str:
    if reply.status == "incomplete":
        assert reply.incomplete_details.reason == "max_output_tokens"
        return "length"
    assert reply.status == "completed"
    return "tool_calls" if any(item.type == "function_call" for item in reply.output) else "stop"


def _messages_usage(reply: Any) -> tuple[int, int]:
    usage = reply.usage
    parts = (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens)
    return sum(part or 0 for part in parts), usage.output_tokens


def _openai(**options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key="k", max_retries=0, **options)


def _anthropic(**options: Any) -> Any:
    import anthropic  # it takes a second: only those who speak to it wait

    return anthropic.AsyncAnthropic(api_key="k", max_retries=0, **options)


APIS: Mapping[str, Api] = {
    api.dialect: api
    for api in (
        Api(
            dialect="openai_chat",
            sdk=_openai,
            base="/v1",
            endpoint=lambda sdk: sdk.chat.completions,
            required={},
            final_reply=_chat_final,
            entries_of=_chat_entries,
            finish=lambda reply: reply.choices[0].finish_reason,
            judge=judge_chat,
            usage=lambda reply: (reply.usage.prompt_tokens, reply.usage.completion_tokens),
            choices={
                "none": {"tool_choice": "none"},
                "any": {"tool_choice": "required"},
                "one": {"tool_choice": {"type": "function", "function": {"name": "bash"}}},
                "serial": {"parallel_tool_calls": False},
            },
            thinks={},
            streams={"stream_options": {"include_usage": True}},
        ),
        Api(
            dialect="anthropic_messages",
            sdk=_anthropic,
            base="",
            endpoint=lambda sdk: sdk.messages,
            required={"max_tokens": RESERVE},
            final_reply=_messages_final,
            entries_of=_messages_entries,
            finish=_messages_finish,
            judge=judge_messages,
            usage=_messages_usage,
            choices={
                "none": {"tool_choice": {"type": "none"}},
                "any": {"tool_choice": {"type": "any"}},
                "one": {"tool_choice": {"type": "tool", "name": "bash"}},
                "serial": {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
            },
            thinks={"thinking": {"type": "enabled", "budget_tokens": 1_024}},
        ),
        Api(
            dialect="openai_responses",
            sdk=_openai,
            base="/v1",
            endpoint=lambda sdk: sdk.responses,
            required={"store": False},
            final_reply=_responses_final,
            entries_of=_responses_entries,
            finish=_responses_finish,
            judge=judge_responses,
            usage=lambda reply: (reply.usage.input_tokens, reply.usage.output_tokens),
            choices={
                "none": {"tool_choice": "none"},
                "any": {"tool_choice": "required"},
                "one": {"tool_choice": {"type": "function", "name": "bash"}},
                "serial": {"parallel_tool_calls": False},
            },
            thinks={"reasoning": {"effort": "low"}, "include": ["reasoning.encrypted_content"]},
        ),
    )
}
EACH = pytest.mark.parametrize("api", APIS.values(), ids=APIS)


# --- what the provider received, in chat completions ---


def told(received: Received) -> list[Json]:
    """The history of a request."""
    return APIS[received.dialect].messages_in(received.json)


def refs(received: Received) -> list[str]:
    """What the hidden outputs are called, in their order."""
    texts = (text_of(m) for m in told(received) if m["role"] in ("tool", "assistant"))
    return [found[-1] for text in texts if (found := _REF.findall(text))]


def text_of(message: Json) -> str:
    """All that a message says as text."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def fetched(received: Received) -> list[str]:
    """The answers that the model got from our tool, in their order; not what stands for turns that were left out."""
    names: dict[str, str] = {}
    texts: list[str] = []
    for message in told(received):
        names |= {made["id"]: made["function"]["name"] for made in message.get("tool_calls") or ()}
        if message["role"] == "tool" and names[message["tool_call_id"]] == RECALL:
            texts.append(text_of(message))
    return [text for text in texts if "left out" not in text[:200]]


def tool_names(received: Received) -> list[str]:
    """The tools that the provider was offered."""
    return [tool.get("name") or tool["function"]["name"] for tool in received.json.get("tools") or ()]


def entries(api: Api, body: bytes) -> list[bytes]:
    """The entries of a body's history, as they are written."""
    request = DIALECTS[api.dialect].split(body)
    assert request is not None
    return [request.raw(i) for i in range(len(request.spans))]


def tools_of(api: Api, body: bytes) -> bytes:
    """The tools of a body, as they are written."""
    request = DIALECTS[api.dialect].split(body)
    assert request is not None
    return request.tool_list


def extends(old: Received, new: Received) -> bool:
    """Whether one request begins with the whole history of another, byte for byte, behind the same tools."""
    api = APIS[old.dialect]
    before, after = entries(api, old.body), entries(api, new.body)
    same = tools_of(api, old.body) == tools_of(api, new.body)
    return same and before == after[: len(before)]


# --- models ---


def plays(*turns: Turn) -> Script:
    """A model that does these things, one after the other, and is then done. Its calls have ids of their own."""
    left, asked = deque(turns), 0

    def answer(received: Received) -> Answer | None:
        nonlocal asked
        if not received.dialect:
            return None
        turn = left.popleft() if left else Say("Done.")
        said = turn(received) if callable(turn) else turn
        asked += 1
        return replace(said, calls=[_renamed(made, asked) for made in said.calls]) if isinstance(said, Say) else said

    return answer


def _renamed(made: Mapping[str, Any], number: int) -> Json:
    return {**made, "id": f"{made['id']}_{number}"}


def wants(text: str | None = None, part: str = "", at: int = 0, **fields: Any) -> Turn:
    """A model that says something and recalls the hidden output `at` this place."""
    return lambda received: Say(text, [recall(refs(received)[at], part)], **fields)


def mixed(place: int, text: str = "Both. ", **fields: Any) -> Turn:
    """A model that calls two tools of the client's, and ours at this place among them."""

    def both(received: Received) -> Answer:
        theirs = [call("a", "bash", command="date"), call("b", "look", at="λ.py")]
        return Say(text, [*theirs[:place], recall(refs(received)[0]), *theirs[place:]], **fields)

    return both


def answered(said: Json, *results: str) -> list[Json]:
    """A reply as its client keeps it, with the results of its calls or a word of the user's."""
    made = said.get("tool_calls") or []
    outputs = [{"role": "tool", "tool_call_id": c["id"], "content": results[i]} for i, c in enumerate(made)]
    return [said, *(outputs or [{"role": "user", "content": "Thanks. And then?"}])]
