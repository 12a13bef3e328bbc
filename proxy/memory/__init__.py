"""The store: the contract that every back end fulfils, and the table of back ends.

Laws
  Nothing stored here is needed to serve: where the store fails or has nothing, replay derives the same edits.
  First writer wins: what was decided for an anchor stays, and a second writer takes the decision of the first.
  Tenants share nothing, not even the knowledge that an id exists.
  Only StoreTrouble is raised, and soon. A record that cannot be read (flipped bit, cut short, other version) raises
  nothing: it counts as a miss, and as absent.
  With keys, every text is encrypted. Names, digests, sizes, times and sums are not, nor are events, which hold no text.
  A store that release 0.1 wrote is set aside and announced: a new one is begun, and nothing of the old is deleted.
"""

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pkgutil import resolve_name
from typing import Literal, Protocol
from urllib.parse import parse_qsl

from msgspec import Struct

from policies.model.edits import Insert
from policies.model.memory import Memory, StepRecord
from policies.model.summary_record import SummaryCost, SummaryRecord
from policies.money.bills import ConversationRow, DayRow, RequestBill
from proxy.config import KeyRow
from proxy.config.groups.keeping import REDIS
from proxy.config.keyring import Keyring
from proxy.config.units import seconds

INSERTS = 8
"""Recall exchanges stored for one anchor, the newest: a client that repeats a request does not fill the store."""
SUMMARIES = 8
"""Summaries of one kind stored for one beginning, the newest."""
SNAPSHOTS = 8
"""Snapshots stored of one conversation, the newest."""
EVENTS = 10_000
"""About how many events are stored of one tenant, the newest."""
DEADLINE = 1.0
"""Seconds after which an answer is trouble; requests do not wait so long."""
LONGEST_ID = 256
"""Characters of a name that is its own id."""
BILLS = 1_000
"""Bills stored of one conversation, the newest."""
DAY_ROWS = 2_000
"""Rows of one tenant and day; from then on the model and the owner of a new row are OTHER."""
OTHER = "other"
DAYS = 400
"""How many days their sums stay."""
LEASE_SECONDS = 86_400.0
"""How long a lease holds, at most."""
KEYS = 2_000
"""Rows of keys that are stored, at most."""
DELETIONS = "\0deletions"
"""No client's tenant: its events announce deletions to all who share the store. A list of all events leaves it out."""
UNTOUCHED = "*"  # no step's anchor: its record says what was sent last of a conversation that is left as it is
PURSE_SECONDS = 2 * 86_400
"""After so many seconds in which nothing was taken from the purse of a day, it is deleted."""


class StoreTrouble(Exception):  # noqa: N818 - trouble, not an error: requests are served all the same
    """The back end is down, slow, full, locked or damaged. The message says what a person can do about it."""


class Key(Struct, frozen=True, cache_hash=True, gc=False):
    """A conversation, always inside its tenant."""

    tenant: str
    conversation: str


def conversation_id(name: str) -> str:
    """The id of a conversation that a client has named. A longer name than a header and a path can well hold goes by
    its SHA-256."""
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


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a summary, or a deletion: what people audit. It holds no text of a conversation."""

    at: float
    conversation: str
    name: str
    details: Mapping[str, str | int | float]


@dataclass(frozen=True, slots=True)
class TextKind:
    """A kind of texts that are kept for people."""

    name: str
    bounded_by: Literal["tenant", "conversation"] | None = None
    """Whose bytes of this kind are limited: the oldest texts go first. Texts of a bounded kind also go when the time to
    live has passed since they were first stored; all others go with their conversation."""
    by_name: bool = False
    """Whether people look for a text in all conversations of a tenant."""
    first_stays: bool = False
    """Whether the first readable text of a name stays. Elsewhere a name is a digest: the same name, the same text."""


ORIGINALS = TextKind("original", by_name=True, first_stays=True)
ARTIFACTS = TextKind("artifact", bounded_by="tenant", by_name=True)
MESSAGES = TextKind("message", bounded_by="conversation")
COMPRESSED = TextKind("compressed", bounded_by="tenant", by_name=True)
RESERVATIONS = TextKind("reservation", bounded_by="tenant")
TEXT_KINDS = {kind.name: kind for kind in (ORIGINALS, ARTIFACTS, MESSAGES, COMPRESSED, RESERVATIONS)}
"""What references stand for, the outputs of tools, the log of a conversation, what hashes of the compress API stand
for, and what keys were charged for replies that go on."""


@dataclass(frozen=True, slots=True)
class StoredText:
    """A text that is kept for people; `about` is what a list shows of it."""

    name: str
    text: str
    about: Mapping[str, str | int | float]


class DecisionStore(Protocol):
    """What was decided at each step of a history, and sent."""

    async def memory(self, key: Key, anchors: Sequence[str]) -> Memory:
        """The records of the steps that end at these anchors, and the recall exchanges behind the replies to them, in
        the order in which they were stored; and the summaries for the prompt (compactions and digests) whose `first`
        is one of these anchors, in that order, those rejected, too. One round trip."""

    async def remember(self, steps: Sequence[tuple[Key, StepRecord]]) -> None:
        """Store records, in this order and in one round trip. Where an anchor has one, its edits, reason and `recall`
        stay; `sent` and `at` are filled in, and the newest win."""

    async def claim(self, key: Key, record: StepRecord) -> StepRecord:
        """As `remember` for one record, but returns the one that counts: this one, or the first. For decisions that
        cannot be derived, before their bytes are sent."""

    async def newest_step(self, key: Key) -> StepRecord | None:
        """The step that was sent last, in any branch of the history: for people."""

    async def supersede(self, key: Key, record: StepRecord) -> None:
        """Store the record in the place of the one that its anchor has: that request was refused, and this one is sent
        instead."""

    async def put_snapshot(self, key: Key, snapshot: Snapshot, instead_of: str = "") -> None:
        """Store a snapshot; the same anchor and fingerprint again takes the place of the former, and that of the anchor
        `instead_of` goes. Of one conversation the newest SNAPSHOTS stay."""

    async def snapshot(self, key: Key, fingerprint: str, anchors: Sequence[str]) -> Snapshot | None:
        """The snapshot under this fingerprint of the last of these anchors that has one."""

    async def insert(self, key: Key, insert: Insert) -> None:
        """Store the recall exchange behind a reply. For the same reply the newest wins; for one anchor the newest
        INSERTS replies stay."""

    def announce_exchange(self) -> None:
        """Let all others who use the store see at once that a recall exchange was had here. Never raises."""

    def foreign_exchanges(self) -> int | None:
        """How many others have announced so far, without asking the store; None where only the store could say it."""


class SummaryStore(Protocol):
    """Summaries, the leases of those who write them, and what they cost."""

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

    async def spend(self, key: Key, kind: str, spent: SummaryCost) -> None:
        """Add to what was spent on this conversation for `kind`."""

    async def spent(self, key: Key) -> Mapping[str, SummaryCost]:
        """What was spent on it so far, by kind."""

    async def take(self, purse: Purse, dollars: float, limit: float = math.inf) -> bool:
        """Add to the sum taken from a purse, unless the sum would then be above `limit`; whether it was added. Less
        than nothing is given back, within any limit. All who share the store see the same sum."""


class TextStore(Protocol):
    """Texts that are kept for people; the model never needs them."""

    async def put_texts(self, key: Key, kind: TextKind, texts: Sequence[StoredText], limit: int | None = None) -> None:
        """Store texts of a kind. Of a name that the conversation has, `about` stays. `limit`: bytes of a bounded kind
        that stay, of the tenant or of the conversation."""

    async def list_texts(self, key: Key, kind: TextKind) -> Sequence[StoredText]:
        """All of a conversation, in the order in which they were stored, without the texts themselves."""

    async def texts(self, key: Key, kind: TextKind, names: Sequence[str]) -> Mapping[str, str]:
        """The texts of these names that are there. The caller asks for as many as fit into memory."""

    async def conversations_with(self, tenant: str, kind: TextKind, name: str) -> Sequence[str]:
        """The conversations of the tenant that have a text of this name; only of kinds that are found by name."""


class EventStore(Protocol):
    """What happened, for audits."""

    async def note(self, tenant: str, event: Event) -> None:
        """Store an event; the newest EVENTS of a tenant stay, for the time to live."""

    async def events(self, tenant: str | None, conversation: str | None, most: int) -> Sequence[tuple[str, Event]]:
        """The newest events, oldest first, each with its tenant: of one tenant or all, of one conversation or all."""


class OwnerStore(Protocol):
    """Who has sent a conversation: in a tenant of several, each deletes what is its own."""

    async def own(self, key: Key, owner: str) -> None:
        """Note that this owner has sent the conversation."""

    async def owners(self, key: Key) -> Collection[str]:
        """All who have sent it, as far as was noted; and who has sent it last, by its bills."""

    async def conversations(self, tenant: str, owner: str | None = None) -> Sequence[str]:
        """The conversations of the tenant: all, or those of which `owners` names this one."""

    async def disown(self, key: Key, owner: str) -> int:
        """Forget that this owner has sent it. Returns how many others have."""

    async def delete_texts(self, key: Key, kind: TextKind, names: Sequence[str]) -> None:
        """Delete the texts of these names."""

    async def delete_summaries(self, key: Key, ids: Collection[str]) -> None:
        """Delete the summaries of these ids."""

    async def delete_bills(self, key: Key, ids: Collection[str]) -> None:
        """Delete the bills of these ids, and take them out of the conversation's sums; the sums of days stay."""


class BillStore(Protocol):
    """What requests cost: their bills, and the sums of these by day and by conversation. Bills and the sums of a
    conversation go with it. The sums of a day hold nothing of a conversation, and go after DAYS days, or with their
    tenant."""

    async def add_bills(self, bills: Sequence[RequestBill]) -> None:
        """Store bills, and add them to the sums of their day and of their conversation. Of a conversation the newest
        BILLS stay. A bill whose id is there is not added again: a write whose answer was lost can be repeated. In
        whatever order bills are added, and by whom, the sums are the same. A bill of no conversation is
        added to its day alone."""

    async def day_rows(self, since: str, tenant: str | None = None, owner: str | None = None) -> Sequence[DayRow]:
        """The sums of this day (as in 2026-01-31) and later ones, of one tenant or all, of one owner or all, in the
        order of days."""

    async def conversation_rows(
        self, tenant: str | None = None, owner: str | None = None, before: float | None = None, most: int = 50
    ) -> Sequence[ConversationRow]:
        """The sums of conversations whose newest bill is older than `before`, the newest first: of one tenant or all,
        of those whose newest request is this owner's or of all. In Redis those of an owner are looked for among the
        newest 20,000 of the tenant."""

    async def request_bills(self, key: Key) -> Sequence[RequestBill]:
        """The bills of a conversation, its summaries' too, oldest first."""


class KeyStore(Protocol):
    """Rows of keys of this gateway, without the keys themselves. They are no tenant's, and do not go with time."""

    async def add_key(self, row: KeyRow) -> bool:
        """Store a row. False, and nothing is stored, where there is one of this name or with this SHA-256, or KEYS."""

    async def key_rows(self, unless: str = "") -> tuple[str, Sequence[KeyRow]] | None:
        """All rows, in the order of their names, and what this state of them is called; None where that is `unless`."""

    async def delete_key(self, name: str) -> bool:
        """Delete the row of this name; whether there was one."""


class Store(DecisionStore, SummaryStore, TextStore, EventStore, OwnerStore, BillStore, KeyStore, Protocol):
    """Memory that workers, restarts and replicas share."""

    @property
    def shared(self) -> bool:
        """Whether another store of the same URL has the same content."""

    @property
    def misses(self) -> int:
        """How many records could not be read so far."""

    async def open(self) -> None:
        """Make it usable, or StoreTrouble. From then on each operation opens it anew where that is needed."""

    async def close(self) -> None:
        """Close files and connections. Harmless where it is closed."""

    async def ready(self) -> bool:
        """Whether it is open and can be read and written now. Never raises."""

    async def delete(self, key: Key, *, with_events: bool = True) -> int:
        """Delete a conversation, and all that is stored of it: 1, or 0 where there is none (its events go all the
        same). A second time is harmless."""

    async def delete_tenant(self, tenant: str, *, with_events: bool = True) -> int:
        """Delete a tenant's conversations and events, and what its days cost. Returns how many conversations there
        were."""

    async def trim(self, limit: int) -> tuple[int, int] | None:
        """Where more bytes are stored than the limit, delete conversations until there is room: the oldest of the
        tenant that holds most, again and again. Returns how many bytes are stored now, and how many conversations went;
        None where another replica has looked a moment ago."""

    async def sweep(self, older_than: float) -> int:
        """Delete the conversations last written before this time (seconds since 1970), and the events noted before it.
        Returns how many conversations they were."""

    async def secret(self, name: str) -> bytes:
        """32 random bytes, made at the first call and the same from then on for all who share the store."""


TTL = 30 * 86_400
"""Seconds after which what was not used is deleted."""
_LONGEST = 10**9 * 86_400


def parameters(query: str, names: Collection[str]) -> Mapping[str, str]:
    """The parameters behind the question mark of a URL. Raises ValueError where one has none of these names."""
    values = dict(parse_qsl(query, keep_blank_values=True))
    if unknown := sorted(values.keys() - set(names)):
        raise ValueError(f"there is no parameter {unknown[0]!r}: known are {', '.join(sorted(names))}")
    return values


def ttl(values: Mapping[str, str]) -> int:
    """The time to live, in seconds. Raises ValueError."""
    text = values.get("ttl", f"{TTL}s")
    with suppress(ValueError):
        if 1 <= (length := seconds(text)) < _LONGEST:
            return int(length)
    raise ValueError(f"ttl {text!r} is no duration: write 3600s, 90m, 12h or 30d")


def ttl_of(url: str) -> int:
    """The time to live that the URL of a store names, in seconds. Raises ValueError."""
    return ttl(dict(parse_qsl(url.partition("?")[2])))


def public_url(url: str) -> str:
    """The URL of a store as anybody may see it: without user, password and parameters."""
    return re.sub(r"//.*@", "//", url.partition("?")[0])


BACK_ENDS = {"sqlite": "sqlite.store:from_url"} | dict.fromkeys(REDIS, "redis.store:from_url")
"""Scheme of a URL -> what makes a Store of it, in this package, imported when it is used."""

Announce = Callable[[str], None]
"""Told, in a sentence, that a store of release 0.1 was set aside."""


def open_store(
    url: str, *, patience: float = DEADLINE, keyring: Keyring | None = None, announce: Announce = lambda _: None
) -> Store:
    """The store that `url` names, not yet opened. `patience`: seconds after which an answer comes too late; `keyring`:
    what its texts are encrypted with. Raises ValueError for an invalid place; the settings have refused others.
    """
    from_url: Callable[..., Store] = resolve_name(f"{__name__}.{BACK_ENDS[url.partition(':')[0]]}")
    return from_url(url, patience=patience, keyring=keyring, announce=announce)
