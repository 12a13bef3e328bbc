"""What Redis does by itself with texts that are kept for people; the laws of `redis_scripts` hold here too.

A leaf's field is its shelf's letter and its name. In `leaves` it says `NUMBER SIZE ` and then what a list says of it,
where `n` is the last number; in `texts` it is the text. An index is the leaves of a shelf, sorted by when they were
first kept, each written `SIZE FIELD ` and then the conversation's name, and beside it how many bytes these are.
"""

from proxy.store.redis.script import Script

KEEP_LEAVES = Script(
    """-- KEYS: those of a conversation. ARGV: ttl, then fields, sizes, what is said of them and texts
for i = 2, #ARGV, 4 do
    if redis.call('HEXISTS', KEYS[7], ARGV[i]) == 0 then
        local number = redis.call('HINCRBY', KEYS[7], 'n', 1)
        redis.call('HSET', KEYS[7], ARGV[i], number .. ' ' .. ARGV[i + 1] .. ' ' .. ARGV[i + 2])
    end
    redis.call('HSET', KEYS[8], ARGV[i], ARGV[i + 3])
end
for _, key in ipairs(KEYS) do
    redis.call('EXPIRE', key, ARGV[1])
end"""
)

_HELD = """
local function held()
    local sum = tonumber(redis.call('GET', KEYS[2]) or '')
    if sum and redis.call('EXISTS', KEYS[1]) == 1 then return sum end
    sum = 0
    for _, member in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
        sum = sum + (tonumber(string.match(member, '^%d+')) or 0)
    end
    return sum
end
"""
"""How many bytes are kept; added up where nobody knows."""

SHELVE = Script(
    "-- KEYS: an index and its bytes. ARGV: ttl, now, members"
    + _HELD
    + """
local sum = held()
for i = 3, #ARGV do
    if redis.call('ZADD', KEYS[1], 'NX', ARGV[2], ARGV[i]) == 1 then
        sum = sum + tonumber(string.match(ARGV[i], '^%d+'))
    end
end
redis.call('SET', KEYS[2], string.format('%.0f', sum), 'EX', ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[1])"""
)

SURPLUS = Script(
    "-- KEYS: an index and its bytes. ARGV: since when, most bytes, most members"
    + _HELD
    + """
local sum, found = held(), {}
local oldest = redis.call('ZRANGE', KEYS[1], 0, ARGV[3] - 1, 'WITHSCORES')
for i = 1, #oldest, 2 do
    if sum <= tonumber(ARGV[2]) and tonumber(oldest[i + 1]) >= tonumber(ARGV[1]) then break end
    found[#found + 1] = oldest[i]
    sum = sum - (tonumber(string.match(oldest[i], '^%d+')) or 0)
end
return found"""
)
"""Answers with the members that are too old or too many, the oldest first. They stay until UNSHELVE."""

UNSHELVE = Script(
    "-- KEYS: an index and its bytes. ARGV: ttl, members"
    + _HELD
    + """
local sum = held()
for i = 2, #ARGV do
    if redis.call('ZREM', KEYS[1], ARGV[i]) == 1 then
        sum = sum - (tonumber(string.match(ARGV[i], '^%d+')) or 0)
    end
end
if redis.call('EXISTS', KEYS[1]) == 1 then
    redis.call('SET', KEYS[2], string.format('%.0f', sum), 'EX', ARGV[1])
else
    redis.call('DEL', KEYS[2])
end"""
)

SCRIPTS = (KEEP_LEAVES, SHELVE, SURPLUS, UNSHELVE)
