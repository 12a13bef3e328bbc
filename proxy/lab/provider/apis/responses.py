"""The Responses API (types of the official SDK: Response, ResponseStreamEvent): how items are read as a prompt, what a
strict provider answers with 400, its replies, and those it stores.

Laws
  Neighbouring items of the model are one message.
  What the API is documented or reported to refuse is refused, in its words: by its reference or the errors that its
  users report. Everything else is let pass; items of unknown types are.
  Ids name the reply they come from: a reasoning item and what follows it have the same name in theirs.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, pairwise
from typing import Any, ClassVar

from policies.dialects.openai_responses import OPENAI_RESPONSES
from policies.money.caches import CacheRule
from policies.tools import SEARCH
from proxy.lab.provider import jsontext
from proxy.lab.provider.answers import CREATED, Json, ModelReply, Say, call_texts, pieces_of
from proxy.lab.provider.api import (
    ANYTHING,
    BREAKPOINT,
    MAX_TOOLS,
    Api,
    Check,
    ClientApi,
    StoredObjects,
    Violation,
    Violations,
    cache_options,
    check_breakpoint,
    holds_object,
    invalid,
    mapping,
    misfits,
    missing,
    model_named,
    unknown,
    wrong_type,
)
from proxy.lab.provider.apis import searches
from proxy.lab.provider.prompt import (
    AUDIO,
    FILE,
    IMAGE,
    MARKS,
    PromptMessage,
    PromptPiece,
    call_piece,
    marks_of,
    part_piece,
    tool_piece,
    unmarked,
)
from proxy.lab.provider.signatures import REASONING, seal, unseal

CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
"""The field of each kind of call that holds what the tool is called with."""
OUTPUTS = {"function_call_output": "function_call", "custom_tool_call_output": "custom_tool_call"}
_ANSWERED = {**OUTPUTS, "tool_search_output": "tool_search_call"}
"""Which kind of call each kind of output answers."""
NEEDS_REASONING = "r"
"""The end of the id of an item that must not come back without the reasoning before it."""
_ID = re.compile(rf"[a-z]+_([0-9a-f]{{24}})[0-9a-f]*({NEEDS_REASONING}?)")
_TEXTS = {"input_text": "text", "output_text": "text", "text": "text"}
_SIZES = {"input_image": IMAGE, "input_file": FILE, "input_audio": AUDIO}
_MESSAGE_FIELDS = frozenset({"type", "id", "status", "role", "content"}) | MARKS
_IGNORED = frozenset({"annotations", "logprobs"}) | MARKS


def items(body: Json) -> list[Json]:
    """The items of the input: a string is short for one."""
    value = body.get("input")
    if isinstance(value, list):
        return value
    return [{"role": "user", "content": value}] if value is not None else []


def kind_of(item: Json) -> str:
    """The type of an item: a message may leave it out."""
    kind: str = item.get("type", "message")
    return kind


def is_of_model(item: Json) -> bool:
    kind = kind_of(item)
    if kind == "message":
        return bool(item.get("role") == "assistant")
    return not kind.endswith(("_output", "_response")) and kind not in ("item_reference", "additional_tools")


def origin(item: Json) -> tuple[str, bool]:
    """The reply that an item comes from, "" where the id is not one of this provider's; and whether the item needs the
    reasoning before it. Ids say both."""
    match = _ID.fullmatch(item.get("id") or "")
    return (match[1], bool(match[2])) if match else ("", False)


def thought_in(item: Json) -> str:
    """The thought in a reasoning item; empty where its encrypted content is not this provider's."""
    return unseal(REASONING, item.get("encrypted_content")) or ""


def message_of(item: Json) -> PromptMessage:
    kind, joins = kind_of(item), is_of_model(item)
    if kind == "message":
        extras = {key: value for key, value in item.items() if key not in _MESSAGE_FIELDS and value is not None}
        return PromptMessage(item["role"], tuple(_pieces(item["content"])), None, extras, joins=joins)
    if kind in CALLS:
        call = call_piece(item["call_id"], item["name"], item[CALLS[kind]])
        return PromptMessage("assistant", (call,), joins=True)
    if kind in OUTPUTS:
        return PromptMessage("tool", tuple(_pieces(item["output"])), item["call_id"])
    if kind in searches.SEARCHES:
        return searches.search_message(item)
    if kind == "reasoning":
        piece = PromptPiece("thinking", thought_in(item))
    else:  # an item that is compared as a whole
        plain = {key: value for key, value in item.items() if key not in ("id", "status")}
        piece = PromptPiece(kind, "", plain, (jsontext.write(plain).decode(),))
    return PromptMessage("assistant" if joins else "tool", (piece,), item.get("call_id"), joins=joins)


def _pieces(content: Any) -> Iterable[PromptPiece]:
    if isinstance(content, str):
        return (PromptPiece("text", content),)
    return (part_piece(part, _TEXTS, _SIZES, _IGNORED) for part in content)


# --- the body's own fields ---

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]+")
FIELDS: Mapping[str, str] = {
    "input": "a string or an array of items",
    "instructions": "a string",
    "tools": "an array",
    "include": "an array",
    "stream": "a boolean",
    "store": "a boolean",
    "background": "a boolean",
    "parallel_tool_calls": "a boolean",
    "max_output_tokens": "a positive integer",
    "temperature": "a number",
    "top_p": "a number",
    "reasoning": "an object",
    "text": "an object",
    "stream_options": "an object",
    "prompt_cache_options": "an object",
    "previous_response_id": "a string",
}
ALL_FIELDS = frozenset(FIELDS) | {
    # the other parameters of the official SDK, and one that the official command-line agent sends
    "access_programs", "background_options", "client_metadata", "context_management", "conversation", "image",
    "max_tool_calls", "metadata", "model", "moderation", "personality", "prompt", "prompt_cache_key",
    "prompt_cache_retention", "safety_identifier", "service_tier", "tool_choice", "top_logprobs", "truncation", "user",
}  # fmt: skip
INCLUDABLE = frozenset({
    # the values of the official SDK's ResponseIncludable
    "file_search_call.results", "web_search_call.results", "web_search_call.action.sources",
    "message.input_image.image_url", "computer_call_output.output.image_url", "code_interpreter_call.outputs",
    "reasoning.encrypted_content", "message.output_text.logprobs",
})  # fmt: skip


def _has_more(body: Json) -> bool:
    """True where some of the history may stand elsewhere than in the input."""
    return any(body.get(name) is not None for name in ("previous_response_id", "conversation", "prompt"))


def _fields(body: Json, _: CacheRule) -> Violations:
    yield from (unknown(name) for name in body.keys() - ALL_FIELDS)
    yield from misfits(body, FIELDS)
    if body.get("input") is None and not _has_more(body):
        yield missing("input")
    for value in body.get("include") or ():
        if value not in INCLUDABLE:
            yield Violation(f"Invalid value: '{value}'.", "include", "invalid_value")
    if body.get("previous_response_id") is not None and body.get("conversation") is not None:
        why = "'previous_response_id' and 'conversation' are mutually exclusive."
        yield Violation(why, None, "mutually_exclusive_parameters")


# --- each item by itself ---

LONGEST_ID = 64
ID_PREFIXES = {"message": "msg", "function_call": "fc", "reasoning": "rs"}
_COMMON = frozenset({"type", "id", "status"})
ITEM_FIELDS: Mapping[str, frozenset[str]] = {
    # the fields of the official SDK's types, for the items that have no others
    "message": _COMMON | {"role", "content", "phase"},
    "function_call": _COMMON | {"call_id", "name", "arguments", "namespace", "caller", "async"},
    "function_call_output": _COMMON | {"call_id", "output", "name", "namespace", "caller"},
    "custom_tool_call": _COMMON | {"call_id", "name", "input", "namespace", "caller"},
    "custom_tool_call_output": _COMMON | {"call_id", "output", "name", "namespace", "caller"},
    "reasoning": _COMMON | {"summary", "content", "encrypted_content"},
    **searches.SEARCHES,
}
PART_FIELDS: Mapping[str, frozenset[str]] = {
    "input_text": frozenset({"type", "text", BREAKPOINT}),
    "output_text": frozenset({"type", "text", "annotations", "logprobs"}),
    "refusal": frozenset({"type", "refusal"}),
}
INPUT_PARTS = ("input_text", "input_image", "input_file", "input_audio")
OUTPUT_PARTS = ("output_text", "refusal")
ROLES = {"user": INPUT_PARTS, "system": INPUT_PARTS, "developer": INPUT_PARTS, "assistant": OUTPUT_PARTS}


def _items(body: Json, _: CacheRule) -> Violations:
    for i, item in enumerate(items(body)):
        at = f"input[{i}]"
        if not isinstance(item, dict):
            yield wrong_type(at, "an object")
        elif not isinstance(item.get("type", ""), str):
            yield wrong_type(f"{at}.type", "a string")
        else:
            kind = kind_of(item)
            if kind in ITEM_FIELDS:
                yield from (unknown(f"{at}.{name}") for name in item.keys() - ITEM_FIELDS[kind])
            yield from _ids(item, kind, at)
            if kind == "message":
                role, content = item.get("role"), item.get("content")
                if role not in ROLES:
                    yield invalid(f"{at}.role", f"expected one of {', '.join(ROLES)}")
                elif content is None:
                    yield missing(f"{at}.content")
                elif not isinstance(content, str):
                    yield from _parts(content, ROLES[role], f"{at}.content")
            elif kind in CALLS:
                yield from _call(item, kind, at)
            elif kind in OUTPUTS:
                yield from _check_output(item, at)
            elif kind in searches.SEARCHES:
                yield from searches.check_search_item(item, at)
            elif kind == "reasoning" and not isinstance(item.get("summary"), list):
                yield missing(f"{at}.summary")


def _ids(item: Json, kind: str, at: str) -> Violations:
    for name in ("id", "call_id"):
        value = item.get(name)
        if isinstance(value, str) and len(value) > LONGEST_ID:
            why = f"Expected a string with maximum length {LONGEST_ID}, but got a string with length {len(value)}"
            why = f"Invalid '{at}.{name}': string too long. {why} instead."
            yield Violation(why, f"{at}.{name}", "string_above_max_length")
    own, prefix = item.get("id"), ID_PREFIXES.get(kind, "")
    if isinstance(own, str) and not own.startswith(prefix):
        why = f"Invalid '{at}.id': '{own}'. Expected an ID that begins with '{prefix}'."
        yield Violation(why, f"{at}.id", "invalid_value")


def _parts(parts: Any, allowed: tuple[str, ...], at: str) -> Violations:
    if not isinstance(parts, list):
        yield wrong_type(at, "a string or an array of parts")
        return
    for i, part in enumerate(parts):
        if not isinstance(part, dict):
            yield wrong_type(f"{at}[{i}]", "an object")
        elif part.get("type") not in allowed:
            why = f"Invalid value: '{part.get('type')}'. Supported values are: {', '.join(map(repr, allowed))}."
            yield Violation(why, f"{at}[{i}]", "invalid_value")
        elif part["type"] in PART_FIELDS:
            text = "refusal" if part["type"] == "refusal" else "text"
            if not isinstance(part.get(text), str):
                yield missing(f"{at}[{i}].{text}")
            yield from (unknown(f"{at}[{i}].{name}") for name in part.keys() - PART_FIELDS[part["type"]])


def _call(item: Json, kind: str, at: str) -> Violations:
    key = CALLS[kind]
    for name in ("call_id", "name", key):
        if item.get(name) is None:
            yield missing(f"{at}.{name}")
        elif not isinstance(item[name], str):
            yield wrong_type(f"{at}.{name}", "a string")
    if kind == "function_call" and not holds_object(item[key]):
        yield invalid(f"{at}.{key}", "it must be the text of a JSON object")


def _check_output(item: Json, at: str) -> Violations:
    if not isinstance(item.get("call_id"), str):
        yield missing(f"{at}.call_id")
    if item.get("output") is None:
        yield missing(f"{at}.output")
    elif not isinstance(item["output"], str):
        yield from _parts(item["output"], INPUT_PARTS, f"{at}.output")


# --- the items in their order ---


def _order(body: Json, _: CacheRule) -> Violations:
    """Each output answers a call before it, if that must stand here; each call is answered once; no item repeats."""
    waiting: dict[tuple[str, str], None] = {}
    for item in items(body):
        kind = kind_of(item)
        if kind in CALLS or (kind == "tool_search_call" and item.get("execution") == "client"):
            waiting[kind, item["call_id"]] = None
        elif kind in _ANSWERED and item.get("call_id") is not None:
            called, call_id = _ANSWERED[kind], item["call_id"]
            if (called, call_id) not in waiting and not _has_more(body):
                why = f"No tool call found for {called.replace('_', ' ')} output with call_id {call_id}."
                yield Violation(why, "input")
            waiting.pop((called, call_id), None)
    for kind, call_id in waiting:
        yield Violation(f"No tool output found for {kind.replace('_', ' ')} {call_id}.", "input")
    ids = set[str]()
    for item in items(body):
        own = item.get("id")
        if isinstance(own, str) and kind_of(item) != "item_reference" and own in ids:
            why = f"Duplicate item found with id {own}. Remove duplicate items from your input and try again."
            yield Violation(why, "input")
        ids |= {own} if isinstance(own, str) else set()


def _reasoning(body: Json, _: CacheRule) -> Violations:
    """Reasoning comes back as it was, before the item of the same reply that it led to; where ids do not tell the
    reply, before any item of the model."""
    history = items(body)
    for item, following in pairwise([*history, {}]):
        if kind_of(item) != "reasoning":
            continue
        content = item.get("encrypted_content")
        if content is not None and unseal(REASONING, content) is None:
            why = f"The encrypted content {content[:4]}...{content[-4:]} could not be verified."
            yield Violation(why, None, "invalid_encrypted_content")
        if not is_of_model(following) or len({origin(item)[0], origin(following)[0]} - {""}) > 1:
            why = f"Item '{item.get('id')}' of type 'reasoning' was provided without its required following item."
            yield Violation(why, "input")
    for before, item in pairwise([{}, *history]):
        reply, needs_reasoning = origin(item)
        if needs_reasoning and not (kind_of(before) == "reasoning" and origin(before)[0] in ("", reply)):
            why = f"Item '{item['id']}' of type '{kind_of(item)}' was provided without its required 'reasoning' item."
            yield Violation(why, "input")


# --- tools and cache marks ---


def _tools(body: Json, _: CacheRule) -> Violations:
    tools = body.get("tools") or ()
    if len(tools) > MAX_TOOLS:
        why = f"Invalid 'tools': array too long. Expected an array with maximum length {MAX_TOOLS}, but got an array"
        yield Violation(f"{why} with length {len(tools)} instead.", "tools", "array_above_max_length")
    for i, tool in enumerate(tools):
        at = f"tools[{i}]"
        if not isinstance(tool, dict):
            yield wrong_type(at, "an object")
        elif not isinstance(tool.get("type"), str):
            yield missing(f"{at}.type")
        elif tool["type"] in ("function", "custom"):
            if not isinstance(tool.get("name"), str):
                yield missing(f"{at}.name")
            elif not TOOL_NAME.fullmatch(tool["name"]):
                why = f"Invalid '{at}.name': string does not match pattern. Expected a string that matches the pattern"
                yield Violation(f"{why} '^{TOOL_NAME.pattern}$'.", f"{at}.name", "invalid_value")
            if tool.get("parameters") is not None and not isinstance(tool["parameters"], dict):
                yield wrong_type(f"{at}.parameters", "an object")


def _breakpoints(body: Json, rule: CacheRule) -> Violations:
    for i, item in enumerate(items(body)):
        for field in ("content", "output"):
            parts = item.get(field)
            for j, part in enumerate(map(mapping, parts) if isinstance(parts, list) else ()):
                allowed = rule.mark == BREAKPOINT and str(part.get("type")).startswith("input_")
                yield from check_breakpoint(f"input[{i}].{field}[{j}]", part, allowed)


_ITEMS: tuple[Check, ...] = (_fields, _items, _tools, _order, searches.check_searches, _reasoning)
CHECKS: tuple[Check, ...] = (model_named, *_ITEMS, _breakpoints, cache_options)


INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""By `finish_reason`: why a response is incomplete."""
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
"""Fields that a response repeats of its request, and their values where that has none."""


CLIENT = ClientApi(
    OPENAI_RESPONSES,
    options={"store": False, "stream": True},
    tool=lambda name: {"type": "function", "name": name, "parameters": ANYTHING, "strict": False},
)


class OpenAIResponses(Api):
    client = CLIENT
    path = "/v1/responses"
    counting_path = "/v1/responses/input_tokens"
    counting_fields: ClassVar[Json] = {"object": "response.input_tokens"}
    checks = counting_checks = CHECKS

    def overflow(self, tokens: int, window: int) -> Violation:
        why = "Your input exceeds the context window of this model. Please adjust your input and try again."
        return Violation(why, "input", "context_length_exceeded")

    def resolve(self, body: Json, stored: StoredObjects) -> Json | Violation:
        """With the history that it continues, and with the items that it only names."""
        name = body.get("previous_response_id")
        earlier = stored(name) if name is not None else {"input": [], "output": []}
        if earlier is None:
            why = f"Previous response with id '{name}' not found."
            return Violation(why, "previous_response_id", "previous_response_not_found")
        history = [*earlier["input"], *earlier["output"]]
        for item in items(body):
            kind = kind_of(item)
            by_id = kind == "item_reference" or (kind == "reasoning" and item.get("encrypted_content") is None)
            full = stored(str(item.get("id"))) if by_id else item
            if full is None:
                why = f"Item with id '{item.get('id')}' not found."
                return Violation(f"{why} Items are not persisted when `store` is set to false.", "input", status=404)
            history.append(full)
        if history == body.get("input"):
            return body
        return {key: value for key, value in body.items() if key != "previous_response_id"} | {"input": history}

    def entries(self, body: Json) -> list[Json]:
        instructions = body.get("instructions")
        return [*([{"role": "system", "content": instructions}] if instructions else []), *items(body)]

    def messages(self, entry: Json) -> tuple[PromptMessage, ...]:
        return (message_of(entry),)

    def tool(self, definition: Json) -> PromptPiece:
        plain = unmarked(definition)
        kind = plain.pop("type")
        inner = {kind: plain} if kind in ("function", "custom") else plain
        return tool_piece({"type": kind, **inner}, marks_of(definition))

    def adapt(self, say: Say, body: Json) -> Say:
        """Where only the cache is to be prepared there is no output."""
        return Say(wire=say.wire) if mapping(body.get("prompt_cache_options")).get("prewarm") is True else say

    def json_reply(self, reply: ModelReply) -> Json:
        reason = INCOMPLETE.get(reply.say.finish_reason)
        return _begin(reply) | {
            "status": "incomplete" if reason else "completed",
            "incomplete_details": {"reason": reason} if reason else None,
            "output": list(_output(reply)),
            "usage": _usage(reply),
        }

    def events(self, reply: ModelReply) -> Iterator[dict[str, Any]]:
        return ({**event, "sequence_number": at} for at, event in enumerate(self._events(reply)))

    def _events(self, reply: ModelReply) -> Iterator[dict[str, Any]]:
        yield {"type": "response.created", "response": _begin(reply)}
        yield {"type": "response.in_progress", "response": _begin(reply)}
        for index, item in enumerate(_output(reply)):
            blank = {"content": [], "summary": [], "arguments": "", "input": "", "encrypted_content": ""}
            added = {**item, **{key: value for key, value in blank.items() if isinstance(item.get(key), type(value))}}
            if "status" in item:
                added["status"] = "in_progress"
            yield {"type": "response.output_item.added", "output_index": index, "item": added}
            for event in _deltas(item, reply.say.pieces):
                yield {**event, "item_id": item["id"], "output_index": index}
            yield {"type": "response.output_item.done", "output_index": index, "item": item}
        response = self.json_reply(reply)
        yield {"type": f"response.{response['status']}", "response": response}

    def objects_to_store(self, reply: ModelReply, resolved: Json) -> dict[str, Json]:
        """The response and its items, unless the request has `store` set to false."""
        if reply.request.get("store") is False:
            return {}
        response = self.json_reply(reply)
        return {
            response["id"]: {**response, "input": items(resolved)},
            **{item["id"]: item for item in response["output"]},
        }

    def recorded_answers(self, history: Sequence[Json]) -> list[Say]:
        """Neighbouring items of the model are one answer."""
        return [_recorded(list(run)) for of_model, run in groupby(history, is_of_model) if of_model]


def _begin(reply: ModelReply) -> dict[str, Any]:
    echoed = {key: reply.request[key] for key in _ECHOED if reply.request.get(key) is not None}
    return {
        "id": reply.id("resp_"),
        "object": "response",
        "created_at": CREATED,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "model": reply.request["model"],
        "output": [],
        "usage": None,
        **_ECHOED,
        **echoed,
    }


def _usage(reply: ModelReply) -> dict[str, Any]:
    usage = reply.usage
    written = {"ttl_12h_tokens": usage.written_longer, "ttl_30m_tokens": usage.written - usage.written_longer}
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {
            "cached_tokens": usage.cached,
            "cache_write_tokens": usage.written,
            "cache_write_tokens_details": written,
        },
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": reply.reasoning_tokens},
        "total_tokens": usage.prompt + usage.completion,
    }


# --- items of a reply, and how they grow in a stream ---


def _output(reply: ModelReply) -> Iterator[dict[str, Any]]:
    """The items of a reply. Where the model thought, the first item after that needs the reasoning before it."""
    say, name, tools = reply.say, reply.id(""), reply.request.get("tools") or ()
    kinds, names = {tool["type"] for tool in tools}, {tool.get("name") for tool in tools}
    history = reply.request.get("input")
    namespaces = searches.loaded_by(*history) - names if isinstance(history, list) else set()
    summarized = bool(mapping(reply.request.get("reasoning")).get("summary"))
    for at, thought in enumerate(say.thinking):
        summary = [{"type": "summary_text", "text": thought}] if summarized else []
        sealed = seal(REASONING, thought)
        yield {"id": f"rs_{name}{at:02x}", "type": "reasoning", "summary": summary, "encrypted_content": sealed}
    needs = NEEDS_REASONING if say.thinking else ""
    if say.content is not None:
        part = {"type": "output_text", "text": say.content, "annotations": [], "logprobs": []}
        head = {"id": f"msg_{name}{needs}", "type": "message", "status": "completed"}
        yield {**head, "role": "assistant", "content": [part]}
        needs = ""
    for at, call in enumerate(say.calls):
        tool, text = call_texts(call)
        if tool == SEARCH and "tool_search" in kinds:
            yield searches.search_call(f"tsc_{name}{at:02x}{needs}", call["id"], text)
            continue
        loaded = {"namespace": tool} if tool in namespaces else {}
        kind, short = ("function_call", "fc") if call["type"] == "function" else ("custom_tool_call", "ctc")
        head = {"id": f"{short}_{name}{at:02x}{needs}", "type": kind, "status": "completed"}
        yield {**head, "call_id": call["id"], "name": tool, **loaded, CALLS[kind]: text}
        needs = ""


def _deltas(item: Json, pieces: int) -> Iterator[dict[str, Any]]:
    """The events of a stream between the beginning of an item and its end."""
    if item["type"] == "message":
        at = {"content_index": 0}
        yield from _part(item["content"][0], at, "content_part", "output_text", {"logprobs": []}, pieces)
    elif item["type"] == "reasoning":
        for index, part in enumerate(item["summary"]):
            at = {"summary_index": index}
            yield from _part(part, at, "reasoning_summary_part", "reasoning_summary_text", {}, pieces)
    elif item["type"] in CALLS:
        key = CALLS[item["type"]]
        kind = f"response.{item['type']}_{key}"
        for piece in pieces_of(item[key], pieces):
            yield {"type": f"{kind}.delta", "delta": piece}
        yield {"type": f"{kind}.done", key: item[key]}


def _part(part: Json, at: Json, kind: str, text_kind: str, more: Json, pieces: int) -> Iterator[dict[str, Any]]:
    yield {"type": f"response.{kind}.added", **at, "part": {**part, "text": ""}}
    for piece in pieces_of(part["text"], pieces):
        yield {"type": f"response.{text_kind}.delta", **at, "delta": piece, **more}
    yield {"type": f"response.{text_kind}.done", **at, "text": part["text"], **more}
    yield {"type": f"response.{kind}.done", **at, "part": part}


# --- recorded items ---


def _recorded(run: Sequence[Json]) -> Say:
    contents = [item["content"] for item in run if kind_of(item) == "message"]
    parts = [[{"text": content}] if isinstance(content, str) else content for content in contents]
    texts = [part.get("text", "") for part in chain.from_iterable(parts)]
    calls = []
    for item in run:
        if kind_of(item) in CALLS:
            kind, key = ("function", "arguments") if kind_of(item) == "function_call" else ("custom", "input")
            calls.append({"id": item["call_id"], "type": kind, kind: {"name": item["name"], key: item[key]}})
    thoughts = [
        thought_in(item) or "".join(part["text"] for part in item.get("summary") or ())
        for item in run
        if kind_of(item) == "reasoning"
    ]
    return Say("".join(texts) if texts else None, tuple(calls), thinking=tuple(thoughts))
