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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, cast

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
    Kind,
    Rows,
    TextKind,
    TextRow,
)
from proxy.memory.redis.connection import RedisConnection
from proxy.memory.redis.keys import Command, Keys, Script, framed
from proxy.memory.redis.layouts import Layout, Note, Place, TextLayout, layout_of
from proxy.memory.redis.scripts import ASK, GUARDED, NOTE, NOTE_EVENT
from proxy.memory.serialization import Codec, Names
from proxy.memory.texts import AT_ONCE, portions

_LOOKED_AT, _PAGE = 20_000, 500
"""Conversations of a tenant, the newest, among which those of one owner are looked for; and how many at once."""
_ALL = 2**31
_TRIES = 100
"""Attempts to make a change."""
_MARK_SECONDS = 60
"""How long the mark of a change stays: longer than any attempt takes."""
_EVENTS_AT_ONCE = 500
"""Events that are looked at in one trip."""


class _Layouts(NamedTuple):
    """How the rows of a change stand, and the key of the mark of its place."""

    place: Place
    mark: str
    by_kind: Mapping[Kind, Layout]


class _Plan(NamedTuple):
    """How a change is made."""

    change: Change
    notes: list[Note]
    script: Command | None
    before: list[Command]
    """What is done in other slots before it, and after it."""
    after: list[Command]


def _layouts(change: Change, place: Place, layout: Callable[[Kind, Place], Layout]) -> _Layouts:
    mark = place.mark(next(iter(change.reads), None))
    return _Layouts(place, mark, {kind: layout(kind, place) for kind in change.reads})


def _reads(change: Change, layouts: _Layouts) -> list[Command]:
    """What is read first: the mark of the last change, and the rows."""
    of_kinds = ((layouts.by_kind[kind], names) for kind, names in change.reads.items())
    return [("GET", layouts.mark), *(command for layout, names in of_kinds for command in layout.reads(names))]


def _notes(plans: Sequence[_Plan], now: float) -> Iterator[Command]:
    """The commands that note in the indexes what is stored."""
    members: dict[tuple[str, int], dict[bytes, float]] = defaultdict(dict)
    for key, seconds, member, at in (note for each in plans for note in each.notes):
        members[key, seconds][member] = now if at is None else at
    for (key, seconds), some in members.items():
        yield NOTE.on([key], seconds, *(part for member, at in some.items() for part in (at, member)))


def _script(script: Script, commands: Iterable[Command], *parts: Command) -> Command:
    """The script with these parts, each with its length before it; it touches the keys of the commands."""
    keys = dict.fromkeys(str(command[1]) for command in commands)
    words = (word for part in parts for word in (len(part), *part))
    return script.on([*keys], *framed([word if isinstance(word, bytes) else str(word).encode() for word in words]))


def _sums(owner: str | None, names: list[bytes] | None, stored: Iterable[tuple[Layout, Any]]) -> list[Any]:
    """The sums of this owner, or of all, that can be read."""
    rows = (
        row
        for layout, reply in stored
        if owner is None or names is None or owner.encode() in (reply[0] or b"")  # to read all of them takes long
        for row in layout.rows(names, reply).values()
    )
    return [row for row in rows if row is not None and owner in (None, row.labels.owner)]


class RedisRecordStore:
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
            layouts = [_layouts(each, Place(self._keys, each.tenant, each.place), self._layout) for each in changes]
            reads = [_reads(*each) for each in zip(changes, layouts, strict=True)]
            answers = await self._trip(*(_script(ASK, each, *each) for each in reads))
            plans = [self._plan(*each) for each in zip(changes, layouts, answers, strict=True)]
            plans = [each for each in plans if each.script is not None]
            before = [*_notes(plans, self._clock()), *(command for each in plans for command in each.before)]
            scripts = [each.script for each in plans if each.script is not None]
            after = (command for each in plans for command in each.after)
            outcomes = (await self._trip(*before, *scripts, *after))[len(before) :]
            changes = [each.change for each, is_made in zip(plans, outcomes, strict=False) if not is_made]
            if not changes:
                return
        raise StoreTrouble("others change the same rows again and again")

    def _plan(self, change: Change, layouts: _Layouts, answer: Sequence[Any]) -> _Plan:
        mark, *replies = answer
        there: dict[Kind, Rows] = {}
        for kind, names in change.reads.items():
            layout = layouts.by_kind[kind]
            count = len(layout.reads(names))
            there[kind] = layout.rows(names, *replies[:count])
            del replies[:count]
        plan = _Plan(change, [], None, [], [])
        writes: list[Command] = []
        for kind, stored in change.rule(there).items():
            layout, rows = layouts.by_kind.get(kind) or self._layout(kind, layouts.place), there.get(kind, Rows())
            if kind not in (DAY, ADDED, KEY) and any(row is not None for row in stored.values()):
                plan.notes.append(Note(self._keys.conversations(change.tenant), self._ttl, change.place))
                plan.notes.append(Note(self._keys.tenants, self._ttl, change.tenant))
            plan.notes.extend(layout.notes(stored))
            writes += layout.writes(stored, rows)
            for commands, more in zip((plan.before, plan.after), layout.indexed(stored, rows), strict=True):
                commands += more
        marked: Command = ("SET", layouts.mark, secrets.token_hex(8), "EX", _MARK_SECONDS)
        script = _script(GUARDED, [marked, *writes], (mark or b"",), marked, *writes) if writes else None
        return plan._replace(script=script)

    async def read(self, kind: Kind, tenant: bytes, place: bytes, names: Sequence[bytes]) -> Rows:
        layout = self._layout(kind, Place(self._keys, tenant, place))
        if not isinstance(layout, TextLayout):
            return layout.rows(names, *await self._trip(*layout.reads(names)))
        (contents,) = await self._trip(layout.content(names))
        there = zip(names, contents, strict=True)
        return Rows({name: TextRow(b"", content, 0) for name, content in there if content is not None})

    async def rows(self, kind: Kind, tenant: bytes, place: bytes) -> Rows:
        layout = self._layout(kind, Place(self._keys, tenant, place))
        return layout.rows(None, *await self._trip(*layout.reads(None)))

    async def find(self, tenant: bytes, kind: Kind | None = None, name: bytes = b"") -> Sequence[bytes]:
        index = self._keys.conversations(tenant)
        if isinstance(kind, TextKind):
            texts = self._texts(kind, tenant, b"")
            index = texts.holders(texts.field(name))
        (names,) = await self._trip(("ZRANGE", index, 0, -1))
        if kind != OWNER:
            return list(names)
        conversations: list[bytes] = []
        for some in portions(names):
            owners = (self._keys.conversation(tenant, each).owners for each in some)
            answers = await self._trip(*(("SISMEMBER", each, name) for each in owners))
            conversations += (each for each, is_owner in zip(some, answers, strict=True) if is_owner)
        return conversations

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
        names = None if kind == DAY else [b""]
        rows: list[Any] = []
        page: Sequence[tuple[float, Names]] = [(math.inf if before is None else before, (b"", b""))]
        looked_at, at_once = 0, _PAGE if most is None or owner is not None else most
        while page and (most is None or (len(rows) < most and looked_at < _LOOKED_AT)):
            page = await self._newest(kind, tenants, page[-1][0], _ALL if kind == DAY else at_once)
            looked_at += len(page)
            for some in portions(place for _, place in page if place[1] >= since.encode()):
                layouts = [self._layout(kind, Place(self._keys, *place)) for place in some]
                replies = await self._trip(*(layout.reads(names)[0] for layout in layouts))
                rows += await asyncio.to_thread(_sums, owner, names, list(zip(layouts, replies, strict=True)))
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
                    await self._trip(*layout.indexed(dict.fromkeys(some), rows)[1])

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
        places = [Place(self._keys, tenant, day) for day in days]
        keys = [
            self._keys.billed(tenant, "conversations"),
            *(key for place in places for key in (*place.day, place.mark(DAY))),
            *(key for kind in kinds for key in self._keys.text_index(kind, tenant, b"")),
        ]
        await self._trip(*(("UNLINK", key) for key in keys))
        await self._trip(("UNLINK", self._keys.billed(tenant, "days")), ("ZREM", self._keys.billed_tenants, tenant))

    # --- ---

    async def _trip(self, *commands: Command) -> list[Any]:
        return await self._connection.trip(*commands) if commands else []

    def _layout(self, kind: Kind, place: Place) -> Layout:
        return layout_of(kind)(place, self._codec, self._ttl, self._clock(), kind)

    def _texts(self, kind: TextKind, tenant: bytes, place: bytes) -> TextLayout:
        return cast(TextLayout, self._layout(kind, Place(self._keys, tenant, place)))

    async def _newest(
        self, kind: Kind, tenants: Sequence[bytes], before: float, most: int
    ) -> Sequence[tuple[float, Names]]:
        """The places of a kind that were written before this time, the newest first."""
        newest: list[tuple[float, Names]] = []
        what = "days" if kind == DAY else "conversations"
        for some in portions(tenants):
            row = (f"({before!r}", "-inf", "WITHSCORES", "LIMIT", 0, most)
            replies = await self._trip(*(("ZREVRANGEBYSCORE", self._keys.billed(each, what), *row) for each in some))
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
