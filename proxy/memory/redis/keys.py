"""Keys of this gateway in Redis: one hash that does not expire. `k` and a name is the SHA-256 of its key, `d` and that
its row; `n` is new with each change. The laws of `scripts` hold here too.
"""

import secrets
from collections.abc import Sequence
from operator import attrgetter

from proxy.config import KeyRow
from proxy.memory import KEYS
from proxy.memory.key_rows import key_row, packed
from proxy.memory.redis.bills import scored
from proxy.memory.redis.connection import RedisConnection
from proxy.memory.redis.scripts import Keys, Script
from proxy.memory.serialization import Codec, readable

_ADD = Script(
    """-- KEYS: keys. ARGV: name, sha256, row, most, revision
local name, digest = 'k' .. ARGV[1], 'd' .. ARGV[2]
local there = redis.call('HGET', KEYS[1], digest)
if there or redis.call('HEXISTS', KEYS[1], name) == 1 then
    return there == ARGV[3] and 1 or 0
end
if redis.call('HLEN', KEYS[1]) >= 2 * tonumber(ARGV[4]) + 1 then
    return 0
end
redis.call('HSET', KEYS[1], name, ARGV[2], digest, ARGV[3], 'n', ARGV[5])
return 1"""
)

_ALL = Script(
    """-- KEYS: keys. ARGV: the revision that is known
local revision = redis.call('HGET', KEYS[1], 'n') or ''
if revision ~= '' and revision == ARGV[1] then
    return false
end
return redis.call('HGETALL', KEYS[1])"""
)

_DELETE = Script(
    """-- KEYS: keys. ARGV: name, revision
local name = 'k' .. ARGV[1]
local digest = redis.call('HGET', KEYS[1], name)
if not digest then
    return 0
end
redis.call('HDEL', KEYS[1], name, 'd' .. digest)
redis.call('HSET', KEYS[1], 'n', ARGV[2])
return 1"""
)


class RedisKeys:
    """The part of the store that holds rows of keys."""

    _connection: RedisConnection
    _codec: Codec
    _keys: Keys

    async def add_key(self, row: KeyRow) -> bool:
        command = _ADD.on([self._gateway_keys], row.name, row.sha256, packed(row), KEYS, _revision())
        (added,) = await self._connection.trip(command)
        return bool(added)

    async def key_rows(self, unless: str = "") -> tuple[str, Sequence[KeyRow]] | None:
        (answer,) = await self._connection.trip(_ALL.on([self._gateway_keys], unless))
        if answer is None:
            return None
        fields = dict(scored(answer))
        names = ((field[1:], fields.get(b"d" + digest)) for field, digest in fields.items() if field[:1] == b"k")
        rows = readable(self._codec.read(_row, name, content) for name, content in names)
        return fields.get(b"n", b"").decode("ascii", "replace"), sorted(rows, key=attrgetter("name"))

    async def delete_key(self, name: str) -> bool:
        (deleted,) = await self._connection.trip(_DELETE.on([self._gateway_keys], name, _revision()))
        return bool(deleted)

    @property
    def _gateway_keys(self) -> str:
        return self._keys.ready.removesuffix("ready") + "keys"


def _revision() -> str:
    return secrets.token_hex(8)


def _row(name: bytes, stored: object) -> KeyRow:
    """Raises UnreadableRecordError, UnicodeDecodeError."""
    return key_row(name.decode(), stored)
