"""The Responses API (types of the official SDK: Response, ResponseStreamEvent): its replies, and those it stores.

Ids name the reply they come from: a reasoning item and what follows it have the same name in theirs.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from typing import Any, ClassVar

from policies.dialects.openai_responses import OPENAI_RESPONSES
from proxy.lab.provider.answers import CREATED, Json, ModelReply, Say, call_texts, pieces_of
from proxy.lab.provider.api import Api, StoredObjects
from proxy.lab.provider.client import ANYTHING, ClientApi
from proxy.lab.provider.prompt import PromptMessage, PromptPiece, marks_of, tool_piece, unmarked
from proxy.lab.provider.responses.items import (
    CALLS,
    NEEDS_REASONING,
    is_of_model,
    items,
    kind_of,
    message_of,
    thought_in,
)
from proxy.lab.provider.responses.rules import CHECKS
from proxy.lab.provider.rules import Violation, mapping
from proxy.lab.provider.signatures import REASONING, seal

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
"""What a response repeats of its request, and what it says where that says nothing."""


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
            added = {**item, **{key: value for key, value in blank.items() if key in item}}
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

    def answers_in(self, body: Json) -> int:
        return sum(1 for of_model, _ in groupby(items(body), is_of_model) if of_model)


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
    say, name = reply.say, reply.id("")
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
        kind, short = ("function_call", "fc") if call["type"] == "function" else ("custom_tool_call", "ctc")
        head = {"id": f"{short}_{name}{at:02x}{needs}", "type": kind, "status": "completed"}
        yield {**head, "call_id": call["id"], "name": tool, CALLS[kind]: text}
        needs = ""


def _deltas(item: Json, pieces: int) -> Iterator[dict[str, Any]]:
    """What happens in a stream between the beginning of an item and its end."""
    if item["type"] == "message":
        at = {"content_index": 0}
        yield from _part(item["content"][0], at, "content_part", "output_text", {"logprobs": []}, pieces)
    elif item["type"] == "reasoning":
        for index, part in enumerate(item["summary"]):
            at = {"summary_index": index}
            yield from _part(part, at, "reasoning_summary_part", "reasoning_summary_text", {}, pieces)
    else:
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
