"""What an API is to the built-in provider: its rules, its prompts, its replies. One subclass each.

What two of the APIs have in common is the default here; what is an API's own stands in its package.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

from multidict import MultiMapping

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
from proxy.lab.provider.client import ClientApi
from proxy.lab.provider.prompt import PromptMessage, PromptPiece
from proxy.lab.provider.rules import Check, Violation

StoredObjects = Callable[[str], Json | None]
"""The replies and items that the provider stored for this client, by id."""


class Api(ABC):
    client: ClassVar[ClientApi]
    """How its clients write."""
    path: ClassVar[str]
    """Where it answers."""
    counting_path: ClassVar[str] = ""
    """Where it counts the tokens of a request; empty where it does not."""
    counting_fields: ClassVar[Json] = {}
    """What the answer to that holds besides the number."""
    checks: ClassVar[tuple[Check, ...]]
    """What a request must satisfy, in this order."""
    counting_checks: ClassVar[tuple[Check, ...]] = ()
    """What a request must satisfy whose tokens are counted."""
    request_id_header: ClassVar[str] = "x-request-id"
    stream_end: ClassVar[tuple[bytes, ...]] = ()
    """What follows the last event of a stream."""

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

    def top_mark(self, body: Json) -> frozenset[str]:
        """The cache mark on the request as a whole."""
        return frozenset()

    # --- replies ---

    def adapt(self, say: Say, body: Json) -> Say:
        """What the model says to such a request where a script has it say this."""
        return say

    def choices(self, body: Json) -> int:
        """How many answers a request wants at once."""
        return 1

    @abstractmethod
    def json_reply(self, reply: ModelReply) -> Json:
        """The reply as one object."""

    @abstractmethod
    def events(self, reply: ModelReply) -> Iterator[dict[str, Any]]:
        """The reply as the events of a stream; their `type` is also their name."""

    def reply(self, reply: ModelReply) -> ProviderReply:
        """One object, or a stream where the request wants one."""
        headers, wire = ((self.request_id_header, reply.id("req_")),), reply.say.wire
        if not reply.request.get("stream"):
            return http_reply(200, (*headers, *JSON_REPLY), (jsontext.write(self.json_reply(reply)),), wire)
        events = [server_sent_event(jsontext.write(event), wire, event.get("type", "")) for event in self.events(reply)]
        events += [server_sent_event(end, wire) for end in self.stream_end]
        return http_reply(200, (*headers, *STREAMING), events, wire, sized=False)

    def objects_to_store(self, reply: ModelReply, resolved: Json) -> dict[str, Json]:
        """What later requests may refer to, or clients get, by its id."""
        return {}

    # --- recorded sessions ---

    @abstractmethod
    def recorded_answers(self, history: Sequence[Json]) -> list[Say]:
        """What the model says in a recorded session, one answer after the other."""

    def answers_in(self, body: Json) -> int:
        """How many answers of the model the history of a request holds."""
        return sum(1 for message in body["messages"] if message["role"] == "assistant")
