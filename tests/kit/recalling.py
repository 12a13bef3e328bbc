"""What the tests of recall share: histories with something hidden, models that want it back, and the official SDK with
an recorder on the wire as the judge of what reaches the client.
"""

import json
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import msgspec
import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from policies.context import Policy
from policies.dialects import DEFAULT
from policies.rules.collapse import Collapse
from policies.rules.offload import Offload
from policies.tools import RECALL
from proxy.lab.provider import Answer, Received, Say, Script
from tests.kit.histories import Json
from tests.kit.recorder import RecordingTransport
from tests.kit.stage import raws

REPORT = "\n".join(f"case {n}: value {n * 7919 % 1000} of {n * 31}, as measured" for n in range(120))
SECOND = "\n".join(f"row {n} of the other table: {n * 104729 % 1009}" for n in range(100))
BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
CAREFUL = "You are careful, and you look twice at what you are told. " * 120
"""Long enough for the provider to cache what follows."""
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("bash", "look")
]
KEEPING: tuple[Policy, ...] = (
    Collapse(keep=3),
    Offload(over=40, keep=1, keep_files=1, relevant_tokens=5),
)
"""Outputs are cut as soon as they may be, and what was recalled stays for three turns."""
Turn = Answer | Callable[[Received], Answer]
_REF = re.compile(r"\[narrows:[^\]]*\bref (\d{6,24}(?:\+\d+)?)")


def call(id_: str, name: str, **arguments: Any) -> Json:
    """A call as a model makes it."""
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def recall(ref: str, part: str = "", id_: str = "recall_1") -> Json:
    """A call of our tool."""
    return call(id_, RECALL, ref=ref, **({"part": part} if part else {}))


def runs(command: str, output: str, id_: str = "call_0", **fields: Any) -> list[Json]:
    """A call of the client's tool, and its output."""
    message = {"role": "assistant", "content": None, "tool_calls": [call(id_, "bash", command=command)], **fields}
    return [message, {"role": "tool", "tool_call_id": id_, "content": output}]


def hiding(*texts: str) -> list[Json]:
    """A history that hides these outputs in its last request, one turn after the newest of them."""
    history: list[Json] = [{"role": "system", "content": CAREFUL}, {"role": "user", "content": "Go on."}]
    for number, text in enumerate(texts or (REPORT,)):
        history += runs(f"./report {number}", text)
    return history + runs("true", "ok")


def answered(reply: Json, *results: str) -> list[Json]:
    """A reply as its client keeps it, with the results of its calls or a word of the user's."""
    calls = reply.get("tool_calls") or []
    outputs = [{"role": "tool", "tool_call_id": c["id"], "content": results[i]} for i, c in enumerate(calls)]
    return [reply, *(outputs or [{"role": "user", "content": "Thanks. And then?"}])]


def refs(received: Received) -> list[str]:
    """What the hidden outputs are called, in their order."""
    texts = (m["content"] or "" for m in received.json["messages"] if m["role"] in ("tool", "assistant"))
    return [named[-1] for text in texts if (named := _REF.findall(text))]


def fetched(received: Received) -> list[str]:
    """The answers that the model got from our tool, in their order; not what stands for turns that were left out."""
    names: dict[str, str] = {}
    texts: list[str] = []
    for message in received.json["messages"]:
        names |= {c["id"]: c["function"]["name"] for c in message.get("tool_calls") or ()}
        if message["role"] == "tool" and names[message["tool_call_id"]] == RECALL:
            texts.append(message["content"])
    return [text for text in texts if "left out" not in text[:200]]


def tool_names(received: Received) -> list[str]:
    """The tools that the provider was offered."""
    return [tool["function"]["name"] for tool in received.json.get("tools") or ()]


def wants(text: str | None = None, part: str = "", at: int = 0, **fields: Any) -> Turn:
    """A model that says something and recalls the hidden output `at` this place."""
    return lambda received: Say(text, [recall(refs(received)[at], part)], **fields)


def mixed(place: int) -> Turn:
    """A model that calls two tools of the client's, and ours at this place among them."""

    def both(received: Received) -> Answer:
        theirs = [call("a", "bash", command="date"), call("b", "look", at="λ.py")]
        return Say("Both. ", [*theirs[:place], recall(refs(received)[0]), *theirs[place:]])

    return both


def plays(*turns: Turn) -> Script:
    """A model that does these things, one after the other, and is then done."""
    left = deque(turns)

    def answer(received: Received) -> Answer | None:
        if received.dialect != DEFAULT:
            return None
        turn = left.popleft() if left else Say("Done.")
        return turn(received) if callable(turn) else turn

    return answer


def tools_of(received: Received) -> bytes:
    """The tools as they were sent."""
    return bytes(msgspec.json.decode(received.body, type=dict[str, msgspec.Raw])["tools"])


def extends(old: Received, new: Received) -> bool:
    """Whether one request begins with all messages of another, byte for byte, behind the same tools."""
    before, after = raws(old.body), raws(new.body)
    return before == after[: len(before)] and tools_of(old) == tools_of(new)


@dataclass(slots=True)
class Heard:
    """One reply: the bytes of it, and what the SDK made of them."""

    raw: bytes
    headers: httpx2.Headers
    completion: ChatCompletion
    chunks: Sequence[ChatCompletionChunk] = ()

    @property
    def text(self) -> str | None:
        return self.completion.choices[0].message.content

    @property
    def finish(self) -> str:
        return self.completion.choices[0].finish_reason

    @property
    def calls(self) -> list[str]:
        """The names of the functions called."""
        return [c["function"]["name"] for c in self.message().get("tool_calls", ())]

    def message(self, choice: int = 0) -> Json:
        """A choice as an agent keeps it."""
        message = self.completion.choices[choice].message.model_dump(exclude_none=True)
        return {key: message[key] for key in ("role", "content", "tool_calls") if message.get(key)} | {
            "content": message.get("content")
        }


class Client:
    """An agent's client on the official SDK. Whatever it hears is judged."""

    def __init__(self, sdk: openai.AsyncOpenAI, recorder: RecordingTransport) -> None:
        self.sdk = sdk
        self._recorder = recorder

    async def ask(self, messages: Sequence[Json], stream: bool = False, **fields: Any) -> Heard:
        """The reply to a request in which the recall tool is Narrows' own."""
        heard = await self.hear(messages, stream, **fields)
        assert RECALL.encode() not in heard.raw
        return heard

    async def hear(self, messages: Sequence[Json], stream: bool = False, **fields: Any) -> Heard:
        """The reply to a request."""
        body: Any = {"model": "m", "messages": messages, "tools": TOOLS, **fields}
        return await (self._streamed(body) if stream else self._whole(body))

    async def _whole(self, body: Any) -> Heard:
        completion = await self.sdk.chat.completions.create(**body)
        assert [choice.index for choice in completion.choices] == list(range(len(completion.choices)))
        return Heard(self.raw, self._recorder.reply_headers, completion)

    async def _streamed(self, body: Any) -> Heard:
        async with self.sdk.chat.completions.stream(**body) as stream:
            chunks = [event.chunk async for event in stream if event.type == "chunk"]
            completion = stream.current_completion_snapshot
        assert self.raw.rstrip().endswith(b"data: [DONE]")
        assert self.raw.count(b"[DONE]") == 1
        judge(chunks, bool((body.get("stream_options") or {}).get("include_usage")))
        return Heard(self.raw, self._recorder.reply_headers, completion, chunks)

    @property
    def raw(self) -> bytes:
        """All that came of the last reply."""
        return bytes(self._recorder.reply_body)


def judge(chunks: Sequence[ChatCompletionChunk], usage: bool) -> None:
    """What makes a stream one sound reply."""
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert [chunk.usage is not None for chunk in chunks] == [usage and chunk is chunks[-1] for chunk in chunks]
    for index in {choice.index for chunk in chunks for choice in chunk.choices}:
        pieces = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        assert [piece.delta.role for piece in pieces] == ["assistant", *(None for _ in pieces[1:])]
        assert [piece.finish_reason is not None for piece in pieces] == [piece is pieces[-1] for piece in pieces]
        entries = [entry for piece in pieces for entry in piece.delta.tool_calls or ()]
        begun = [entry.index for entry in entries if entry.id]
        assert begun == list(range(len(begun)))
        assert [entry.index for entry in entries] == sorted(entry.index for entry in entries)


@asynccontextmanager
async def client_of(url: str, **options: Any) -> AsyncIterator[Client]:
    """A client of this base_url."""
    recorder = RecordingTransport()
    http = openai.DefaultAsyncHttpx2Client(transport=recorder, trust_env=False)
    async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0, http_client=http, **options) as sdk:
        yield Client(sdk, recorder)
