"""The recall tool in OpenAI Responses: added to a request, and its exchanges put back where the model saw them.

The `fields` of an Exchange are the items of its round as a list: each item with the length of its texts in place of
the texts, null for a call of ours, true for one of the client's. Calls of ours that have no null come last.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from policies.dialects.base import Added, Request
from policies.dialects.common import answered_calls, as_json, member
from policies.dialects.openai import MOST_TOOLS
from policies.dialects.openai_responses.messages import type_of
from policies.dialects.openai_responses.returned import ReturnedItems
from policies.dialects.tool_lists import tool_names, with_tool
from policies.model.edits import Exchange
from policies.model.rawjson import UnreadableError, members, replaced
from policies.recall import DESCRIPTION, PARAMETERS
from policies.tools import RECALL

TOOL = (
    # strict is the default of this API, and wants every parameter required
    f'{{"type":"function","name":"{RECALL}","description":"{DESCRIPTION}","parameters":{PARAMETERS},"strict":false}}'
).encode()


def recall_tool(request: Request, always: bool) -> Added | None:
    """Not where the provider stores the response: what is fetched by its id has to be what the client got."""
    fields = request.members
    if member(request.body, fields, "store") is not False or member(request.body, fields, "background"):
        return None
    return with_tool(request, tool_names(request.tool_list), TOOL, always, MOST_TOOLS)


def put_back(
    rounds: Sequence[Exchange], answers: Sequence[Sequence[str]], text: str, reply: Sequence[bytes] | None
) -> list[bytes]:
    items: list[bytes] = []
    returned = ReturnedItems(reply or (), map(_layout, rounds))
    start = 0
    for exchange, texts in zip(rounds, answers, strict=True):
        if not exchange.places:
            originals = _round(exchange, text[start : start + exchange.text])
            items += [*map(returned.move, originals), *_results(exchange, texts)]
            start += exchange.text
    if reply is None:
        return items
    rest = returned.rest(start)
    for exchange, texts in zip(rounds, answers, strict=True):
        if exchange.places:
            rest = [*_with_calls(rest, exchange), *_results(exchange, texts)]
    return items + rest


def _layout(exchange: Exchange) -> list[Any]:
    """The items of a round; where only the calls are stored, what they follow is a text or nothing."""
    if exchange.fields:
        layout: list[Any] = json.loads(exchange.fields)
        return layout
    if not exchange.places:
        message = {"type": "message", "role": "assistant", "content": exchange.text}
        return [message] if exchange.text else []
    return [None if place in exchange.places else True for place in range(max(exchange.places) + 1)]


def _round(exchange: Exchange, text: str) -> Iterator[bytes]:
    """The items of a round of recalls alone, as the model wrote them."""
    calls = iter(exchange.calls)
    for item in _layout(exchange):
        if item is None:
            yield next(calls).encode()
            continue
        content = item.get("content")
        if isinstance(content, int):
            item, text = {**item, "content": text[:content]}, text[content:]
        elif type_of(item) == "message" and isinstance(content, list):
            parts = []
            for part in content:
                length = part.get("text") if isinstance(part, dict) else None
                if isinstance(length, int):
                    part, text = {**part, "text": text[:length]}, text[length:]
                parts.append(part)
            item = {**item, "content": parts}
        yield as_json(item)
    yield from (call.encode() for call in calls)


def _results(exchange: Exchange, texts: Sequence[str]) -> Iterator[bytes]:
    for call, text in answered_calls(exchange, texts):
        result = {"type": "function_call_output", "call_id": call.get("call_id", ""), "output": text}
        yield as_json(result | ({"caller": call["caller"]} if call.get("caller") else {}))


def _with_calls(reply: Sequence[bytes], exchange: Exchange) -> Iterator[bytes]:
    """The reply with our calls among the client's, and with what else the client did not return."""
    layout = _layout(exchange)
    returned, calls, at = ReturnedItems(reply, [layout]), iter(exchange.calls), 0
    for entry in layout:
        place = None if entry is None else returned.place(entry, at)
        if place is not None:
            yield from reply[at : place + 1]
            at = max(at, place + 1)
        elif entry is None:
            yield next(calls).encode()
        elif entry is True:
            raise UnreadableError("a call of the reply is missing")
        elif type_of(entry) != "message":
            yield as_json(entry)
    yield from reply[at:]
    yield from (call.encode() for call in calls)


def arguments(call: str) -> str:
    return str(json.loads(call)["arguments"])


def next_round(body: bytes, spent: int) -> bytes:
    fields = members(body)
    limit = body[slice(*fields["max_output_tokens"])] if "max_output_tokens" in fields else b""
    if not limit.isdigit():
        return body
    rest = max(16, int(limit) - spent)  # "integer below minimum value. Expected a value >= 16"
    return replaced(body, {("max_output_tokens",): b"%d" % min(rest, int(limit))})
