"""What Redis does by itself, whole or not at all: one script for each thing that reads before it writes.

Laws
  A script touches one conversation, or one index: its keys share a hash tag, and so a slot of a cluster.
  Run twice it leaves what it left once: a lost answer may be asked for again.

The fields of a conversation, each named by its kind and the anchor: `d` what was decided, `s` what was then sent, `t`
when, `i` what stands behind the replies, written `LENGTH:LENGTH:` and then the reply's name and its record, the oldest
first. `ages` says when a field was last used.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha1
from struct import iter_unpack, pack

Argument = str | bytes | int | float
Command = tuple[Argument, ...]


@dataclass(frozen=True)
class Script:
    """A script, known to the server by its digest once it has run there."""

    text: str

    @cached_property
    def digest(self) -> str:
        """As Redis names it."""
        return sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    def on(self, keys: Sequence[str], *arguments: Argument) -> Command:
        """The command that runs it where it is known."""
        return ("EVALSHA", self.digest, len(keys), *keys, *arguments)


_USED = """
redis.call('ZADD', KEYS[2], ARGV[2], ARGV[3])
local old = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', tonumber(ARGV[2]) - tonumber(ARGV[1]), 'LIMIT', 0, 16)
for _, anchor in ipairs(old) do
    redis.call('HDEL', KEYS[1], 'd' .. anchor, 's' .. anchor, 't' .. anchor, 'i' .. anchor)
    redis.call('ZREM', KEYS[2], anchor)
end
for _, key in ipairs(KEYS) do
    redis.call('EXPIRE', key, ARGV[1])
end
"""
"""The conversation lives on, and a few steps that nobody used for as long go: many may share its name for ever."""

READ = Script(
    """-- KEYS: steps, ages. ARGV: now, lengths of the anchors, the anchors
redis.call('ZADD', KEYS[2], 'XX', ARGV[1], '')
local lengths, found, at = {}, {}, 1
for i = 1, #ARGV[2] / 4 do
    local length = struct.unpack('>i4', ARGV[2], i * 4 - 3)
    local anchor = string.sub(ARGV[3], at, at + length - 1)
    at = at + length
    local row = redis.call('HMGET', KEYS[1], 'd' .. anchor, 's' .. anchor, 't' .. anchor, 'i' .. anchor)
    if row[1] or row[4] then
        redis.call('ZADD', KEYS[2], 'XX', ARGV[1], anchor)
        lengths[#lengths + 1] = struct.pack('>i4', i - 1)
        for field = 1, 4 do
            lengths[#lengths + 1] = struct.pack('>i4', row[field] and #row[field] or -1)
            found[#found + 1] = row[field] or ''
        end
    end
end
return {table.concat(lengths), table.concat(found)}"""
)
"""Answers for each step that is known with its number and the lengths of its fields (-1: none), and with the fields,
one after the other: thousands of small replies would take Python longer than a request may wait. It begins with a
write, so that a server that can only be read is not taken for a sound one."""

KEEP = Script(
    """-- KEYS: steps, ages, originals. ARGV: ttl, now, anchor, decision, sent or nothing, at
local decision, sent, at = 'd' .. ARGV[3], 's' .. ARGV[3], 't' .. ARGV[3]
redis.call('HSETNX', KEYS[1], decision, ARGV[4])
if ARGV[5] ~= '' then
    redis.call('HSET', KEYS[1], sent, ARGV[5])
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
    """-- KEYS: steps, ages, originals. ARGV: ttl, now, anchor, reply, record, most
local field = 'i' .. ARGV[3]
local row = redis.call('HGET', KEYS[1], field) or ''
local kept, at = {}, 1
while at <= #row do
    local _, stop, name, record = string.find(row, '^(%d+):(%d+):', at)
    if not stop then break end
    local after = stop + tonumber(name) + tonumber(record) + 1
    if after > #row + 1 then break end
    if string.sub(row, stop + 1, stop + tonumber(name)) ~= ARGV[4] then
        kept[#kept + 1] = string.sub(row, at, after - 1)
    end
    at = after
end
kept[#kept + 1] = #ARGV[4] .. ':' .. #ARGV[5] .. ':' .. ARGV[4] .. ARGV[5]
redis.call('HSET', KEYS[1], field, table.concat(kept, '', math.max(1, #kept - tonumber(ARGV[6]) + 1)))
"""
    + _USED
)

KEEP_ORIGINALS = Script(
    """-- KEYS: originals, steps, ages. ARGV: ttl, then references and their records
local others = {}
for i = 2, #ARGV, 2 do
    local there = redis.call('HGET', KEYS[1], ARGV[i])
    if not there then
        redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
    elseif there ~= ARGV[i + 1] then
        others[#others + 1] = {ARGV[i], there}
    end
end
for _, key in ipairs(KEYS) do
    redis.call('EXPIRE', key, ARGV[1])
end
return others"""
)
"""Answers with what is there already and is not the same."""

MEND = Script(
    """-- KEYS: a hash. ARGV: field, what nobody can read, what takes its place
if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then
    redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end"""
)

NOTE = Script(
    """-- KEYS: an index. ARGV: ttl, now, member
redis.call('ZADD', KEYS[1], 'GT', ARGV[2], ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', tonumber(ARGV[2]) - tonumber(ARGV[1]))
redis.call('EXPIRE', KEYS[1], ARGV[1])"""
)
"""An index is sorted by last write, and forgets what has expired."""

MADE_ONCE = Script(
    """-- KEYS: a secret. ARGV: 32 bytes
local there = redis.call('GET', KEYS[1])
if there and #there == #ARGV[1] then
    return there
end
redis.call('SET', KEYS[1], ARGV[1])
return ARGV[1]"""
)

_TEXTS = {script.digest: script.text for script in (READ, KEEP, INSERT, KEEP_ORIGINALS, MEND, NOTE, MADE_ONCE)}


def framed(values: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Their lengths, and all of them."""
    return pack(f">{len(values)}i", *map(len, values)), b"".join(values)


def fields(lengths: bytes, found: bytes) -> Iterator[tuple[int, list[bytes | None]]]:
    """What READ answers: the number of a step, and its four fields."""
    at = 0
    for number, *sizes in iter_unpack(">5i", lengths):
        row: list[bytes | None] = []
        for size in sizes:
            row.append(None if size < 0 else found[at : at + size])
            at += max(size, 0)
        yield number, row


def whole(command: Command) -> Command:
    """The command, with its script in full for a server that does not know it."""
    return ("EVAL", _TEXTS[str(command[1])], *command[2:]) if command[0] == "EVALSHA" else command


def keys(command: Command) -> Sequence[Argument]:
    """The keys that a command of ours touches."""
    return command[3 : 3 + int(command[2])] if command[0] == "EVALSHA" else command[1:2]
