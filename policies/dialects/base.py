"""What a dialect is: one API's JSON, read and written.

Laws: `split` and `splice` never re-serialise what was not edited; a dialect reads the fields it knows and leaves all
others opaque; a body it cannot read is not ours to judge.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from policies.context import TokenCounter
from policies.conversation import Conversation, Message
from policies.edits import Edit
from policies.marks import MarkStyle
from policies.rawjson import Span


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call as the provider billed them; `cached` and `written` are parts of `prompt`."""

    prompt: int
    cached: int
    written: int
    completion: int


@dataclass(frozen=True, slots=True)
class Request:
    """A request body, split: where its messages stand, and the few fields that matter besides them."""

    body: bytes
    spans: tuple[Span, ...]
    model: str
    tools: bytes
    """The tool definitions as the client wrote them; empty where there are none."""
    reserve: int | None
    """Tokens that the client allows for the answer."""
    conversation: str | None
    """The id that the client gives the conversation."""
    known: int = 0
    """How many leading messages are, byte for byte, those of the earlier request it was compared with."""

    def raw(self, message: int) -> bytes:
        """The bytes of one message, as the client wrote them."""
        start, end = self.spans[message]
        return self.body[start:end]


class Reply(Protocol):
    """Reads a reply as it passes."""

    usage: Usage | None

    def feed(self, event: bytes, /) -> None:
        """One raw server-sent event, or the whole of a JSON reply."""


class Dialect(Protocol):
    """One API."""

    def split(self, body: bytes, earlier: Request | None = None, /) -> Request | None:
        """Find the messages; None where the body is not a request that we understand. What it has in common with an
        earlier request is not looked for again."""

    def read(self, raw: bytes, count: TokenCounter, /) -> Message:
        """Read one raw message. Never fails: what is not understood is opaque."""

    def head_tokens(self, request: Request, messages: Sequence[Message], count: TokenCounter, /) -> int:
        """Tokens of what stands before the conversation: tool schemas and leading system text."""

    def splice(self, request: Request, conversation: Conversation, edits: Sequence[Edit], /) -> Mapping[int, bytes]:
        """The new bytes of each message that the edits touch; empty bytes where a message goes."""

    def joined(self, request: Request, changed: Mapping[int, bytes], /) -> bytes:
        """The body with the changed messages in their places, every other byte as it came."""

    def mark_style(self, request: Request, messages: Sequence[Message], /) -> MarkStyle:
        """The kind of cache mark that the client itself uses here: proof that the upstream takes it."""

    def free_slots(self, request: Request, messages: Sequence[Message], /) -> int:
        """How many more cache marks the provider takes in this request."""

    def marked(self, raw: bytes, style: MarkStyle, /) -> bytes | None:
        """The message with a cache mark at its end; None where it cannot carry one."""

    def reply(self) -> Reply:
        """A fresh reader."""
