"""Short ways to write items and replies of OpenAI Responses down, and to read what the client got of them."""

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import ResponseInputItemParam, ResponseStreamEvent
from pydantic import TypeAdapter

from policies.dialects.openai_responses.reply import ResponsesReply

Json = dict[str, Any]

NAME = "narrows_recall"
REF = '{"ref":"482913"}'
TOOL = {"type": "function", "name": "bash", "parameters": {"type": "object"}, "strict": False}


def message(text: str, name: str = "one", **more: Any) -> Json:
    """A message of the model."""
    part = {"type": "output_text", "text": text, "annotations": []}
    return {
        "id": f"msg_{name}",
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [part],
        **more,
    }


def reasoning(seal: str, name: str = "one") -> Json:
    return {"id": f"rs_{name}", "type": "reasoning", "summary": [], "encrypted_content": seal}


def call(name: str = NAME, arguments: str = REF, call_id: str = "c0", **more: Any) -> Json:
    made = {"id": f"fc_{call_id}", "type": "function_call", "status": "completed", "arguments": arguments}
    return made | {"call_id": call_id, "name": name, **more}


def result(text: Any, call_id: str = "c0") -> Json:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def usage(given: int, made: int, thought: int = 0) -> Json:
    details = {"cached_tokens": 0, "cache_write_tokens": 0}
    found = {"input_tokens": given, "input_tokens_details": details, "output_tokens": made}
    return found | {"output_tokens_details": {"reasoning_tokens": thought}, "total_tokens": given + made}


def response(output: Sequence[Json], name: str = "one", status: str = "completed", **more: Any) -> Json:
    """A response; `name` tells the rounds apart."""
    found = {"id": f"resp_{name}", "object": "response", "created_at": len(name), "status": status, "error": None}
    found |= {"model": f"m-{name}", "output": list(output), "parallel_tool_calls": True, "tool_choice": "auto"}
    tools = [TOOL, {"type": "function", "name": NAME, "parameters": {}, "strict": False}]
    return found | {"incomplete_details": None, "instructions": None, "tools": tools, "usage": None, **more}


def events(output: Sequence[Json], name: str = "one", end: str = "completed", **more: Any) -> list[bytes]:
    """A response as a stream."""
    said: list[Json] = [{"type": f"response.{kind}", "response": response([], name, "in_progress")} for kind in OPENS]
    for index, item in enumerate(output):
        said += [{**event, "output_index": index} for event in _of_an_item(item)]
    said.append({"type": f"response.{end}", "response": response(output, name, end, **more)})
    return [event({**each, "sequence_number": number}) for number, each in enumerate(said)]


OPENS = ("created", "in_progress")


def event(said: Json) -> bytes:
    return f"event: {said['type']}\ndata: {json.dumps(said)}\n\n".encode()


def _of_an_item(item: Json) -> Iterator[Json]:
    empty = {"message": {"content": []}, "function_call": {"arguments": ""}}.get(item["type"], {})
    yield {"type": "response.output_item.added", "item": {**item, **empty}}
    at = {"item_id": item.get("id", "")}
    for index, part in enumerate(item["content"] if item["type"] == "message" else ()):
        yield from _of_a_part(part, {**at, "content_index": index})
    if item["type"] == "function_call":
        pieces = item["arguments"][:4], item["arguments"][4:]
        yield from ({"type": "response.function_call_arguments.delta", "delta": piece, **at} for piece in pieces)
        yield {"type": "response.function_call_arguments.done", "arguments": item["arguments"], "name": "", **at}
    yield {"type": "response.output_item.done", "item": item}


def _of_a_part(part: Json, at: Json) -> Iterator[Json]:
    text = part.get("text", "")
    yield {"type": "response.content_part.added", "part": {**part, "text": ""} if text else part, **at}
    for piece in (text[: len(text) // 2], text[len(text) // 2 :]) if text else ():
        yield {"type": "response.output_text.delta", "delta": piece, "logprobs": [], **at}
    if text:
        yield {"type": "response.output_text.done", "text": text, "logprobs": [], **at}
    yield {"type": "response.content_part.done", "part": part, **at}


def feed(reader: ResponsesReply, given: Iterable[bytes]) -> list[bytes]:
    return [piece for event in given for piece in reader.feed(event)]


def play(*rounds: Sequence[bytes], allowed: int = 4) -> tuple[ResponsesReply, list[bytes]]:
    """All rounds of a reply, one after the other."""
    reader = ResponsesReply(allowed)
    got = feed(reader, rounds[0])
    for following in rounds[1:]:
        assert list(reader.pending) == [0]
        reader.resume(0)
        got += feed(reader, following)
    return reader, got


def parsed(given: Iterable[bytes]) -> list[Json]:
    return [json.loads(b"".join(line[5:] for line in each.splitlines() if line[:5] == b"data:")) for each in given]


@cache
def _known(types: Any) -> TypeAdapter[Any]:
    return TypeAdapter(types)


def is_valid(item: Json) -> None:
    """Raises where the SDK's types know no such item of an input."""
    _known(ResponseInputItemParam).validate_python(item)


def accumulated(given: Sequence[bytes]) -> Json:
    """The response as the official SDK puts it together. Every event is one that its types know, and numbers and
    indexes have no gap."""
    state: ResponseStreamState[Any] = ResponseStreamState(input_tools=omit, text_format=omit)
    said = parsed(given)
    assert [each["sequence_number"] for each in said] == list(range(len(said)))
    begun = [each["output_index"] for each in said if each["type"] == "response.output_item.added"]
    assert begun == list(range(len(begun)))
    assert [each["type"] for each in said] == [raw.partition(b"\n")[0][7:].decode() for raw in given]
    for each in said:
        state.handle_event(_known(ResponseStreamEvent).validate_python(each))
    last: Json = said[-1]["response"]
    if state._completed_response is not None:
        assert [item.to_dict()["id"] for item in state._completed_response.output] == [i["id"] for i in last["output"]]
    done = [each["item"] for each in said if each["type"] == "response.output_item.done"]
    assert done == last["output"]
    return last
