"""The recall tool in Anthropic Messages: added to a request, and its exchanges put back where the model saw them."""

import json
import sys
from collections.abc import Sequence

from policies.dialects.anthropic_messages.returned import ReturnedMessage, blocks_of
from policies.dialects.base import Added, Request
from policies.dialects.common import answered_calls, as_json
from policies.dialects.tool_lists import tool_names, with_tool
from policies.model.edits import RecallRound
from policies.model.rawjson import Path, UnreadableError, find, items, members, replaced
from policies.recall import DESCRIPTION, PARAMETERS
from policies.tools import RECALL

TOOL = f'{{"name":"{RECALL}","description":"{DESCRIPTION}","input_schema":{PARAMETERS}}}'.encode()


def recall_tool(request: Request, always: bool) -> Added | None:
    return with_tool(request, tool_names(request.tool_list), TOOL, always, most=sys.maxsize)


def put_back(
    rounds: Sequence[RecallRound], answers: Sequence[Sequence[str]], text: str, reply: Sequence[bytes] | None
) -> list[bytes]:
    """Where the client's own calls were made beside ours, our results stand before theirs."""
    messages: list[bytes] = []
    returned = ReturnedMessage(reply[0]) if reply else None
    results: list[bytes] = []
    start = 0
    for exchange, texts in zip(rounds, answers, strict=True):
        if exchange.places:
            if returned is not None:
                returned.insert(exchange)
            results += _results(exchange, texts)
            continue
        blocks = blocks_of(exchange, text[start : start + exchange.text])
        messages += [_message("assistant", blocks), _message("user", _results(exchange, texts))]
        start += exchange.text
        if returned is not None:
            returned.remove(exchange)
    if reply and returned is not None:
        messages += [raw for raw in (returned.rest(),) if raw]
        following = list(reply[1:])
        if results and following:  # all results that answer one message stand in the next, before any text
            start, _ = items(following[0], *find(following[0], ("content",)))[0]
            following[0] = following[0][:start] + b",".join(results) + b"," + following[0][start:]
        elif results:
            following = [_message("user", results)]
        messages += following
    return messages


def _message(role: str, blocks: Sequence[bytes]) -> bytes:
    return b'{"role":"' + role.encode() + b'","content":[' + b",".join(blocks) + b"]}"


def _results(exchange: RecallRound, texts: Sequence[str]) -> list[bytes]:
    return [
        as_json({"type": "tool_result", "tool_use_id": call.get("id", ""), "content": text})
        for call, text in answered_calls(exchange, texts)
    ]


def arguments(call: str) -> str:
    return as_json(json.loads(call)["input"]).decode()


def next_round(body: bytes, spent: int) -> bytes:
    """A budget for thinking stays as long as it fits, because another one costs the prompt cache."""
    fields = members(body)
    limit = body[slice(*fields["max_tokens"])] if "max_tokens" in fields else b""
    if not limit.isdigit():
        return body
    rest = max(1, int(limit) - spent)
    changes: dict[Path, bytes] = {}
    try:
        budget = body[slice(*find(body, ("thinking", "budget_tokens")))]
    except (UnreadableError, LookupError):
        budget = b""
    if budget.isdigit() and rest <= int(budget) < int(limit):  # a greater one is a client's that may have it
        rest = max(rest, 1025)  # the API takes no budget below 1024, and wants more than it for the whole answer
        changes["thinking", "budget_tokens"] = b"%d" % (rest - 1)
    return replaced(body, {**changes, ("max_tokens",): b"%d" % rest})
