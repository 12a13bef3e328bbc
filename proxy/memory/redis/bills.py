"""Bills in Redis. With their conversation stand `bills`, a hash of bills by their ids, `bill_ids`, these ids sorted by
time, and in `spent`, under `b`, the sums. Of each tenant and day a hash has a field for each labels and outcome of the
prefix; beside it are the ids of the bills that were added in the last hour. Sums are written as the names and values of
those that are not 0, for Redis adds them up. Indexes name a tenant's conversations by the time of their newest bill,
its days, and the tenants that have any. The laws of `scripts` hold here too.
"""

import asyncio
import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import cast

from msgspec import structs

from policies.money.bills import Arm, BillSums, ConversationRow, DayRow, RequestBill
from proxy.memory import BILLS, DAY_ROWS, DAYS, Key, serialization
from proxy.memory.bill_rows import DaySum, day_of, day_rows, others, summed
from proxy.memory.redis.scripts import NOTE, SEALED, Argument, Command, Script, unsealed
from proxy.memory.redis.texts import RedisTexts, in_portions
from proxy.memory.serialization import Names, UnreadableRecordError, name_bytes, names_of, readable

_DAY_SECONDS = DAYS * 86_400
_ID_SECONDS, _IDS = 3_600, 20_000
"""How long the ids of bills that were added to a day stay, and how many."""

_LOOKED_AT, _PAGE = 20_000, 500
"""Conversations of a tenant, the newest, among which those of one owner are looked for; and how many at once."""

_ADDED = """
local function added(sums, more)
    local names, sum = {}, {}
    for _, text in ipairs({sums, more}) do
        for name, value in string.gmatch(text, '(%S+) (%S+)') do
            if not sum[name] then names[#names + 1] = name end
            sum[name] = (sum[name] or 0) + tonumber(value)
        end
    end
    for i, name in ipairs(names) do names[i] = name .. ' ' .. string.format('%.17g', sum[name]) end
    return table.concat(names, ' ')
end
"""

_ADD_TO_DAY = Script(
    "-- KEYS: a day, its ids. ARGV: ttl, now, most rows, seconds and number of ids, then ids, fields, sums, others"
    + SEALED
    + _ADDED
    + """
local spoilt = 0
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', tonumber(ARGV[2]) - tonumber(ARGV[4]))
for i = 6, #ARGV, 4 do
    if redis.call('ZADD', KEYS[2], ARGV[2], ARGV[i]) == 1 then
        local field = ARGV[i + 1]
        local row = redis.call('HGET', KEYS[1], field)
        if not row and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[3]) then
            field = ARGV[i + 3]
            row = redis.call('HGET', KEYS[1], field)
        end
        local body = unsealed(field, row)
        if row and not body then spoilt = spoilt + 1 end
        redis.call('HSET', KEYS[1], field, sealed(field, added(body or '', ARGV[i + 2])))
    end
end
redis.call('ZREMRANGEBYRANK', KEYS[2], 0, -1 - tonumber(ARGV[5]))
redis.call('EXPIRE', KEYS[1], ARGV[1])
redis.call('EXPIRE', KEYS[2], ARGV[4])
return spoilt"""
)
"""Answers with how many rows cannot be read; they begin again."""

_ADD_TO_CONVERSATION = Script(
    "-- KEYS: bills, bill_ids, spent. ARGV: ttl, most, then ids, times, bills, arms, sums and labels"
    + SEALED
    + _ADDED
    + """
local function arm_of(before, newest)
    if before == '-' or before == newest then return before end
    return 'left'
end
local row = redis.call('HGET', KEYS[3], 'b')
local body = unsealed('b', row)
local spoilt = row and not body and 1 or 0
local first, last, arm, sums, labels
if body then first, last, arm, sums, labels = string.match(body, '^(%S+) (%S+) (%S+) ([^\\n]*)\\n(.*)$') end
for i = 3, #ARGV, 6 do
    local at = ARGV[i + 1]
    if redis.call('HSETNX', KEYS[1], ARGV[i], ARGV[i + 2]) == 1 then
        redis.call('ZADD', KEYS[2], at, ARGV[i])
        local is_first = not first or tonumber(at) < tonumber(first)
        if not arm then
            arm = ARGV[i + 3]
        elseif is_first then
            arm = arm_of(ARGV[i + 3], arm)
        else
            arm = arm_of(arm, ARGV[i + 3])
        end
        if is_first then first = at end
        if not last or tonumber(at) >= tonumber(last) then last, labels = at, ARGV[i + 5] end
        sums = added(sums or '', ARGV[i + 4])
    end
end
local surplus = redis.call('ZRANGE', KEYS[2], 0, -1 - tonumber(ARGV[2]))
for _, id in ipairs(surplus) do redis.call('HDEL', KEYS[1], id) end
redis.call('ZREMRANGEBYRANK', KEYS[2], 0, -1 - tonumber(ARGV[2]))
if first then
    body = first .. ' ' .. last .. ' ' .. arm .. ' ' .. sums .. '\\n' .. labels
    redis.call('HSET', KEYS[3], 'b', sealed('b', body))
end
for _, key in ipairs(KEYS) do redis.call('EXPIRE', key, ARGV[1]) end
return spoilt"""
)
"""Answers likewise."""

_SET_SUMS = Script("-- KEYS: spent. ARGV: sums" + SEALED + "redis.call('HSET', KEYS[1], 'b', sealed('b', ARGV[1]))")


class RedisBills(RedisTexts):
    """The part of the store that holds bills."""

    async def add_bills(self, bills: Sequence[RequestBill]) -> None:
        for some in in_portions(bills):
            commands = [*self._added_to_days(some), *self._added_to_conversations(some)]
            notes = list(self._billed(some))
            spoilt = await self._connection.trip(*commands, *notes)
            self._codec.misses += sum(spoilt[: len(commands)])

    async def day_rows(self, since: str, tenant: str | None = None, owner: str | None = None) -> Sequence[DayRow]:
        if tenant is None:
            (tenants,) = await self._connection.trip(("ZRANGE", self._keys.billed_tenants, 0, -1))
        else:
            tenants = [name_bytes(tenant)]
        rows: list[DaySum] = []
        for some in in_portions(tenants):
            dates = await self._connection.trip(*(("ZRANGE", self._keys.billed(each, "days"), 0, -1) for each in some))
            wanted = [
                (each, day) for each, days in zip(some, dates, strict=True) for day in days if day >= since.encode()
            ]
            for few in in_portions(wanted):
                tables = await self._connection.trip(*(("HGETALL", self._keys.billed_day(*each)[0]) for each in few))
                for (each, day), table in zip(few, tables, strict=True):
                    rows += await asyncio.to_thread(self._day_sums, each, day, table)
        return day_rows(row for row in rows if owner in (None, row.labels.owner))

    async def conversation_rows(
        self, tenant: str | None = None, owner: str | None = None, before: float | None = None, most: int = 50
    ) -> Sequence[ConversationRow]:
        if tenant is None:
            (tenants,) = await self._connection.trip(("ZRANGE", self._keys.tenants, 0, -1))
        else:
            tenants = [name_bytes(tenant)]
        rows: list[ConversationRow] = []
        page: Sequence[tuple[float, Names]] = ((math.inf if before is None else before, (b"", b"")),)
        looked_at, at_once = 0, most if owner is None else _PAGE
        while page and len(rows) < most and looked_at < _LOOKED_AT:
            page = await self._newest_billed(tenants, page[-1][0], at_once)
            looked_at += len(page)
            keys = [self._keys.conversation(*names).spent for _, names in page]
            stored = await self._connection.trip(*(("HGET", key, "b") for key in keys)) if keys else ()
            read = (
                self._codec.read(conversation_row, *names, row)
                for (_, names), row in zip(page, stored, strict=True)
                if row is None or owner is None or owner.encode() in row  # to read all of them takes long
            )
            rows += (row for row in readable(read) if owner in (None, row.labels.owner))
        return rows[: max(0, most)]

    async def request_bills(self, key: Key) -> Sequence[RequestBill]:
        names = names_of(key)
        (rows,) = await self._connection.trip(("HGETALL", self._keys.conversation(*names).bills))
        bills = readable(self._codec.read(serialization.bill, *names, row) for row in rows.values())
        return sorted(bills, key=attrgetter("at"))

    async def delete_bills(self, key: Key, ids: Collection[str]) -> None:
        keys = self._keys.conversation(*names_of(key))
        for some in in_portions(ids):
            await self._connection.trip(("HDEL", keys.bills, *some), ("ZREM", keys.bill_ids, *some))
        row = summed(await self.request_bills(key))
        if row is None:
            await self._connection.trip(("HDEL", keys.spent, "b"))
            return
        head = f"{row.first_at!r} {row.at!r} {row.arm or '-'} {_pairs(row.sums)}\n".encode()
        body = head + serialization.packed("labels", row.labels, "")
        await self._connection.trip(_SET_SUMS.on([keys.spent], body))

    async def _newest_billed(self, tenants: Sequence[bytes], before: float, most: int) -> Sequence[tuple[float, Names]]:
        """The conversations whose newest bills are older than this, the newest first."""
        newest: list[tuple[float, Names]] = []
        for some in in_portions(tenants):
            row = (f"({before!r}", "-inf", "WITHSCORES", "LIMIT", 0, most)
            replies = await self._connection.trip(
                *(("ZREVRANGEBYSCORE", self._keys.billed(each, "conversations"), *row) for each in some)
            )
            newest += (
                (float(at), (each, name))
                for each, reply in zip(some, replies, strict=True)
                for name, at in scored(reply)
            )
            newest = sorted(newest, key=itemgetter(0), reverse=True)[:most]
        return newest

    def _added_to_days(self, bills: Sequence[RequestBill]) -> Iterator[Command]:
        rows: Mapping[tuple[bytes, bytes], list[Argument]] = defaultdict(list)
        for bill in bills:
            fields = (serialization.packed("labels", each, bill.prefix) for each in (bill.labels, others(bill.labels)))
            field, other = fields
            at = name_bytes(bill.labels.tenant), day_of(bill.at).encode()
            rows[at] += (bill.id, field, _pairs(bill.sums), other)
        row = (_DAY_SECONDS, self._clock(), DAY_ROWS, _ID_SECONDS, _IDS)
        return (_ADD_TO_DAY.on(self._keys.billed_day(*at), *row, *more) for at, more in rows.items())

    def _added_to_conversations(self, bills: Sequence[RequestBill]) -> Iterator[Command]:
        rows: Mapping[Names, list[Argument]] = defaultdict(list)
        for bill in bills:
            if bill.conversation:
                labels = serialization.packed("labels", bill.labels, "")
                row = (
                    bill.id,
                    repr(bill.at),
                    serialization.packed("bill", bill),
                    bill.arm or "-",
                    _pairs(bill.sums),
                    labels,
                )
                rows[name_bytes(bill.labels.tenant), name_bytes(bill.conversation)] += row
        for names, more in rows.items():
            keys = self._keys.conversation(*names)
            yield _ADD_TO_CONVERSATION.on((keys.bills, keys.bill_ids, keys.spent), self._ttl, BILLS, *more)

    def _billed(self, bills: Sequence[RequestBill]) -> Iterator[Command]:
        """The commands that note in the indexes what these bills are added to."""
        tenants = {name_bytes(bill.labels.tenant) for bill in bills}
        for tenant in tenants:
            yield NOTE.on([self._keys.billed_tenants], _DAY_SECONDS, self._clock(), tenant)
        for tenant, day in {(name_bytes(bill.labels.tenant), day_of(bill.at)) for bill in bills}:
            yield NOTE.on([self._keys.billed(tenant, "days")], _DAY_SECONDS, self._clock(), day)
        newest = {(bill.labels.tenant, bill.conversation): bill.at for bill in sorted(bills, key=attrgetter("at"))}
        for (of_tenant, name), at in newest.items():
            if name:
                names = name_bytes(of_tenant), name_bytes(name)
                yield NOTE.on([self._keys.billed(names[0], "conversations")], self._ttl, at, names[1])
                yield from self._noted(*names)

    async def _delete_days(self, tenant: bytes) -> None:
        """Delete the sums of a tenant's days."""
        (days,) = await self._connection.trip(("ZRANGE", self._keys.billed(tenant, "days"), 0, -1))
        left = (
            self._keys.billed(tenant, "conversations"),
            *(key for day in days for key in self._keys.billed_day(tenant, day)),
        )
        await self._connection.trip(*(("UNLINK", each) for each in left))
        indexes = ("UNLINK", self._keys.billed(tenant, "days")), ("ZREM", self._keys.billed_tenants, tenant)
        await self._connection.trip(*indexes)

    def _day_sums(self, tenant: bytes, day: bytes, table: Mapping[bytes, bytes]) -> list[DaySum]:
        return readable(self._codec.read(_day_sum, tenant, day, field, row) for field, row in table.items())


def scored(reply: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Members and scores, which a server answers one after the other."""
    words = iter(reply)
    return zip(words, words, strict=True)


def _pairs(sums: BillSums) -> str:
    """The sums that are not 0, as Redis adds them up."""
    values = structs.asdict(sums).items()
    return " ".join(f"{name} {value!r}" for name, value in values if value)


def _day_sum(tenant: bytes, day: bytes, field: bytes, row: bytes) -> DaySum:
    """Raises UnreadableRecordError, UnicodeDecodeError."""
    labels, prefix = serialization.labels(field)
    if name_bytes(labels.tenant) != tenant:
        raise UnreadableRecordError("it belongs to another tenant")
    return DaySum(day.decode(), labels, prefix, serialization.sums(unsealed(field, row)))


def conversation_row(tenant: bytes, name: bytes, row: bytes) -> ConversationRow:
    """Raises UnreadableRecordError, UnicodeDecodeError."""
    head, _, packed = unsealed(b"b", row).partition(b"\n")
    first_at, at, arm, sums = (*head.split(b" ", 3), b"", b"", b"", b"")[:4]
    labels, _ = serialization.labels(packed)
    if name_bytes(labels.tenant) != tenant:
        raise UnreadableRecordError("it belongs to another tenant")
    return ConversationRow(
        conversation=serialization.name(name),
        labels=labels,
        arm=cast(Arm, arm.decode().removeprefix("-")),
        first_at=float(first_at),
        at=float(at),
        sums=serialization.sums(sums),
    )
