"""One API, as one value: what is its own is data and pure functions; what it does not say is as most APIs have it.

Laws
  `split` and `splice` never re-serialize what was not edited; a dialect reads the fields it knows and leaves all others
  opaque; a body that it cannot read is relayed as it came.
  `read`, `messages_in` and what finds out of which API a body is never fail on what somebody else wrote.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from policies.context import TokenCounter
from policies.dialects import common
from policies.dialects.common import RECALL_ALONE, Added, Consent, Fault, Ours, Reply, Request
from policies.dialects.deferring import DeferralForm
from policies.dialects.pings import no_ping
from policies.dialects.replies import Json, UsageNames, events_in, is_plain, read_event
from policies.dialects.splitting import RequestFields, split_request
from policies.dialects.tool_lists import leading_tokens, remembered
from policies.model.conversation import Conversation, Kind, Message
from policies.model.edits import Edit, RecallRound
from policies.model.rawjson import Change
from policies.money.caches import MarkStyle
from policies.money.prices import Usage
from policies.recall import RecallAnswer
from policies.text.summary_checks import End

# --- how an API is spoken over HTTP, beside its JSON; what most have is the default ---

Model = dict[str, object]


@dataclass(frozen=True, kw_only=True)
class ModelListing:
    entry: Callable[[str, str], Model] = lambda id_, owner: {
        "id": id_,
        "object": "model",
        "created": 0,
        "owned_by": owner,
    }
    """The fields of every model, by its id and the name of its upstream."""
    page: Callable[[Sequence[Model], Mapping[str, str]], Mapping[str, object]] = lambda models, query: {
        "object": "list",
        "data": models,
    }
    paging: Sequence[str] = ()
    """Parameters that choose a page."""
    whole: str = ""
    """The parameter with which all models come at once."""


@dataclass(frozen=True, kw_only=True)
class Http:
    # --- paths below the base URL, and where they are mistaken ---

    path: str
    counting_path: str = ""
    counting_implies: bytes = b""
    """A JSON member that a body to be counted cannot have, though the request that is sent later has it."""
    compact_path: str = ""
    """Where the provider itself makes a history shorter, for the price of an answer."""
    stored_path: str = ""
    """The pattern of paths of stored replies, by secret ids; the model may go on with one without its client."""
    adds_version: bool = False
    """True where its clients add /v1 to the base_url that they are given."""
    missing_at: tuple[str, ...] = ()

    # --- headers ---

    credentials: Sequence[str] = ("Authorization",)
    key: tuple[str, str] = ("Authorization", "Bearer ")
    """The header of an API key, and what stands in it before the key."""
    accounts: Sequence[str] = ()
    """Headers that say for which account of the credential's a request is."""
    version: Mapping[str, str] = field(default_factory=dict)
    """The header that requests of this API alone have to bring, and the value where no client says one."""
    betas: Sequence[str] = ()
    """Headers that change how a body is read."""
    sign_in_beta: tuple[str, str] = ("", "")
    """The one of them without which no sign-in of a person counts, and how the word in it begins."""
    rate: str = "x-ratelimit-{what}-{of}"
    """The header of the `limit`, what is `remaining` or its `reset`, of requests or tokens."""
    rate_reset: Literal["duration", "instant"] = "duration"
    """How that header gives a time."""

    models: ModelListing = ModelListing()

    def auth(self, key: str) -> Mapping[str, str]:
        name, before = self.key
        return {name: before + key, **self.version}


# --- how a model is asked to write a text, as summaries are, and how its answer is read ---

JsonObject = Mapping[str, Any]
_SLACK = 1.25
"""How many times the tokens wanted may be generated: an answer that is a little too long is still complete."""
_THINKING = 8_192
"""Tokens more for a model that thinks before it answers, as thoughts count. Tokens that are not used cost nothing."""
_COMPLETION_LIMITED = re.compile(r"(?:ft:)?(?:o\d|gpt-(?:[5-9]|\d\d)|codex-)", re.I)
"""Names, without a vendor before them, of OpenAI's models that think: they take `max_completion_tokens` and refuse
`max_tokens`, which compatible APIs take."""
_THINKS = re.compile(
    r"reason|think|gpt-oss|qwq|qwen3|magistral|-r1|deepseek-v|kimi-k|glm-\d|minimax-m|grok-[3-9]|gemini-(?:2\.5|[3-9])"
    r"|claude-(?!3|2|instant)",
    re.I,
)
"""Others that may think. Anthropic's older models do not, and refuse so high a limit."""
_THOUGHT = re.compile(r"\s*<(think(?:ing)?)>", re.I)


@dataclass(frozen=True, kw_only=True, eq=False)
class Writing:
    bodies: Callable[[str, str, str, int], Sequence[JsonObject]]
    """The request to a model, with instructions over a text, for an answer of at most so many tokens. Where the
    upstream refuses a field by its name that the next one has not, the next one is sent."""
    answer: Callable[[JsonObject], tuple[str, End]]
    """The text of a reply, and how it ended. Raises msgspec.ValidationError or IndexError where the reply has none."""


def is_completion_limited(model: str) -> bool:
    """True where it is one of OpenAI's models that think."""
    return _COMPLETION_LIMITED.match(model.rpartition("/")[2]) is not None


def limit(most: int, model: str, thinks: bool = False) -> int:
    """Tokens that may be generated for an answer of `most`, by a model that thinks for certain or by its name."""
    return int(most * _SLACK) + (_THINKING if thinks or _THINKS.search(model) else 0)


def text_of(parts: Sequence[JsonObject]) -> str:
    """Their text without the thoughts that some models write before it; empty where nothing follows them."""
    text = "".join(str(part.get("text") or "") for part in parts)
    opened = _THOUGHT.match(text)
    if opened is None:
        return text.strip()
    return text[opened.end() :].partition(f"</{opened[1]}>")[2].strip()


# --- the API ---

Read = Callable[[bytes, TokenCounter], Message]
Join = Callable[[Request, Mapping[int, bytes], Added | None, Sequence[Change]], bytes]


class NewReply(Protocol):
    """A new reader of a reply, with so many rounds of ours, None where every call is the client's."""

    def __call__(self, rounds: int | None = None, ours: Ours = RECALL_ALONE) -> Reply: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class CacheMarks:
    """The cache marks of an API; by default it has none."""

    styles: tuple[MarkStyle, ...] = ()
    """The kinds of mark that its requests may carry."""
    style: Callable[[Request, Sequence[Message]], MarkStyle] = lambda request, messages: ""
    """The kind of mark that the client itself uses here: proof that the upstream takes it."""
    at_end: Callable[[Request, Sequence[Message]], bool] = lambda _, messages: common.has_newest_marked(messages)
    """True where the client has a mark on the newest input of the model, or asks for one there."""
    slots: Callable[[Request, Sequence[Message]], int] = lambda request, messages: 0
    """How many more marks the provider takes in this request."""
    add: Callable[[bytes, MarkStyle], bytes | None] = lambda raw, style: None
    """The message with a mark at its end; None where it has one or cannot carry one."""
    longer: MarkStyle = ""
    """The kind that may ask for the longer lifetime here."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RecallForm:
    tool: Callable[[Request, bool], Added | None]
    """Where and how to add the tool, where the client brings tools or the argument says always; else None."""
    put_back: Callable[
        [Sequence[RecallRound], Sequence[Sequence[RecallAnswer]], str, Sequence[bytes] | None], list[bytes]
    ]
    """The messages of a reply's recall exchange, as the model saw them, from its rounds, their answers, the text of the
    reply, and the reply as the client returned it, message by message (None before it has): each round and its answers,
    then the rest of the reply. Where a user brings the results of its calls, and some were made beside ours, the reply
    ends with that message. Raises UnreadableError where the reply does not fit the rounds."""
    called: Callable[[str], tuple[str, str]]
    """Which tool of ours a call that a RecallRound holds calls, and its arguments."""
    next_round: Callable[[bytes, int], bytes] = lambda body, tokens: body
    """The body that asks for the next round of a reply: one choice, with so many tokens less for the answer."""
    may_stand: Callable[[Request], bool] = lambda request: True


@dataclass(frozen=True, kw_only=True, eq=False)
class UsageOption:
    """The option of a request without which a stream reports no usage."""

    name: bytes
    """The member of a request that an error names where the upstream does not take it."""
    ask: Callable[[bytes], bytes | None]
    """The request with its usage asked for; None where it asks itself, wants no stream, or cannot be read."""
    hide: Callable[[bytes], bytes]
    """An event as a client gets it that has not asked; empty where it brought nothing else."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Dialect:
    name: str
    label: str
    """Its name in settings."""
    provider: str = "openai"
    """Who made it, by the names of OpenTelemetry; and whose SDK speaks it."""
    http: Http

    # --- requests ---

    fields: RequestFields
    leading_roles: Collection[str] = ("system", "developer")
    """The roles of messages that lead the prompt."""
    leading_kinds: tuple[Kind, ...] = ("system", "opaque")
    """The parts that count of the text that leads it outside the messages."""
    read: Read
    splice: Callable[[Request, Conversation, Sequence[Edit]], Mapping[int, bytes]]
    """The new bytes of each message that the edits touch; empty bytes where a message goes."""
    joined: Join = common.joined
    """The body with the changed messages in their places, with what is added, and with a change beside the messages,
    every other byte as it came. In the place of a changed message may stand several, or none."""
    consent: Callable[[Request], Consent | None] = common.consent
    """Needed so that the history may be edited, as a rule nothing; None where it may not."""
    looks_like: Callable[[Mapping[str, object]], bool] = lambda fields: False
    """True where a body, by its shape, is of this API and of none that stands before it in the table."""
    marks: CacheMarks = CacheMarks()
    ping: Callable[[bytes], bytes] = no_ping
    """The request that keeps the prompt of this one in the provider's cache. Raises NoPingError."""
    recall: RecallForm
    deferral: DeferralForm | None = None
    """How definitions of tools are deferred; None where they cannot be."""

    # --- replies ---

    usage: UsageNames
    reply: NewReply
    whole_messages: Callable[[Json], list[Json]]
    """The messages in the JSON of a reply, as a client returns them; none where it is not whole."""
    streamed_messages: Callable[[list[Json]], list[Json]]
    """The same for the events of a stream."""
    failure: Callable[[Fault], bytes] = common.failure
    usage_option: UsageOption | None = None
    writing: Writing | None = None
    """How a model is asked for a text; where it cannot be, its conversations get summaries from elsewhere alone."""
    stores: bool = False
    """True where the provider stores replies where a request does not say."""

    def split(self, body: bytes, earlier: Request | None = None, bounded: bool = True) -> Request | None:
        """Find the messages; None where the body is not a request of this API. What it has in common with an earlier
        request is not looked for again. Raises TooManyError where the body is `bounded` and passes a limit."""
        return split_request(body, earlier, bounded, self.fields)

    def head_tokens(self, request: Request, messages: Sequence[Message], count: TokenCounter) -> int:
        """Tokens of what stands before the conversation: tool schemas and leading system text."""
        leading = leading_tokens(request, messages, count, self.leading_roles)
        return leading + _lead_tokens(request.instructions, count, self.read, self.leading_kinds)

    def messages_in(self, reply: bytes) -> list[bytes]:
        """The messages of a reply as its client got it; none where it broke off, failed or has several choices."""
        contents = [content for content in map(read_event, events_in(reply)) if content is not None]
        if is_plain(reply):
            messages = [message for content in contents for message in self.whole_messages(content)]
        else:
            messages = self.streamed_messages(contents)
        with suppress(RecursionError):  # nested deeper than can be written
            return [common.as_json(message) for message in messages]
        return []


def begins_output(event: bytes) -> bool:
    """True where this event of a stream, by its type, brings output."""
    kind = common.text_at(read_event(event), "type")
    return kind == "response.output_item.added" or kind.endswith("delta")


def usage_in(api: Dialect, reply: bytes) -> Usage | None:
    """The usage that the provider reports in a reply: one text of events, or JSON."""
    reader = api.reply(None)
    for event in events_in(reply):
        reader.feed(event)
    return reader.usage


@remembered
def _lead_tokens(lead: bytes, count: TokenCounter, read: Read, kinds: tuple[Kind, ...]) -> int:
    """The text outside the messages counts as the message that it is."""
    if not lead:
        return 0
    message = read(b'{"role":"system","content":' + lead + b"}", count)
    tokens = [part.tokens for part in message.parts if part.kind in kinds]
    return sum(tokens, message.overhead) if tokens else 0
