"""How a client of each API writes its requests, marks them for the cache, and proves who it is: one row each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from policies.dialects import DIALECTS
from policies.dialects.common import as_json
from policies.model.conversation import Message
from policies.money.budget import RESERVE

Json = Mapping[str, Any]
_MARK = {"cache_control": {"type": "ephemeral"}}
_ANYTHING = {"type": "object", "properties": {}}
_TEXT_FIELDS = {"text": "text", "tool_result": "content"}
"""Parts that can carry a mark where this field is not empty."""
_WITHOUT_TEXT = ("tool_use", "image", "document")
"""Parts that can always carry one."""


@dataclass(frozen=True, slots=True)
class ClientApi:
    """One API as its clients use it."""

    path: str
    """Where requests go, behind the base URL."""
    history: str
    """The field with the history."""
    lead: str
    """The field with the text that leads the prompt; empty where that is a message like any other."""
    options: Json
    """Other fields of each request of a replay: it streams, and wants to know its usage."""
    marked: Callable[[Json], Json]
    """The request with cache marks where real clients set them."""
    tool: Callable[[str], Json]
    """The barest definition of a tool of this name."""
    auth: Callable[[str], Mapping[str, str]]
    """The headers of a credential."""


def _chat_marked(body: Json) -> Json:
    """With marks on the first message, which is the system text where there is one, and on the newest that can carry
    one."""
    first, *others = body["messages"]
    return {**body, "messages": [{**first, "content": _marked(first.get("content"))}, *_newest_marked(others)]}


def _anthropic_marked(body: Json) -> Json:
    """With marks on the system text, the end of the tools, and the newest message that can carry one."""
    marked = {**body, "messages": _newest_marked(body["messages"])}
    if body.get("system"):
        marked["system"] = _marked(body["system"])
    if body.get("tools"):
        marked["tools"] = [*body["tools"][:-1], {**body["tools"][-1], **_MARK}]
    return marked


def _newest_marked(messages: Sequence[Json]) -> Sequence[Json]:
    """With a mark on the last block that can carry one, as far back as that may be: an empty result cannot."""
    for at in reversed(range(len(messages))):
        content = messages[at].get("content")
        if (marked := _marked(content)) is not content:
            return [*messages[:at], {**messages[at], "content": marked}, *messages[at + 1 :]]
    return messages


def _marked(content: Any) -> Any:
    """With a mark on its last part that can carry one; as it is where none can."""
    if isinstance(content, str) and content:
        return [{"type": "text", "text": content, **_MARK}]
    for at in reversed(range(len(content))) if isinstance(content, list) else ():
        part = content[at]
        kind = part.get("type", "")
        if kind in _WITHOUT_TEXT or part.get(_TEXT_FIELDS.get(kind, "")):
            return [*content[:at], {**part, **_MARK}, *content[at + 1 :]]
    return content


CLIENT_APIS: Mapping[str, ClientApi] = {
    "openai_chat": ClientApi(
        path="/chat/completions",
        history="messages",
        lead="",
        options={"stream": True, "stream_options": {"include_usage": True}},
        marked=_chat_marked,
        tool=lambda name: {"type": "function", "function": {"name": name, "parameters": _ANYTHING}},
        auth=lambda key: {"Authorization": f"Bearer {key}"},
    ),
    "openai_responses": ClientApi(
        path="/responses",
        history="input",
        lead="instructions",
        options={"store": False, "stream": True},
        marked=lambda body: body,  # the only marks that this API takes are of a cache that does without
        tool=lambda name: {"type": "function", "name": name, "parameters": _ANYTHING, "strict": False},
        auth=lambda key: {"Authorization": f"Bearer {key}"},
    ),
    "anthropic_messages": ClientApi(
        path="/messages",
        history="messages",
        lead="system",
        # a limit is required: what is left for an answer anyway, so that no session is planned by another one
        options={"max_tokens": RESERVE, "stream": True},
        marked=_anthropic_marked,
        tool=lambda name: {"name": name, "input_schema": _ANYTHING},
        auth=lambda key: {"x-api-key": key, "anthropic-version": "2023-06-01"},
    ),
}


def read(dialect: str, entry: object, count: Callable[[str], int] = len) -> Message:
    """An entry of a history."""
    return DIALECTS[dialect].read(as_json(entry), count)


def newest_reply(dialect: str, history: Sequence[object]) -> int:
    """Where the newest reply of the model begins; the end of the history where there is none."""

    def is_reply(entry: object) -> bool:
        return read(dialect, entry).role == "assistant"

    at = next((at for at in reversed(range(len(history))) if is_reply(history[at])), len(history))
    while 0 < at < len(history) and read(dialect, history[at]).partial and is_reply(history[at - 1]):
        at -= 1
    return at
