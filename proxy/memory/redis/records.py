"""Rows for people and accounts in Redis, as `layouts` says how they stand; and events, a capped stream of each tenant.

Laws
  What a change has read is read again when it is written, in one script: where it is no longer the same, the change is
  made anew.
  Texts are indexed before they are stored, and deleted before their entries in an index: what is interrupted is found
  again.
"""

import asyncio
import math
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import Any

from policies.money.bills import ConversationRow
from proxy.memory.decisions import StoreTrouble
from proxy.memory.records import (
    ADDED,
    DAY,
    DELETIONS,
    EVENTS,
    KEY,
    OWNER,
    TEXT_KINDS,
    Change,
    DaySum,
    Kind,
    Rows,
    TextKind,
)
from proxy.memory.redis.connection import RedisConnection
from proxy.memory.redis.keys import Command, Keys
from proxy.memory.redis.layouts import DayLayout, Layout, TextLayout, conversation_row, field_of, layout_of
from proxy.memory.redis.scripts import GUARDED, NOTE, NOTE_EVENT
from proxy.memory.serialization import Codec, Names, readable
from proxy.memory.texts import AT_ONCE, portions

_LOOKED_AT, _PAGE = 20_000, 500
"""Conversations of a tenant, the newest, among which those of one owner are looked for; and how many at once."""
_TRIES = 100
"""Attempts to make a change."""
_EVENTS_AT_ONCE = 500
"""Events that are looked at in one trip."""


class _Attempt:
    """One attempt to make a change."""

    def __init__(self, change: Change, layout: Callable[[Kind], Layout]) -> None:
        self.change = change
        self._layout = layout
        reads = {kind: layout(kind).reads(names) for kind, names in change.reads.items()}
        self.reads = [command for guards, others in reads.values() for command in (*guards, *others)]
        """The commands that it begins with."""
        self._guards = {kind: len(guards) for kind, (guards, _) in reads.items()}
        self._counts = {kind: len(guards) + len(others) for kind, (guards, others) in reads.items()}
        self.before: list[Command] = []
        """What is noted in other slots before it is made, and after it."""
        self.after: list[Command] = []
        self.script: Command | None = None
        """Makes it, where nothing has changed meanwhile."""
        self.is_of_conversation = False
        """Whether it stores something of a conversation."""

    def decide(self, replies: Sequence[Any]) -> None:
        """What these commands have answered."""
        there, guards, at = {}, [], 0
        for kind, names in self.change.reads.items():
            end = at + self._counts[kind]
            there[kind] = self._layout(kind).rows(names, *replies[at:end])
            for command, reply in islice(zip(self.reads[at:end], replies[at:end], strict=True), self._guards[kind]):
                guards += [len(command), *command, *map(_guard, reply)]
            at = end
        writes: list[Command] = []
        for kind, stored in self.change.rule(there).items():
            layout = self._layout(kind)
            self.is_of_conversation |= kind not in (DAY, ADDED, KEY) and any(row is not None for row in stored.values())
            writes += layout.writes(stored, there.get(kind, Rows()))
            self.before += layout.notes(stored)
            self.after += layout.removals(stored, there.get(kind, Rows()))
        if writes:
            keys = dict.fromkeys(str(command[1]) for command in (*self.reads, *writes))
            words = (word for command in writes for word in (len(command), *command))
            self.script = GUARDED.on([*keys], sum(self._guards.values()), *guards, *words)


def _guard(value: bytes | float | None) -> bytes:
    """A value as it is compared; redis-py makes numbers of scores, and an id that is there stays."""
    return b"" if value is None else value if isinstance(value, bytes) else b"*"


class RedisRecords:
    """A RecordStore in Redis."""

    def __init__(
        self, connection: RedisConnection, keys: Keys, codec: Codec, ttl: int, clock: Callable[[], float]
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._codec = codec
        self._ttl = ttl
        self._clock = clock

    async def change(self, changes: Sequence[Change]) -> None:
        for _ in range(_TRIES):
            attempts = [_Attempt(each, partial(self._layout, tenant=each.tenant, place=each.place)) for each in changes]
            replies = iter(await self._trip(*(command for each in attempts for command in each.reads)))
            for each in attempts:
                each.decide(list(islice(replies, len(each.reads))))
            attempts = [each for each in attempts if each.script is not None]
            stored = (each.change for each in attempts if each.is_of_conversation)
            noted = (command for each in stored for command in self.noted(each.tenant, each.place))
            before = [*noted, *(command for each in attempts for command in each.before)]
            scripts = [each.script for each in attempts if each.script is not None]
            after = (command for each in attempts for command in each.after)
            answers = (await self._trip(*before, *scripts, *after))[len(before) :]
            changes = [each.change for each, is_made in zip(attempts, answers, strict=False) if not is_made]
            if not changes:
                return
        raise StoreTrouble("others change the same rows again and again")

    async def read(self, kind: Kind, tenant: bytes, place: bytes, names: Sequence[bytes]) -> Rows:
        layout = self._layout(kind, tenant, place)
        if isinstance(layout, TextLayout):
            return layout.contents(names, *await self._trip(layout.content(names)))
        guards, others = layout.reads(names)
        return layout.rows(names, *await self._trip(*guards, *others))

    async def rows(self, kind: Kind, tenant: bytes, place: bytes) -> Rows:
        layout = self._layout(kind, tenant, place)
        guards, others = layout.reads(None)
        return layout.rows(None, *await self._trip(*guards, *others))

    async def find(self, tenant: bytes, kind: Kind | None = None, name: bytes = b"") -> Sequence[bytes]:
        if isinstance(kind, TextKind):
            index = self._keys.holders(tenant, field_of(kind, name))
        else:
            index = self._keys.conversations(tenant)
        (names,) = await self._trip(("ZRANGE", index, 0, -1))
        if kind != OWNER:
            return list(names)
        found: list[bytes] = []
        for some in portions(names):
            owners = (self._keys.conversation(tenant, each).owners for each in some)
            answers = await self._trip(*(("SISMEMBER", each, name) for each in owners))
            found += (each for each, is_owner in zip(some, answers, strict=True) if is_owner)
        return found

    async def search(
        self,
        kind: Kind,
        tenant: bytes | None,
        owner: str | None,
        since: str = "",
        before: float | None = None,
        most: int | None = None,
    ) -> Sequence[Any]:
        index = self._keys.billed_tenants if kind == DAY else self._keys.tenants
        tenants = (await self._trip(("ZRANGE", index, 0, -1)))[0] if tenant is None else [tenant]
        if kind == DAY:
            days = self._days(tenants, since.encode())
            return [row async for row in days if owner in (None, row.labels.owner)]
        rows: list[ConversationRow] = []
        page: Sequence[tuple[float, Names]] = [(math.inf if before is None else before, (b"", b""))]
        looked_at, at_once = 0, _PAGE if most is None or owner is not None else most
        while page and (most is None or (len(rows) < most and looked_at < _LOOKED_AT)):
            page = await self._newest_billed(tenants, page[-1][0], at_once)
            looked_at += len(page)
            totals = await self._trip(*(("HGET", self._keys.conversation(*names).spent, "b") for _, names in page))
            read = (
                self._codec.read(conversation_row, *names, total)
                for (_, names), total in zip(page, totals, strict=True)
                if total is None or owner is None or owner.encode() in total  # to read all of them takes long
            )
            rows += (row for row in readable(read) if owner in (None, row.labels.owner))
        return rows[:most]

    async def drop_oldest(self, kind: Kind, tenant: bytes, place: bytes, limit: int) -> int:
        layout = self._layout(kind, tenant, place)
        if isinstance(layout, TextLayout):
            return await self._drop_texts(layout, self._clock() - self._ttl, limit)
        here = self._keys.conversation(tenant, place)
        (surplus,) = await self._trip(("ZRANGE", here.bill_ids, 0, -1 - limit))
        if surplus:
            await self._trip(("HDEL", here.bills, *surplus), ("ZREM", here.bill_ids, *surplus))
        return 0

    async def note(self, tenant: bytes, conversation: bytes, event: bytes) -> None:
        row = (self._ttl, EVENTS, secrets.token_hex(16), conversation, event)
        index = NOTE.on([self._keys.tenants], self._ttl, self._clock(), tenant)
        await self._trip(NOTE_EVENT.on([self._keys.events(tenant)], *row), index)

    async def events(
        self, tenant: bytes | None, conversation: bytes | None, most: int
    ) -> Sequence[tuple[bytes, bytes, bytes]]:
        tenants = [tenant] if tenant is not None else (await self._trip(("ZRANGE", self._keys.tenants, 0, -1)))[0]
        wanted = (each for each in tenants if tenant is not None or each != DELETIONS.encode())
        newest = [event for each in wanted for event in await self._newest_events(each, conversation, most)]
        return [row for _, row in sorted(newest, key=itemgetter(0))[-most:]] if most else []

    # --- what the store does with all of a conversation, or of a tenant ---

    async def unindex(self, tenant: bytes, conversation: bytes) -> None:
        """Take the texts of a conversation out of the indexes; they themselves go with their conversation."""
        (heads,) = await self._trip(("HGETALL", self._keys.conversation(tenant, conversation).abouts))
        for kind in TEXT_KINDS.values():
            if kind.bounded_by != "conversation":
                layout = self._texts(kind, tenant, conversation)
                rows = layout.rows(None, heads)
                for some in portions(rows):
                    await self._trip(*layout.removals(dict.fromkeys(some), rows))

    async def delete_events(self, tenant: bytes, conversation: bytes) -> None:
        events = self._keys.events(tenant)
        after = "-"
        while after:
            (entries,) = await self._trip(("XRANGE", events, after, "+", "COUNT", _EVENTS_AT_ONCE))
            ids = [id for id, fields in entries if fields.get(b"c") == conversation]
            if ids:
                await self._trip(("XDEL", events, *ids))
            after = f"({entries[-1][0].decode()}" if len(entries) == _EVENTS_AT_ONCE else ""

    async def sweep(self, tenant: bytes, older_than: float) -> None:
        """Delete events, and texts in indexes of the tenant, that were stored before this time; those in a
        conversation's index go as it grows, or with it."""
        await self._trip(("XTRIM", self._keys.events(tenant), "MINID", f"{max(0, int(older_than * 1_000))}"))
        for kind in TEXT_KINDS.values():
            if kind.bounded_by == "tenant":
                while await self._drop_texts(self._texts(kind, tenant, b""), older_than):
                    pass

    async def delete_tenant(self, tenant: bytes) -> None:
        """Delete the sums of its days, and its indexes."""
        (days,) = await self._trip(("ZRANGE", self._keys.billed(tenant, "days"), 0, -1))
        kinds = (kind for kind in TEXT_KINDS.values() if kind.bounded_by == "tenant")
        keys = [
            self._keys.billed(tenant, "conversations"),
            *(key for day in days for key in self._keys.billed_day(tenant, day)),
            *(key for kind in kinds for key in self._keys.text_index(kind, tenant, b"")),
        ]
        await self._trip(*(("UNLINK", key) for key in keys))
        await self._trip(("UNLINK", self._keys.billed(tenant, "days")), ("ZREM", self._keys.billed_tenants, tenant))

    # --- ---

    async def _trip(self, *commands: Command) -> list[Any]:
        return await self._connection.trip(*commands) if commands else []

    def _layout(self, kind: Kind, tenant: bytes, place: bytes) -> Layout:
        return layout_of(kind)(self._keys, self._codec, self._ttl, self._clock(), kind, tenant, place)

    def _texts(self, kind: TextKind, tenant: bytes, place: bytes) -> TextLayout:
        return TextLayout(self._keys, self._codec, self._ttl, self._clock(), kind, tenant, place)

    async def _days(self, tenants: Sequence[bytes], since: bytes) -> AsyncIterator[DaySum]:
        for some in portions(tenants):
            dates = await self._trip(*(("ZRANGE", self._keys.billed(each, "days"), 0, -1) for each in some))
            places = [(each, day) for each, days in zip(some, dates, strict=True) for day in days if day >= since]
            for few in portions(places):
                layouts = [DayLayout(self._keys, self._codec, self._ttl, 0.0, DAY, *place) for place in few]
                tables = await self._trip(*(layout.reads(None)[1][0] for layout in layouts))
                for layout, table in zip(layouts, tables, strict=True):
                    for row in readable((await asyncio.to_thread(layout.rows, None, table)).values()):
                        yield row

    async def _newest_billed(self, tenants: Sequence[bytes], before: float, most: int) -> Sequence[tuple[float, Names]]:
        """The conversations whose newest bills are older than this, the newest first."""
        newest: list[tuple[float, Names]] = []
        for some in portions(tenants):
            row = (f"({before!r}", "-inf", "WITHSCORES", "LIMIT", 0, most)
            indexes = (self._keys.billed(each, "conversations") for each in some)
            replies = await self._trip(*(("ZREVRANGEBYSCORE", index, *row) for index in indexes))
            for tenant, reply in zip(some, replies, strict=True):
                newest += ((float(at), (tenant, name)) for name, at in zip(reply[::2], reply[1::2], strict=True))
            newest = sorted(newest, key=itemgetter(0), reverse=True)[:most]
        return newest

    async def _newest_events(
        self, tenant: bytes, conversation: bytes | None, most: int
    ) -> Sequence[tuple[tuple[int, int], tuple[bytes, bytes, bytes]]]:
        """Of one tenant, the newest first, each with the milliseconds when the server took it, and a number in them."""
        before = "+"
        events: list[tuple[tuple[int, int], tuple[bytes, bytes, bytes]]] = []
        while before and len(events) < most:
            count = _EVENTS_AT_ONCE if conversation is not None else min(most - len(events), _EVENTS_AT_ONCE)
            (entries,) = await self._trip(("XREVRANGE", self._keys.events(tenant), before, "-", "COUNT", count))
            for id, fields in entries:
                if conversation in (None, fields.get(b"c")):
                    time, _, number = id.partition(b"-")
                    events.append(((int(time), int(number)), (tenant, fields.get(b"c", b""), fields.get(b"e", b""))))
            before = f"({entries[-1][0].decode()}" if len(entries) == count else ""
        return events[:most]

    async def _drop_texts(self, layout: TextLayout, since: float, limit: int = 2**53) -> int:
        """Delete some texts of an index: those stored before this time, and the oldest beyond the limit."""
        (members,) = await self._trip(layout.index(since=since, limit=limit, most=AT_ONCE))
        commands = (command for member in members for command in layout.drop(member))
        await self._trip(*commands, *([layout.index(remove=members)] if members else []))
        return len(members)

    def noted(self, tenant: bytes, conversation: bytes) -> list[Command]:
        """The commands that note in the indexes that there is this conversation."""
        indexes = (self._keys.conversations(tenant), conversation), (self._keys.tenants, tenant)
        return [NOTE.on([index], self._ttl, self._clock(), member) for index, member in indexes]
