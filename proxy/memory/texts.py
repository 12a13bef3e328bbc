"""Texts, events and owners of conversations: what people read, and whose it is.

Laws
  Of a name that a conversation has, what a list shows of it stays, and where its kind says so, the text.
  The newest texts of a bounded kind stay, as many as fit; the newest events stay.
"""

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TypeVar

from proxy.memory import serialization
from proxy.memory.decisions import Key
from proxy.memory.records import (
    EVENTS,
    OWNER,
    TOTAL,
    Change,
    Event,
    Kind,
    RecordStore,
    Rows,
    StoredText,
    TextKind,
    TextRow,
)
from proxy.memory.serialization import Codec, name_bytes, names_of, readable

AT_ONCE = 200
"""Rows in one change."""

T = TypeVar("T")


class TextStore:
    """Texts that are kept for people; the model never needs them."""

    _records: RecordStore
    _codec: Codec

    async def put_texts(self, key: Key, kind: TextKind, texts: Sequence[StoredText], limit: int | None = None) -> None:
        """Store texts of a kind. Of a name that the conversation has, `about` stays. `limit`: bytes of a bounded kind
        that stay, of the tenant or of the conversation."""
        names = names_of(key)
        for some in portions(texts):
            # In a thread: texts may be long, and no request waits for them.
            rows = await asyncio.to_thread(self._codec.text_rows, names, kind, some)
            stored = partial(self._stored, key, kind, rows)
            await self._records.change([Change(*names, {kind: list(rows)}, stored)])
        while limit is not None and await self._records.drop_oldest(kind, *names, limit):
            pass

    def _stored(
        self, key: Key, kind: TextKind, rows: Mapping[bytes, TextRow], there: Mapping[Kind, Rows]
    ) -> Mapping[Kind, Mapping[bytes, TextRow]]:
        """The rows that stay under these names."""
        stored = dict(rows)
        for name, row in rows.items():
            if (before := there[kind].get(name)) is not None:
                content = self._codec.first_text(names_of(key), kind, name, before.content, row.content)
                stored[name] = before._replace(content=content)
        return {kind: stored}

    async def list_texts(self, key: Key, kind: TextKind) -> Sequence[StoredText]:
        """All of a conversation, in the order in which they were stored, without the texts themselves."""
        names = names_of(key)
        rows = await self._records.rows(kind, *names)
        listed = (self._codec.listed_text(names, kind, name, row.about) for name, row in rows.items() if row)
        return readable(listed)

    async def texts(self, key: Key, kind: TextKind, names: Sequence[str]) -> Mapping[str, str]:
        """The texts of these names that are there. The caller asks for as many as fit into memory."""
        texts: dict[str, str] = {}
        for some in portions(map(name_bytes, names)):
            rows = await self._records.read(kind, *names_of(key), some)
            texts |= await asyncio.to_thread(self._codec.texts, names_of(key), kind, rows)
        return texts

    async def conversations_with(self, tenant: str, kind: TextKind, name: str) -> Sequence[str]:
        """The conversations of the tenant that have a text of this name; only of kinds that are found by name."""
        names = await self._records.find(name_bytes(tenant), kind, name_bytes(name))
        return readable(self._codec.read(serialization.name, each) for each in names)

    async def delete_texts(self, key: Key, kind: TextKind, names: Sequence[str]) -> None:
        """Delete the texts of these names."""
        for some in portions(map(name_bytes, names)):
            await self._records.change([deletion(key, kind, some)])


class EventStore:
    """What happened, for audits."""

    _records: RecordStore
    _codec: Codec

    async def note(self, tenant: str, event: Event) -> None:
        """Store an event; the newest EVENTS of a tenant stay, for the time to live."""
        content = serialization.packed("event", event)
        await self._records.note(name_bytes(tenant), name_bytes(event.conversation), content)

    async def events(self, tenant: str | None, conversation: str | None, most: int) -> Sequence[tuple[str, Event]]:
        """The newest events, oldest first, each with its tenant: of one tenant or all, of one conversation or all."""
        of_tenant, of_it = (None if name is None else name_bytes(name) for name in (tenant, conversation))
        rows = await self._records.events(of_tenant, of_it, max(0, min(most, EVENTS)))
        return readable(self._codec.read(serialization.event_of, *row) for row in rows)


class OwnerStore:
    """Who has sent a conversation: in a tenant of several, each deletes what is its own."""

    _records: RecordStore
    _codec: Codec

    async def own(self, key: Key, owner: str) -> None:
        """Note that this owner has sent the conversation."""
        await self._records.change([Change(*names_of(key), {}, lambda _: {OWNER: {name_bytes(owner): b""}})])

    async def owners(self, key: Key) -> Collection[str]:
        """All who have sent it, as far as was noted; and who has sent it last, by its bills."""
        owners = await self._records.rows(OWNER, *names_of(key))
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
        await self._records.change([deletion(key, OWNER, [name_bytes(owner)])])
        return len(await self.owners(key))


def deletion(key: Key, kind: Kind, names: Sequence[bytes]) -> Change:
    """Delete the rows of these names."""
    return Change(*names_of(key), {kind: names}, lambda there: {kind: dict.fromkeys(there[kind])})


def portions(rows: Iterable[T]) -> Iterator[list[T]]:
    """AT_ONCE of them, again and again."""
    left = iter(rows)
    return iter(lambda: list(islice(left, AT_ONCE)), [])
