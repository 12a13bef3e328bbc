"""Short ways to write replies with recall calls down, and to read what the client got of them."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from policies.dialects.openai_chat.reply import ChatReply
from policies.model.edits import RecallRound

Json = dict[str, Any]

NAME = "narrows_recall"
REF = '{"ref":"482913"}'
DONE = b"data: [DONE]\n\n"


def event(chunk: Json) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def chunk(delta: Json | None, finish: str | None = None, *, at: int = 0, name: str = "one", **more: Any) -> bytes:
    """One event; `name` tells the rounds apart."""
    choices = [] if delta is None else [{"index": at, "delta": delta, "finish_reason": finish}]
    kind = "chat.completion.chunk"
    return event({"id": name, "object": kind, "created": len(name), "model": f"m-{name}", "choices": choices, **more})


def entry(name: str | None = NAME, arguments: str = REF, index: int = 0, call_id: str | None = "c0") -> Json:
    """One piece of a streamed call."""
    head = {"id": call_id, "type": "function"} if call_id else {}
    function = ({"name": name} if name is not None else {}) | {"arguments": arguments}
    return {"index": index, **head, "function": function}


def made(*entries: Json, **more: Any) -> Json:
    return {"tool_calls": list(entries), **more}


def usage(prompt: int, completion: int, **details: int) -> Json:
    found = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {"usage": found | ({"completion_tokens_details": details} if details else {})}


def feed(reader: ChatReply, events: Iterable[bytes]) -> list[bytes]:
    return [piece for given in events for piece in reader.feed(given)]


def play(*rounds: Sequence[bytes], allowed: int = 4) -> tuple[ChatReply, list[bytes]]:
    """All rounds of choice 0, one after the other."""
    reader = ChatReply(allowed)
    got = feed(reader, rounds[0])
    for events in rounds[1:]:
        assert list(reader.pending) == [0]
        reader.resume(0)
        got += feed(reader, events)
    return reader, got


def parsed(events: Iterable[bytes]) -> list[Json]:
    return [json.loads(given[6:]) for given in events if given.strip() != DONE.strip()]


def accumulated(events: Iterable[bytes]) -> Json:
    """The reply as the official SDK puts it together."""
    state = ChatCompletionStreamState()
    for said in parsed(events):
        state.handle_chunk(ChatCompletionChunk.model_validate(said))
    return state.current_completion_snapshot.to_dict()


def message_of(events: Iterable[bytes]) -> Json:
    found: Json = accumulated(events)["choices"][0]
    return found


def exchange(reader: ChatReply, at: int = 0) -> RecallRound:
    return reader.result(0).rounds[at]


ASKS = [chunk({"role": "assistant", "content": None}), chunk(made(entry(arguments="")))]
ASKS += [chunk(made(entry(None, piece, call_id=None))) for piece in ('{"ref"', ':"482913"}')]
ENDS = [chunk({}, "tool_calls"), DONE]
SAYS = [
    chunk({"role": "assistant", "content": ""}, name="two"),
    chunk({"content": "found"}, name="two"),
    chunk({}, "stop", name="two"),
    DONE,
]


def recalled(reader: ChatReply) -> list[int]:
    """The choices behind which there is a recall exchange."""
    return [choice for choice in range(8) if reader.result(choice).rounds]
