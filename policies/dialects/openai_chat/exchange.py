"""The recall tool in chat completions: added to a request, and its exchanges put back where the model saw them."""

import json
from collections.abc import Iterator, Mapping, Sequence

from policies.dialects.base import Added, Request
from policies.dialects.common import answered_calls, as_json
from policies.dialects.openai import MOST_TOOLS
from policies.dialects.tool_lists import tool_names, with_tool
from policies.model.edits import RecallRound
from policies.model.rawjson import Path, UnreadableError, find, items, members, replaced
from policies.recall import DESCRIPTION, PARAMETERS
from policies.tools import RECALL

TOOL = (
    f'{{"type":"function","function":{{"name":"{RECALL}","description":"{DESCRIPTION}","parameters":{PARAMETERS}}}}}'
).encode()
_LIMITS = ("max_completion_tokens", "max_tokens")


def recall_tool(request: Request, always: bool) -> Added | None:
    names = tool_names(request.tool_list, "function")
    if always and not names and "functions" in request.members:
        return None
    return with_tool(request, names, TOOL, always, MOST_TOOLS)


def put_back(
    rounds: Sequence[RecallRound], answers: Sequence[Sequence[str]], text: str, reply: Sequence[bytes] | None
) -> list[bytes]:
    messages: list[bytes] = []
    message = reply[0] if reply else None
    start = 0
    for exchange, texts in zip(rounds, answers, strict=True):
        if not exchange.places:
            fields: Mapping[str, object] = json.loads(exchange.fields) if exchange.fields else {}
            content = text[start : start + exchange.text] or None
            calls = [json.loads(call) for call in exchange.calls]
            messages.append(as_json({"role": "assistant", "content": content, **fields, "tool_calls": calls}))
            messages += _results(exchange, texts)
            start += exchange.text
        elif message is not None:  # our calls stand among the client's, each in the place it had
            theirs = [message[a:b] for a, b in items(message, *find(message, ("tool_calls",)))]
            for place, call in sorted(zip(exchange.places, exchange.calls, strict=True)):
                theirs.insert(place, call.encode())
            message = replaced(message, {("tool_calls",): b"[" + b",".join(theirs) + b"]"})
    if message is not None:
        messages.append(_without_beginning(message, text[start:]) if start else message)
        for exchange, texts in zip(rounds, answers, strict=True):
            messages += _results(exchange, texts) if exchange.places else ()
    return messages


def _results(exchange: RecallRound, texts: Sequence[str]) -> Iterator[bytes]:
    for call, text in answered_calls(exchange, texts):
        yield as_json({"role": "tool", "tool_call_id": call.get("id", ""), "content": text})


def _without_beginning(reply: bytes, rest: str) -> bytes:
    """The reply with nothing but the rest of its text: the beginning stands in the messages before it."""
    fields = members(reply)
    if "content" not in fields:
        return reply
    path: Path = ("content",)
    if reply.startswith(b"[", fields["content"][0]):
        if len(items(reply, *fields["content"])) != 1:
            raise UnreadableError("the text of the reply is in several parts")
        path = ("content", 0, "text") if rest else path
    return replaced(reply, {path: as_json(rest if rest or "tool_calls" not in fields else None)})


def arguments(call: str) -> str:
    return str(json.loads(call)["function"]["arguments"])


def next_round(body: bytes, spent: int) -> bytes:
    fields = members(body)
    changes: dict[Path, bytes] = {("n",): b"1"} if "n" in fields else {}
    for name in _LIMITS:
        limit = body[slice(*fields[name])] if name in fields else b""
        if limit.isdigit():
            changes[name,] = b"%d" % max(1, int(limit) - spent)
    return replaced(body, changes)
