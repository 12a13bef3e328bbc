"""What goes upstream: a request in hand, its plan, and the body that the plan makes of it.

Laws
  A message that no edit touches is sent as the client wrote it.
  What the same edits make of the same bytes is made once.
"""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import Literal

from policies.books import Books, Plan, Setup
from policies.context import Memory, StepRecord, TokenCounter
from policies.conversation import Conversation
from policies.dialects import Added, Consent, Dialect, Request
from policies.edits import Edit, Replace
from policies.pipeline import plan
from policies.prefix import Chains, sent_record
from policies.presets import Preset, described
from policies.rawjson import items
from policies.tokens import Calibration
from proxy.store import Key

PIECES_BYTES = 128 * 2**20
"""How many bytes of changed messages are kept, to be used again."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A request as it came in, undone from its encoding."""

    dialect: str
    body: bytes
    tenant: str
    conversation: str | None
    mode: Literal["on", "off", "observe"]
    credential: str
    auth: Mapping[str, str] = field(default_factory=dict)
    """The headers with which the client proves itself to the upstream: summaries are asked for in its name."""
    unsaid: bytes = b""
    """A member that the body cannot have, though it may be about one that has it."""
    counts: bool = False
    """Whether it only asks for its tokens."""
    preset: str = ""
    """The preset that was chosen for it; that of the settings where none was."""


@dataclass(frozen=True, slots=True)
class Work:
    """A request in hand: what the client sent, with every recall exchange back in its place."""

    incoming: Incoming
    dialect: Dialect
    request: Request
    conversation: Conversation
    setup: Setup
    key: Key
    calibration: Calibration
    tool: Added | None
    """Where the recall tool goes; None where it cannot be there."""
    lost: bool = False
    """Whether a recall exchange could not be put back behind the newest reply."""
    lifetime: float = 0.0
    """Seconds of disuse after which the provider has forgotten the prompt: what a person says, else by its model."""
    consent: Consent = field(default_factory=Consent)
    """What has to be said so that the history may be edited."""
    preset: Preset = field(default_factory=lambda: Preset(()))
    policy: str = ""
    """What summaries and digests are kept under: the preset and its parameters."""

    @property
    def fingerprint(self) -> str:
        """What decisions follow from besides the history."""
        setup = self.setup
        said = (setup.prices, setup.budget, setup.marks, setup.slots, setup.head, setup.text_protocol)
        tools = [sorted(kinds.items()) for kinds in (setup.toolbox.said, setup.toolbox.schemas)]
        ways = (self.incoming.dialect, setup.recall, setup.only_to_fit, setup.exceptions, tools)
        return sha256(repr((said, ways, described(setup.policies), self.incoming.mode)).encode()).hexdigest()[:32]

    @property
    def head(self) -> str:
        """What stands before the messages in the prompt."""
        tool = self.tool[1] if self.tool else b""
        parts = (self.request.model.encode(), self.request.tool_list, tool, self.request.instructions)
        return sha256(b"\0".join(parts)).hexdigest()[:32]

    def record(self, outgoing: "Outgoing", at: float) -> StepRecord:
        """What to remember of this step."""
        sent = sent_record(self.conversation, outgoing.chains, self.head, self.fingerprint)
        anchor = self.conversation.end_anchor(self.conversation.steps - 1)
        made = outgoing.plan
        return StepRecord(anchor, made.new, made.reason, sent, at, self.setup.recall, made.books.dropped)

    def body(self, outgoing: "Outgoing") -> bytes:
        """The client's bytes, but for the changed messages, marks of ours and the recall tool."""
        changed = dict(outgoing.changed)
        for message in outgoing.plan.marks:
            raw = changed.get(message, self.request.raw(message))
            marked = self.dialect.marked(raw, self.setup.marks) if raw else None
            if marked is not None:
                changed[message] = marked
        if not (changed or self.tool or self.consent.change):
            return self.request.body
        return self.dialect.joined(self.request, changed, self.tool, self.consent.change)


@dataclass(frozen=True, slots=True)
class Piece:
    """A changed message: its bytes, and a digest of what they say, cache marks apart."""

    raw: bytes
    stamp: bytes


Pieces = MutableMapping[tuple[object, ...], Piece]
"""Changed messages by the API, the bytes and the edits that made them."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A plan, and the messages it changes."""

    plan: Plan
    changed: Mapping[int, bytes]
    chains: Chains


# a pure function of its arguments, so remembering changes nothing but the time it takes
@lru_cache(maxsize=64)
def _counted(text: bytes, count: TokenCounter) -> int:
    return count(text.decode())


def tool_tokens(tool: Added | None, count: TokenCounter) -> int:
    """What the recall tool adds to the prompt."""
    return _counted(tool[1], count) if tool else 0


def planned(work: Work, books: Books | None, memory: Memory, pieces: Pieces) -> Outgoing:
    """The plan for a request, and what it makes of the messages."""
    made = plan(work.conversation, work.setup, memory, books)
    changed = _spliced(work, _by_message(work.conversation, made), pieces)
    stamps = {message: piece.stamp for message, piece in changed.items()}
    raws = {message: piece.raw for message, piece in changed.items()}
    return Outgoing(made, raws, Chains(work.conversation.messages, stamps))


def _spliced(work: Work, made: Mapping[int, list[Edit]], pieces: Pieces) -> dict[int, Piece]:
    """The changed messages; from `pieces` where the same edits met the same bytes before."""
    dialect, messages = work.incoming.dialect, work.conversation.messages
    names = {message: (dialect, messages[message].raw, *edits) for message, edits in made.items()}
    known = {message: piece for message, name in names.items() if (piece := pieces.get(name)) is not None}
    unknown = [edit for message, edits in made.items() if message not in known for edit in edits]
    for message, raw in work.dialect.splice(work.request, work.conversation, unknown).items():
        known[message] = piece = Piece(raw, _stamp(work.dialect, raw) if raw else b"")
        alone = all(isinstance(edit, Replace) for edit in made.get(message, ()))
        if message in names and alone and len(raw) < PIECES_BYTES // 8:
            pieces[names[message]] = piece
    return known


def _by_message(conversation: Conversation, planned: Plan) -> dict[int, list[Edit]]:
    """The edits of each message; a fold is one of those in which it begins and ends, for it may leave some of both."""
    found: dict[int, list[Edit]] = {}
    for edit in planned.edits:
        ends = (edit.at,) if isinstance(edit, Replace) else (edit.first, edit.last)
        for message in dict.fromkeys(conversation.blocks[conversation.index[at]].message for at in ends):
            found.setdefault(message, []).append(edit)
    return found


def _stamp(dialect: Dialect, raw: bytes) -> bytes:
    """What is sent in the place of one message, cache marks apart: a client moves its marks, and that changes no
    prompt."""
    digests = [dialect.read(raw[start - 1 : end - 1], len).digest for start, end in items(b"[" + raw + b"]")]
    return sha256(b"".join(digests)).digest()
