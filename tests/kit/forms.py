"""Recorded sessions and requests of chat completions in the form of the other APIs, and back.

For tests alone: Narrows itself translates nothing. A call id that a session uses again is made another, because
Anthropic wants each of its own. What a form has no place for is left out: the name in a result, and the difference
between no text and an empty one beside calls (`plain`). A message with `native` entries is those, as they are; of what
only its own API can say (thinking, reasoning) nothing comes back.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any
from zlib import crc32

from tests.kit.histories import Json

_AGAIN = "-again-"
_DATA = "data:"
_OF_ONE_MESSAGE = re.compile(r"msg_\d+_[0-9a-f]+")
"""The id that `_output_message` gives to the text with which a message begins."""
_SAME = ("model", "stream", "temperature", "top_p")
_SYSTEM = ("system", "developer")


def plain(chat: Json) -> Json:
    """What all forms can say of a session: model, messages and tools, with arguments spaced as SDKs do."""
    messages = [_plain(message) for message in chat["messages"]]
    return {key: chat[key] for key in ("model", "tools") if chat.get(key)} | {"messages": messages}


def _plain(message: Json) -> Json:
    kept = {key: value for key, value in message.items() if key != "name"}
    if kept.get("tool_calls"):
        kept |= {"content": kept.get("content") or None, "tool_calls": [_compact(call) for call in kept["tool_calls"]]}
    return {key: kept[key] for key in ("role", "content", "tool_calls", "tool_call_id") if key in kept}


def _compact(call: Json) -> Json:
    """Arguments as they come out of an API that takes them for JSON and not for text."""
    arguments = _written(json.loads(call["function"]["arguments"]))
    return {**call, "function": {"name": call["function"]["name"], "arguments": arguments}}


def _written(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _led(messages: Sequence[Json]) -> tuple[Any, Sequence[Json]]:
    """The text that leads a history, and the rest of it."""
    if messages and messages[0]["role"] in _SYSTEM:
        return messages[0]["content"], messages[1:]
    return None, messages


class _Ids:
    """Names each call anew where its id was used before; the results of a call follow it."""

    def __init__(self) -> None:
        self._times: dict[str, int] = {}

    def called(self, id_: str) -> str:
        self._times[id_] = self._times.get(id_, -1) + 1
        return self.newest(id_)

    def newest(self, id_: str) -> str:
        times = self._times.get(id_, 0)
        return f"{id_}{_AGAIN}{times}" if times else id_


def _before(id_: str) -> str:
    return id_.partition(_AGAIN)[0]


# --- Anthropic Messages ---


def to_anthropic(chat: Json) -> Json:
    """A session or request of chat completions as one of Anthropic Messages."""
    lead, rest = _led(chat["messages"])
    body = {key: chat[key] for key in _SAME if key in chat}
    if lead is not None:
        body["system"] = lead if isinstance(lead, str) else [_block(part) for part in lead]
    if chat.get("tools"):
        body["tools"] = [_anthropic_tool(tool["function"]) for tool in chat["tools"]]
    return body | {"messages": list(_anthropic_messages(rest, _Ids()))}


def _anthropic_tool(function: Json) -> Json:
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    return {key: function[key] for key in ("name", "description") if key in function} | {"input_schema": schema}


def _anthropic_messages(messages: Iterable[Json], ids: _Ids) -> Iterator[Json]:
    results: list[Json] = []
    for message in messages:
        if message["role"] == "tool":
            results.append(_tool_result(message, ids))
        elif message["role"] == "assistant":
            yield from _user(results)
            yield from _native(message, ids) or [{"role": "assistant", "content": _said(message, ids)}]
            results = []
        elif results:
            yield from _user([*results, *_blocks(message["content"])])
            results = []
        else:
            yield {"role": message["role"], "content": _text_or(_block, message["content"])}
    yield from _user(results)


def _native(message: Json, ids: _Ids) -> list[Json]:
    """What an agent kept of a reply as it was."""
    kept: list[Json] = message.get("native", [])
    for call in message.get("tool_calls", ()) if kept else ():
        ids.called(call["id"])
    return kept


def _user(blocks: list[Json]) -> Iterator[Json]:
    if blocks:
        yield {"role": "user", "content": blocks}


def _text_or(write: Callable[[Json], Json], content: Any) -> Any:
    return [write(part) for part in content] if isinstance(content, list) else content


def _tool_result(message: Json, ids: _Ids) -> Json:
    content = _text_or(_block, message["content"])
    return {"type": "tool_result", "tool_use_id": ids.newest(message["tool_call_id"]), "content": content}


def _said(message: Json, ids: _Ids) -> list[Json]:
    return [*_blocks(message.get("content")), *(_tool_use(call, ids) for call in message.get("tool_calls") or ())]


def _blocks(content: Any) -> list[Json]:
    if isinstance(content, list):
        return [_block(part) for part in content]
    return [{"type": "text", "text": content}] if content else []


def _block(part: Json) -> Json:
    if part["type"] != "image_url":
        return part
    url = part["image_url"]["url"]
    if not url.startswith(_DATA):
        return {"type": "image", "source": {"type": "url", "url": url}}
    kind, _, pixels = url.removeprefix(_DATA).partition(";base64,")
    return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": pixels}}


def _tool_use(call: Json, ids: _Ids) -> Json:
    given = json.loads(call["function"]["arguments"])
    return {"type": "tool_use", "id": ids.called(call["id"]), "name": call["function"]["name"], "input": given}


def from_anthropic(body: Json) -> Json:
    """The way back."""
    chat = {key: body[key] for key in _SAME if key in body}
    lead = [{"role": "system", "content": _text_or(_part, body["system"])}] if "system" in body else []
    if body.get("tools"):
        chat["tools"] = [_chat_tool(tool, tool["input_schema"]) for tool in body["tools"]]
    return chat | {"messages": [*lead, *(found for message in body["messages"] for found in _chat_messages(message))]}


def _chat_tool(tool: Json, schema: Json) -> Json:
    known = {key: tool[key] for key in ("name", "description") if key in tool}
    return {"type": "function", "function": {**known, "parameters": schema}}


def _chat_messages(message: Json) -> Iterator[Json]:
    content = message["content"]
    if isinstance(content, str):
        yield {"role": message["role"], "content": content}
        return
    results = [block for block in content if block["type"] == "tool_result"]
    calls = [_chat_call(block) for block in content if block["type"] == "tool_use"]
    words = [_part(block) for block in content if block["type"] in ("text", "image")]
    for block in results:
        yield _chat_result(_before(block["tool_use_id"]), _text_or(_part, block["content"]))
    if words or not results:
        yield _chat_message(message["role"], words, calls, len(words) == len(content) and message["role"] == "user")


def _chat_result(id_: str, content: Any) -> Json:
    return {"role": "tool", "tool_call_id": id_, "content": content}


def _chat_message(role: str, parts: list[Json], calls: list[Json], listed: bool) -> Json:
    """One text is a string, but where it stood `listed`."""
    alone = not listed and len(parts) <= 1 and all(part["type"] == "text" for part in parts)
    content = (parts[0]["text"] if parts else None) if alone else parts
    return {"role": role, "content": content} | ({"tool_calls": calls} if calls else {})


def _chat_call(block: Json) -> Json:
    function = {"name": block["name"], "arguments": _written(block["input"])}
    return {"id": _before(block["id"]), "type": "function", "function": function}


def _part(block: Json) -> Json:
    if block["type"] != "image":
        return block
    source = block["source"]
    url = source["url"] if source["type"] == "url" else f"{_DATA}{source['media_type']};base64,{source['data']}"
    return {"type": "image_url", "image_url": {"url": url}}


# --- OpenAI Responses ---


def to_responses(chat: Json) -> Json:
    """A session or request of chat completions as one of Responses."""
    lead, rest = _led(chat["messages"])
    body = {key: chat[key] for key in _SAME if key in chat}
    if isinstance(lead, str):
        body["instructions"] = lead
    if chat.get("tools"):
        body["tools"] = [{"type": "function", "strict": False, **tool["function"]} for tool in chat["tools"]]
    ids = _Ids()
    history = rest if isinstance(lead, str) or lead is None else chat["messages"]
    items = (_native(message, ids) or _items(message, at, ids) for at, message in enumerate(history))
    return body | {"input": list(chain.from_iterable(items))}


def _items(message: Json, at: int, ids: _Ids) -> Iterator[Json]:
    content = message.get("content")
    if message["role"] == "tool":
        output = _text_or(_input, content)
        yield {"type": "function_call_output", "call_id": ids.newest(message["tool_call_id"]), "output": output}
    elif message["role"] != "assistant":
        yield {"type": "message", "role": message["role"], "content": _text_or(_input, content)}
    else:
        if content:
            yield _output_message(f"msg_{at}_{crc32(repr(content).encode('utf-8', 'replace')):x}", content)
        for call in message.get("tool_calls") or ():
            yield {"type": "function_call", "call_id": ids.called(call["id"]), **call["function"]}


def _output_message(id_: str, content: Any) -> Json:
    texts = [content] if isinstance(content, str) else [part["text"] for part in content]
    parts = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    return {"type": "message", "id": id_, "role": "assistant", "status": "completed", "content": parts}


def _input(part: Json) -> Json:
    if part["type"] == "image_url":
        return {"type": "input_image", "image_url": part["image_url"]["url"], "detail": "auto"}
    return {"type": "input_text", "text": part["text"]}


def from_responses(body: Json) -> Json:
    """The way back. What the model made one item after the other is one message of its, but for texts whose ids
    (`_output_message`) say that they come from two messages."""
    chat = {key: body[key] for key in _SAME if key in body}
    messages = [{"role": "system", "content": body["instructions"]}] if "instructions" in body else []
    if body.get("tools"):
        chat["tools"] = [_chat_tool(tool, tool["parameters"]) for tool in body["tools"]]
    reply: list[Json] = []
    for item in body["input"]:
        if _is_made(item):
            if reply and _OF_ONE_MESSAGE.fullmatch(item.get("id", "")):
                messages += _reply(reply)
                reply = []
            reply.append(item)
            continue
        messages += [*_reply(reply), _given(item)]
        reply = []
    return chat | {"messages": [*messages, *_reply(reply)]}


def _is_made(item: Json) -> bool:
    return item["type"] in ("function_call", "reasoning") or item.get("role") == "assistant"


def _reply(items: Sequence[Json]) -> Iterator[Json]:
    spoken = (item for item in items if item["type"] == "message")
    contents = [item["content"] for item in spoken]
    parts = [
        {"type": "text", "text": part["text"]}
        for content in contents
        for part in ([{"text": content}] if isinstance(content, str) else content)
    ]
    calls = [_responses_call(item) for item in items if item["type"] == "function_call"]
    if items:
        yield _chat_message("assistant", parts, calls, listed=False)


def _responses_call(item: Json) -> Json:
    function = {"name": item["name"], "arguments": item["arguments"]}
    return {"id": _before(item["call_id"]), "type": "function", "function": function}


def _given(item: Json) -> Json:
    if item["type"] == "function_call_output":
        return _chat_result(_before(item["call_id"]), _text_or(_output, item["output"]))
    return {"role": item["role"], "content": _text_or(_output, item["content"])}


def _output(part: Json) -> Json:
    if part["type"] == "input_image":
        return {"type": "image_url", "image_url": {"url": part["image_url"]}}
    return {"type": "text", "text": part["text"]}


def _itself(chat: Json) -> Json:
    return {**chat, "messages": [entry for message in chat["messages"] for entry in message.get("native", [message])]}


FORMS: Mapping[str, Callable[[Json], Json]] = {
    "openai_chat": _itself,
    "anthropic_messages": to_anthropic,
    "openai_responses": to_responses,
}
"""From chat completions to each form."""
BACK: Mapping[str, Callable[[Json], Json]] = {
    "openai_chat": _itself,
    "anthropic_messages": from_anthropic,
    "openai_responses": from_responses,
}
