"""Chat completions: how its messages are read and its replies are written. Thoughts are billed and not shown."""

from collections.abc import Iterator, Sequence
from typing import Any

from policies.dialects.openai_chat import OPENAI_CHAT
from proxy.lab.provider.answers import CALL_TEXTS, CREATED, Json, ModelReply, Say, call_texts, pieces_of
from proxy.lab.provider.api import Api
from proxy.lab.provider.chat.rules import CHECKS
from proxy.lab.provider.client import ANYTHING, ClientApi, marked, newest_marked
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
from proxy.lab.provider.rules import Violation

_FIELDS = frozenset({"role", "content", "tool_calls", "tool_call_id"}) | MARKS
_TEXTS = {"text": "text"}
_SIZES = {"image_url": IMAGE, "input_audio": AUDIO, "file": FILE}


def with_marks(body: Json) -> Json:
    """With marks on the first message, which is the system text where there is one, and on the newest that can carry
    one."""
    first, *others = body["messages"]
    return {**body, "messages": [{**first, "content": marked(first.get("content"))}, *newest_marked(others)]}


CLIENT = ClientApi(
    OPENAI_CHAT,
    options={"stream": True, "stream_options": {"include_usage": True}},
    tool=lambda name: {"type": "function", "function": {"name": name, "parameters": ANYTHING}},
    marked=with_marks,
)


class OpenAIChat(Api):
    client = CLIENT
    path = "/v1/chat/completions"
    checks = CHECKS
    stream_end = (b"[DONE]",)

    def overflow(self, tokens: int, window: int) -> Violation:
        why = f"This model's context window is {window} tokens, and the messages and tools hold {tokens}."
        return Violation(why, "messages", "context_length_exceeded")

    def messages(self, entry: Json) -> tuple[PromptMessage, ...]:
        extras = {key: value for key, value in entry.items() if key not in _FIELDS and value is not None}
        content, calls = entry.get("content"), entry.get("tool_calls") or ()
        pieces: list[PromptPiece] = []
        if isinstance(content, list):
            pieces = [part_piece(part, _TEXTS, _SIZES) for part in content]
        elif content or (content is not None and not calls):
            pieces = [PromptPiece("text", content)]
        pieces += (call_piece(call["id"], *call_texts(call), marks_of(call)) for call in calls)
        return (PromptMessage(entry["role"], tuple(pieces), entry.get("tool_call_id"), extras, marks_of(entry)),)

    def tool(self, definition: Json) -> PromptPiece:
        inner = definition[definition["type"]]
        plain = unmarked(definition) | {definition["type"]: unmarked(inner)}
        return tool_piece(plain, marks_of(definition) | marks_of(inner))

    def choices(self, body: Json) -> int:
        return body.get("n") or 1

    def json_reply(self, reply: ModelReply) -> Json:
        say = reply.say
        message: dict[str, Any] = {"role": "assistant", "content": say.content, "refusal": None}
        if say.calls:
            message["tool_calls"] = list(say.calls)
        choice = {"message": message, "logprobs": None, "finish_reason": say.finish_reason}
        choices = [{"index": index, **choice} for index in range(self.choices(reply.request))]
        return {**_head(reply), "object": "chat.completion", "choices": choices, "usage": _usage(reply)}

    def events(self, reply: ModelReply) -> Iterator[dict[str, Any]]:
        """Every chunk; where the request wants usage, all carry the field and one more fills it."""
        with_usage = bool((reply.request.get("stream_options") or {}).get("include_usage"))
        head = {**_head(reply), "object": "chat.completion.chunk"}
        tail: dict[str, Any] = {"usage": None} if with_usage else {}
        for index in range(self.choices(reply.request)):
            for delta, reason in _deltas(reply.say):
                choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
                yield {**head, "choices": [choice], **tail}
        if with_usage:
            yield {**head, "choices": [], "usage": _usage(reply)}

    def recorded_answers(self, history: Sequence[Json]) -> list[Say]:
        answers = []
        for message in history:
            if message["role"] == "assistant":
                content = message.get("content")
                if isinstance(content, list):  # an answer has no parts
                    content = "".join(part.get("text", "") for part in content)
                answers.append(Say(content, tuple(message.get("tool_calls") or ())))
        return answers


def _head(reply: ModelReply) -> Json:
    return {"id": reply.id("chatcmpl-"), "created": CREATED, "model": reply.request["model"]}


def _deltas(say: Say) -> Iterator[tuple[dict[str, Any], str | None]]:
    """What each chunk adds to the message, and the finish reason of the last."""
    yield {"role": "assistant", "content": "" if say.content is not None else None, "refusal": None}, None
    for text in pieces_of(say.content or "", say.pieces):
        yield {"content": text}, None
    for index, call in enumerate(say.calls):
        kind, key = call["type"], CALL_TEXTS[call["type"]]
        name, text = call_texts(call)
        yield {"tool_calls": [{"index": index, "id": call["id"], "type": kind, kind: {"name": name, key: ""}}]}, None
        for piece in pieces_of(text, say.pieces):
            yield {"tool_calls": [{"index": index, kind: {key: piece}}]}, None
    yield {}, say.finish_reason


def _usage(reply: ModelReply) -> dict[str, Any]:
    """Writes are reported as OpenAI does from GPT-5.6 on, and their lifetimes as LiteLLM does."""
    usage = reply.usage
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {
            "cached_tokens": usage.cached,
            "cache_write_tokens": usage.written,
            "cache_creation_token_details": reply.cache_creation,
            "audio_tokens": 0,
        },
        "completion_tokens_details": {"reasoning_tokens": reply.reasoning_tokens, "audio_tokens": 0},
    }
