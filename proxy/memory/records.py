"""Records for people and accounts, and the one interface by which a back end keeps it: rows of several kinds, each
under a name, in a place (a conversation, or a day) of a tenant.

`store` and `bills` say by which rules; a back end says in which tables or keys the rows stand.

Laws
  A change of a place is made whole or not at all. Its rule sees the rows as they are when it is made, and may be asked
  several times; nothing else may follow from it.
  A change that is made a second time changes nothing where its rule says so: a lost answer may be asked for again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from policies.money.bills import BillSums, Labels

AT_ONCE = 200
"""Rows in one change."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """A kind of rows; there is one of each."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class TextKind(Kind):
    """A kind of texts that are kept for people."""

    bounded_by: Literal["tenant", "conversation"] | None = None
    """Whose bytes of this kind are limited: the oldest texts go first. Texts of a bounded kind also go when the time to
    live has passed since they were first stored; all others go with their conversation."""
    by_name: bool = False
    """True where people look for a text in all conversations of a tenant."""
    first_stays: bool = False
    """True where the first readable text of a name stays. Elsewhere a name is a digest: same name, same text."""


ORIGINALS = TextKind("original", by_name=True, first_stays=True)
ARTIFACTS = TextKind("artifact", bounded_by="tenant", by_name=True)
MESSAGES = TextKind("message", bounded_by="conversation")
COMPRESSED = TextKind("compressed", bounded_by="tenant", by_name=True)
RESERVATIONS = TextKind("reservation", bounded_by="tenant")
CLIENT_SUMMARIES = TextKind("client_summary", bounded_by="tenant", by_name=True)
_KINDS = (ORIGINALS, ARTIFACTS, MESSAGES, COMPRESSED, RESERVATIONS, CLIENT_SUMMARIES)
TEXT_KINDS = {kind.name: kind for kind in _KINDS}
"""Texts behind references, the outputs of tools, the log of a conversation, what hashes of the compress API stand
for, what keys were charged for replies that go on, and digests of the summaries that clients asked for."""

OWNER = Kind("owner")
"""Who has sent a conversation: the name alone, without a value."""
BILL = Kind("bill")
"""A RequestBill of a conversation, by its id."""
TOTAL = Kind("total")
"""The ConversationRow of a conversation, under no name: the sums of its bills."""
SPENT = Kind("spent")
"""The SummaryCost of a conversation's summaries of one kind, by that."""
DAY = Kind("day")
"""A DaySum, by its labels. Its place is a day (as in 2026-01-31); it stays for DAYS days, or as long as its tenant."""
DAY_LENGTH = 10
"""Of the name of a day. The places in which its tools stand have more behind it."""
ADDED = Kind("added")
"""The ids of bills that were added to a day, for an hour at least; without a value."""
KEY = Kind("key")
"""The KeyRow of a key, as bytes, by its SHA-256. They are no tenant's, stand in no place, and do not go with time."""

EVENTS = 10_000
"""About how many events are stored of one tenant, the newest."""
DELETIONS = "\0deletions"
"""No client's tenant: its events announce deletions to all who share the store. A list of all events leaves it out."""
DAYS = 400
"""How many days their sums stay."""
ADDED_SECONDS = 3_600


@dataclass(frozen=True, slots=True)
class StoredText:
    """A text that is kept for people; `about` is what a list shows of it."""

    name: str
    text: str
    about: Mapping[str, str | int | float]


class TextRow(NamedTuple):
    """A text as it is stored: what a list shows of it, the text, where it was asked for, and the bytes of both."""

    about: bytes
    content: bytes
    size: int


@dataclass(frozen=True, slots=True)
class DaySum:
    """A row of a day: what requests under the same labels came to whose prefix ended alike."""

    day: str
    labels: Labels
    prefix: str
    sums: BillSums


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a summary, or a deletion: what people audit. It holds no text of a conversation."""

    at: float
    conversation: str
    name: str
    details: Mapping[str, str | int | float]


class Rows(dict[bytes, Any]):
    """The rows of a kind that are there, by name; None where one cannot be read, which is a miss."""

    count: Callable[[], int] = lambda: 0
    """How many rows of the kind the place has."""
    last = 0
    """The number of the newest row, where they have one."""


class Change(NamedTuple):
    """A change of the rows of a place."""

    tenant: bytes
    place: bytes
    reads: Mapping[Kind, Sequence[bytes] | None]
    """The names of the rows that the rule wants to see; None: all."""
    rule: Callable[[Mapping[Kind, Rows]], Mapping[Kind, Mapping[bytes, Any]]]
    """Returns the rows to store; None in the place of one that is to be deleted, which was read."""


class RecordStore(Protocol):
    """Rows of all kinds, and events. Each method raises StoreTrouble."""

    async def change(self, changes: Sequence[Change]) -> None:
        """Make these changes, each for itself."""

    async def read(self, kind: Kind, tenant: bytes, place: bytes, names: Sequence[bytes] | None = None) -> Rows:
        """The rows of these names: as many as fit into memory. None: all of the place, in the order in which they were
        stored; texts without their contents."""

    async def find(self, tenant: bytes, kind: Kind | None = None, name: bytes = b"") -> Sequence[bytes]:
        """The conversations of a tenant: all, or those that have a row of this name."""

    async def search(
        self,
        kind: Kind,
        tenant: bytes | None,
        owner: str | None,
        since: str = "",
        before: float | None = None,
        most: int | None = None,
        of_tools: bool = False,
    ) -> Sequence[Any]:
        """Sums of a tenant or of all, of an owner or of all: of DAY those of this day and later ones, of tools alone or
        of all else, of TOTAL the newest that are older than `before`. In Redis, where `most` are wanted of an owner,
        these are looked for among the newest 20,000 conversations of the tenant."""

    async def drop_oldest(self, kind: TextKind, tenant: bytes, place: bytes, limit: int) -> int:
        """Delete some of the oldest texts of a bounded kind, where they are more bytes than the limit. How many went; 0
        where they are not more."""

    async def note(self, tenant: bytes, conversation: bytes, event: bytes) -> None:
        """Store an event; about the newest EVENTS of a tenant stay, for the time to live."""

    async def events(
        self, tenant: bytes | None, conversation: bytes | None, most: int
    ) -> Sequence[tuple[bytes, bytes, bytes]]:
        """The newest events, oldest first, each with its tenant and conversation: of one tenant or all (but the one
        that announces deletions), of one conversation or all."""


def deletion(tenant: bytes, place: bytes, kind: Kind, names: Sequence[bytes]) -> Change:
    """Delete the rows of these names."""
    return Change(tenant, place, {kind: names}, lambda there: {kind: dict.fromkeys(there[kind])})


def portions(rows: Iterable[T]) -> Iterator[list[T]]:
    """AT_ONCE of them, again and again."""
    left = iter(rows)
    return iter(lambda: list(islice(left, AT_ONCE)), [])
