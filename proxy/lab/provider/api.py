"""An API of the built-in provider: how its clients write, its rules, its prompts, its replies. One subclass
each.

What two of the APIs have in common is the default here; what is an API's own stands in its package.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from multidict import MultiMapping

from policies.dialects import Dialect
from proxy.lab.provider import jsontext
from proxy.lab.provider.answers import (
    JSON_REPLY,
    STREAMING,
    Json,
    ModelReply,
    ProviderReply,
    Say,
    http_reply,
    server_sent_event,
)
from proxy.lab.provider.prompt import PromptMessage, PromptPiece
from proxy.lab.provider.rules import Check, Violation

MARK = {"cache_control": {"type": "ephemeral"}}
ANYTHING = {"type": "object", "properties": {}}
_TEXT_FIELDS = {"text": "text", "tool_result": "content"}
"""Parts that can carry a mark where this field is not empty."""
_WITHOUT_TEXT = ("tool_use", "image", "document")
"""Parts that can always carry one."""


@dataclass(frozen=True, slots=True)
class ClientApi:
    dialect: Dialect
    options: Json
    """Other fields of each request of a replay: it streams, and wants to know its usage."""
    tool: Callable[[str], Json]
    """The barest definition of a tool of this name."""
    marked: Callable[[Json], Json] = lambda body: body
    """The request with cache marks where real clients set them."""


def newest_marked(messages: Sequence[Json]) -> Sequence[Json]:
    """With a mark on the last block that can carry one, as far back as that may be: an empty result cannot."""
    for at in reversed(range(len(messages))):
        content = messages[at].get("content")
        if (with_mark := marked(content)) is not content:
            return [*messages[:at], {**messages[at], "content": with_mark}, *messages[at + 1 :]]
    return messages


def marked(content: Any) -> Any:
    """With a mark on its last part that can carry one; as it is where none can."""
    if isinstance(content, str) and content:
        return [{"type": "text", "text": content, **MARK}]
    for at in reversed(range(len(content))) if isinstance(content, list) else ():
        part = content[at]
        kind = part.get("type", "")
        if kind in _WITHOUT_TEXT or part.get(_TEXT_FIELDS.get(kind, "")):
            return [*content[:at], {**part, **MARK}, *content[at + 1 :]]
    return content


# --- the API itself ---

StoredObjects = Callable[[str], Json | None]
"""The replies and items that the provider stored for this client, by id."""


class Api(ABC):
    client: ClassVar[ClientApi]
    path: ClassVar[str]
    counting_path: ClassVar[str] = ""
    """Where it counts the tokens of a request; empty where it does not."""
    counting_fields: ClassVar[Json] = {}
    """Fields of the answer to that besides the number."""
    checks: ClassVar[tuple[Check, ...]]
    """Rules of a request, in this order."""
    counting_checks: ClassVar[tuple[Check, ...]] = ()
    request_id_header: ClassVar[str] = "x-request-id"
    choices_field: ClassVar[str] = ""
    """Says how many answers a request wants at once; empty where it can have one alone."""
    has_top_mark: ClassVar[bool] = False
    """A mark on the request as a whole comes to stand at the last block that can carry it."""
    stream_end: ClassVar[tuple[bytes, ...]] = ()

    # --- requests ---

    def missing_header(self, body: Json, headers: MultiMapping[str]) -> Violation | None:
        """Why a request is refused for its headers."""
        return None

    @abstractmethod
    def overflow(self, tokens: int, window: int) -> Violation:
        """The prompt does not fit the window."""

    def error_body(self, violation: Violation) -> bytes:
        """The body of an error reply; by default in the shape of OpenAI's APIs."""
        error = {"message": violation.message, "type": "invalid_request_error"}
        return jsontext.write({"error": {**error, "param": violation.param, "code": violation.code}})

    def resolve(self, body: Json, stored: StoredObjects) -> Json | Violation:
        """The request with everything in it that it refers to by id, or why that cannot be."""
        return body

    # --- prompts ---

    def entries(self, body: Json) -> Iterable[Json]:
        """The raw messages or items, in order; the first of them leads the prompt."""
        messages: list[Json] = body["messages"]
        return messages

    @abstractmethod
    def messages(self, entry: Json) -> Iterable[PromptMessage]:
        """The messages that one of them is."""

    @abstractmethod
    def tool(self, definition: Json) -> PromptPiece:
        """A tool's definition, in the shape of chat completions: the same tool is the same piece in every API."""

    # --- replies ---

    def adapt(self, say: Say, body: Json) -> Say:
        """The model's reply to such a request where a script has it say this."""
        return say

    @abstractmethod
    def json_reply(self, reply: ModelReply) -> Json:
        """The reply as one object."""

    @abstractmethod
    def events(self, reply: ModelReply) -> Iterator[dict[str, Any]]:
        """The reply as the events of a stream; their `type` is also their name."""

    def objects_to_store(self, reply: ModelReply, resolved: Json) -> dict[str, Json]:
        """Objects that later requests may refer to, or clients get, by id."""
        return {}

    # --- recorded sessions ---

    @abstractmethod
    def recorded_answers(self, history: Sequence[Json]) -> list[Say]:
        """The model's answers in a recorded session, in order."""


def reply_by(api: Api, reply: ModelReply) -> ProviderReply:
    """The reply of an API as one object, or as a stream where the request wants one."""
    headers, wire = ((api.request_id_header, reply.id("req_")),), reply.say.wire
    if not reply.request.get("stream"):
        return http_reply(200, (*headers, *JSON_REPLY), (jsontext.write(api.json_reply(reply)),), wire)
    events = [server_sent_event(jsontext.write(event), wire, event.get("type", "")) for event in api.events(reply)]
    events += [server_sent_event(end, wire) for end in api.stream_end]
    return http_reply(200, (*headers, *STREAMING), events, wire, sized=False)
