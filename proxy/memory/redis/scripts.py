"""The scripts of Redis: one for each thing that reads before it writes.

Laws
  A script is done whole or not at all. Run twice it leaves what it left once: a lost answer may be asked for again.
  Where that does not follow from what is written, each call has a mark of its own, and is not done again after it.

The fields of a conversation's `steps`, each named by its kind and the anchor: `d` what was decided, `s` what was then
sent, `t` when, `i` the exchanges behind the replies, written `LENGTH:LENGTH:` and then the reply's name and its record,
the oldest first; `n` alone is the anchor of the step that was sent last. Those of its `summaries`: `c` (for the prompt)
or `h` (history) and the first anchor, written in the same way, each named by a number and its id; `n` is the last
number. `ages` says when an anchor was last used. `leases` and `spent` (`k` and a kind; `p` the purse;
`b` the bills added up) hold rows that are sealed here, because Redis reads and writes them.
"""

from proxy.memory.redis.connection import Script

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

_AHEAD = """
local function ahead(now)
    local time = redis.pcall('TIME')
    local seconds = math.floor(now - (time[1] or now) - (time[2] or 0) / 1000000 + 0.5)
    return math.abs(seconds) > 1 and math.abs(seconds) < 3600 and seconds or 0
end
local function shifted(at, seconds)
    return seconds ~= 0 and tonumber(at or '') and string.format('%.17g', at + seconds) or at
end
"""
"""How far a caller's clock is ahead of the server's, by which its times are stored and read: so clocks of replicas may
differ. In whole seconds: less is the way here, and an hour is a clock that no other replica goes by. It is measured
with each call, so near one second, and near an hour, two calls may differ."""

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

AHEAD = Script("-- KEYS: any. ARGV: now" + _AHEAD + "return ahead(ARGV[1])")

READ = Script(
    "-- KEYS: steps, ages, summaries. ARGV: now, lengths of the anchors, the anchors"
    + _AHEAD
    + """
redis.call('ZADD', KEYS[2], 'XX', ARGV[1], '')
local skew = ahead(ARGV[1])
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
    row[3] = shifted(row[3], skew)
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
    "-- KEYS: those of a conversation. ARGV: ttl, now, anchor, decision, sent or nothing, at"
    + _AHEAD
    + """
local decision, sent, at, skew = 'd' .. ARGV[3], 's' .. ARGV[3], 't' .. ARGV[3], ahead(ARGV[2])
local moment = shifted(ARGV[6], -skew)
redis.call('HSETNX', KEYS[1], decision, ARGV[4])
if ARGV[5] ~= '' then
    redis.call('HSET', KEYS[1], sent, ARGV[5])
    local newest = redis.call('HGET', KEYS[1], 'n') or ''
    if ARGV[3] ~= '*' and (tonumber(redis.call('HGET', KEYS[1], 't' .. newest) or '') or 0) <= tonumber(moment) then
        redis.call('HSET', KEYS[1], 'n', ARGV[3])
    end
end
local before = tonumber(redis.call('HGET', KEYS[1], at) or '')
if not before or before < tonumber(moment) then
    redis.call('HSET', KEYS[1], at, moment)
end
"""
    + _USED
    + """
local row = redis.call('HMGET', KEYS[1], decision, sent, at)
row[3] = shifted(row[3], skew)
return row"""
)

NEWEST = Script(
    "-- KEYS: steps. ARGV: now"
    + _AHEAD
    + """
local anchor = redis.call('HGET', KEYS[1], 'n')
if not anchor then return {false, false, false, false} end
local row = redis.call('HMGET', KEYS[1], 'd' .. anchor, 's' .. anchor, 't' .. anchor)
return {anchor, row[1], row[2], shifted(row[3], ahead(ARGV[1]))}"""
)
"""Answers with the step that was sent last: its anchor, decision, request and time."""

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

PUT_ONCE = Script(
    """-- KEYS: a secret. ARGV: 32 bytes
local there = redis.call('GET', KEYS[1])
if there and #there == #ARGV[1] then
    return there
end
redis.call('SET', KEYS[1], ARGV[1])
return ARGV[1]"""
)

TAKE = Script(
    "-- KEYS: a purse, or spent. ARGV: ttl, mark, dollars, limit"
    + SEALED
    + """
local row = redis.call('HGET', KEYS[1], 'p')
local body = unsealed('p', row)
local sum, marks = string.match(body or '0 ', '^([^ ]+) (.*)$')
local spoilt = row and not body and 1 or 0
if string.find(marks, ARGV[2], 1, true) then
    return {1, spoilt}
end
local dollars = tonumber(ARGV[3])
sum = tonumber(sum) + dollars
if dollars >= 0 and sum > tonumber(ARGV[4]) then
    return {0, spoilt}
end
body = string.format('%.17g', math.max(sum, 0)) .. ' ' .. string.sub(ARGV[2] .. marks, 1, 512)
redis.call('HSET', KEYS[1], 'p', sealed('p', body))
redis.call('EXPIRE', KEYS[1], ARGV[1])
return {1, spoilt}"""
)
"""Answers whether it was added, and with how many rows cannot be read; they begin again."""

PUT_SNAPSHOT = Script(
    """-- KEYS: snapshots. ARGV: ttl, name, record, the name whose snapshot goes, most
local names = {ARGV[2]}
for name in string.gmatch(redis.call('HGET', KEYS[1], 'n') or '', '%S+') do
    if name == ARGV[4] or (name ~= ARGV[2] and #names >= tonumber(ARGV[5])) then
        redis.call('HDEL', KEYS[1], name)
    elseif name ~= ARGV[2] then
        names[#names + 1] = name
    end
end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[3], 'n', table.concat(names, ' '))
redis.call('EXPIRE', KEYS[1], ARGV[1])"""
)
"""Puts one into a hash beside the steps of its conversation, in a field that is named by a digest of its fingerprint
and anchor. `n` is the names of all, the newest first."""

# --- indexes, events, and rows for people and accounts ---

NOTE = Script(
    """-- KEYS: an index. ARGV: ttl, then times and members
redis.call('ZADD', KEYS[1], 'GT', unpack(ARGV, 2))
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

GUARDED = Script(
    """-- KEYS: of the commands. ARGV: the lengths of all words, and the words
local words, start, at = {}, 1, 3
for i = 1, #ARGV[1] / 4 do
    local length = struct.unpack('>i4', ARGV[1], i * 4 - 3)
    words[i] = string.sub(ARGV[2], start, start + length - 1)
    start = start + length
end
local mark = redis.call('GET', KEYS[1]) or ''
if mark == words[6] then return 1 end
if mark ~= words[2] then return 0 end
while at <= #words do
    local size = tonumber(words[at])
    at = at + size + 1
    redis.call(unpack(words, at - size, at - 1))
end
return 1"""
)
"""Commands that are only done where nothing was changed since the mark was read. Answers whether they were done. Each
is written as its length and its words: first the mark, in a command of its own, then that which sets a new one. They
come in two pieces: thousands of small arguments would take Python long."""

INDEX = Script(
    """-- KEYS: an index and its bytes. ARGV: ttl, now, since when, most bytes, how many of the oldest to look at,
-- how many to add, these, and those to remove
local function size(member) return tonumber(string.match(member, '^%d+')) or 0 end
local sum = redis.call('EXISTS', KEYS[1]) == 1 and tonumber(redis.call('GET', KEYS[2]) or '')
if not sum then
    sum = 0
    for _, member in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do sum = sum + size(member) end
end
for i = 7, #ARGV do
    if i < 7 + ARGV[6] then
        sum = sum + redis.call('ZADD', KEYS[1], 'NX', ARGV[2], ARGV[i]) * size(ARGV[i])
    else
        sum = sum - redis.call('ZREM', KEYS[1], ARGV[i]) * size(ARGV[i])
    end
end
if redis.call('EXISTS', KEYS[1]) == 1 then
    redis.call('SET', KEYS[2], string.format('%.0f', sum), 'EX', ARGV[1])
    redis.call('EXPIRE', KEYS[1], ARGV[1])
else
    redis.call('DEL', KEYS[2])
end
local surplus, oldest = {}, redis.call('ZRANGE', KEYS[1], 0, ARGV[5] - 1, 'WITHSCORES')
for i = 1, #oldest, 2 do
    if sum <= tonumber(ARGV[4]) and tonumber(oldest[i + 1]) >= tonumber(ARGV[3]) then break end
    surplus[#surplus + 1] = oldest[i]
    sum = sum - size(oldest[i])
end
return surplus"""
)
"""An index of texts, sorted by when they were first stored, each written `SIZE FIELD ` and then the name of its
conversation; beside it stands how many bytes these are, which is added up where it is gone. Answers with those that
are then too many or too old, the oldest first; they stay until they are removed."""
