"""What requests cost, as values: the bill of one request, and sums of bills.

Laws
  Paid is what the provider's usage says at its prices; where it reported none, an estimate, counted as one.
  The baseline is an estimate of what the same request would have cost with nothing done: the history unedited, with the
  cache that it would have had. Saved is the difference, may be negative, and is always called an estimate.
  A request whose prices are not known has its tokens counted, and no dollars on any side: nothing is saved on it.
  Nothing here holds text of a conversation, or a credential.
"""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import astuple

Arm = Literal["", "on", "holdout", "left"]
"""Of a holdout: compacted, passed as the client wrote it, or in neither arm because it comes near its window, where
nothing passes as the client wrote it (which is told of both arms alike); "" where there is no holdout."""


class Labels(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whose bill it is, and by which its sums are grouped."""

    tenant: str
    owner: str
    """The name of whoever has the credential: a digest, keyed by the tenants' secret."""
    model: str
    preset: str
    api: str
    """The name of the dialect."""
    key: str = ""
    """The name of the key of the gateway that the owner has; "" where it has none, or it is not known."""


class BillSums(Struct, frozen=True, kw_only=True):
    """Tokens, dollars and numbers of requests; dollars are 0 for requests whose prices are not known."""

    requests: int = 0
    original: int = 0
    """Prompt tokens as the client wrote them, in the provider's count as far as that is known."""
    sent: int = 0
    """Prompt tokens that the provider billed in the first round of each reply: what stood in place of `original`."""
    observed: int = 0
    """The part of `original` of requests that were only observed, or held out."""
    observed_sent: int = 0
    """The prompt tokens that their plans would have sent instead."""
    prompt: int = 0
    """Prompt tokens that the provider billed, of all rounds, as are the following three."""
    cached: int = 0
    written: int = 0
    output: int = 0
    paid: float = 0.0
    """Dollars for all rounds, without summaries."""
    baseline: float = 0.0
    baseline_marked: float = 0.0
    """The baseline with the cache marks of ours: what is below `baseline` is saved by marks, the rest by compaction."""
    by_rules: float = 0.0
    """The baseline as the rules of the cache alone would have it, whatever was read or sent: told alike of what is
    compacted and of what is not, it is the size by which conversations are compared."""
    recalls: float = 0.0
    """The part of `paid` for rounds that answer recalls."""
    summaries: float = 0.0
    """Dollars for summaries and digests, beside `paid`."""
    rounds: int = 0
    """Requests sent upstream to answer recalls."""
    recalled: int = 0
    """Recall calls answered with what they asked for."""
    refused: int = 0
    """Recall calls of what is not there."""
    rewritten: int = 0
    """Tokens that were in the provider's cache and were written again, because what stood before them had changed."""
    estimated: int = 0
    """Requests whose usage the provider did not report."""
    unpriced: int = 0
    """Requests to models whose prices are not known."""
    checked: int = 0
    """Requests that went unedited (but for the recall tool), whose bill can be compared with what the rules by which
    baselines are told would have foretold."""
    checked_paid: float = 0.0
    checked_error: float = 0.0
    """Dollars by which that missed what was paid, each counted as positive."""

    @property
    def saved(self) -> float:
        """An estimate: of the baseline, what neither requests nor summaries took."""
        return self.baseline - self.paid - self.summaries

    @property
    def saved_by_marks(self) -> float:
        """The part of `saved` that our cache marks account for; compaction does for the rest."""
        return self.baseline - self.baseline_marked

    @property
    def baseline_error(self) -> float | None:
        """By which share the baseline missed what was paid, where both are known; None where nothing was compared."""
        return self.checked_error / self.checked_paid if self.checked_paid else None

    def __add__(self, other: "BillSums") -> "BillSums":
        sums = (mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True))
        return BillSums(**dict(zip(self.__struct_fields__, sums, strict=True)))


class RequestBill(Struct, frozen=True, kw_only=True):
    """What one request of a client came to, over all rounds of its reply. Where `sums.requests` is 0, it is what a
    summary or a digest for this conversation cost."""

    id: str
    """No other bill has it, and what is stored a second time under it counts once: that of a request is the one in
    `x-narrows-request-id`."""
    at: float
    """When its reply ended, in seconds since 1970."""
    labels: Labels
    conversation: str
    """"" where it is not known: the bill is added to the day alone."""
    prefix: str
    """What happened to the prefix, as in `x-narrows-prefix`."""
    mode: str
    """As in `x-narrows-mode`; "summary" for what a summary cost."""
    arm: Arm = ""
    sums: BillSums
    """Of this request alone."""
    edits: str = ""
    """Its edits by policy, as in `x-narrows-edits`."""
    added_ms: float = 0.0
    anchor: str = ""
    """The step of the history that it ends at, as the store names it."""


class DayRow(Struct, frozen=True, kw_only=True):
    """The sums of a day (as in 2026-01-31, UTC) under the same labels."""

    day: str
    labels: Labels
    sums: BillSums
    prefixes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Of each outcome of the prefix the number of requests, and the tokens written again."""


class ConversationRow(Struct, frozen=True, kw_only=True):
    """The sums of a conversation; the labels are those of its newest request."""

    conversation: str
    labels: Labels
    arm: Arm
    """By `arm_of` of its bills, in the order in which they came."""
    first_at: float
    at: float
    sums: BillSums


def arm_of(before: Arm, newest: Arm) -> Arm:
    """The arm of a conversation whose bills so far were in one arm, and whose newest is in another: "" stays, for it
    began outside of a holdout; any other change takes it out."""
    return before if before in ("", newest) else "left"
