"""What outlives a request: the contract that every back end keeps, and the table of back ends.

Laws
  Nothing kept here is needed to serve: where the store fails or knows nothing, replay derives the same edits.
  First writer wins: what was decided for an anchor stays, and a second writer takes what it finds.
  Tenants share nothing, not even the knowledge that an id exists.
  Only StoreTrouble is raised, and soon. A record that cannot be read (flipped bit, cut short, other version)
  is not trouble: it counts as a miss and is as good as absent.
  With keys, all that holds a text is encrypted. Names, digests, sizes, times and sums are not, nor are events, which
  hold no text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Literal, Protocol, cast

from policies.model.edits import Insert
from policies.model.memory import Memory, StepRecord
from policies.model.summary_record import SummaryCost, SummaryRecord
from proxy.config.keyring import Keyring

INSERTS = 8
"""Recall exchanges kept for one anchor: a client that asks the same thing for ever fills nothing."""
SUMMARIES = 8
"""Summaries of one kind kept for one beginning, the newest."""
EVENTS = 10_000
"""About how many events are kept of one tenant, the newest; no more are told."""
LONGEST = 86_400.0
"""Seconds that a lease holds, at most."""


class StoreTrouble(Exception):  # noqa: N818 - trouble, not an error: requests are served all the same
    """The back end is down, slow, full, locked or damaged. The message says what a person can do about it."""


@dataclass(frozen=True, slots=True)
class Key:
    """A conversation, always inside its tenant."""

    tenant: str
    conversation: str


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to do something alone for a while. A later holder has a higher `token` (a fence)."""

    name: str
    token: int


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a summary, or a deletion: what people audit. It holds no text of anybody's."""

    at: float
    conversation: str
    name: str
    details: Mapping[str, str | int | float]


Shelf = Literal["artifact", "message"]
"""Where a leaf belongs: the outputs of tools, or the log of a conversation."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A text that is kept for people. Its name is a digest: the same name means the same text. `about` is what a list
    says of it."""

    name: str
    text: str
    about: Mapping[str, str | int | float]


class Store(Protocol):
    """Memory that workers, restarts and replicas share."""

    @property
    def shared(self) -> bool:
        """Whether another store of the same URL sees what this one keeps."""

    @property
    def misses(self) -> int:
        """How many records could not be read so far."""

    async def open(self) -> None:
        """Make it usable, or StoreTrouble. From then on each operation opens it anew where that is needed."""

    async def close(self) -> None:
        """Let go of everything. Harmless where it is closed."""

    async def ready(self) -> bool:
        """Whether it is open and can be read and written now. Never raises."""

    async def memory(self, key: Key, anchors: Sequence[str]) -> Memory:
        """What is known of the steps that end at these anchors, and what stands behind the replies to them (in the
        order in which it was kept), in one round trip. And the summaries for the prompt (compactions and digests)
        whose `first` is one of these anchors, in the order in which they were kept; those rejected, too."""

    async def remember(self, key: Key, record: StepRecord) -> None:
        """Keep the record. Where its anchor has one, the edits, the reason and `recall` that are there stay; `sent`
        and `at` are filled in, and the newest win."""

    async def claim(self, key: Key, record: StepRecord) -> StepRecord:
        """Remember, and learn which record won: this one, or the first. For decisions that cannot be derived,
        before their bytes are sent."""

    async def insert(self, key: Key, insert: Insert) -> None:
        """Keep what stands behind a reply. For the same reply the newest wins; for one anchor the newest INSERTS
        replies are kept."""

    async def keep_originals(self, key: Key, originals: Mapping[str, str]) -> None:
        """Keep what these references stand for, for people: the model is answered from the request in flight. What
        the conversation has already for a reference stays. Off unless a person wants it: the caller decides."""

    async def original(self, tenant: str, ref: str, conversation: str | None) -> Mapping[str, str]:
        """What a reference stands for in each conversation of the tenant that keeps it, or in the one given."""

    async def keep_leaves(self, key: Key, shelf: Shelf, leaves: Sequence[Leaf], most: int) -> None:
        """Keep these texts; of one that the conversation has, what is said about it stays. Of the artifacts of a
        tenant, and of the log of a conversation, no more than `most` bytes are kept: the oldest go first. Each goes
        with its conversation, or when the time to live has passed since it was first kept."""

    async def leaves(self, key: Key, shelf: Shelf) -> Sequence[Leaf]:
        """What a conversation has on this shelf, in the order in which it was kept, and without the texts."""

    async def texts(self, key: Key, shelf: Shelf, names: Sequence[str]) -> Mapping[str, str]:
        """The texts of these names, as far as they are there: the caller asks for so many as it can hold."""

    async def holders(self, tenant: str, name: str) -> Sequence[str]:
        """The conversations of the tenant that have an artifact of this name."""

    async def put_summary(self, key: Key, record: SummaryRecord, lease: Lease | None = None) -> bool:
        """Keep a summary; of one kind and one `first` the newest SUMMARIES are kept. The same id again takes the place
        of the former. False, and nothing is kept, where the lease has passed to another holder since, or nobody knows
        of it any more: whoever deletes a conversation need not fear what is still being made of it (fencing)."""

    async def summaries(self, key: Key) -> Sequence[SummaryRecord]:
        """All of a conversation that are kept, of every kind, in the order in which they were kept: for people."""

    async def lease(self, key: Key, name: str, seconds: float) -> Lease | None:
        """The right to `name` in this conversation for so long; None while somebody has it, be it the same caller."""

    async def release(self, key: Key, lease: Lease) -> None:
        """Give it back. Harmless where it has passed to another holder, and once given back."""

    async def spend(self, key: Key, kind: str, spent: SummaryCost) -> None:
        """Add to what was spent on this conversation for `kind`."""

    async def spent(self, key: Key) -> Mapping[str, SummaryCost]:
        """What was spent on it so far, by kind."""

    async def note(self, tenant: str, event: Event) -> None:
        """Keep an event; the newest EVENTS of a tenant are kept, for as long as a conversation that nobody uses."""

    async def events(self, tenant: str | None, conversation: str | None, most: int) -> Sequence[tuple[str, Event]]:
        """The newest events, oldest first, each with its tenant: of one tenant or all, of one conversation or all."""

    async def delete(self, key: Key) -> int:
        """Forget a conversation, and all that is kept of it: 1, or 0 where there is none (its events go all the same).
        A second time is harmless."""

    async def delete_tenant(self, tenant: str) -> int:
        """Forget a tenant's conversations and events; how many conversations there were."""

    async def sweep(self, older_than: float) -> int:
        """Forget the conversations last written before this time (seconds since 1970), and the events noted before it;
        how many conversations they were."""

    async def secret(self, name: str) -> bytes:
        """32 random bytes, made at the first call and the same from then on for all who share the store."""


_REDIS = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")

BACK_ENDS = {"sqlite": "proxy.store.sqlite.store:from_url"} | dict.fromkeys(_REDIS, "proxy.store.redis.store:from_url")
"""Scheme of a URL -> what makes a Store of it. Imported when chosen: nobody pays for the others."""


class _FromUrl(Protocol):
    def __call__(self, url: str, /, *, patience: float, keyring: Keyring | None) -> Store: ...


def open_store(url: str, *, patience: float = 0.05, keyring: Keyring | None = None) -> Store:
    """The store that `url` names, not yet opened. `patience`: seconds after which an answer comes too late; `keyring`:
    what its texts are encrypted with.

    Raises ValueError for a scheme or a path that cannot be.
    """
    scheme = url.partition(":")[0].lower()
    if scheme not in BACK_ENDS:
        known = ", ".join(f"{name}://" for name in BACK_ENDS)
        raise ValueError(f"no store is called {scheme!r}: known are {known}")
    return cast(_FromUrl, resolve_name(BACK_ENDS[scheme]))(url, patience=patience, keyring=keyring)
