"""A store as callers see it: the decisions, the records by their rules, and what is done with all of them.

Laws
  Of a name that a conversation has, what a list shows of it stays, and where its kind says so, the text.
  The newest texts of a bounded kind stay, as many as fit; the newest events stay.
  One limit for all that is stored is fair between tenants: whoever holds most gives up its oldest conversation first.
  Keys of this gateway are stored without the keys themselves: their rows hold no text, and are not encrypted.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from functools import partial
from hashlib import sha256
from operator import attrgetter
from typing import Protocol

from pydantic import ValidationError

from policies.model.summary_record import SummaryCost
from proxy.config import KeyRow
from proxy.memory import serialization
from proxy.memory.bills import BillStore
from proxy.memory.decisions import DecisionStore, Key
from proxy.memory.records import (
    EVENTS,
    KEY,
    OWNER,
    SPENT,
    TOTAL,
    Change,
    Event,
    Kind,
    RecordStore,
    Rows,
    StoredText,
    TextKind,
    TextRow,
    deletion,
    portions,
)
from proxy.memory.serialization import (
    Codec,
    Names,
    UnreadableRecordError,
    name_bytes,
    names_of,
    packed,
    place,
    readable,
    record_of,
)

KEYS = 2_000
"""Rows of keys that are stored, at most."""
_ROOM = 0.95
"""The share of the limit that is come down to, so that not every write is one too many."""


class _Rules:
    """The base of each part, which a back end fills."""

    _records: RecordStore
    _codec: Codec


class TextStore(_Rules):
    """Texts that are kept for people; the model never needs them."""

    async def put_texts(self, key: Key, kind: TextKind, texts: Sequence[StoredText], limit: int | None = None) -> None:
        """Store texts of a kind. Of a name that the conversation has, `about` stays. `limit`: bytes of a bounded kind
        that stay, of the tenant or of the conversation."""
        names = names_of(key)
        for some in portions(texts):
            # In a thread: texts may be long, and no request waits for them.
            rows = await asyncio.to_thread(_text_rows, self._codec, names, kind, some)
            stored = partial(self._stored, names, kind, rows)
            await self._records.change([Change(*names, {kind: list(rows)}, stored)])
        while limit is not None and await self._records.drop_oldest(kind, *names, limit):
            pass

    def _stored(
        self, names: Names, kind: TextKind, rows: Mapping[bytes, TextRow], there: Mapping[Kind, Rows]
    ) -> Mapping[Kind, Mapping[bytes, TextRow]]:
        """The rows that stay under these names."""
        stored = dict(rows)
        for name, row in rows.items():
            if (before := there[kind].get(name)) is not None:
                content = row.content
                if kind.first_stays and _text(self._codec, names, kind, name, before.content) is not None:
                    content = self._codec.reseal(place(kind.name, *names, name), before.content)
                stored[name] = before._replace(content=content)
        return {kind: stored}

    async def list_texts(self, key: Key, kind: TextKind) -> Sequence[StoredText]:
        """All of a conversation, in the order in which they were stored, without the texts themselves."""
        names = names_of(key)
        rows = await self._records.read(kind, *names)

        def listed(name: bytes, row: TextRow) -> StoredText | None:
            if (text_name := self._codec.read(serialization.name, name)) is None:
                return None
            where = place(f"about {kind.name}", *names, name)
            about = self._codec.open(where, partial(record_of, "about", None), row.about)
            return None if about is None else StoredText(text_name, "", about)

        return readable(listed(name, row) for name, row in rows.items() if row is not None)

    async def texts(self, key: Key, kind: TextKind, names: Sequence[str]) -> Mapping[str, str]:
        """The texts of these names that are there. The caller asks for as many as fit into memory."""
        texts: dict[str, str] = {}

        def opened(rows: Rows) -> dict[str, str | None]:
            read = partial(_text, self._codec, names_of(key), kind)
            return {serialization.name(name): read(name, row.content) for name, row in rows.items()}

        for some in portions(map(name_bytes, names)):
            rows = await self._records.read(kind, *names_of(key), some)
            by_name = await asyncio.to_thread(opened, rows)
            texts |= {name: text for name, text in by_name.items() if text is not None}
        return texts

    async def conversations_with(self, tenant: str, kind: TextKind, name: str) -> Sequence[str]:
        """The conversations of the tenant that have a text of this name; only of kinds that are found by name."""
        names = await self._records.find(name_bytes(tenant), kind, name_bytes(name))
        return readable(self._codec.read(serialization.name, each) for each in names)

    async def delete_texts(self, key: Key, kind: TextKind, names: Sequence[str]) -> None:
        """Delete the texts of these names."""
        for some in portions(map(name_bytes, names)):
            await self._records.change([deletion(*names_of(key), kind, some)])


class EventStore(_Rules):
    """Events, for audits."""

    async def note(self, tenant: str, event: Event) -> None:
        """Store an event; the newest EVENTS of a tenant stay, for the time to live."""
        await self._records.note(name_bytes(tenant), name_bytes(event.conversation), packed("event", event))

    async def events(self, tenant: str | None, conversation: str | None, most: int) -> Sequence[tuple[str, Event]]:
        """The newest events, oldest first, each with its tenant: of one tenant or all, of one conversation or all."""
        of_tenant, of_it = (None if name is None else name_bytes(name) for name in (tenant, conversation))
        rows = await self._records.events(of_tenant, of_it, max(0, min(most, EVENTS)))
        return readable(self._codec.read(serialization.event_of, *row) for row in rows)


class OwnerStore(_Rules):
    """Who has sent a conversation: in a tenant of several, each deletes what is its own."""

    async def own(self, key: Key, owner: str) -> None:
        """Note that this owner has sent the conversation."""
        await self._records.change([Change(*names_of(key), {}, lambda _: {OWNER: {name_bytes(owner): b""}})])

    async def owners(self, key: Key) -> Collection[str]:
        """All who have sent it, as far as was noted; and who has sent it last, by its bills."""
        owners = await self._records.read(OWNER, *names_of(key))
        total = (await self._records.read(TOTAL, *names_of(key), [b""])).get(b"")
        noted = readable(self._codec.read(serialization.name, owner) for owner in owners)
        return {*noted, *([] if total is None else [total.labels.owner])}

    async def conversations(self, tenant: str, owner: str | None = None) -> Sequence[str]:
        """The conversations of the tenant: all, or those of which `owners` names this one."""
        of_tenant = name_bytes(tenant)
        if owner is None:
            names = await self._records.find(of_tenant)
        else:
            names = await self._records.find(of_tenant, OWNER, name_bytes(owner))
        billed = [] if owner is None else await self._records.search(TOTAL, of_tenant, owner)
        noted = readable(self._codec.read(serialization.name, name) for name in names)
        return list(dict.fromkeys([*noted, *(row.conversation for row in billed)]))

    async def disown(self, key: Key, owner: str) -> int:
        """Forget that this owner has sent it. Returns how many others have."""
        await self._records.change([deletion(*names_of(key), OWNER, [name_bytes(owner)])])
        return len(await self.owners(key))


class CostStore(_Rules):
    """The costs of the summaries of conversations, by kind."""

    async def spend(self, key: Key, kind: str, cost: SummaryCost) -> None:
        """Add to what was spent on this conversation for `kind`."""
        name = name_bytes(kind)

        def added(there: Mapping[Kind, Rows]) -> Mapping[Kind, Mapping[bytes, SummaryCost]]:
            return {SPENT: {name: (there[SPENT].get(name) or SummaryCost()) + cost}}

        await self._records.change([Change(*names_of(key), {SPENT: [name]}, added)])

    async def spent(self, key: Key) -> Mapping[str, SummaryCost]:
        """The cost of its summaries so far, by kind."""
        rows = await self._records.read(SPENT, *names_of(key))
        return {serialization.name(kind): cost for kind, cost in rows.items() if cost is not None}


class KeyStore(_Rules):
    """Rows of keys. They are no tenant's, and leave the store by revocation alone."""

    async def add_key(self, row: KeyRow) -> bool:
        """Store a row. False, and nothing is stored, where there is one of this name or with this SHA-256, or KEYS."""
        digest = row.sha256.encode()
        content = key_bytes(row)
        is_there = False

        def added(there: Mapping[Kind, Rows]) -> Mapping[Kind, Mapping[bytes, bytes]]:
            nonlocal is_there
            rows = there[KEY]
            is_free = digest not in rows and row.name not in {each.name for each in self._read(rows)}
            is_there = rows.get(digest) == content or (is_free and len(rows) < KEYS)
            return {KEY: {digest: content}} if is_there else {}

        await self._records.change([Change(b"", b"", {KEY: None}, added)])
        return is_there

    async def key_rows(self, unless: str = "") -> tuple[str, Sequence[KeyRow]] | None:
        """All rows, in the order of their names, and what this state of them is called; None where that is `unless`."""
        rows = await self._records.read(KEY, b"", b"")
        revision = sha256(b"\n".join(repr(each).encode() for each in sorted(rows.items()))).hexdigest()
        return None if revision == unless else (revision, sorted(self._read(rows), key=attrgetter("name")))

    async def delete_key(self, name: str) -> bool:
        """Delete the row of this name. True where there was one."""
        digests: list[bytes] = []

        def without(there: Mapping[Kind, Rows]) -> Mapping[Kind, Mapping[bytes, None]]:
            nonlocal digests
            digests = [row.sha256.encode() for row in self._read(there[KEY]) if row.name == name]
            return {KEY: dict.fromkeys(digests)}

        await self._records.change([Change(b"", b"", {KEY: None}, without)])
        return bool(digests)

    def _read(self, rows: Rows) -> list[KeyRow]:
        return readable(self._codec.read(key_row, *each) for each in rows.items())


class Lifecycle(Protocol):
    """The care of a store as a whole."""

    @property
    def shared(self) -> bool:
        """True where another store of the same URL has the same content."""

    @property
    def misses(self) -> int:
        """How many records could not be read so far."""

    async def open(self) -> None:
        """Make it usable, or StoreTrouble. From then on each operation opens it anew where that is needed."""

    async def close(self) -> None:
        """Close files and connections. Harmless where it is closed."""

    async def ready(self) -> bool:
        """True where it is open and can be read and written now. Never raises."""

    async def delete(self, key: Key, *, with_events: bool = True) -> int:
        """Delete a conversation, and all that is stored of it: 1, or 0 where there is none (its events go all the
        same). A second time is harmless."""

    async def delete_tenant(self, tenant: str, *, with_events: bool = True) -> int:
        """Delete a tenant's conversations and events, and what its days cost; how many conversations there were."""

    async def trim(self, limit: int) -> tuple[int, int] | None:
        """Where more bytes are stored than the limit, delete conversations until there is room: the oldest of the
        tenant that holds most, again and again. Returns how many bytes are stored now, and how many conversations went;
        None where another replica has looked a moment ago."""

    async def sweep(self, older_than: float) -> int:
        """Delete the conversations last written before this time (seconds since 1970), and the events noted before it.
        Returns how many conversations they were."""

    async def secret(self, name: str) -> bytes:
        """32 random bytes, made at the first call and the same from then on for all who share the store."""


class Store(TextStore, EventStore, OwnerStore, CostStore, BillStore, KeyStore, DecisionStore, Lifecycle):
    """Memory that workers, restarts and replicas share."""


async def trimmed(
    size: int,
    limit: int,
    by_tenant: MutableMapping[bytes, int],
    oldest: Callable[[bytes], Awaitable[Sequence[tuple[bytes, int]]]],
    delete: Callable[[Names], Awaitable[object]],
) -> tuple[int, int]:
    """Delete conversations until `size` is below the limit, with some room. `by_tenant`: about how many bytes each
    tenant has; `oldest`: a few conversations of one, not used for longest, and about how many bytes each has. Returns
    the size then, and how many went."""
    share, now, count = size / max(1, sum(by_tenant.values())), float(size), 0
    while by_tenant and now > limit * _ROOM:
        tenant = max(by_tenant, key=by_tenant.__getitem__)
        few = await oldest(tenant)
        for name, of_it in few:
            if now <= limit * _ROOM or by_tenant[tenant] < max(by_tenant.values()):
                break
            await delete((tenant, name))
            by_tenant[tenant] -= of_it
            now -= of_it * share
            count += 1
        if not few:
            del by_tenant[tenant]
    return int(now), count


def _text_rows(codec: Codec, names: Names, kind: TextKind, texts: Iterable[StoredText]) -> dict[bytes, TextRow]:
    """Texts as they are stored, by their names."""
    rows = {}
    for each in texts:
        name = name_bytes(each.name)
        about = codec.seal(place(f"about {kind.name}", *names, name), packed("about", dict(each.about)))
        content = codec.seal(place(kind.name, *names, name), packed("text", name, each.text))
        rows[name] = TextRow(about, content, len(about) + len(content))
    return rows


def _text(codec: Codec, names: Names, kind: TextKind, name: bytes, stored: object) -> str | None:
    """The text of this name; None where it cannot be read."""
    return codec.open(place(kind.name, *names, name), partial(record_of, "text", name), stored)


def key_bytes(row: KeyRow) -> bytes:
    return packed("key", row.model_dump(mode="json", exclude_defaults=True))


def key_row(digest: bytes, stored: object) -> KeyRow:
    """The row with this SHA-256. Raises UnreadableRecordError."""
    try:
        row = KeyRow.model_validate(record_of("key", None, stored), strict=False)
    except ValidationError as error:  # a newer release may know more
        raise UnreadableRecordError("it is no row of a key") from error
    if row.sha256.encode() != digest:
        raise UnreadableRecordError("it belongs to another key")
    return row
