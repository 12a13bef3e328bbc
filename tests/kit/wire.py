"""The three APIs as they look on the wire: a request of each, a stream that answers it, and its errors."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

Json = dict[str, Any]


def typed(event: Json) -> bytes:
    """An event of an API whose events have types."""
    return b"event: %s\ndata: %s\n\n" % (str(event["type"]).encode(), json.dumps(event).encode())


def bare(event: Json) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def openais(error: Json) -> str:
    assert error.keys() == {"error"}
    assert error["error"].keys() == {"message", "type", "param", "code"}
    return str(error["error"]["code"])


def anthropics(error: Json) -> str:
    assert error["type"] == "error"
    assert error["error"].keys() == {"type", "message", "details"}
    return str(error["error"]["details"]["error_code"])


def responses_event(event: Json) -> str:
    assert event.keys() == {"type", "code", "message", "param", "sequence_number"}
    return str(event["code"])


@dataclass(frozen=True)
class Api:
    """One API: a request of it, a stream that answers it, and the shape of its errors."""

    dialect: str
    path: str
    request: Json
    tool: Json
    stream: tuple[bytes, ...]
    code: Callable[[Json], str]
    """The code in the body of an error."""
    last: Callable[[Json], str]
    """The code in the event with which a stream breaks off."""
    header: str = "x-other: 1"

    @property
    def body(self) -> bytes:
        return json.dumps(self.request).encode()

    @property
    def with_tools(self) -> bytes:
        return json.dumps({**self.request, "tools": [self.tool], "stream": True, "store": False}).encode()


SCHEMA = {"type": "object", "properties": {}}
SAID = {"role": "user", "content": "hi"}
RESPONSE: Json = {"id": "resp_1", "object": "response", "created_at": 1, "model": "gpt-4o", "output": [], "tools": []}
MESSAGE: Json = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "c",
    "content": [],
    "stop_reason": None,
}
USAGE = {"input_tokens": 9, "output_tokens": 1}
APIS = (
    Api(
        dialect="openai_chat",
        path="/v1/chat/completions",
        request={"model": "gpt-4o", "messages": [SAID]},
        tool={"type": "function", "function": {"name": "look", "parameters": SCHEMA}},
        stream=(
            bare({"id": "c1", "choices": [{"index": 0, "delta": {"content": "λ"}, "finish_reason": None}]}),
            bare({"id": "c1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}),
            b"data: [DONE]\n\n",
        ),
        code=openais,
        last=openais,
    ),
    Api(
        dialect="openai_responses",
        path="/v1/responses",
        request={"model": "gpt-4o", "input": [SAID]},
        tool={"type": "function", "name": "look", "parameters": SCHEMA},
        stream=(
            typed(
                {"type": "response.created", "response": {**RESPONSE, "status": "in_progress"}, "sequence_number": 0}
            ),
            typed({"type": "response.of_tomorrow", "x": "λ", "sequence_number": 1}),
            typed(
                {"type": "response.completed", "response": {**RESPONSE, "status": "completed"}, "sequence_number": 2}
            ),
        ),
        code=openais,
        last=responses_event,
    ),
    Api(
        dialect="anthropic_messages",
        path="/v1/messages",
        request={"model": "claude-sonnet-5", "max_tokens": 9, "messages": [SAID]},
        tool={"name": "look", "input_schema": SCHEMA},
        stream=(
            typed({"type": "message_start", "message": {**MESSAGE, "usage": USAGE}}),
            typed({"type": "ping"}),
            typed({"type": "of_tomorrow", "x": "λ"}),
            typed({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": USAGE}),
            typed({"type": "message_stop"}),
        ),
        code=anthropics,
        last=anthropics,
        header="anthropic-version: 2023-06-01",
    ),
)
EACH = pytest.mark.parametrize("api", APIS, ids=[api.dialect for api in APIS])


def plain(reply: bytes) -> tuple[int, bytes]:
    """The status and the body of a raw reply, undone from its chunks."""
    head, _, body = reply.partition(b"\r\n\r\n")
    if b"chunked" in head.lower():
        pieces, rest = [], body
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            pieces.append(rest[: int(size, 16)])
            rest = rest[int(size, 16) + 2 :]
        body = b"".join(pieces)
    return int(head.split()[1]), body
