"""The recall tool in OpenAI Responses: added to a request, and its exchanges put back where the model saw them.

The `fields` of an Exchange are the items of its round as a list: each item with the length of its texts in place of
the texts, null for a call of ours, true for one of the client's. Calls of ours that have no null come last.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from policies.dialects.base import Added, Request
from policies.dialects.common import as_json, member, tool_names
from policies.dialects.openai_responses.items import Item, type_of
from policies.dialects.openai_responses.returned import Returned
from policies.model.edits import Exchange
from policies.model.rawjson import UnreadableError, members, replaced
from policies.recall import DESCRIPTION, PARAMETERS
from policies.tools import RECALL

TOOL = (
    # strict is the default of this API, and wants every parameter required
    f'{{"type":"function","name":"{RECALL}","description":"{DESCRIPTION}","parameters":{PARAMETERS},"strict":false}}'
).encode()
_MOST_TOOLS = 128
"""OpenAI refuses more."""
_LEAST_OUTPUT = 16
"""The API refuses a lower limit: "integer below minimum value. Expected a value >= 16"."""


def recall_tool(request: Request, always: bool) -> Added | None:
    """Where and how the recall tool is to be added; None where it cannot be there. Nor may it where the provider keeps
    the response: what is fetched by its id has to be what the client got."""
    fields = members(request.body)
    if member(request.body, fields, "store") is not False or member(request.body, fields, "background"):
        return None
    names = tool_names(request.tool_list)
    if names is None or len(names) >= _MOST_TOOLS or RECALL in names:
        return None
    if names:
        return request.tools[1] - 1, b"," + TOOL
    if not always or request.tool_list == b"null":
        return None
    if request.tool_list:
        return request.tools[1] - 1, TOOL
    return request.body.rindex(b"}"), b',"tools":[' + TOOL + b"]"


def put_back(
    rounds: Sequence[Exchange], answers: Sequence[Sequence[str]], said: str, reply: Sequence[bytes] | None
) -> list[bytes]:
    """The items of a reply's recall exchange, and what is left of the reply."""
    found: list[bytes] = []
    returned = Returned(reply or (), map(_layout, rounds))
    start = 0
    for exchange, texts in zip(rounds, answers, strict=True):
        if not exchange.places:
            spoken = _round(exchange, said[start : start + exchange.text])
            found += [*map(returned.take, spoken), *_results(exchange, texts)]
            start += exchange.text
    if reply is None:
        return found
    left = returned.left(start)
    for exchange, texts in zip(rounds, answers, strict=True):
        if exchange.places:
            left = [*_woven(left, exchange), *_results(exchange, texts)]
    return found + left


def _layout(exchange: Exchange) -> list[Any]:
    """The items of a round; where only the calls are kept, what they follow is a text or nothing."""
    if exchange.fields:
        found: list[Any] = json.loads(exchange.fields)
        return found
    if not exchange.places:
        said = {"type": "message", "role": "assistant", "content": exchange.text}
        return [said] if exchange.text else []
    count = max(exchange.places) + 1
    return [None if place in exchange.places else True for place in range(count)]


def _round(exchange: Exchange, text: str) -> Iterator[bytes]:
    """The items of a round of recalls alone, as the model said them."""
    calls = iter(exchange.calls)
    for item in _layout(exchange):
        if item is None:
            yield next(calls).encode()
        else:
            item, text = _spoken(item, text)
            yield as_json(item)
    yield from (call.encode() for call in calls)


def _spoken(item: dict[str, Any], text: str) -> tuple[Item, str]:
    """An item with its texts again, and the text that is left."""
    content = item.get("content")
    if isinstance(content, int):
        return {**item, "content": text[:content]}, text[content:]
    if type_of(item) != "message" or not isinstance(content, list):
        return item, text
    parts = []
    for part in content:
        length = part.get("text") if isinstance(part, dict) else None
        if isinstance(length, int):
            part, text = {**part, "text": text[:length]}, text[length:]
        parts.append(part)
    return {**item, "content": parts}, text


def _results(exchange: Exchange, texts: Sequence[str]) -> Iterator[bytes]:
    for call, text in zip(exchange.calls, texts, strict=True):
        made = json.loads(call)
        result = {"type": "function_call_output", "call_id": made.get("call_id", ""), "output": text}
        yield as_json(result | ({"caller": made["caller"]} if made.get("caller") else {}))


def _woven(reply: Sequence[bytes], exchange: Exchange) -> Iterator[bytes]:
    """The reply with our calls among the client's, and with what else the client did not return."""
    layout = _layout(exchange)
    returned, calls, at = Returned(reply, [layout]), iter(exchange.calls), 0
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
    """The arguments of a call."""
    return str(json.loads(call)["arguments"])


def next_round(body: bytes, spent: int) -> bytes:
    """The body that asks on within the same reply."""
    fields = members(body)
    limit = body[slice(*fields["max_output_tokens"])] if "max_output_tokens" in fields else b""
    if not limit.isdigit():
        return body
    left = max(_LEAST_OUTPUT, int(limit) - spent)
    return replaced(body, {("max_output_tokens",): b"%d" % min(left, int(limit))})
