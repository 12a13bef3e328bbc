"""The contract of a dialect: one API's JSON, read and written.

Laws: `split` and `splice` never re-serialize what was not edited; a dialect reads the fields it knows and leaves all
others opaque; a body that it cannot read is relayed as it came.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from msgspec import Struct

from policies.context import TokenCounter
from policies.model.conversation import Conversation, Message
from policies.model.edits import Edit, Exchange
from policies.model.rawjson import Change, Span
from policies.money.marks import MarkStyle
from policies.money.prices import Usage
from policies.tools import Kinds, ToolSpec


class Request(Struct, frozen=True):
    """A request body, split: where its messages stand, and the few fields that matter besides them."""

    body: bytes
    spans: tuple[Span, ...]
    model: str
    tools: Span
    """Where the list of tool definitions stands; (0, 0) where there is none."""
    reserve: int | None
    """Tokens that the client allows for the answer."""
    streams: bool
    conversation: str | None
    """The id that the client gives the conversation."""
    shared: int = 0
    """How many leading messages are, byte for byte, those of the earlier request it was compared with."""
    lead: Span = (0, 0)
    """Where the text that leads the prompt stands, in an API that has it outside the messages."""
    members: Mapping[str, Span] = {}
    """Where the value of each member of the body stands."""

    @property
    def tool_list(self) -> bytes:
        """The tool definitions as the client wrote them; empty where there are none."""
        return self.body[slice(*self.tools)]

    @property
    def instructions(self) -> bytes:
        """What leads the prompt besides tools and messages, as the client wrote it; empty where nothing does."""
        return self.body[slice(*self.lead)]

    @property
    def brings_tools(self) -> bool:
        return self.tool_list.strip(b"[] \t\r\n") not in (b"", b"null")

    def raw(self, message: int) -> bytes:
        start, end = self.spans[message]
        return self.body[start:end]


@dataclass(frozen=True, slots=True)
class ChoiceResult:
    """What the client has received as one choice of a reply, and the recall exchanges behind it."""

    text: str
    call_ids: tuple[str, ...]
    rounds: tuple[Exchange, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a request is not served; `param` is the field at fault, `code` a stable name of the reason."""

    status: int
    message: str
    code: str
    param: str | None = None
    kind: str = ""
    """The type that OpenAI's APIs give such an error; "" for the one of its status."""


Added = tuple[int, bytes]
"""The position in a body before which something is added, and what that is."""


@dataclass(frozen=True, slots=True)
class Consent:
    """What a request has to hold beside its messages, and in headers, so that its provider takes an edited history."""

    change: Change | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Reply(Protocol):
    """Reads the reply to one request as it passes, over all rounds in which recall calls are answered.

    Laws: nothing of a recall call, and no seam between rounds, reaches the client; what no recall touches is relayed as
    the very bytes that came; nothing is held back longer than necessary.
    """

    usage: Usage | None
    """Of the round at hand, once the provider has reported it."""

    @property
    def pending(self) -> Sequence[int]:
        """The choices that ended in recall calls alone and wait for their next round, by index."""

    def feed(self, event: bytes, /) -> list[bytes]:
        """Receive one raw server-sent event, or the whole of a JSON reply; returns what the client gets of it now."""

    def feed_all(self, events: bytes, /) -> list[bytes] | None:
        """As `feed` for each of these whole server-sent events; the very object where the client gets all of them as
        they came. None, and nothing has happened, where they are to be fed one by one."""

    def resume(self, choice: int, /) -> None:
        """What is fed from now on is the next round, for this pending choice alone."""

    def result(self, choice: int, /) -> ChoiceResult:
        """What the client has received of one choice, and the exchanges behind it."""

    @property
    def over(self) -> Sequence[int]:
        """The choices that have come to their end, by index."""

    @property
    def completion(self) -> int:
        """Tokens that the provider billed for answers so far, over all rounds; 0 where it has not reported any."""

    def last_event(self, failure: bytes, /) -> bytes:
        """The body of an error reply (ours or the upstream's) as the event with which the stream breaks off here."""


class Dialect(Protocol):
    """One API."""

    def split(self, body: bytes, earlier: Request | None = None, bounded: bool = True, /) -> Request | None:
        """Find the messages; None where the body is not a request of this API. What it has in common with an earlier
        request is not looked for again. Raises TooManyError where the body is `bounded` and passes a limit."""

    def read(self, raw: bytes, count: TokenCounter, /) -> Message:
        """Read one raw message. Never fails: what is not understood is opaque."""

    def head_tokens(self, request: Request, messages: Sequence[Message], count: TokenCounter, /) -> int:
        """Tokens of what stands before the conversation: tool schemas and leading system text."""

    def tools(self, request: Request, /) -> Sequence[ToolSpec]:
        """The tools that the request defines, the first thousand; none where they cannot be read."""

    def tool_kinds(self, request: Request, /) -> Kinds:
        """The kinds of those tools whose definitions show them, by name."""

    def splice(self, request: Request, conversation: Conversation, edits: Sequence[Edit], /) -> Mapping[int, bytes]:
        """The new bytes of each message that the edits touch; empty bytes where a message goes."""

    def recall_tool(self, request: Request, always: bool, /) -> Added | None:
        """Where and how to add the recall tool; None where it cannot be added. Where the client brings no tools, it is
        only added `always`."""

    def takes_exchanges(self, request: Request, /) -> bool:
        """Whether calls of the recall tool that the model never made may stand in the history."""

    def consent(self, request: Request, /) -> Consent | None:
        """What the request has to hold so that its history may be edited, as a rule nothing; None where it may not."""

    def joined(
        self,
        request: Request,
        changed: Mapping[int, bytes],
        added: Added | None = None,
        beside: Change | None = None,
        /,
    ) -> bytes:
        """The body with the changed messages in their places, with what is added, and with a change beside the
        messages, every other byte as it came. In the place of a changed message may stand several, or none."""

    def put_back(
        self, rounds: Sequence[Exchange], answers: Sequence[Sequence[str]], text: str, reply: Sequence[bytes] | None, /
    ) -> list[bytes]:
        """The messages of a reply's recall exchange, as the model saw them: each round and its answers, then the rest
        of the `reply` as the client returned it, message by message (None before it has). `text` is the text of the
        reply. Where a user brings the results of its calls, and some were made beside ours, `reply` ends with that
        message.

        Raises UnreadableError where the reply does not fit the rounds.
        """

    def arguments(self, call: str, /) -> str:
        """The arguments of a call that an Exchange holds."""

    def next_round(self, body: bytes, spent: int, /) -> bytes:
        """The body that asks for the next round of a reply: one choice, with `spent` tokens less for the answer."""

    def mark_style(self, request: Request, messages: Sequence[Message], /) -> MarkStyle:
        """The kind of cache mark that the client itself uses here: proof that the upstream takes it."""

    def takes_mark(self, style: MarkStyle, /) -> bool:
        """Whether requests of this API may carry this kind of cache mark."""

    def marks_end(self, request: Request, messages: Sequence[Message], /) -> bool:
        """Whether the client has a cache mark on the newest input of the model, or asks for one there."""

    def free_slots(self, request: Request, messages: Sequence[Message], /) -> int:
        """How many more cache marks the provider takes in this request."""

    def marked(self, raw: bytes, style: MarkStyle, /) -> bytes | None:
        """The message with a cache mark at its end; None where it has one or cannot carry one."""

    def failure(self, fault: Fault, /) -> bytes:
        """The body of an error reply, on one line."""

    def reply(self, rounds: int | None = None, /) -> Reply:
        """A new reader. `rounds`: how often recall calls may be answered in this reply; None where the recall tool is
        not there, so that every call is the client's."""
