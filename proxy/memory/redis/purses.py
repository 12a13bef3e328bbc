"""The scripts that add up what was spent, and take money from a purse."""

from proxy.memory.redis.scripts import SEALED, Script

SPEND = Script(
    "-- KEYS: spent. ARGV: ttl, mark, field, calls, prompt, cached, written, completion, dollars"
    + SEALED
    + """
local marks = redis.call('HGET', KEYS[1], 'n') or ''
if string.find(marks, ARGV[2], 1, true) then
    return 0
end
local row, sum = redis.call('HGET', KEYS[1], ARGV[3]), {}
local body = unsealed(ARGV[3], row)
for number in string.gmatch(body or '0 0 0 0 0 0', '[^ ]+') do
    sum[#sum + 1] = string.format('%.17g', number + ARGV[#sum + 4])
end
redis.call('HSET', KEYS[1], ARGV[3], sealed(ARGV[3], table.concat(sum, ' ')), 'n', string.sub(ARGV[2] .. marks, 1, 256))
redis.call('EXPIRE', KEYS[1], ARGV[1])
return row and not body and 1 or 0"""
)
"""Answers with how many rows cannot be read; they begin again."""

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
