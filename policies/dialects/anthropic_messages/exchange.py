"""The recall tool in Anthropic Messages: added to a request, and its exchanges put back where the model saw them."""

import json
from collections.abc import Sequence

from policies.dialects.anthropic_messages.rounds import Left, blocks_of
from policies.dialects.base import Added, Request
from policies.dialects.common import as_json, tool_names
from policies.model.edits import Exchange
from policies.model.rawjson import Path, UnreadableError, find, items, members, replaced
from policies.recall import DESCRIPTION, PARAMETERS
from policies.tools import RECALL

TOOL = f'{{"name":"{RECALL}","description":"{DESCRIPTION}","input_schema":{PARAMETERS}}}'.encode()
_LEAST_BUDGET = 1024
"""Tokens for thinking: the API takes no less, and wants more than these for the whole answer."""


def recall_tool(request: Request, always: bool) -> Added | None:
    """Where and how the recall tool is to be added; None where it cannot be there."""
    names = tool_names(request.tool_list)
    if names is None or RECALL in names or request.tool_list == b"null":
        return None
    if names:
        return request.tools[1] - 1, b"," + TOOL
    if not always:
        return None
    if request.tool_list:
        return request.tools[1] - 1, TOOL
    return request.body.rindex(b"}"), b',"tools":[' + TOOL + b"]"


def put_back(
    rounds: Sequence[Exchange], answers: Sequence[Sequence[str]], said: str, reply: Sequence[bytes] | None
) -> list[bytes]:
    """The messages of a reply's recall exchange, and what is left of the reply; where the client's own calls were made
    beside ours, our results stand before theirs."""
    found: list[bytes] = []
    left = Left(reply[0]) if reply else None
    results: list[bytes] = []
    start = 0
    for exchange, texts in zip(rounds, answers, strict=True):
        if exchange.places:
            if left is not None:
                left.insert(exchange)
            results += _results(exchange, texts)
            continue
        blocks = blocks_of(exchange, said[start : start + exchange.text])
        found += [_message("assistant", blocks), _message("user", _results(exchange, texts))]
        start += exchange.text
        if left is not None:
            left.take(exchange)
    if reply and left is not None:
        found += [raw for raw in (left.message(),) if raw]
        found += _answered(results, reply[1:]) if results else reply[1:]
    return found


def _message(role: str, blocks: Sequence[bytes]) -> bytes:
    return b'{"role":"' + role.encode() + b'","content":[' + b",".join(blocks) + b"]}"


def _results(exchange: Exchange, texts: Sequence[str]) -> list[bytes]:
    calls = zip(exchange.calls, texts, strict=True)
    return [
        as_json({"type": "tool_result", "tool_use_id": json.loads(call).get("id", ""), "content": text})
        for call, text in calls
    ]


def _answered(results: Sequence[bytes], following: Sequence[bytes]) -> list[bytes]:
    """The client's results with ours before them: all that answer one message stand in the next, before any text."""
    if not following:
        return [_message("user", results)]
    start, _ = items(following[0], *find(following[0], ("content",)))[0]
    return [following[0][:start] + b",".join(results) + b"," + following[0][start:], *following[1:]]


def arguments(call: str) -> str:
    """The arguments of a call."""
    return as_json(json.loads(call)["input"]).decode()


def next_round(body: bytes, spent: int) -> bytes:
    """The body that asks on within the same reply. A budget for thinking stays as long as it fits, because another one
    costs the prompt cache."""
    fields = members(body)
    limit = body[slice(*fields["max_tokens"])] if "max_tokens" in fields else b""
    if not limit.isdigit():
        return body
    left = max(1, int(limit) - spent)
    budget = _budget(body)
    changes: dict[Path, bytes] = {}
    if budget is not None and left <= budget < int(limit):  # a greater one is a client's that may have it
        left = max(left, _LEAST_BUDGET + 1)
        changes["thinking", "budget_tokens"] = b"%d" % (left - 1)
    return replaced(body, {**changes, ("max_tokens",): b"%d" % left})


def _budget(body: bytes) -> int | None:
    try:
        found = body[slice(*find(body, ("thinking", "budget_tokens")))]
    except (UnreadableError, LookupError):
        return None
    return int(found) if found.isdigit() else None
