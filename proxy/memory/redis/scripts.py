"""What keys are called, and what is sent to Redis: commands that it knows itself, and a script for each thing that
reads before it writes.

Laws
  The keys of a conversation share a hash tag, and so a slot of a cluster. A script touches one conversation, or one
  index.
  Names are digests: what a client writes cannot forge a key, and keys tell nothing.
  All keys but the secrets have the version of the schema in their names. Release 0.1 wrote keys without one: they are
  not read, and expire by themselves.
  A script is done whole or not at all. Run twice it leaves what it left once: a lost answer may be asked for again.
  Where that does not follow from what is written, each call has a mark of its own, and is not done again where that
  mark is found.

The fields of a conversation's `steps`, each named by its kind and the anchor: `d` what was decided, `s` what was then
sent, `t` when, `i` the exchanges behind the replies, written `LENGTH:LENGTH:` and then the reply's name and its record,
the oldest first; `n` alone is the anchor of the step that was sent last. Those of its `summaries`: `c` (for the prompt)
or `h` (history) and the first anchor, written in the same way, each named by a number and its id; `n` is the last
number. `ages` says when an anchor was last used. `leases` and `spent` (`k` and a kind; `p` the purse;
`b` the bills added up) hold rows that are sealed here, because Redis reads and writes them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha1, sha256
from io import BytesIO
from struct import iter_unpack, pack
from typing import NamedTuple

from proxy.memory import TextKind
from proxy.memory.serialization import UnreadableRecordError

VERSION = "v2"
Argument = str | bytes | int | float
Command = tuple[Argument, ...]
TextIndex = tuple[str, str]
"""The keys of the texts of a bounded kind, and of the number of their bytes."""


class ConversationKeys(NamedTuple):
    """The keys of a conversation. Scripts know them by their place here: `steps` is KEYS[1]."""

    steps: str
    ages: str
    summaries: str
    leases: str
    spent: str
    abouts: str
    texts: str
    messages: str
    message_bytes: str
    snapshots: str
    owners: str
    bills: str
    bill_ids: str


class Keys:
    """All keys below one prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = f"{prefix}:{VERSION}"
        self._secrets = f"{prefix}:secret"
        self.ready = f"{self._prefix}:ready"
        self.tenants = f"{self._prefix}:tenants"
        self.measured = f"{self._prefix}:measured"
        self.billed_tenants = f"{self._prefix}:billed"
        self.tenants_of_0_1 = f"{prefix}:tenants"

    def conversation(self, tenant: bytes, name: bytes) -> ConversationKeys:
        tag = f"{self._prefix}:{{{_digest(tenant, name)}}}"
        return ConversationKeys(*(f"{tag}:{each}" for each in ConversationKeys._fields))

    def text_index(self, kind: TextKind, tenant: bytes, name: bytes) -> TextIndex:
        """Of the texts of a tenant, or of a conversation."""
        if kind.bounded_by == "conversation":
            keys = self.conversation(tenant, name)
            return keys.messages, keys.message_bytes
        tag = f"{self._prefix}:{{{_digest(tenant)}}}"
        return f"{tag}:{kind.name}s", f"{tag}:{kind.name}_bytes"

    def conversations(self, tenant: bytes) -> str:
        return f"{self._prefix}:{{{_digest(tenant)}}}:conversations"

    def events(self, tenant: bytes) -> str:
        return f"{self._prefix}:{{{_digest(tenant)}}}:events"

    def holders(self, tenant: bytes, field: bytes) -> str:
        """The conversations that have a text, which is named by its field."""
        return f"{self._prefix}:{{{_digest(tenant, b'text', field)}}}:holders"

    def purse(self, tenant: bytes, day: bytes) -> str:
        """What was taken on a day, for one tenant or for all."""
        return f"{self._prefix}:{{{_digest(tenant, b'purse', day)}}}:purse"

    def billed(self, tenant: bytes, what: str) -> str:
        return f"{self._prefix}:{{{_digest(tenant)}}}:billed_{what}"

    def billed_day(self, tenant: bytes, day: bytes) -> tuple[str, str]:
        """The sums of a day, and the ids of the bills that were added."""
        tag = f"{self._prefix}:{{{_digest(tenant, b'bills', day)}}}"
        return f"{tag}:bills", f"{tag}:ids"

    def secret(self, name: str) -> str:
        """A secret that all share; release 0.1 has the same."""
        return f"{self._secrets}:{name}"


def _digest(*names: bytes) -> str:
    """A digest of its own for each sequence of names."""
    return sha256(b"".join(b"%d:%s" % (len(name), name) for name in names)).hexdigest()[:32]


@dataclass(frozen=True)
class Script:
    """A script, known to the server by its digest once it has run there."""

    text: str

    @cached_property
    def digest(self) -> str:
        return sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    def on(self, keys: Sequence[str], *arguments: Argument) -> "ScriptCommand":
        """The command that runs it where it is known."""
        command = ScriptCommand(("EVALSHA", self.digest, len(keys), *keys, *arguments))
        command.script = self
        return command


class ScriptCommand(Command):
    """EVALSHA, which remembers its script."""

    script: Script


def in_full(command: Command) -> Command:
    """The command, with its script in full for a server that does not know it."""
    return ("EVAL", command.script.text, *command[2:]) if isinstance(command, ScriptCommand) else command


_USED = """
redis.call('ZADD', KEYS[2], ARGV[2], ARGV[3])
local old = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', tonumber(ARGV[2]) - tonumber(ARGV[1]), 'LIMIT', 0, 16)
for _, anchor in ipairs(old) do
    redis.call('HDEL', KEYS[1], 'd' .. anchor, 's' .. anchor, 't' .. anchor, 'i' .. anchor)
    redis.call('HDEL', KEYS[3], 'c' .. anchor, 'h' .. anchor)
    redis.call('ZREM', KEYS[2], anchor)
end
for _, key in ipairs(KEYS) do
    redis.call('EXPIRE', key, ARGV[1])
end
"""
"""Renews the time to live of a conversation, and deletes a few steps that were not used for as long: many clients
may share its name without end."""

_JOINED = """
local function joined(row, name, record, most, id)
    local entries, at = {}, 1
    while at <= #row do
        local _, stop, first, second = string.find(row, '^(%d+):(%d+):', at)
        if not stop then break end
        local after = stop + tonumber(first) + tonumber(second) + 1
        if after > #row + 1 then break end
        if string.match(string.sub(row, stop + 1, stop + tonumber(first)), id) ~= string.match(name, id) then
            entries[#entries + 1] = string.sub(row, at, after - 1)
        end
        at = after
    end
    entries[#entries + 1] = #name .. ':' .. #record .. ':' .. name .. record
    return table.concat(entries, '', math.max(1, #entries - tonumber(most) + 1))
end
"""
"""A row with one more entry. Of those with the same in the place of their names that `id` matches the newest stays."""

SEALED = """
local function sealed(name, body)
    return string.sub(redis.sha1hex('1' .. name .. body), 1, 16) .. body
end
local function unsealed(name, row)
    local body = row and string.sub(row, 17) or ''
    return body ~= '' and sealed(name, body) == row and body
end
"""
"""`unsealed` in Lua: the body of a row, or nothing where it is not whole."""

READ = Script(
    """-- KEYS: steps, ages, summaries. ARGV: now, lengths of the anchors, the anchors
redis.call('ZADD', KEYS[2], 'XX', ARGV[1], '')
local names, few = {}, redis.call('HLEN', KEYS[3]) <= #ARGV[2]
if few then
    for _, field in ipairs(redis.call('HKEYS', KEYS[3])) do names[field] = true end
end
local function there(field)
    return names[field] or not few and redis.call('HEXISTS', KEYS[3], field) == 1
end
local lengths, values, at = {}, {}, 1
for i = 1, #ARGV[2] / 4 do
    local length = struct.unpack('>i4', ARGV[2], i * 4 - 3)
    local anchor = string.sub(ARGV[3], at, at + length - 1)
    at = at + length
    local row = redis.call('HMGET', KEYS[1], 'd' .. anchor, 's' .. anchor, 't' .. anchor, 'i' .. anchor)
    row[5] = there('c' .. anchor) and redis.call('HGET', KEYS[3], 'c' .. anchor)
    if row[1] or row[4] or row[5] or there('h' .. anchor) then
        redis.call('ZADD', KEYS[2], 'XX', ARGV[1], anchor)
        lengths[#lengths + 1] = struct.pack('>i4', i - 1)
        for field = 1, 5 do
            lengths[#lengths + 1] = struct.pack('>i4', row[field] and #row[field] or -1)
            values[#values + 1] = row[field] or ''
        end
    end
end
return {table.concat(lengths), table.concat(values)}"""
)
"""Answers for each anchor that is known with its number and the lengths of its fields (-1: none), and with the fields,
one after the other: thousands of small replies would take Python longer than a request may wait. It begins with a
write, so that a server that can only be read is not taken for a sound one."""

CLAIM = Script(
    """-- KEYS: those of a conversation. ARGV: ttl, now, anchor, decision, sent or nothing, at
local decision, sent, at = 'd' .. ARGV[3], 's' .. ARGV[3], 't' .. ARGV[3]
redis.call('HSETNX', KEYS[1], decision, ARGV[4])
if ARGV[5] ~= '' then
    redis.call('HSET', KEYS[1], sent, ARGV[5])
    local newest = redis.call('HGET', KEYS[1], 'n') or ''
    if ARGV[3] ~= '*' and (tonumber(redis.call('HGET', KEYS[1], 't' .. newest) or '') or 0) <= tonumber(ARGV[6]) then
        redis.call('HSET', KEYS[1], 'n', ARGV[3])
    end
end
local before = tonumber(redis.call('HGET', KEYS[1], at) or '')
if not before or before < tonumber(ARGV[6]) then
    redis.call('HSET', KEYS[1], at, ARGV[6])
end
"""
    + _USED
    + "return redis.call('HMGET', KEYS[1], decision, sent, at)"
)

INSERT = Script(
    "-- KEYS: those of a conversation. ARGV: ttl, now, anchor, reply, record, most"
    + _JOINED
    + """
local field = 'i' .. ARGV[3]
local row = redis.call('HGET', KEYS[1], field) or ''
redis.call('HSET', KEYS[1], field, joined(row, ARGV[4], ARGV[5], ARGV[6], '^.*$'))
"""
    + _USED
)

PUT_SUMMARY = Script(
    "-- KEYS: those of a conversation. ARGV: ttl, now, first, field, id, record, most, and maybe a lease and its token"
    + _JOINED
    + SEALED
    + """
if ARGV[8] then
    local held = unsealed(ARGV[8], redis.call('HGET', KEYS[4], ARGV[8]))
    if not held or string.match(held, '^%d+') ~= ARGV[9] then
        return 0
    end
end
local number = string.format('%.0f', (tonumber(redis.call('HGET', KEYS[3], 'n') or '') or 0) + 1)
local row = redis.call('HGET', KEYS[3], ARGV[4]) or ''
row = joined(row, number .. ' ' .. ARGV[5], ARGV[6], ARGV[7], '^%d+ (.*)$')
redis.call('HSET', KEYS[3], ARGV[4], row, 'n', number)
"""
    + _USED
    + "return 1"
)
"""Answers whether it was stored."""

LEASE = Script(
    "-- KEYS: leases. ARGV: ttl, name, seconds, most seconds, mark"
    + SEALED
    + """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local row = redis.call('HGET', KEYS[1], ARGV[2])
local held = unsealed(ARGV[2], row)
local before, ends, mark = string.match(held or '0 0 ', '^(%d+) (%d+) (.*)$')
local left = tonumber(ends) - now
local spoilt = row and not held and 1 or 0
if mark == ARGV[5] then
    return {before, spoilt}
elseif left > 0 and left <= ARGV[4] * 1000000 then
    return {'', spoilt}
end
if redis.call('HLEN', KEYS[1]) >= 256 then
    local all = redis.call('HGETALL', KEYS[1])
    for i = 1, #all, 2 do
        local over = tonumber(string.match(unsealed(all[i], all[i + 1]) or '0 0', '^%d+ (%d+)'))
        if over <= now then redis.call('HDEL', KEYS[1], all[i]) end
    end
end
local token = string.format('%.0f', math.max(before + 1, now))
ends = string.format('%.0f', now + ARGV[3] * 1000000)
redis.call('HSET', KEYS[1], ARGV[2], sealed(ARGV[2], token .. ' ' .. ends .. ' ' .. ARGV[5]))
redis.call('EXPIRE', KEYS[1], ARGV[1])
return {token, spoilt}"""
)
"""Answers with the token, empty where another has it, and with how many rows cannot be read. By the server's clock;
a token is about when it was granted, and so higher than all before it even where the row of those is gone."""

RELEASE = Script(
    "-- KEYS: leases. ARGV: name, token"
    + SEALED
    + """
local held = unsealed(ARGV[1], redis.call('HGET', KEYS[1], ARGV[1]))
if held and string.match(held, '^%d+') == ARGV[2] then
    redis.call('HSET', KEYS[1], ARGV[1], sealed(ARGV[1], ARGV[2] .. ' 0 '))
end"""
)
"""The row stays, and with it the token: the next one is higher."""

MEND = Script(
    """-- KEYS: a hash. ARGV: field, what cannot be read, what takes its place
if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then
    redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end"""
)

NOTE = Script(
    """-- KEYS: an index. ARGV: ttl, now, member
redis.call('ZADD', KEYS[1], 'GT', ARGV[2], ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', math.min(ARGV[2], redis.pcall('TIME')[1] or ARGV[2]) - ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[1])"""
)
"""An index is sorted by last write, and forgets what has expired, by the server's clock too: no clock empties it."""

NOTE_EVENT = Script(
    """-- KEYS: a tenant's events. ARGV: ttl, most, mark, conversation, record
for _, entry in ipairs(redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 16)) do
    if entry[2][2] == ARGV[3] then return end
end
redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[2], '*', 'm', ARGV[3], 'c', ARGV[4], 'e', ARGV[5])
local since = math.max(0, redis.call('TIME')[1] - ARGV[1])
redis.call('XTRIM', KEYS[1], 'MINID', '~', string.format('%.0f', since * 1000))
redis.call('EXPIRE', KEYS[1], ARGV[1])"""
)

LIST_EVENTS = Script(
    """-- KEYS: a tenant's events. ARGV: before which, how many to look at, and maybe a conversation
local entries = redis.call('XREVRANGE', KEYS[1], ARGV[1], '-', 'COUNT', ARGV[2])
local lengths, parts = {}, {}
for _, entry in ipairs(entries) do
    if not ARGV[3] or entry[2][4] == ARGV[3] then
        for _, part in ipairs({entry[1], entry[2][4] or '', entry[2][6] or ''}) do
            lengths[#lengths + 1] = struct.pack('>i4', #part)
            parts[#parts + 1] = part
        end
    end
end
return {entries[tonumber(ARGV[2])] and entries[#entries][1] or '', table.concat(lengths), table.concat(parts)}"""
)
"""Answers with the last one that it has looked at, empty where there are no more, and with the id, the conversation and
the record of those wanted: in two pieces, as READ does."""

DELETE_EVENTS = Script(
    """-- KEYS: a tenant's events. ARGV: after which, how many to look at, conversations
local entries = redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', ARGV[2])
local names = {}
for i = 3, #ARGV do names[ARGV[i]] = true end
for _, entry in ipairs(entries) do
    if names[entry[2][4]] then redis.call('XDEL', KEYS[1], entry[1]) end
end
return entries[tonumber(ARGV[2])] and entries[#entries][1] or ''"""
)
"""Answers with the last one that it has looked at, empty where there are no more."""

PUT_ONCE = Script(
    """-- KEYS: a secret. ARGV: 32 bytes
local there = redis.call('GET', KEYS[1])
if there and #there == #ARGV[1] then
    return there
end
redis.call('SET', KEYS[1], ARGV[1])
return ARGV[1]"""
)


def unsealed(name: bytes, row: bytes) -> bytes:
    """The body of a row that a script has sealed. Raises UnreadableRecordError."""
    body = row[_SEAL:]
    if sha1(b"1" + name + body, usedforsecurity=False).hexdigest()[:_SEAL].encode() != row[:_SEAL]:
        raise UnreadableRecordError("its checksum is wrong")
    return body


_SEAL = 16  # characters


def framed(values: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Their lengths, and all of them."""
    return pack(f">{len(values)}i", *map(len, values)), b"".join(values)


def fields(lengths: bytes, values: bytes) -> Iterator[tuple[int, list[bytes | None]]]:
    """The answer of READ: the number of an anchor, and its five fields."""
    rest = BytesIO(values)
    for number, *sizes in iter_unpack(">6i", lengths):
        yield number, [None if size < 0 else rest.read(size) for size in sizes]
