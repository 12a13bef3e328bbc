"""What a dialect reads and writes: a request, split; the reply to it, as it passes; errors and additions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from msgspec import Struct

from policies.model.edits import RecallRound
from policies.model.rawjson import Change, Span
from policies.money.prices import Usage


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
    rounds: tuple[RecallRound, ...]


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
