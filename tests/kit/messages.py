"""Short ways to write conversations and replies of Anthropic Messages down, and to read what the client got of them."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import httpx2
from anthropic import NOT_GIVEN, Anthropic, MessageStream, Stream
from anthropic.types import RawMessageStreamEvent

from policies.dialects import DIALECTS
from policies.dialects.anthropic_messages.reply import MessagesReply
from policies.dialects.common import Request
from policies.model.conversation import Conversation, converse
from policies.model.edits import RecallRound
from policies.tools import RECALL
from proxy.lab.provider.signatures import seal
from tests.kit.talk import letters

dialect = DIALECTS["anthropic_messages"]

Json = dict[str, Any]

REF = '{"ref":"482913"}'
MARK = {"type": "ephemeral"}
BASH = {"name": "bash", "input_schema": {"type": "object"}}
_CLIENT = Anthropic(api_key="none", base_url="http://127.0.0.1")


def body_of(messages: Sequence[Json], **fields: Any) -> bytes:
    return json.dumps({"model": "m", "max_tokens": 4096, "messages": list(messages)} | fields).encode()


def split(body: bytes) -> Request:
    found = dialect.split(body)
    assert found is not None
    return found


def talk_of(body: bytes) -> Conversation:
    request = split(body)
    return converse([dialect.read(request.raw(i), letters) for i in range(len(request.spans))])


def raws(body: bytes) -> list[bytes]:
    request = split(body)
    return [request.raw(i) for i in range(len(request.spans))]


# --- what a conversation is made of ---


def text(said: str, **more: Any) -> Json:
    return {"type": "text", "text": said, **more}


def thinks(thought: str) -> Json:
    return {"type": "thinking", "thinking": thought, "signature": seal("anthropic thinking", thought)}


def uses(call_id: str = "c0", tool: str = "bash", **arguments: Any) -> Json:
    return {"type": "tool_use", "id": call_id, "name": tool, "input": arguments or {"command": "ls"}}


def asks(call_id: str = "r0", ref: str = "482913", **more: Any) -> Json:
    return {"type": "tool_use", "id": call_id, "name": RECALL, "input": {"ref": ref}, **more}


def result(content: Any, call_id: str = "c0", **more: Any) -> Json:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def user(*content: Any) -> Json:
    return {"role": "user", "content": content[0] if content and isinstance(content[0], str) else list(content)}


def says(*content: Any) -> Json:
    return {**user(*content), "role": "assistant"}


# --- what a reply is made of ---


def _compact(said: Json) -> str:
    return json.dumps(said, separators=(",", ":"), ensure_ascii=False)


def event(said: Json) -> bytes:
    return f"event: {said['type']}\n".encode() + b"data: " + _compact(said).encode() + b"\n\n"


def starts(name: str = "one", **usage: int) -> bytes:
    """`name` tells the rounds apart."""
    message = {"id": f"msg_{name}", "type": "message", "role": "assistant", "model": f"m-{name}", "content": []}
    counted = {"input_tokens": 10, "output_tokens": 1, **usage}
    return event({"type": "message_start", "message": message | {"stop_reason": None, "usage": counted}})


_PIECES = {"text": ("text_delta", ("text",)), "thinking": ("thinking_delta", ("thinking",))}


def streams(block: Json, at: int) -> list[bytes]:
    """The events of one block, in pieces of a few characters."""
    kind = block["type"]
    if kind == "tool_use":
        begun, found = {**block, "input": {}}, json.dumps(block["input"])
        deltas = [{"type": "input_json_delta", "partial_json": part} for part in ("", *_cut(found))]
    elif kind in _PIECES:
        delta, (key,) = _PIECES[kind]
        begun = {**block, key: "", **({"signature": ""} if kind == "thinking" else {})}
        deltas = [{"type": delta, key: part} for part in _cut(block[key])]
        deltas += [{"type": "signature_delta", "signature": block["signature"]}] if kind == "thinking" else []
    else:
        begun, deltas = block, []
    framed = [event({"type": "content_block_delta", "index": at, "delta": delta}) for delta in deltas]
    end = event({"type": "content_block_stop", "index": at})
    return [event({"type": "content_block_start", "index": at, "content_block": begun}), *framed, end]


def _cut(said: str) -> list[str]:
    return [said[at : at + 5] for at in range(0, len(said), 5)]


STOP = event({"type": "message_stop"})
PING = event({"type": "ping"})


def ends(reason: str | None = "end_turn", output: int = 7, **usage: Any) -> list[bytes]:
    delta = {"stop_reason": reason, "stop_sequence": None}
    return [event({"type": "message_delta", "delta": delta, "usage": {"output_tokens": output, **usage}}), STOP]


def stream(*blocks: Json, reason: str = "end_turn", name: str = "one", output: int = 7, **usage: Any) -> list[bytes]:
    """A whole streamed round."""
    said = [piece for at, block in enumerate(blocks) for piece in streams(block, at)]
    return [starts(name, **usage), PING, *said, *ends(reason, output)]


def whole(*blocks: Json, reason: str = "end_turn", name: str = "one", output: int = 7, **usage: int) -> bytes:
    """A whole round that is not streamed."""
    message = {"id": f"msg_{name}", "type": "message", "role": "assistant", "model": f"m-{name}"}
    counted = {"input_tokens": 10, "output_tokens": output, **usage}
    rest = {"content": list(blocks), "stop_reason": reason, "stop_sequence": None, "usage": counted}
    return json.dumps(message | rest).encode()


def feed(reader: MessagesReply, events: Iterable[bytes]) -> list[bytes]:
    return [piece for given in events for piece in reader.feed(given)]


def play(*rounds: Sequence[bytes], allowed: int = 4) -> tuple[MessagesReply, list[bytes]]:
    """All rounds, one after the other."""
    reader = dialect.reply(allowed)
    got = feed(reader, rounds[0])
    for events in rounds[1:]:
        assert list(reader.pending) == [0]
        reader.resume(0)
        got += feed(reader, events)
    return reader, got


def data_of(events: Iterable[bytes]) -> list[Json]:
    return [json.loads(given.split(b"data: ", 1)[1]) for given in events]


def message_of(events: Iterable[bytes]) -> Json:
    """The reply as the official SDK puts it together. Indexes have no gap, or it would stumble."""
    content = b"".join(events)
    response = httpx2.Response(
        200, content=content, headers={"content-type": "text/event-stream"}, request=httpx2.Request("POST", "http://a")
    )
    raw: Stream[RawMessageStreamEvent] = Stream(
        cast_to=RawMessageStreamEvent,  # type: ignore[arg-type]
        response=response,
        client=_CLIENT,
    )
    found = MessageStream(raw, output_format=NOT_GIVEN).get_final_message()
    assert [said["index"] for said in data_of(events) if said["type"] == "content_block_start"] == [
        *range(len(found.content))
    ]
    return found.to_dict()


def exchange(reader: MessagesReply, at: int = 0) -> RecallRound:
    return reader.result(0).rounds[at]
