"""A reply of the Responses API (types of the official SDK: Response, ResponseStreamEvent)."""

from collections.abc import Iterator
from typing import Any

from proxy.lab.provider import jsontext
from proxy.lab.provider.answers import CREATED, Json, Reply, Say, Turn, framed, pieces_of, streamed, whole
from proxy.lab.provider.responses.output import output
from proxy.lab.provider.responses.prompt import CALLS
from proxy.lab.provider.rules import Violation

INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
_ECHOED: Json = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
}
"""What a response repeats of its request, and what it says where that says nothing."""


def meant(say: Say, _: Json) -> Say:
    """What is said to such a request."""
    return say


def reply(turn: Turn) -> Reply:
    """The reply to a request: one response, or a stream of events where the request asks for one."""
    headers = (("x-request-id", turn.identity("req_")),)
    wire = turn.say.wire
    if turn.asked.get("stream"):
        numbered = ({**event, "sequence_number": at} for at, event in enumerate(_events(turn)))
        events = [framed(jsontext.write(event), wire, event["type"]) for event in numbered]
        return streamed(events, headers, wire)
    return whole(response(turn), headers, wire)


def response(turn: Turn) -> dict[str, Any]:
    """The response as it ends."""
    reason = INCOMPLETE.get(turn.say.reason)
    ended = {
        "status": "incomplete" if reason else "completed",
        "incomplete_details": {"reason": reason} if reason else None,
        "output": list(output(turn)),
        "usage": _usage(turn),
    }
    return _begun(turn) | ended


def _begun(turn: Turn) -> dict[str, Any]:
    echoed = {key: turn.asked[key] for key in _ECHOED if turn.asked.get(key) is not None}
    return {
        "id": turn.identity("resp_"),
        "object": "response",
        "created_at": CREATED,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "model": turn.asked["model"],
        "output": [],
        "usage": None,
        **_ECHOED,
        **echoed,
    }


def _usage(turn: Turn) -> dict[str, Any]:
    usage = turn.usage
    written = {"ttl_12h_tokens": usage.written_longer, "ttl_30m_tokens": usage.written - usage.written_longer}
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {
            "cached_tokens": usage.cached,
            "cache_write_tokens": usage.written,
            "cache_write_tokens_details": written,
        },
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": turn.thought},
        "total_tokens": usage.prompt + usage.completion,
    }


def _events(turn: Turn) -> Iterator[dict[str, Any]]:
    yield {"type": "response.created", "response": _begun(turn)}
    yield {"type": "response.in_progress", "response": _begun(turn)}
    for index, item in enumerate(output(turn)):
        yield {"type": "response.output_item.added", "output_index": index, "item": _bare(item)}
        for event in GROWS[item["type"]](item, turn.say.pieces):
            yield {**event, "item_id": item["id"], "output_index": index}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    ended = response(turn)
    yield {"type": f"response.{ended['status']}", "response": ended}


def _bare(item: Json) -> dict[str, Any]:
    """An item as it begins."""
    empty = {"content": [], "summary": [], "arguments": "", "input": "", "encrypted_content": ""}
    begun = {**item, **{key: value for key, value in empty.items() if key in item}}
    return begun | ({"status": "in_progress"} if "status" in item else {})


def _reasoning(item: Json, pieces: int) -> Iterator[dict[str, Any]]:
    for index, part in enumerate(item["summary"]):
        at = {"summary_index": index}
        kind = "response.reasoning_summary"
        yield {"type": f"{kind}_part.added", **at, "part": {**part, "text": ""}}
        for piece in pieces_of(part["text"], pieces):
            yield {"type": f"{kind}_text.delta", **at, "delta": piece}
        yield {"type": f"{kind}_text.done", **at, "text": part["text"]}
        yield {"type": f"{kind}_part.done", **at, "part": part}


def _message(item: Json, pieces: int) -> Iterator[dict[str, Any]]:
    part = item["content"][0]
    at = {"content_index": 0}
    yield {"type": "response.content_part.added", **at, "part": {**part, "text": ""}}
    for piece in pieces_of(part["text"], pieces):
        yield {"type": "response.output_text.delta", **at, "delta": piece, "logprobs": []}
    yield {"type": "response.output_text.done", **at, "text": part["text"], "logprobs": []}
    yield {"type": "response.content_part.done", **at, "part": part}


def _call(item: Json, pieces: int) -> Iterator[dict[str, Any]]:
    key = CALLS[item["type"]]
    kind = f"response.{item['type']}_{key}"
    for piece in pieces_of(item[key], pieces):
        yield {"type": f"{kind}.delta", "delta": piece}
    yield {"type": f"{kind}.done", key: item[key]}


GROWS = {"reasoning": _reasoning, "message": _message, "function_call": _call, "custom_tool_call": _call}


def overflow(_: int, __: int) -> Violation:
    """The prompt does not fit the window."""
    said = "Your input exceeds the context window of this model. Please adjust your input and try again."
    return Violation(said, "input", "context_length_exceeded")


def choices_of(_: Json) -> int:
    """This API gives one answer."""
    return 1
