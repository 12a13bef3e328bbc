"""Snapshots in Redis: a hash beside the steps of their conversation, each in a field that is named by a digest of its
fingerprint and anchor. `n` is the names of all, the newest first. The laws of `scripts` hold here too.
"""

from hashlib import sha256

from proxy.store.redis.scripts import Script
from proxy.store.serialization import name_bytes

PUT = Script(
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


def field(fingerprint: str, anchor: str) -> str:
    """The name of a snapshot."""
    both = name_bytes(fingerprint), name_bytes(anchor)
    return sha256(b"".join(b"%d:%s" % (len(name), name) for name in both)).hexdigest()[:32]
