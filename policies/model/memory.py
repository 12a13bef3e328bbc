"""The memory of a conversation in the store, as a policy and the planner read it: one record for each step served."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from policies.model.edits import Edit, Insert
from policies.model.summary_record import NO_USE, SummaryRecord, SummaryUse


@dataclass(frozen=True, slots=True)
class CacheLife:
    """The life of the provider's cache of a conversation, as one step found and left it (policies.money.lifetimes)."""

    is_cold: bool = False
    """True where it had expired before this step."""
    would_be_cold: bool = False
    """True where it would have expired, had nothing been done: no longer lifetime asked for, and nothing sent again."""
    is_longer: bool = False
    """True where the marks of this step ask for the longer of two lifetimes."""
    rent: float = 0.0
    """What was paid so far for not having the other one, in tokens weighted by their price relative to plain input."""


FRESH = CacheLife()


@dataclass(frozen=True, slots=True)
class Sent:
    messages: int
    digest: str
    tail: int
    """How many messages stood before the last step."""
    tail_digest: str
    received: int
    received_digest: str
    head: str
    """A digest of model and tools, which precede the messages in the prompt."""
    settings: str
    """A digest of preset, prices and budget."""
    use: SummaryUse = NO_USE
    """Its use of summaries: for people."""
    warmed_at: float = 0.0
    """When it was last sent again to keep the cache warm, in seconds since 1970."""
    life: CacheLife = FRESH
    """Releases before 0.3 read over it."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """The decisions for the request that ends at `anchor`, and a digest of the request as it was sent."""

    anchor: str
    edits: tuple[Edit, ...] = ()
    reason: str = ""
    sent: Sent | None = None
    at: float = 0.0
    """When it was served, in seconds since 1970: only used for the age of the provider's cache."""
    recall: bool = False
    """True where the request carried the recall tool: stubs that name a reference are not repeated without it."""
    dropped: bool = False
    """True where a summary that stood in the request before was taken back."""
    shed: int = 0
    """At so many steps, this one the last, there was no time to plan; what records say was repeated."""
    keep: str = ""
    """A digest of what was to stay as it is: a decision counts for as long as that is the same."""


@dataclass(frozen=True, slots=True)
class ModelDigest:
    """A model's digest of one output, and the first and last line that stay beside it; (0, 0) where none do."""

    text: str
    lines: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Memory:
    """A snapshot of what the store holds about this very history, by the anchor of each step."""

    steps: Mapping[str, StepRecord] = field(default_factory=dict)
    inserts: Mapping[str, tuple[Insert, ...]] = field(default_factory=dict)
    """The recall exchanges behind the replies to each step, by the anchor of its last block."""
    summaries: tuple[SummaryRecord, ...] = ()
    """Summaries of this history or of others that begin alike, oldest first; rejected ones too."""
    digests: Mapping[str, ModelDigest] = field(default_factory=dict)
    """Digests that a model made of single outputs, by `Block.text_digest` in hex."""
