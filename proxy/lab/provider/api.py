"""The common parts of the built-in provider's APIs: rules whose breach is answered with 400, how clients write, and
the class of an API. What is an API's own stands in its module.

Laws
  A request is judged by its body and by how its model's cache is marked, and by nothing else.
  The first violation in the order of an API's checks is the one reported; a check may rely on those before it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from multidict import MultiMapping

from policies.dialects import Dialect
from policies.money.caches import CacheRule
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

MAX_TOOLS = 128
MAX_MARKS = 4
BREAKPOINT = "prompt_cache_breakpoint"


@dataclass(frozen=True, slots=True)
class Violation:
    """Why a request is refused. `param` and `code` are reported where the API has a place for them."""

    message: str
    param: str | None = None
    code: str | None = None
    status: int = 400


Violations = Iterator[Violation]
Check = Callable[[Json, CacheRule], Violations]


def first_violation(checks: Iterable[Check], body: object, rule: CacheRule) -> Violation | None:
    if not isinstance(body, Mapping):
        return Violation("The body must be a JSON object.")
    return next((violation for check in checks for violation in check(body, rule)), None)


# --- values ---

_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "number": (int, float),
    "integer": (int, float),
    "object": dict,
    "dictionary": dict,
    "array": list,
    "list": list,
    "string or list": (str, list),
    "string or an array of items": (str, list),
}


def fits(value: object, kind: str) -> bool:
    """True where a value is of a kind, which is written as the API's errors name it. A boolean is no number."""
    kind = kind.removeprefix("a ").removeprefix("an ")
    if isinstance(value, bool) or kind == "boolean":
        return isinstance(value, bool) and kind == "boolean"
    if kind == "positive integer":
        return isinstance(value, int) and value >= 1
    return isinstance(value, _TYPES[kind])


def holds_object(text: str) -> bool:
    try:
        return isinstance(jsontext.read(text), dict)
    except jsontext.NotJSONError:
        return False


def mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


# --- in the words of OpenAI's APIs ---


def missing(param: str) -> Violation:
    return Violation(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")


def invalid(param: str, why: str) -> Violation:
    return Violation(f"Invalid value for '{param}': {why}.", param, "invalid_value")


def wrong_type(param: str, expected: str) -> Violation:
    return Violation(f"Invalid type for '{param}': expected {expected}.", param, "invalid_type")


def unknown(param: str) -> Violation:
    return Violation(f"Unknown parameter: '{param}'.", param, "unknown_parameter")


def empty(param: str, what: str) -> Violation:
    return Violation(f"'{param}' must hold at least one {what}.", param, "empty_array")


def model_named(body: Json, _: CacheRule) -> Violations:
    if not isinstance(body.get("model"), str) or not body["model"]:
        yield missing("model")


def misfits(body: Json, fields: Mapping[str, str]) -> Violations:
    """Fields that are there and of another kind than `fields` says."""
    for name, kind in fields.items():
        if body.get(name) is not None and not fits(body[name], kind):
            yield wrong_type(name, kind)


def check_breakpoint(at: str, holder: Json, allowed: bool) -> Violations:
    """Faults of the cache breakpoint that an object carries, if it carries one."""
    if holder.get(BREAKPOINT) is None:
        return
    if not allowed:
        yield unknown(f"{at}.{BREAKPOINT}")
    elif mapping(holder[BREAKPOINT]).get("mode") != "explicit":
        yield invalid(f"{at}.{BREAKPOINT}", "the mode must be 'explicit'")
    elif holder.get("text") == "":
        yield invalid(f"{at}.{BREAKPOINT}", "an empty text cannot be marked")


def cache_options(body: Json, rule: CacheRule) -> Violations:
    """`prompt_cache_options` are for models whose cache has breakpoints."""
    options = body.get("prompt_cache_options")
    if options is not None and rule.mark != BREAKPOINT:
        yield unknown("prompt_cache_options")
    elif options is not None and options.get("mode", "implicit") not in ("implicit", "explicit"):
        yield invalid("prompt_cache_options.mode", "expected one of implicit, explicit")


# --- in the words of Anthropic's API: the field first, then why ---


def refusal(at: str, why: str) -> Violation:
    """Something is wrong with a field; with the request as a whole where `at` is empty."""
    return Violation(f"{at}: {why}" if at else why, at or None)


def required(at: str) -> Violation:
    return refusal(at, "Field required")


def extra(at: str) -> Violation:
    return refusal(at, "Extra inputs are not permitted")


def expected(at: str, kind: str) -> Violation:
    return refusal(at, f"Input should be a valid {kind}")


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
