"""The part of a store that serving needs: decisions of steps and what was sent, exchanges, summaries, leases, purses.

Both back ends fulfil this contract, each with what it has to be fast and atomic.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

from msgspec import Struct

from policies.model.edits import Insert
from policies.model.memory import Memory, StepRecord
from policies.model.summary_record import SummaryRecord

INSERTS = 8
"""Recall exchanges stored for one anchor, the newest: a client that repeats a request does not fill the store."""
SUMMARIES = 8
"""Summaries of one kind stored for one beginning, the newest."""
SNAPSHOTS = 8
"""Snapshots stored of one conversation, the newest."""
DEADLINE = 1.0
"""Seconds after which an answer is trouble; requests do not wait so long."""
LONGEST_ID = 256
"""Characters of a name that is its own id."""
LEASE_SECONDS = 86_400.0
"""How long a lease holds, at most."""
UNTOUCHED = "*"  # no step's anchor: its record says what was sent last of a conversation that is left as it is
PURSE_SECONDS = 2 * 86_400
"""After so many seconds in which nothing was taken from the purse of a day, it is deleted."""

Announce = Callable[[str], None]
"""Told, in a sentence, that a store of release 0.1 was set aside."""


class StoreTrouble(Exception):  # noqa: N818 - trouble, not an error: requests are served all the same
    """The back end is down, slow, full, locked or damaged. The message says what a person can do about it."""


class Key(Struct, frozen=True, cache_hash=True, gc=False):
    """A conversation, always inside its tenant."""

    tenant: str
    conversation: str


def conversation_id(name: str) -> str:
    """The id of a conversation that a client has named; the SHA-256 of a name that is long for a header and a path."""
    return name if len(name) <= LONGEST_ID else sha256(name.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class Purse:
    """Money that has a limit: of a conversation, of a tenant on a day, or of all tenants on a day."""

    tenant: str = ""
    conversation: str = ""
    day: str = ""
    """As in 2026-01-31; empty for a conversation, whose purse goes when it is deleted."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to do something alone for a while. A later holder has a higher `token` (a fence)."""

    name: str
    token: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How far a history was planned after the step that ends at `anchor`, under the configuration of this fingerprint:
    whoever goes on from there need not plan the steps before. `state` is what `snapshots` makes of a PlanState."""

    anchor: str
    fingerprint: str
    state: bytes


class Announcements:
    """Recall exchanges that others who use the store see at once. Here they see them in the store alone."""

    def add(self) -> None:
        """Let all others see that an exchange was had here. Never raises."""

    def foreign(self) -> int | None:
        """How many others have announced so far, without asking the store; None where only the store could say it."""
        return None


class DecisionStore(Protocol):
    """The decisions at each step of a history, and the requests that were sent."""

    announcements: Announcements

    async def memory(self, key: Key, anchors: Sequence[str]) -> Memory:
        """The records of the steps that end at these anchors, and the recall exchanges behind the replies to them, in
        the order in which they were stored; and the summaries for the prompt (compactions and digests) whose `first`
        is one of these anchors, in that order, those rejected, too. One round trip."""

    async def remember(self, steps: Sequence[tuple[Key, StepRecord]]) -> None:
        """Store records, in this order and in one round trip. Where an anchor has one, its edits, reason and `recall`
        stay; `sent` and `at` are filled in, and the newest win."""

    async def claim(self, key: Key, record: StepRecord, *, supersedes: bool = False) -> StepRecord:
        """As `remember` for one record, but returns the one that counts: this one, or the first. For decisions that
        cannot be derived, before their bytes are sent. `supersedes`: in the place of the one that its anchor has, whose
        request was refused."""

    async def newest_step(self, key: Key) -> StepRecord | None:
        """The step that was sent last, in any branch of the history: for people."""

    async def put_snapshot(self, key: Key, snapshot: Snapshot, instead_of: str = "") -> None:
        """Store a snapshot; the same anchor and fingerprint again takes the place of the former, and that of the anchor
        `instead_of` goes. Of one conversation the newest SNAPSHOTS stay."""

    async def snapshot(self, key: Key, fingerprint: str, anchors: Sequence[str]) -> Snapshot | None:
        """The snapshot under this fingerprint of the last of these anchors that has one."""

    async def insert(self, key: Key, insert: Insert) -> None:
        """Store the recall exchange behind a reply: of one reply the newest, of one anchor the newest INSERTS stay."""

    async def put_summary(self, key: Key, record: SummaryRecord, lease: Lease | None = None) -> bool:
        """Store a summary; of one kind and one `first` the newest SUMMARIES stay. The same id again takes the place of
        the former. False, and nothing is stored, where the lease has passed to another holder since, or is gone:
        what is still being written of a conversation when it is deleted is not stored (fencing)."""

    async def summaries(self, key: Key) -> Sequence[SummaryRecord]:
        """All of a conversation, of every kind, in the order in which they were stored: for people."""

    async def lease(self, key: Key, name: str, seconds: float) -> Lease | None:
        """The right to `name` in this conversation for so long; None while it is held, by the same caller too."""

    async def release(self, key: Key, lease: Lease) -> None:
        """Give a lease back. Harmless where it has passed to another holder, and a second time."""

    async def take(self, purse: Purse, dollars: float, limit: float = math.inf) -> bool:
        """Add to the sum taken from a purse, unless the sum would then be above `limit`; whether it was added. Less
        than nothing is given back, within any limit. All who share the store see the same sum."""

    async def delete_summaries(self, key: Key, ids: Collection[str]) -> None:
        """Delete the summaries of these ids."""
