"""The request of OpenAI chat completions: its messages read into parts, edits and cache marks written into them, the
tools that are ours and their exchanges put into it; and a request for a text.

Laws: only fields that are known are looked at, the rest is opaque; reading never fails.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

import msgspec

from policies.context import TokenCounter
from policies.dialects.common import (
    IMAGE,
    Added,
    Request,
    answered_calls,
    as_json,
    edited,
    list_at,
    message_of,
    object_at,
    opaque_fields,
    parsed,
    text_at,
)
from policies.dialects.deferring import DeferralForm, Entry, without
from policies.dialects.dialect import JsonObject, Writing, is_completion_limited, limit, text_of
from policies.dialects.openai import MARKS, MOST_TOOLS, ROLES, marks_on, style_of, tool_marks, with_mark
from policies.dialects.tool_lists import tool_names, with_tool
from policies.model.conversation import Conversation, Kind, Message, Part
from policies.model.edits import Edit, RecallRound
from policies.model.rawjson import Path, UnreadableError, find, items, members, replaced
from policies.money.caches import MarkStyle
from policies.recall import DESCRIPTION, PARAMETERS, RecallAnswer
from policies.text.layout import Piece
from policies.text.summary_checks import End
from policies.tools import RECALL, SEARCH

_ROLES: Mapping[str, Kind] = {**ROLES, "tool": "result", "function": "result"}
_READ = frozenset({"role", "content", "tool_calls", "tool_call_id", "name", "refusal", *MARKS})
"""Any other field of a message (reasoning, signatures, provider items) is opaque."""
_MEDIA = frozenset({"image_url", "input_audio", "file", "image", "video_url"})


def read(raw: bytes, count: TokenCounter) -> Message:
    message = parsed(raw)
    role = text_at(message, "role")
    parts = [*opaque_fields(message, _READ, count), *_contents(message, role, count)]
    if role == "assistant":
        parts += [_call(call, at, count) for at, call in enumerate(list_at(message, "tool_calls"))]
    return message_of(raw, role, parts, _digest(message, raw), len(marks_of(message)))


def _digest(message: Mapping[str, object], raw: bytes) -> bytes:
    """Of the message without spacing and without its cache marks, and without the list that only a mark needs: a client
    moves its marks from one request to the next, and that changes no prompt."""
    content = message.get("content")
    if isinstance(content, list):
        bare = [{k: v for k, v in p.items() if k not in MARKS} if isinstance(p, dict) else p for p in content]
        if len(bare) == 1 and isinstance(bare[0], dict) and bare[0].keys() == {"type", "text"}:
            bare = bare[0]["text"]
        message = {**message, "content": bare}
    try:
        return sha256(as_json({k: v for k, v in message.items() if k not in MARKS})).digest()
    except RecursionError:
        return sha256(raw).digest()


def _contents(message: Mapping[str, object], role: str, count: TokenCounter) -> Iterator[Part]:
    kind = _ROLES.get(role, "opaque")
    tool, call_id = str(message.get("name") or ""), str(message.get("tool_call_id") or "")
    content = message.get("content")
    if isinstance(content, str):
        yield Part(kind, content, ("content",), count(content), tool, call_id)
    for at, part in enumerate(list_at(message, "content")):
        if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
            yield Part(kind, part["text"], ("content", at, "text"), count(part["text"]), tool, call_id)
        else:
            text = as_json(part).decode()
            yield Part("opaque", text, ("content", at), IMAGE if text_at(part, "type") in _MEDIA else count(text))


def _call(call: object, at: int, count: TokenCounter) -> Part:
    function = object_at(call, "function")
    arguments = function.get("arguments")
    if not isinstance(call, dict) or not isinstance(arguments, str):
        text = as_json(call).decode()
        return Part("opaque", text, ("tool_calls", at), count(text))
    tool = str(function.get("name") or "")
    path = ("tool_calls", at, "function", "arguments")
    return Part("call", arguments, path, count(arguments) + count(tool), tool, str(call.get("id") or ""))


def marks_of(holder: object) -> list[MarkStyle]:
    """The marks on a message, a part or a tool, and on what it holds one level down."""
    if not isinstance(holder, dict):
        return []
    return marks_on([holder, holder.get("function"), *list_at(holder, "content")])


# --- edits and cache marks ---


def splice(request: Request, conversation: Conversation, edits: Sequence[Edit]) -> dict[int, bytes]:
    def stub(piece: Piece) -> bytes:
        return as_json({"role": piece.role, "content": piece.text})

    def exchange(name: str, arguments: str, text: str) -> bytes:
        call = {"id": name, "type": "function", "function": {"name": RECALL, "arguments": arguments}}
        answer = {"role": "tool", "tool_call_id": name, "content": text}
        return as_json({"role": "assistant", "content": None, "tool_calls": [call]}) + b"," + as_json(answer)

    return edited(request, conversation, edits, stub, exchange, marked=marked, marks_of=marks_of)


def may_stand(request: Request) -> bool:
    """Not where the calls of the model are signed: Gemini refuses one without a signature since the newest message of a
    person (Gemini API, "Thought signatures"). In a text the quotes would be escaped."""
    return b'"thought_signature"' not in request.body


def mark_style(request: Request, messages: Sequence[Message]) -> MarkStyle:
    return style_of(request, messages, marks_of)


def slots(request: Request, messages: Sequence[Message]) -> int:
    """Anthropic and OpenAI take 4 in all."""
    return 4 - sum(message.marks for message in messages) - len(tool_marks(request.tool_list, marks_of))


def marked(raw: bytes, style: MarkStyle) -> bytes | None:
    return with_mark(raw, style, lambda _: b'"text"', fields=("content",))


# --- the recall tool: added to a request, and its exchanges put back where the model saw them ---

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
    rounds: Sequence[RecallRound], answers: Sequence[Sequence[RecallAnswer]], text: str, reply: Sequence[bytes] | None
) -> list[bytes]:
    messages: list[bytes] = []
    message = reply[0] if reply else None
    start = 0
    for exchange, each in zip(rounds, answers, strict=True):
        if not exchange.places:
            fields: Mapping[str, object] = json.loads(exchange.fields) if exchange.fields else {}
            content = text[start : start + exchange.text] or None
            calls = [json.loads(call) for call in exchange.calls]
            messages.append(as_json({"role": "assistant", "content": content, **fields, "tool_calls": calls}))
            messages += _results(exchange, each)
            start += exchange.text
        elif message is not None:  # our calls stand among the client's, each in the place it had
            theirs = [message[a:b] for a, b in items(message, *find(message, ("tool_calls",)))]
            for place, call in sorted(zip(exchange.places, exchange.calls, strict=True)):
                theirs.insert(place, call.encode())
            message = replaced(message, {("tool_calls",): b"[" + b",".join(theirs) + b"]"})
    if message is not None:
        messages.append(_without_beginning(message, text[start:]) if start else message)
        for exchange, each in zip(rounds, answers, strict=True):
            messages += _results(exchange, each) if exchange.places else ()
    return messages


def _results(exchange: RecallRound, answers: Sequence[RecallAnswer]) -> Iterator[bytes]:
    for call, answer in answered_calls(exchange, answers):
        yield as_json({"role": "tool", "tool_call_id": call.get("id", ""), "content": answer.text})


def _without_beginning(reply: bytes, rest: str) -> bytes:
    fields = members(reply)
    if "content" not in fields:
        return reply
    path: Path = ("content",)
    if reply.startswith(b"[", fields["content"][0]):
        if len(items(reply, *fields["content"])) != 1:
            raise UnreadableError("the text of the reply is in several parts")
        path = ("content", 0, "text") if rest else path
    return replaced(reply, {path: as_json(rest if rest or "tool_calls" not in fields else None)})


def called(call: str) -> tuple[str, str]:
    function = json.loads(call)["function"]
    return str(function["name"]), str(function["arguments"])


def next_round(body: bytes, tokens: int) -> bytes:
    fields = members(body)
    changes: dict[Path, bytes] = {("n",): b"1"} if "n" in fields else {}
    for name in _LIMITS:
        limit = body[slice(*fields[name])] if name in fields else b""
        if limit.isdigit():
            changes[name,] = b"%d" % max(1, int(limit) - tokens)
    return replaced(body, changes)


# --- a list of tools of which some are deferred: left out, until a search has found them ---


def _definition(entry: Entry) -> Entry | None:
    return object_at(entry, "function") if entry.get("type") == "function" and not marks_of(entry) else None


DEFERRAL = DeferralForm(
    takes=lambda request: True,
    definition=_definition,
    tool=lambda description, schema: (
        f'{{"type":"function","function":{{"name":"{SEARCH}","description":{description},"parameters":{schema}}}}}'
    ).encode(),
    listed=without,
    finds_in_list=True,
)


# --- a text asked for ---


class _Message(msgspec.Struct):
    content: str | list[dict[str, Any]] | None = None
    refusal: str | None = None
    tool_calls: list[Any] | None = None
    function_call: Any = None
    reasoning: Any = None
    reasoning_content: Any = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


def writing_bodies(model: str, instructions: str, text: str, most: int) -> Sequence[JsonObject]:
    """Where the name of a model does not say which limit it takes, its refusal does."""
    request = {
        "model": model,
        "messages": [{"role": "system", "content": instructions}, {"role": "user", "content": text}],
    }
    plain = {**request, "max_tokens": limit(most, model)}
    thinks = {**request, "max_completion_tokens": limit(most, model, thinks=True)}
    return (thinks, plain) if is_completion_limited(model) else (plain, thinks)


def written_answer(reply: JsonObject) -> tuple[str, End]:
    choice = msgspec.convert(reply.get("choices"), list[_Choice])[0]
    message, finish = choice.message, (choice.finish_reason or "stop").lower()
    text = text_of(message.content if isinstance(message.content, list) else [{"text": message.content}])
    if message.refusal or finish == "content_filter":
        return text, "refusal"
    if message.tool_calls or message.function_call or finish in ("tool_calls", "function_call"):
        return text, "calls"
    if finish == "length":
        return text, "length"
    if not text and (message.content or message.reasoning or message.reasoning_content):
        return text, "reasoning"
    return text, "stop" if finish in ("stop", "end_turn", "eos", "stop_sequence") else "other"


WRITING = Writing(bodies=writing_bodies, answer=written_answer)
