"""Bills of requests, and the sums of these by day and by conversation.

Laws
  A bill whose id is there is not added again: a write whose answer was lost can be repeated.
  In whatever order bills are added, and by whom, the sums are the same.
  Bills and the sums of a conversation go with it. The sums of a day hold nothing of a conversation.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from operator import attrgetter
from typing import Any, TypeVar
from zlib import crc32

from msgspec import structs

from policies.model.tokens import OTHER
from policies.money.bills import BillSums, ConversationRow, DayRow, Labels, RequestBill, ToolUse, arm_of
from proxy.memory import serialization
from proxy.memory.decisions import Key
from proxy.memory.records import ADDED, BILL, DAY, DAY_LENGTH, TOTAL, Change, DaySum, Kind, RecordStore, Rows, portions
from proxy.memory.serialization import name_bytes, names_of

BILLS = 1_000
"""Bills stored of one conversation, the newest."""
_SURPLUS = 100
"""After so many requests a conversation that had more of them is looked at for bills that are too many."""
DAY_ROWS = 2_000
"""Rows of one tenant and day; from then on the model and the owner of a new row are OTHER."""
TOOL_PARTS, TOOL_ROWS = 64, 500
"""Parts of a day among which the tools of its owners are spread, and rows of one: whoever fills one leaves the others,
and what is no tool, their room."""

T = TypeVar("T")
SumsOf = Callable[[Sequence[T], str], Sequence[DaySum]]
Values = Mapping[Kind, Mapping[bytes, object]]


class BillStore:
    """The costs of requests."""

    _records: RecordStore

    async def add_bills(self, bills: Sequence[RequestBill]) -> None:
        """Store bills, and add them to the sums of their day and of their conversation. Of a conversation the newest
        BILLS stay. A bill of no conversation is added to its day alone."""
        for some in portions(bills):
            crowded: set[tuple[bytes, bytes]] = set()
            days, conversations = defaultdict(list), defaultdict(list)
            for bill in some:
                tenant = name_bytes(bill.labels.tenant)
                days[tenant, day_of(bill.at).encode()].append(bill)
                if bill.conversation:
                    conversations[tenant, name_bytes(bill.conversation)].append(bill)
            await self._records.change(
                [
                    *(_to_day(*place, _by_id(of_it), _day_sums) for place, of_it in days.items()),
                    *(_to_conversation(*place, of_it, crowded) for place, of_it in conversations.items()),
                ]
            )
            for tenant, conversation in crowded:
                await self._records.change([Change(tenant, conversation, {BILL: None}, _without_oldest)])

    async def add_tools(self, uses: Sequence[tuple[RequestBill, ToolUse]]) -> None:
        """Add the tools of requests to the sums of their day, in the part of its owner."""
        for some in portions(uses):
            days = defaultdict[tuple[bytes, bytes], dict[bytes, tuple[RequestBill, ToolUse]]](dict)
            for bill, use in some:
                part = crc32(bill.labels.owner.encode()) % TOOL_PARTS
                day = f"{day_of(bill.at)} tools {part:02}".encode()
                days[name_bytes(bill.labels.tenant), day][name_bytes(bill.id)] = bill, use
            await self._records.change([_to_day(*place, by_id, _tool_sums, TOOL_ROWS) for place, by_id in days.items()])

    async def day_rows(
        self, since: str, tenant: str | None = None, owner: str | None = None, *, of_tools: bool = False
    ) -> Sequence[DayRow]:
        """The sums of this day (as in 2026-01-31) and later ones, of one tenant or all, of one owner or all, in the
        order of days, with the outcomes of the prefix side by side; or those of tools."""
        of_tenant = None if tenant is None else name_bytes(tenant)
        rows: dict[tuple[str, Labels], DayRow] = {}
        for each in await self._records.search(DAY, of_tenant, owner, since=since, of_tools=of_tools):
            day = each.day[:DAY_LENGTH]
            row = rows.get((day, each.labels)) or DayRow(day=day, labels=each.labels, sums=BillSums())
            requests, rewritten = row.prefixes.get(each.prefix, (0, 0))
            outcome = (requests + each.sums.requests, rewritten + each.sums.rewritten)
            prefixes = {**row.prefixes, each.prefix: outcome} if each.prefix else row.prefixes
            rows[day, each.labels] = structs.replace(row, sums=row.sums + each.sums, prefixes=prefixes)
        return sorted(rows.values(), key=attrgetter("day"))

    async def conversation_rows(
        self, tenant: str | None = None, owner: str | None = None, before: float | None = None, most: int = 50
    ) -> Sequence[ConversationRow]:
        """The sums of conversations whose newest bill is older than `before`, the newest first: of one tenant or all,
        of those whose newest request is this owner's or of all."""
        of_tenant = None if tenant is None else name_bytes(tenant)
        return await self._records.search(TOTAL, of_tenant, owner, before=before, most=max(0, most))

    async def request_bills(self, key: Key) -> Sequence[RequestBill]:
        """The bills of a conversation, its summaries' too, oldest first."""
        bills = await self._records.read(BILL, *names_of(key))
        return sorted(filter(None, bills.values()), key=attrgetter("at"))[-BILLS:]

    async def delete_bills(self, key: Key, ids: Collection[str]) -> None:
        """Delete the bills of these ids, and take them out of the conversation's sums; the sums of days stay."""
        names = set(map(name_bytes, ids))

        def without(there: Mapping[Kind, Rows]) -> Values:
            left = [row_of(bill) for id, bill in there[BILL].items() if bill is not None and id not in names]
            return {BILL: dict.fromkeys(names & there[BILL].keys()), TOTAL: {b"": joined(left) if left else None}}

        await self._records.change([Change(*names_of(key), {BILL: None, TOTAL: [b""]}, without)])


def _to_day(tenant: bytes, day: bytes, by_id: Mapping[bytes, T], sums_of: SumsOf[T], most: int = DAY_ROWS) -> Change:
    """Add what these ids name to the sums of their day, those of the same labels together."""

    def rows_of(some: Iterable[T]) -> dict[bytes, DaySum]:
        return {_name_of(row): row for row in sums_of([*some], day.decode())}

    names = rows_of(by_id.values())

    def added(there: Mapping[Kind, Rows]) -> Values:
        new = {id: each for id, each in by_id.items() if id not in there[ADDED]}
        if not new:
            return {}
        stored: dict[bytes, DaySum] = {}
        room = 0 if there[DAY].keys() >= names.keys() else most - there[DAY].count()
        for name, row in rows_of(new.values()).items():
            if name not in there[DAY]:
                room -= 1
                row = row if room >= 0 else _as_other(row)
            name = _name_of(row)
            before = stored.get(name) or there[DAY].get(name)
            stored[name] = replace(row, sums=before.sums + row.sums) if before else row
        return {DAY: stored, ADDED: dict.fromkeys(new, b"")}

    wanted = [*{*names, *(_name_of(_as_other(row)) for row in names.values())}]
    return Change(tenant, day, {DAY: wanted, ADDED: [*by_id]}, added)


def _name_of(row: DaySum) -> bytes:
    return serialization.packed("labels", row.labels, row.prefix)


def _as_other(row: DaySum) -> DaySum:
    tool = row.labels.tool and OTHER
    return replace(row, labels=structs.replace(row.labels, owner=OTHER, key="", model=OTHER, tool=tool))


def _day_sums(bills: Sequence[RequestBill], day: str) -> Sequence[DaySum]:
    sums = defaultdict(list)
    for bill in bills:
        sums[bill.labels, bill.prefix].append(bill.sums)
    return [DaySum(day, *at, added_up(some)) for at, some in sums.items()]


def _tool_sums(uses: Sequence[tuple[RequestBill, ToolUse]], day: str) -> Sequence[DaySum]:
    """Those of the same owner and list are one sum first: many requests bring the same."""
    lists, sums = defaultdict[Any, list[ToolUse]](list), defaultdict[Labels, list[BillSums]](list)
    for bill, use in uses:
        lists[bill.labels.tenant, bill.labels.owner, use.definitions].append(use)
    for (tenant, owner, definitions), same in lists.items():
        labels = partial(Labels, tenant=tenant, owner=owner, model="", preset="", api="")
        count, each = len(same), sum(use.each for use in same)
        for name, size in definitions:
            sums[labels(tool=name)].append(BillSums(requests=count, sent=count * size, paid=each * size))
        for name, calls in Counter(name for use in same for name in use.calls).items():
            sums[labels(tool=name)].append(BillSums(calls=calls))
    return [DaySum(day, name, "", added_up(some)) for name, some in sums.items()]


def _to_conversation(
    tenant: bytes, conversation: bytes, bills: Sequence[RequestBill], crowded: set[tuple[bytes, bytes]]
) -> Change:
    """Store bills of a conversation, and add them to its sums; where it has too many then, it is `crowded`."""
    by_id = _by_id(bills)

    def added(there: Mapping[Kind, Rows]) -> Values:
        new = {id: bill for id, bill in by_id.items() if id not in there[BILL]}
        if not new:
            return {}
        total = joined([*filter(None, [there[TOTAL].get(b"")]), *map(row_of, new.values())])
        if total.sums.requests > BILLS and total.sums.requests % _SURPLUS < len(new):
            crowded.add((tenant, conversation))
        return {BILL: new, TOTAL: {b"": total}}

    return Change(tenant, conversation, {BILL: [*by_id], TOTAL: [b""]}, added)


def _without_oldest(there: Mapping[Kind, Rows]) -> Values:
    """Unreadable ones go first."""
    oldest = sorted(there[BILL], key=lambda id: there[BILL][id].at if there[BILL][id] is not None else 0.0)
    return {BILL: dict.fromkeys(oldest[:-BILLS])}


def _by_id(bills: Sequence[RequestBill]) -> Mapping[bytes, RequestBill]:
    """Each once, the first."""
    return {name_bytes(bill.id): bill for bill in reversed(bills)}


def day_of(at: float) -> str:
    """As in 2026-01-31, UTC."""
    return time.strftime("%Y-%m-%d", time.gmtime(at))


def row_of(bill: RequestBill) -> ConversationRow:
    """The row of a conversation with this bill alone."""
    return ConversationRow(
        conversation=bill.conversation, labels=bill.labels, arm=bill.arm, first_at=bill.at, at=bill.at, sums=bill.sums
    )


def joined(rows: Sequence[ConversationRow]) -> ConversationRow:
    """All of them as one, in whatever order they come."""
    ordered = sorted(rows, key=attrgetter("first_at"))
    return structs.replace(
        reduce(lambda newest, row: row if row.at >= newest.at else newest, rows),
        arm=reduce(arm_of, (row.arm for row in ordered)),
        first_at=ordered[0].first_at,
        sums=added_up(row.sums for row in rows),
    )


def added_up(sums: Iterable[BillSums]) -> BillSums:
    """The sum of several, at least one."""
    columns = zip(*map(structs.astuple, sums), strict=True)
    return BillSums(**dict(zip(BillSums.__struct_fields__, map(sum, columns), strict=True)))
