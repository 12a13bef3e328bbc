"""What a summary is, as it is kept, and when it no longer counts.

Laws
  A summary names what it was made of by anchors, which are digests: where a source message changed, nothing matches.
  A stale summary stands for nothing. That it is stale is said, with the reason.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from policies.model.conversation import Conversation
from policies.model.edits import Origin

Kind = Literal["compaction", "history", "digest"]
"""Made for the prompt, for people (a list of chats, say), or of a single output. None is ever used for another."""
Reason = Literal["", "source", "policy", "prompt", "model", "age"]


@dataclass(frozen=True, slots=True)
class Spent:
    """What was paid for: tokens as billed (`cached` and `written` are parts of `prompt`), and dollars where the price
    is known."""

    calls: int = 0
    prompt: int = 0
    cached: int = 0
    written: int = 0
    completion: int = 0
    dollars: float = 0.0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(
            self.calls + other.calls,
            self.prompt + other.prompt,
            self.cached + other.cached,
            self.written + other.written,
            self.completion + other.completion,
            self.dollars + other.dollars,
        )


@dataclass(frozen=True, slots=True)
class SummaryRecord:
    """A summary with its provenance. Immutable: another one takes its place."""

    id: str
    conversation: str
    first: str
    """The anchor of the first block that it covers: the same for all summaries of a history."""
    last: str
    """The anchor of the last block. It chains all blocks before it, so it is their fingerprint."""
    sources: tuple[str, ...]
    """The messages that it covers, as `INDEX:DIGEST` (the API knows no ids of messages)."""
    model: str
    content: str
    tokens_before: int
    tokens_after: int
    created_at: float
    policy: str
    prompt: str
    """The version of the prompt."""
    kind: Kind = "compaction"
    generation: int = 1
    """How many summaries in a row were made with the help of the one before; 1 is made of the originals."""
    previous: str = ""
    """The id of that one."""
    rejected: str = ""
    """Why it must not be used; such a record has no content."""
    owner: str = ""
    """A keyed hash of the credential that paid for it."""
    spent: Spent = field(default_factory=Spent)
    lines: tuple[int, int] = (0, 0)
    """Of a digest of a file: the first and the last line that it leaves out, because they stay beside it."""


@dataclass(frozen=True, slots=True)
class Making:
    """What summaries are made with now. `models` is empty where any will do."""

    policy: str
    prompt: str
    models: tuple[str, ...] = ()
    ttl: float = float("inf")
    """Seconds that a summary counts."""


def stale(made: Origin | SummaryRecord, making: Making, now: float) -> Reason:
    """Why a summary no longer counts; empty where it does. Whether its sources changed is for its anchors to say."""
    at = made.at if isinstance(made, Origin) else made.created_at
    if made.policy != making.policy:
        return "policy"
    if made.prompt != making.prompt:
        return "prompt"
    if making.models and made.model not in making.models:
        return "model"
    return "age" if now - at > making.ttl else ""


@dataclass(frozen=True, slots=True)
class Known:
    """The summaries of a history, sorted out: those that may be used, oldest first; up to which block one was tried in
    vain; and, where none may be used, why the newest one may not."""

    sound: tuple[SummaryRecord, ...] = ()
    tried: int = 0
    stale: Reason = ""


NONE = Known()


def source_of(conversation: Conversation, message: int) -> str:
    """How a record names a message that it was made of."""
    return f"{message}:{conversation.messages[message].digest.hex()[:16]}"


def sorted_out(conversation: Conversation, summaries: Sequence[SummaryRecord], making: Making, now: float) -> Known:
    """What of these summaries counts for this history."""
    places = conversation.index
    ours = [each for each in summaries if each.kind == "compaction"]
    here = sorted((each for each in ours if each.last in places), key=lambda each: places[each.last])
    sound = tuple(each for each in here if not each.rejected and not stale(each, making, now))
    rejected = (each for each in here if each.rejected and not stale(each, making, now))
    tried = max((places[each.last] + 1 for each in rejected), default=0)
    made = [each for each in ours if not each.rejected]
    return Known(sound, tried, _reason(conversation, made[-1], making, now) if made and not sound else "")


def _reason(conversation: Conversation, made: SummaryRecord, making: Making, now: float) -> Reason:
    if made.last not in conversation.index:  # else it is of a longer history than this one
        return "source" if _changed(conversation, made) else ""
    return stale(made, making, now)


def _changed(conversation: Conversation, made: SummaryRecord) -> bool:
    """Whether a message that it was made of is another one now."""
    digests = [message.digest.hex() for message in conversation.messages]
    sources = (source.partition(":") for source in made.sources)
    return any(int(i) < len(digests) and not digests[int(i)].startswith(digest) for i, _, digest in sources)
