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
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import cache, partial
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
from proxy.memory.redis.keys import Argument, Command, Keys
from proxy.memory.redis.layouts import HashLayout, Layout, Note, TextLayout, conversation_row, field_of, layout_of
from proxy.memory.redis.scripts import ASK, GUARDED, NOTE, NOTE_EVENT
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
        self._reads = {kind: layout(kind).reads(names) for kind, names in change.reads.items()}
        reads = [command for guards, others in self._reads.values() for command in (*guards, *others)]
        self.ask = ASK.on(_keys(reads), *_words(reads))
        """The command that it begins with, where it reads something."""
        self.notes: list[Note] = []
        self.before: list[Command] = []
        """What is done in other slots before it is made, and after it."""
        self.after: list[Command] = []
        self.script: Command | None = None
        """Makes it, where nothing has changed meanwhile."""
        self.is_of_conversation = False
        """Whether it stores something of a conversation."""

    def decide(self, answer: Iterable[Any]) -> None:
        """What these commands have answered."""
        there, guards, writes, replies = {}, list[Argument](), list[Command](), iter(answer)
        for kind, (some_guards, others) in self._reads.items():
            of_kind = list(islice(replies, len(some_guards) + len(others)))
            there[kind] = self._layout(kind).rows(self.change.reads[kind], *of_kind)
            for command, reply in zip(some_guards, of_kind, strict=False):
                guards += [len(command), *command, *(value or b"" for value in reply)]
        for kind, stored in self.change.rule(there).items():
            layout, rows = self._layout(kind), there.get(kind, Rows())
            self.is_of_conversation |= kind not in (DAY, ADDED, KEY) and any(row is not None for row in stored.values())
            self.notes += layout.notes(stored)
            self.before += layout.before(stored)
            self.after += layout.removals(stored, rows)
            writes += layout.writes(stored, rows)
        if writes:
            guarding = [command for some_guards, _ in self._reads.values() for command in some_guards]
            self.script = GUARDED.on(_keys([*guarding, *writes]), len(guarding), *guards, *_words(writes))


def _keys(commands: Iterable[Command]) -> list[str]:
    return [*dict.fromkeys(str(command[1]) for command in commands)]


def _words(commands: Iterable[Command]) -> Iterator[Argument]:
    """The commands, each with its length before it."""
    return (word for command in commands for word in (len(command), *command))


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
            attempts = [
                _Attempt(each, cache(partial(self._layout, tenant=each.tenant, place=each.place))) for each in changes
            ]
            asking = [each for each in attempts if each.change.reads]
            for each, answer in zip(asking, await self._trip(*(each.ask for each in asking)), strict=True):
                each.decide(answer)
            for each in attempts:
                if not each.change.reads:
                    each.decide([])
            attempts = [each for each in attempts if each.script is not None]
            before = [*self._noted(attempts), *(command for each in attempts for command in each.before)]
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

    async def drop_oldest(self, kind: TextKind, tenant: bytes, place: bytes, limit: int) -> int:
        return await self._drop_texts(self._texts(kind, tenant, place), self._clock() - self._ttl, limit)

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
                layouts = [HashLayout(self._keys, self._codec, self._ttl, 0.0, DAY, *place) for place in few]
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

    def _noted(self, attempts: Sequence[_Attempt]) -> Iterator[Command]:
        """The commands that note in the indexes what is stored."""
        now = self._clock()
        members: dict[tuple[str, int], dict[bytes, float]] = defaultdict(dict)
        for each in attempts:
            tenant, place = each.change.tenant, each.change.place
            of_it = [
                Note(self._keys.conversations(tenant), self._ttl, place),
                Note(self._keys.tenants, self._ttl, tenant),
            ]
            for index, seconds, member, at in (*(of_it if each.is_of_conversation else ()), *each.notes):
                members[index, seconds][member] = now if at is None else at
        for (index, seconds), some in members.items():
            yield NOTE.on([index], seconds, *(part for member, at in some.items() for part in (at, member)))
